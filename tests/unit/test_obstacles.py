"""What keeps another program from taking over, what is given back or killed for it, and what goes on if none does."""

from typing import Any

import attrs
import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.model.queue_requests import Adoption
from scheduler.policy.core import Core
from scheduler.policy.handover import CARRIED_BYTES
from tests.core_tools import claim, make_core, ready, saved, settle, spawned, turn
from tests.unit.test_handover import query_core

EXEC = AgentType(command=("run",), kind="exec")
DETACHED = AgentType(command=("run",), kind="exec", detached=True)


def effects(core: Core, kind: type, now: float = 1.0) -> list[Any]:
    return [effect for effect in core.take_effects(now) if isinstance(effect, kind)]


def test_rows_that_are_on_their_way_are_an_obstacle() -> None:
    core = make_core()
    core.state.receive(True)
    assert core.obstacle() == "claimed rows are on their way"


def test_a_statement_that_runs_is_an_obstacle() -> None:
    core = make_core({"sha": AgentType(command=("agent",), db="sql")})
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"DB: select 1;\n", 0.0)
    core.take_effects(0.0)
    assert core.obstacle() == "slot 0, agent sha: a statement of it is running"
    core.handle(e.StatementAnswered(0, slot.serial, b"1\n"), 1.0)
    core.take_effects(1.0)
    assert core.obstacle() == ""


def test_a_line_that_is_not_sent_yet_is_an_obstacle() -> None:
    core = make_core()
    ready(core, claim(1))
    assert core.obstacle() == "slot 0, agent sha: its line is not sent yet"
    core.take_effects(0.0)
    assert core.obstacle() == ""


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ({"md5": EXEC}, "slot 0, agent sha: it is of a configuration of before"),
        ({"sha": EXEC}, "slot 0, agent sha: it is of a configuration of before"),
    ],
)
def test_an_agent_of_a_configuration_of_before_is_an_obstacle(kinds: dict[str, AgentType], why: str) -> None:
    core = make_core()
    ready(core, claim(1))
    core.take_effects(0.0)
    core.handle(e.Reloaded(attrs.evolve(core.config, agents=kinds)), 0.0)
    core.take_effects(0.0)
    assert core.obstacle() == why


def test_a_line_ahead_of_a_job_that_was_killed_is_an_obstacle() -> None:
    core = make_core({"sha": AgentType(command=("agent",), window=4)})
    slot = ready(core, *[claim(pk) for pk in range(1, 5)])
    core.take_effects(0.0)
    assert slot.prefetched
    ahead = slot.prefetched[0][0]
    del core.state.jobs[ahead.pk]
    assert core.obstacle() == "slot 0, agent sha: it has a line of a job that is not in hand any more"


def test_a_process_that_is_attached_to_a_detached_job_is_an_obstacle_until_it_was_let_go() -> None:
    core = make_core({"long": DETACHED})
    core.handle(e.Adopted("site", "/spool", [Adoption(claim(1, "long"), "alpha", "/spool", 1, "", 0.0)]), 0.0)
    core.handle(e.Created(effects(core, e.Spawn)[0].slot, 100), 0.0)
    core.hold(1.0)
    assert core.obstacle() == "processes attached to detached jobs are ending"
    core.handle(e.Gone(0, signal="SIGUSR1"), 1.0)
    core.take_effects(1.0)
    assert core.obstacle() == ""


@pytest.mark.parametrize(("kind", "asks"), [(DETACHED, True), (EXEC, False)])
def test_detached_jobs_are_looked_for_when_no_program_takes_over(kind: AgentType, asks: bool) -> None:
    core = make_core({"long": kind})
    core.hold(0.0)
    core.release()
    assert bool(effects(core, e.FindDetached)) is asks


# ---- long queries
def long_query(*, fetched: int, left_bytes: int, **how: Any) -> Core:
    """Return a core with a query without a key, of which rows of so many bytes are left."""
    core = query_core(how.get("key"), fetched, total=fetched + 1)
    query = core.state.jobs[1].query
    assert query is not None
    query.total = query.fetched + left_bytes // 4
    query.line_bytes = 4.0
    return core


@pytest.mark.parametrize(("more", "is_long"), [(0, False), (4, True)])
def test_a_query_without_a_key_is_too_long_if_more_is_left_than_a_document_may_hold(more: int, is_long: bool) -> None:
    core = long_query(fetched=2, left_bytes=CARRIED_BYTES + more)
    assert (core.unfinished_query() is not None) is is_long


def test_a_query_with_a_key_or_without_rows_yet_is_never_too_long() -> None:
    assert long_query(fetched=2, left_bytes=2 * CARRIED_BYTES, key="n").unfinished_query() is None
    core = make_core()
    turn(core, claim(1, msq=True))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n",), 10**9), 0.0)
    assert core.unfinished_query() is None


def test_a_query_all_of_whose_rows_are_fetched_is_not_too_long() -> None:
    core = query_core(None, 3, 3)
    query = core.state.jobs[1].query
    assert query is not None
    query.total = 10**9
    assert core.unfinished_query() is None


def test_a_long_query_is_killed_and_given_back_if_another_program_takes_over_all_the_same() -> None:
    core = long_query(fetched=2, left_bytes=2 * CARRIED_BYTES)
    core.give_back_unmovable(1.0)
    assert effects(core, e.Kill) == [e.Kill(0)]
    core.handle(e.Gone(0, signal="SIGHUP"), 2.0)
    assert [(each.state, each.outcome) for each in saved(settle(core, 2.0))] == [("queued", "given back")]


def test_a_command_that_runs_is_killed_and_given_back_and_an_agent_goes_on() -> None:
    core = make_core({"sha": AgentType(command=("agent",)), "run": EXEC})
    turn(core, claim(1), claim(2, "run"), claim(3, "run"))
    for number in spawned(core):
        core.handle(e.Created(number, 100), 0.0)
        if not core.state.slots.all[number].pool.is_exec:
            core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    core.give_back_unmovable(1.0)
    assert [core.state.slots.all[kill.slot].pool.name for kill in effects(core, e.Kill)] == ["run"]
    assert sorted(core.state.jobs) == [1, 2, 3]
    (number,) = [slot.number for slot in core.state.slots.all if slot.job is not None and slot.job.pk == 2]
    core.handle(e.Gone(number, signal="SIGHUP"), 2.0)
    assert [(each.pk, each.state) for each in saved(settle(core, 2.0))] == [(2, "queued")]


# ---- who may be left
def test_idle_agents_are_those_that_wait_for_work_with_nothing_in_hand() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1), claim(2))
    for number in spawned(core):
        core.handle(e.Created(number, 100), 0.0)
    assert (core.idle_slots(), core.slots_that_came_up()) == ([], set())
    for number in (0, 1):
        core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    core.agent_output(1, b"OK\n", 1.0)
    core.take_effects(1.0)
    assert (core.idle_slots(), core.slots_that_came_up()) == ([1], {0, 1})
    core.kill(1, "by a", 2.0)
    assert core.slots_that_came_up() == {1}
