"""When a new program of the daemon is tried: again when its files change, or if time was missing, after a while."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.daemon.upgrade import AGAIN_S, LIMITS_S, Program, Upgrade
from scheduler.drivers.loop import Loop
from scheduler.model.states import UpgradeState
from tests.loop_tools import turn_until


class Site:
    """A daemon whose program has one file, and whose clock can be put forward; each new program exits with status 1."""

    is_frozen, kept_agents = False, None

    def __init__(self, folder: Path) -> None:
        self._ahead_s = 0.0
        self.loop = Loop(lambda: time.monotonic() + self._ahead_s)
        self.file = folder / "main.py"
        self.write("old")
        self.job: int | None = None  # with a query that is not over
        self.tries = 0
        program = Program([sys.executable, "-c", "raise SystemExit('no')"], [], {}, folder, folder)
        daemon: Any = self
        self.upgrade = Upgrade(self.loop, daemon, program, exit, exit, follows=True, limit_s=9.0)

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def unfinished_query(self) -> int | None:
        return self.job

    def document(self) -> dict[str, Any]:
        self.tries += 1
        return {"fds": []}

    def pass_(self, seconds: float) -> None:
        self._ahead_s += seconds
        self.loop.turn(0.0)

    def check(self) -> None:
        """Look at the files as often as it takes to try them, and wait for what comes of it."""
        for _ in range(2):
            self.upgrade.check()
        self.upgrade.step()
        if self.job is None:
            turn_until(self.loop, lambda: self.upgrade.is_resting)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.upgrade.close()
    site.loop.close()


def test_a_refused_program_is_tried_again_when_it_changes_and_not_before(site: Site) -> None:
    site.write("a new one")
    site.check()
    site.pass_(2 * AGAIN_S)
    site.check()
    tries = site.tries
    site.write("another new one")
    site.check()
    assert (tries, site.tries) == (1, 2)


def test_a_program_for_which_time_was_missing_is_tried_again_after_a_while(site: Site) -> None:
    site.job = 7
    site.write("a new one")
    site.check()
    site.pass_(LIMITS_S[UpgradeState.WAITING] + 1)
    site.upgrade.step()
    site.job = None
    site.check()
    tries = site.tries
    site.pass_(AGAIN_S)
    site.check()
    assert (tries, site.tries) == (0, 1)
