"""Claims about a program that is being written when an agent is to be started: that type waits, and no other."""

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.model.states import NEVER, NO_LIMIT, ST_FREE
from scheduler.policy.core import Core
from scheduler.policy.deadlines import ROOM
from tests.core_tools import claim, make_core, spawned, turn

WHY = "agent 'run': cannot start 'run': Text file busy (errno 26); it is being written"
TYPES = {
    "run": AgentType(command=("run",), kind="exec", slots=2),
    "other": AgentType(command=("other",), kind="exec", slots=2),
}


def refuse(core: Core, now: float = 0.0) -> int:
    """Let no process that was to be made be made; return how many there were."""
    numbers = spawned(core)
    for number in numbers:
        core.handle(e.NotCreated(number, WHY, is_busy=True), now)
    return len(numbers)


def test_other_types_of_the_host_start_meanwhile() -> None:
    core = make_core(TYPES)
    turn(core, claim(1, "run"))
    assert refuse(core) == 1
    core.tick(0.5)
    host = core.state.hosts["alpha"]
    assert (host.shortage, host.most) == (None, NO_LIMIT)
    assert [pool.name for pool in core.state.pools.values() if host.start_from(pool) <= 0.5] == ["other"]


@pytest.mark.parametrize(("tries", "pause"), [(1, 1.0), (2, 2.0), (5, 16.0), (9, 30.0)])
def test_the_type_is_tried_again_after_a_pause_that_doubles(tries: int, pause: float) -> None:
    core, now = make_core(TYPES), 0.0
    turn(core, claim(1, "run"), claim(2, "run"))
    assert refuse(core) == 2
    for _ in range(tries - 1):
        now = core.state.pools["run"].waits_until("alpha")
        core.tick(now)
        assert refuse(core, now) == 2
    core.tick(now)
    assert spawned(core) == []
    assert core.state.pools["run"].busy["alpha"].pause == pause
    assert core.state.deadlines.at[ROOM] == now + pause


def test_it_counts_against_no_slot() -> None:
    core = make_core(TYPES, respawn_count=0)
    turn(core, claim(1, "run"))
    refuse(core)
    assert {(slot.state, tuple(slot.starts)) for slot in core.state.slots.all} == {(ST_FREE, ())}
    assert core.state.pools["run"].failed_starts == {}


def test_a_start_ends_the_pauses() -> None:
    core = make_core(TYPES)
    turn(core, claim(1, "run"), claim(2, "run"))
    refuse(core)
    core.tick(1.0)
    for number in spawned(core):
        core.handle(e.Created(number, 100 + number), 1.0)
    assert core.state.pools["run"].waits_until("alpha") == -NEVER


def test_status_and_why_name_the_type_while_its_work_waits() -> None:
    core = make_core(TYPES)
    turn(core, claim(1, "run"))
    refuse(core)
    core.tick(0.0)
    told = f"{WHY}; tried again on host alpha within 1 s"
    assert [row["reason"] for row in core.report.agent_rows(0.0)] == [told, None]
    assert told in core.report.scheduler_row(1, "serving", 1.0, {}, {})["parameter"]
    core.kill(1, "killed", 0.5)
    core.tick(0.5)
    assert [row["reason"] for row in core.report.agent_rows(0.5)] == [None, None]
