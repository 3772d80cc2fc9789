"""Claims about whose turn it is: rank first, then jobs in turn, and a slot takes from its host and from anywhere."""

import pytest

from scheduler.model.expand import Item
from scheduler.policy.turns import Turns
from tests.core_tools import claim, make_core, ready, sent
from tests.core_tools import turn as claim_turn


def order(ranks: list[bytes], *, rounds: int) -> list[int]:
    """Serve lanes of two items each, of jobs with these ranks; give whose turn it was, by number from 1."""
    core = make_core()
    claim_turn(core, *(claim(n + 1, rank=rank) for n, rank in enumerate(ranks)))
    turns: Turns = core.world.pools["sha"].any
    for lane in turns:
        lane.items.append(Item(b"second\n", 1))
    served = []
    for number in range(rounds):
        lane = turns.first[0]
        lane.items.popleft()
        turns.served(number)
        served.append(lane.job.pk)
    return served


@pytest.mark.parametrize(
    ("ranks", "served"),
    [
        ([b"1n", b"1n"], [1, 2, 1, 2]),
        ([b"1n", b"0n"], [2, 2, 1, 1]),
        ([b"1z", b"1a"], [2, 2, 1, 1]),
        ([b"1n", b"1a", b"1n"], [2, 2, 1, 3, 1, 3]),
    ],
)
def test_rank_goes_first_and_equals_take_turns(ranks: list[bytes], served: list[int]) -> None:
    assert order(ranks, rounds=len(served)) == served


def test_a_lane_that_is_dropped_is_not_served() -> None:
    core = make_core()
    claim_turn(core, claim(1), claim(2))
    turns = core.world.pools["sha"].any
    turns.drop(turns.first[0])
    assert [lane.job.pk for lane in turns] == [2]


def test_an_empty_one_has_no_first() -> None:
    assert not Turns().first


@pytest.mark.parametrize(("bound", "free", "first"), [(b"1a", b"1n", 1), (b"1n", b"1a", 2), (b"1n", b"1n", 1)])
def test_a_slot_takes_the_better_of_its_host_and_anywhere(bound: bytes, free: bytes, first: int) -> None:
    core = make_core()
    ready(core, claim(1, rank=bound, host="alpha"), claim(2, rank=free))
    assert sent(core) == [b"item %d\n" % first]
