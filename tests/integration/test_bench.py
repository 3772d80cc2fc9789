"""The bench at a tiny size: each case measures, checks its sums and prints its lines; what it finds does not count."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scheduler.database import embedded
from tests.bench.__main__ import ALL, main
from tests.bench.usage import metered, this_process
from tests.needs import need

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(1200)]

SMALL = ["--scale", "0.002", "--rounds", "1", "--without-peers"]
LINES = {"P1": 7, "P2": 2, "P3": 2, "P4": 4, "P5": 2, "P6": 3, "P7": 2, "P8": 2, "P10": 1, "P11": 94} | {
    "KEY": 1, "J129": 1, "R33": 4, "R52": 1, "T10": 1, "C38": 6, "C43": 1, "C45": 1, "C46": 2, "C55": 1, "F139": 1,
    "F153": 1,
}  # fmt: skip

COSTLESS = ("wake-ups", "its last tenth")
FAR = ["P9"]  # wants an sshd
CHUNK = 500  # of P6; more than are worked in its time


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small what no scale makes smaller: rests, chunks, and what a disk takes to have it safe."""
    temporary: Callable[..., AbstractContextManager[str]] = embedded.temporary

    def volatile(**options: Any) -> AbstractContextManager[str]:
        return temporary(**options | {"durable": False})

    monkeypatch.setattr(embedded, "temporary", volatile)
    monkeypatch.setattr("tests.bench.place.REST_S", 0.0)
    monkeypatch.setattr("tests.bench.beside.CHUNK", CHUNK)


def test_every_case_measures_and_prints_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("postgres")
    assert list(LINES) == [case for case in ALL if case not in FAR]
    assert (
        main([*SMALL, "--only", ",".join(LINES), "--json", str(tmp_path / "figures"), "--report", str(tmp_path)]) == 0
    )
    printed = capsys.readouterr().out
    lines = json.loads((tmp_path / "figures").read_text())["lines"]
    assert {case: len(list(group)) for case, group in groupby(line["case"] for line in lines)} == LINES
    assert {"P1-rate.svg", "P1-cpu.svg", "P8-cpu.svg"} <= {path.name for path in tmp_path.iterdir()}
    assert [line["what"] for line in lines if not line["ours"]] == []
    assert all(line["what"] in printed for line in lines)
    rates = [line for line in lines if line["unit"] == "/s" and not line["what"].endswith(COSTLESS)]
    assert [line["what"] for line in rates if not line["cost"] or line["cost"]["ours"]["driver_us"] <= 0] == []


def test_a_host_over_ssh_is_measured_beside_bare_paramiko(capsys: pytest.CaptureFixture[str]) -> None:
    need("postgres")
    need("sshd")
    assert main([*SMALL, "--only", ",".join(FAR)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("P9")]
    assert [" to bare paramiko" in line and "/s" in line for line in told] == [False, True, False, True, False]


def test_peers_left_out_are_named(tmp_path: Path) -> None:
    need("postgres")
    main([*SMALL, "--only", "P1,P3", "--json", str(tmp_path / "figures")])
    verdicts = [line["verdict"] for line in json.loads((tmp_path / "figures").read_text())["lines"]]
    names = ["graphile-worker", "pg-boss", "pgqueuer", "awa", "procrastinate", "graphile-worker", "graphile-worker"]
    assert verdicts[2:] == [f"missing: {name} (left out by --without-peers)" for name in names]


def test_a_meter_counts_processes_and_backends_that_ended() -> None:
    need("postgres")
    with embedded.temporary() as conninfo, metered(conninfo) as meter:
        meter.begin(this_process())
        with psycopg.connect(conninfo) as connection:
            connection.execute("create table counted as select generate_series(1, 500000)")
        subprocess.run([sys.executable, "-c", "sum(range(5_000_000))"], check=True)
        cost = meter.cost(1)
    assert cost.backends_us > 20_000
    assert cost.agents_us is not None
    assert cost.agents_us > 20_000
    assert cost.wal_bytes > 1_000_000


def test_a_meter_leaves_out_the_statements_of_the_bench() -> None:
    need("postgres")
    with embedded.temporary() as conninfo, metered(conninfo) as meter, psycopg.connect(conninfo) as connection:
        meter.begin(this_process(), apart={connection.info.backend_pid})
        connection.execute("select count(*) from generate_series(1, 500000)")
        cost = meter.cost(1)
    assert cost.backends_us < 20_000


def test_the_bench_uses_python_agents_without_a_compiler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("postgres")
    monkeypatch.setattr("tests.bench.__main__.COMPILERS", [])
    main([*SMALL, "--only", "P4,P7,T10,C55"])
    printed = capsys.readouterr().out
    assert printed.startswith("missing: no C compiler")
    assert "not measured" not in printed


def test_plots_are_drawn_into_the_report(tmp_path: Path) -> None:
    need("postgres")
    main([*SMALL, "--plots", "--report", str(tmp_path)])
    assert (tmp_path / "report.html").read_text().count("<svg") == 3


def test_a_quick_run_measures_six_targets_and_says_that_it_is_quick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("postgres")
    main([*SMALL, "--quick", "--json", str(tmp_path / "figures")])
    told = json.loads((tmp_path / "figures").read_text())
    assert capsys.readouterr().out.startswith("quick: ")
    assert told["about"]["quick"]
    assert list(dict.fromkeys(line["case"] for line in told["lines"])) == ["P1", "P2", "P3", "P6", "P8", "P10"]
    assert {line["peer_name"] for line in told["lines"]} <= {"", "graphile-worker", "GNU parallel"}


def test_an_unknown_bench_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "P77"])
    assert f"no case P77: there are {', '.join(ALL)}" in capsys.readouterr().err
