"""Claims about what a host and a queue may take: no limit is passed, and no room is left unused."""

import pytest

from scheduler.model.config import AgentType, Host
from scheduler.model.states import NEVER
from scheduler.policy.capacity import UNLIMITED, HostState, QueueState
from scheduler.policy.job import Pool
from scheduler.policy.rates import RateLimit, Rates


def host(used: int = 0, leaving: int = 0, most: int = 2, urgent: int = 1) -> HostState:
    made = HostState("alpha", Host(max=most, urgent=urgent))
    made.slot_moved(used, leaving)
    return made


def pool(failed: bool = False) -> Pool:
    """Return a type with a host `alpha` that has a free slot there; its last start failed or not."""
    made: Pool = Pool("sha", AgentType(command=("agent",)), True)
    made.add_host("alpha")
    made.free["alpha"].append(object())
    if failed:
        made.start_failed("alpha")
    return made


# ---- the room of a host


@pytest.mark.parametrize(
    ("most", "used", "room", "urgent_room"),
    [
        (2, 0, True, True),
        (2, 1, True, True),
        (2, 2, False, True),
        (2, 3, False, False),
        (UNLIMITED, 10_000, True, True),
    ],
)
def test_a_host_has_room_up_to_its_maximum_and_for_urgent_jobs_beyond(
    most: int, used: int, room: bool, urgent_room: bool
) -> None:
    alpha = host(used, most=most)
    assert (alpha.has_room(urgent=False), alpha.has_room(urgent=True)) == (room, urgent_room)


@pytest.mark.parametrize(
    ("most", "used", "leaving", "is_over"),
    [(2, 2, 0, False), (2, 3, 0, True), (2, 3, 1, False), (UNLIMITED, 9, 0, False)],
)
def test_a_host_is_over_while_more_agents_stay_than_its_maximum(
    most: int, used: int, leaving: int, is_over: bool
) -> None:
    alpha = host(used, leaving, most)
    assert (alpha.is_over, alpha.is_tight) == (is_over, is_over)


def test_a_host_with_another_maximum_is_looked_at_again() -> None:
    alpha = host(used=2)
    alpha.configure(max=1)
    assert (alpha.is_tight, alpha.has_room(urgent=True)) == (True, False)
    alpha.configure(max=3)
    assert (alpha.is_tight, alpha.has_room(urgent=False)) == (False, True)


def test_agents_of_a_host_that_is_disabled_or_down_have_to_go() -> None:
    alpha, beta = host(), host()
    alpha.configure(enabled=False)
    beta.went_down("no route", 4.0)
    assert [(each.is_open, each.is_tight, each.has_room(urgent=True)) for each in (alpha, beta)] == [
        (False, True, False)
    ] * 2
    alpha.configure(enabled=True)
    beta.set_up(True)
    assert [(each.is_open, each.is_tight, each.has_room(urgent=True)) for each in (alpha, beta)] == [
        (True, False, True)
    ] * 2


def test_a_host_over_ssh_has_no_room_before_it_is_reached() -> None:
    far, here = HostState("beta", Host(transport="ssh", address="beta")), HostState("alpha", Host())
    assert (far.has_room(urgent=True), far.is_tight) == (False, True)
    assert (here.has_room(urgent=False), here.is_tight) == (True, False)


# ---- places kept for a type


def test_a_place_that_was_made_for_a_type_is_kept_from_others_only() -> None:
    alpha, sha, other = host(), pool(), pool()
    assert not alpha.is_kept_from(other)
    alpha.keep_for(sha, 1.0)
    assert (alpha.is_kept_from(sha), alpha.is_kept_from(other), alpha.yielded_at) == (False, True, 1.0)
    alpha.keep_for_none()
    assert not alpha.is_kept_from(other)


def test_no_place_is_kept_for_a_type_without_a_free_slot_there() -> None:
    alpha, sha = host(), pool()
    alpha.keep_for(sha, 1.0)
    sha.free["alpha"].clear()
    assert not alpha.is_kept_from(pool())


def test_agents_have_to_go_while_a_host_yields_to_a_type() -> None:
    alpha, sha = host(), pool()
    alpha.yield_to(sha)
    assert alpha.is_tight
    alpha.yield_to(None)
    assert not alpha.is_tight


@pytest.mark.parametrize("event", ["begin", "fail"])
@pytest.mark.parametrize("failed", [True, False])
def test_promises_to_a_type_whose_start_failed_there_are_taken_back(event: str, failed: bool) -> None:
    alpha, sha = host(), pool(failed)
    alpha.keep_for(sha, 0.0)
    alpha.yield_to(sha)
    if event == "begin":
        alpha.begin_probe(object())
    else:
        alpha.start_failed(5.0)
    kept = None if failed else sha
    assert (alpha.yields_to, alpha.kept_for, alpha.is_tight) == (kept, kept, not failed)


# ---- types whose starts fail


def test_one_agent_at_a_time_is_started_of_types_whose_start_failed() -> None:
    alpha, failing, other, probe = host(), pool(failed=True), pool(), object()
    assert alpha.start_from(failing) == -NEVER
    alpha.begin_probe(probe)
    assert (alpha.start_from(failing), alpha.start_from(other)) == (NEVER, -NEVER)
    alpha.end_probe(object())
    assert alpha.start_from(failing) == NEVER
    alpha.end_probe(probe)
    assert alpha.start_from(failing) == -NEVER


def test_the_next_start_waits_for_the_longest_pause_there_is() -> None:
    alpha, failing = host(), pool(failed=True)
    alpha.start_failed(8.0)
    alpha.start_failed(5.0)
    assert (alpha.start_from(failing), alpha.start_from(pool())) == (8.0, -NEVER)
    failing.program_is_busy("alpha", "text file busy", 9.0)
    assert alpha.start_from(failing) == 10.0


# ---- a shortage


def test_a_machine_that_is_short_takes_no_more_agents_until_its_pause_is_over() -> None:
    alpha = host(used=1, most=9)
    assert alpha.run_short("no memory", 10.0)
    assert (alpha.has_room(urgent=True), alpha.tried_again_at) == (False, 11.0)
    assert not alpha.run_short("no memory", 10.5)
    alpha.try_more(10.9)
    assert not alpha.has_room(urgent=True)
    alpha.try_more(11.0)
    assert alpha.spare(urgent=False) == 8
    assert alpha.run_short("no memory", 11.0)
    assert (alpha.tried_again_at, alpha.shortage) == (13.0, "no memory")
    alpha.recover()
    alpha.try_more(20.0)
    assert (alpha.shortage, alpha.tried_again_at) == (None, NEVER)


def test_a_host_goes_on_with_what_the_program_before_knew() -> None:
    alpha, later = host(used=1), host(used=1)
    alpha.run_short("no memory", 10.0)
    alpha.start_failed(12.0)
    alpha.went_down("no route", 14.0)
    later.restore(alpha.snapshot())
    assert later.snapshot() == alpha.snapshot()
    assert (later.is_tight, later.why_down) == (True, "host alpha cannot be reached: no route")


# ---- the room of a queue


@pytest.mark.parametrize(
    ("concurrency", "in_hand", "rate", "room"),
    [
        (None, 5, 0, None),
        (7, 5, 0, 2),
        (5, 5, 0, 0),
        (4, 5, 0, 0),
        (None, 5, 6, 1),
        (9, 5, 6, 1),
        (6, 5, 9, 1),
        (None, 5, 5, 0),
        (6, 5, 5, 0),
    ],
)
def test_a_queue_has_the_room_that_both_of_its_limits_leave(
    concurrency: int | None, in_hand: int, rate: int, room: int | None
) -> None:
    rates = Rates(RateLimit(rate=rate))
    assert QueueState("q", concurrency, False, in_hand, rates=rates).room(0.0) == room
    assert QueueState("q", concurrency, True, in_hand, rates=rates).room(0.0) == 0


@pytest.mark.parametrize(
    ("concurrency", "paused", "in_hand", "is_over"),
    [
        (None, False, 9, False),
        (9, False, 9, False),
        (8, False, 9, True),
        (None, True, 1, True),
        (None, True, 0, False),
        (8, True, 1, True),
    ],
)
def test_a_queue_is_over_with_more_in_hand_than_it_may_have(
    concurrency: int | None, paused: bool, in_hand: int, is_over: bool
) -> None:
    assert QueueState("q", concurrency, paused, in_hand).is_over == is_over


def test_a_job_that_ends_makes_room_in_its_queue_and_for_its_rate() -> None:
    queue = QueueState("q", 3, False, rates=Rates(RateLimit(rate=3)))
    queue.claimed(3)
    assert queue.room(0.0) == 0
    queue.ended(1)
    assert queue.room(0.0) == 1


def test_a_start_counts_for_its_rate_after_the_job_has_ended() -> None:
    rates = Rates(RateLimit(rate=3))
    queue = QueueState("q", None, False, rates=rates)
    queue.claimed(3)
    rates.began(1, 0.0)
    queue.ended(1)
    assert queue.room(0.0) == 0
