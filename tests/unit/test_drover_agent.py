"""Claims about the Python library for agents: its parser, against an escaper written from SPEC 2."""

import io
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.protocol import LINE_LIMIT, parse
from tests.agent_tools import module, record

drover_agent = module("lib/drover_agent.py")

names = st.text(st.characters(exclude_characters='"=\n\0', exclude_categories=["Cs"]), min_size=1).map(
    lambda name: name.strip() or "column"
)
values = st.none() | st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace"))


def plain(columns: dict[str, bytes | None]) -> dict[str, str]:
    return {n: v.decode("utf-8", "surrogateescape") for n, v in columns.items() if v is not None}


@given(st.dictionaries(names, values))
def test_a_record_comes_out_as_it_went_in_f86_f87(columns: dict[str, bytes | None]) -> None:
    parsed = drover_agent.parse(record(columns))
    assert list(parsed.items()) == list(plain(columns).items())


@given(st.dictionaries(names, values))
def test_a_record_read_as_text_comes_out_the_same_f86(columns: dict[str, bytes | None]) -> None:
    assert drover_agent.parse(record(columns).decode("utf-8", "surrogateescape")) == plain(columns)


@given(st.binary())
def test_any_line_is_parsed_or_refused(line: bytes) -> None:
    assert isinstance(drover_agent._columns(line), dict | None)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (rb'a="\"\\\'\$\`"', "\"\\'$`"),
        (rb'a="\n\r\t"', "\n\r\t"),
        (rb'a="\x1b\x7F\x00"', "\x1b\x7f\0"),
        (b'a="caf\xc3\xa9"', "café"),
        (b'a="caf\xe9"', "caf\udce9"),
        (rb'a="\xc3\xa9"', "é"),
        (rb'a=""', ""),
        (rb'a="x b=" b="2"', "x b="),
        (rb'a="x b=\"y\" "', 'x b="y" '),
    ],
)
def test_each_escape_gives_its_byte_f86(line: bytes, value: str) -> None:
    assert drover_agent.parse(line)["a"] == value


@pytest.mark.parametrize(
    "line",
    [
        b"/etc/hosts",
        b'a="1',
        b'a="1"b="2"',
        b'a="1"  ',
        b'a="1" ',
        b'a="\\q"',
        b'a="\\x1"',
        b'="1"',
        b' "',
        b'a="1" b',
    ],
)
def test_a_line_that_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="pairs"):
        drover_agent.parse(line)


def test_a_row_of_nulls_is_an_empty_line_f87() -> None:
    assert drover_agent.parse(b"") == {}


@pytest.mark.slow
def test_a_value_of_a_megabyte_is_read() -> None:
    columns: dict[str, bytes | None] = {"a": b'"' * (1 << 19), "b": b"end"}
    assert drover_agent.parse(record(columns)) == plain(columns)


@pytest.mark.parametrize("condition", ["", "two words", "colon:", "line\nend"])
def test_a_blocked_condition_is_one_word(condition: str) -> None:
    with pytest.raises(ValueError, match="one word"):
        drover_agent.blocked(condition)


def test_sql_that_does_not_fit_on_a_line_is_refused() -> None:
    with pytest.raises(ValueError, match="one line"):
        drover_agent.db_sql("delete from a -- not all\nwhere b")


def test_a_line_that_would_get_the_agent_killed_is_refused() -> None:
    with pytest.raises(ValueError, match="the limit is 1048576"):
        drover_agent.result("x" * (1 << 20))


# ---- what the library prints, as the scheduler reads it


@pytest.mark.parametrize(
    ("say", "heard"),
    [
        (lambda: drover_agent.log("a"), (b"LOG", b"a")),
        (lambda: drover_agent.warning("a"), (b"WARNING", b"a")),
        (lambda: drover_agent.error("a"), (b"ERROR", b"a")),
        (lambda: drover_agent.fatal("a"), (b"FATAL", b"a")),
        (lambda: drover_agent.echo("a"), (b"ECHO", b"a")),
        (lambda: drover_agent.event("a"), (b"EVENT", b"a")),
        (lambda: drover_agent.fail("a"), (b"FAIL", b"a")),
        (lambda: drover_agent.fail("a", final=True), (b"FAIL!", b"a")),
        (lambda: drover_agent.fail(""), (b"FAIL", b"")),
        (lambda: drover_agent.Item("", {}).fail("a"), (b"FAIL", b"a")),
        (lambda: drover_agent.Item("", {}).fail("a", final=True), (b"FAIL!", b"a")),
        (lambda: drover_agent.blocked("disk", "full"), (b"BLOCKED", b"disk full")),
        (lambda: drover_agent.Item("", {}).blocked("disk"), (b"BLOCKED", b"disk")),
        (drover_agent.success, (b"Success", b"")),
        (lambda: drover_agent.items_processed(3), (b"ItemsProcessed", b"3")),
        (lambda: drover_agent.result({"a": [1, None]}), (b"RESULT", b'{"a":[1,null]}')),
        (lambda: drover_agent.log("a\r\nOK\n\nb"), (b"LOG", b"a OK b")),
        (lambda: drover_agent.log("\udce9\ud800"), (b"LOG", b"\\udce9\\ud800")),
        (lambda: drover_agent.log("\udce9"), (b"LOG", b"\xe9")),
    ],
)
def test_each_word_is_one_line_that_the_scheduler_knows(
    capfdbinary: pytest.CaptureFixture[bytes], say: Callable[[], None], heard: tuple[bytes, bytes]
) -> None:
    say()
    (line, rest) = capfdbinary.readouterr().out.split(b"\n")
    assert (parse(line), rest) == (heard, b"")


@pytest.mark.parametrize("more", [0, 1, 100])
def test_a_long_text_is_cut_with_a_mark_and_no_other(capfdbinary: pytest.CaptureFixture[bytes], more: int) -> None:
    longest = LINE_LIMIT - 64 - len("FAIL")
    drover_agent.fail("x" * (longest + more))
    line = capfdbinary.readouterr().out.removesuffix(b"\n")
    assert LINE_LIMIT - 110 < len(line) < LINE_LIMIT
    assert line.endswith(b" ... (cut, %d bytes)" % (longest + more) if more else b"xxx")


def test_a_line_of_just_the_limit_is_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    room = LINE_LIMIT - 1 - len('RESULT ""')
    drover_agent.result("x" * room)
    assert len(capfdbinary.readouterr().out) == LINE_LIMIT
    with pytest.raises(ValueError, match="the limit"):
        drover_agent.result("x" * (room + 1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_result_that_is_no_json_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        drover_agent.result(value)


def given_lines(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_items_come_one_for_each_ok_and_end_with_the_input(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_lines(monkeypatch, b'a="1" b="2"\nplain\n\ncut off')
    read = [(item.line, item.columns) for item in drover_agent.items()]
    assert read == [('a="1" b="2"', {"a": "1", "b": "2"}), ("plain", {}), ("", {})]
    assert capfdbinary.readouterr().out == b"OK\n" * 4


def test_bare_lines_are_items_too(monkeypatch: pytest.MonkeyPatch) -> None:
    given_lines(monkeypatch, b"caf\xe9\n")
    assert list(drover_agent.lines()) == ["caf\udce9"]


def test_a_column_that_was_null_is_absent() -> None:
    item = drover_agent.Item("", {"a": "1"})
    assert ("a" in item, "b" in item, item["a"], item.get("a"), item.get("b"), item.get("b", "x")) == (
        True, False, "1", "1", None, "x",
    )  # fmt: skip


def test_an_exception_fails_its_item_alone(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def do(item: object) -> None:
        if item.line == "bad":  # type: ignore[attr-defined]
            raise OSError("y" * 1000)

    given_lines(monkeypatch, b"bad\ngood\n")
    drover_agent.work(do)
    first, warned, failed, *rest = capfdbinary.readouterr().out.split(b"\n")
    assert (first, rest) == (b"OK", [b"OK", b"OK", b""])
    assert parse(failed) == (b"FAIL", b"OSError: " + b"y" * 291)
    assert warned.startswith(b"WARNING not expected: OSError: yyy")
    assert warned.endswith(b")")
    assert b" (test_drover_agent.py:" in warned


def test_out_of_memory_ends_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def do(_: object) -> None:
        raise MemoryError

    given_lines(monkeypatch, b"a\n")
    with pytest.raises(MemoryError):
        drover_agent.work(do)


def test_the_answer_to_a_statement_is_its_rows(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_lines(monkeypatch, b'a="1"\n\na="2" b="x"\nOK\nnext')
    assert drover_agent.db("find", job=1) == [{"a": "1"}, {}, {"a": "2", "b": "x"}]
    assert parse(capfdbinary.readouterr().out[:-1]) == (b"DB", b'find {"job":1}')


@pytest.mark.parametrize(("answer", "why"), [(b"ERROR no table\nOK\n", "no table"), (b"ERROR\nOK\n", ""),
                                             (b'a="1"\nnonsense\nOK\n', "nonsense")])  # fmt: skip
def test_an_error_is_raised_after_the_ok_that_ends_the_answer(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, why: str
) -> None:
    given_lines(monkeypatch, answer + b"item\n")
    with pytest.raises(drover_agent.StatementError) as error:
        drover_agent.db_sql("select 1")
    assert (str(error.value), sys.stdin.readline()) == (why, "item\n")


@pytest.mark.parametrize("data", [b"", b'a="1"\n', b"OK"])
def test_an_agent_leaves_when_its_input_ends_within_an_answer(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    given_lines(monkeypatch, data)
    with pytest.raises(SystemExit) as left:
        drover_agent.db("find")
    assert left.value.code == 0


@pytest.mark.parametrize("sql", ["select 1", "select 1;", "select 1 ; "])
def test_sql_ends_with_one_semicolon(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    given_lines(monkeypatch, b"OK\n")
    assert drover_agent.db_sql(sql) == []
    assert parse(capfdbinary.readouterr().out[:-1])[1].replace(b" ;", b";") == b"select 1;"
