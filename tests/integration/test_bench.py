"""The bench at a tiny size: it measures, checks its sums and prints its lines. What it finds is not looked at."""

import json
import re
from pathlib import Path

import pytest

from tests.bench.__main__ import Line, main, show
from tests.needs import need

pytestmark = pytest.mark.slow

SMALL = ["--rows", "2000", "--rounds", "1", "--samples", "4", "--idle", "0.1"]
WHAT = [
    ("B1", "rows of a query, 2,000: items/s"),
    ("B1", "rows of a query, 2,000: first item"),
    ("B1", "rows of a query, 2,000: growth"),
    ("B2", "one-parameter jobs, 200: jobs/s"),
    ("B3", "keyed rows of a query, 400: items/s"),
    ("B4", "idle, 4 READY agents: CPU"),
    ("B4", "idle, 4 READY agents: wake-ups"),
    ("B4", "idle, 4 READY agents: memory"),
    ("B5", "insert -> agent, 4 samples: p50"),
    ("B5", "insert -> agent, 4 samples: p99"),
]


@pytest.mark.parametrize("compiler", ["gcc", "none"])
def test_every_case_measures_and_prints_its_lines(
    compiler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("postgres")
    need("gcc")
    monkeypatch.setattr("tests.bench.__main__.COMPILERS", [compiler])
    assert main([*SMALL, "--json", str(tmp_path / "figures")]) == 0
    printed = capsys.readouterr().out
    figures = json.loads((tmp_path / "figures").read_text())
    assert ("no C compiler" in printed) == (compiler == "none")
    assert [(line["case"], line["what"]) for line in figures] == WHAT
    assert re.findall(r"^(B\d) .*?(PASS|FALLS SHORT|)$", printed, re.MULTILINE) == [
        (line["case"], line["verdict"]) for line in figures
    ]


def test_a_line_tells_the_median_ratio_and_its_range() -> None:
    line = Line("B1", "items", "/s", ours=[10.0, 60.0, 20.0], limit=[100.0, 100.0, 100.0], at_least=0.3)
    assert line.ratios == [0.1, 0.6, 0.2]
    assert re.split(r"\s{2,}", show(line)) == [
        "B1",
        "items",
        "20/s",
        "100/s",
        "0.20 (0.10-0.60)",
        ">= 0.3",
        "FALLS SHORT",
    ]


def test_a_line_without_a_limit_tells_its_own_range() -> None:
    line = Line("B1", "first item", "s", ours=[0.5, 0.1, 0.2], at_most=1.0)
    assert re.split(r"\s{2,}", show(line)) == ["B1", "first item", "0.2 s (0.1-0.5)", "<= 1", "PASS"]
