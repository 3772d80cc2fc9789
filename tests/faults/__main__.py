"""Bring about every fault, and print the table: `python -m tests.faults [words of pytest]`, `make faults`.

A violation is something that audit.sql has against what happened, or a test that failed. The gaps are the times in
which a daemon's loop looked at nothing; one that was stopped by SIGSTOP is not measured. DROVER_FAULTS=full runs all
failpoints, longer stops and the whole soak.
"""

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.faults.site import Tally
from tests.faults.table import ELSEWHERE, HEADING, TALLIES, line

HERE = "tests/faults"


class Counter:
    """Adds the tests of other packages to the table, and what failed."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            mark = item.get_closest_marker("fault")
            elsewhere = (name for name, ids in ELSEWHERE.items() if item.nodeid.startswith(ids))
            name = mark.args[0] if mark else next(elsewhere, None)
            if name is not None:
                self._names[item.nodeid] = name

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = self._names.get(report.nodeid)
        if name is None:
            return
        tally = TALLIES.setdefault(name, Tally())
        if report.when == "call" and not report.nodeid.startswith(HERE):
            tally.runs += 1
        if report.failed:
            tally.violations += 1
            tally.is_planted = False


def main(words: Sequence[str]) -> int:
    """Run the tests and print; the exit status is that of pytest."""
    ids = [each for group in ELSEWHERE.values() for each in group]
    status = pytest.main([*(words or [HERE, *ids])], plugins=[Counter()])
    print(f"\n{HEADING}")
    for name, tally in TALLIES.items():
        print(line(name, tally))
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
