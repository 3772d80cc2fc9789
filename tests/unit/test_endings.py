"""What is saved of a job that ends, is given back or goes on: its state, its counts, its times and its text."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.queue_requests import ClaimPosition, EndAndClaim, ItemFailure, Save, SaveRow
from scheduler.policy.completion import FAILURE_LINE, KEPT_TEXT, MOST_TEXT
from scheduler.policy.core import Core
from tests.core_tools import claim, logged, make_core, ready, saved, settle, spawned, turn

FAR = {"beta": Host(transport="ssh", address="beta")}
EXEC = AgentType(command=("true",), kind="exec")


def query_core(rows: int, *, kind: AgentType | None = None, now: float = 0.0, **rules: Any) -> Core:
    """Return a core with a query of so many rows, the first of which its agent has."""
    core = make_core(None if kind is None else {"sha": kind})
    turn(core, claim(1, msq=True, **rules))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n",), rows), now)
    core.take_effects(now)
    if rows:
        core.handle(e.Fetched(1, [(b"%d" % n,) for n in range(rows)], more=False), now)
        start_agents(core, now)
    return core


def start_agents(core: Core, now: float) -> None:
    for number in spawned(core, now):
        core.handle(e.Created(number, 100), now)
        core.agent_output(number, b"OK\n", now)
    core.take_effects(now)


def say(core: Core, *lines: bytes, now: float = 1.0) -> None:
    """Let the agent of slot 0 print these lines, each when it has what came before."""
    for line in lines:
        core.agent_output(0, line + b"\n", now)
        core.take_effects(now)


def row_of(core: Core, now: float = 1.0) -> SaveRow:
    """Return the one row that is saved."""
    (row,) = saved(settle(core, now))
    assert isinstance(row, SaveRow)
    return row


def effects(core: Core, kind: type, now: float = 0.0) -> list[Any]:
    return [effect for effect in core.take_effects(now) if isinstance(effect, kind)]


# ---- slices of a query
@pytest.mark.parametrize(
    ("said", "rules", "state", "text"),
    [
        ((b"OK", b"OK"), {}, "done", "all data processed"),
        ((b"FAIL a\nOK", b"OK"), {}, "failed", "1 items failed, 0 tolerated"),
        ((b"FAIL a\nOK", b"OK"), {"tolerate": 1}, "done", "all data processed"),
        ((b"FAIL a\nOK", b"OK"), {"tolerate": 1, "itemsfailed": 1}, "failed", "2 items failed, 1 tolerated"),
        ((b"OK", b"OK"), {"repeat": True}, "queued", "2 items so far"),
        ((b"OK", b"OK"), {"repeat": True, "itemsprocessed": 5}, "queued", "7 items so far"),
        (
            (b"FAIL a\nOK", b"FAIL b\nOK"),
            {"repeat": True, "tolerate": 2},
            "failed",
            "no progress: not one item of the slice was done",
        ),
        ((b"FAIL a\nOK", b"OK"), {"repeat": True, "tolerate": 2}, "queued", "1 items so far"),
    ],
)
def test_a_slice_is_judged_by_its_items(said: tuple[bytes, ...], rules: Any, state: str, text: str) -> None:
    core = query_core(2, **rules)
    say(core, *said)
    row = row_of(core)
    assert (row.state, row.text) == (state, text)


@pytest.mark.parametrize(
    ("rules", "state", "text"),
    [
        ({}, "done", "no data"),
        ({"repeat": True}, "done", "no data"),
        ({"repeat": True, "itemsprocessed": 3}, "done", "all data processed"),
        ({"repeat": True, "key": "n", "checkpoint": {"watermark": None, "beyond": []}}, "done", "no data"),
        ({"repeat": True, "key": "n", "checkpoint": {"watermark": "4", "beyond": []}}, "queued", "0 items so far"),
        ({"repeat": True, "key": "n", "checkpoint": {"beyond": [["4", "5"]]}}, "queued", "0 items so far"),
    ],
)
def test_a_query_without_rows_is_over_unless_it_was_the_rest_of_a_slice(rules: Any, state: str, text: str) -> None:
    row = row_of(query_core(0, **rules), 0.0)
    assert (row.state, row.text) == (state, text)


def test_a_slice_goes_to_the_end_of_its_queue() -> None:
    core = query_core(1, repeat=True)
    say(core, b"OK")
    row = row_of(core)
    assert (row.outcome, row.back) == ("slice", True)


# ---- counts
@pytest.mark.parametrize(
    ("key", "processed", "checkpoint"),
    [
        (None, 4, {"itemsprocessed": 4, "itemsfailed": 1}),
        ("n", 5, {"watermark": "0", "beyond": []}),
    ],
)
def test_a_query_that_is_given_back_keeps_what_will_not_be_worked_again(
    key: str | None, processed: int, checkpoint: dict[str, Any]
) -> None:
    core = query_core(3, key=key, itemsprocessed=4, itemsfailed=1)
    say(core, b"OK")
    core.handle(e.Stop(), 1.0)
    core.handle(e.Gone(0, signal="SIGHUP"), 1.0)
    row = row_of(core)
    assert (row.state, row.processed, row.failed, row.checkpoint) == ("queued", processed, 1, checkpoint)


def test_a_query_counts_the_rows_of_all_its_slices() -> None:
    core = query_core(2, itemsprocessed=4, itemsfailed=1, tolerate=5)
    say(core, b"ItemsProcessed 3", b"OK", b"FAIL a\nOK")
    row = row_of(core)
    assert (row.processed, row.failed, row.total) == (7, 2, 7)


def test_the_checkpoint_of_a_slice_that_is_over_begins_anew() -> None:
    core = query_core(1, key="n", repeat=True)
    say(core, b"OK")
    assert row_of(core).checkpoint == {"watermark": None, "beyond": []}


def test_progress_tells_how_long_the_rest_takes_at_the_rate_so_far() -> None:
    core = query_core(8, now=10.0)
    say(core, b"OK", b"OK", now=14.0)
    core.tick(20.0)
    row = row_of(core, 20.0)
    assert (row.state, row.outcome, row.processed, row.remaining) == ("running", None, 2, 30.0)


def test_progress_of_unfinished_items_is_shown_and_no_part_of_the_checkpoint() -> None:
    core = query_core(3, key="n")
    say(core, b"OK", b"ItemsProcessed 9")
    core.tick(60.0)
    row = row_of(core, 60.0)
    assert (row.processed, row.checkpoint) == (10, {"watermark": "0", "beyond": [], "itemsprocessed": 1})


@pytest.mark.parametrize(("said", "processed"), [((b"ItemsProcessed 7\nOK",), 7), ((b"LOG x\nERROR bad\nOK",), 1)])
def test_a_line_that_counts_items_is_saved_with_its_count(said: tuple[bytes, ...], processed: int) -> None:
    core = make_core()
    ready(core, claim(1))
    core.take_effects(0.0)
    say(core, *said)
    row = row_of(core)
    assert (row.state, row.processed, row.failed, row.total) == ("done", processed, 0, 1)


# ---- texts
@pytest.mark.parametrize(("length", "kept"), [(MOST_TEXT, MOST_TEXT), (MOST_TEXT + 1, KEPT_TEXT)])
def test_a_text_that_is_too_long_is_cut_and_says_so_and_the_log_has_it_whole(length: int, kept: int) -> None:
    core = make_core()
    ready(core, claim(1))
    core.take_effects(0.0)
    say(core, b"FAIL " + b"x" * length + b"\nOK")
    text, _, said = (row_of(core).text or "").partition(" [cut: ")
    assert (len(text), said) == (kept, "" if kept == length else f"{length} characters]")


@pytest.mark.parametrize(("length", "end"), [(FAILURE_LINE, ""), (FAILURE_LINE + 1, "...")])
def test_a_failed_item_keeps_the_beginning_of_a_long_line(length: int, end: str) -> None:
    core = make_core()
    turn(core, claim(1, msq=True, tolerate=1))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n",), 1), 0.0)
    core.handle(e.Fetched(1, [(b"x" * (length - len(b'n=""')),)], more=False), 0.0)
    start_agents(core, 0.0)
    say(core, b"FAIL a\nOK")
    failures = [each for request in settle(core) if isinstance(request, Save) for each in request.failures]
    assert [len(each.line) - len(end) for each in failures] == [FAILURE_LINE]
    assert failures[0].line.endswith(end or '"')


def test_a_failed_item_is_kept_with_its_key_and_where_it_failed() -> None:
    core = query_core(1, key="n", tolerate=1)
    say(core, b"FAIL no such file\nOK")
    failures = [each for request in settle(core) if isinstance(request, Save) for each in request.failures]
    assert failures == [ItemFailure(1, 1, "0", failures[0].line, "alpha", "sha", 100, "no such file")]


# ---- blocked
def test_a_job_is_blocked_for_the_first_reason_and_the_others_are_logged() -> None:
    core = query_core(3, kind=AgentType(command=("agent",), slots=2))
    core.agent_output(0, b"BLOCKED no licence\nOK\n", 1.0)
    core.agent_output(1, b"BLOCKED no disc\nOK\n", 1.0)
    core.take_effects(1.0)
    assert (1, "WARNING", "BLOCKED no disc") in logged(core)
    row = row_of(core)
    assert (row.state, row.text) == ("blocked", "blocked: no licence")


# ---- interruptions
@pytest.mark.parametrize(("before", "state", "now"), [(0, "queued", 1), (2, "queued", 3), (3, "failed", None)])
def test_a_job_may_lose_its_host_as_often_as_its_row_allows(before: int, state: str, now: int | None) -> None:
    core = make_core(hosts=FAR)
    core.handle(e.HostUp("beta"), 0.0)
    slot = ready(core, claim(1, interruptions=before, max_interruptions=3))
    core.take_effects(0.0)
    core.handle(e.Gone(slot.number, lost=True), 1.0)
    row = row_of(core)
    assert (row.state, row.interruptions) == (state, now)


def test_an_item_that_loses_its_host_too_often_fails_and_the_query_goes_on() -> None:
    core = make_core(hosts=FAR)
    core.handle(e.HostUp("beta"), 0.0)
    turn(core, claim(1, msq=True, tolerate=1, max_interruptions=1))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n",), 1), 0.0)
    core.handle(e.Fetched(1, [(b"0",)], more=False), 0.0)
    lost = 0
    while core.state.jobs and lost < 9:
        start_agents(core, 0.0)
        core.handle(e.Gone(0, lost=True), 1.0)
        lost += 1
    row = row_of(core)
    assert (lost, row.state, row.failed) == (3, "done", 1)  # the first try, and twice the one alone


def test_what_an_agent_said_of_its_item_counts_though_its_host_was_lost_then() -> None:
    core = make_core(hosts=FAR)
    core.handle(e.HostUp("beta"), 0.0)
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    say(core, b"FAIL no such file")
    core.handle(e.Gone(slot.number, lost=True), 1.0)
    row = row_of(core)
    assert (row.state, row.text, row.interruptions) == ("failed", "no such file", None)


# ---- commands
@pytest.mark.parametrize(("first", "state"), [("kill", "failed"), ("cancel", "cancelled")])
def test_of_two_commands_the_first_ends_a_job(first: str, state: str) -> None:
    core = make_core()
    slot = ready(core, claim(1))
    second = {"kill": core.cancel, "cancel": core.kill}[first]
    assert getattr(core, first)(1, "by a", 1.0)
    assert second(1, "by b", 1.0)
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 2.0)
    row = row_of(core, 2.0)
    assert (row.state, row.text) == (state, "by a")


def test_a_killed_job_is_not_tried_again() -> None:
    core = make_core()
    slot = ready(core, claim(1, retries=5))
    core.kill(1, "by a", 1.0)
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 2.0)
    row = row_of(core, 2.0)
    assert (row.state, row.failures, row.retry_in) == ("failed", None, None)


def test_a_command_about_a_job_that_is_not_in_hand_changes_nothing() -> None:
    core = make_core()
    ready(core, claim(1))
    assert (core.kill(2, "by a", 1.0), core.cancel(2, "by a", 1.0)) == (False, False)
    assert effects(core, e.Kill, 1.0) == []


def test_the_end_of_a_job_that_has_not_begun_ends_the_agents_that_were_started_for_it() -> None:
    core = make_core()
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.kill(1, "by a", 1.0)
    assert [kill.slot for kill in effects(core, e.Kill, 1.0)] == [number]


@pytest.mark.parametrize("is_here", [True, False])
def test_an_agent_that_starts_lives_on_while_another_job_of_its_type_is_to_begin(is_here: bool) -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2 - is_here)})
    turn(core, claim(1), *[claim(2)][:is_here])
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    if not is_here:
        core.handle(e.Woken(), 0.5)
        request = core.next_request(0.5)
        assert isinstance(request, EndAndClaim)
        want = request.wanted[-1]
        core.handle(e.EndedAndClaimed([], found={want: 1}, reached={want: ClaimPosition("1n", "now", 2)}, size=6), 0.5)
    core.kill(1, "by a", 1.0)
    assert effects(core, e.Kill, 1.0) == []


def test_a_kill_ends_the_agents_of_its_own_job_only() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1), claim(2))
    start_agents(core, 0.0)
    core.kill(2, "by a", 1.0)
    assert [core.state.slots.all[kill.slot].job.pk for kill in effects(core, e.Kill, 1.0)] == [2]


def test_a_signal_goes_to_the_agents_that_work_on_the_job_and_to_no_other() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2), "run": EXEC})
    turn(core, claim(1), claim(2), claim(3, "run"))
    start_agents(core, 0.0)
    assert (core.signal(2, 10), core.signal(4, 10)) == (1, 0)
    ((slot, number),) = [(each.slot, each.number) for each in effects(core, e.Signal)]
    assert (core.state.slots.all[slot].job.pk, number) == (2, 10)


# ---- time limits, and who is notified
@pytest.mark.parametrize(("now", "kills"), [(5.9, 0), (6.0, 1)])
def test_a_job_that_runs_longer_than_it_may_is_killed_then(now: float, kills: int) -> None:
    core = make_core()
    ready(core, claim(1, timeout=5.0), now=1.0)
    core.take_effects(1.0)
    core.tick(now)
    assert len(effects(core, e.Kill, now)) == kills


def test_a_job_that_ran_too_long_is_tried_again_if_it_has_retries() -> None:
    core = make_core()
    slot = ready(core, claim(1, timeout=5.0, retries=1))
    core.tick(5.0)
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 6.0)
    row = row_of(core, 6.0)
    assert (row.state, row.failures, row.text) == ("queued", 1, "timeout: ran longer than 5 s")


def test_each_end_is_reported_once_and_no_retry_is() -> None:
    core = make_core()
    core.report_ends(True)
    slot = ready(core, claim(1), claim(2, retries=1), claim(3))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 1.0)
    ends = effects(core, e.JobEnded, 1.0)
    core.agent_output(slot.number, b"FAIL a\nOK\n", 2.0)
    ends += effects(core, e.JobEnded, 2.0)
    core.agent_output(slot.number, b"FAIL b\nOK\n", 3.0)
    ends += effects(core, e.JobEnded, 3.0)
    told = [(1, "sha", "done", "all data processed"), (3, "sha", "failed", "b")]
    assert ends == [e.JobEnded(*each) for each in told]
