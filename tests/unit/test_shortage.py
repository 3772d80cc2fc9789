"""Claims about a machine that has no descriptor, process or memory for one more agent: no job is charged for that."""

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType
from scheduler.model.states import NEVER, ST_RUNNING
from scheduler.policy.core import Core
from scheduler.policy.deadlines import SHORTAGE
from tests.core_tools import claim, make_core, ready, saved, settle, spawned, turn

RUN = {"run": AgentType(command=("run",), kind="exec", slots=8)}
WHY = "agent 'run': cannot start 'run': Too many open files (errno 24); raise LimitNOFILE of the scheduler"


def refuse(core: Core, numbers: list[int], now: float = 0.0) -> None:
    """Let the machine start none of these."""
    for number in numbers:
        core.handle(e.NotCreated(number, WHY, is_machines_fault=True), now)


def begin(core: Core, numbers: list[int], now: float = 0.0) -> None:
    for number in numbers:
        core.handle(e.Created(number, 100 + number), now)


def short_of(core: Core, running: int) -> list[int]:
    """Let the machine start so many of six jobs; return their slots."""
    turn(core, *(claim(pk, "run") for pk in range(1, 7)))
    numbers = spawned(core)
    begin(core, numbers[:running])
    refuse(core, numbers[running:])
    return numbers[:running]


def test_a_job_whose_process_the_machine_cannot_start_waits_and_is_done_later() -> None:
    core = make_core(RUN)
    turn(core, claim(1, "run", timeout=5.0))
    refuse(core, spawned(core))
    core.tick(1.0)
    (number,) = spawned(core)
    begin(core, [number], 1.0)
    core.handle(e.Gone(number, code=0), 5.5)
    (row,) = [row for request in settle(core, 5.5) if isinstance(request, r.EndAndClaim) for row in request.ends]
    assert row.pk == 1


def test_a_start_that_the_machine_refuses_counts_against_no_slot() -> None:
    core = make_core(RUN, respawn_count=0)
    turn(core, claim(1, "run"))
    refuse(core, spawned(core))
    assert {(slot.state, tuple(slot.starts)) for slot in core.state.slots.all} == {(1, ())}
    assert core.state.pools["run"].failed_starts == {}


def test_no_agent_is_added_until_a_pause_is_over() -> None:
    core = make_core(RUN)
    short_of(core, 2)
    assert (spawned(core), core.state.deadlines.at[SHORTAGE]) == ([], 1.0)
    core.tick(1.0)
    assert len(spawned(core)) == 4


def test_an_agent_that_ends_lets_the_next_begin_at_once() -> None:
    core = make_core(RUN)
    running = short_of(core, 2)
    core.handle(e.Gone(running[0], code=0), 0.5)
    assert len(spawned(core)) == 1


@pytest.mark.parametrize(("tries", "pause"), [(1, 1.0), (2, 2.0), (5, 16.0), (9, 30.0)])
def test_each_try_that_fails_doubles_the_pause(tries: int, pause: float) -> None:
    core = make_core(RUN)
    short_of(core, 2)
    host = core.state.hosts["alpha"]
    for _ in range(tries - 1):
        now = host.tried_again_at
        core.tick(now)
        refuse(core, spawned(core), now)
    assert host.pause == pause


def test_one_more_running_agent_than_before_ends_the_shortage() -> None:
    core = make_core(RUN)
    short_of(core, 2)
    core.tick(1.0)
    begin(core, spawned(core), 1.0)
    host = core.state.hosts["alpha"]
    assert (host.shortage, host.pause, host.most) == (None, 0.0, NEVER)
    assert sum(slot.state == ST_RUNNING for slot in core.state.slots.all) == 6


def test_a_job_that_the_machine_cannot_start_does_not_delay_a_drain() -> None:
    core = make_core(RUN)
    turn(core, claim(1, "run"))
    numbers = spawned(core)
    core.handle(e.Drain(), 0.0)
    refuse(core, numbers)
    assert [(row.pk, row.state, bool(row.interruptions)) for row in saved(settle(core))] == [(1, "queued", False)]


def test_a_killed_job_whose_process_cannot_start_ends_killed() -> None:
    core = make_core(RUN)
    turn(core, claim(1, "run"))
    numbers = spawned(core)
    core.kill(1, "killed", 0.0)
    refuse(core, numbers)
    assert [(row.pk, row.state) for row in saved(settle(core))] == [(1, "failed")]


def test_why_names_the_shortage() -> None:
    core = make_core(RUN)
    short_of(core, 2)
    told = f"host alpha cannot start more than 2 agents, tried again within 1 s: {WHY}"
    assert [row["reason"] for row in core.report.agent_rows(0.0)] == [told]
    assert "cannot start more than 2 agents" in core.report.scheduler_row(1, "serving", 1.0, {}, {})["parameter"]


# ---- what the daemon is doing


def test_the_status_of_a_daemon_that_steps_down_says_so() -> None:
    core = make_core()
    ready(core, claim(1))
    assert core.step_down(1.0)
    assert core.report.scheduler_row(1, "serving", 1.0, {}, {})["name"] == "stepping down"
