"""What is started of schedules that are due: catch-up, jitter, clocks that jump."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.model.schedule_times import Times
from scheduler.policy.schedules import MOST_STARTS, Schedule, plan

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def every(minutes: float = 1, **values: Any) -> Schedule:
    """Return a schedule that began at noon."""
    times = Times(every=minutes * MINUTE, since=NOON)
    return Schedule(**{"name": "x", "times": times, "next": NOON + minutes * MINUTE, **values})


def test_a_start_in_time_is_made_and_the_next_one_is_known_c19_c20_c48() -> None:
    found = plan(every(13), NOON + 13 * MINUTE + timedelta(seconds=1), NOON)
    assert (found.starts, found.next, found.due) == ([NOON + 13 * MINUTE], NOON + 26 * MINUTE, NOON + 26 * MINUTE)


@pytest.mark.parametrize(("catch_up", "starts"), [("one", [1]), ("all", [1, 2, 3]), ("none", [])])
def test_three_starts_that_were_missed_are_one_three_or_none_c49(catch_up: Any, starts: list[int]) -> None:
    now = NOON + 3.5 * MINUTE
    found = plan(every(catch_up=catch_up), now, now)
    assert found.starts == [NOON + n * MINUTE for n in starts]
    assert found.next == NOON + 4 * MINUTE


@pytest.mark.parametrize("catch_up", ["one", "all", "none"])
def test_starts_in_time_are_all_made_if_the_daemon_was_slow_c23_c49(catch_up: Any) -> None:
    found = plan(every(1 / 60, catch_up=catch_up), NOON + timedelta(seconds=5.5), NOON)
    assert found.starts == [NOON + timedelta(seconds=n) for n in range(1, 6)]


def test_what_was_missed_and_what_is_in_time_are_told_apart_c49() -> None:
    found = plan(every(catch_up="one"), NOON + 5 * MINUTE, NOON + 4.5 * MINUTE)
    assert found.starts == [NOON + MINUTE, NOON + 5 * MINUTE]


def test_a_clock_that_jumps_a_century_ahead_makes_one_start_c49() -> None:
    now = NOON + timedelta(days=36_500)
    found = plan(every(1 / 60), now, now - timedelta(seconds=30))
    assert found.starts[0] == NOON + timedelta(seconds=1)
    assert len(found.starts) <= 32
    assert found.next is not None
    assert found.next > now


def test_all_that_was_missed_is_made_up_for_a_hundred_at_a_time_c49() -> None:
    now = NOON + timedelta(days=36_500)
    found = plan(every(catch_up="all"), now, now)
    assert found.starts == [NOON + n * MINUTE for n in range(1, MOST_STARTS + 1)]
    assert found.next == found.due == NOON + (MOST_STARTS + 1) * MINUTE


def test_a_clock_that_is_set_back_makes_no_start_and_finds_the_next_one() -> None:
    found = plan(every(next=NOON + timedelta(days=365)), NOON + 2.5 * MINUTE, NOON)
    assert (found.starts, found.next) == ([], NOON + 3 * MINUTE)


def test_an_instant_starts_once_and_says_so_c48() -> None:
    schedule = Schedule("x", Times(at=NOON), NOON)
    found = plan(schedule, NOON, NOON - MINUTE)
    assert (found.starts, found.next, found.reason) == ([NOON], None, "it does not start again")


def test_an_instant_that_has_passed_when_it_is_set_never_starts() -> None:
    found = plan(Schedule("x", Times(at=NOON), None), NOON + MINUTE, NOON)
    assert (found.starts, found.next, found.reason) == ([], None, "its time had passed when it was set")


def test_jitter_is_spread_over_its_length_and_the_same_for_every_scheduler() -> None:
    found = [plan(every(60, name=f"x{n}", jitter=10 * MINUTE, next=None), NOON, NOON) for n in range(200)]
    again = [plan(every(60, name=f"x{n}", jitter=10 * MINUTE, next=None), NOON, NOON) for n in range(200)]
    later = [each.due - each.next for each in found if each.due and each.next]
    assert found == again
    assert {each.next for each in found} == {NOON + 60 * MINUTE}
    assert timedelta(0) <= min(later) < MINUTE
    assert 9 * MINUTE < max(later) <= 10 * MINUTE


def test_a_schedule_with_jitter_starts_at_its_time_when_the_jitter_is_over() -> None:
    schedule = every(60, jitter=10 * MINUTE)
    due = plan(every(60, jitter=10 * MINUTE, next=None), NOON, NOON).due
    assert due is not None
    assert plan(schedule, due - timedelta(microseconds=1), NOON).starts == []
    assert plan(schedule, due, NOON).starts == [NOON + 60 * MINUTE]


def test_an_expression_that_got_into_the_table_wrong_has_a_reason_and_no_start() -> None:
    found = plan(Schedule("x", Times(cron="61 * * * *"), None), NOON, NOON)
    assert (found.starts, found.next, found.due) == ([], None, None)
    assert "wrong minute" in str(found.reason)


def test_a_start_whose_jitter_is_not_over_was_not_missed() -> None:
    """The daemon took the group over after its time, and before it is carried out."""
    schedule = every(60, jitter=30 * MINUTE, name="x1", catch_up="none")
    assert schedule.next is not None
    due = plan(schedule, schedule.next - MINUTE, NOON).due or NOON
    now = schedule.next + (due - schedule.next) / 2
    waiting = plan(schedule, now, now)
    assert (waiting.starts, waiting.is_late, waiting.due) == ([], False, due)
    assert plan(schedule, due, now).starts == [schedule.next]
