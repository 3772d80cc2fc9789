"""Lines ahead: what an agent whose type has a window is sent, and what becomes of that when it dies."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.states import DIE
from scheduler.policy.core import Core
from scheduler.policy.dispatch import PREFETCH_BYTES
from scheduler.policy.slots import Slot
from tests.core_tools import claim, logged, make_core, ready, saved, sent, settle, spawned, turn

WINDOW = 4


def core_of(slots: int = 1, window: int = WINDOW, **options: Any) -> Core:
    """Return a core whose one type has a window."""
    kind = AgentType(command=("agent",), slots=slots, window=window, **options)
    return make_core({"sha": kind}, hosts={"alpha": Host(max=-1)})


def at_work(core: Core, count: int) -> list[Slot]:
    """Start agents for what is in hand; each says its first OK."""
    numbers = spawned(core)
    assert len(numbers) == count
    for number in numbers:
        core.handle(e.Created(number, 100 + number), 0.0)
    for number in numbers:
        core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)
    return [core.state.slots.all[number] for number in numbers]


def query(core: Core, rows: int, pk: int = 1, **rules: Any) -> None:
    """Take a query of so many rows in hand."""
    turn(core, claim(pk, msq=True, **rules))
    (expand,) = (effect for effect in core.take_effects(0.0) if isinstance(effect, e.Expand))
    core.handle(e.Opened(expand.job, (b"n",), rows), 0.0)
    core.handle(e.Fetched(pk, [(b"%d" % n,) for n in range(rows)], more=False), 0.0)


def lines(*numbers: int) -> bytes:
    """Return the lines of these rows."""
    return b"".join(b'n="%d"\n' % n for n in numbers)


def test_an_agent_gets_its_window_of_lines_and_more_at_half() -> None:
    core = core_of()
    query(core, 12)
    (slot,) = at_work(core, 1)
    assert sent(core) == [lines(0, 1, 2, 3)]
    assert [core.agent_output(slot.number, b"OK\n", 0.0) for _ in range(3)] == [None, lines(4, 5), None]
    assert core.agent_output(slot.number, b"OK\nOK\nOK\n", 0.0) == lines(6, 7, 8, 9)
    assert core.state.jobs[1].done == 6


def test_lines_of_a_window_are_processed_in_order_and_counted_once() -> None:
    core = core_of()
    query(core, 3)
    (slot,) = at_work(core, 1)
    sent(core)
    assert slot.item is not None
    assert slot.item.number == 0
    core.agent_output(slot.number, b"FAIL no\nOK\nItemsProcessed 7\nOK\nOK\n", 0.0)
    (row,) = saved(settle(core))
    assert (row.state, row.processed, row.failed) == ("failed", 8, 1)


def test_no_agent_is_sent_more_lines_ahead_than_its_share() -> None:
    core = core_of(slots=3)
    query(core, 7)
    at_work(core, 3)
    counts = [data.count(b"\n") for data in sent(core)]
    assert len(counts) == 3
    assert max(counts) - min(counts) <= 1


def test_long_lines_are_not_sent_ahead_beyond_what_a_pipe_takes() -> None:
    core = core_of(window=100)
    turn(core, claim(1, msq=True))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n",), 50), 0.0)
    core.handle(e.Fetched(1, [(b"x" * 1000,)] * 50, more=False), 0.0)
    at_work(core, 1)
    (data,) = sent(core)
    first = len(data) // data.count(b"\n")
    assert data.count(b"\n") > 2
    assert len(data) - first <= PREFETCH_BYTES


def test_more_oks_than_lines_are_a_violation() -> None:
    core = core_of()
    query(core, 2)
    (slot,) = at_work(core, 1)
    assert sent(core) == [lines(0, 1)]
    core.agent_output(slot.number, b"OK\nOK\nOK\n", 0.0)
    assert slot.wanted is DIE
    assert "violation" in slot.reason


def test_an_unexpected_ok_is_logged_under_the_job_that_the_agent_had_last() -> None:
    core = core_of()
    slot = ready(core, claim(1))
    sent(core)
    core.agent_output(slot.number, b"OK\n", 0.0)
    turn(core, claim(2))  # its line is not sent yet
    core.agent_output(slot.number, b"OK\n", 0.0)
    assert slot.wanted is DIE
    assert [job for job, _, text in logged(core) if "violation" in text] == [1]


def test_an_ok_before_its_lines_were_sent_takes_all_lines_back() -> None:
    core = core_of()
    query(core, 4)
    (slot,) = at_work(core, 1)
    core.agent_output(slot.number, b"OK\n", 0.0)
    assert slot.wanted is DIE
    assert sent(core) == []
    core.handle(e.Gone(slot.number, None, "SIGKILL"), 0.0)
    at_work(core, 1)
    assert sent(core) == [lines(0, 1, 2, 3)]


def test_rows_ahead_of_a_dead_agent_go_to_others_and_count_no_try() -> None:
    core = core_of(slots=2)
    query(core, 8, tolerate=8)
    first, second = at_work(core, 2)
    before = sent(core)
    core.handle(e.Gone(first.number, 1, None), 0.0)
    job = core.state.jobs[1]
    assert job.failed == 0
    assert job.in_flight == before[1].count(b"\n")  # and the one in hand waits for its second try
    assert job.query is not None
    assert job.waiting == 7 - job.in_flight
    assert second.job is job


def test_a_job_ahead_of_a_dead_agent_goes_back_to_the_queue_without_an_attempt() -> None:
    core = core_of()
    slot = ready(core, claim(1), claim(2), claim(3))
    assert sent(core) == [b"item 1\nitem 2\nitem 3\n"]
    core.handle(e.Gone(slot.number, None, "SIGSEGV"), 1.0)
    rows = {row.pk: row for row in saved(settle(core)) if row.outcome is not None}
    assert {pk: row.state for pk, row in rows.items()} == {1: "failed", 2: "queued", 3: "queued"}
    assert {pk: row.outcome for pk, row in rows.items()} == {1: "failed", 2: "given back", 3: "given back"}
    assert not core.state.jobs


def test_a_job_that_is_killed_while_its_line_is_ahead_ends_when_the_agent_comes_to_it() -> None:
    core = core_of()
    slot = ready(core, claim(1), claim(2), claim(3))
    sent(core)
    assert core.cancel(2, "no more", 0.0)
    assert slot.wanted is not DIE
    assert 2 in core.state.jobs
    core.agent_output(slot.number, b"OK\n", 0.0)
    assert slot.reason == "no more"
    core.handle(e.Gone(slot.number, None, "SIGHUP"), 0.0)
    rows = {row.pk: row.state for row in saved(settle(core)) if row.outcome is not None}
    assert rows == {2: "cancelled", 3: "queued"}


def test_the_time_limit_of_a_job_ahead_begins_when_the_agent_comes_to_it() -> None:
    core = core_of()
    slot = ready(core, claim(1), claim(2, timeout=10.0))
    assert sent(core) == [b"item 1\nitem 2\n"]
    assert core.state.jobs[2].deadline == float("inf")
    core.agent_output(slot.number, b"OK\n", 5.0)
    assert core.state.jobs[2].deadline == 15.0


def test_a_row_lost_while_its_line_is_ahead_is_not_processed() -> None:
    core = core_of()
    slot = ready(core, claim(1), claim(2))
    sent(core)
    core.handle(e.RowsLost([(2, 1)]), 0.0)
    core.agent_output(slot.number, b"OK\n", 0.0)
    assert slot.reason == "the row has another owner"
    core.handle(e.Gone(slot.number, None, "SIGHUP"), 0.0)
    assert [row.pk for row in saved(settle(core))] == []
    assert not core.state.jobs


def test_no_line_is_sent_ahead_behind_a_second_try() -> None:
    core = core_of()
    query(core, 5, tolerate=5)
    (slot,) = at_work(core, 1)
    sent(core)
    core.handle(e.Gone(slot.number, 1, None), 0.0)
    at_work(core, 1)
    assert sent(core) == [lines(0)]


def test_a_clogged_line_is_no_violation_while_others_are_ahead() -> None:
    core = core_of()
    query(core, 3)
    (slot,) = at_work(core, 1)
    sent(core)
    core.handle(e.Clogged(slot.number), 0.0)
    core.agent_output(slot.number, b"OK\n", 0.0)
    assert slot.wanted is not DIE
    assert logged(core) == []


@pytest.mark.parametrize("ends", ["drain", "lease"])
def test_lines_ahead_are_processed_and_no_more_sent_during_a_drain(ends: str) -> None:
    core = core_of()
    slot = ready(core, *(claim(pk) for pk in range(1, 9)))
    sent(core)
    if ends == "drain":
        core.handle(e.Drain(), 0.0)
    else:
        core.tick(10_000.0)
    assert [core.agent_output(slot.number, b"OK\n", 10_000.0) for _ in range(4)] == [None] * 4
    assert [end.pk for end in core.state.outbox.ends] == [1, 2, 3, 4]


# ---- rows that cannot be sent


def test_a_batch_of_rows_that_cannot_be_sent_is_followed_by_the_next() -> None:
    core = core_of()
    turn(core, claim(1, msq=True))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n",), 50), 0.0)
    assert e.Fetch in map(type, core.take_effects(0.0))
    core.handle(e.Fetched(1, [(None,)] * 16, more=True), 0.0)
    assert e.Fetch in map(type, core.take_effects(0.0))
