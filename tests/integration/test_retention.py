"""Command `flush` and the setting `retention`, by the real daemon: what is long over goes, nothing waits for it."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.package_data import etc_dir
from tests.cli_tools import DROVER
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, rec, records
from tests.integration.puppets import said
from tests.integration.test_commands import command, told
from tests.integration.test_reload import write

HOST = "[hosts.alpha]\n"
AGE = """
update drover.jobqueue set jq_queued = jq_queued - interval '10 days', jq_endtime = jq_endtime - interval '10 days'
 where jq_pk = any (%s)
"""
LONG_OVER = """
insert into drover.jobqueue (jq_type, jq_args, jq_state, jq_attempt, jq_queued, jq_starttime, jq_endtime, jq_end_bits)
select 'a', 'old', %s::drover.job_state, 1, t, t, t, %s
  from generate_series(1, %s), (select now() - interval '10 days' as t) t
"""
ROWS = """
select (select count(*) from drover.output) + (select count(*) from drover.log where log_jq_fk = any (%s))
       + (select count(*) from drover.item_failure) + (select count(*) from drover.attempt) as rows
"""
LEFT = "select array_agg(jq_pk order by jq_pk) from drover.jobqueue where jq_type <> 'command'"
RENEWALS = """
create table public.renewed (at timestamptz default clock_timestamp());
create function public.note_renewal() returns trigger language plpgsql security definer as $$
begin insert into public.renewed default values; return null; end $$;
create trigger note_renewal after update on drover.scheduler_group for each row execute function public.note_renewal()
"""
LATE = "select count(*) from drover.jobqueue where jq_args = 'old'"
HELD_UP = "select exists (select from pg_locks where not granted and relation = 'drover.output'::regclass)"


@pytest.fixture
def text(record: Path) -> str:
    shell = agent("sh", ["sh", "-c", "{args}"], kind="exec")
    return HOST + agent("a", rec(record), slots=2) + shell


def add_old(daemon: Daemon, count: int, state: str = "done", bits: int = 1) -> None:
    """Add jobs that ended ten days ago, behind the back of the triggers."""
    with psycopg.connect(daemon.database, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute(LONG_OVER, (state, bits, count))


@pytest.mark.slow
def test_flush_removes_old_jobs_with_all_their_rows_r52(launch: Launch, text: str) -> None:
    daemon = launch(text)
    query = "select n as id, case n when 2 then 'fail:no' else 'x' end as act from generate_series(1, 3) n"
    old = [
        daemon.insert(jq_type="sh", jq_args="echo out; echo err >&2"),
        daemon.insert(jq_type="a", jq_args=query, jq_msq=True, jq_tolerate=1),
        daemon.insert(jq_type="a", jq_args="x", jq_retries=1),
    ]
    daemon.wait_all(old)
    daemon.until(lambda: daemon.value("select count(*) from drover.output") == 2)
    failed = daemon.insert(jq_type="sh", jq_args="exit 3")
    daemon.wait(failed, "failed")
    kept = [failed, daemon.insert(jq_type="nobody"), daemon.insert(jq_type="a", jq_args="young")]
    daemon.wait(kept[2])
    daemon.execute(AGE, [*old, *kept[:2]])
    row = daemon.wait(command(daemon, "flush 5"))
    assert row["jq_endtext"] == "removed 3 jobs, 0 job groups, 0 log lines about no job"
    assert row["jq_result"] == {"jobs": 3, "groups": 0, "log": 0}
    assert daemon.value(LEFT) == kept
    assert daemon.value(ROWS.replace("drover.attempt)", "drover.attempt where att_jq_fk = any (%s))"), old, old) == 0
    assert told(daemon, "flush 5 failed").startswith("removed 1 jobs")
    assert daemon.value(LEFT) == kept[1:]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("flush", "too few words: flush DAYS [failed]"),
        ("flush -1", "a number of days, at most 36500, is required (got '-1'): flush DAYS [failed]"),
        ("flush 3 all", "only `failed` may follow (got 'all'): flush DAYS [failed]"),
    ],
)
def test_an_invalid_flush_removes_nothing_r52(launch: Launch, text: str, words: str, why: str) -> None:
    daemon = launch(text)
    daemon.wait(daemon.insert(jq_type="a", jq_args="x"))
    assert told(daemon, words, "failed") == why
    assert len(daemon.value(LEFT)) == 1


@pytest.mark.slow
def test_flush_on_the_command_line_prints_the_number_removed_r52(launch: Launch, text: str) -> None:
    daemon = launch(text)
    add_old(daemon, 3)
    failed = daemon.insert(jq_type="sh", jq_args="exit 1")
    daemon.wait(failed, "failed")
    daemon.execute(AGE, [failed])
    around = os.environ | {"DROVER_DATABASE_URL": make_conninfo(daemon.database, user="drover_operator")}
    words = ["flush", "5", "--failed", "-c", str(daemon.folder / "drover.toml")]
    done = subprocess.run([*DROVER, *words], env=around, capture_output=True, text=True, check=True)
    assert done.stdout == "removed 4 jobs, 0 job groups, 0 log lines about no job\n"


def test_flush_0_removes_jobs_that_ended_before_the_command_r52(launch: Launch, text: str) -> None:
    daemon = launch(text)
    daemon.wait_all([daemon.insert(jq_type="a", jq_args="x") for _ in range(3)])
    assert told(daemon, "flush 0").startswith("removed 3 jobs")


@pytest.mark.slow
def test_other_commands_and_the_lease_go_on_during_a_flush_r52(launch: Launch, text: str) -> None:
    daemon = launch("[scheduler]\nlease = 30\nlease_renewal = 0.1\n" + text)
    daemon.execute(RENEWALS)
    add_old(daemon, 30_000)
    both = [{"jq_type": "command", "jq_args": words} for words in ("flush 5", "status")]
    flush, status = daemon.wait_all(daemon.insert_all(both, role="drover_operator"))
    assert status["jq_endtime"] < flush["jq_endtime"]
    assert flush["jq_result"]["jobs"] == 30_000
    during = "select count(*) from public.renewed where at between %s and %s"
    assert daemon.value(during, flush["jq_queued"], flush["jq_endtime"]) >= 5  # 30 pauses of 0.05 s
    assert daemon.value(LATE) == 0


@pytest.mark.slow
def test_a_drain_during_a_flush_loses_no_job_r52(launch: Launch, text: str, record: Path) -> None:
    daemon = launch(text)
    add_old(daemon, 20_000)
    flush = command(daemon, "flush 5")
    pks = daemon.insert_all([{"jq_type": "a", "jq_args": f"n{n}"} for n in range(1000)])
    daemon.wait_all(pks)
    daemon.wait(flush)
    given = [note["line"] for note in records(record) if note["event"] == "line"]
    assert sorted(given) == sorted(f"n{n}" for n in range(1000))
    assert daemon.value(LEFT) == pks


@pytest.mark.slow
def test_a_flush_whose_daemon_dies_is_completed_by_the_next_one_r52(launch: Launch, text: str) -> None:
    daemon = launch(text, points="flush:after=kill@3")
    add_old(daemon, 30_000)
    flush = command(daemon, "flush 5")
    daemon.wait_exit()
    heir = launch(text)
    assert 0 < heir.wait(flush)["jq_result"]["jobs"] < 30_000
    assert heir.value(LATE) == 0


@pytest.mark.slow
def test_retention_removes_old_jobs_automatically_r52(launch: Launch, text: str) -> None:
    daemon = launch("[scheduler]\nretention = 5\n" + text)
    said(daemon, "older than 5 days: removed 0 jobs")
    add_old(daemon, 2500)
    daemon.wait(daemon.insert(jq_type="a", jq_args="young"))
    told(daemon, "reload")
    said(daemon, "older than 5 days: removed 2500 jobs")
    assert len(daemon.value(LEFT)) == 1


@pytest.mark.slow
def test_retention_keeps_jobs_that_failed_r52(launch: Launch, text: str) -> None:
    daemon = launch("[scheduler]\nretention = 5\n" + text)
    said(daemon, "older than 5 days: removed 0 jobs")
    add_old(daemon, 1, "failed", 2)
    add_old(daemon, 1)
    told(daemon, "reload")
    daemon.until(lambda: daemon.value(LATE) < 2)
    assert daemon.execute("select jq_state::text from drover.jobqueue where jq_args = 'old'") == [
        {"jq_state": "failed"}
    ]


def test_retention_of_failed_jobs_is_their_own_r52(launch: Launch, text: str) -> None:
    daemon = launch("[scheduler]\nretention_failed = 5\nretention_done = 50\n" + text)
    said(daemon, "older than 5 or 50 days: removed 0 jobs")
    add_old(daemon, 1, "failed", 2)
    add_old(daemon, 1)
    told(daemon, "reload")
    daemon.until(lambda: daemon.value(LATE) < 2)
    assert daemon.execute("select jq_state::text from drover.jobqueue where jq_args = 'old'") == [{"jq_state": "done"}]


def test_what_is_removed_by_age_follows_a_reload_though_a_pass_is_under_way_r52(launch: Launch, text: str) -> None:
    lasting = "[scheduler]\nlease = 60\nlease_renewal = 1\n"  # so a quarter of a minute is waited for a lock
    daemon = launch(lasting + "retention_failed = 5\n" + text)
    said(daemon, "older than 5 days: removed 0 jobs")
    add_old(daemon, 10_000, "failed", 2)
    with psycopg.connect(daemon.database) as connection:
        connection.execute("lock table drover.output in share mode")  # which stops the pass at its first piece
        told(daemon, "reload")
        daemon.until(lambda: daemon.value(HELD_UP))
        write(daemon, lasting + "retention_failed = 90\n" + text)
        reload = command(daemon, "reload")
    daemon.wait(reload)
    said(daemon, "older than 90 days: removed 0 jobs")
    assert 0 < daemon.value(LATE) < 10_000


def test_without_retention_nothing_is_removed_r52(launch: Launch, text: str) -> None:
    daemon = launch(text)
    add_old(daemon, 1)
    told(daemon, "reload")
    told(daemon, "reload")  # what the first one brought about was due before this one
    assert daemon.value(LATE) == 1


def test_the_schedule_that_is_shipped_removes_old_jobs_once_it_is_enabled_r52(launch: Launch, text: str) -> None:
    shipped = tomllib.loads((etc_dir() / "drover.toml").read_text())["schedules"]["flush"]
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in shipped.items())
    daemon = launch(text + f"[schedules.flush]\n{keys}")
    assert daemon.execute("select schedule_enabled from drover.schedule") == [{"schedule_enabled": False}]
    told(daemon, "schedule-enable flush")
    at = "select to_char(schedule_next at time zone 'UTC', 'HH24:MI:SS') from drover.schedule"
    assert daemon.until(lambda: daemon.value(at)) == "00:00:00"
    told(daemon, "schedule-run flush")
    found = "select count(*) from drover.jobqueue where jq_args = 'flush 30' and jq_state = 'done'"
    daemon.until(lambda: daemon.value(found))
