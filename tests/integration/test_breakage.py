"""Faults that a hostile tester found in a running daemon, each with its smallest reproduction."""

from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from scheduler.model.queue_requests import LogRow
from scheduler.policy.deadlines import Deadlines
from scheduler.policy.outbox import LOG_SIZE, Outbox
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, python, rec
from tests.patience import PATIENCE_S

HOST = "[hosts.alpha]\n"
LONG = "x" * 200_000  # no argument of a program may be so long
CLOSING = python("import os, sys, time\nprint('OK')\nsys.stdin.readline()\nos.close(1)\ntime.sleep(1000)")


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


@pytest.fixture
def daemon(launch: Launch, record: Path) -> Daemon:
    echo = agent("echo", ["echo", "{args}"], kind="exec") + agent("row", ["echo", "{v}"], kind="exec")
    return launch(HOST + agent("rec", rec(record)) + echo + agent("closing", CLOSING))


# ---- rows


@pytest.mark.parametrize("column", ["jq_not_before", "jq_not_after"])
def test_a_row_with_a_very_distant_start_does_not_delay_others(daemon: Daemon, column: str) -> None:
    waiting = {"jq_args": "gate:/nowhere"} if column == "jq_not_after" else {"jq_args": "never"}
    daemon.insert(jq_type="rec" if column == "jq_not_before" else "nobody", **waiting, **{column: "9999-12-31"})
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args="die:1", jq_retries=1), "failed")
    assert row["jq_attempt"] == 2


def test_a_job_may_fail_more_often_than_a_float_has_doublings(daemon: Daemon) -> None:
    pk = daemon.insert(jq_type="rec", jq_args="die:1", jq_retries=2_000_000_000, jq_state="held")
    daemon.execute("update drover.jobqueue set jq_failures = 5000, jq_state = 'queued' where jq_pk = %s", pk)
    assert daemon.wait(daemon.insert(jq_type="rec", jq_args="another"))["jq_state"] == "done"
    assert daemon.until(lambda: daemon.row(pk)["jq_failures"] == 5001)


# ---- queries


@pytest.mark.parametrize("query", ["select $1", "select $1::int as a, $2 as b"])
def test_a_query_with_parameters_fails_at_once(daemon: Daemon, query: str) -> None:
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True), "failed")
    assert "08P01" in row["jq_endtext"]


def test_a_query_that_ends_its_own_connection_is_not_retried_for_ever(daemon: Daemon) -> None:
    query = "select pg_terminate_backend(pg_backend_pid())"
    row = daemon.wait(daemon.insert(jq_type="rec", jq_args=query, jq_msq=True, jq_max_interruptions=2), "failed")
    assert row["jq_attempt"] <= 4


@pytest.mark.slow
def test_an_endless_query_does_not_outlive_a_daemon_that_was_killed(daemon: Daemon) -> None:
    daemon.insert(jq_type="rec", jq_args="select pg_sleep(1000)", jq_msq=True)
    count = "select count(*) from pg_stat_activity where usename = 'drover_msq' and datname = current_database()"
    daemon.until(lambda: daemon.value(count + " and state = 'active'") == 1)
    daemon.kill()
    assert daemon.until(lambda: daemon.value(count) == 0)


# ---- agents


def test_arguments_that_are_too_long_fail_their_items_only(daemon: Daemon) -> None:
    pks = daemon.insert_all([{"jq_type": "echo", "jq_args": LONG}] * 8)
    assert "Argument list too long" in daemon.wait_all(pks, "failed")[-1]["jq_endtext"]
    daemon.wait(daemon.insert(jq_type="echo", jq_args="short"))


def test_rows_whose_arguments_are_too_long_fail_their_items_only(daemon: Daemon) -> None:
    query = f"select repeat('x', case when n = 4 then 10 else {len(LONG)} end) as v from generate_series(1, 8) n"
    row = daemon.wait(daemon.insert(jq_type="row", jq_args=query, jq_msq=True, jq_tolerate=7))
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"]) == (1, 7)


@pytest.mark.slow
def test_an_agent_that_closes_its_stdout_fails_its_item(daemon: Daemon) -> None:
    row = daemon.wait(daemon.insert(jq_type="closing", jq_args="x"), "failed")
    assert row["jq_endtext"] == "agent terminated prematurely, by SIGKILL"


def test_the_head_of_the_line_of_a_failed_item_is_kept(daemon: Daemon) -> None:
    query = "select 'say:FAIL no' as act, repeat('x', 900000) as v"
    pk = daemon.insert(jq_type="rec", jq_args=query, jq_msq=True)
    daemon.wait(pk, "failed")
    assert daemon.value("select length(item_line) from drover.item_failure where item_jq_fk = %s", pk) < 10_000


def test_long_lines_of_a_log_are_kept_up_to_a_size_and_counted() -> None:
    ledger, long = Outbox(Deadlines()), "x" * (1 << 20)
    for _ in range(100):
        ledger.log(LogRow(None, "LOG", None, None, None, long))
    assert (len(ledger.logs), ledger.lost_logs) == (LOG_SIZE >> 20, 100 - (LOG_SIZE >> 20))
    while ledger.next_request((), 0.0):
        ledger.answered()
    assert (ledger.log_rows, ledger.log_size) == (0, 0)


# ---- endings


@pytest.fixture
def away(daemon: Daemon) -> Iterator[None]:
    """The daemon's database takes nobody any more; whoever is connected as its role is thrown out."""
    name = conninfo_to_dict(daemon.database)["dbname"]
    daemon.wait(daemon.insert(jq_type="rec", jq_args="warm"))
    pk = daemon.insert(jq_type="rec", jq_args="nap:1000")
    daemon.wait(pk, "running")
    with psycopg.connect(daemon.database, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"alter database {name} with allow_connections false")
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where usename = 'drover_scheduler' and datname = %s", [name]
        )  # fmt: skip
        yield
        connection.execute(f"alter database {name} with allow_connections true")


@pytest.mark.slow
@pytest.mark.usefixtures("away")
def test_sigterm_ends_a_daemon_whose_database_is_down(daemon: Daemon) -> None:
    daemon.until(lambda: "queue connection" in daemon.stderr())
    assert daemon.stop(SIGTERM, timeout=PATIENCE_S / 2) == 0
    assert "has not taken all in time" in daemon.stderr()


# ---- the database


@pytest.mark.slow
@pytest.mark.parametrize("table", ["scheduler_group", "attempt_kept", "in_hand"])
def test_a_locked_table_delays_jobs_and_loses_none(daemon: Daemon, table: str) -> None:
    with psycopg.connect(daemon.database) as locker:
        locker.execute(f"lock table drover.{table} in access exclusive mode")
        pk = daemon.insert(jq_type="rec", jq_args="x")
        daemon.until(lambda: daemon.stderr().count("lock timeout") > 1, what="nothing waits for it")
        assert daemon.process.poll() is None
    daemon.wait(pk)


@pytest.mark.slow
def test_a_read_only_database_delays_jobs_and_loses_none(daemon: Daemon) -> None:
    name = conninfo_to_dict(daemon.database)["dbname"]
    daemon.wait(daemon.insert(jq_type="rec", jq_args="over a connection that may write"))
    daemon.execute(f"alter database {name} set default_transaction_read_only = on")
    daemon.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'drover_scheduler'"
        " and datname = current_database()"
    )
    daemon.until(lambda: "read-only" in daemon.stderr())
    pk = daemon.insert(jq_type="rec", jq_args="x")
    daemon.until(lambda: "past the lease" in daemon.stderr())  # all the while it tries again, and says it once
    assert daemon.row(pk)["jq_state"] == "queued"
    daemon.execute(f"alter database {name} reset default_transaction_read_only")
    daemon.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'drover_scheduler'"
        " and datname = current_database()"
    )
    assert daemon.wait(pk)["jq_attempt"] == 1
