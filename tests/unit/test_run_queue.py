"""Claims about whose turn it is: rank first, then jobs in turn, and a slot takes from its host and from anywhere.

Of a fair type submitters take turns, and then the jobs of each.
"""

import attrs
import pytest

from scheduler.model.config import AgentType, Config, Host
from scheduler.model.events_and_effects import Reloaded
from scheduler.model.protocol import Item
from scheduler.policy.run_queue import RunQueue
from tests.core_tools import claim, make_core, ready, sent
from tests.core_tools import turn as claim_turn

FAIR = {"sha": AgentType(command=("agent",), fair=True)}


def order(ranks: list[bytes], *, rounds: int) -> list[int]:
    """Serve lanes of two items each, of jobs with these ranks; return whose turn it was, by number from 1."""
    core = make_core()
    claim_turn(core, *(claim(n + 1, rank=rank) for n, rank in enumerate(ranks)))
    turns: RunQueue = core.state.pools["sha"].queues.any
    for lane in turns:
        lane.items.append(Item(b"second\n", 1))
    return serve(turns, rounds)


def serve(turns: RunQueue, rounds: int) -> list[int]:
    """Take so many items; return of which jobs they were."""
    served = []
    for number in range(rounds):
        job, _ = turns.pop(number)
        served.append(job.pk)
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
    turns = core.state.pools["sha"].queues.any
    turns.drop(turns.first[0])
    assert [lane.job.pk for lane in turns] == [2]


def test_an_empty_run_queue_has_no_first() -> None:
    assert not RunQueue().first


@pytest.mark.parametrize(("bound", "free", "first"), [(b"1a", b"1n", 1), (b"1n", b"1a", 2), (b"1n", b"1n", 1)])
def test_a_slot_takes_the_better_of_its_host_and_any_host(bound: bytes, free: bytes, first: int) -> None:
    core = make_core()
    ready(core, claim(1, rank=bound, host="alpha"), claim(2, rank=free))
    assert sent(core) == [b"item %d\n" % first]


# ---- fair types


def fair(submitters: str, *, items: int = 2, ranks: str = "nnnnnnnnn") -> RunQueue:
    """Return lanes of a fair type of so many items each, of jobs that these have queued, a letter each."""
    core = make_core(FAIR)
    given = enumerate(zip(submitters, ranks, strict=False))
    claim_turn(core, *(claim(n + 1, rank=b"1" + letter.encode(), submitter=who) for n, (who, letter) in given))
    turns = core.state.pools["sha"].queues.any
    for lane in turns:
        lane.items.extend(Item(b"more\n", n) for n in range(1, items))
    return turns


@pytest.mark.parametrize(
    ("submitters", "items", "served"),
    [
        ("aab", 2, [1, 3, 2, 3, 1, 2]),
        ("aaaab", 1, [1, 5, 2, 3, 4]),
        ("abc", 2, [1, 2, 3, 1, 2, 3]),
        ("aaa", 2, [1, 2, 3, 1, 2, 3]),
        ("aabb", 3, [1, 3, 2, 4, 1, 3, 2, 4, 1, 3, 2, 4]),
    ],
)
def test_submitters_take_turns_and_then_the_jobs_of_each(submitters: str, items: int, served: list[int]) -> None:
    assert serve(fair(submitters, items=items), len(served)) == served


def test_rank_goes_before_submitters() -> None:
    assert serve(fair("abab", ranks="nnaz"), 8) == [3, 3, 1, 2, 1, 2, 4, 4]


def test_a_late_submitter_goes_before_waiting_jobs_of_others() -> None:
    turns = fair("aaaaab", items=1)
    bert = list(turns)[-1]
    turns.drop(bert)
    assert serve(turns, 2) == [1, 2]
    turns.add(bert, bert.ticket)
    assert serve(turns, 4) == [3, 6, 4, 5]
    assert (turns.count(), list(turns), list(turns.first)) == (0, [], [])


def test_a_lane_of_a_fair_type_that_is_dropped_is_not_served() -> None:
    turns = fair("aab")
    first, last = turns.first[0], list(turns)[-1]
    turns.drop(first)
    turns.drop(last)
    turns.drop(last)
    assert (turns.count(), serve(turns, 2)) == (1, [2, 2])


@pytest.mark.parametrize("host", ["", "alpha"])
@pytest.mark.parametrize(("before", "after", "served"), [(False, True, [1, 3, 2]), (True, False, [1, 2, 3])])
def test_a_reload_changes_whether_submitters_take_turns(
    host: str, before: bool, after: bool, served: list[int]
) -> None:
    kind = attrs.evolve(FAIR["sha"], fair=before)
    core = make_core({"sha": kind})
    claim_turn(core, *(claim(n + 1, host=host, submitter=who) for n, who in enumerate("aab")))
    core.handle(Reloaded(Config(hosts={"alpha": Host()}, agents={"sha": attrs.evolve(kind, fair=after)})), 0.0)
    pool = core.state.pools["sha"]
    assert serve(pool.queues.by_host["alpha"] if host else pool.queues.any, 3) == served
    assert {slot.host_queue for slot in pool.slots} == {pool.queues.by_host["alpha"]}
