"""Claims about respawns: how many starts an interval takes, and what a core does with an agent that dies at once."""

import pytest

from scheduler.model import events as e
from scheduler.model.config import AgentType, Scheduler
from scheduler.model.states import ST_FAIL, ST_FREE
from scheduler.policy.core import Core
from scheduler.policy.throttle import is_too_fast, recent
from tests.core_tools import claim, make_core, ready, settle, spawned, turn


def start_and_die(core: Core, now: float) -> int:
    """Let every agent that is to be started die at once; give how many were."""
    slots = spawned(core)
    for number in slots:
        core.handle(e.Created(number, 100), now)
        core.handle(e.Gone(number, code=1), now)
    return len(slots)


def starts(core: Core, times: list[float]) -> int:
    """Give how many starts there are when the core is looked at so often."""
    return sum(start_and_die(core, now) for now in times)


def test_the_defaults_stand_in_one_place_f71() -> None:
    assert (Scheduler().respawn_interval, Scheduler().respawn_count) == (300.0, 5)


@pytest.mark.parametrize(("deaths", "verdict"), [(5, False), (6, True)])
def test_the_sixth_respawn_is_refused_f72(deaths: int, verdict: bool) -> None:
    assert is_too_fast([float(n) for n in range(deaths)], 10.0, 300.0, 5) is verdict


def test_old_births_do_not_count_f72() -> None:
    assert recent([0.0, 1.0, 2.0], 301.0, 300.0) == [2.0]


def test_an_agent_that_dies_at_once_is_started_six_times_f70_f72() -> None:
    core = make_core()
    turn(core, claim(1))
    assert starts(core, [n / 10 for n in range(20)]) == 6
    assert core.world.fleet.slots[0].state == ST_FAIL


def test_other_limits_scale_f71() -> None:
    core = make_core(respawn_interval=3.0, respawn_count=2)
    turn(core, claim(1))
    assert starts(core, [n / 100 for n in range(20)]) == 3


def test_a_failed_slot_is_tried_again_after_the_interval_f73() -> None:
    core = make_core()
    turn(core, claim(1))
    starts(core, [0.0] * 10)
    core.tick(299.0)
    assert core.world.fleet.slots[0].state == ST_FAIL
    core.tick(301.0)
    assert core.world.fleet.slots[0].state == ST_FREE


def test_kills_by_the_scheduler_reset_the_count_f74() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take()
    slot.births = [0.0] * 5
    core.hear(slot.number, b"OK\n", 1.0)
    core.world.fleet.kill(slot, "idle", 1.0)
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 1.0)
    assert slot.births == []


def test_a_failed_type_gives_its_jobs_back_and_blocks_no_other_f75() -> None:
    core = make_core({"sha": AgentType(command=("agent",)), "mime": AgentType(command=("agent",))})
    turn(core, claim(1))
    starts(core, [0.0] * 10)
    rows = [row for request in settle(core) for row in getattr(request, "rows", ()) if getattr(row, "pk", 0) == 1]
    assert [row.state for row in rows] == ["queued"]
    core.handle(e.Woken(), 0.0)
    request = turn(core, claim(2, "mime"))
    assert {want.type for want in request.wants} <= {"mime"}
    assert len(spawned(core)) == 1
