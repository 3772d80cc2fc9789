"""Claims about where a claim begins, where the last one ended or at the start, and about which places are empty."""

from collections.abc import Sequence

import pytest

from scheduler.model.events import Turn
from scheduler.model.jobs import START, After
from scheduler.policy.claims import PAUSE, Claims
from tests.core_tools import make_core

PLACE = After("1n", "2026-01-01 00:00:00+00", 7)
FARTHER = After("1n", "2026-01-01 00:00:00+00", 9)


class Clerk:
    """Asks for what a core with one agent type wants, and answers; seconds."""

    def __init__(self) -> None:
        self.claims = Claims()
        self._world = make_core().world

    def ask(self, now: float = 0.0, *, ends: Sequence[object] = ()) -> Turn:
        """Ask as the core does."""
        world = self._world
        hosts, queues = list(world.hosts.values()), list(world.queues.values())
        wants = self.claims.wants(world.pools.values(), queues, hosts, world.timers, now)
        turn = Turn(ends, wants)  # type: ignore[arg-type]  # what ended does not matter
        self.claims.asked(turn, now)
        return turn

    def answer(self, turn: Turn, now: float = 0.0, *, short: int = 0, after: After = PLACE) -> None:
        """Find as many rows as were wanted, or fewer."""
        found = {want: want.most - short for want in turn.wants}
        reached = {want: after for want, count in found.items() if count}
        self.claims.turned(turn, found, reached, now)

    def claim(self, began: float = 0.0, ended: float = 0.0) -> bool:
        """Claim all that is wanted, from `began` to `ended`; say whether whole places were looked at."""
        turn = self.ask(began)
        self.answer(turn, ended)
        return _is_whole(turn)


def _is_whole(turn: Turn) -> bool:
    (after,) = {want.after for want in turn.wants}
    return after == START


# ---- where it begins


def test_first_claim_looks_at_whole_places_j47() -> None:
    assert Clerk().claim()


def test_claim_goes_on_where_the_last_one_of_its_place_ended_j47_j48() -> None:
    clerk = Clerk()
    clerk.answer(clerk.ask(), after=FARTHER)
    assert {want.after for want in clerk.ask().wants} == {FARTHER}


def test_claims_that_go_on_take_turns_with_whole_ones_where_both_cost_the_same_j46_r76() -> None:
    clerk = Clerk()
    clerk.claim()
    assert [clerk.claim(n, n + 0.5) for n in range(5)] == [False, True, False, True, False]


def test_whole_claims_that_are_quicker_are_made_every_second_time_j46_r76() -> None:
    clerk = Clerk()
    spans = [(0.0, 0.1), (1.0, 1.9), (2.0, 2.1), (3.0, 3.9), (4.0, 4.1)]
    assert [clerk.claim(*span) for span in spans] == [True, False, True, False, True]


def test_whole_claim_that_is_slow_is_not_made_again_before_nine_times_what_it_cost_more_t3() -> None:
    clerk = Clerk()
    assert [clerk.claim(0.0, 0.0), clerk.claim(0.0, 0.5), clerk.claim(1.0, 3.5)] == [True, False, True]
    pause = PAUSE * (2.5 - 0.5)
    times = [3.5, 10.0, 3.4 + pause, 3.5 + pause]
    assert [clerk.claim(now, now) for now in times] == [False, False, False, True]


def test_claim_that_goes_on_and_comes_short_is_followed_by_a_whole_one_j46_j48() -> None:
    clerk = Clerk()
    clerk.claim(0.0, 1.0)  # slow: there is a pause
    turn = clerk.ask(1.0)
    clerk.answer(turn, 1.0, short=1)
    assert (_is_whole(turn), _is_whole(clerk.ask(1.0))) == (False, True)


def test_place_that_came_short_begins_anew_alone_j47() -> None:
    clerk = Clerk()
    clerk.claim(0.0, 1.0)
    turn = clerk.ask(1.0)
    first, *others = turn.wants
    found = {want: want.most for want in others} | {first: 0}
    clerk.claims.turned(turn, found, dict.fromkeys(others, FARTHER), 1.0)
    begins = {want[:4]: want.after for want in clerk.ask(1.0).wants}
    assert begins == {first[:4]: START} | {want[:4]: FARTHER for want in others}


# ---- when it is empty


def test_whole_claim_that_comes_short_is_the_last_until_something_wakes_us_j49() -> None:
    clerk = Clerk()
    clerk.answer(clerk.ask(), short=1)
    assert clerk.ask().wants == []
    clerk.claims.wake()
    assert _is_whole(clerk.ask())


def test_claim_that_goes_on_proves_nothing_empty_j46_j48() -> None:
    clerk = Clerk()
    clerk.claim(0.0, 1.0)
    clerk.answer(clerk.ask(1.0), 1.0, short=1)
    assert clerk.claims.dry == set()


def test_claim_beside_ends_proves_nothing_empty_j48() -> None:
    clerk = Clerk()
    clerk.answer(clerk.ask(ends=["an end"]), short=1)
    assert _is_whole(clerk.ask())


@pytest.mark.parametrize("short", [0, 1])
def test_what_wakes_us_while_a_claim_is_on_its_way_may_have_come_too_late_for_it_j46(short: int) -> None:
    clerk = Clerk()
    turn = clerk.ask()
    clerk.claims.wake()
    clerk.answer(turn, short=short)
    assert clerk.claims.dry == set()
