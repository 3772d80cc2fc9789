"""Placeholders of registered statements."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import ConfigError
from scheduler.model.sql_text import bind

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
PLAIN = st.sampled_from(["select a", "b::text", "a[1:2]", "a[i:j]", "x := 1", "=", "(", ")", ",", "price$q$", "a$1"])
QUOTED = st.sampled_from(
    [
        "':no'",
        "'it''s :no'",
        '":no"',
        '"a"":no"',
        "E'\\' :no'",
        "e':no'",
        "$$ :no $$",
        "$a$ $b$ :no $a$",
        "''",
    ]
)
COMMENTS = st.sampled_from(["-- :no\n", "--'\n", "/* :no */", "/* /* :no */ :no */", "/*'*/"])
VERBATIM = st.one_of(PLAIN, QUOTED, COMMENTS)
PIECES = st.lists(st.tuples(VERBATIM, NAMES), max_size=8)


@pytest.mark.parametrize(
    ("sql", "bound", "names"),
    [
        ("select 1", "select 1", ()),
        ("update p set a = :a where k = :k", "update p set a = $1 where k = $2", ("a", "k")),
        (":a, :b, :a", "$1, $2, $1", ("a", "b")),
        (":a::int + ':b'::int", "$1::int + ':b'::int", ("a",)),
        ("(:a)/*:b*/-:c", "($1)/*:b*/-$2", ("a", "c")),
        ("a[1:n] || a[:n]", "a[1:n] || a[$1]", ("n",)),
        ("", "", ()),
    ],
)
def test_placeholders_get_numbers_in_order(sql: str, bound: str, names: tuple[str, ...]) -> None:
    assert bind(sql) == (bound, names)


@given(PIECES)
def test_only_placeholders_outside_of_quotes_and_comments_change(pieces: list[tuple[str, str]]) -> None:
    order = list(dict.fromkeys(name for _, name in pieces))
    sql = "".join(f"{verbatim} :{name} " for verbatim, name in pieces)
    expected = "".join(f"{verbatim} ${order.index(name) + 1} " for verbatim, name in pieces)
    assert bind(sql) == (expected, tuple(order))


@given(st.text(alphabet="ab1:'\"$-/*\\\n eE", max_size=40))
def test_any_statement_is_bound_or_refused_as_a_configuration_error(sql: str) -> None:
    with contextlib.suppress(ConfigError):
        bound, names = bind(sql)
        assert len(set(names)) == len(names)
        assert all(f"${number}" in bound for number in range(1, len(names) + 1))


@pytest.mark.parametrize(
    "sql", ["select 'a", 'select "a', "select E'a\\'", "select $$ a", "select $q$ a $$", "/* /* */"]
)
def test_unclosed_quote_or_comment_is_refused(sql: str) -> None:
    with pytest.raises(ConfigError, match="is never closed"):
        bind(sql)


def test_numbered_placeholder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"write :name instead of \$1"):
        bind("select $1")
