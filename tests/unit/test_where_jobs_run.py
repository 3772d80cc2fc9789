"""What rows say of where a job runs, and the one line that the log of a job gets of an interruption."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.queue_requests import EndAndClaim, Mark, Request
from scheduler.policy.core import Core
from tests.core_tools import answer_to, claim, logged, make_core, ready, saved, settle, spawned, turn

FAR = {"beta": Host(transport="ssh", address="beta")}
EXEC: dict[str, Any] = {"sha": AgentType(command=("agent",), kind="exec")}


def far_core(kinds: dict[str, AgentType] | None = None) -> Core:
    """Return a core whose one host is reached over SSH."""
    core = make_core(kinds, hosts=FAR)
    core.handle(e.HostUp("beta"), 0.0)
    return core


def marks(requests: list[Request]) -> list[tuple[str, str | None, int | None]]:
    """Return state, host and pid of the marks in these requests."""
    return [(row.state, row.host, row.pid) for request in requests if isinstance(request, Mark) for row in request.rows]


def after(core: Core, now: float) -> list[tuple[str, str | None, int | None]]:
    """Let a moment pass; return the marks."""
    core.tick(now)
    return marks(settle(core, now))


def test_row_of_a_job_that_is_worked_says_where_f45() -> None:
    core = make_core()
    ready(core, claim(1))
    assert after(core, 0.1) == [("running", "alpha", 100)]


def test_row_of_a_job_without_an_agent_says_no_host() -> None:
    core = make_core()
    turn(core, claim(1))
    assert after(core, 0.6) == [("claimed", None, None)]


def test_row_of_a_query_names_none_of_its_agents() -> None:
    core = make_core()
    turn(core, claim(1, msq=True))
    core.handle(e.Opened(1, (b"a",), 1), 0.0)
    core.handle(e.Fetched(1, [(b"x",)], more=False), 0.0)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)
    assert after(core, 0.1) == [("running", None, None)]


def test_row_of_a_rescued_job_says_where_once_an_agent_has_it() -> None:
    core = make_core()
    turn(core, claim(1, rescued=1))
    first = marks(settle(core))
    core.schedule(0.0)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)
    assert (first, after(core, 0.1)) == ([("running", None, None)], [("running", "alpha", 100)])


def refuse_mark(core: Core, now: float) -> None:
    """Let the core ask until it marks a row, which the database refuses for good."""
    while not isinstance(request := core.next_request(now), Mark):
        assert request is not None
        core.handle(answer_to(request), now)
    core.handle(e.NotSaved("data", "a trigger refuses"), now)


def test_a_rescued_job_whose_row_cannot_be_marked_fails_with_the_reason() -> None:
    core = make_core()
    turn(core, claim(1, rescued=1))
    refuse_mark(core, 0.0)
    (row,) = saved(settle(core))
    assert (row.state, row.text) == ("failed", "its row cannot be shown as running: a trigger refuses")
    assert core.state.jobs == {}


def test_a_job_at_work_whose_row_cannot_be_marked_goes_on() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.tick(0.1)
    refuse_mark(core, 0.1)
    core.agent_output(slot.number, b"OK\n", 0.2)
    requests = settle(core, 1.0)
    assert [end.pk for each in requests if isinstance(each, EndAndClaim) for end in each.ends] == [1]


def test_row_of_a_command_says_running_once_its_process_is_made() -> None:
    core = far_core(EXEC)
    turn(core, claim(1))
    (number,) = spawned(core)
    shown = [after(core, now) for now in (0.1, 0.2)]
    core.handle(e.Created(number, 100), 0.22)
    shown.append(after(core, 0.28))
    assert shown == [[], [], [("running", "beta", 100)]]


def test_a_row_is_marked_once_while_its_agent_works() -> None:
    core = make_core(EXEC)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.01)
    shown = [after(core, now) for now in (0.1, 0.7, 2.0)]
    assert shown == [[("running", "alpha", 100)], [], []]


def test_a_rescued_job_that_was_put_back_says_where_it_runs_now() -> None:
    core = make_core(EXEC, hosts={"alpha": Host(), "gamma": Host()})
    turn(core, claim(1, rescued=1))
    settle(core)
    (first,) = spawned(core)
    core.handle(e.NotCreated(first, "no memory", is_machines_fault=True), 0.02)
    (other,) = spawned(core)
    core.handle(e.Created(other, 101), 0.02)
    assert after(core, 0.1) == [("running", core.state.slots.all[other].host.name, 101)]
    assert other != first


def test_progress_of_a_job_says_where_it_runs() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    after(core, 0.1)
    core.take_effects(0.1)
    core.agent_output(slot.number, b"ItemsProcessed 5\n", 0.2)
    core.tick(2.0)
    (row,) = saved(settle(core, 2.0))
    assert (row.state, row.processed, row.host, row.pid) == ("running", 5, "alpha", 100)


@pytest.mark.parametrize("kinds", [None, EXEC], ids=["line", "exec"])
def test_the_loss_of_a_host_is_one_line_in_the_log_of_the_job_c56(kinds: dict[str, AgentType] | None) -> None:
    core = far_core(kinds)
    turn(core, claim(1, interruptions=1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n" if kinds is None else b"", 0.0)
    core.take_effects(0.0)
    core.handle(e.Gone(number, lost=True, why="no answer for 16 s"), 1.0)
    why = "interrupted: the link to host beta was lost: no answer for 16 s; queued again, interruption 2 of 3"
    assert logged(core) == [(1, "WARNING", why)]
    (row,) = core.state.outbox.logs
    assert (row.host, row.agent, row.pid) == ("beta", "sha", 100)


def test_a_start_that_is_lost_with_its_host_is_one_line_in_the_log_of_the_job() -> None:
    core = far_core(EXEC)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.NotCreated(number, "host beta: no session", lost=True), 1.0)
    assert logged(core) == [(1, "WARNING", "interrupted: host beta: no session; queued again, interruption 1 of 3")]


def test_an_item_that_is_lost_with_its_host_is_one_line_in_the_log_of_the_job() -> None:
    core = far_core()
    turn(core, claim(1, msq=True))
    core.handle(e.Opened(1, (b"a",), 1), 0.0)
    core.handle(e.Fetched(1, [(b"x",)], more=False), 0.0)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    core.handle(e.Gone(number, lost=True, why="cut"), 1.0)
    why = 'interrupted: the link to host beta was lost: cut; the item is tried again: a="x"'
    assert logged(core) == [(1, "WARNING", why)]


def test_a_query_that_loses_its_connection_tells_so_in_the_log_of_the_job() -> None:
    core = make_core()
    turn(core, claim(1, msq=True))
    core.handle(e.NotExpanded(1, "the connection was lost", interrupted=True, again=True), 1.0)
    why = "interrupted: the connection was lost; queued again, interruption 1 of 3"
    assert logged(core) == [(1, "WARNING", why)]
