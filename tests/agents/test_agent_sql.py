"""Claims about drover-agent-sql: what it runs on a real database, and what it says of errors."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.agent_tools import Agent, bundled, record
from tests.patience import PATIENCE_S

Make = Callable[..., Agent]


@pytest.fixture
def make(empty_database: str, tmp_path: Path) -> Iterator[Make]:
    """Start agents on an empty database, which its service file names."""
    services = tmp_path / "services"
    lines = [f"{name}={value}" for name, value in conninfo_to_dict(empty_database).items()]
    services.write_text("\n".join(["[site]", *lines, "[none]", "host=/nonexistent", ""]))
    with ExitStack() as stack:
        yield lambda *options, service="site": stack.enter_context(
            bundled("sql", *options, PGSERVICE=service, PGSERVICEFILE=str(services))
        )


def result(said: list[bytes]) -> Any:
    return json.loads(said[-1].removeprefix(b"RESULT "))


@pytest.mark.slow
def test_the_item_is_run_as_sql(make: Make) -> None:
    agent = make()
    assert result(agent.work(b"create table t (a int, b text)")) == {"status": "CREATE TABLE", "count": -1}
    told = result(agent.work(b"insert into t values (1, 'x%s'), (2, null)"))
    assert told == {"status": "INSERT 0 2", "count": 2}
    told = result(
        agent.work(b"select a, b, now() > 'epoch' as c, 1.5 as d, '\\x00ff'::bytea as e, '{1,2}'::int[] as f from t")
    )
    assert told["columns"] == ["a", "b", "c", "d", "e", "f"]
    assert told["rows"] == [[1, "x%s", True, "1.5", "\\x00ff", [1, 2]], [2, None, True, "1.5", "\\x00ff", [1, 2]]]


@pytest.mark.slow
def test_statements_of_one_item_are_one_transaction(make: Make) -> None:
    agent = make()
    assert agent.work(b"create table t (); select 1/0")[0].startswith(b"FAIL 22012: division by zero")
    assert agent.work(b"table t")[0].startswith(b'FAIL 42P01: relation "t" does not exist')


def test_a_statement_gets_the_columns_as_parameters_c53(make: Make) -> None:
    agent = make("select %(path)s::text as path, %(id)s::int + 1 as next, %(gone)s::text as gone")
    hostile = b"'; drop table t; -- $1 %(id)s\n\t"
    told = result(agent.work(record({"id": b"7", "path": hostile})))
    assert told["rows"] == [[hostile.decode(), 8, None]]


@pytest.mark.slow
def test_long_answers_are_cut_with_a_mark(make: Make) -> None:
    agent = make("--rows", "3")
    told = result(agent.work(b"select * from generate_series(1, 1000)"))
    assert (told["count"], told["rows"], told["cut"]) == (1000, [[1], [2], [3]], True)
    told = result(make("--rows", "100000").work(b"select repeat('x', 1000) from generate_series(1, 5000)"))
    assert (told["cut"], 400 < len(told["rows"]) < 600) == (True, True)


def test_notices_are_logged(make: Make) -> None:
    said = make().work(b"do $$ begin raise notice 'half'; end $$")
    assert said[0] == b"LOG NOTICE: half"


@pytest.mark.parametrize(
    "line", [b"select '\xe9'", b"selec 1", b"copy pg_class to stdout", b"select E'\\\\x'::bytea::json"]
)
def test_a_statement_that_fails_leaves_the_agent_ready_t16(make: Make, line: bytes) -> None:
    agent = make()
    assert agent.work(line)[0].startswith(b"FAIL! 42601: " if line == b"selec 1" else b"FAIL ")
    assert result(agent.work(b"select 1 as one"))["rows"] == [[1]]


def test_a_transaction_that_is_left_open_is_rolled_back(make: Make) -> None:
    agent = make()
    assert result(agent.work(b"begin; create table t ()"))["status"] == "CREATE TABLE"
    assert agent.work(b"table t")[0].startswith(b"FAIL 42P01: ")


def test_a_database_that_is_away_blocks_the_job_t16(make: Make) -> None:
    (said,) = make(service="none").work(b"select 1")
    assert said.startswith(b"BLOCKED database connection ")


def test_a_connection_that_is_lost_is_made_anew(make: Make) -> None:
    agent = make()
    (said,) = agent.work(b"select pg_terminate_backend(pg_backend_pid())")
    assert said.startswith(b"BLOCKED database ")
    assert result(agent.work(b"select 1 as one"))["rows"] == [[1]]


@pytest.mark.slow
def test_a_statement_ends_at_the_time_limit(make: Make, empty_database: str) -> None:
    agent = make("--timeout", "0.3")
    assert agent.work(b"select pg_sleep(600)") == [b"FAIL not done within 0.3 s"]
    assert is_idle(empty_database)


@pytest.mark.parametrize("how", ["stdin", "hup"])
def test_a_statement_is_cancelled_when_the_agent_has_to_end_f83_f111(make: Make, empty_database: str, how: str) -> None:
    agent = make()
    agent.say(b"do $$ begin raise notice 'on'; perform pg_sleep(600); end $$")
    assert agent.hear() == b"LOG NOTICE: on"
    if how == "stdin":
        agent.hang_up()
    else:
        agent.process.send_signal(signal.SIGHUP)
    assert agent.end(PATIENCE_S) == (0 if how == "stdin" else -signal.SIGHUP)
    assert is_idle(empty_database)


def is_idle(database: str) -> bool:
    """Wait until no other session is at work in the database."""
    busy = "select count(*) from pg_stat_activity where application_name = 'drover-agent-sql' and state = 'active'"
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(int(PATIENCE_S * 20)):
            row = connection.execute(busy).fetchone()
            if row == (0,):
                return True
            connection.execute("select pg_sleep(0.05)")
    return False


@pytest.mark.parametrize(
    "value",
    [b"(repeat('[', 3000) || repeat(']', 3000))::json", b"repeat('7', 5000)::json", b"repeat('7', 5000)::jsonb"],
)
def test_value_that_python_cannot_read_fails_the_item_and_the_agent_lives(make: Make, value: bytes) -> None:
    agent = make()
    (said,) = agent.work(b"select " + value)
    assert said.startswith((b"FAIL maximum recursion depth", b"FAIL Exceeds the limit"))
    assert result(agent.work(b"select 1"))["rows"] == [[1]]
