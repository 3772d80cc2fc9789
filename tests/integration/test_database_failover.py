"""The database is read only, moves to a replica, or is lost by one of two daemons: no job is lost or done twice."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.database import migrate
from scheduler.database.embedded import temporary
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, rec, start
from tests.integration.database_door import LASTING, QUICK, SLOW, Door, cut, execute
from tests.needs import need
from tests.patience import PATIENCE_S
from tests.replica_tools import replica, synchronise, until

HOST = "[hosts.alpha]\n"


# ---- read only, and another server


def test_a_daemon_waits_until_a_read_only_database_is_writable_r79(launch: Launch, record: Path) -> None:
    daemon = launch(SLOW + HOST + agent("a", rec(record)))
    daemon.login("drover_frontend_sql")  # whoever is connected may write
    name = conninfo_to_dict(daemon.database)["dbname"]
    daemon.execute(f"alter database {name} set default_transaction_read_only = on")
    cut(daemon.database)
    daemon.until(lambda: daemon.stderr().count("session is read-only") >= 2)
    pk = daemon.insert(jq_type="a", jq_args="x")
    early = daemon.row(pk)["jq_state"]
    daemon.execute(f"alter database {name} reset default_transaction_read_only")
    assert (early, daemon.wait(pk)["jq_attempt"]) == ("queued", 1)


@pytest.mark.slow
def test_a_running_daemon_waits_while_its_server_is_read_only(own_server: str, record: Path) -> None:
    with start(SLOW + HOST + agent("a", rec(record)), own_server) as daemon:
        daemon.execute("alter system set default_transaction_read_only = on")
        daemon.execute("select pg_reload_conf()")
        daemon.until(lambda: daemon.value("show default_transaction_read_only") == "on")
        daemon.execute("set default_transaction_read_only = off")
        daemon.login("drover_frontend_sql").execute("set default_transaction_read_only = off")
        pk = daemon.insert(jq_type="a", jq_args="x")
        daemon.until(lambda: daemon.stderr().count("read-only transaction") > 2)
        early = daemon.row(pk)["jq_state"]
        daemon.execute("alter system reset default_transaction_read_only")
        daemon.execute("select pg_reload_conf()")
        assert (early, daemon.wait(pk)["jq_attempt"]) == ("queued", 1)


@pytest.fixture
def own_server() -> Iterator[str]:
    """Yield a server that nobody else uses."""
    need("postgres")
    with temporary(durable=True) as conninfo:
        migrate.update(conninfo)
        yield conninfo


@pytest.mark.slow
def test_a_daemon_follows_its_primary_to_the_replica_that_is_promoted(record: Path, gate: Path) -> None:
    with ExitStack() as stack:
        primary = stack.enter_context(ExitStack())
        here = primary.enter_context(temporary(durable=True))
        migrate.update(here)
        there = stack.enter_context(replica(here))
        synchronise(here)
        daemon = stack.enter_context(start(SLOW + HOST + agent("a", rec(record)), here, via=both(here, there)))
        pk = daemon.insert(jq_type="a", jq_args=f"gate:{gate}")
        daemon.wait(pk, "running")
        primary.close()
        daemon_says(daemon, "session is read-only")
        gate.touch()
        execute(there, "select pg_promote()")
        execute(there, "insert into drover.jobqueue (jq_type, jq_args) values ('a', 'more')")
        until(there, "select where (select count(*) from drover.jobqueue where jq_state = 'done') = 2")
        assert value(there, "select max(jq_attempt) from drover.jobqueue") == 1
        assert lines(record) == [f"gate:{gate}", "more"]


@pytest.mark.slow
def test_a_crash_of_postgres_under_load_loses_no_job_queue_schedule_or_event_t37(own_server: str, record: Path) -> None:
    kept = """select (select count(*) from drover.queue where queue_name = 'kept'),
                     (select count(*) from drover.schedule where schedule_name = 'kept'),
                     (select count(*) from drover.subscription)"""
    done = "select count(*) from drover.jobqueue where jq_state = 'done' and jq_type = 'a'"
    told = "select count(*), count(distinct ev_jq_fk) from drover.event where ev_new = 'done' and ev_is_final"
    with start(QUICK + HOST + agent("a", rec(record), slots=2), own_server) as daemon:
        daemon.execute("select drover.subscribe('status', is_site => true)")
        daemon.wait(daemon.insert(jq_type="command", jq_args="add-queue kept 3", role="drover_operator"))
        job = '{"jq_type": "a"}'
        daemon.execute(
            "insert into drover.schedule (schedule_name, schedule_at, schedule_job) values ('kept', '2100-01-01', %s)",
            job,
        )
        daemon.insert_all([{"jq_type": "a", "jq_args": f"nap:0.01;{n}"} for n in range(200)])
        daemon.until(lambda: daemon.value(done) > 20)
        crash(own_server)
        until(own_server, f"select where ({done}) = 200")
        assert rows(own_server, kept) == [(1, 1, 1)]
        assert rows(own_server, told) == [(200, 200)]
        assert set(lines(record)) == {f"nap:0.01;{n}" for n in range(200)}


def crash(conninfo: str) -> None:
    """Kill a process of the server, which starts anew with what its log has; return when it answers again."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        os.kill(connection.info.backend_pid, SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            rows(conninfo, "select 1")
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def rows(conninfo: str, query: str) -> list[Any]:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def both(here: str, there: str) -> str:
    """Return the conninfo of two servers, whichever can be written to."""
    first, second = conninfo_to_dict(here), conninfo_to_dict(there)
    return make_conninfo(here, host=f"{first['host']},{second['host']}", port=f"{first['port']},{second['port']}")


def daemon_says(daemon: Daemon, words: str) -> None:
    """Wait without the database."""
    deadline = time.monotonic() + PATIENCE_S
    while words not in daemon.stderr():
        assert time.monotonic() < deadline, daemon.stderr()[-3000:]
        time.sleep(0.02)


def value(conninfo: str, query: str) -> Any:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        (found,) = connection.execute(query.encode()).fetchone() or (None,)
    return found


# ---- two daemons


def owner(daemon: Daemon) -> int:
    """Return the pid of the group's owner."""
    query = "select scheduler_pid from drover.scheduler_group join drover.scheduler on scheduler_uuid = group_owner"
    return int(daemon.value(query))


@pytest.mark.slow
def test_the_active_daemon_resumes_after_lost_connections_and_runs_no_job_twice_c14(
    launch: Launch, record: Path
) -> None:
    text = LASTING + HOST + agent("a", rec(record), slots=2)
    first, second = launch(text), launch(text, wait=False)
    first.until(lambda: "standing by" in second.stderr())
    pks = first.insert_all([{"jq_type": "a", "jq_args": f"nap:0.02;{n}"} for n in range(60)])
    for share in range(1, 6):
        first.wait(pks[10 * share])
        cut(first.database, "application_name = any ('{drover queue,drover watch}')")
    rows = first.wait_all(pks)
    assert {row["jq_state"] for row in rows} == {"done"}
    worked = sorted(lines(record))
    assert sorted(set(worked)) == sorted(f"nap:0.02;{n}" for n in range(60))
    assert len(worked) == 60 + sum(row["jq_rescued"] for row in rows if began(first, row["jq_pk"]))
    assert owner(first) == first.pid


def began(daemon: Daemon, pk: int) -> bool:
    """Return whether an attempt that was rescued had come to an agent; a claim that was cut off had not."""
    return any(each["att_outcome"] == "rescued" and each["att_agent"] for each in daemon.attempts(pk))


@pytest.mark.slow
def test_the_standby_takes_over_when_only_the_active_daemon_loses_the_database_c11_c14(
    launch: Launch, door: Door, record: Path, gate: Path
) -> None:
    door.open()
    text = QUICK.replace("lease = 1.5", "lease = 5") + HOST + agent("a", rec(record))
    first = launch(text, via=door.conninfo)
    pk = first.insert(jq_type="a", jq_args=f"gate:{gate}")
    first.wait(pk, "running")
    door.shut()
    second = launch(text, wait=False)
    second.until(lambda: second.row(pk)["jq_attempt"] == 2)
    second.until(lambda: "past the lease: no agent is given work" in first.stderr())
    gate.touch()
    row = second.wait(pk)
    door.open()
    first.until(lambda: "has another owner: standing by" in first.stderr())
    first.until(lambda: first.agent_pids() == [])
    assert [each["att_outcome"] for each in second.attempts(pk)] == ["rescued", "done"]
    assert second.row(pk) == row
    assert owner(second) == second.pid


@pytest.mark.slow
def test_a_second_daemon_with_reset_takes_no_job_of_a_live_one_f128(launch: Launch, record: Path, gate: Path) -> None:
    text = LASTING + HOST + agent("a", rec(record), slots=4)
    first = launch(text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate};{n}"} for n in range(4)])
    first.wait_all(pks, "running")
    second = launch(text, options=["-R"], wait=False)
    first.until(lambda: "standing by" in second.stderr())
    gate.touch()
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in first.wait_all(pks)} == {(1, 0)}
    assert len(lines(record)) == 4


@pytest.mark.slow
def test_rows_of_a_daemon_that_was_killed_elsewhere_are_given_back_once_its_lease_is_over_f126(
    launch: Launch, record: Path, gate: Path
) -> None:
    text = QUICK + HOST + agent("a", rec(record), slots=4)
    first = launch(text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate};{n}"} for n in range(4)])
    first.wait_all(pks, "running")
    first.kill()
    first.execute("update drover.scheduler set scheduler_boot_id = 'of another machine'")
    first.execute("update drover.scheduler_group set group_lease_until = now() + interval '1 hour'")
    gate.touch()
    second = launch(text, wait=False)
    second.until(lambda: "standing by" in second.stderr())
    assert [(second.row(pk)["jq_state"], second.row(pk)["jq_attempt"]) for pk in pks] == [("running", 1)] * 4
    over = second.value("update drover.scheduler_group set group_lease_until = now() returning now()")
    rows = second.wait_all(pks)
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in rows} == {(2, 1)}
    for pk in pks:
        rescued, done = second.attempts(pk)
        assert (rescued["att_outcome"], done["att_outcome"]) == ("rescued", "done")
        assert over <= rescued["att_end"] <= done["att_start"]
    assert "its lease has run out" in second.stderr()


@pytest.mark.slow
def test_a_daemon_with_reset_takes_an_abandoned_queue_at_once_and_one_without_waits_a_lease_f127(
    launch: Launch, record: Path, gate: Path
) -> None:
    text = QUICK.replace("lease = 1.5", "lease = 600") + HOST + agent("a", rec(record), slots=4)
    first = launch(text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": f"gate:{gate};{n}"} for n in range(4)])
    first.wait_all(pks, "running")
    first.kill()
    first.execute("update drover.scheduler set scheduler_boot_id = 'of another machine'")
    patient = launch(text, wait=False)
    patient.until(lambda: "standing by" in patient.stderr())
    first.execute("update drover.scheduler_group set group_lease_until = now()")
    gate.touch()
    hurried = launch(text, options=["-R"])
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in hurried.wait_all(pks)} == {(2, 1)}
    assert "its lease has run out" in hurried.stderr()
    assert "taking over" not in patient.stderr()


@pytest.mark.slow
def test_no_agent_is_started_before_rows_of_dead_daemons_are_given_back_r57_r78(launch: Launch, record: Path) -> None:
    text = QUICK + HOST + agent("a", rec(record), slots=2)
    first = launch(text)
    pks = first.insert_all([{"jq_type": "a", "jq_args": str(n), "jq_state": "held"} for n in range(100)])
    first.kill()
    for statement in ABANDON:
        first.execute(statement)
    second = launch(text)
    rows = second.wait_all(pks)
    story = second.stderr()
    assert {(row["jq_attempt"], row["jq_rescued"]) for row in rows} == {(2, 1)}
    assert 0 < story.index("rows given back that nobody had in hand: 100") < story.index("ST_FREE -> ST_PREP")


ABANDON = (
    "update drover.jobqueue set jq_state = 'queued'",
    "delete from drover.claimable",
    "update drover.jobqueue set jq_state = 'claimed', jq_attempt = 1, jq_starttime = now(), jq_owner = group_owner"
    " from drover.scheduler_group",
    "insert into drover.in_hand select group_owner, array_agg(jq_pk)"
    " from drover.jobqueue, drover.scheduler_group group by 1",
)
