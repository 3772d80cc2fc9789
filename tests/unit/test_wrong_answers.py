"""Claims about what an agent without a first OK is told: what it printed in its place, and what is wrong with that."""

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.wrong_answers import lookalike, why_no_keyword, why_no_ok
from scheduler.policy.core import Core
from tests.core_tools import claim, logged, make_core, ready, saved, settle, spawned, turn
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


@pytest.mark.parametrize(
    ("said", "keyword"),
    [
        (b"FAIL!glued", "FAIL!"), (b"fail!", "FAIL!"), (b"fail gone", "FAIL"), (b"FAIL-gone", "FAIL"),
        (b"FAILED: gone", "FAIL"), (b"FAILURE", "FAIL"), (b"ERRORgone", "ERROR"), (b"Error: gone", "ERROR"),
        (b"BLOCKED-tape", "BLOCKED"), (b'RESULT{"a":1}', "RESULT"), (b"DB:save {}", "DB"), (b"ItemsProcessed5",
        "ItemsProcessed"), (b"\xef\xbb\xbfFAIL gone", "FAIL"), (b"\x1b[31mFAIL gone\x1b[0m", "FAIL"),
    ],
)  # fmt: skip
def test_a_line_that_is_almost_a_keyword_is_a_warning_of_its_job(said: bytes, keyword: str) -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, said + b"\n", 1.0)
    assert [(pk, kind, text) for pk, kind, text in logged(core) if kind == "WARNING"] == [
        (1, "WARNING", why_no_keyword(said))
    ]
    assert f"the keyword is {keyword}, at the start" in why_no_keyword(said)


def test_an_item_with_a_line_that_is_almost_ok_waits_for_the_ok_and_a_warning_says_why() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"ok!\n", 1.0)
    assert (1, "WARNING", why_no_ok(b"ok!")) in logged(core)
    assert slot.job is not None


@pytest.mark.parametrize(
    "said", [b"reading 5 files", b"ERRORS 0", b"LOGGED in", b"Successful", b"OKAPI", b"<html>", b"", b"failed to cache"]
)
def test_plain_output_is_no_warning(said: bytes) -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, said + b"\n", 1.0)
    assert [text for _, kind, text in logged(core) if kind == "WARNING"] == []


def test_a_line_that_is_almost_a_keyword_changes_no_job() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"ERROR-free\nOK\n", 1.0)
    requests = settle(core, 1.0)
    assert [row.state for row in saved(requests)] == []
    assert slot.job is None


def test_lines_that_are_almost_keywords_are_warned_of_once_a_job_and_a_few_times_an_agent() -> None:
    core = make_core()
    slot = ready(core, *[claim(pk) for pk in range(1, 31)])
    core.take_effects(0.0)
    for _ in range(30):
        core.agent_output(slot.number, b"fail one\nfail two\nOK\n", 1.0)
    assert [job for job, kind, _ in logged(core) if kind == "WARNING"] == [*range(1, 21)]
