"""What others wrote, made safe; tables and records."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from scheduler.cli.columns import width_of
from scheduler.cli.job_totals import jobs_by_type
from scheduler.cli.jobs import brief, states
from scheduler.cli.output import (
    Table,
    aligned,
    as_json,
    cell,
    clipped,
    print_findings,
    print_newest,
    printable,
    printable_lines,
    span,
)
from scheduler.cli.parser import parse
from scheduler.cli.show import log_line
from scheduler.cli.status import headline, standby_notes
from scheduler.cli.submit import read_lines
from scheduler.errors import ConfigError

NOON = datetime(2026, 11, 20, 12, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünï, 漢字, 🐑", "plain, ünï, 漢字, 🐑"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[2J\x00\x7f\x9b", r"\x1b[2J\x00\x7f\x9b"),
        ("\u202egpj.exe\u2066\u2028", r"\u202egpj.exe\u2066\u2028"),
        ("\udcff\ud800", r"\xff\ud800"),
        ("a\u200bb\ufeff\u180e\ufff9\U000e0001\xad", r"a\u200bb\ufeff\u180e\ufff9\U000e0001\xad"),
        ("\xa0\u3000wide", "\xa0\u3000wide"),
    ],
)
def test_no_terminal_control_sequence_is_printed(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]))
def test_no_control_or_format_character_is_printed_whatever_unicode_adds(character: str) -> None:
    assert printable(f"a{character}b").isascii()
    assert printable_lines(character).isascii()


def test_output_keeps_its_lines() -> None:
    assert printable_lines("a\n\tb\x1b[0m\r\n") == "a\n\tb\\x1b[0m\\x0d\n".replace("\\x0d", r"\r")


@given(st.text(), st.integers(min_value=1, max_value=20))
def test_clipped_text_is_one_line_of_its_width(text: str, width: int) -> None:
    assert width_of(clipped(text, width)) <= width
    assert clipped(text, width).splitlines() in ([], [clipped(text, width)])


@pytest.mark.parametrize("name", ["abc", "漢字", "🐑🐑", "e\u0301te\u0301", "ｗｉｄｅ", "ไทย ก็"])
def test_columns_of_a_table_are_aligned_by_what_a_terminal_shows(name: str) -> None:
    lines = [*aligned(Table("", ("name", "job"), [(name, 1), ("plain", 20)]))]
    assert len({cell_len(line) for line in lines}) == 1


@pytest.mark.parametrize("text", ["漢字" * 9, "🐑" * 9, "e\u0301" * 30, "a" * 30])
def test_a_long_text_is_cut_at_the_columns_of_a_terminal(text: str) -> None:
    assert cell_len(clipped(text, 12)) in (11, 12)
    assert clipped(text, 12).endswith("…")
    assert clipped("e\u0301" * 12, 12) == "e\u0301" * 12


@pytest.mark.parametrize("escape", [printable, lambda text: clipped(text, 99), cell])
@given(text=st.text())
def test_all_output_can_be_encoded(escape: Callable[[str], str], text: str) -> None:
    assert escape(text + "\udc80").encode() != b""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("", "-"),
        (0, "0"),
        (True, "yes"),
        (timedelta(seconds=75, microseconds=3), "0:01:15"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (NOON, f"{NOON.astimezone():%Y-%m-%d %H:%M:%S}"),
    ],
)
def test_values_are_shown_in_short_form(value: object, shown: str) -> None:
    assert cell(value) == shown


def test_tables_are_aligned_numbers_to_the_right() -> None:
    table = Table("Things", ("name", "count", "note"), [("a", 1, None), ("bcdefg", 100, "x\ny")])
    assert list(aligned(table)) == [
        "Things",
        "NAME    COUNT  NOTE",
        "a           1  -",
        r"bcdefg    100  x\ny",
    ]


def test_empty_table_has_headings_only() -> None:
    assert list(aligned(Table("", ("a", "b"), []))) == ["A  B"]


def test_records_are_one_line_of_ascii() -> None:
    text = as_json({"at": NOON, "for": timedelta(minutes=1), "id": UUID(int=1), "text": "\x9b\u202e\x7f\n"})
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text) == {
        "at": "2026-11-20T12:00:00.000005+00:00",
        "for": 60.0,
        "id": "00000000-0000-0000-0000-000000000001",
        "text": "\x9b\u202e\x7f\n",
    }


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (60, "1 min"), (61, "1 min 1 s"),
        (3599, "59 min 59 s"), (3600, "1 h"), (3659, "1 h"), (3660, "1 h 1 min"), (86_399, "23 h 59 min"),
        (86_400, "1 d"), (86_400 * 40, "40 d"), (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_a_length_of_time_has_its_two_greatest_units(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


def test_a_length_below_zero_is_none() -> None:
    assert cell(timedelta(seconds=-5)) == "0:00:00"
    assert json.loads(as_json({"for": timedelta(seconds=-5)})) == {"for": 0.0}


@pytest.mark.parametrize(("limit", "printed", "is_warned"), [(2, ["2", "3"], True), (3, ["1", "2", "3"], False),
                                                             (None, ["1", "2", "3"], False)])  # fmt: skip
def test_the_newest_rows_are_printed_last_and_a_cut_is_told(
    capsys: pytest.CaptureFixture[str], limit: int | None, printed: list[str], is_warned: bool
) -> None:
    print_newest(Table("", ("job",), [(3,), (2,), (1,)]), limit, lambda table: table, json=False)
    told = capsys.readouterr()
    assert [line.strip() for line in told.out.splitlines()] == ["JOB", *printed]
    assert told.err == ("drover: only the newest 2 are listed; -n 0 lists all\n" if is_warned else "")


@pytest.mark.parametrize(
    ("findings", "status"),
    [([], 0), ([("ok", "a")], 0), ([("WARN", "a")], 0), ([("FAIL", "a"), ("ok", "b")], 1)],
)
def test_findings_fail_if_one_does(findings: list[Any], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_findings(findings) == print_findings(findings, json=True) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(findings)] == [f"{severity:4} {text}" for severity, text in findings]
    assert [json.loads(line)["finding"] for line in lines[len(findings) :]] == [word.lower() for word, _ in findings]


def test_a_finding_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([("ok", "a\n  b\x1b")])
    assert capsys.readouterr().out == "ok   a b\\x1b\n"


@pytest.mark.parametrize(("character", "shown"), [
    ("\x7f", r"\x7f"), ("\x85", r"\x85"), ("\xff", "\xff"), ("\udc80", r"\x80"), ("\udcff", r"\xff"),
    ("\ud800", r"\ud800"), ("\u202e", r"\u202e"), ("\uffff", r"\uffff"), ("\U000e0001", r"\U000e0001"),
    ("\u2028", r"\u2028"), ("\u3000", "\u3000"), ("\xa0", "\xa0"), ("\r", r"\r"), ("\t", r"\t"),
])  # fmt: skip
def test_a_character_that_cannot_be_seen_is_its_number(character: str, shown: str) -> None:
    assert printable(character) == shown


@pytest.mark.parametrize(("text", "width", "shown"), [
    ("abc", 3, "abc"), ("abcd", 3, "ab…"), ("\u6f22\u5b57", 4, "\u6f22\u5b57"), ("\u6f22\u5b57", 3, "\u6f22…"),
    ("\u6f22\u5b57", 2, "…"), ("e" + "\u0301" * 99, 1, "…"), ("", 0, ""),
])  # fmt: skip
def test_a_cut_is_marked_within_the_width(text: str, width: int, shown: str) -> None:
    assert clipped(text, width) == shown


def test_columns_of_a_table_can_be_chosen() -> None:
    table = Table("", ("a", "b", "c"), [(1, 2, 3), (4, 5, 6)])
    assert table.only(["c", "a"]) == Table("", ("c", "a"), [(3, 1), (6, 4)])
    assert (table.records()[1], table.values()) == ({"a": 4, "b": 5, "c": 6}, [[1, 4], [2, 5], [3, 6]])


# ls


@pytest.mark.parametrize(
    ("line", "listed"),
    [
        ("ls", ["held", "queued", "claimed", "running", "blocked", "failed"]),
        ("ls -s done", ["held", "queued", "claimed", "running", "blocked", "done", "failed"]),
        ("ls -S failed -S done", ["done", "failed"]),
        ("ls -S failed -s done", ["done", "failed"]),
    ],
)
def test_states_are_added_or_selected_r59_r60(line: str, listed: list[str]) -> None:
    assert states(parse(line.split())) == listed


def test_all_lists_every_state() -> None:
    assert len(states(parse(["ls", "--all"]))) == 10


def test_ls_cuts_long_arguments_marks_urgent_jobs_and_names_unusual_queues_r76() -> None:
    names = (
        "job",
        "name",
        "type",
        "queue",
        "state",
        "urgent",
        "priority",
        "queued",
        "end",
        "host",
        "blocked_since",
        "next_check",
        "progress",
        "args",
        "text",
    )
    for queue, shown in (("default", ()), (None, ()), ("mail", ("mail",))):
        row = (1, None, "noop", queue, "queued", True, "b", NOON, None, None, None, None, None, "x" * 60_000, None)
        brief_row = (1, "noop", *shown, "queued", "!b", NOON, None, "x" * 47 + "…", None)
        assert brief(Table("", names, [row])).rows == [brief_row]


# log and status


def test_log_line_shows_only_known_fields_on_one_line() -> None:
    row = {"date": NOON, "type": "ERROR", "job": 7, "host": "alpha", "agent": None, "pid": 12, "message": "no\n\x1b[1m"}
    assert log_line(row) == rf"{cell(NOON)} ERROR job=7 host=alpha pid=12: no\n\x1b[1m"


def test_jobs_are_counted_by_type_and_state() -> None:
    jobs = jobs_by_type([("noop", "done", 5), ("noop", "queued", 2), ("sha256", "done", 1)])
    assert jobs.columns == ("type", "queued", "done")
    assert jobs.rows == [("noop", 2, 5), ("sha256", 0, 1)]


def test_headline_of_an_inactive_group_says_what_to_do() -> None:
    assert headline({"name": "far", "active": False}) == (
        "group far: no scheduler is active; start one with drover run"
    )


def test_headline_names_the_owner() -> None:
    group = {"name": "g", "active": True, "host": "h", "pid": 7, "since": None, "lease_left": timedelta(seconds=28)}
    assert headline(group) == "group g: scheduler h.7 is active since -"


@pytest.mark.parametrize(("active", "standbys", "is_noted"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_a_group_with_a_single_scheduler_is_noted_c1(active: bool, standbys: int, is_noted: bool) -> None:
    assert bool(standby_notes({"active": active, "standbys": standbys})) == is_noted


# submit


def test_each_line_of_stdin_is_a_job_unchanged() -> None:
    assert list(read_lines(BytesIO(b"a b\n\n c\r\nlast"))) == ["a b", "", " c\r", "last"]


@pytest.mark.parametrize(("data", "why"), [(b"a\n\xff\n", "stdin:2: is not UTF-8"), (b"\0", "stdin:1: holds a NUL")])
def test_line_that_no_database_could_hold_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        list(read_lines(BytesIO(data)))


@pytest.mark.parametrize("seconds", [-0.2, -8.3, -86_400.5])
def test_a_length_of_time_below_0_is_0_wherever_it_is_shown(seconds: float) -> None:
    length = timedelta(seconds=seconds)
    assert (cell(length), as_json(length), span(seconds)) == ("0:00:00", "0.0", "0 s")
