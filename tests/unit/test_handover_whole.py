"""Everything that a core knows goes to the next program: what it says to that is written again, and it acts alike."""

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.queue_requests import Mark
from scheduler.model.states import DIE, ST_FAIL, ST_FREEING, ST_READY
from scheduler.policy.core import Core
from tests.core_tools import claim, make_core, ready, saved, sent, settle, spawned, turn
from tests.unit.test_handover import handed_over, query_core, row
from tests.unit.test_programs import NEW, Site

FAR = {"beta": Host(transport="ssh", address="beta")}
WINDOW = AgentType(command=("agent",), window=4)


def dumped(core: Core, now: float) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(core.document(now)))
    return document


# ---- cores with something special in hand
def at_trial() -> Core:
    """A new program is tried in one slot, which has done an item."""
    site = Site()
    site.work(*range(1, 31))
    site.find(NEW)
    site.begin(*range(31, 40))
    site.step()
    site.step()
    return site.core


def with_second_try() -> Core:
    """An item whose agent died waits for a fresh process, and another has failed."""
    core = query_core("n", 4, 4)
    core.agent_output(0, b"FAIL a\nOK\n", 1.0)
    core.take_effects(1.0)
    core.hold(2.0)
    core.handle(e.Gone(0, code=1), 2.0)
    return core


def with_bound_second_try() -> Core:
    """An item that is bound to its host waits for a fresh process after its host was lost."""
    core = make_core(hosts={"alpha": Host(), **FAR})
    core.handle(e.HostUp("beta"), 0.0)
    turn(core, claim(1, msq=True, runonpfile="at"))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n", b"at"), 2), 0.0)
    core.handle(e.Fetched(1, [(b"1", b"beta"), (b"2", b"beta")], more=False), 0.0)
    for number in spawned(core):
        core.handle(e.Created(number, 100 + number), 0.0)
        core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    core.hold(1.0)
    for slot in core.state.slots.all:
        if slot.job is not None:
            core.handle(e.Gone(slot.number, lost=True), 1.0)
    return core


def with_unfinished_output() -> Core:
    """An agent has printed the beginning of lines, on both streams, and more than its limit; a DB: line waits."""
    core = make_core({"sha": AgentType(command=("agent",), db="sql", output_limit=8)})
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.handle(e.Clogged(slot.number), 0.5)
    core.agent_output(slot.number, b"LOG one two three\nLOG four\nItemsProcessed 3\nDB: select 1;\nERR", 1.0)
    core.agent_stderr(slot.number, b"Trace", 1.0)
    settle(core, 1.0)
    core.take_effects(1.0)
    return core


def before_first_ok() -> Core:
    """An agent has printed something in place of its first OK."""
    core = make_core()
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"Ok\n", 0.5)
    return core


def with_lines_ahead() -> Core:
    """An agent has lines behind the one that it works on."""
    core = make_core({"sha": WINDOW})
    slot = ready(core, *[claim(pk) for pk in range(1, 7)])
    core.take_effects(0.0)
    assert slot.prefetched
    core.agent_output(slot.number, b"OK\n", 0.5)
    core.take_effects(0.5)
    return core


def killed() -> Core:
    """A job was killed, and its agent has not ended yet."""
    core = make_core()
    ready(core, claim(1))
    core.take_effects(0.0)
    core.kill(1, "killed by a", 1.0)
    core.take_effects(1.0)
    return core


def starved() -> Core:
    """An agent ends after its item, since its type has another command."""
    core = make_core()
    ready(core, claim(1))
    core.take_effects(0.0)
    kinds = {"sha": AgentType(command=("other",))}
    core.handle(e.Reloaded(attrs.evolve(core.config, agents=kinds)), 1.0)
    core.take_effects(1.0)
    return core


def failed() -> Core:
    """The slots of a type have failed."""
    core = make_core(respawn_count=1)
    turn(core, claim(1))
    for _ in range(2):
        (number,) = spawned(core)
        core.handle(e.Created(number, 100), 0.0)
        core.handle(e.Gone(number, code=1), 0.0)
    settle(core)
    core.take_effects(0.0)
    return core


def on_probation() -> Core:
    """A start has failed, and one more is under way."""
    core = make_core()
    turn(core, claim(1))
    for _ in range(2):
        core.tick(0.5)
        for number in spawned(core, 0.5):
            core.handle(e.Created(number, 100), 0.0)
            if core.state.slots.all[number].spawns == 1:
                core.handle(e.Gone(number, code=1), 0.0)
    core.take_effects(0.5)
    assert core.state.hosts["alpha"].probe is not None
    return core


def short_of_processes() -> Core:
    """The machine could start no more agents."""
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1), claim(2))
    first, second = spawned(core)
    core.handle(e.Created(first, 100), 0.0)
    core.handle(e.NotCreated(second, "no process", is_machines_fault=True), 0.0)
    core.take_effects(0.0)
    return core


def with_tokens() -> Core:
    """A type has given out as many items as its rate allows now."""
    core = make_core({"sha": AgentType(command=("agent",), item_rate=0.01)})
    slot = ready(core, claim(1), claim(2), claim(3))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 0.1)
    core.take_effects(0.1)
    return core


def with_told_job() -> Core:
    """An agent has said why its item fails, and its job has a result, a time limit and a mark."""
    core = make_core()
    slot = ready(core, claim(1, timeout=60.0, variables={"a": "1"}, variables_json='{"a": "1"}'))
    core.take_effects(0.0)
    core.agent_output(slot.number, b'RESULT {"a": 1}\nERROR bad\nFAIL! for good\nBLOCKED disc\n', 0.5)
    core.tick(1.0)
    settle(core, 1.0)
    core.take_effects(1.0)
    return core


def with_ends_to_count() -> Core:
    """Jobs were done that are not counted yet, and a Success."""
    core = make_core()
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"Success\nOK\n", 3.0)
    core.take_effects(3.0)
    settle(core, 3.0)
    return core


def that_reads_answers() -> Core:
    """An agent has asked the database once, so that no line is sent ahead to it."""
    core = make_core({"sha": AgentType(command=("agent",), window=4, db="sql")})
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"DB: select 1;\n", 0.5)
    core.handle(e.StatementAnswered(slot.number, slot.serial, b"1\n"), 0.5)
    core.take_effects(0.5)
    return core


CORES = [
    at_trial, with_second_try, with_bound_second_try, with_unfinished_output, before_first_ok, with_lines_ahead, killed,
    starved, failed, on_probation, short_of_processes, with_told_job, with_ends_to_count,
    that_reads_answers,
]  # fmt: skip


@pytest.mark.parametrize("make", CORES, ids=lambda make: make.__name__)
def test_a_core_goes_on_as_the_one_before_whatever_it_has_in_hand(make: Callable[[], Core]) -> None:
    core = make()
    document = dumped(core, 50.0)
    again = Core.restored(document, core.config, 50.0)
    assert dumped(again, 50.0) == document


@pytest.mark.parametrize("make", CORES, ids=lambda make: make.__name__)
def test_deadlines_of_slots_and_jobs_are_set_for_the_next_program(make: Callable[[], Core]) -> None:
    core = make()
    again = handed_over(core, 50.0)
    assert again.state.deadlines.at["slots"] == min(slot.deadline for slot in again.state.slots.all)
    limits = [job.deadline for job in again.state.jobs.values()]
    assert again.state.deadlines.at["time limits"] == min(limits, default=again.state.deadlines.at["time limits"])


# ---- what the next program does with it
def test_a_killed_agent_is_killed_by_force_by_the_next_program() -> None:
    core = handed_over(killed(), 2.0)
    slot = core.state.slots.all[0]
    assert (slot.state, slot.wanted, slot.reason) == (ST_FREEING, DIE, "killed by a")
    core.tick(slot.deadline)
    assert e.ForceKill(0) in core.take_effects(slot.deadline)
    core.handle(e.Gone(0, signal="SIGKILL"), slot.deadline)
    assert [(end.state, end.text) for end in saved(settle(core, slot.deadline))] == [("failed", "killed by a")]


def test_an_agent_that_is_to_end_gets_no_item_from_the_next_program() -> None:
    core = handed_over(starved(), 2.0)
    turn(core, claim(2), now=2.0)
    assert core.agent_output(0, b"OK\n", 3.0) is None
    assert e.Kill(0) in core.take_effects(3.0)


def test_failed_slots_rest_on() -> None:
    core = handed_over(failed(), 1.0)
    assert [slot.state for slot in core.state.slots.all] == [ST_FAIL]
    assert "agent terminated prematurely" in str(core.report.agent_rows(1.0)[0]["reason"])


def test_the_second_try_of_an_item_is_alone_in_a_fresh_process_of_the_next_program() -> None:
    core = handed_over(with_second_try(), 3.0)
    (number,) = spawned(core, 3.0)
    core.handle(e.Created(number, 101), 3.0)
    core.agent_output(number, b"OK\n", 3.0)
    assert sent(core, 3.0) == [b'n="2"\n']
    assert core.state.slots.all[number].is_second_try


def test_an_agent_that_waits_for_work_gets_it_from_the_next_program() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 1.0)
    settle(core, 1.0)
    core.take_effects(1.0)
    after = handed_over(core, 2.0)
    assert after.state.slots.all[0].state == ST_READY
    turn(after, claim(2), now=2.0)
    assert sent(after, 2.0) == [b"item 2\n"]


def test_lines_that_an_agent_has_ahead_are_its_next_items() -> None:
    core = handed_over(with_lines_ahead(), 2.0)
    slot = core.state.slots.all[0]
    assert slot.job is not None
    assert slot.prefetched is not None
    had = [slot.job.pk, *(job.pk for job, *_ in slot.prefetched)]
    for _ in had:
        core.agent_output(0, b"OK\n", 3.0)
    ended = [end.pk for request in settle(core, 3.0) for end in getattr(request, "ends", ())]
    assert ended == had


def test_the_last_words_of_an_agent_go_on_after_a_handover() -> None:
    core = handed_over(with_unfinished_output(), 2.0)
    core.agent_stderr(0, b"back\n", 2.0)
    core.take_effects(2.0)
    assert core.state.slots.all[0].output.error_about(core.state.slots.all[0].total) == "Traceback"


def test_a_statement_that_waits_is_run_once_by_the_next_program() -> None:
    core = handed_over(with_unfinished_output(), 2.0)
    core.handle(e.Unclogged(0), 2.0)
    core.handle(e.Unclogged(0), 2.0)
    statements = [effect.text for effect in core.take_effects(2.0) if isinstance(effect, e.RunStatement)]
    assert statements == [b"select 1;"]


def test_a_type_gives_out_no_item_before_its_rate_allows_one_after_a_handover() -> None:
    core = handed_over(with_tokens(), 0.2)
    core.tick(99.0)
    assert sent(core, 99.0) == []
    core.tick(101.0)
    assert sent(core, 101.0) == [b"item 2\n"]


def test_ends_that_are_not_counted_yet_are_counted_by_the_next_program() -> None:
    core = with_ends_to_count()
    before = handed_over(core, 4.0).report.take_counted()
    after = core.report.take_counted()
    ends = {key: count for key, count in after.items() if key[0] in ("ended", "ended_plainly", "worked")}
    assert ends.items() <= before.items()
    assert ends


def test_a_host_that_could_start_no_more_is_tried_again_by_the_next_program() -> None:
    core = handed_over(short_of_processes(), 0.1)
    again = core.state.hosts["alpha"].tried_again_at
    core.tick(0.1)
    assert (spawned(core, 0.1), core.state.deadlines.at["shortage"]) == ([], again)
    core.tick(again)
    assert len(spawned(core, again)) == 1


def test_a_new_row_is_fetched_behind_those_that_the_program_before_had() -> None:
    core = handed_over(query_core("n", 4), 1.0)
    core.handle(e.Opened(1, (b"n",), 6), 1.0)
    core.handle(e.Fetched(1, [row(n) for n in range(5, 11)], False), 1.0)
    query = core.state.jobs[1].query
    assert query is not None
    assert query.total == 10


def test_a_job_that_began_just_before_a_handover_is_marked_by_the_next_program() -> None:
    core = make_core()
    ready(core, claim(1))
    core.take_effects(0.0)
    after = handed_over(core, 0.01)
    after.tick(1.0)
    marks = [request.rows for request in settle(after, 1.0) if isinstance(request, Mark)]
    assert [(mark.pk, mark.state, mark.pid) for rows in marks for mark in rows] == [(1, "running", 100)]
