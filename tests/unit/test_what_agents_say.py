"""What agents print, whole and in pieces, within limits and over them, and what that does to their items."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.model.queue_requests import EndAndClaim, SaveRow
from scheduler.model.states import BIT_NONFATAL, BIT_SUCCESS
from scheduler.policy.agent_replies import _FLOOD, _MOST_WARNINGS
from scheduler.policy.core import Core
from scheduler.policy.output_buffers import LAST_LINE, SHOWN_BYTES, STDERR_LINE, AgentOutput, Capture, last_line_of
from tests.core_tools import claim, logged, make_core, ready, saved, settle, spawned, turn
from tests.unit.test_handover import query_core


def effects(core: Core, kind: type, now: float = 1.0) -> list[Any]:
    return [effect for effect in core.take_effects(now) if isinstance(effect, kind)]


def at_work(kind: AgentType | None = None, jobs: int = 1, **timers: Any) -> Core:
    """Return a core whose slot 0 works on job 1, with so many jobs in all."""
    core = make_core({"sha": kind or AgentType(command=("agent",))}, **timers)
    ready(core, *[claim(pk) for pk in range(1, jobs + 1)])
    core.take_effects(0.0)
    return core


def killed(core: Core) -> bool:
    return effects(core, e.Kill) == [e.Kill(0)]


def row_of(core: Core) -> SaveRow:
    (row,) = saved(settle(core, 1.0))
    assert isinstance(row, SaveRow)
    return row


# ---- lines
@pytest.mark.parametrize(("length", "is_killed"), [(64, False), (65, True)])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_over_the_limit_is_a_violation_though_its_end_has_not_come(
    length: int, is_killed: bool, end: bytes
) -> None:
    core = at_work(line_limit=64)
    core.agent_output(0, b"LOG " + b"x" * (length - 4) + end, 1.0)
    assert killed(core) is is_killed


def test_the_next_item_of_an_agent_that_breaks_the_protocol_behind_an_ok_goes_back_unharmed() -> None:
    core = at_work(jobs=2, line_limit=64)
    core.agent_output(0, b"OK\n" + b"x" * 65 + b"\nLOG more\nOK\n", 1.0)
    assert killed(core)
    settle(core, 2.0)
    assert [end.pk for request in settle(core, 3.0) if isinstance(request, EndAndClaim) for end in request.ends] == [1]
    assert (core.state.jobs[2].in_flight, core.state.jobs[2].waiting) == (0, 1)
    core.handle(e.Gone(0, signal="SIGHUP"), 3.0)
    assert spawned(core, 3.0) == [0]


def test_a_part_of_a_line_is_a_sign_of_life() -> None:
    core = at_work(AgentType(command=("agent",), heartbeat=10.0))
    core.agent_output(0, b"LOG half a li", 5.0)
    core.tick(14.0)
    assert effects(core, e.Kill, 14.0) == []
    core.agent_stderr(0, b"half a li", 14.5)
    core.tick(24.0)
    assert effects(core, e.Kill, 24.0) == []
    core.tick(24.5)
    assert killed(core)


def test_an_agent_that_dies_without_a_last_line_has_said_nothing() -> None:
    core = at_work()
    core.handle(e.Gone(0, code=0), 1.0)
    assert effects(core, e.Echo) == []


def test_debug_output_names_its_slot_and_is_no_warning_of_its_job() -> None:
    core = at_work()
    core.agent_output(0, b"DEBUG x\nplain\n", 1.0)
    assert [effect.text for effect in effects(core, e.Echo)][-1].startswith("DEBUG[0]: ")
    assert logged(core) == []


def test_lines_without_a_keyword_that_look_like_one_are_warned_of_so_often() -> None:
    core = at_work(jobs=_MOST_WARNINGS + 5)
    for _ in range(_MOST_WARNINGS + 4):
        core.agent_output(0, b"heartbeat\nheartbeat\n", 1.0)
        core.agent_output(0, b"OK\n", 1.0)
        core.take_effects(1.0)
    assert len([kind for _, kind, _ in logged(core) if kind == "WARNING"]) == _MOST_WARNINGS


# ---- limits of output
def test_output_about_an_item_over_its_limit_is_left_out_with_one_warning_and_the_next_item_has_a_limit_anew() -> None:
    core = at_work(AgentType(command=("agent",), output_limit=100), jobs=2)
    for _ in range(4):
        core.agent_output(0, b"LOG " + b"x" * 60 + b"\n", 1.0)
    core.agent_output(0, b"OK\n", 1.0)
    core.take_effects(1.0)
    core.agent_output(0, b"LOG second\n", 1.0)
    first, second = "x" * 60, "over 100 bytes of output about one item: the rest is left out"
    assert logged(core) == [(1, "LOG", first), (1, "WARNING", second), (2, "LOG", "second")]


@pytest.mark.parametrize(("limit", "most"), [(256, _FLOOD * 256), (0, _FLOOD * 1024)])
def test_an_agent_that_floods_is_killed(limit: int, most: int) -> None:
    core = at_work(AgentType(command=("agent",), output_limit=limit), line_limit=1024)
    line = b"LOG " + b"x" * 188 + b"\n"  # 188 bytes and 64 for the line
    for _ in range(most // 252):
        core.agent_output(0, line, 1.0)
    assert not killed(core)
    core.agent_output(0, line, 1.0)
    core.agent_output(0, line, 1.0)
    assert killed(core)


def test_too_many_statements_that_wait_for_their_answers_are_a_violation() -> None:
    core = at_work(AgentType(command=("agent",), db="sql"), line_limit=300)
    core.agent_output(0, b"DB: " + b"x" * 99 + b"\n", 1.0)
    for _ in range(2):
        core.agent_output(0, b"DB: " + b"x" * 60 + b"\n", 1.0)
    assert not killed(core)
    core.agent_output(0, b"DB: " + b"x" * 60 + b"\n", 1.0)
    assert killed(core)


# ---- what is said of an item
def test_the_result_of_a_line_is_kept_and_that_of_a_row_is_not() -> None:
    core = at_work()
    core.agent_output(0, b'RESULT {"a": 1}\nOK\n', 1.0)
    assert row_of(core).result == {"a": 1}
    core = query_core(None, 1, 1)
    core.agent_output(0, b'RESULT {"a": 1}\nOK\n', 1.0)
    core.take_effects(1.0)
    assert row_of(core).result is None


@pytest.mark.parametrize(
    ("text", "processed"), [(b"999999999", 999_999_999), (b"1000000000", 1), (b"-1", 1), (b"", 1), (b"x" * 200, 1)]
)
def test_items_are_counted_if_they_are_a_number_of_up_to_nine_digits(text: bytes, processed: int) -> None:
    core = at_work()
    core.agent_output(0, b"ItemsProcessed " + text + b"\nERROR e\nOK\n", 1.0)
    assert row_of(core).processed == processed
    warned = [message for _, kind, message in logged(core) if kind == "WARNING"]
    assert all(len(message) <= len("ItemsProcessed without a number: ") + 100 for message in warned)


def test_counts_of_items_are_added_up() -> None:
    core = at_work()
    core.agent_output(0, b"ItemsProcessed 3\nItemsProcessed 4\nOK\n", 1.0)
    assert row_of(core).processed == 7


@pytest.mark.parametrize(("said", "text"), [(b"FAIL", "the agent said FAIL"), (b"FAIL no disc", "no disc")])
def test_an_item_fails_with_the_text_of_its_agent(said: bytes, text: str) -> None:
    core = at_work()
    core.agent_output(0, said + b"\nOK\n", 1.0)
    assert row_of(core).text == text


def test_an_error_is_no_failure_but_shows_in_the_bits_of_the_row() -> None:
    core = at_work()
    core.agent_output(0, b"ERROR bad\nOK\n", 1.0)
    row = row_of(core)
    assert (row.state, row.bits) == ("done", BIT_SUCCESS | BIT_NONFATAL)
    core = at_work()
    core.agent_output(0, b"WARNING bad\nRESULT 1\nOK\n", 1.0)
    assert row_of(core).bits == BIT_SUCCESS


# ---- answers
def test_an_ok_that_answers_nothing_is_a_violation_of_the_job_before() -> None:
    core = at_work()
    core.agent_output(0, b"OK\n", 1.0)
    core.take_effects(1.0)
    core.agent_output(0, b"OK\n", 2.0)
    assert effects(core, e.Kill, 2.0) == [e.Kill(0)]
    assert logged(core)[-1][:2] == (1, "ERROR")
    assert logged(core)[-1][2].endswith("; killed")


def test_an_ok_for_a_line_that_was_not_read_is_a_violation() -> None:
    core = at_work(write_limit=20.0)
    core.handle(e.Clogged(0), 0.0)
    core.agent_output(0, b"OK\n", 1.0)
    assert killed(core)
    ((pk, kind, text),) = logged(core)
    assert (pk, kind, text.partition(";")[0]) == (1, "ERROR", "protocol violation: OK for a line that was not read")


# ---- buffers
@pytest.mark.parametrize(
    ("data", "last"),
    [
        (b"a\nb\n\n", "b"),
        (b" \n  b  \n", "b"),
        (b"a\rb\r", "b"),
        (b"", ""),
        (b"\n \n", ""),
        (b"x" * LAST_LINE, "x" * LAST_LINE),
        (b"x" * (LAST_LINE + 1), "x" * LAST_LINE + "..."),
    ],
)
def test_the_last_line_is_the_last_that_is_not_blank(data: bytes, last: str) -> None:
    assert last_line_of(data) == last


@pytest.mark.parametrize(("size", "lines"), [(STDERR_LINE, 0), (STDERR_LINE + 1, 1)])
def test_a_line_on_stderr_without_end_is_cut_into_pieces(size: int, lines: int) -> None:
    output = AgentOutput(0.0)
    assert len(output.stderr_lines(b"x" * size, 1.0)) == lines
    assert output.partial_stderr == (b"" if lines else b"x" * size)


def test_a_blank_line_on_stderr_is_not_the_last_word() -> None:
    output = AgentOutput(0.0)
    for line in (b"the reason", b"", b"  "):
        output.note_error(line, 7)
    assert (output.error_about(7), output.error_about(8)) == ("the reason", "")


def test_what_came_in_place_of_ok_is_kept_in_part() -> None:
    output = AgentOutput(0.0)
    output.note_before_ok(b"x" * 999)
    assert output.in_place_of_ok == b"x" * SHOWN_BYTES
    output.note_before_ok(b"Ok")
    output.note_before_ok(b"later")
    assert output.in_place_of_ok == b"Ok"


def test_statements_are_run_one_by_one_in_their_order() -> None:
    output = AgentOutput(0.0)
    for text in (b"1", b"2"):
        output.add_statement(text)
    assert [output.next_statement(), output.next_statement()] == [b"1", None]
    output.statement_answered()
    assert [output.next_statement(), output.statement_bytes] == [b"2", 0]


@pytest.mark.parametrize(
    ("tail", "shown"),
    [("é€x".encode()[1:], "€x"), (b"\x80" * 4 + b"ab", r"\x80\x80\x80\x80ab"), (b"\x80\x80\x80", "")],
)
def test_the_tail_behind_a_gap_begins_with_a_whole_character_unless_it_is_no_text(tail: bytes, shown: str) -> None:
    capture = Capture(2 * len(tail))
    capture.add("out", b"-" * (len(tail) + 1) + tail)
    capture.take()
    ((_, text),) = capture.end()
    assert text.partition(" bytes left out ...]\n")[2] == shown


def test_a_capture_says_whether_something_is_to_be_stored() -> None:
    capture = Capture(8)
    assert [capture.add("out", b"ab"), capture.add("err", b"")] == [True, True]
    assert len(capture.take()) == 1
    assert [capture.add("out", b"cd"), bool(capture.take()), capture.add("out", b"tail")] == [True, True, False]


def test_an_agent_that_waits_for_its_first_ok_is_idle_then_without_work() -> None:
    core = make_core()
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.kill(1, "by a", 0.0)
    core.agent_output(number, b"OK\n", 1.0)
    assert effects(core, e.Send) == []


def test_an_ok_too_many_is_logged_with_the_job_that_the_last_one_ended() -> None:
    core = make_core({"sha": AgentType(command=("agent",), window=2)})
    slot = ready(core, claim(1), claim(2), claim(3))
    core.take_effects(0.0)
    assert len(slot.prefetched or ()) == 1
    core.agent_output(0, b"OK\nOK\nOK\n", 1.0)
    assert killed(core)
    assert [pk for pk, kind, _ in logged(core) if kind == "ERROR"] == [2]
