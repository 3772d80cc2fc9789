"""The last line of a process on stderr, as a part of the reason why its item failed; what the log says comes next."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.policy.core import Core
from scheduler.policy.output_buffers import LAST_LINE
from tests.core_tools import claim, logged, make_core, ready, saved, settle, spawned, turn
from tests.unit.test_handover import handed_over, query_core

EXEC = AgentType(command=("true",), kind="exec")


def running_command(**rules: Any) -> tuple[Core, int]:
    """Return a core with a command that runs, and its slot."""
    core = make_core({"sha": EXEC}, retry_base=4.0)
    turn(core, claim(1, **rules))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.take_effects(0.0)
    return core, number


def ended(core: Core, number: int, **how: Any) -> str | None:
    """End the process of a slot; return the text of the row that is saved."""
    core.handle(e.Gone(number, **how), 1.0)
    (row,) = saved(settle(core, 1.0))
    text: str | None = row.text
    return text


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ((b"connecting\nconnection to api timed out\n",), "exit status 7: connection to api timed out"),
        ((b"no newline",), "exit status 7: no newline"),
        ((b"in ", b"pieces\n", b"\n", b"  \n"), "exit status 7: in pieces"),
        ((b"10 %\r50 %\rdisc is full\r\n",), "exit status 7: disc is full"),
        ((b"not UTF-8: \xff\n",), r"exit status 7: not UTF-8: \xff"),
        ((b"x" * 3000 + b"\n",), f"exit status 7: {'x' * LAST_LINE}..."),
        ((b"\n \n",), "exit status 7"),
        ((), "exit status 7"),
    ],
)
def test_the_last_line_on_stderr_is_a_part_of_the_reason(printed: tuple[bytes, ...], text: str) -> None:
    core, number = running_command()
    for data in printed:
        core.exec_output(number, "err", data, 0.5)
    assert ended(core, number, code=7) == text


def test_standard_output_is_no_part_of_the_reason() -> None:
    core, number = running_command()
    core.exec_output(number, "out", b"secret\n", 0.5)
    assert ended(core, number, code=7) == "exit status 7"


def test_the_last_line_is_found_behind_more_output_than_is_kept() -> None:
    core, number = running_command()
    for _ in range(40):
        core.exec_output(number, "err", b"noise\n" * 10_000, 0.5)
    core.exec_output(number, "err", b"the reason\n", 0.5)
    assert ended(core, number, code=7) == "exit status 7: the reason"


def test_the_last_line_of_a_command_lasts_over_an_upgrade_of_the_daemon() -> None:
    core, number = running_command()
    core.exec_output(number, "err", b"the reason\n", 0.5)
    core.save_output(0.5)
    settle(core, 0.5)
    core = handed_over(core, 0.5)
    assert ended(core, number, code=7) == "exit status 7: the reason"


def test_the_log_of_the_daemon_gets_no_output_of_a_command() -> None:
    core, number = running_command()
    core.exec_output(number, "err", b"password is 1234\n", 0.5)
    core.handle(e.Gone(number, code=7), 1.0)
    told = [effect.text for effect in core.take_effects(1.0) if isinstance(effect, e.LogMessage)]
    assert "failed: exit status 7 job=1 agent=sha" in told
    assert "1234" not in " ".join(told)
    assert (1, "ERROR", "exit status 7: password is 1234") in logged(core)


def test_the_death_of_a_line_agent_has_its_last_line_once_in_the_log() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_stderr(slot.number, b"Traceback:\nValueError: no number\n", 0.5)
    died = "agent terminated prematurely, with exit status 1"
    assert ended(core, slot.number, code=1) == f"{died}: ValueError: no number"


def test_what_an_agent_printed_about_an_earlier_item_is_not_the_reason() -> None:
    core = make_core()
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    core.agent_stderr(slot.number, b"about the first\n", 0.5)
    core.agent_output(slot.number, b"OK\n", 0.5)
    core.handle(e.Gone(slot.number, code=1), 1.0)
    assert saved(settle(core, 1.0))[0].text == "agent terminated prematurely, with exit status 1"


def test_what_an_agent_printed_as_it_started_is_not_the_reason() -> None:
    core = make_core()
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_stderr(number, b"loading\n", 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    assert ended(core, number, code=1) == "agent terminated prematurely, with exit status 1"


# ---- what comes next


def test_the_log_says_that_a_failed_job_is_queued_again() -> None:
    core, number = running_command(retries=4)
    core.handle(e.Gone(number, code=7), 1.0)
    assert logged(core) == [(1, "ERROR", "exit status 7; queued again, retry 1 of 4 in at most 4 s")]


def test_the_log_says_what_follows_the_death_of_an_agent() -> None:
    core = make_core(retry_base=4.0)
    slot = ready(core, claim(1, retries=4))
    core.take_effects(0.0)
    core.handle(e.Gone(slot.number, code=3), 1.0)
    assert logged(core) == [
        (1, "ERROR", "agent terminated prematurely, with exit status 3"),
        (1, "WARNING", "queued again, retry 1 of 4 in at most 4 s"),
    ]


def test_the_log_says_with_which_row_an_agent_died_and_that_it_is_tried_once_more() -> None:
    core = query_core(None, 2)
    core.handle(e.Gone(0, code=3), 1.0)
    assert logged(core) == [
        (1, "ERROR", 'agent terminated prematurely, with exit status 3: it had n="1"'),
        (1, "WARNING", 'tried once more, alone in a new process: n="1"'),
    ]
