"""Claims about lines and arguments: one escaper, which the agents' library reads back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import AgentError
from scheduler.model.protocol import (
    LINE_LIMIT,
    Item,
    check_argument,
    check_columns,
    check_line,
    check_template,
    fill_template,
    line_maker,
)
from scheduler.model.sql_text import cursor_query, quote_literal
from tests.agent_tools import module

library = module("lib/drover_agent.py")
NAMES = st.lists(st.from_regex(rb"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True), min_size=1, max_size=5, unique=True)
ROWS = NAMES.flatmap(
    lambda names: st.tuples(st.just(names), st.tuples(*[st.none() | st.binary(max_size=30) for _ in names]))
)


@given(ROWS)
def test_a_row_comes_back_from_its_line(given_row: tuple[list[bytes], tuple[bytes | None, ...]]) -> None:
    names, row = given_row
    line = line_maker(names)(row)
    read = {name: value.encode("utf-8", "surrogateescape") for name, value in library.parse(line[:-1]).items()}
    assert read == {name.decode(): value for name, value in zip(names, row, strict=True) if value is not None}


@given(ROWS)
def test_a_line_has_one_newline_at_its_end(given_row: tuple[list[bytes], tuple[bytes | None, ...]]) -> None:
    names, row = given_row
    line = line_maker(names)(row)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")


def test_a_row_is_formatted_as_the_protocol_says() -> None:
    assert line_maker([b"a", b"b", b"c"])((b"1\"\\'$`\n\r\t\x01", None, b"x")) == (
        b'a="1\\"\\\\\\\'\\$\\`\\n\\r\\t\\x01" c="x"\n'
    )


@pytest.mark.parametrize(
    ("names", "reason"),
    [([b"a", b"b"], None), ([b"a", b"a"], "twice"), ([b"?column?"], "alias"), ([b"a b"], "alias")],
)
def test_columns_that_cannot_be_sent_are_refused(names: list[bytes], reason: str | None) -> None:
    assert (check_columns(names) is None) == (reason is None)
    assert (reason or "") in (check_columns(names) or "")


@pytest.mark.parametrize("args", [b"a\nb", b"a\0b", b"x" * (LINE_LIMIT + 1)])
def test_a_parameter_that_is_not_one_line_is_refused(args: bytes) -> None:
    assert check_argument(args) is not None


def test_a_parameter_that_is_too_long_is_refused_with_the_limit() -> None:
    reasons = {check_argument(b"x" * (LINE_LIMIT + more)) for more in (1, 2_000_000)}
    assert reasons == {"the parameter has over 1048576 bytes: a line holds no more"}


def test_a_parameter_of_the_longest_size_is_sent() -> None:
    assert check_argument(b"x" * LINE_LIMIT) is None


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{id}", b"7"), ("{args}", b"the line"), ("{path}", b"/a b;$(c)"), ("--x={path}!", b"--x=/a b;$(c)!"),
        ("{{id}}", b"{id}"), ("{none}", b""), ("{column:id}", b"mine"), ("plain", b"plain"), ("a}b", b"a}b"),
    ],
)  # fmt: skip
def test_placeholders_are_replaced_inside_one_word(word: str, filled: bytes) -> None:
    names = [b"path", b"none", b"id"]
    item = Item(b"the line\n", 0, None, (b"/a b;$(c)", None, b"mine"))
    assert fill_template([word], 7, item, names) == [filled]


def test_an_unknown_placeholder_is_found_before_any_start() -> None:
    assert check_template(["run", "{path}"], [b"name"]) is not None
    assert check_template(["run", "{args}", "{id}", "{{x}}"], ()) is None


def test_no_argument_holds_nul() -> None:
    with pytest.raises(AgentError, match="NUL"):
        fill_template(["{args}"], 1, Item(b"a\0b\n", 0), ())


@given(st.text().filter(lambda text: "\0" not in text))
def test_a_literal_ends_where_it_should(text: str) -> None:
    body = quote_literal(text).strip().removeprefix("E'").removesuffix("'")
    assert body.replace("\\\\", "").replace("''", "").count("'") == 0
    assert body.replace("\\\\", "\\").replace("''", "'") == text


def test_a_query_has_its_comment_closed_and_one_semicolon_removed() -> None:
    assert cursor_query("select 1; -- x", None, None, ()) == "select * from (select 1; -- x\n) q"
    assert cursor_query(" select 1 ; ", None, None, ()) == "select * from (select 1 \n) q"


def test_a_checkpoint_hides_finished_keys_and_never_a_null_key() -> None:
    query, _, order = cursor_query("select k", "k", "b", [("d", "e")]).partition(" order by ")
    assert query == (
        "select * from (select k\n) q where q.\"k\" is null or (q.\"k\" > E'b' and q.\"k\" not between E'd' and E'e')"
    )
    assert order.startswith('q."k", case ')


# ---- lines for agents of old systems

RAW = b"a\tb\rc\x01\x7f\xff \"\\'$`"


def test_with_escape_shell_all_bytes_but_five_are_sent_as_they_are() -> None:
    assert line_maker([b"v"], "shell")((RAW,)) == b'v="a\tb\rc\x01\x7f\xff \\"\\\\\\\'\\$\\`"\n'


@given(st.binary(max_size=30).filter(lambda value: b"\n" not in value and b"\0" not in value))
def test_with_escape_shell_a_value_is_what_follows_the_backslashes(value: bytes) -> None:
    line = line_maker([b"v"], "shell")((value,))
    assert (line[:3], line[-2:], check_line(line)) == (b'v="', b'"\n', None)
    assert re.sub(rb"\\(.)", rb"\1", line[3:-2], flags=re.DOTALL) == value


@pytest.mark.parametrize("how", ["all", "shell"])
def test_with_nulls_empty_a_null_is_an_empty_value(how: str) -> None:
    assert line_maker([b"a", b"b"], how, "empty")((None, b"$")) == b'a="" b="\\$"\n'
    assert line_maker([b"a", b"b"], how, "empty")((None, None)) == b'a="" b=""\n'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'a="1"\n', None),
        (b"\n", 'set nulls = "empty"'),
        (b'a="1\n2"\n', 'set escape = "all"'),
        (b"x" * LINE_LIMIT + b"\n", None),
        (b"x" * (LINE_LIMIT + 1) + b"\n", "at most 1048576"),
    ],
)
def test_row_that_makes_an_empty_line_is_refused_and_says_what_next(line: bytes, reason: str | None) -> None:
    assert (check_line(line) is None) == (reason is None)
    assert (reason or "") in (check_line(line) or "")


def test_empty_parameter_is_refused_and_says_what_next() -> None:
    assert "give jq_args a word" in (check_argument(b"") or "")
    assert check_argument(b"", "send") is None
