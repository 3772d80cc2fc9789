"""What drover.log has of what agents say and of how they die: each thing once, and about the job that it concerns."""

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType
from scheduler.policy.core import Core
from tests.core_tools import answer_to, claim, logged, make_core, ready, settle, spawned, turn

NO_ITEM = "without an item in hand: it is to come between the line of the item and its OK"
DISABLED = [{"type": "sha", "enabled": False}]


def query(core: Core, rows: int, **rules: object) -> int:
    """Take a query of so many rows in hand, with one agent that is at work; return its slot."""
    turn(core, claim(1, msq=True, **rules))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n",), rows), 0.0)
    core.handle(e.Fetched(1, [(b"%d" % n,) for n in range(rows)], more=False), 0.0)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    return number


def errors(core: Core) -> list[tuple[int | None, str]]:
    """Return (job, message) of the errors that wait for drover.log."""
    return [(job, message) for job, kind, message in logged(core) if kind == "ERROR"]


@pytest.mark.parametrize("line", ["FAIL too late", "BLOCKED tape", 'RESULT {"a": 1}', "ItemsProcessed 5"])
def test_what_is_said_of_an_item_behind_its_ok_is_a_warning_and_changes_nothing(line: str) -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, f"OK\n{line}\n".encode(), 0.0)
    assert logged(core) == [(1, "WARNING", f"{line.split()[0]} {NO_ITEM}")]
    ((end,),) = [request.ends for request in settle(core) if isinstance(request, r.EndAndClaim) and request.ends]
    assert (end.pk, slot.failed, slot.blocked) == (1, None, None)


@pytest.mark.parametrize("line", ["FAIL too late", "BLOCKED tape", 'RESULT {"a": 1}', "ItemsProcessed 5"])
def test_what_is_said_of_an_item_behind_its_ok_is_not_of_the_next_one(line: str) -> None:
    core = make_core()
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    core.agent_output(slot.number, f"OK\n{line}\n".encode(), 0.0)
    assert logged(core) == [(1, "WARNING", f"{line.split()[0]} {NO_ITEM}")]
    assert (slot.job.pk, slot.failed, slot.blocked, slot.counted) == (2, None, None, None)


@pytest.mark.parametrize(("text", "column"), [("nonsense", 1), ('{"a": nonsense}', 7), ("[1, 2", 6), ("1 2", 3)])
def test_warning_of_a_result_that_is_not_json_names_the_column_in_its_text(text: str, column: int) -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, f"RESULT {text}\n".encode(), 0.0)
    ((_, kind, message),) = logged(core)
    assert kind == "WARNING"
    assert f"line 1 column {column} " in message


def test_fail_of_a_one_parameter_job_is_logged_once_with_its_process() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"FAIL no such file\nOK\n", 0.0)
    (row,) = core.state.outbox.logs
    assert row == (1, "ERROR", "alpha", "sha", 100, "no such file")


def test_why_a_job_failed_is_in_the_log_before_its_row_has_ended() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    settle(core)
    core.agent_output(slot.number, b"LOG first\n", 0.0)
    request = core.next_request(0.0)
    assert isinstance(request, r.WriteLog)  # the next request about logs lets others go first
    core.handle(answer_to(request), 0.0)
    core.agent_output(slot.number, b"FAIL no such file\nOK\n", 0.0)
    kinds = [type(request) for request in settle(core) if isinstance(request, r.WriteLog | r.Save)]
    assert kinds == [r.WriteLog, r.Save]


def test_fail_of_an_item_of_a_query_is_logged_once() -> None:
    core = make_core()
    number = query(core, 1, tolerate=1)
    core.agent_output(number, b"FAIL no such file\nOK\n", 0.0)
    assert errors(core) == [(1, 'item failed: no such file: n="0"')]


def test_every_reason_of_an_item_that_says_fail_twice_is_logged() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"FAIL first\nFAIL second\nOK\n", 0.0)
    assert errors(core) == [(1, "FAIL first"), (1, "second")]


def test_blocked_is_logged_once() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"BLOCKED tape none\nOK\n", 0.0)
    assert [message for _, _, message in logged(core)] == ["blocked: tape none"]


def test_death_of_the_agent_of_a_one_parameter_job_is_logged_once() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.handle(e.Gone(slot.number, 3, None), 0.0)
    assert errors(core) == [(1, "agent terminated prematurely, with exit status 3")]


def test_breach_of_the_protocol_is_logged_once() -> None:
    core = make_core(line_limit=10)
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"x" * 11 + b"\n", 0.0)
    core.handle(e.Gone(slot.number, None, "SIGKILL"), 0.0)
    assert errors(core) == [(1, "protocol violation: line over 10 bytes; killed")]


def test_output_before_the_first_ok_is_logged_with_the_job_the_agent_was_started_for() -> None:
    core = make_core()
    turn(core, claim(7))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_stderr(number, b"no module named foo\n", 0.0)
    core.agent_output(number, b"LOG loading\n", 0.0)
    core.handle(e.Gone(number, 1, None), 0.0)
    died = "agent terminated prematurely, with exit status 1"
    assert logged(core) == [(7, "STDERR", "no module named foo"), (7, "LOG", "loading"), (7, "ERROR", died)]


def test_second_ok_read_later_is_logged_with_the_job_the_first_one_ended() -> None:
    core = make_core()
    slot = ready(core, claim(7))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 0.0)
    core.agent_output(slot.number, b"OK\n", 0.1)
    assert errors(core) == [(7, "protocol violation: OK in ST_READY; killed")]


@pytest.mark.parametrize("waiting", [(), (8,)])
def test_second_ok_in_one_read_is_logged_with_the_job_the_first_one_ended(waiting: tuple[int, ...]) -> None:
    core = make_core()
    slot = ready(core, claim(7), *map(claim, waiting))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\nOK\n", 0.0)
    ((job, message),) = errors(core)
    assert job == 7
    assert message.startswith("protocol violation: OK")


def test_death_of_an_idle_agent_is_not_logged_with_its_last_job() -> None:
    core = make_core()
    slot = ready(core, claim(7))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 0.0)
    core.handle(e.Gone(slot.number, 1, None), 1.0)
    assert errors(core) == [(None, "agent terminated prematurely, with exit status 1")]


# ---- a type that is disabled


def killed(core: Core) -> list[int]:
    """Return the slots whose agents are told to exit."""
    return [effect.slot for effect in core.take_effects(0.0) if isinstance(effect, e.Kill)]


def test_idle_agent_of_a_type_that_is_disabled_is_ended() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 0.0)
    core.handle(e.TablesRead([], [], DISABLED, []), 0.0)
    assert killed(core) == [slot.number]


def test_busy_agent_of_a_type_that_is_disabled_is_ended_after_its_item() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.handle(e.TablesRead([], [], DISABLED, []), 0.0)
    assert killed(core) == []
    core.agent_output(slot.number, b"OK\n", 0.0)
    assert killed(core) == [slot.number]
    assert [end.pk for request in settle(core) if isinstance(request, r.EndAndClaim) for end in request.ends] == [1]


def test_agent_that_was_starting_when_its_type_was_disabled_is_ended() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=1)})
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.take_effects(0.0)
    core.handle(e.TablesRead([], [], DISABLED, []), 0.0)
    assert killed(core) == [number]
