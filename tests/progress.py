"""Say at the start of a run how long it takes and what is left out, and show a failure when it happens.

With xdist this happens where pytest was started, not in a worker: what is known there is which tests there are.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.needs import PRESENT

# Seconds that a test takes, in the mean, by the folder it is in: one of `make test`, a slow one, and one of all.
QUICK_S = {"unit": 0.01, "sim": 0.1, "drivers": 0.1, "ssh": 0.4, "integration": 0.45, "faults": 0.8}
SLOW_S = {"sim": 3.0, "drivers": 3.0, "ssh": 4.0, "integration": 5.0, "faults": 5.0, "counts": 1.0}
MEAN_S = {"unit": 0.01, "sim": 1.5, "drivers": 0.1, "ssh": 0.6, "integration": 0.9, "faults": 4.0, "counts": 1.0}
OTHER_S = 0.1
START_S = 5.0  # to collect all tests and start a database server
REASON_LENGTH = 300


class Progress:
    """What is printed beside the dots of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._said = False

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._foretell([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._foretell(ids)

    def _foretell(self, ids: Sequence[str]) -> None:
        """Print one line, when it is known for the first time which tests there are."""
        if self._said or not ids:
            return
        self._said = True
        self._terminal.ensure_newline()
        self._terminal.write_line(f"{len(ids)} tests, {_minutes(self._duration_s(ids))}{_absent()}")

    def _duration_s(self, ids: Sequence[str]) -> float:
        means = _means(self._config.option.markexpr)
        folders = Counter(each.split("/")[1] if each.count("/") > 1 else "" for each in ids)
        workers = self._config.getoption("numprocesses", None) or 1
        return START_S + sum(means.get(folder, OTHER_S) * count for folder, count in folders.items()) / workers

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.write_line(f"{report.when} of {report.nodeid} failed: {_reason(report)}", red=True)


def _means(expression: str) -> dict[str, float]:
    """Return the table for what `-m` selects; where tests are collected in workers, only their names are known."""
    if "not slow" in expression:
        return QUICK_S
    return SLOW_S if "slow" in expression or "alone" in expression else MEAN_S


def _minutes(seconds: float) -> str:
    return "less than a minute" if seconds < 60 else f"about {math.ceil(seconds / 60)} minutes"


def _absent() -> str:
    names = [name for name, is_here in PRESENT.items() if not is_here()]
    return f"; left out is what needs {', '.join(names)}" if names else "; the machine has all they need"


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return " ".join(text.split())[:REASON_LENGTH]
