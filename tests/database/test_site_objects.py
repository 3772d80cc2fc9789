"""What a site puts on our tables: it stops neither claims nor a flush, or `drover check` names it and what mends it."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.database_session import Session
from scheduler.cli.health import ADDED_BY_SITE, OF_SITE, STOPPED, Check, Limits, Row, found_by
from scheduler.cli.schema_names import schema_names
from scheduler.model.queue_requests import EndAndClaim
from tests.connection_tools import take_group
from tests.queue_tools import WANT, Desk, end, many, states
from tests.schema_tools import Connection, add_job, end_job, fetch_all, fetch_one

NO_IDENTITY: Final = """
select relname from pg_class
 where relnamespace = 'drover'::regnamespace and relkind = 'r'
   and not (relreplident = 'f' or relreplident = 'd' and exists (
     select from pg_index where indrelid = pg_class.oid and indisprimary))
"""
NOTES: Final = "create table public.notes (job bigint references drover.jobqueue {} )"
# What refuses to let go of a job, and what the server says of it.
KEEPERS: Final = {
    "foreign key": (NOTES.format("") + "; insert into public.notes values (%s)", "violates foreign key constraint"),
    "deferred foreign key": (
        NOTES.format("deferrable initially deferred") + "; insert into public.notes values (%s)",
        "violates foreign key constraint",
    ),
    "trigger that raises": (
        "create function public.keep() returns trigger language plpgsql as "
        "$$ begin raise exception 'the site keeps it'; end $$;"
        "create trigger keep before delete on drover.jobqueue for each row when (old.jq_pk = %s) "
        "execute function public.keep()",
        "the site keeps it",
    ),
    "trigger that keeps in silence": (
        "create function public.keep() returns trigger language plpgsql as $$ begin return null; end $$;"
        "create trigger keep before delete on drover.jobqueue for each row when (old.jq_pk = %s) "
        "execute function public.keep()",
        "a trigger or rule of the site keeps it",
    ),
    "rule": (
        "create rule keep as on delete to drover.jobqueue where old.jq_pk = %s do instead nothing",
        "a trigger or rule of the site keeps it",
    ),
}
PIECE: Final = """
select removed, kept, why
  from drover.prune_piece(jsonb_build_object('done', now() + interval '1 day'), 1000, %s, 0)
"""
MARK: Final = "create function public.mark() returns trigger language plpgsql as $$ begin return new; end $$;"
# What stops the queue: what it is called, the statement that does it.
STOPS: Final = {
    "a table that tells no rows apart": (
        "publication p",
        "alter table drover.claimable replica identity nothing; create publication p for all tables",
    ),
    "a publication of some columns": ("publication p", "create publication p for table drover.jobqueue (jq_type)"),
    "a publication of some rows": (
        "publication p",
        "create publication p for table drover.jobqueue where (jq_type = 'a')",
    ),
    "our triggers switched off": ("triggers", "alter table drover.jobqueue disable trigger jobqueue_offer_new"),
    "row security": ("row security", "alter table drover.claimable enable row level security"),
    "a rule": ("rule also", "create rule also as on update to drover.in_hand do also select 1"),
    "an unlogged table": ("unlogged table", "alter table drover.claimable set unlogged"),
    "a subscription": (
        "subscription s",
        "create subscription s connection 'dbname=nowhere' publication p with (connect = false);"
        "insert into pg_subscription_rel values "
        "((select oid from pg_subscription), 'drover.jobqueue'::regclass, 'r', null)",
    ),
    "a table that inherits": ("table public.old", "create table public.old () inherits (drover.log)"),
    "another owner": ("owner of a table", "alter table drover.in_hand owner to drover_readonly"),
    "no triggers at all": (
        "setting session_replication_role=replica",
        "alter role drover_frontend in database {db} set session_replication_role = replica",
    ),
    "another role": ("setting role=drover_msq", "alter database {db} set role = drover_msq"),
}
OTHERS: Final = {
    "a trigger before": (
        "trigger mine",
        MARK + "create trigger mine before update on drover.jobqueue for each row execute function public.mark()",
    ),
    "a trigger elsewhere": (
        "trigger mine",
        MARK + "create trigger mine after insert on drover.claimable for each row execute function public.mark()",
    ),
    "a constraint": ("constraint mine", "alter table drover.jobqueue add constraint mine check (jq_args <> 'x')"),
    "a column that must be given": ("column mine", "alter table drover.jobqueue add mine integer not null"),
    "an index of what changes": ("index drover.mine", "create index mine on drover.jobqueue (jq_endtime)"),
    "a unique index": ("index drover.mine", "create unique index mine on drover.jobqueue (jq_args)"),
    "a function of our name": (
        "function drover.word(text,bigint)",
        "create function drover.word(text, bigint) returns text language sql as 'select null'",
    ),
}
# What changes nothing, and no check names.
HARMLESS: Final = (
    "create publication p for all tables",
    "create table public.notes (job bigint primary key references drover.jobqueue on delete cascade)",
    "create index mine on drover.jobqueue (jq_type, jq_args)",
    "create statistics public.st on jq_type, jq_state from drover.jobqueue",
    "alter table drover.jobqueue add mine integer not null default 0",
    "alter default privileges in schema drover grant select on tables to drover_msq",
    "create table drover.mine (x integer); create view drover.ours as select * from drover.jobs",
    "create function public.now() returns timestamptz language sql as $$ select timestamptz '2001-01-01' $$",
    "alter database {db} set search_path = 'nowhere'",
    "alter database {db} set default_transaction_isolation = 'serializable'",
    MARK + "create trigger mine after insert or update on drover.jobqueue for each row execute function public.mark();"
    "alter function public.mark() security definer set search_path = public, pg_temp",
)


@pytest.fixture
def site(database_with_roles: str) -> Iterator[Connection]:
    """Yield a connection of the site's superuser, in a path that finds none of our names."""
    with psycopg.connect(database_with_roles, autocommit=True) as connection:
        connection.execute("set search_path = nowhere")
        yield connection
        if fetch_one(connection, "select exists (select from pg_subscription where subname = 's')"):
            connection.execute("alter subscription s set (slot_name = none)")
            connection.execute("drop subscription s")


def _add(site: Connection, statement: str) -> None:
    site.execute(statement.replace("{db}", site.info.dbname).encode())


def _found(site: Connection, *checks: Check, role: str = "drover_operator") -> list[Row]:
    """Return what a person finds."""
    with psycopg.connect(make_conninfo(site.info.dsn, user=role), autocommit=True) as connection:
        connection.execute("set role none")
        connection.execute("set search_path = nowhere")
        return list(found_by(checks, Session(connection), Limits()))


# ---- publications


def test_a_publication_may_send_every_table(queue: Connection) -> None:
    assert fetch_all(queue, NO_IDENTITY) == []


def test_claims_and_ends_are_not_refused_beside_a_publication_of_all_tables(database: str) -> None:
    take_group(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create publication p for all tables")
    many(database, 40)
    with Desk(database) as desk:
        claims = desk.claim()
        desk.ask(EndAndClaim([end(claim) for claim in claims], (WANT,)))
    assert states(database) == ["done"] * 40


# ---- what is removed


@pytest.mark.parametrize("keeper", KEEPERS)
def test_a_job_that_the_site_keeps_is_passed_over_and_named(queue: Connection, keeper: str) -> None:
    jobs = [add_job(queue) for _ in range(7)]
    for job in jobs:
        end_job(queue, job)
    statement, reason = KEEPERS[keeper]
    queue.execute(statement.replace("%s", str(jobs[4])).encode())
    queue.execute("insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data)"
                  " select jq_pk, 1, 1, 'out', 'x' from drover.jobqueue")  # fmt: skip
    ((removed, kept, why),) = fetch_all(queue, PIECE, "jobs")
    assert (removed, kept) == (6, [jobs[4]])
    assert reason in why
    assert fetch_all(queue, "select jq_pk from drover.jobqueue") == [(jobs[4],)]
    assert fetch_all(queue, "select out_jq_fk from drover.output") == [(jobs[4],)]  # with all that belongs to it


def test_chosen_jobs_that_the_site_keeps_are_passed_over_and_named(queue: Connection) -> None:
    jobs = [add_job(queue) for _ in range(3)]
    for job in jobs:
        end_job(queue, job)
    queue.execute(KEEPERS["foreign key"][0].replace("%s", str(jobs[1])).encode())
    ((removed, kept, why),) = fetch_all(queue, "select * from drover.flush_chosen(%s)", jobs)
    assert (removed, kept) == (2, [jobs[1]])
    assert "notes_job_fkey" in why
    assert fetch_one(queue, "select drover.flush_jobs(%s)", jobs) == 0


def test_a_job_group_that_the_site_keeps_is_passed_over_and_named(queue: Connection) -> None:
    add = "insert into drover.job (job_name, job_queued) values ('g', now() - interval '9 days') returning job_pk"
    first, _ = (fetch_one(queue, add) for _ in range(2))
    queue.execute("create table public.notes (x bigint references drover.job)")
    queue.execute("insert into public.notes values (%s)", (first,))
    ((removed, kept, why),) = fetch_all(queue, PIECE, "groups")
    assert (removed, kept) == (1, [first])
    assert "notes_x_fkey" in why
    assert fetch_all(queue, "select job_pk from drover.job") == [(first,)]


def test_a_log_line_that_the_site_keeps_is_passed_over(queue: Connection) -> None:
    add = "insert into drover.log (log_type, log_message, log_date) values ('LOG', 'x', '2001-01-01') returning log_pk"
    first, _ = (fetch_one(queue, add) for _ in range(2))
    queue.execute("create table public.notes (x bigint references drover.log)")
    queue.execute("insert into public.notes values (%s)", (first,))
    query = """select removed, kept from drover.prune_piece(jsonb_build_object('log', now()), 1000, 'log', 0)"""
    assert fetch_all(queue, query) == [(1, [first])]


def test_no_space_is_no_row_that_is_kept(queue: Connection) -> None:
    end_job(queue, add_job(queue))
    queue.execute(
        "create function public.full() returns trigger language plpgsql as"
        " $$ begin raise exception 'no space left' using errcode = '53100'; end $$;"
        " create trigger f before delete on drover.jobqueue for each row execute function public.full()"
    )
    with pytest.raises(psycopg.errors.DiskFull):
        fetch_all(queue, PIECE, "jobs")


# ---- what is named


@pytest.mark.parametrize("what", STOPS)
def test_what_stops_the_queue_is_named_with_what_mends_it(site: Connection, what: str) -> None:
    who, statement = STOPS[what]
    _add(site, statement)
    ((kind, found, _, _, mend),) = _found(site, *OF_SITE)
    assert (kind, found) == (STOPPED, who)
    if "subscription" not in what:  # to refresh one needs the other server
        site.execute(mend.encode())
        assert _found(site, *OF_SITE) == []


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_in_the_way_is_named_with_what_mends_it(site: Connection, what: str) -> None:
    who, statement = OTHERS[what]
    _add(site, statement)
    ((kind, found, _, _, mend),) = _found(site, *OF_SITE)
    assert (kind, found) == ("site object", who)
    site.execute(mend.rpartition("and ")[2].encode())
    assert _found(site, *OF_SITE) == []


@pytest.mark.parametrize("statement", HARMLESS)
def test_what_changes_nothing_is_not_named(site: Connection, statement: str) -> None:
    _add(site, statement)
    assert _found(site, *OF_SITE, ADDED_BY_SITE) == []


def test_a_foreign_key_is_named_by_check_if_it_keeps_jobs_or_has_no_index(site: Connection) -> None:
    site.execute("create table public.slow (job bigint references drover.jobqueue on delete cascade)")
    site.execute("create table public.keeps (job bigint primary key references drover.jobqueue)")
    found = {who: mend for _, who, _, _, mend in _found(site, ADDED_BY_SITE)}
    assert found["foreign key slow_job_fkey"] == "create an index on public.slow (job)"
    assert "on delete cascade" in found["foreign key keeps_job_fkey"]
    assert _found(site, *OF_SITE) == []


@pytest.mark.parametrize("role", ["drover_readonly", "drover_frontend", "drover_scheduler", "drover_tenant"])
def test_every_role_may_look_for_what_the_site_has(site: Connection, role: str) -> None:
    _add(site, STOPS["row security"][1])
    assert [who for _, who, *_ in _found(site, *OF_SITE, ADDED_BY_SITE, role=role)] == ["row security"]


def test_our_own_names_are_all_known(queue: Connection) -> None:
    names: Any = schema_names()
    query = """
        select relname from pg_class where relnamespace = 'drover'::regnamespace and relkind = 'r'
        except select unnest(%s::text[])"""
    assert fetch_all(queue, query, names["tables"]) == []


# ---- roles


def test_a_renamed_role_is_named_and_gets_back_what_it_had(site: Connection) -> None:
    old, new = f"site_old_{site.info.dbname}"[:60], f"site_new_{site.info.dbname}"[:60]
    site.execute(f"create role {old} login in role drover_operator".encode())
    try:
        with psycopg.connect(make_conninfo(site.info.dsn, user=old), autocommit=True) as theirs:
            theirs.execute("insert into drover.schedule (schedule_name, schedule_every, schedule_job) values"
                           " ('s', '1 day', %s)", (json.dumps({"jq_type": "a"}),))  # fmt: skip
            theirs.execute("select drover.subscribe('all')")
        site.execute(f"alter role {old} rename to {new}".encode())
        ((kind, who, _, what, mend),) = _found(site, *OF_SITE)
        assert (kind, who) == ("lost role", f"role {old}")
        assert what == "is not there, and has schedules and subscriptions: was it renamed?"
        assert fetch_one(site, mend.replace("NEW NAME", f"'{new}'")) == 2
        assert _found(site, *OF_SITE) == []
    finally:
        with suppress(psycopg.Error):
            site.execute(f"drop role if exists {old}; drop role if exists {new}".encode())


def test_a_role_that_is_there_keeps_what_it_has(site: Connection) -> None:
    with pytest.raises(psycopg.errors.DuplicateObject, match="is still there"):
        site.execute("select drover.rename_owner('drover_operator', 'drover_frontend')")
    with pytest.raises(psycopg.errors.UndefinedObject, match="there is no role nobody_there"):
        site.execute("select drover.rename_owner('somebody', 'nobody_there')")
