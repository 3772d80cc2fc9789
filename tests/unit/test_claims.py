"""Claims about where a claim begins, where the last one ended or at the start, and about which places are empty."""

from collections.abc import Sequence

import pytest

from scheduler.model.config import Host
from scheduler.model.queue_requests import START, ClaimPosition, EndAndClaim
from scheduler.policy.claims import ENOUGH, FORGETTING, HELD_BYTES, LONGEST_PAUSE, PAUSE, SLOWER, Claims
from tests.core_tools import make_core
from tests.counts.meters import work

PLACE = ClaimPosition("1n", "2026-01-01 00:00:00+00", 7)
FARTHER = ClaimPosition("1n", "2026-01-01 00:00:00+00", 9)


USUAL = 0.02  # seconds of a claim
BATCH = 1000  # rows of one


class Clerk:
    """Asks for what a core with one agent type wants, and answers; seconds."""

    def __init__(self, hosts: int = 1) -> None:
        self.claims = Claims()
        self._world = make_core(hosts={f"host{n}": Host() for n in range(hosts)}).state
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
