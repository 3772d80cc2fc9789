"""The lease is renewed while any other statement of the daemon runs, however long; the group is not taken meanwhile."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest

from scheduler.drivers.statements import Query
from scheduler.package_data import schema_dir
from tests.connection_tools import OTHER, OWNER, QUERIES, fetch, take_group

LEASE_ITSELF: Final = {"renew_lease", "take_lease", "unregister"}
FUNCTIONS: Final = set(  # of the schema, that read the row of the group
    re.findall(
        r"^CREATE FUNCTION drover\.(\w+)\((?:(?!^CREATE ).)*?\bscheduler_group\b",
        (schema_dir() / "schema.sql").read_text(), re.MULTILINE | re.DOTALL,
    )
)  # fmt: skip
BY_TYPE: Final = {
    "text": "a", "bigint": "1", "integer": "1", "boolean": "f", "float8": "1", "uuid": OWNER, "jsonb": "[]",
    "timestamptz": "now", "drover.job_state": "failed",
}  # fmt: skip
SAVED: Final = '[{"pk": 1, "attempt": 1, "state": "done", "bits": 1, "outcome": "done"}]'
PROCESS: Final = (
    '{"host": "h", "pid": 1, "boot_id": "", "pid_space": "", "pid_start": 1, "version": "", "lease": 30, "verbs": []}'
)
IN_HAND: Final = {"pks": "{1}", "attempts": "{1}", "ages": "{0}", "micros": "{0}", "places": "{1}", "pids": "{1}"}
MARKED: Final = IN_HAND | {"states": "{claimed}", "hosts": "{local}", "spools": "{spool}"}
WANTED: Final = {
    "want_types": "{a}", "want_queues": "{default}", "want_hosts": '{""}', "want_below": "{2}", "want_ranks": '{""}',
    "want_queued": "{-infinity}", "want_pks": "{0}", "want_counts": "{1}",
}  # fmt: skip
VALUES: Final[dict[str, dict[str, str]]] = {  # by which a statement finds something to do
    "only_end": IN_HAND, "end_and_claim": IN_HAND | WANTED, "only_claim": WANTED, "save": {"rows": SAVED},
    "mark": MARKED, "mark_detached": MARKED, "read_claimed": IN_HAND, "find_lost": IN_HAND,
    "record_in_hand": {"pks": "{1}"}, "register": {"config": PROCESS}, "flush": {"days": "{}"},
    "stop_unstartable": {"state": "failed"},
    "change_jobs": {"command": "2"},
}  # fmt: skip
LATE: Final = {"owner": OTHER, "dead": OTHER, "patient": "t", "lease": "60"}  # its owner is
HOLD_THE_GROUP: Final = [
    "end_and_claim", "only_claim", "only_end", "save", "mark", "mark_detached", "record_in_hand", "rescue", "adopt",
    "set_host", "set_type", "pause_queues", "start_schedules", "change_jobs",
]  # fmt: skip


def touches_group(query: Query) -> bool:
    return "scheduler_group" in query.sql or any(f"drover.{name}(" in query.sql for name in FUNCTIONS)


TOUCHING: Final = sorted(name for name, query in QUERIES.items() if touches_group(query) and name not in LEASE_ITSELF)


@pytest.fixture
def group(database: str) -> str:
    """A group of ours with a job that we have in hand, and a command that cancels it."""
    take_group(database)
    fetch(database, "insert into drover.jobqueue (jq_type) values ('a')")
    fetch(database, "select drover.command('cancel', '{\"type\": \"a\"}')")
    fetch(database, "delete from drover.claimable where claim_type = 'a'")
    fetch(database, "insert into drover.in_hand values (%s, '{1}')", OWNER)
    return database


@contextmanager
def held_open(database: str, name: str) -> Iterator[None]:
    """Run a statement of the daemon in a transaction that does not end."""
    with psycopg.connect(database) as session:
        run(session, name, VALUES.get(name, {}))
        yield
        session.rollback()


def run(session: psycopg.Connection[Any], name: str, values: dict[str, str]) -> list[Any]:
    cursor = psycopg.RawCursor(session).execute(*parameters(name, values))
    return cursor.fetchall() if cursor.description else []


def parameters(name: str, values: dict[str, str]) -> tuple[bytes, list[str]]:
    """Return the text of a query, and a value for each of its parameters: of its type, where none is given."""
    query = QUERIES[name]
    given = {"group": "default", "owner": OWNER} | values
    types = dict(re.findall(r"\$(\d+)::([\w.]+(?:\[\])?)", query.sql))
    chosen = [
        given.get(each, "{}" if (kind := types.get(str(n), "text")).endswith("[]") else BY_TYPE[kind])
        for n, each in enumerate(query.names, 1)
    ]
    return query.sql.encode(), chosen


@pytest.mark.parametrize("name", TOUCHING)
def test_lease_is_renewed_while_a_statement_is_held_open(group: str, name: str) -> None:
    with held_open(group, name), psycopg.connect(group, autocommit=True) as daemon:
        daemon.execute("set lock_timeout = '100ms'")
        assert len(run(daemon, "renew_lease", {"lease": "60"})) == 1


@pytest.mark.parametrize("name", HOLD_THE_GROUP)
def test_group_is_not_taken_while_a_statement_of_its_owner_is_held_open(group: str, name: str) -> None:
    with psycopg.connect(group, autocommit=True) as standby:
        standby.execute("set lock_timeout = '100ms'")
        values = {"owner": OTHER, "dead": OWNER, "patient": "t", "lease": "60"}
        with held_open(group, name), pytest.raises(psycopg.errors.LockNotAvailable):
            run(standby, "take_lease", values)
        assert len(run(standby, "take_lease", values)) == 1


def test_standby_of_the_version_before_waits_for_statements_of_the_owner(group: str) -> None:
    update = "update drover.scheduler_group set group_owner = %s, group_taken_at = now()"
    with held_open(group, "only_claim"), psycopg.connect(group, autocommit=True) as standby:
        standby.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            standby.execute(update, [OTHER])


def test_group_that_is_renewed_while_a_standby_waits_for_it_is_not_taken(group: str) -> None:
    fetch(group, "update drover.scheduler_group set group_lease_until = now() - interval '1 s'")
    with psycopg.connect(group) as owner, psycopg.connect(group, autocommit=True) as standby:
        run(owner, "renew_lease", {"lease": "60"})
        standby.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            run(standby, "take_lease", LATE)
        owner.commit()
        assert run(standby, "take_lease", LATE) == []


def test_row_of_the_daemon_that_another_session_has_locked_delays_no_renewal(group: str) -> None:
    fetch(
        group,
        "insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid,"
        " scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version, scheduler_lease)"
        " values (%s, 'default', 'h', 1, '', '', 1, '', 30)",
        OWNER,
    )
    with psycopg.connect(group) as other, psycopg.connect(group, autocommit=True) as daemon:
        other.execute("select from drover.scheduler for update")
        daemon.execute("set lock_timeout = '100ms'")
        assert len(run(daemon, "renew_lease", {"lease": "60"})) == 1
