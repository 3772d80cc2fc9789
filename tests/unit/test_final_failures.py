"""A failure for good (`FAIL!`), and a job that ends its agents again and again."""

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.model.queue_requests import SaveRow
from scheduler.policy.core import Core
from tests.core_tools import claim, logged, make_core, ready, saved, sent, settle, spawned, turn
from tests.unit.test_handover import handed_over


def row_after(*output: bytes, core: Core | None = None, failures: int = 0, dies: bool = False) -> SaveRow:
    """Let the agent of a job with many retries print this, and perhaps die; return the row that is saved."""
    core = core or make_core(retry_base=4.0)
    slot = ready(core, claim(1, failures=failures, retries=9))
    core.take_effects(0.0)
    for data in output:
        core.agent_output(slot.number, data, 1.0)
    if dies:
        core.handle(e.Gone(slot.number, code=3), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert isinstance(row, SaveRow)
    return row


def test_a_failure_for_good_is_not_tried_again() -> None:
    row = row_after(b"FAIL! not JSON\n", b"OK\n")
    assert (row.state, row.outcome, row.text, row.failures, row.retry_in) == ("failed", "failed", "not JSON", 1, None)


def test_a_failure_for_good_has_a_text_of_its_own_without_one() -> None:
    assert row_after(b"FAIL!\n", b"OK\n").text == "the agent said FAIL!"


def test_a_failure_for_good_of_an_agent_that_dies_before_its_ok_counts() -> None:
    assert row_after(b"FAIL! not JSON\n", dies=True).state == "failed"


@pytest.mark.parametrize(
    ("said", "state"), [(b"FAIL! one\nFAIL two\n", "queued"), (b"FAIL one\nFAIL! two\n", "failed")]
)
def test_of_several_failures_the_last_says_whether_the_job_is_tried_again(said: bytes, state: str) -> None:
    row = row_after(said, b"OK\n")
    assert (row.state, row.text) == (state, "two")


def test_a_failure_for_good_is_forgotten_with_its_item() -> None:
    core = make_core(retry_base=4.0)
    slot = ready(core, claim(1, retries=9), claim(2, retries=9))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"FAIL! not JSON\nOK\n", 1.0)
    core.agent_output(slot.number, b"FAIL busy\nOK\n", 1.0)
    assert [(row.pk, row.state) for row in saved(settle(core, 1.0))] == [(1, "failed"), (2, "queued")]


def test_a_failure_for_good_lasts_over_an_upgrade_of_the_daemon() -> None:
    core = make_core(retry_base=4.0)
    slot = ready(core, claim(1, retries=9))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"FAIL! not JSON\n", 1.0)
    core = handed_over(core)
    core.agent_output(slot.number, b"OK\n", 1.0)
    (row,) = saved(settle(core, 1.0))
    assert row.state == "failed"


def test_a_failure_for_good_without_an_item_changes_nothing() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\nFAIL! late\n", 1.0)
    text = "FAIL! without an item in hand: it is to come between the line of the item and its OK"
    assert logged(core) == [(1, "WARNING", text)]


# ---- a job that ends its agents


@pytest.mark.parametrize(("failures", "gives_way"), [(0, False), (1, True), (7, True)])
def test_a_job_that_ends_its_agent_again_goes_to_the_end_of_its_queue(failures: int, gives_way: bool) -> None:
    row = row_after(failures=failures, dies=True)
    assert (row.state, row.back) == ("queued", gives_way)


def test_a_job_whose_agent_lives_on_keeps_its_place_for_a_retry() -> None:
    row = row_after(b"FAIL busy\n", b"OK\n", failures=5)
    assert (row.state, row.back) == ("queued", False)


def test_a_job_that_is_too_slow_again_goes_to_the_end_of_its_queue() -> None:
    core = make_core({"sha": AgentType(command=("agent",), item_timeout=5.0)}, retry_base=4.0)
    slot = ready(core, claim(1, failures=1, retries=9))
    core.take_effects(0.0)
    core.tick(5.0)
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 5.0)
    (row,) = saved(settle(core, 5.0))
    assert (row.text, row.back) == ("item took longer than 5 s", True)


def test_a_command_keeps_its_place_for_a_retry() -> None:
    core = make_core({"sha": AgentType(command=("true",), kind="exec")}, retry_base=4.0)
    turn(core, claim(1, failures=5, retries=9))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.handle(e.Gone(number, code=3), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.back) == ("queued", False)


def test_the_time_limit_of_an_item_begins_when_its_agent_has_come_up() -> None:
    core = make_core({"sha": AgentType(command=("agent",), item_timeout=5.0)}, start_limit=60.0)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.tick(20.0)
    core.agent_output(number, b"OK\n", 20.0)
    core.schedule(20.0)
    assert sent(core, 20.0) == [b"item 1\n"]
    core.tick(24.5)
    core.agent_output(number, b"OK\n", 24.5)
    assert [(end.pk, end.micros) for end in core.state.outbox.ends] == [(1, 4_500_000)]
