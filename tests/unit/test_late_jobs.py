"""What the core counts as found by a rescan alone: jobs in places that were empty, and children of ended jobs."""

from scheduler.model import events_and_effects as e
from scheduler.model.counters import FOUND_LATE
from scheduler.model.queue_requests import ClaimPosition, EndAndClaim, Settle
from scheduler.policy.core import Core
from tests.core_tools import make_core

PLACE = ClaimPosition("1n", "2026-01-01 00:00:00+00", 7)
TOLD = e.Woken()
RESCAN = e.Woken(by_rescan=True)


def idle_core() -> Core:
    """Return a core that has found every place empty."""
    core = make_core()
    while (request := core.next_request(0.0)) is not None:
        core.handle(e.EndedAndClaimed((), (), (), {}, {}, 0, False), 0.0)
        assert isinstance(request, EndAndClaim)
    return core


def claim_one(core: Core, now: float) -> None:
    """Answer the next claim with one row, which follows later."""
    request = core.next_request(now)
    assert isinstance(request, EndAndClaim)
    want = request.wanted[0]
    core.handle(e.EndedAndClaimed((), (), (), {want: PLACE}, {want: 1}, 10, False), now)


def late(core: Core, found: dict[str, int] | None = None, until: float = 2.0) -> dict[str, float]:
    """Return what is counted of what was found until then."""
    core.found_late(found or {}, until)
    counted = core.report.take_counted().items()
    return {kind: count for (name, *labels), count in counted if name == FOUND_LATE for kind in labels}


def test_a_job_that_only_a_rescan_found_is_counted_once() -> None:
    core = idle_core()
    core.handle(RESCAN, 1.0)
    claim_one(core, 1.1)
    assert late(core) == {"jobs": 1}
    assert late(core) == {}


def test_a_job_is_counted_though_the_rescan_has_read_the_tables_too() -> None:
    core = idle_core()
    core.handle(RESCAN, 1.0)
    core.state.wake_all()  # as at each read of the tables
    claim_one(core, 1.1)
    core.state.wake_all()
    assert late(core) == {"jobs": 1}


def test_a_job_whose_notification_comes_after_it_was_found_is_not_counted() -> None:
    core = idle_core()
    core.handle(RESCAN, 1.0)
    claim_one(core, 1.1)
    core.handle(TOLD, 1.2)
    assert late(core) == {}


def test_a_job_is_not_counted_before_its_notification_can_have_come() -> None:
    core = idle_core()
    core.handle(RESCAN, 1.0)
    claim_one(core, 2.1)
    assert late(core, until=2.0) == {}
    assert late(core, until=2.1) == {"jobs": 1}


def test_a_job_of_which_a_notification_told_before_the_rescan_is_not_counted() -> None:
    core = idle_core()
    core.handle(TOLD, 0.9)
    core.handle(RESCAN, 1.0)
    claim_one(core, 1.1)
    assert late(core) == {}


def test_a_rescan_that_finds_no_job_counts_nothing() -> None:
    core = idle_core()
    core.handle(RESCAN, 1.0)
    core.next_request(1.1)
    core.handle(e.EndedAndClaimed((), (), (), {}, {}, 0, False), 1.1)
    assert late(core) == {}


def test_what_other_parts_of_a_rescan_found_is_counted_and_logged() -> None:
    core = make_core()
    assert late(core, {"due rows": 3}) == {"due rows": 3}
    logged = [effect.text for effect in core.take_effects(0.0) if isinstance(effect, e.LogMessage)]
    assert "only a rescan found 3 due rows: a notification or an event was lost" in logged


# ---- children of ended jobs


def settle(core: Core, parents: list[int], released: int) -> None:
    """Answer the request to settle these."""
    assert core.next_request(1.0) == Settle(parents)
    core.handle(e.Settled(released, None, ()), 1.0)


def test_children_that_only_a_rescan_released_are_counted() -> None:
    core = idle_core()
    core.settle_late([7, 8])
    settle(core, [7, 8], released=2)
    assert late(core) == {"dependencies": 2}


def test_children_that_the_end_of_their_parent_releases_are_not_counted() -> None:
    core = idle_core()
    core.settle([7])
    settle(core, [7], released=1)
    assert late(core) == {}


def test_children_whose_release_was_on_its_way_when_a_rescan_found_them_are_not_counted() -> None:
    core = idle_core()
    core.settle([7])
    request = core.next_request(1.0)
    core.settle_late([7])
    assert request == Settle([7])
    core.handle(e.Settled(1, None, ()), 1.0)
    assert late(core) == {}


def test_parents_without_children_to_release_are_not_counted() -> None:
    core = idle_core()
    core.settle_late([7])
    settle(core, [7], released=0)
    assert late(core) == {}
