"""Claims about where a claim begins, where the last one ended or at the start, and about which places are empty."""

from collections.abc import Sequence

import pytest

from scheduler.model.config import AgentType, Host
from scheduler.model.protocol import Item
from scheduler.model.queue_requests import START, ClaimPosition, EndAndClaim
from scheduler.model.states import QueryEvent
from scheduler.policy.claims import ENOUGH, FORGETTING, HELD_BYTES, LONGEST_PAUSE, PAUSE, SLOWER, Claims
from scheduler.policy.core import Core
from scheduler.policy.job import Job
from scheduler.policy.run_queue import Lane
from tests.core_tools import claim, make_core
from tests.counts.meters import work

PLACE = ClaimPosition("1n", "2026-01-01 00:00:00+00", 7)
FARTHER = ClaimPosition("1n", "2026-01-01 00:00:00+00", 9)


USUAL = 0.02  # seconds of a claim
BATCH = 1000  # rows of one


class Clerk:
    """Asks for what a core with one agent type wants, and answers; seconds."""

    def __init__(self, hosts: int = 1, core: Core | None = None) -> None:
        self.claims = Claims()
        self._world = (core or make_core(hosts={f"host{n}": Host() for n in range(hosts)})).state
        self.pool = self._world.pools["sha"]
        self.pool.rate = 1e6  # as many as there may be are wanted

    def ask(self, now: float = 0.0, *, ends: Sequence[object] = ()) -> EndAndClaim:
        """Ask as the core does."""
        world = self._world
        hosts, queues = list(world.hosts.values()), list(world.queues.values())
        wants = self.claims.next_requests(world.pools.values(), queues, hosts, (), world.timers, now)
        turn = EndAndClaim(ends, wants)  # type: ignore[arg-type]  # what ended does not matter
        self.claims.sent(turn, now)
        return turn

    def answer(self, turn: EndAndClaim, now: float = 0.0, *, short: int = 0, after: ClaimPosition = PLACE) -> None:
        """Find as many rows as were wanted, or fewer."""
        found = {want: 0 if want.urgent else want.most - short for want in turn.wanted}
        reached = {want: after for want, count in found.items() if count}
        self.claims.answered(turn, found, reached, now)

    def claim(self, began: float = 0.0, ended: float = 0.0) -> bool:
        """Claim all that is wanted, from `began` to `ended`; return whether whole places were looked at."""
        turn = self.ask(began)
        self.answer(turn, ended)
        return _is_whole(turn)


def _is_whole(turn: EndAndClaim) -> bool:
    """Return whether it looks at whole places; urgent rows are always looked for from the start."""
    return {want.after for want in turn.wanted if not want.urgent} == {START}


def paused() -> Clerk:
    """Return a clerk whose last look at whole places, at 1 s, took a second longer than the one before."""
    clerk = Clerk()
    clerk.claim(0.0, 0.0 + USUAL)
    clerk.claim(0.5, 1.0 + USUAL)
    return clerk


# ---- how many


def test_rows_with_long_parameters_are_claimed_in_small_batches_t73() -> None:
    clerk = Clerk()
    usual = clerk.ask().wanted[0]
    clerk.pool.row_bytes = 1 << 20
    few = clerk.ask().wanted[0]
    assert (usual.most, few.most) == (BATCH, HELD_BYTES >> 20)


def most(clerk: Clerk) -> int:
    """Return how many rows are asked for of any host; 0 if only an urgent one is, or none."""
    clerk.claims.wake()
    return sum(want.most for want in clerk.ask().wanted if not want.host and not want.urgent)


def held(how: str, count: int) -> Clerk:
    """Return a clerk whose type has so many rows in hand that have not begun; `how` says where they are."""
    clerk = Clerk(hosts=2)
    pool, jobs = clerk.pool, [Job(claim(pk), clerk.pool, 0.0) for pk in range(count)]
    match how:
        case "still to come":
            pool.claimed(count, None, 0.0)
        case "rescued":
            pool.rescued.extend(jobs)
        case "marked":
            pool.marking.update(range(count))
        case "unread":
            for job in jobs:
                pool.add_unread(job)
        case "queries without a connection":
            for job in jobs:
                pool.add_query(Job(claim(job.pk, msq=True), pool, 0.0))
        case _:
            for job in jobs:
                pool.queues.anywhere.add(Lane(job, b"1n", "", None, [Item(b"x\n", 0)], is_single=True), 0)
    return clerk


WHERE = ["waiting", "still to come", "rescued", "marked", "unread", "queries without a connection"]


@pytest.mark.parametrize("how", WHERE)
def test_rows_in_hand_that_have_not_begun_are_not_claimed_twice(how: str) -> None:
    counts = []
    for count in (0, 500, 1000, 1500):
        clerk = held(how, count)
        counts.append(most(clerk))
    assert counts == [BATCH, BATCH, BATCH, 0]  # the next ones come while half of the 2000 is worked


@pytest.mark.parametrize("how", WHERE)
def test_a_slow_type_has_no_more_rows_in_hand_than_could_begin_at_once(how: str) -> None:
    room = held(how, 0).pool.startable(urgent=False)
    counts = []
    for count in (0, 1, room):
        clerk = held(how, count)
        clerk.pool.rate = 0.0
        counts.append(most(clerk))
    assert counts == [room, room - 1, 0]


def test_a_type_whose_query_feeds_its_agents_keeps_rows_for_its_rate_alone() -> None:
    clerk = held("waiting", 0)
    clerk.pool.rate = 0.0
    job = Job(claim(1, msq=True), clerk.pool, 0.0)
    assert job.query is not None
    job.query.fire(QueryEvent.ASKED)
    clerk.pool.add_query(job)
    assert most(clerk) == 1
    job.query.fire(QueryEvent.OPENED_EMPTY)
    assert most(clerk) == clerk.pool.startable(urgent=False)


def test_rows_that_wait_for_one_host_leave_the_claims_of_others() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=1)}, hosts={"a": Host(), "b": Host(), "c": Host()})
    clerk = Clerk(core=core)
    clerk.pool.rate = 0.0
    for pk, at in ((1, "a"), (2, "b")):
        job = Job(claim(pk, host=at), clerk.pool, 0.0)
        clerk.pool.queues.of(job, at).add(Lane(job, b"1n", "", at, [Item(b"x\n", 0)], is_single=True), 0)
    clerk.pool.claimed(1, clerk.pool.queues.by_host["c"], 0.0)
    assert {(want.host, want.urgent): want.most for want in clerk.ask().wanted} == {
        ("", False): 3, ("a", True): 1, ("b", True): 1, ("c", True): 1
    }  # fmt: skip
    clerk.pool.received()
    assert {want.host for want in clerk.ask().wanted if not want.urgent} == {"", "c"}
    clerk.pool.add_rescued(Job(claim(3, host="c"), clerk.pool, 0.0))
    assert {want.host for want in clerk.ask().wanted if not want.urgent} == {""}


def test_a_query_that_waits_for_one_host_holds_rows_of_that_host_alone() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=1)}, hosts={"a": Host(), "b": Host()})
    clerk = Clerk(core=core)
    clerk.pool.rate = 0.0
    single, query = Job(claim(1, host="a"), clerk.pool, 0.0), Job(claim(2, host="b", msq=True), clerk.pool, 0.0)
    clerk.pool.queues.of(single, "a").add(Lane(single, b"1n", "", "a", [Item(b"x\n", 0)], is_single=True), 0)
    assert {want.host for want in clerk.ask().wanted if not want.urgent} == {"", "b"}
    clerk.pool.add_query(query)
    assert {want.host for want in clerk.ask().wanted if not want.urgent} == {""}


def test_rows_of_a_query_take_no_place_of_jobs_that_wait_for_their_host() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=1)}, hosts={"a": Host(), "b": Host()})
    clerk = Clerk(core=core)
    clerk.pool.rate = 0.0
    single, query = Job(claim(1, host="a"), clerk.pool, 0.0), Job(claim(2, msq=True), clerk.pool, 0.0)
    clerk.pool.queues.of(single, "a").add(Lane(single, b"1n", "", "a", [Item(b"x\n", 0)], is_single=True), 0)
    assert query.query is not None
    query.query.fire(QueryEvent.ASKED)
    query.query.fire(QueryEvent.OPENED_EMPTY)
    clerk.pool.add_query(query)
    lane = query.add_items([Item(b"x\n", 0)], "b")
    assert lane is not None
    clerk.pool.queues.of(query, "b").add(lane, 0)
    assert {want.host for want in clerk.ask().wanted if not want.urgent} == {"", "b"}


def test_a_type_without_room_asks_for_one_urgent_row_until_one_waits() -> None:
    clerk = held("waiting", 1500)
    assert {(want.urgent, want.most) for want in clerk.ask().wanted} == {(True, 1)}
    urgent = Job(claim(1, rank=b"0n"), clerk.pool, 0.0)
    clerk.pool.queues.anywhere.add(Lane(urgent, b"0n", "", None, [Item(b"x\n", 0)], is_single=True), 0)
    assert clerk.ask().wanted == []


@pytest.mark.parametrize(("limit", "count"), [(0, 2000), (7, 7), (5000, 2000)])
def test_one_claim_takes_no_more_rows_than_its_limit(limit: int, count: int) -> None:
    clerk = Clerk(core=make_core(fetch_limit=limit))
    assert most(clerk) == count


# ---- where it begins


def test_first_claim_reads_its_claim_keys_from_the_start_j47() -> None:
    assert Clerk().claim()


def test_claims_read_from_the_start_while_that_is_cheap_r76() -> None:
    clerk = Clerk()
    assert [clerk.claim(n, n + USUAL * SLOWER) for n in range(9)] == [True] * 9


def test_after_a_slow_claim_the_next_continue_at_its_position_j48() -> None:
    turn = paused().ask(1.0 + USUAL)
    assert {want.after for want in turn.wanted if not want.urgent} == {PLACE}


def test_continued_claims_read_urgent_rows_from_the_start_f41_r76() -> None:
    turn = paused().ask(1.0 + USUAL)
    assert {(want.urgent, want.after) for want in turn.wanted} == {(True, START), (False, PLACE)}


def test_a_claim_key_whose_position_is_urgent_is_requested_once() -> None:
    clerk = Clerk()
    clerk.claim(0.0, USUAL)
    clerk.answer(clerk.ask(0.5), 1.0, after=ClaimPosition("0n", "2026-01-01 00:00:00+00", 7))
    assert {want.urgent for want in clerk.ask(1.0).wanted} == {False}


def test_claims_read_from_the_start_again_after_nine_times_the_extra_cost_t3() -> None:
    clerk = paused()
    pause = PAUSE * (0.5 + USUAL - SLOWER * USUAL * FORGETTING)
    over = 1.0 + USUAL + pause
    assert [_is_whole(clerk.ask(now)) for now in (1.1, over - 0.01, over + 0.01)] == [False, False, True]


def test_pause_between_full_claims_is_bounded() -> None:
    clerk = Clerk()
    clerk.claim(0.0, USUAL)
    clerk.claim(1.0, 100.0)
    assert [_is_whole(clerk.ask(100.0 + n)) for n in (0.0, LONGEST_PAUSE)] == [False, True]


def test_the_time_of_a_few_rows_is_not_taken_as_a_measure() -> None:
    clerk = Clerk()
    clerk.answer(clerk.ask(0.0), 30.0, short=BATCH - ENOUGH + 1)
    clerk.claims.wake()
    assert _is_whole(clerk.ask(30.0))


def test_short_continued_claim_is_followed_by_one_from_the_start_j46_j48() -> None:
    clerk = paused()
    turn = clerk.ask(1.1)
    clerk.answer(turn, 1.1, short=1)
    assert (_is_whole(turn), _is_whole(clerk.ask(1.1))) == (False, True)


# ---- when it is empty


def test_short_full_claim_is_the_last_until_a_wake_up_j49() -> None:
    clerk = Clerk()
    clerk.answer(clerk.ask(), short=1)
    assert clerk.ask().wanted == []
    clerk.claims.wake()
    assert _is_whole(clerk.ask())


def test_continued_claim_does_not_prove_a_claim_key_empty_j46_j48() -> None:
    clerk = paused()
    clerk.answer(clerk.ask(1.1), 1.1, short=1)
    assert {place for place in clerk.claims.empty if not place[3]} == set()


def test_claim_fused_with_completions_does_not_prove_a_claim_key_empty_j48() -> None:
    clerk = Clerk()
    clerk.answer(clerk.ask(ends=["an end"]), short=1)
    assert _is_whole(clerk.ask())


@pytest.mark.parametrize("short", [0, 1])
def test_wake_up_during_a_claim_voids_its_proof_of_emptiness_j46(short: int) -> None:
    clerk = Clerk()
    turn = clerk.ask()
    clerk.claims.wake()
    clerk.answer(turn, short=short)
    assert clerk.claims.empty == set()


def test_a_type_without_room_asks_for_nothing_where_every_place_is_empty() -> None:
    clerk = Clerk()
    clerk.answer(clerk.ask(), short=BATCH)
    asked = [clerk.ask().wanted]
    clerk.pool.claimed(10_000, None, 0.0)
    assert [*asked, clerk.ask().wanted] == [[], []]


def test_rows_that_only_a_rescan_found_are_counted_once_at_their_instant() -> None:
    clerk = Clerk()
    clerk.answer(clerk.ask(), short=BATCH)
    clerk.claims.look_again()
    clerk.answer(clerk.ask(5.0), 5.0)
    found = 2 * BATCH
    assert [clerk.claims.take_late(at) for at in (4.9, 5.0, 5.0, 6.0)] == [0, found, 0, 0]


def test_rows_found_at_a_wake_up_after_a_rescan_are_not_late() -> None:
    clerk = Clerk()
    clerk.answer(clerk.ask(), short=BATCH)
    clerk.claims.look_again()
    clerk.claims.wake()
    clerk.answer(clerk.ask(5.0), 5.0)
    assert clerk.claims.take_late(9.0) == 0


def lines_of_an_empty_look(hosts: int) -> int:
    """Count the lines of asking for nothing, as every place of so many hosts has proved empty."""
    clerk = Clerk(hosts)
    clerk.answer(clerk.ask(), short=BATCH)
    clerk.ask()
    with work() as counted:
        assert clerk.ask().wanted == []
    return counted.lines


def test_cost_does_not_grow_with_claim_keys_known_to_be_empty() -> None:
    assert lines_of_an_empty_look(100) == lines_of_an_empty_look(1)


def test_a_type_with_jobs_for_any_host_requests_those_alone_j49() -> None:
    clerk = Clerk(hosts=3)
    turn = clerk.ask()
    found = {want: want.most for want in turn.wanted if not want.host}
    clerk.claims.answered(turn, found, dict.fromkeys(found, PLACE), 0.0)
    assert [[want.host for want in clerk.ask().wanted] for _ in range(2)] == [[""], [""]]
