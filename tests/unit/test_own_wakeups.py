"""Each event after which there is something to do has the core do it at once: without that only a rescan would."""

from collections.abc import Sequence

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import Host
from scheduler.model.queue_requests import ClaimPosition, End, EndAndClaim, LogRow, Save, SaveRow, Settle, WriteLog
from scheduler.policy.core import Core
from scheduler.policy.deadlines import GATHER, LOCKS, PROGRESS, RECORD
from scheduler.policy.outbox import LOCK_PAUSE
from scheduler.policy.queue_answers import RECORD_AFTER
from tests.core_tools import TABLES, claim, make_core, turn

PLACE = ClaimPosition("1n", "2026-01-01 00:00:00+00", 7)
NOTHING = e.EndedAndClaimed((), (), (), {}, {}, 0, False)
END = End(7, 1, 200_000, 100_000, "here", 99, None)
NOW = 1.0


def idle(core: Core | None = None) -> Core:
    """Return a core that has found every place empty and asks for nothing."""
    core = core or make_core()
    while core.next_request(0.0) is not None:
        core.handle(NOTHING, 0.0)
    return core


def saved(row: SaveRow, parents: Sequence[int] = ()) -> Core:
    """Return a core whose only request, to save a row, was answered."""
    core = idle()
    core.state.outbox.save(row)
    assert isinstance(core.next_request(NOW), Save)
    core.handle(e.Saved(frozenset((row.pk,)), parents), NOW)
    return core


def settled(event: e.Settled) -> Core:
    core = idle()
    core.settle([7])
    assert core.next_request(NOW) == Settle([7])
    core.handle(event, NOW)
    return core


def claims(core: Core) -> bool:
    """Return whether the core asks for jobs now."""
    request = core.next_request(NOW)
    return isinstance(request, EndAndClaim) and bool(request.wanted)


def test_an_idle_core_asks_for_nothing() -> None:
    assert idle().next_request(NOW) is None


def test_children_of_a_job_that_ended_plainly_are_settled_at_once() -> None:
    core = idle()
    core.state.outbox.end(END)
    assert isinstance(core.next_request(NOW), EndAndClaim)
    core.handle(e.EndedAndClaimed((), (7,), (), {}, {}, 0, False), NOW)
    assert core.next_request(NOW) == Settle([7])


def test_children_of_a_job_that_failed_are_settled_at_once() -> None:
    assert saved(SaveRow(8, 1, "failed", outcome="failed"), parents=(8,)).next_request(NOW) == Settle([8])


def test_a_job_that_was_given_back_is_claimed_again_at_once() -> None:
    assert claims(saved(SaveRow(8, 1, "queued", outcome="released")))


def test_the_wait_of_a_job_that_is_tried_again_later_is_looked_for_at_once() -> None:
    core = saved(SaveRow(8, 1, "queued", outcome="failed", retry_in=5.0))
    assert e.FindNextDue() in core.take_effects(NOW)


def test_children_that_were_released_are_claimed_at_once() -> None:
    assert claims(settled(e.Settled(released=1)))


def test_the_children_that_one_statement_did_not_reach_are_settled_next() -> None:
    assert settled(e.Settled(left=Settle([7], 1000))).next_request(NOW) == Settle([7], 1000)


def test_children_that_were_locked_are_settled_when_the_lock_may_be_gone() -> None:
    core = settled(e.Settled(locked=(7,)))
    assert core.state.deadlines.at[LOCKS] == NOW + LOCK_PAUSE
    assert core.next_request(NOW + LOCK_PAUSE) == Settle((7,))


def test_ends_that_wait_for_others_have_a_deadline() -> None:
    core = idle()
    outbox = core.state.outbox
    outbox.gather_until = NOW + 0.01
    outbox.end(END)
    assert outbox.gathers(NOW)
    assert core.state.deadlines.at[GATHER] == NOW + 0.01


def test_what_was_claimed_is_recorded_and_its_progress_shown_in_time() -> None:
    core = make_core(progress_interval=0.75)
    request = core.next_request(0.0)
    assert isinstance(request, EndAndClaim)
    want = request.wanted[0]
    core.handle(e.EndedAndClaimed((), (), (), {want: PLACE}, {want: 1}, 10, False), 0.0)
    assert (core.state.deadlines.at[RECORD], core.state.deadlines.at[PROGRESS]) == (RECORD_AFTER, 0.75)


@pytest.mark.parametrize("event", [e.Woken(), e.Woken(by_rescan=True)])
def test_a_notification_and_a_rescan_have_every_place_asked(event: e.Woken) -> None:
    core = idle()
    core.handle(event, NOW)
    assert claims(core)


def test_a_change_of_the_tables_has_every_place_asked() -> None:
    core = idle()
    row = {"name": "alpha", "max": -1, "urgent": 1, "enabled": True} | Host().filters
    core.handle(e.TablesRead(TABLES["queues"], [row], [{"type": "sha", "enabled": True}], []), NOW)
    assert claims(core)


def test_a_host_that_is_reached_has_its_places_asked() -> None:
    far = Host(transport="ssh", address="far")
    core = make_core(hosts={"far": far})
    core.handle(e.HostDown("far", "away", 5.0), 0.0)
    core = idle(core)
    core.handle(e.HostUp("far"), NOW)
    assert claims(core)


def test_what_waits_behind_a_log_line_follows_it() -> None:
    core = idle()
    core.state.outbox.log(LogRow(7, "LOG", "here", "sha", 99, "a line"))
    core.state.outbox.end(END)
    assert isinstance(core.next_request(NOW), WriteLog)
    core.handle(e.Written(), NOW)
    request = core.next_request(NOW + 1.0)
    assert isinstance(request, EndAndClaim)
    assert list(request.ends) == [END]


def test_what_is_in_hand_is_recorded_again_as_long_as_it_is() -> None:
    core = make_core()
    turn(core, claim(1))
    core.tick(RECORD_AFTER)
    assert core.state.deadlines.at[RECORD] == 2 * RECORD_AFTER
