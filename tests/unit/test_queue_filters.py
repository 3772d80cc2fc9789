"""Filters of queues: what is understood, what is refused and where, and that nothing off the white list passes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.queue_filters import COLUMNS, FilterError, filter_mistake, parse_filter
from tests.filter_tools import filters, words_of_filters

WORDS = {"and", "or", "not", "=", "<>", "<", "<=", ">", ">=", "like", "in", "between", "is_null"}
THREE = ("urgent", "sql", "urgent")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("type = 'a'", ["=", ["column", "type"], ["text", "a"]]),
        ("TYPE <> 'it''s'", ["<>", ["column", "type"], ["text", "it's"]]),
        ("minutes >= -1.5", [">=", ["column", "minutes"], ["number", "-1.5"]]),
        ("hour between 18 and 23", ["between", ["column", "hour"], ["number", "18"], ["number", "23"]]),
        ("submitter in ('a', 'b')", ["in", ["column", "submitter"], ["text", "a"], ["text", "b"]]),
        ("name not like 'a%'", ["not", ["like", ["column", "name"], ["text", "a%"]]]),
        ("host is not null", ["not", ["is_null", ["column", "host"]]]),
        ("urgent", ["=", ["column", "urgent"], ["boolean", True]]),
        ("not sql", ["not", ["=", ["column", "sql"], ["boolean", True]]]),
        ("data.Nodes > 4", [">", ["data", "Nodes", "number"], ["number", "4"]]),
        ("data.\"a-b\" = '4'", ["=", ["data", "a-b", "text"], ["text", "4"]]),
        ("data.x = data.y", ["=", ["data", "x", "text"], ["data", "y", "text"]]),
        ("(urgent) or sql or urgent", ["or", *[["=", ["column", c], ["boolean", True]] for c in THREE]]),
        ("type = 'a' -- ; drop table x", ["=", ["column", "type"], ["text", "a"]]),
    ],
)  # fmt: skip
def test_a_filter_becomes_a_tree_t51_t52(text: str, tree: list[Any]) -> None:
    assert parse_filter(text) == tree


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1/0 = 1", "character 1: this is not allowed in a filter; write comparisons like type = 'sha256' and hour"),
        ("urgent and pg_sleep(10) is null", "character 12: functions are not allowed; write comparisons"),
        ("type = (select 1)", "character 16: queries are not allowed"),
        ("type = 'a' or", "character 12, near 'or': no expression; write comparisons"),
        ("type = 'a'; drop table x", "character 13, near 'drop': no expression"),
        ("type = 'a", "no expression, maybe a quote is missing"),
        ("", "character 1: no expression"),
        ("type = 5", "character 1: compares number with text; both sides must be of one kind"),
        ("nodes > 5", "character 1: no attribute 'nodes'; there are type, name, submitter, host"),
        ("jobqueue.jq_type = 'a'", "character 1: no attribute jobqueue.jq_type; write data.NAME"),
        ("type ilike 'A%'", "character 1: like is the only match there is"),
        ("name like 'a\\'", "character 11: a pattern does not end with one backslash"),
        ("name like submitter", "character 1: like compares a text attribute with a pattern in quotes"),
        ("type like 'a' escape 'b'", "character 1: leave escape out"),
        ("type::int = 5", "character 1: leave the type out"),
        ("minutes > -urgent", "character 12: not an attribute nor a literal"),
        ("minutes > -'5'", "character 12: not an attribute nor a literal"),
        ("minutes > 0.1234567890123456", "character 11: a number has 15 digits at most"),
        ("type is 'a'", "character 1: only null may follow is"),
        ("'a' is null", "character 1: only an attribute is null"),
        ("minutes like '5'", "character 1: like compares a text attribute"),
        ("urgent in (true, false)", "character 1: true and false are compared by = and <> only"),
        ("type = 'a' and\nnodes = 5", "character 16: no attribute 'nodes'"),
        ("type = 'a'\nor or", "line 2, character "),
        ("(urgent and " * 21 + "sql" + ")" * 21, "nested too deep, 20 levels at most"),
        ("minutes > 12345678901234567", "character 11: a number has 15 digits at most"),
        ("minutes between symmetric 5 and 1", "character 1: 'symmetric' is not allowed here"),
        ("type in (name)", "character 1: in is followed by literals in parentheses"),
        ("type in (select 'a')", "character 1: 'query' is not allowed here"),
        ("type", "character 1: neither true nor false"),
        ("urgent is true", "character 1: only null may follow is"),
        ("urgent > false", "character 1: true and false are compared by = and <> only"),
        ("data.x = true", "character 1: data is text or a number; write data.NAME = 'true'"),
        ("type < 'a' < 'b'", "character 1: not an attribute nor a literal"),
        ("type = $1", "character 9: this is not allowed in a filter"),
        ("urgent and\n type = 'a\x07'", "character 22: a control character"),
        ("x" * 2001, "has 2001 characters, 2000 at most are let in"),
        ("not " * 30 + "urgent", "nested too deep"),
        ("(" * 900 + "urgent" + ")" * 900, "nested too deep"),
    ],
)
def test_a_refusal_says_where_and_what_to_write_t51_t56(text: str, told: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse_filter(text)
    assert told in str(refused.value)


def test_the_deepest_filter_has_twenty_levels_t51() -> None:
    assert filter_mistake("not " * 20 + "urgent") == ""
    assert filter_mistake("not " * 21 + "urgent") != ""
    assert filter_mistake("urgent and (" * 10 + "sql" + ")" * 10) == ""


def test_the_longest_filter_has_as_many_characters_as_are_let_in_t51() -> None:
    text = "type = 'a'"
    assert [filter_mistake(text.ljust(length)) != "" for length in (2000, 2001)] == [False, True]


def test_a_long_chain_is_not_deep_t51() -> None:
    assert len(parse_filter(" or ".join(["hour = 1"] * 160))) == 161


@given(filters())
def test_what_follows_the_grammar_passes_t51(text: str) -> None:
    assert filter_mistake(text) == ""


@given(st.lists(words_of_filters(), max_size=12).map(" ".join) | st.text(max_size=60))
def test_nothing_off_the_white_list_passes_t51(text: str) -> None:
    if not filter_mistake(text or " "):
        _assert_listed(parse_filter(text))


def _assert_listed(tree: list[Any]) -> None:
    word, *rest = tree
    if word in WORDS:
        assert rest
        for part in rest:
            _assert_listed(part)
        return
    assert (word in ("text", "number", "boolean") and len(rest) == 1) or (
        (word == "column" and rest[0] in COLUMNS) or (word == "data" and rest[1] in ("text", "number"))
    )
