"""Claims about the Python library for agents: its parser, against an escaper written from SPEC 2."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
