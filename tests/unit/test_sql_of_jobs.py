"""Claims about the query of an SQL job: messages of the database are told in terms of the job's own text."""

import pytest

from scheduler.errors import ConfigError
from scheduler.model.sql_text import SYNTAX, cursor_query, doubled_key, in_terms_of_job, quote_literal

SQL = "select a from items where b"
QUERY = cursor_query(SQL, None, None, ())
OFFSET = QUERY.index(SQL)


def test_a_message_names_the_character_of_the_job() -> None:
    at = SQL.index("b") + 1
    told = in_terms_of_job("no column", "42703", OFFSET + at, QUERY)
    assert told == f"no column (SQLSTATE 42703, at character {at})"


@pytest.mark.parametrize("position", [0, 1, OFFSET])
def test_a_message_about_no_character_of_the_job_names_none(position: int) -> None:
    assert in_terms_of_job("no column", "42703", position, QUERY) == "no column (SQLSTATE 42703)"


@pytest.mark.parametrize("key", [None, "a"])
def test_a_syntax_error_behind_the_text_is_told_at_its_end(key: str | None) -> None:
    query = cursor_query("select (1", key, None, ())
    told = in_terms_of_job('syntax error at or near "q"', SYNTAX, len("select * from (select (1\n) q"), query)
    assert told.startswith("syntax error at the end of the SQL: it is not complete")
    assert told.endswith(f"(SQLSTATE {SYNTAX}, at character 10)")


def test_a_syntax_error_within_the_text_stays_where_it_is() -> None:
    told = in_terms_of_job('syntax error at or near "a"', SYNTAX, OFFSET + 8, QUERY)
    assert told == f'syntax error at or near "a" (SQLSTATE {SYNTAX}, at character 8)'


@pytest.mark.parametrize("sql", ["", " ", "-- nothing\n", "/* a\n b */ ;"])
def test_an_empty_text_is_told_as_such(sql: str) -> None:
    query = cursor_query(sql, None, None, ())
    assert in_terms_of_job("syntax error", SYNTAX, len(query), query) == f"the SQL is empty (SQLSTATE {SYNTAX})"


def test_a_quote_that_is_never_closed_is_told_without_our_text() -> None:
    query = cursor_query("select 'a", None, None, ())
    told = in_terms_of_job('unterminated quoted string at or near "\'a\n) q"', SYNTAX, OFFSET + 8, query)
    assert told == f"unterminated quoted string (SQLSTATE {SYNTAX}, at character 8)"


@pytest.mark.parametrize("key", ["a", "it's", "two\nlines"])
def test_a_key_that_comes_twice_is_found_in_the_message(key: str) -> None:
    told = f"key '{key}' comes twice: keys must be unique"
    assert doubled_key(f'invalid input syntax for type integer: "{told}"') == told


def test_another_message_is_no_doubled_key() -> None:
    assert doubled_key('invalid input syntax for type integer: "x"') is None


def test_a_key_that_holds_nul_is_refused() -> None:
    assert quote_literal("a'b\\c") == " E'a''b\\\\c'"
    with pytest.raises(ConfigError, match="NUL"):
        quote_literal("a\0b")


def test_the_semicolon_of_a_job_is_left_out_and_a_comment_ends_before_the_bracket() -> None:
    assert cursor_query(" select 1; ", None, None, ()) == "select * from (select 1\n) q"


def test_without_a_checkpoint_no_row_is_left_out() -> None:
    assert " where " not in cursor_query("select 1", "k", None, (), ["again"])


def test_rows_beyond_the_watermark_in_no_range_and_those_that_come_again_are_left() -> None:
    query = cursor_query("select 1", 'k"', "5", [("7", "8"), ("9", "9")], ["2", "3"])
    column = 'q."k"""'
    assert f" where {column} is null or ({column} > E'5' and {column} not between E'7' and E'8' and " in query
    assert f"{column} not between E'9' and E'9') or {column} in ( E'2', E'3') order by {column}," in query
