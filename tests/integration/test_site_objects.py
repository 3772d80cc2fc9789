"""What a site puts beside our tables, and a real daemon: it works on, or `check` and `status` say what stops it."""

import json
from pathlib import Path

import pytest

from tests.cli_tools import Drover
from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, rec
from tests.integration.puppets import said
from tests.integration.test_commands import told
from tests.integration.test_retention import AGE, LEFT
from tests.role_tools import Login
from tests.schema_tools import Connection

HOST = "[hosts.alpha]\n"
NOTES = "create table public.notes (job bigint references drover.jobqueue)"
# All that a site may set and add: each alone would stop a daemon that went by it.
HARMLESS = """
create publication p for all tables;
create table public.notes (job bigint primary key references drover.jobqueue on delete cascade);
create function public.note() returns trigger language plpgsql security definer set search_path = public as
$$ begin insert into notes values (new.jq_pk); return null; end $$;
create trigger note after insert on drover.jobqueue for each row execute function public.note();
create index by_args on drover.jobqueue (jq_type, jq_args);
create statistics public.st on jq_type, jq_state from drover.jobqueue;
alter table drover.jobqueue alter jq_type set statistics 10000;
alter table drover.jobqueue add mine integer not null default 0;
create table drover.mine (x integer);
create function public.now() returns timestamptz language sql as $$ select timestamptz '2001-01-01' $$;
create function public.count(anyelement) returns bigint language sql as 'select 0::bigint';
create type public.job_state as enum ('x');
create table public.jobqueue (x integer);
create function public.log_ddl() returns event_trigger language plpgsql as $$ begin return; end $$;
create event trigger log_ddl on ddl_command_end execute function public.log_ddl();
alter default privileges in schema drover grant select on tables to drover_readonly;
"""
SETTINGS = {  # of the daemon's role in this database
    "search_path": "public, pg_catalog", "statement_timeout": "2s", "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "default_transaction_isolation": "serializable", "default_transaction_deferrable": "on", "row_security": "off",
    "enable_indexscan": "off", "enable_nestloop": "off", "DateStyle": "German, DMY", "bytea_output": "escape",
    "IntervalStyle": "iso_8601", "TimeZone": "Asia/Tokyo", "array_nulls": "off", "quote_all_identifiers": "on",
    "plan_cache_mode": "force_custom_plan", "client_encoding": "LATIN1", "default_tablespace": "",
}  # fmt: skip
NO_DDL = """
create function public.no_ddl() returns event_trigger language plpgsql as
$$ begin raise exception 'no DDL here'; end $$;
create event trigger no_ddl on ddl_command_start execute function public.no_ddl();
"""
STALE = "update drover.queue set queue_max_length = 1000000"


@pytest.fixture
def site(login: Login) -> Connection:
    """Return a connection of the site's superuser."""
    return login("")


@pytest.fixture
def found(drover: Drover, database_with_roles: str, monkeypatch: pytest.MonkeyPatch) -> Drover:
    """Run a command of people on the database of the test."""
    monkeypatch.setenv("DROVER_DATABASE_URL", database_with_roles)
    return drover


def _end_and_age(daemon: Daemon, count: int) -> list[int]:
    """Return jobs that are done, and ended long ago."""
    jobs = [daemon.insert(jq_type="a") for _ in range(count)]
    daemon.wait_all(jobs)
    daemon.execute(AGE, jobs)
    return jobs


def _refer_to(site: Connection, *jobs: int) -> None:
    """Have rows of the site refer to jobs, by a foreign key that keeps them."""
    site.execute(NOTES)
    site.cursor().executemany("insert into public.notes values (%s)", [(job,) for job in jobs])


def test_a_daemon_works_on_beside_all_that_a_site_may_add(
    launch: Launch, ask: Ask, record: Path, site: Connection
) -> None:
    site.execute(HARMLESS)
    name = site.info.dbname
    for key, value in SETTINGS.items():
        site.execute(f"alter role drover_scheduler in database {name} set {key} = '{value}'".encode())
    daemon = launch(HOST + agent("a", rec(record)))
    _end_and_age(daemon, 3)
    daemon.wait_all(daemon.insert_all([{"jq_type": "a"}] * 40))
    told(daemon, f"cancel {daemon.insert(jq_type='nobody')}")
    daemon.execute(STALE)
    daemon.until(lambda: not daemon.value("select drover.is_route_stale()"))
    assert told(daemon, "flush 5").startswith("removed 3 jobs")
    kinds = {warning["warning"] for warning in json.loads(ask("status --json").out)["warnings"]}
    assert kinds <= {"setting off", "hidden"}  # of the server of the tests


RAISES = """
create or replace function public.refuse() returns trigger language plpgsql security definer as
$$ begin if new.jq_args = 'odd' then {}; end if; return null; end $$;
create trigger refuse after {} on drover.jobqueue for each row execute function public.refuse();
"""


@pytest.mark.parametrize(
    ("action", "said", "state"),
    [
        ("raise exception 'not here'", "not here", "P0001"),
        ("raise exception 'not you' using errcode = '42501'", "not you", "42501"),
        ("perform * from missing", 'relation "missing" does not exist', "42P01"),
    ],
)
def test_what_a_trigger_of_the_site_raises_is_told_as_its_own(
    ask: Ask, site: Connection, action: str, said: str, state: str
) -> None:
    site.execute(RAISES.format(action, "insert").encode())
    done = ask("submit --force a odd")
    by = f"raised by function public.refuse() (SQLSTATE {state})"
    assert (done.status, done.err) == (2, f"the database refuses it: {said}, {by}\n")


def test_job_whose_end_a_trigger_of_the_site_refuses_names_both(launch: Launch, record: Path, site: Connection) -> None:
    site.execute(RAISES.format("if new.jq_state = 'done' then raise exception 'not so'; end if", "update").encode())
    daemon = launch(HOST + agent("a", rec(record)))
    job = daemon.insert(jq_type="a", jq_args="odd")
    text = f"the database refuses to save job {job}: not so, raised by function public.refuse() (P0001)"
    assert daemon.wait(job, "failed")["jq_endtext"] == text
    assert daemon.value("select jq_end_code from drover.jobs where jq_pk = %s", job) == "not_saved"


def test_flush_passes_over_what_a_foreign_key_keeps_and_names_it(
    launch: Launch, record: Path, site: Connection
) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    jobs = _end_and_age(daemon, 5)
    _refer_to(site, jobs[1], jobs[3])
    assert told(daemon, "flush 5").startswith(
        "removed 3 jobs, 0 job groups, 0 log lines about no job; the database refuses to remove 2 jobs, such as "
        f"{jobs[1]}, {jobs[3]}: update or delete on table"
    )
    site.execute("drop table public.notes")
    assert told(daemon, "flush 5").startswith("removed 2 jobs")


def test_retention_passes_over_what_a_foreign_key_keeps_and_logs_it(
    launch: Launch, record: Path, site: Connection
) -> None:
    daemon = launch("[scheduler]\nretention = 5\n" + HOST + agent("a", rec(record)))
    said(daemon, "older than 5 days: removed 0 jobs")
    jobs = _end_and_age(daemon, 3)
    _refer_to(site, jobs[1])
    told(daemon, "reload")
    said(daemon, f"the database refuses to remove 1 jobs, such as {jobs[1]}: update or delete on table")
    assert daemon.value(LEFT) == [jobs[1]]


def test_flush_of_chosen_jobs_names_those_that_a_foreign_key_keeps(
    launch: Launch, ask: Ask, record: Path, site: Connection
) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    jobs = _end_and_age(daemon, 3)
    _refer_to(site, jobs[0])
    done = ask("flush 5 --type a --yes")
    assert (done.status, done.out) == (0, "flush: removed 2 of 3 jobs\n")
    assert f"the database refuses to remove 1 job: {jobs[0]}: update or delete on table" in done.err
    assert "on delete cascade" in done.err
    result = json.loads(ask("flush 5 --type a --yes --json").out)
    assert (result["removed"], result["kept"], result["refused"]) == (0, 1, jobs[:1])


def test_check_health_and_status_name_what_stops_the_queue(found: Drover, site: Connection) -> None:
    site.execute("alter table drover.claimable enable row level security")
    line = (
        "stopped by site: row security: it is on, and hides rows from the scheduler and from front-ends: "
        "drover.claimable; next: alter table drover.claimable disable row level security"
    )
    done = found("check")
    assert (done.status, f"FAIL {line}" in done.out) == (1, True)
    done = found("health")
    assert (done.status, f"critical: {line}" in done.out) == (2, True)
    assert "alter table drover.claimable disable row level security" in " ".join(found("status").out.split())


def test_check_alone_names_what_a_site_may_add(found: Drover, site: Connection) -> None:
    site.execute(NOTES)
    done = found("check")
    assert (done.status, "WARN site object: foreign key notes_job_fkey" in done.out) == (0, True)
    assert "notes_job_fkey" not in found("health").out


def test_hidden_migrations_are_no_missing_ones(ask: Ask, site: Connection) -> None:
    site.execute("alter table drover.migration enable row level security")
    done = ask("status")
    assert (done.status, "out of date" in done.err) == (3, False)
    assert done.err.endswith("alter table drover.migration disable row level security\n")


def test_status_names_an_event_trigger_that_refuses_the_filters_of_queues(
    launch: Launch, ask: Ask, record: Path, site: Connection
) -> None:
    daemon = launch(HOST + agent("a", rec(record)))
    site.execute(NO_DDL)
    daemon.execute(STALE)
    daemon.until(lambda: "event trigger no_ddl: filters and lengths of queues" in ask("health").out)
    site.execute("alter event trigger no_ddl disable")
    assert daemon.until(lambda: "event trigger" not in ask("health").out)
