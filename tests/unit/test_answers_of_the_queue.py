"""What a core does when the queue answers: rows that were claimed, saved, marked, read, settled, locked or lost."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType, Host
from scheduler.model.queue_requests import ClaimPosition, EndAndClaim
from scheduler.model.states import NEVER
from scheduler.policy.core import Core
from scheduler.policy.deadlines import PROGRESS, RECORD
from scheduler.policy.outbox import LOCK_PAUSE
from scheduler.policy.queue_answers import RECORD_AFTER
from tests.core_tools import answer_to, claim, make_core, ready, saved, settle, spawned, turn

ROW = "job=1: the row is no longer ours"


def effects(core: Core, kind: type, now: float = 0.0) -> list[Any]:
    return [effect for effect in core.take_effects(now) if isinstance(effect, kind)]


def warnings(core: Core, now: float = 0.0) -> list[str]:
    return [effect.text for effect in effects(core, e.LogMessage, now) if effect.level == "warning"]


def asked(core: Core, kind: type, now: float = 0.0) -> Any:
    """Let the core ask until it asks this; return the request, which is not answered yet."""
    while not isinstance(request := core.next_request(now), kind):
        assert request is not None
        core.handle(answer_to(request), now)
    return request


def with_failed_job(**rules: Any) -> Core:
    """Return a core whose one agent is idle; the end of job 1, which has failed, is to be saved."""
    core = make_core()
    slot = ready(core, claim(1, **rules))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"FAIL a\nOK\n", 1.0)
    core.take_effects(1.0)
    return core


# ---- claims
def answered(found: int, request: EndAndClaim, *claims: r.Claim) -> e.EndedAndClaimed:
    want = next(each for each in request.wanted if not each.host)
    rows = [each._replace(request=want) for each in claims]
    reached = {want: ClaimPosition("1n", "now", 9)}
    return e.EndedAndClaimed(rows, found={want: found}, reached=reached, size=6 * found)


@pytest.mark.parametrize(("reserved", "asks"), [(0, True), (1, False)])
def test_more_is_claimed_while_rows_are_on_their_way_unless_places_are_reserved(reserved: int, asks: bool) -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=4), "b": AgentType(command=("b",))})
    queues = [{"name": "default", "concurrency": None, "paused": False, "reserved": reserved}]
    core.handle(e.TablesRead(queues, [], [], []), 0.0)
    request = asked(core, EndAndClaim)
    core.handle(answered(1, request), 0.0)
    core.handle(e.Woken(), 0.0)
    assert isinstance(core.next_request(0.0), EndAndClaim) is asks


def test_rows_that_are_on_their_way_count_for_the_limit_of_their_queue() -> None:
    core = make_core()
    core.handle(answered(2, asked(core, EndAndClaim)), 0.0)
    assert core.state.queues["default"].in_hand == 2
    assert core.claim_under_way is None


def test_what_was_claimed_is_recorded_and_its_progress_shown_soon() -> None:
    core = make_core(progress_interval=7.0)
    request = asked(core, EndAndClaim)
    core.handle(e.EndedAndClaimed(), 1.0)
    assert (core.state.deadlines.at[RECORD], core.state.deadlines.at[PROGRESS]) == (NEVER, NEVER)
    core.handle(e.Woken(), 1.0)
    request = asked(core, EndAndClaim, 1.0)
    core.handle(answered(1, request, claim(1)), 2.0)
    assert (core.state.deadlines.at[RECORD], core.state.deadlines.at[PROGRESS]) == (2.0 + RECORD_AFTER, 9.0)


@pytest.mark.parametrize("resent", [False, True])
def test_ends_that_had_another_owner_are_told_of_unless_they_were_saved_before(resent: bool) -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 1.0)
    asked(core, EndAndClaim, 1.0)
    if resent:
        core.handle(e.NotSaved("again", "connection lost"), 1.0)
        asked(core, EndAndClaim, 1.0)
    core.take_effects(1.0)
    core.handle(e.EndedAndClaimed(fenced=[1]), 1.0)
    assert warnings(core, 1.0) == ([] if resent else ["rows that had another owner when they ended: [1]"])


def test_children_of_an_end_are_settled() -> None:
    core = make_core()
    asked(core, EndAndClaim)
    core.handle(e.EndedAndClaimed(parents=[5, 6]), 0.0)
    assert asked(core, r.Settle) == r.Settle([5, 6])


# ---- saves
@pytest.mark.parametrize("resent", [False, True])
def test_a_row_that_is_not_ours_any_more_is_told_of_unless_its_end_was_saved_before(resent: bool) -> None:
    core = with_failed_job()
    asked(core, r.Save, 1.0)
    if resent:
        core.handle(e.NotSaved("again", "connection lost"), 1.0)
        asked(core, r.Save, 1.0)
    core.take_effects(1.0)
    core.handle(e.Saved(frozenset()), 1.0)
    assert (ROW in warnings(core, 1.0)) is not resent


def test_a_job_whose_progress_another_owner_refuses_is_forgotten_and_its_agent_killed() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"ItemsProcessed 3\n", 1.0)
    core.tick(60.0)
    asked(core, r.Save, 60.0)
    core.take_effects(60.0)
    core.handle(e.Saved(frozenset()), 60.0)
    assert core.state.jobs == {}
    assert effects(core, e.Kill, 60.0) == [e.Kill(slot.number)]


@pytest.mark.parametrize(("rules", "is_found"), [({"retries": 1}, True), ({}, False)])
def test_the_instant_of_a_retry_is_looked_for_once_it_is_saved(rules: dict[str, int], is_found: bool) -> None:
    core = with_failed_job(**rules)
    request = asked(core, r.Save, 1.0)
    core.take_effects(1.0)
    core.handle(answer_to(request), 1.0)
    assert bool(effects(core, e.FindNextDue, 1.0)) is is_found


def test_a_row_that_goes_back_to_its_queue_is_looked_for_as_soon_as_it_is_saved() -> None:
    core = make_core(hosts={"beta": Host(transport="ssh", address="beta")})
    core.handle(e.HostUp("beta"), 0.0)
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    settle(core)
    core.handle(e.Gone(slot.number, lost=True), 1.0)
    request = asked(core, r.Save, 1.0)
    core.handle(answer_to(request), 1.0)
    assert isinstance(asked(core, EndAndClaim, 1.0), EndAndClaim)


def test_a_failed_row_that_is_saved_makes_nothing_be_claimed_again() -> None:
    core = with_failed_job()
    settle(core, 1.0)
    core.handle(e.Woken(), 2.0)
    settle(core, 2.0)
    core.state.outbox.save(r.SaveRow(9, 1, "failed", outcome="failed"))
    assert [type(request) for request in settle(core, 3.0)] == [r.Save]


def test_the_end_of_a_job_is_not_saved_before_an_older_save_of_its_row_that_met_a_lock() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"ItemsProcessed 3\n", 1.0)
    core.tick(60.0)
    asked(core, r.Save, 60.0)
    core.handle(e.NotSaved("lock", "locked"), 60.0)
    asked(core, r.FindLocked, 60.0)
    core.handle(e.LockedFound(frozenset([1])), 60.0)
    core.agent_output(slot.number, b"FAIL a\nOK\n", 60.1)
    core.take_effects(60.1)
    assert [request for request in settle(core, 60.2) if isinstance(request, r.Save | r.FindLocked)] == []
    asked(core, r.FindLocked, 62.0)
    core.handle(e.LockedFound(frozenset()), 62.0)
    assert [row.state for row in saved(settle(core, 62.0))] == ["running", "failed"]


# ---- marks
def mark_of(core: Core) -> r.Mark:
    core.tick(0.1)
    request: r.Mark = asked(core, r.Mark, 0.1)
    return request


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_job_whose_mark_another_owner_refuses_is_forgotten_but_not_a_later_attempt(attempt: int) -> None:
    core = make_core()
    ready(core, claim(1))
    request = mark_of(core)
    core.take_effects(0.1)
    core.state.jobs[1].attempt = attempt
    core.handle(e.Saved(frozenset()), 0.1)
    assert (1 in core.state.jobs) is (attempt == 2)
    assert [row.pk for row in request.rows] == [1]


def test_a_rescued_job_begins_once_its_row_says_that_it_runs() -> None:
    core = make_core()
    turn(core, claim(1, rescued=1))
    assert spawned(core) == []
    request = asked(core, r.Mark)
    assert [row.state for row in request.rows] == ["running"]
    assert spawned(core) == []
    core.handle(answer_to(request), 0.0)
    assert spawned(core) == [0]


def test_a_rescued_job_of_which_another_owner_has_the_row_does_not_begin() -> None:
    core = make_core()
    turn(core, claim(1, rescued=1))
    asked(core, r.Mark)
    core.handle(e.Saved(frozenset()), 0.0)
    assert (spawned(core), core.state.jobs) == ([], {})


def test_progress_of_a_rescued_job_is_shown_like_that_of_others() -> None:
    core = make_core()
    turn(core, claim(1, rescued=1))
    core.handle(answer_to(asked(core, r.Mark)), 0.0)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    core.agent_output(number, b"ItemsProcessed 3\n", 1.0)
    core.tick(60.0)
    assert [row.processed for row in asked(core, r.Save, 60.0).rows] == [3]


def test_a_second_rescued_job_begins_beside_the_first() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1, rescued=1), claim(2, rescued=1))
    settle(core)
    assert len(spawned(core)) == 2


# ---- contents
def test_a_row_that_is_gone_when_its_contents_are_read_is_forgotten_and_the_next_is_read() -> None:
    core = make_core()
    turn(core, claim(1, unread=True), claim(2, unread=True))
    seen: list[int] = []
    for _ in range(30):
        request = core.next_request(0.0)
        if request is None:
            break
        if isinstance(request, r.ReadContents):
            seen += [pk for pk, _ in request.rows]
            found = {pk: (b"item %d" % pk, b"{}") for pk, _ in request.rows if pk != 1}
            core.handle(e.ContentsRead(found), 0.0)
        else:
            core.handle(answer_to(request), 0.0)
    assert seen == [1, 2]
    assert list(core.state.jobs) == [2]
    assert spawned(core) == [0]


def test_contents_of_an_earlier_attempt_are_not_those_of_a_later_one() -> None:
    core = make_core()
    turn(core, claim(1, unread=True))
    request = asked(core, r.ReadContents)
    core.state.jobs[1].attempt = 2
    core.handle(e.ContentsRead({1: (b"old", b"{}")}), 0.0)
    assert core.state.jobs[1].rules.unread
    assert request.rows == [(1, 1)]


# ---- rows that the database has otherwise
@pytest.mark.parametrize(("attempt", "is_lost"), [(1, True), (2, False)])
def test_a_row_that_was_lost_is_forgotten_if_that_attempt_is_in_hand(attempt: int, is_lost: bool) -> None:
    core = make_core()
    ready(core, claim(1))
    core.take_effects(0.0)
    core.handle(e.RowsLost([(1, attempt)]), 1.0)
    assert (1 not in core.state.jobs) is is_lost
    assert bool(effects(core, e.Kill, 1.0)) is is_lost


# ---- locks
def test_the_rows_that_are_not_locked_are_saved_at_once_and_the_others_after_a_pause() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1), claim(2))
    for number in spawned(core):
        core.handle(e.Created(number, 100), 0.0)
        core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    for number in (0, 1):
        core.agent_output(number, b"FAIL a\nOK\n", 1.0)
    core.take_effects(1.0)
    asked(core, r.Save, 1.0)
    core.handle(e.NotSaved("lock", "locked"), 1.0)
    asked(core, r.FindLocked, 1.0)
    core.handle(e.LockedFound(frozenset([1])), 1.0)
    request = asked(core, r.Save, 1.0)
    assert [row.pk for row in request.rows] == [2]
    core.handle(answer_to(request), 1.0)
    settle(core, 1.0)
    assert core.next_deadline() <= 1.0 + LOCK_PAUSE
    asked(core, r.FindLocked, 1.0 + LOCK_PAUSE)
    core.handle(e.LockedFound(frozenset()), 1.0 + LOCK_PAUSE)
    assert [row.pk for row in asked(core, r.Save, 1.0 + LOCK_PAUSE).rows] == [1]


# ---- dependencies
def test_children_that_were_released_are_claimed() -> None:
    core = make_core()
    core.settle([5])
    settle(core)
    assert core.next_request(0.0) is None
    core.settle([6])
    asked(core, r.Settle)
    core.handle(e.Settled(released=1), 0.0)
    assert isinstance(core.next_request(0.0), EndAndClaim)


def test_children_that_were_locked_are_settled_after_a_pause() -> None:
    core = make_core()
    core.settle([5])
    asked(core, r.Settle)
    core.handle(e.Settled(locked=[5]), 0.0)
    assert [each for each in settle(core, 0.5) if isinstance(each, r.Settle)] == []
    assert asked(core, r.Settle, LOCK_PAUSE).parents == [5]


def test_agents_are_given_work_again_when_logs_are_written() -> None:
    core = make_core()
    core.state.outbox.log(r.LogRow(None, "LOG", None, None, None, "x"))
    core.state.set_assigning(False)
    request = asked(core, r.WriteLog)
    core.handle(answer_to(request), 0.0)
    assert core.state.is_assigning
