"""Named queries and text parameters: what we write is what Postgres reads."""

import ast
import json
import re

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import pq

from scheduler.drivers.statements import Query, encode, load, to_json
from scheduler.errors import BugError
from scheduler.package_data import PACKAGE, schema_dir

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
SLOW_FIXTURE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def pg(postgres: str) -> pq.abc.PGconn:
    return pq.PGconn.connect(f"{postgres} client_encoding=utf8".encode())


def _echo(pg: pq.abc.PGconn, value: object, kind: str) -> object:
    """Return what Postgres makes of a parameter, as JSON."""
    result = pg.exec_params(f"select to_json($1::{kind})".encode(), [encode(value)])
    assert result.status == pq.ExecStatus.TUPLES_OK, result.get_error_message()
    cell = result.get_value(0, 0)
    return None if cell is None else json.loads(cell)


def test_blocks_become_queries_by_name_f50() -> None:
    queries = load("-- heading\n\n-- name: a\n-- about :it\nselect :x, :y::text, :x\n\n-- name: b\nselect 1\n")
    assert queries == {
        "a": Query("a", "-- about :it\nselect $1, $2::text, $1", ("x", "y")),
        "b": Query("b", "select 1", ()),
    }


def test_two_queries_of_one_name_are_a_bug_f50() -> None:
    with pytest.raises(BugError, match="two blocks named a"):
        load("-- name: a\nselect 1\n-- name: a\nselect 2\n")


def test_a_fragment_is_inserted_without_its_comments() -> None:
    text = """
-- fragment: mine
-- Rows of :owner.
owner = :owner

-- fragment: mine_and_old
{{mine}} and age > :age

-- name: a
select 1 where {{mine_and_old}}
"""
    assert load(text) == {"a": Query("a", "select 1 where owner = $1 and age > $2", ("owner", "age"))}


def test_a_fragment_that_is_not_defined_above_is_a_bug() -> None:
    with pytest.raises(BugError, match=r"a in queries.sql uses \{\{b\}\}, which is not defined above it"):
        load("-- name: a\nselect {{b}}\n\n-- fragment: b\n1\n")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "text"),
        (True, "boolean"),
        (False, "boolean"),
        (-(2**63), "bigint"),
        (1.5, "float8"),
        ("", "text"),
        ('it\'s \\ "ü" \n', "text"),
        ({"a": [1, None, "ü"]}, "jsonb"),
        ([], "bigint[]"),
        ([1, -2, 2**62], "bigint[]"),
        ([0.1, 2], "float8[]"),
        ([True, False], "boolean[]"),
        (["a", ""], "text[]"),
        ([None, 1], "integer[]"),
        ([None, "NULL", "null", '"', "\\", "{}", ",", " a ", "ü"], "text[]"),
        ([[1, 2], [3, 4]], "integer[]"),
        ([7, 7, 7], "integer[]"),
        ([None, None], "integer[]"),
        (['a "b"', 'a "b"'], "text[]"),
    ],
)
def test_any_value_is_bound_unchanged_f50(pg: pq.abc.PGconn, value: object, kind: str) -> None:
    assert _echo(pg, value, kind) == value


@SLOW_FIXTURE
@given(values=st.lists(st.one_of(st.none(), TEXT)))
def test_any_texts_survive_array_binding_f50(pg: pq.abc.PGconn, values: list[str | None]) -> None:
    assert _echo(pg, values, "text[]") == values


@SLOW_FIXTURE
@given(values=st.lists(st.text()))
def test_no_text_at_all_breaks_an_array_f50(pg: pq.abc.PGconn, values: list[str]) -> None:
    assert _echo(pg, values, "text[]") == [encode(value).decode() for value in values]  # type: ignore[union-attr]


@pytest.mark.slow
@SLOW_FIXTURE
@given(value=st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_jsonb_accepts_any_output_of_an_agent_f50(pg: pq.abc.PGconn, value: object) -> None:
    result = pg.exec_params(b"select $1::jsonb", [to_json(value)])
    assert result.status == pq.ExecStatus.TUPLES_OK, result.get_error_message()


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("a\0b", b"a\\x00b"),
        (b"a\0b", b"a\\x00b"),
        ("\udc80", b"\\udc80"),
        (["a\0"], b'{"a\\\\x00"}'),
        ({"a": "\0"}, b'{"a":"\\\\x00"}'),
        ({"a": "\ud800"}, b'{"a":"\\\\ud800"}'),
        ({"a": "\\u0000"}, b'{"a":"\\\\u0000"}'),
    ],
)
def test_characters_that_no_text_can_hold_are_escaped_f50(value: object, sent: bytes) -> None:
    assert encode(value) == sent


def test_an_unknown_parameter_is_a_bug_f50() -> None:
    with pytest.raises(BugError, match="object"):
        encode(object())


@pytest.mark.parametrize("file", ["queries.sql", "cli.sql", "web.sql"])
def test_every_query_is_prepared_by_postgres_f50(database: str, file: str) -> None:
    connection = pq.PGconn.connect(database.encode())
    queries = load((schema_dir() / file).read_text()).values()
    results = {query.name: connection.prepare(query.name.encode(), query.sql.encode()) for query in queries}
    assert {name: r.get_error_message() for name, r in results.items() if r.status != 1} == {}


# A statement on data, or what begins like one and is put together elsewhere; settings of a session (`set`, `listen`)
# stand where the session is set up.
SQL_WORDS = re.compile(
    r"""
    ^\s*(
        select\b | insert\s+into\b | update\s+\S+\s+set\b | delete\s+from\b | truncate\s | merge\s+into\b
      | with\s+(recursive\s+)?\w+(\s*\([^)]*\))?\s+as\s+(materialized\s*)?\( | values\s*\(
      | (create|alter|drop|lock)\s+(or\s+replace\s+)?(table|view|function|trigger|index|role|schema|type)\b
      | copy\s+\S+\s*(\([^)]*\)\s*)?(from|to)\s | call\s+\S+\s*\( | declare\s+\S+\s+(scroll\s+)?cursor\b
    )
    | \b(select\s.+\sfrom | insert\s+into | update\s+\S+\s+set | delete\s+from)\s
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
# model/sql_text.py wraps the SQL of jobs, which is data to it; the others run before the daemon, or are its clients.
MAY_SPEAK_SQL = ("drivers/", "model/sql_text.py", "cli/", "web/", "database/")
SOURCES = [path for path in PACKAGE.rglob("*.py") if "_data" not in path.parts]  # not agents and examples in a wheel
SILENT = sorted(
    path.relative_to(PACKAGE).as_posix()
    for path in SOURCES
    if not path.relative_to(PACKAGE).as_posix().startswith(MAY_SPEAK_SQL)
)


def sql_in(source: str) -> list[str]:
    """Return the texts of a module that are SQL, however they are quoted; no docstring is one."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    texts = [_text_of(node) for node in nodes if id(node) not in docs | parts]
    return [text for text in texts if text and SQL_WORDS.search(text)]


def _text_of(node: ast.AST) -> str:
    match node:
        case ast.JoinedStr(values=parts):
            return "".join(_text_of(part) or "x" for part in parts)
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(raw)):
            return raw.decode("latin-1")
    return ""


@pytest.mark.parametrize("name", SILENT)
def test_sql_occurs_in_schema_and_drivers_only_f50_f140(name: str) -> None:
    assert sql_in((PACKAGE / name).read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'x = "select a from b"',
        "x = 'select a from b'",
        'x = """\n  select a\n    from b\n"""',
        "x = b'delete from b'",
        'x = f"update {table} set a = 1"',
        'x = "select a " + columns',
        'x = ("insert into " "b values (1)")',
        'x = "with a as (select 1) table a"',
        'run("truncate b", 1)',
        'def f():\n    """Not this."""\n    return "-- why\\n select a from b"',
    ],
)
def test_sql_is_found_however_it_is_quoted_f50(source: str) -> None:
    assert len(sql_in(source)) == 1


@pytest.mark.parametrize(
    "source", ['"""Select a row from b."""', 'x = "with exit status 1"', 'x = "reset"', 'x = "listen a"', "x = 1"]
)
def test_text_that_is_not_sql_is_not_found_f50(source: str) -> None:
    assert sql_in(source) == []


def test_psycopg_is_imported_by_few_f140() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in SOURCES
        if re.search(r"^\s*(import|from) psycopg(?!\.conninfo)", path.read_text(), re.MULTILINE)
    }
    allowed = ("drivers/libpq.py", "drivers/postgres.py", "drivers/statements.py", "database/", "cli/", "web/")
    assert [name for name in sorted(users) if not name.startswith(allowed)] == []


def test_only_the_documented_part_of_psycopg_is_used_f50() -> None:
    assert psycopg.__version__.startswith("3.3.")
    texts = [path.read_text() for path in SOURCES]
    assert not any(re.search(r"^\s*(import|from) psycopg\.generators", text, re.MULTILINE) for text in texts)
