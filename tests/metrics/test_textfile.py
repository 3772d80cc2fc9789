"""`drover metrics --textfile`: the file, what is in it for each role, and what it says when there is no database."""

import os
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import make_conninfo

from scheduler.cli import web_and_metrics
from scheduler.metrics.families import COLUMNS, OF_COUNTERS, OF_TIMES
from tests.cli_tools import Done
from tests.metrics.conftest import Metrics

DOWN = "host=127.0.0.1 port=1 dbname=none"


def kinds(told: Done) -> dict[str, str]:
    """Return the kind of each metric, by name."""
    return {family.name: family.type for family in text_string_to_metric_families(told.out)}


def test_every_metric_is_in_the_file_with_its_kind(site: str, metrics: Metrics) -> None:
    told = metrics(site, "--textfile", "-")
    expected = {column.name: "counter" if column.is_counter else "gauge" for column in COLUMNS}
    expected |= {name: "counter" for name, _ in OF_COUNTERS.values()} | {
        name: "histogram" for name, _ in OF_TIMES.values()
    }
    assert (told.status, told.err) == (0, "")
    beside = ("drover_up", "drover_scrape_seconds", "drover_not_looked_for")
    assert kinds(told) == expected | dict.fromkeys(beside, "gauge")
    assert "\ndrover_up 1.0\n" in told.out


@pytest.mark.parametrize("role", ["drover_readonly", "drover_operator", "drover_scheduler"])
def test_a_role_that_sees_states_sees_every_metric_c42(site: str, metrics: Metrics, role: str) -> None:
    told = metrics(make_conninfo(site, user=role), "--textfile", "-")
    assert (told.status, told.err) == (0, "")
    assert 'drover_group_active{group="default"} 1.0' in told.out


def test_a_role_that_may_not_read_it_is_told_so_t110(site: str, metrics: Metrics) -> None:
    told = metrics(make_conninfo(site, user="drover_frontend"), "--textfile", "-")
    assert told.status == 3
    assert "permission denied" in told.err
    assert "\ndrover_up 0.0\n" in told.out


def test_metrics_that_could_not_be_looked_for_are_named_and_the_others_are_there(site: str, metrics: Metrics) -> None:
    with psycopg.connect(site) as holder:
        holder.execute("lock table drover.host")
        told = metrics(site, "--textfile", "-")
    assert (told.status, "\ndrover_up 1.0\n" in told.out) == (0, True)
    assert 'drover_not_looked_for{statement="metric_hosts"} 1.0' in told.out
    assert 'drover_group_active{group="default"} 1.0' in told.out
    assert "drover_host_up{" not in told.out
    assert told.err.startswith(
        "drover: not looked for: metric_hosts: lock: canceling statement due to lock timeout; next: "
    )


def test_database_that_is_down_is_a_metric_and_a_sentence(metrics: Metrics, tmp_path: Path) -> None:
    file = tmp_path / "drover.prom"
    told = metrics(DOWN, "--textfile", str(file))
    assert told.status == 3
    assert told.err.startswith("drover: drover_up is 0: database not reachable: ")
    assert told.err.count("\n") == 1
    samples = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert samples[0] == "drover_up 0.0"
    assert [sample.split()[0] for sample in samples] == ["drover_up", "drover_scrape_seconds"]


def test_file_is_replaced_at_once_and_nothing_else_is_left(site: str, metrics: Metrics, tmp_path: Path) -> None:
    file = tmp_path / "drover.prom"
    file.write_text("old")
    with file.open() as reader:
        assert metrics(site, "--textfile", str(file)).status == 0
        assert reader.read() == "old"
    assert os.listdir(tmp_path) == ["drover.prom"]
    assert file.read_text().endswith("\n")


def test_file_that_cannot_be_written_is_a_sentence(site: str, metrics: Metrics, tmp_path: Path) -> None:
    told = metrics(site, "--textfile", str(tmp_path / "none/drover.prom"))
    assert (told.status, told.err.splitlines()) == (
        2,
        [f"drover metrics: cannot write {tmp_path}/none/drover.prom: No such file or directory"],
    )


def test_missing_package_is_named_with_what_to_install(
    site: str, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_and_metrics, "METRICS_PACKAGES", ("nosuch_package",))
    told = metrics(site)
    assert told.status == 2
    assert told.err.endswith(
        "not installed: nosuch_package; install them with pip install 'drover-scheduler[metrics]'\n"
    )
