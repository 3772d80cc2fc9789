"""Equal jobs are spread evenly over the agents of a type."""

from collections import Counter
from collections.abc import Sequence

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.policy.core import Core
from tests.core_tools import claim, make_core, turn

JOBS = 40
PLACES = {"one host": {"a": Host()}, "two hosts": {"a": Host(), "b": Host()}}


def four_idle(hosts: dict[str, Host]) -> tuple[Core, list[int]]:
    """Return a core with four agents that have done one job each, and their slots."""
    core = make_core({"sha": AgentType(command=("agent",), slots=4 // len(hosts), window=1)}, hosts=hosts)
    turn(core, *(claim(pk) for pk in range(1, 5)))
    core.schedule(0.0)
    slots = [effect.slot for effect in core.take_effects(0.0) if isinstance(effect, e.Spawn)]
    for number in slots:
        core.handle(e.Created(number, 100 + number), 0.0)
        core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)
    assert sorted(told(core, 0.0)) == sorted(slots)
    finish(core, slots)
    return core, sorted(slots)


def finish(core: Core, busy: Sequence[int], now: float = 0.0) -> list[int]:
    """Let these agents end their items; return the slots that got a line then."""
    given = [number for number in busy if core.agent_output(number, b"OK\n", now) is not None]
    core.schedule(now)
    return given + told(core, now)


def told(core: Core, now: float) -> list[int]:
    return [effect.slot for effect in core.take_effects(now) if isinstance(effect, e.Send)]


@pytest.mark.parametrize("hosts", PLACES.values(), ids=PLACES)
def test_equal_jobs_that_come_one_by_one_are_spread_evenly_t48(hosts: dict[str, Host]) -> None:
    core, slots = four_idle(hosts)
    given: Counter[int] = Counter()
    for pk in range(5, 5 + JOBS):
        now = float(pk)
        core.handle(e.Woken(), now)
        turn(core, claim(pk), now=now)
        core.schedule(now)
        (slot,) = told(core, now)
        given[slot] += 1
        assert finish(core, [slot], now) == []
    assert given == dict.fromkeys(slots, JOBS // 4)


@pytest.mark.parametrize("hosts", PLACES.values(), ids=PLACES)
def test_equal_jobs_that_come_at_once_are_spread_evenly_t48(hosts: dict[str, Host]) -> None:
    core, slots = four_idle(hosts)
    core.handle(e.Woken(), 1.0)
    turn(core, *(claim(pk) for pk in range(5, 5 + JOBS)), now=1.0)
    core.schedule(1.0)
    busy, given = told(core, 1.0), Counter[int]()
    while busy:
        given.update(busy)
        busy = finish(core, busy, 1.0)
    assert given == dict.fromkeys(slots, JOBS // 4)
