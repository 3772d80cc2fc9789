"""What becomes of the row of a job that has failed: when it is tried again, and how often."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.model.queue_requests import SaveRow
from tests.core_tools import claim, make_core, ready, saved, settle, spawned, turn


def row_after_death(failures: int, retries: int) -> SaveRow:
    """Let the agent of a job die that has failed so often; return the row that is saved."""
    core = make_core(retry_base=4.0, retry_max=10.0)
    slot = ready(core, claim(1, failures=failures, retries=retries))
    core.take_effects(0.0)
    core.handle(e.Gone(slot.number, code=3), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert isinstance(row, SaveRow)
    return row


@pytest.mark.parametrize(("failures", "wait_s"), [(0, 4.0), (1, 8.0), (2, 10.0), (2000, 10.0)])
def test_retry_delay_grows_with_jitter(failures: int, wait_s: float) -> None:
    row = row_after_death(failures, retries=5000)
    assert (row.state, row.failures, row.retry_in, row.jitter) == ("queued", failures + 1, wait_s, True)


@pytest.mark.parametrize(("failures", "state"), [(0, "queued"), (1, "queued"), (2, "failed")])
def test_a_job_is_retried_as_often_as_its_retries_allow(failures: int, state: str) -> None:
    assert row_after_death(failures, retries=2).state == state


def row_of_type(own: int, failures: int = 0, **policy: Any) -> SaveRow:
    """Let a job of a type with such a retry policy fail that has failed so often; return the row that is saved."""
    core = make_core({"sha": AgentType(command=("sha",), **policy)}, retry_base=4.0, retry_max=10.0)
    slot = ready(core, claim(1, failures=failures, retries=own))
    core.take_effects(0.0)
    core.handle(e.Gone(slot.number, code=3), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert isinstance(row, SaveRow)
    return row


@pytest.mark.parametrize(("failures", "state"), [(0, "queued"), (1, "queued"), (2, "failed")])
def test_a_job_that_says_nothing_is_retried_as_often_as_its_type_says_c26(failures: int, state: str) -> None:
    assert row_of_type(0, failures, retries=2).state == state


@pytest.mark.parametrize(("own", "failures", "state"), [(-1, 0, "failed"), (1, 1, "failed"), (3, 2, "queued")])
def test_the_retries_of_a_job_go_before_those_of_its_type_c26(own: int, failures: int, state: str) -> None:
    assert row_of_type(own, failures, retries=2).state == state


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        ({}, [4.0, 8.0, 10.0]),
        ({"retry_backoff": "constant"}, [4.0, 4.0, 4.0]),
        ({"retry_base": 1.0, "retry_max": 3.0}, [1.0, 2.0, 3.0]),
        ({"retry_base": 60.0}, [60.0, 60.0, 60.0]),
    ],
)
def test_a_type_says_how_long_to_wait_before_a_retry(policy: dict[str, Any], waits: list[float]) -> None:
    assert [row_of_type(0, failures, retries=9, **policy).retry_in for failures in range(3)] == waits


@pytest.mark.parametrize("jitter", [True, False])
def test_a_type_says_whether_a_wait_is_random(jitter: bool) -> None:
    assert row_of_type(0, retries=1, retry_jitter=jitter).jitter is jitter


@pytest.mark.parametrize(("is_killed", "code"), [(False, 127), (True, None)])
def test_the_status_of_a_command_that_could_not_be_started_is_saved_unless_it_was_killed_c25(
    is_killed: bool, code: int | None
) -> None:
    core = make_core({"sha": AgentType(command=("sha",), kind="exec")})
    turn(core, claim(1))
    (number,) = spawned(core)
    if is_killed:
        core.kill(1, "killed", 0.5)
    core.handle(e.NotCreated(number, "cannot start 'sha'", code=127), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert isinstance(row, SaveRow)
    assert (row.state, row.code, row.signal, row.pid) == ("failed", code, None, None)
