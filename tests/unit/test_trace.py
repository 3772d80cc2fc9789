"""The trace of a job: what is one, what its agent gets, and which log lines have it."""

import json

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.model.trace_context import trace_environment, trace_id
from tests.core_tools import claim, make_core, ready, sent, settle, turn

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
EXEC = {"sha": AgentType(command=("agent",), kind="exec")}


def variables(**given: str) -> dict[str, object]:
    return {"variables": given, "variables_json": json.dumps(given)}


@pytest.mark.parametrize("parent", [PARENT, f"cc-{TRACE}-00f067aa0ba902b7-01", f"01-{TRACE}-00f067aa0ba902b7-01-more"])
def test_trace_is_read(parent: str) -> None:
    assert trace_id(parent) == TRACE


@pytest.mark.parametrize(
    "parent",
    [
        None, "", "x", PARENT.upper(), PARENT + "-more", PARENT + "\n", PARENT[:-1], "ff" + PARENT[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{TRACE}-{'0' * 16}-01", f"01-{TRACE}-00f067aa0ba902b7-01more",
    ],
)  # fmt: skip
def test_any_other_text_is_no_trace(parent: str | None) -> None:
    assert trace_id(parent) is None
    assert trace_environment({"traceparent": parent, "tracestate": "a=b"}) == {}


def test_command_has_the_trace_of_its_job_in_its_environment() -> None:
    core = make_core(EXEC)
    turn(core, claim(1, **variables(traceparent=PARENT, tracestate="a=b", other="c")))
    (spawn,) = [effect for effect in core.take_effects(0.0) if isinstance(effect, e.Spawn)]
    assert spawn.environment is not None
    own = {name: value for name, value in spawn.environment.items() if not name.startswith(b"DROVER_")}
    assert own == {b"TRACEPARENT": PARENT.encode(), b"TRACESTATE": b"a=b"}


def test_variable_that_is_no_trace_is_a_variable_only() -> None:
    core = make_core(EXEC)
    turn(core, claim(1, **variables(traceparent="mine")))
    (spawn,) = [effect for effect in core.take_effects(0.0) if isinstance(effect, e.Spawn)]
    assert spawn.environment is not None
    assert sorted(spawn.environment) == [b"DROVER_VARIABLES", b"DROVER_VAR_traceparent"]


def test_log_lines_about_a_job_have_its_trace() -> None:
    core = make_core()
    slot = ready(core, claim(1, **variables(traceparent=PARENT)))
    assert sent(core)
    core.agent_output(slot.number, b"FAIL no\nOK\n", 1.0)
    settle(core, 1.0)
    said = [effect.text for effect in core.take_effects(1.0) if isinstance(effect, e.LogMessage)]
    assert f"failed: no job=1 trace={TRACE} agent=sha" in said


def test_log_lines_about_a_job_without_a_trace_have_none() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    assert sent(core)
    core.agent_output(slot.number, b"FAIL no\nOK\n", 1.0)
    settle(core, 1.0)
    said = [effect.text for effect in core.take_effects(1.0) if isinstance(effect, e.LogMessage)]
    assert "failed: no job=1 agent=sha" in said
