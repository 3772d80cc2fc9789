"""Claims about what an agent without a first OK is told: what it printed in its place, and what is wrong with that."""

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.wrong_answers import lookalike, why_no_ok
from scheduler.policy.core import Core
from tests.core_tools import claim, logged, make_core, spawned, turn
from tests.unit.test_handover import handed_over

SEQUENCE = "or another sequence for terminals: switch it off, as NO_COLOR=1 often does"
SAID = {
    b"": "is stdout flushed?",
    b"\xef\xbb\xbfOK": r"it said '\ufeffOK': that begins with a byte order mark: print UTF-8 without one",
    b"\xff\xfeO\0K\0": r"it said '\xff\xfeO\x00K\x00': that is UTF-16: print UTF-8",
    b"OK\0": r"it said 'OK\x00': that holds a NUL byte: print OK and a newline, and nothing else",
    b"\0O\0K": r"it said '\x00O\x00K': that is UTF-16: print UTF-8",
    b"\x1b[1;32mOK\x1b[0m": rf"it said '\x1b[1;32mOK\x1b[0m': that begins with a colour {SEQUENCE}",
    b"\x1b]0;title\x07OK": rf"it said '\x1b]0;title\x07OK': that begins with a colour {SEQUENCE}",
    b"OK\x1b[0m": rf"it said 'OK\x1b[0m': that ends in a colour {SEQUENCE}",
    b"\rOK": r"it said '\rOK': that begins with a carriage return: print OK at the start of a line",
    b"\tOK": r"it said '\tOK': that begins with a tab: print OK at the start of a line",
    b" OK": "it said ' OK': that begins with a blank: print OK at the start of a line",
    b"Ok": "it said 'Ok': the keyword is OK, spelt so, at the start of a line; this is debug output",
    b"> OK": "it said '> OK': OK is not at the start of the line; print no prompt or other text before it",
    b"Loading": "it said 'Loading': the first OK is a line of its own",
    b"\xc3\xa9t\xc3\xa9 \xff": r"it said 'été \xff': the first OK is a line of its own",
    b"x" * 99: f"it said '{'x' * 60}…': the first OK is a line of its own",
}


@pytest.mark.parametrize("said", SAID)
def test_what_was_said_in_place_of_ok_is_quoted_with_its_flaw(said: bytes) -> None:
    assert why_no_ok(said) == SAID[said]


@pytest.mark.parametrize("said", [b"OK", b"OK\r"])
def test_an_ok_without_a_newline_is_named(said: bytes) -> None:
    assert why_no_ok(said, is_whole=False).endswith("without a newline; print OK and a newline")


@pytest.mark.parametrize("said", [b"heartbeat", b"\xef\xbb\xbfHeartbeat", b"\x1b[32mHEARTBEAT: on"])
def test_another_keyword_is_recognized_behind_what_cannot_be_seen(said: bytes) -> None:
    assert lookalike(said) == "Heartbeat"


def starting(*output: bytes) -> tuple[Core, int]:
    """Return a core with an agent that has printed this since its start, and its slot."""
    core = make_core(start_hint=5.0, start_limit=60.0)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 77), 0.0)
    for data in output:
        core.agent_output(number, data, 1.0)
    return core, number


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ((), "is stdout flushed?"),
        ((b"\xef\xbb\xbfOK\n",), SAID[b"\xef\xbb\xbfOK"]),
        ((b"starting\n", b"\x1b]0;title\x07OK\n"), SAID[b"\x1b]0;title\x07OK"]),
        ((b"> OK",), SAID[b"> OK"]),
        ((b"OK",), "it said 'OK' without a newline; print OK and a newline"),
        ((b"LOG here I am\n",), "it said 'LOG here I am': the first OK is a line of its own"),
        ((b"ok\nHeartbeat\n",), SAID[b"Ok"].replace("Ok", "ok")),
    ],
)
def test_the_log_says_what_an_agent_without_a_first_ok_has_printed(output: tuple[bytes, ...], told: str) -> None:
    core, number = starting(*output)
    core.tick(5.0)
    core.tick(60.0)
    hint = f"no OK yet; {told}"
    assert hint in [text for _, _, text in logged(core)]
    assert core.state.slots.all[number].pool.reason == f"no OK within 60 s of the start; {told}"


def test_a_program_that_takes_over_knows_what_was_printed() -> None:
    core, _ = starting(b"ok\n")
    heir = handed_over(core, 1.0)
    heir.tick(5.0)
    assert f"no OK yet; {why_no_ok(b'ok')}" in [text for _, _, text in logged(heir)]
