"""etc/prometheus: rules that promtool takes, and no metric in rules, dashboard and manual that the exporter has not."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from scheduler.metrics.families import COLUMNS, OF_COUNTERS, OF_TIMES
from scheduler.package_data import etc_dir
from tests.metrics.conftest import Metrics
from tests.needs import need

RULES = etc_dir() / "prometheus/rules.yml"
DASHBOARD = etc_dir() / "prometheus/grafana-dashboard.json"
MANUAL = Path(__file__).resolve().parents[2] / "man/drover.8"
NAME = re.compile(r"\bdrover_[a-z_]+\b")
SERIES = (
    {"drover_up", "drover_scrape_seconds", "drover_not_looked_for"}
    | {column.name + ("_total" if column.is_counter else "") for column in COLUMNS}
    | {f"{name}_total" for name, _ in OF_COUNTERS.values()}
    | {f"{name}_{part}" for name, _ in OF_TIMES.values() for part in ("bucket", "sum", "count")}
)


def expressions(path: Path) -> list[str]:
    """Return what the file asks Prometheus for."""
    if path == RULES:
        return re.findall(r"^ +expr: (.*(?:\n {10,}.*)*)", path.read_text(), re.MULTILINE)
    panels = json.loads(path.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=lambda path: path.name)
def test_every_metric_that_is_asked_for_is_exported(path: Path) -> None:
    asked = [set(NAME.findall(expression)) for expression in expressions(path)]
    assert all(asked)
    assert set().union(*asked) - SERIES == set()


def test_every_metric_is_in_the_manual_and_no_other() -> None:
    section = MANUAL.read_text().partition(".Sh MONITORING\n")[2].partition("\n.Sh ")[0]
    told = set(re.findall(r"^\.It Li (drover_[a-z_]+)", section, re.MULTILINE))
    exported = re.compile("_(bucket|sum|count)$")
    assert told == {exported.sub("", name) for name in SERIES}


def test_every_alert_says_what_to_do_t16() -> None:
    alerts = RULES.read_text().split("- alert: ")[1:]
    assert [alert.split()[0] for alert in alerts if "summary: " not in alert or "next: " not in alert] == []


def test_promtool_takes_the_rules() -> None:
    need("promtool")
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_promtool_takes_the_metrics(site: str, metrics: Metrics) -> None:
    need("promtool")
    told = metrics(site, "--textfile", "-")
    argv = ["promtool", "check", "metrics"]
    done = subprocess.run(argv, input=told.out, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_panels_of_the_dashboard_have_numbers_and_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
