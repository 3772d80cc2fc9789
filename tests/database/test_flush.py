"""What drover.flush removes, and what it leaves: in the database alone, where rows can be as old as a test wants."""

import json
import re
import threading
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from tests.connection_tools import QUERIES

Connection = psycopg.Connection[Any]

PIECE: Final = 3  # rows of one call, fewer than any test has
ENDS: Final = {"done": 1, "failed": 2, "cancelled": 2, "skipped": 2, "ignored": 2}
CANCEL: Final = """
update drover.jobqueue
   set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now() - interval '9 days', jq_end_bits = 2
 where jq_pk = %s
"""
GROUP: Final = """
insert into drover.job (job_name, job_queued) values (%s, now() - make_interval(days => %s)) returning job_pk
"""
LINE: Final = """
insert into drover.log (log_type, log_message, log_date) values ('LOG', 'x', now() - make_interval(days => %s))
"""
BELONGINGS: Final = {
    "attempt_kept": "(att_jq_fk, att_attempt, att_start, att_outcome) values (%s, 1, now(), 'retry')",
    "log": "(log_jq_fk, log_type, log_message) values (%s, 'LOG', 'x')",
    "output": "(out_jq_fk, out_attempt, out_part, out_stream, out_data) values (%s, 1, 1, 'out', 'x')",
    "item_failure": "(item_jq_fk, item_attempt, item_line, item_reason) values (%s, 1, 'x', 'y')",
    "share": "(share_jq_fk, share_with) values (%s, 'x')",
    "hidden": "(hidden_jq_fk) values (%s)",
    "command_ack": "(ack_jq_fk, ack_scheduler, ack_name, ack_ok, ack_text) select %s, gen_random_uuid(), '', true, ''",
}


@pytest.fixture
def queue(database_with_roles: str) -> Iterator[Connection]:
    """Yield a connection of the owner that commits each statement."""
    with psycopg.connect(database_with_roles, autocommit=True) as connection:
        yield connection


def _job(queue: Connection, state: str = "queued", days: int = 10, **columns: object) -> int:
    """Insert a job that was queued, and has ended if it has, so many days ago."""
    given = {"jq_type": "a", "jq_state": state, **columns}
    ended = state in ENDS
    queue.execute("set session_replication_role = replica")
    row = queue.execute(
        f"insert into drover.jobqueue (jq_queued, jq_starttime, jq_endtime, jq_end_bits, {', '.join(given)}) select "
        f"t, case when %s then t end, case when %s then t end, %s, {', '.join(['%s'] * len(given))} "
        f"from (select now() - make_interval(days => %s) as t) t returning jq_pk".encode(),
        (ended, ended, ENDS.get(state, 0), *given.values(), days),
    ).fetchone()
    queue.execute("set session_replication_role = origin")
    assert row
    return int(row[0])


def _edge(queue: Connection, child: int, parent: int) -> None:
    queue.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent))


def _flush(queue: Connection, days: int = 5, *, failed: bool = False, piece: int = PIECE) -> dict[str, int]:
    """Go on until all was looked at; how many rows went, by stage."""
    removed: dict[str, int] = {}
    stage, place = "jobs", 0
    while stage is not None:
        was = stage
        query = "select stage, place, removed from drover.flush(now() - make_interval(days => %s), %s, %s, %s, %s)"
        row = queue.execute(query, (days, failed, piece, stage, place)).fetchone()
        assert row
        stage, place, count = row
        removed[was] = removed.get(was, 0) + count
    return removed


def _prune(queue: Connection, piece: int = PIECE, **days: int) -> dict[str, int]:
    """Remove what ended so many days ago, by state, until all was looked at; return how many rows went, by stage."""
    removed: dict[str, int] = {}
    stage, place = "jobs", 0
    while stage is not None:
        was = stage
        query = """select p.stage, p.place, p.removed from drover.prune(
            (select jsonb_object_agg(key, now() - make_interval(days => value::integer)) from jsonb_each_text(%s)),
            %s, %s, %s) p"""
        row = queue.execute(query, (json.dumps(days), piece, stage, place)).fetchone()
        assert row
        stage, place, count = row
        removed[was] = removed.get(was, 0) + count
    return removed


def _left(queue: Connection) -> list[int]:
    return [pk for (pk,) in queue.execute("select jq_pk from drover.jobqueue order by jq_pk")]


def test_flush_removes_old_successes_and_keeps_young_failed_and_live_jobs_r52(queue: Connection) -> None:
    for state in ("done", "cancelled", "skipped", "ignored"):
        _job(queue, state)
    kept = [_job(queue, "failed"), _job(queue, "held"), _job(queue, "queued"), _job(queue, "done", days=3)]
    assert _flush(queue)["jobs"] == 4
    assert _left(queue) == kept


def test_flush_removes_failed_jobs_if_asked_r52(queue: Connection) -> None:
    _job(queue, "failed")
    young = _job(queue, "failed", days=1)
    assert _flush(queue, failed=True)["jobs"] == 1
    assert _left(queue) == [young]


def test_flush_removes_failed_commands_r52(queue: Connection) -> None:
    _job(queue, "failed", jq_type="command", jq_queue=None)
    assert _flush(queue)["jobs"] == 1


@pytest.mark.parametrize("table", BELONGINGS)
def test_flush_removes_every_row_that_belongs_to_a_job_r52(queue: Connection, table: str) -> None:
    old, young = _job(queue, "done"), _job(queue, "done", days=1)
    for pk in (old, young):
        queue.execute(f"insert into drover.{table} {BELONGINGS[table]}".encode(), (pk,))
    _flush(queue)
    column, *_ = re.findall(r"\w+", BELONGINGS[table])
    assert queue.execute(f"select {column} from drover.{table}".encode()).fetchall() == [(young,)]


def test_flush_covers_every_table_that_references_a_job_r52(queue: Connection) -> None:
    """A new table with a column of that name has to be emptied too."""
    named = queue.execute(
        "select relname from pg_class join pg_attribute on attrelid = pg_class.oid"
        " where relnamespace = 'drover'::regnamespace and relkind = 'r' and attname ~ '_jq_(depends_)?fk$'"
    )
    passing = {
        "blocked",
        "claimable",
        "scheduler_status",
        "alert",
        "suspect",
    }  # of jobs that have not ended; as of the last look
    later = {"event", "delivery", "dead_letter"}  # drover.forget_events removes them when they are delivered too
    kept = {"detached"}  # until the host has removed what it keeps: query forget_kept
    assert {name for (name,) in named} == {*BELONGINGS, "jobdepends", *passing, *later, *kept}


def test_flush_leaves_what_a_host_keeps_of_a_job_to_be_released_c41(queue: Connection) -> None:
    """The host may be out of reach longer than its job is remembered: then its keeper is told to end later."""
    old = _job(queue, "done")
    queue.execute(f"insert into drover.detached values ({old}, 1, 'default', 'far', '/spool')".encode())
    assert _flush(queue)["jobs"] == 1
    kept = psycopg.RawCursor(queue).execute(QUERIES["read_kept"].sql.encode(), ["default"]).fetchall()
    assert kept == [("far", "/spool", old, 1)]


def test_flush_removes_a_met_edge_with_its_parent_and_keeps_the_child_r52(queue: Connection) -> None:
    parent, child = _job(queue, "done"), _job(queue)
    _edge(queue, child, parent)
    assert _flush(queue)["jobs"] == 1
    assert _left(queue) == [child]
    assert queue.execute("select count(*) from drover.jobdepends").fetchone() == (0,)


@pytest.mark.parametrize("child_state", ["queued", "held"])
def test_flush_keeps_a_parent_with_an_unmet_edge_r52_c35(queue: Connection, child_state: str) -> None:
    parent, child = _job(queue, "cancelled"), _job(queue, child_state)
    _edge(queue, child, parent)
    assert _flush(queue)["jobs"] == 0
    assert queue.execute("select jq_unmet from drover.jobqueue where jq_pk = %s", (child,)).fetchone() == (1,)


def test_flush_removes_parent_and_child_when_both_have_ended_r52_c35(queue: Connection) -> None:
    parent, child = _job(queue, "cancelled"), _job(queue)
    _edge(queue, child, parent)
    queue.execute(CANCEL, (child,))
    assert _flush(queue)["jobs"] == 2
    assert queue.execute("select count(*) from drover.jobdepends").fetchone() == (0,)


def test_flush_keeps_an_ended_child_of_a_live_parent_r52(queue: Connection) -> None:
    parent, child = _job(queue), _job(queue)
    _edge(queue, child, parent)
    queue.execute(CANCEL, (child,))
    assert _flush(queue)["jobs"] == 0


def test_an_edge_inserted_during_a_flush_is_not_lost_r52(queue: Connection, database_with_roles: str) -> None:
    parent, child = _job(queue, "cancelled"), _job(queue)
    with psycopg.connect(database_with_roles) as other:
        _edge(other, child, parent)
        assert _flush(queue)["jobs"] == 0
    assert _left(queue) == [parent, child]


def test_flush_skips_a_locked_row_r52(queue: Connection, database_with_roles: str) -> None:
    locked, _ = _job(queue, "done"), _job(queue, "done")
    with psycopg.connect(database_with_roles) as other:
        other.execute("select from drover.jobqueue where jq_pk = %s for share", (locked,))
        assert _flush(queue)["jobs"] == 1
    assert _left(queue) == [locked]


def test_flush_removes_old_groups_without_jobs_r52(queue: Connection) -> None:
    ages = {"emptied": 10, "young": 1, "never used": 10, "in use": 10}
    groups = {name: queue.execute(GROUP, (name, days)).fetchone() for name, days in ages.items()}
    pks = {name: row[0] for name, row in groups.items() if row}
    _job(queue, "done", jq_job_fk=pks["emptied"])
    _job(queue, "done", jq_job_fk=pks["in use"])
    _job(queue, "failed", jq_job_fk=pks["in use"])
    assert _flush(queue) == {"jobs": 2, "groups": 2, "log": 0}
    left = queue.execute("select job_name from drover.job order by job_name").fetchall()
    assert left == [("in use",), ("young",)]


def test_flush_removes_old_log_rows_without_a_job_r52(queue: Connection) -> None:
    for days in (10, 10, 10, 10, 1):
        queue.execute(LINE, (days,))
    assert _flush(queue)["log"] == 4


def test_a_flush_pass_continues_past_old_rows_that_are_kept_r52(queue: Connection) -> None:
    for _ in range(2 * PIECE):
        _job(queue, "failed")
        _job(queue, "queued", days=0, jq_attempt=7)  # slices: back at the end of the queue time and again
    _job(queue, "done")
    assert _flush(queue)["jobs"] == 1


def test_a_flush_pass_stops_at_young_rows_r52(queue: Connection) -> None:
    for _ in range(4 * PIECE):
        _job(queue, "done", days=1)
    beyond = _job(queue, "done")  # no such row comes about: numbers go with the time
    assert _flush(queue)["jobs"] == 0
    assert beyond in _left(queue)


@pytest.mark.parametrize("state", ENDS)
def test_jobs_of_one_state_are_removed_and_no_others_r52(queue: Connection, state: str) -> None:
    jobs = {each: _job(queue, each) for each in ENDS}
    assert _prune(queue, **{state: 5})["jobs"] == 1
    assert _left(queue) == [pk for each, pk in jobs.items() if each != state]


def test_each_state_has_an_age_of_its_own_r52(queue: Connection) -> None:
    _job(queue, "failed", days=40)
    _job(queue, "done", days=3)
    kept = [_job(queue, "failed", days=3), _job(queue, "done", days=1)]
    assert _prune(queue, done=2, failed=30)["jobs"] == 2
    assert _left(queue) == kept


def test_a_command_is_kept_as_long_as_commands_are_r52(queue: Connection) -> None:
    command = _job(queue, "done", jq_type="command")
    assert _prune(queue, done=5)["jobs"] == 0
    assert _left(queue) == [command]
    assert _prune(queue, command=5)["jobs"] == 1


def test_lines_about_no_job_stay_unless_an_age_is_given_r52(queue: Connection) -> None:
    queue.execute(LINE, (10,))
    assert _prune(queue, done=5)["log"] == 0
    assert _prune(queue, done=5, log=5)["log"] == 1


def test_two_concurrent_flush_passes_remove_each_row_once_r52(queue: Connection, database_with_roles: str) -> None:
    for _ in range(60):
        _job(queue, "done")
    counts: list[int] = []

    def go() -> None:
        with psycopg.connect(database_with_roles, autocommit=True) as other:
            counts.append(_flush(other)["jobs"])

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _flush(queue)
    assert sum(counts) <= 60
    assert _left(queue) == []


def test_only_flush_removes_jobs_j3_r52(database_with_roles: str) -> None:
    allowed = []
    for role in ("drover_scheduler", "drover_operator", "drover_frontend_sql", "drover_readonly"):
        with psycopg.connect(make_conninfo(database_with_roles, user=role), autocommit=True) as connection:
            with pytest.raises(InsufficientPrivilege):
                connection.execute("delete from drover.jobqueue")
            try:
                connection.execute("select drover.flush(now(), false, 1, 'jobs', 0)")
                allowed.append(role)
            except InsufficientPrivilege:
                pass
    assert allowed == ["drover_scheduler"]
