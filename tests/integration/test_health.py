"""What `drover status` warns of: each trouble made on a real server, and told by whose fault it is."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.database_session import Session
from scheduler.cli.health import COLUMNS, OF_DATABASE, Check, Limits, database_warnings
from scheduler.cli.unknown_checks import NotLooked, look
from tests.cli_tools import Drover, insert
from tests.conftest import _database
from tests.patience import PATIENCE_S
from tests.schema_tools import fetch_all, walk_suspects

Login = Callable[..., psycopg.Connection[Any]]

NOW = timedelta(0)
NEVER = timedelta(days=1)
UNSAFE_TEST_SERVER = {"setting fsync", "setting full_page_writes", "setting synchronous_commit"}
SLEEP = b"begin; lock table drover.jobqueue in access share mode; select pg_sleep(1000)"
MINE = "select pid from pg_stat_activity where pid = %s and state = 'active' and wait_event = 'PgSleep'"
WAITING = "select pid from pg_locks where pid = %s and not granted and waitstart < clock_timestamp()"
FLUSH = "select pg_stat_force_next_flush()"


@pytest.fixture
def login(database: str) -> Iterator[Login]:
    """Connect once more to the database of `connection`; parts of the conninfo by name."""
    with ExitStack() as stack:

        def connect(**parts: str) -> psycopg.Connection[Any]:
            other = psycopg.connect(make_conninfo(database, **parts), autocommit=True)
            stack.callback(other.close)  # leaving it as a context would wait for a query that goes on
            return other

        yield connect


def warnings(connection: psycopg.Connection, limits: Limits) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in database_warnings(Session(connection), limits)]


def told(connection: psycopg.Connection, kind: str, **limits: Any) -> list[dict[str, Any]]:
    """Return the warnings of one kind; a transaction of its own, as `drover status` is."""
    with connection.transaction():
        records = warnings(connection, Limits(**limits))
    return [record for record in records if record["warning"] == kind]


def pid_of(connection: psycopg.Connection) -> str:
    return f"pid {connection.info.backend_pid},"


def until(connection: psycopg.Connection, query: str, *values: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not connection.execute(query.encode(), values).fetchone():
        assert time.monotonic() < deadline, query


def count_now(connection: psycopg.Connection) -> None:
    """Let the server's statistics have what this session did."""
    with connection.transaction():
        connection.execute(FLUSH)


def test_database_in_order_has_no_warning(connection: psycopg.Connection) -> None:
    with connection.transaction():
        found = warnings(connection, Limits())
    assert {record["who"] for record in found} == UNSAFE_TEST_SERVER


# Settings


def test_setting_of_the_checking_session_is_not_taken_for_the_servers(connection: psycopg.Connection) -> None:
    connection.execute("set track_counts = off")
    assert {record["who"] for record in told(connection, "setting off")} == UNSAFE_TEST_SERVER


@pytest.mark.parametrize("word", ["false", "off"])
def test_table_with_autovacuum_switched_off_is_reported(connection: psycopg.Connection, word: str) -> None:
    connection.execute(f"alter table drover.log set (autovacuum_enabled = {word})".encode())
    assert [record["who"] for record in told(connection, "no autovacuum")] == ["table drover.log"]


def test_table_with_autovacuum_switched_on_is_not_reported(connection: psycopg.Connection) -> None:
    connection.execute("alter table drover.log set (autovacuum_enabled = on)")
    assert told(connection, "no autovacuum") == []


# Transactions that keep dead rows


def test_old_snapshot_is_reported_with_its_owner(connection: psycopg.Connection, login: Login) -> None:
    other = login(application_name="gui")
    other.execute("begin isolation level repeatable read; select from drover.jobqueue")
    (found,) = told(connection, "old transaction", transaction=NOW)
    assert found["who"] == f"{pid_of(other)} user postgres, application gui"
    assert "pg_terminate_backend" in found["next"]
    assert told(connection, "old transaction") == []


def test_idle_transaction_that_only_reads_is_not_reported(connection: psycopg.Connection, login: Login) -> None:
    login().execute("begin; select from drover.jobqueue")
    assert told(connection, "old transaction", transaction=NOW) == []


def test_idle_transaction_that_has_written_is_reported(connection: psycopg.Connection, login: Login) -> None:
    other = login()
    other.execute("begin")
    insert(other)
    (found,) = told(connection, "old transaction", transaction=NOW)
    assert found["who"].startswith(pid_of(other))


@pytest.mark.parametrize(("statement", "number"), [("select txid_current()", 1), ("select 1", 0)])
def test_transaction_of_another_database_counts_once_it_writes(
    connection: psycopg.Connection, postgres: str, migrated: str, statement: str, number: int
) -> None:
    with _database(postgres, migrated) as (_, conninfo), psycopg.connect(conninfo) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute(statement.encode())
        assert len(told(connection, "old transaction", transaction=NOW)) == number


# Dead rows


def test_dead_rows_are_reported_until_they_are_removed(connection: psycopg.Connection) -> None:
    connection.execute("insert into drover.jobqueue (jq_type) select 'noop' from generate_series(1, 500)")
    connection.execute("delete from drover.jobqueue")
    count_now(connection)
    found = told(connection, "dead rows", dead_rows=400, vacuum=NOW)
    assert [record["who"] for record in found] == ["table drover.claimable", "table drover.jobqueue"]
    connection.execute("vacuum drover.jobqueue, drover.claimable")
    assert told(connection, "dead rows", dead_rows=400, vacuum=NOW) == []


def test_dead_rows_that_autovacuum_has_not_reached_are_not_reported(connection: psycopg.Connection) -> None:
    connection.execute("insert into drover.jobqueue (jq_type) select 'noop' from generate_series(1, 500)")
    connection.execute("delete from drover.jobqueue")
    count_now(connection)
    assert told(connection, "dead rows", dead_rows=400, vacuum=NEVER) == []


# Queries without an index


@pytest.fixture
def rows(connection: psycopg.Connection) -> psycopg.Connection:
    """Jobs 1 to 100."""
    connection.execute("insert into drover.jobqueue (jq_type) select 'noop' from generate_series(1, 100)")
    return connection


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("select count(*) from drover.jobqueue where jq_args like 'x'", 1),
        ("select from drover.jobqueue where jq_pk = 7", 0),
    ],
    ids=["all rows", "by the index"],
)
def test_repeated_sequential_scans_of_the_queue_are_reported(rows: psycopg.Connection, query: str, number: int) -> None:
    rows.execute("set enable_seqscan = off")
    rows.cursor().executemany(query.encode(), [()] * 20)
    count_now(rows)
    assert len(told(rows, "scans", scanned_rows=100, scans_per_hour=10)) == number


def test_sequential_scans_of_a_small_queue_are_not_reported(rows: psycopg.Connection) -> None:
    rows.execute("select count(*) from drover.jobqueue")
    count_now(rows)
    assert told(rows, "scans", scans_per_hour=0) == []


@pytest.mark.parametrize(("application", "number"), [("gui", 1), ("drover", 0), ("pg_dump", 0)])
def test_long_query_on_the_queue_is_reported_with_its_text(
    connection: psycopg.Connection, login: Login, application: str, number: int
) -> None:
    reader = login(application_name=application)
    reader.pgconn.send_query(SLEEP)
    until(connection, MINE, reader.info.backend_pid)
    found = told(connection, "slow query", query=NOW)
    assert [record["who"] for record in found] == [f"{pid_of(reader)} user postgres, application gui"] * number
    assert [record["what"].endswith("select pg_sleep(1000)") for record in found] == [True] * number


def test_long_query_on_other_tables_is_not_reported(connection: psycopg.Connection, login: Login) -> None:
    reader = login()
    reader.pgconn.send_query(b"select pg_sleep(1000)")
    until(connection, MINE, reader.info.backend_pid)
    assert told(connection, "slow query", query=NOW) == []


# Locks


def test_transaction_that_keeps_rows_locked_is_reported(rows: psycopg.Connection, login: Login) -> None:
    other = login()
    other.execute("begin; select from drover.jobqueue where jq_pk = 1 for update")
    (found,) = told(rows, "lock", lock=NOW)
    assert found["who"].startswith(pid_of(other))
    assert "leaves rows of the queue locked; idle in transaction" in found["what"]
    assert told(rows, "lock") == []


def test_transaction_that_blocks_others_is_reported(rows: psycopg.Connection, login: Login) -> None:
    holder, waiter = login(), login()
    holder.execute("begin; select from drover.jobqueue where jq_pk = 1 for update")
    waiter.pgconn.send_query(b"select from drover.jobqueue where jq_pk = 1 for update")
    until(rows, WAITING, waiter.info.backend_pid)
    (found,) = told(rows, "lock", blocked=NOW)
    assert found["who"].startswith(pid_of(holder))
    assert "others wait" in found["what"]


# Who may see


def test_role_that_cannot_see_sessions_gets_a_note(database_with_roles: str) -> None:
    with psycopg.connect(database_with_roles, user="drover_scheduler") as connection:
        (found,) = told(connection, "hidden")
    assert found["who"] == "role drover_scheduler"
    assert "pg_read_all_stats" in found["next"]


def test_check_that_takes_too_long_is_said_to_be_skipped(connection: psycopg.Connection) -> None:
    found = look(Session(connection), lambda: connection.execute("select pg_sleep(60)"), 300)
    assert isinstance(found, NotLooked)
    assert found.why == "time limit: it took over 0.3 s and was skipped"


def test_health_check_that_times_out_is_reported_and_the_others_go_on(
    connection: psycopg.Connection, login: Login
) -> None:
    login().execute("begin; lock table drover.migration")
    (found,) = told(connection, "not looked for", timeout_ms=round(10 * PATIENCE_S))
    assert (found["who"], found["what"]) == ("scans", "lock: canceling statement due to lock timeout")
    assert connection.execute("show statement_timeout").fetchone() == ("0",)


# drover status


def test_status_shows_warnings_before_all_tables(drover: Drover, active: psycopg.Connection) -> None:
    active.execute("alter table drover.log set (autovacuum_enabled = false)")
    text = drover("status").out
    assert text.index("Warnings") < text.index("table drover.log") < text.index("group default: ")


def test_status_as_json_has_a_list_of_warnings(drover: Drover, connection: psycopg.Connection) -> None:
    connection.execute("alter table drover.log set (autovacuum_enabled = false)")
    found = json.loads(drover("status", "--json").out)["warnings"]
    assert [record for record in found if record["warning"] == "no autovacuum"] == [
        {
            "warning": "no autovacuum",
            "who": "table drover.log",
            "age": None,
            "what": "autovacuum is switched off for it: dead rows stay",
            "next": "as the owner of the table: alter table ... reset (autovacuum_enabled)",
        }
    ]


# what keeps work waiting

RESTING = """
update drover.agent set agent_blocked_since = now() - interval '2 min', agent_blocked_until = now() + interval '3 min',
       agent_reason = 'no OK within 60 s' where agent_type = 'noop'
"""
SHORT = """
insert into drover.scheduler_status (status_scheduler, status_slot, status_state, status_state_name, status_since,
                                     status_parameter)
  select group_owner, -1, 1, 'serving', now(), '{"shortages": ["host local cannot start more than 9 agents"]}'
    from drover.scheduler_group
"""


def first_warning(drover: Drover) -> Any:
    return json.loads(drover("status", "--json").out)["warnings"][0]


def test_status_warns_first_of_a_throttled_type_with_waiting_jobs(drover: Drover, active: psycopg.Connection) -> None:
    active.execute("alter table drover.log set (autovacuum_enabled = false)")
    active.execute("insert into drover.jobqueue (jq_type) values ('noop'), ('noop')")
    active.execute(RESTING)
    found = first_warning(drover)
    assert (found["warning"], found["who"]) == ("agents failed", "type noop")
    assert re.fullmatch(r"agent type noop failed, next try .*: no OK within 60 s; jobs that wait: 2", found["what"])
    advised = found["next"].rpartition("drover ")[2].replace("TYPE", "noop").split()
    assert "1 of 1 commands" in drover(*advised, "--wait=0").err  # given, so that it is one


def test_status_does_not_warn_of_a_throttled_type_without_jobs(drover: Drover, active: psycopg.Connection) -> None:
    active.execute(RESTING)
    assert "agents failed" not in drover("status").out


def test_status_warns_first_of_waiting_jobs_without_a_scheduler(drover: Drover, active: psycopg.Connection) -> None:
    active.execute("insert into drover.jobqueue (jq_type) values ('noop')")
    active.execute("update drover.scheduler_group set group_lease_until = now() - interval '1 min'")
    found = first_warning(drover)
    assert (found["warning"], found["what"]) == ("no scheduler", "no scheduler is active; jobs that wait: 1")


def test_status_warns_of_a_machine_that_can_start_no_more_agents(drover: Drover, active: psycopg.Connection) -> None:
    active.execute(SHORT)
    found = first_warning(drover)
    assert (found["warning"], found["what"]) == ("no more agents", "host local cannot start more than 9 agents")


def test_a_filling_notify_queue_is_reported_with_the_age_of_the_idle_transaction(
    connection: psycopg.Connection, login: Login
) -> None:
    listener = login()
    listener.execute("listen anything")
    listener.execute("begin")
    (warning,) = told(connection, "notifications", notifications=-1.0)
    assert warning["who"] == "NOTIFY queue"
    assert warning["what"].startswith("0 % full")
    assert warning["age"] > NOW


# What cannot be


def test_status_tells_what_cannot_be_which_and_what_to_do_t119(connection: psycopg.Connection, drover: Drover) -> None:
    jobs = [insert(connection) for _ in range(2)]
    connection.execute("delete from drover.claimable")
    walk_suspects(partial(fetch_all, connection))
    (found,) = told(connection, "impossible")
    assert (found["who"], found["what"]) == (f"job {jobs[0]}", "is queued, and no claim can find it; such jobs: 2")
    assert found["next"] == f"drover hold {jobs[0]}, then drover release {jobs[0]}"
    assert "no claim can find it" in drover("status").out


def test_impossible_rows_were_not_looked_for_while_no_scheduler_walks(connection: psycopg.Connection) -> None:
    insert(connection)
    (found,) = told(connection, "not looked for")
    assert (found["who"], found["age"], found["what"]) == ("impossible", None, "no scheduler has looked yet")
    walk_suspects(partial(fetch_all, connection))
    assert told(connection, "not looked for") == []
    connection.execute("update drover.suspect_walk set walk_at = now() - interval '6 minutes'")
    (found,) = told(connection, "not looked for")
    assert (found["who"], found["what"]) == ("impossible", "no scheduler has looked since")
    assert found["age"] >= timedelta(minutes=6)


def test_a_scheduler_that_has_just_begun_need_not_have_looked(active: psycopg.Connection) -> None:
    insert(active)
    assert told(active, "not looked for") == []
    active.execute("update drover.scheduler_group set group_taken_at = now() - interval '6 minutes'")
    assert [found["who"] for found in told(active, "not looked for")] == ["impossible"]


def test_what_the_advice_says_mends_a_job_without_a_token_t119(connection: psycopg.Connection) -> None:
    job = insert(connection)
    connection.execute("delete from drover.claimable")
    connection.execute("update drover.jobqueue set jq_state = 'held' where jq_pk = %s", (job,))
    connection.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", (job,))
    walk_suspects(partial(fetch_all, connection))
    assert told(connection, "impossible") == []


IN_SQL = re.compile("pg_(terminate|cancel)_backend|alter table|vacuum|prepared|slot;|switch it on")


@pytest.mark.parametrize(
    "check", [each for each in OF_DATABASE if IN_SQL.search(each.next)], ids=lambda each: each.kind
)
def test_next_step_that_an_operator_may_not_take_names_who_may(check: Check) -> None:
    assert re.search("superuser|owner of the table", check.next)
