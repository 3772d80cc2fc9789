"""Claims about what agents say: every transcript through the core, whole, byte by byte and with a tail."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.model.protocol import parse_statement, printable
from tests import read_transcripts
from tests.core_tools import claim, logged, make_core, ready, saved, sent, settle, turned

Cut = Callable[[bytes], Iterable[bytes]]


def whole(data: bytes) -> Iterable[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> Iterable[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def with_a_tail(data: bytes) -> Iterable[bytes]:
    return [data + b"LO", b"G tail\n"]


def said_but_ok(path: Path) -> list[read_transcripts.Exchange]:
    return [x for x in read_transcripts.read(path) if x.keyword != b"OK" and len(x.line) < 10_000]


def effects(path: Path, cut: Cut) -> tuple[list[object], list[object]]:
    """Feed all of a transcript but its OKs to an agent at work; return what was logged and commanded."""
    core = make_core({"sha": AgentType(command=("agent",), db="sql")})
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    for piece in cut(b"".join(x.line + b"\n" for x in said_but_ok(path))):
        core.agent_output(slot.number, piece, 1.0)
    logs = [entry for entry in logged(core) if entry[2] != "tail"]
    return list(logs), [effect for effect in core.take_effects(1.0) if not isinstance(effect, e.LogMessage)]


@pytest.mark.parametrize("path", read_transcripts.TRANSCRIPTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("cut", [byte_by_byte, with_a_tail])
def test_lines_are_parsed_alike_however_reads_split_them_f106(path: Path, cut: Cut) -> None:
    assert effects(path, cut) == effects(path, whole)


@pytest.mark.parametrize("path", read_transcripts.TRANSCRIPTS, ids=lambda path: path.stem)
def test_only_ok_ends_an_item_f88_f89(path: Path) -> None:
    core = make_core()
    slot = ready(core, claim(1))
    for exchange in said_but_ok(path):
        core.agent_output(slot.number, exchange.line + b"\n", 1.0)
    assert slot.job is not None


def test_one_ok_ends_an_item_and_takes_the_next_f89() -> None:
    core = make_core()
    slot = ready(core, claim(1), claim(2))
    assert sent(core) == [b"item 1\n"]
    assert core.agent_output(slot.number, b"OK\n", 1.0) == b"item 2\n"


def test_nothing_more_is_sent_until_ok_f88() -> None:
    core = make_core()
    slot = ready(core, claim(1), claim(2), claim(3))
    assert sent(core) == [b"item 1\n"]
    assert core.agent_output(slot.number, b"LOG still at it\nHeartbeat\n", 1.0) is None
    assert sent(core) == []


def test_nothing_is_sent_before_the_first_ok_f65() -> None:
    core = make_core()
    core.next_request(0.0)
    core.handle(turned(claim(1)), 0.0)
    core.take_effects(0.0)
    core.handle(e.Created(0, 100), 0.0)
    core.agent_output(0, b"LOG starting\n", 0.5)
    assert sent(core) == []


def test_a_second_ok_in_one_read_ends_nothing_f88() -> None:
    core = make_core()
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    assert core.agent_output(slot.number, b"OK\nOK\n", 1.0) is None
    assert list(core.state.jobs) == [2]
    assert e.Kill(slot.number) in core.take_effects(1.0)


def test_an_error_line_is_logged_and_sets_the_non_fatal_bit_f90_f160() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"ERROR cannot read\nOK\n", 1.0)
    assert (1, "ERROR", "cannot read") in logged(core)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.bits) == ("done", 5)


def test_success_lines_are_only_counted_f94() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.agent_output(slot.number, b"Success\nSuccess\n", 1.0)
    assert (core.state.counts["successes"], slot.job is not None, logged(core)) == (2, True, [])


@pytest.mark.parametrize(("lines", "count"), [(b"OK\n", 1), (b"ItemsProcessed 7\nOK\n", 7)])
def test_items_count_one_unless_the_agent_says_otherwise_f158(lines: bytes, count: int) -> None:
    core = make_core()
    slot = ready(core, claim(1, retries=1, failures=1))
    core.take_effects(0.0)
    core.agent_output(slot.number, lines, 1.0)
    (row,) = saved(settle(core, 1.0))
    assert row.processed == count


def test_an_unknown_line_is_debug_output_with_the_slots_number_f105() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"hello\n", 1.0)
    assert core.take_effects(1.0) == [e.Echo(f"DEBUG[{slot.number}]: hello")]


def test_unfinished_last_line_is_passed_on_f106() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.agent_output(slot.number, b"LOG last words", 1.0)
    core.handle(e.Gone(slot.number, code=1), 2.0)
    assert (1, "LOG", "last words") in logged(core)


@pytest.mark.parametrize("pieces", [[b"x" * 101 + b"\n"], [b"x" * 60, b"x" * 60]])
def test_an_agent_is_killed_for_a_line_over_the_limit_f102(pieces: list[bytes]) -> None:
    core = make_core(line_limit=100)
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    for piece in pieces:
        core.agent_output(slot.number, piece, 1.0)
    assert e.Kill(slot.number) in core.take_effects(1.0)
    assert (1, "ERROR", "protocol violation: line over 100 bytes; killed") in logged(core)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [(b'save {"a": 1}', ("save", b'{"a": 1}')), (b"save {} ;", ("save", b"{}")), (b"select 1;", None), (b"", None)],
)
def test_a_statement_is_a_name_and_json_or_sql(text: bytes, meaning: object) -> None:
    assert parse_statement(text) == meaning


def test_any_bytes_become_text_that_postgres_accepts() -> None:
    assert printable(b"a\xff\x00b") == "a\\xff\\x00b"
