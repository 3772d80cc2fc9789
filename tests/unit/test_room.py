"""Claims about room: how many agents are started for what waits, and which agents end to make room for others."""

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.states import DIE, KEEP
from scheduler.policy.core import Core
from scheduler.policy.deadlines import ROOM
from scheduler.policy.slots import Slot
from tests.core_tools import claim, make_core, ready, saved, sent, settle, spawned, turn


def test_an_idle_agent_gets_a_job_that_is_bound_to_its_host() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=1)}, hosts={"alpha": Host(), "gamma": Host()})
    slot = ready(core, claim(1, host="alpha"))
    sent(core)
    core.agent_output(slot.number, b"OK\n", 0.0)
    turn(core, claim(2, host="alpha"))
    assert sent(core) == [b"item 2\n"]


@pytest.mark.parametrize("kind", ["line", "exec"])
@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_no_more_agents_are_started_than_jobs_wait(kind: str, jobs: int) -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=4, kind=kind)})  # type: ignore[arg-type]
    turn(core, *map(claim, range(1, jobs + 1)))
    assert len(spawned(core)) == jobs
    core.schedule(0.0)
    assert spawned(core) == []


# ---- a type that finds no room


def full(jobs: int = 1, waits_since: float = 0.0) -> tuple[Core, Slot]:
    """Return a core whose only place has an agent of type `a`, for so many jobs, while type `b` waits; its slot."""
    kinds = {name: AgentType(command=("agent",), slots=1) for name in ("a", "b")}
    core = make_core(kinds, hosts={"alpha": Host(max=1, urgent=0)}, min_idle=5.0)
    turn(core, *(claim(pk, "a") for pk in range(10, 10 + jobs)), claim(2, "b"), now=waits_since)
    (number,) = spawned(core, waits_since)
    core.handle(e.Created(number, 100), waits_since)
    core.agent_output(number, b"OK\n", waits_since)
    core.take_effects(waits_since)
    return core, core.state.slots.all[number]


def started(core: Core, now: float) -> list[str]:
    return [core.state.slots.all[number].pool.name for number in spawned(core, now)]


def test_an_idle_agent_makes_room_for_what_has_waited_so_long_and_no_sooner() -> None:
    core, slot = full()
    core.agent_output(slot.number, b"OK\n", 1.0)
    assert (started(core, 1.0), core.state.deadlines.at[ROOM], slot.wanted) == ([], 5.0, KEEP)
    core.tick(4.9)
    assert (started(core, 4.9), slot.wanted) == ([], KEEP)
    core.tick(5.0)
    assert (started(core, 5.0), slot.wanted, slot.reason) == ([], DIE, "room for b")
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 5.1)
    assert started(core, 5.1) == ["b"]


def test_a_type_that_is_never_idle_gives_its_place_to_one_that_has_waited() -> None:
    core, slot = full(jobs=20)
    gone = []
    for now in (1.0, 4.9, 5.0, 5.1):
        core.tick(now)
        core.agent_output(slot.number, b"OK\n", now)
        core.take_effects(now)
        gone.append(slot.wanted is not KEEP)
    assert gone == [False, False, True, True]
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 5.2)
    assert started(core, 5.2) == ["b"]


def test_a_place_is_not_given_back_and_forth_faster_than_agents_may_be_idle() -> None:
    core, slot = full(jobs=20)
    for now in (5.0, 5.1):
        core.tick(now)
        core.agent_output(slot.number, b"OK\n", now)
        core.take_effects(now)
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 5.2)
    (other,) = spawned(core, 5.2)
    core.handle(e.Created(other, 101), 5.2)
    core.agent_output(other, b"OK\n", 5.2)
    core.take_effects(5.2)
    core.agent_output(other, b"OK\n", 6.0)
    core.take_effects(6.0)
    wanted = []
    for now in (9.9, 10.3):
        core.tick(now)
        core.take_effects(now)
        wanted.append(core.state.slots.all[other].wanted)
    assert wanted == [KEEP, DIE]


def test_a_job_that_is_cancelled_takes_the_promise_of_its_place_back() -> None:
    core, slot = full(jobs=20)
    core.tick(5.0)
    core.take_effects(5.0)
    host = core.state.hosts["alpha"]
    assert host.yields_to is core.state.pools["b"]
    core.cancel(2, "not needed", 5.0)
    core.take_effects(5.0)
    core.agent_output(slot.number, b"OK\n", 5.1)
    assert host.yields_to is None
    assert slot.wanted is KEEP


# ---- second tries


def test_an_idle_agent_makes_room_for_a_fresh_process_if_there_is_no_other_slot() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)}, respawn_count=0)
    turn(core, claim(1, msq=True, tolerate=2))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"a",), 2), 0.0)
    core.handle(e.Fetched(1, [(b"x",), (b"y",)], more=False), 0.0)
    first, second = spawned(core)
    for number in (first, second):
        core.handle(e.Created(number, 100 + number), 0.0)
        core.agent_output(number, b"OK\n", 0.0)
    assert sorted(sent(core)) == [b'a="x"\n', b'a="y"\n']
    core.handle(e.Gone(first, code=1), 1.0)
    core.take_effects(1.0)
    assert core.state.slots.all[second].wanted is KEEP
    core.agent_output(second, b"OK\n", 2.0)
    core.take_effects(2.0)
    assert core.state.slots.all[second].reason == "a fresh process is needed"
    core.handle(e.Gone(second, signal="SIGHUP"), 2.1)
    assert spawned(core, 2.1) == [second]
    core.handle(e.Created(second, 200), 2.1)
    core.agent_output(second, b"OK\n", 2.1)
    assert len(sent(core, 2.1)) == 1
    core.agent_output(second, b"OK\n", 2.2)
    assert [(row.state, row.processed, row.failed) for row in saved(settle(core, 3.0))][-1] == ("done", 2, 0)


def test_an_idle_agent_makes_room_for_a_fresh_process_on_a_host_with_urgent_places_alone() -> None:
    kinds = {"sha": AgentType(command=("agent",), slots=2), "zip": AgentType(command=("agent",), slots=1)}
    core = make_core(kinds, hosts={"alpha": Host(max=2, urgent=1)})
    turn(core, claim(10), claim(11), claim(1, msq=True, tolerate=2), claim(2, "zip"))
    agents = spawned(core)
    for number in agents:
        core.handle(e.Created(number, 100 + number), 0.0)
        core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"a",), 2), 0.0)
    core.handle(e.Fetched(1, [(b"x",), (b"y",)], more=False), 0.0)
    assert [core.agent_output(number, b"OK\n", 0.5) for number in agents] == [b'a="x"\n', b'a="y"\n']
    core.handle(e.Gone(agents[0], code=1), 1.0)
    assert started(core, 1.0) == ["zip"]
    core.agent_output(agents[1], b"OK\n", 1.5)
    core.take_effects(1.5)
    assert core.state.slots.all[agents[1]].reason == "a fresh process is needed"
