"""Counts are saved before a new program takes over, even if the database refuses the first try."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler.daemon.watch_connection import Watch
from scheduler.drivers.loop import Loop
from scheduler.model.counters import FOUND_LATE
from scheduler.model.states import LeaseState
from tests.connection_tools import QUERIES, fetch
from tests.core_tools import make_core
from tests.patience import PATIENCE_S, Deadline

COUNTED = "select counter_value from drover.counter where counter_labels = '{of a test}'"
REFUSE = "alter table drover.counter add constraint refused check (counter_labels <> '{of a test}')"


class Daemon:
    """The daemon of a watch connection (command_rows.DaemonControl)."""

    host_scripts: Any = None

    def __init__(self) -> None:
        self.counted: dict[Any, int] = {}

    def role_changed(self) -> None: ...

    def troubles(self) -> list[Any]:
        return []

    def take_counted(self) -> dict[Any, int]:
        counted, self.counted = self.counted, {}
        return counted


@pytest.fixture
def serving(database: str, loop: Loop) -> Iterator[tuple[Watch, Daemon]]:
    """Yield the watch connection of a daemon that serves."""
    core, daemon = make_core(), Daemon()
    given: Any = daemon
    watch = Watch(loop, core.config, database, core, QUERIES, given)
    watch.connections.open()
    step_until(loop, watch, lambda: watch.lease.state is LeaseState.SERVING)
    yield watch, daemon
    watch.connections.close()


def step_until(loop: Loop, watch: Watch, is_so: Callable[[], object]) -> None:
    """Turn the loop as the daemon does until it is so."""
    deadline = Deadline(PATIENCE_S)
    while not is_so():
        assert deadline.left > 0, "it did not come to pass"
        loop.turn(min(watch.step(), loop.now + deadline.left))


def test_counts_that_the_database_refuses_hold_up_the_next_program(
    serving: tuple[Watch, Daemon], database: str, loop: Loop
) -> None:
    watch, daemon = serving
    fetch(database, REFUSE)
    daemon.counted = {(FOUND_LATE, "of a test"): 3}
    watch.pause(True)
    step_until(loop, watch, lambda: watch.connections.refused.text)
    assert not watch.is_written_down
    fetch(database, "alter table drover.counter drop constraint refused")
    step_until(loop, watch, lambda: watch.is_written_down)
    assert fetch(database, COUNTED) == [(3.0,)]
