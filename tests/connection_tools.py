"""For the tests of the database drivers: connections on a loop, statements beside them, and the owner of a group."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres import Connection
from scheduler.drivers.statements import Answer, Query, Rows, load
from scheduler.package_data import schema_dir
from tests.loop_tools import turn_until

OWNER = str(UUID(int=1))
OTHER = str(UUID(int=2))
PATIENT = ["set lock_timeout = '1min'", "set statement_timeout = '10s'"]  # of a connection that carries the lease
QUERIES = load((schema_dir() / "queries.sql").read_text())


def opened(loop: Loop, conninfo: str, **options: Any) -> Connection:
    """Return a connection that is up."""
    connection = Connection(loop, "test", conninfo, **options)
    connection.open()
    turn_until(loop, lambda: connection.is_up)
    return connection


def run(loop: Loop, connection: Connection, sql: str, **options: Any) -> Answer:
    """Run a text and wait for its answer."""
    answers: list[Answer] = []
    connection.run(sql, answers.append, **options)
    turn_until(loop, lambda: answers)
    return answers[0]


def ask(loop: Loop, connection: Connection, query: Query, **values: object) -> Answer:
    """Run a query and wait for its answer."""
    answers: list[Answer] = []
    connection.ask(query, values, answers.append)
    turn_until(loop, lambda: answers)
    return answers[0]


def rows_of(answer: Answer) -> list[tuple[bytes | None, ...]]:
    """Return the rows, of which there must be some sort."""
    assert isinstance(answer, Rows), answer
    return answer.rows


def fetch(conninfo: str, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Run something beside the loop and commit it."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.execute(sql.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def limited(database: str, role: str, most: int) -> Iterator[None]:
    """Let a role have so many connections, on the whole server; as many as before afterwards."""
    ((before,),) = fetch(database, f"select rolconnlimit from pg_roles where rolname = '{role}'")
    fetch(database, f"alter role {role} connection limit {most}")
    try:
        yield
    finally:
        fetch(database, f"alter role {role} connection limit {before}")


@contextmanager
def member(database: str, of: str, most: int) -> Iterator[str]:
    """Return a conninfo of a role of its own, a member of another, that may have so many connections."""
    name = f"{of}_{most}"
    fetch(database, f"create role {name} login in role {of} connection limit {most}")
    try:
        yield make_conninfo(database, user=name)
    finally:
        fetch(database, f"drop role {name}")


def shut_out(database: str) -> None:
    """Let nobody connect any more but those to whom `let_in` grants it, and superusers."""
    fetch(database, f"revoke connect on database {_name(database)} from public")


def let_in(database: str, role: str = "public") -> None:
    """Let a role connect."""
    fetch(database, f"grant connect on database {_name(database)} to {role}")


def _name(database: str) -> str:
    return str(conninfo_to_dict(database)["dbname"])


def take_group(conninfo: str, owner: str = OWNER, lease: str = "1 hour") -> None:
    """Make somebody the owner of the default group."""
    fetch(
        conninfo,
        "insert into drover.scheduler_group values ('default', %s, now() + %s::interval, now())"
        " on conflict (group_name) do update set group_owner = excluded.group_owner,"
        " group_lease_until = excluded.group_lease_until",
        owner,
        lease,
    )


MINE = "datname = current_database() and application_name like"


def backends(conninfo: str, name: str, condition: str = "true") -> int:
    """Count the connections of this database whose name begins so."""
    ((count,),) = fetch(conninfo, f"select count(*) from pg_stat_activity where {MINE} '{name}%' and {condition}")
    return int(count)


def end_backends(conninfo: str, name: str) -> None:
    """Cut the connections of this database whose name begins so."""
    fetch(conninfo, f"select pg_terminate_backend(pid) from pg_stat_activity where {MINE} '{name}%'")
