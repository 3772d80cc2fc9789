"""What a rescan finds counts as late if no timer and no notification would have found it: see late_finds.py."""

import json

import pytest

from scheduler.daemon.late_finds import KINDS, MOMENT_S, LateFinds
from scheduler.model.config import Scheduler
from scheduler.model.queue_requests import Cells
from scheduler.model.states import NEVER

NOTHING = dict.fromkeys(KINDS, NEVER)  # no timer
FOUND: dict[str, tuple[str, list[Cells]]] = {
    "due": ("due rows", [(b"2", b"", None)]),
    "read_recovery": ("conditions", [(b"7",)]),
    "start_schedules": ("schedules", [(b"s", b"t", b"1", None)]),
    "queue_deliveries": ("deliveries", [(b"1", b"1", None)]),
    "read_commands": ("commands", [(b"1",), (b"2",)]),
}


class Bench:
    """The finds of a daemon, and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.late = LateFinds(lambda: self.now, lambda: Scheduler(wake_interval=0.5))

    def after_a_moment(self) -> dict[str, int]:
        self.now += MOMENT_S + 0.5
        return self.late.take()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def tables(*queues: dict[str, object]) -> list[Cells]:
    return [(json.dumps(queues).encode(), b"[]", b"[]", b"[]", b"[]", None)]


def queue(concurrency: int, starts: object = None) -> dict[str, object]:
    return {"name": "q", "concurrency": concurrency, "starts": starts}


@pytest.mark.parametrize("query", FOUND)
def test_what_a_rescan_finds_and_nothing_told_of_is_late(bench: Bench, query: str) -> None:
    kind, rows = FOUND[query]
    bench.late.begin(NOTHING)
    bench.late.answered(query, rows)
    count = 1 if query in ("read_recovery", "start_schedules") else 2
    assert bench.after_a_moment() == {kind: count}
    assert bench.after_a_moment() == {}


def test_what_is_found_without_a_rescan_is_not_late(bench: Bench) -> None:
    bench.late.answered(*_due())
    assert bench.after_a_moment() == {}


def test_what_a_timer_would_have_found_by_now_is_not_late(bench: Bench) -> None:
    bench.late.begin(NOTHING | {"due": bench.now + 0.1})
    bench.now += 0.2
    bench.late.answered(*_due())
    assert bench.after_a_moment() == {}


@pytest.mark.parametrize("seconds", [-0.1, 0.1])
def test_what_a_notification_tells_of_a_moment_before_or_after_it_is_found_is_not_late(
    bench: Bench, seconds: float
) -> None:
    bench.late.begin(NOTHING)
    if seconds < 0:
        bench.late.told("due")
    bench.late.answered(*_due())
    if seconds > 0:
        bench.late.told("due")
    assert bench.after_a_moment() == {}


def test_nothing_is_late_before_its_notification_can_have_come(bench: Bench) -> None:
    bench.late.begin(NOTHING)
    bench.late.answered(*_due())
    bench.now += MOMENT_S
    assert bench.late.take() == {}
    assert bench.after_a_moment() == {"due rows": 2}


def test_what_a_rescan_does_not_find_is_not_late(bench: Bench) -> None:
    bench.late.begin(NOTHING)
    bench.late.answered("due", [(b"0", None, None)])
    bench.late.answered(*_due())  # which something made due
    assert bench.after_a_moment() == {}


def test_a_statement_of_no_task_counts_nothing(bench: Bench) -> None:
    bench.late.begin(NOTHING)
    bench.late.answered("save", [(b"2",)])
    assert bench.after_a_moment() == {}


def test_a_finding_is_not_counted_again_by_the_next_rescan(bench: Bench) -> None:
    bench.late.begin(NOTHING)
    bench.late.answered(*_due())
    bench.now += 0.1
    bench.late.begin(NOTHING)
    bench.late.answered("due", [(b"5", b"", None)])
    assert bench.after_a_moment() == {"due rows": 2}


def test_a_finding_that_waits_outlasts_the_next_rescan(bench: Bench) -> None:
    bench.late.begin(NOTHING)
    bench.late.answered(*_due())
    bench.late.begin(NOTHING)
    bench.late.answered("due", [(b"0", None, None)])
    assert bench.after_a_moment() == {"due rows": 2}


def test_a_loss_of_the_connection_explains_all(bench: Bench) -> None:
    bench.late.begin(NOTHING)
    bench.late.answered(*_due())
    bench.late.forget()
    assert bench.after_a_moment() == {}


def test_a_table_that_has_changed_unannounced_is_late(bench: Bench) -> None:
    bench.late.answered("read_shared_settings", tables(queue(1)))
    bench.late.begin(NOTHING)
    bench.late.answered("read_shared_settings", tables(queue(2)))
    assert bench.after_a_moment() == {"tables": 1}


def test_starts_that_the_daemon_itself_writes_down_are_no_change_of_a_table(bench: Bench) -> None:
    bench.late.answered("read_shared_settings", tables(queue(1)))
    bench.late.begin(NOTHING)
    bench.late.answered("read_shared_settings", tables(queue(1, starts={"": [3.5]})))
    assert bench.after_a_moment() == {}


def test_the_notification_of_a_table_tells_of_schedules_too(bench: Bench) -> None:
    bench.late.begin(NOTHING)
    bench.late.answered("start_schedules", FOUND["start_schedules"][1])
    bench.late.told("tables")
    assert bench.after_a_moment() == {}


def _due() -> tuple[str, list[Cells]]:
    return "due", FOUND["due"][1]
