"""A migration beside sessions that use the queue: it ends none of them, and holds none up for long."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from scheduler.database import migrate
from scheduler.errors import WorldError

TABLES = "create table drover.one (n int); create table drover.two (n int);"
CHANGE = "alter table drover.one add column m int; alter table drover.two add column m int;"
WAITS = (
    "select count(*) from pg_locks where not granted and database = (select oid from pg_database where datname = %s)"
)
COLUMNS = "select count(*) from information_schema.columns where table_schema = 'drover' and column_name = 'm'"

Apply = Callable[[float], Future[list[str]]]


@pytest.fixture
def apply(empty_database: str, tmp_path: Path) -> Iterator[Apply]:
    """Yield a function that changes both tables, in another thread, with so many seconds of patience."""
    (tmp_path / "0001_create_tables.sql").write_text(TABLES)
    assert migrate.apply(empty_database, tmp_path) == ["0001_create_tables.sql"]
    (tmp_path / "0002_change_tables.sql").write_text(CHANGE)
    with ThreadPoolExecutor(1) as threads:
        yield lambda patience_s: threads.submit(migrate.apply, empty_database, tmp_path, patience_s)


@pytest.fixture
def session(empty_database: str, apply: Apply) -> Iterator[psycopg.Connection]:
    """Yield a session; it is closed before the migration is waited for."""
    with psycopg.connect(empty_database, autocommit=True) as connection:
        yield connection


def _await_migration(conninfo: str) -> None:
    """Return when somebody waits for a lock."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        while connection.execute(WAITS, (connection.info.dbname,)).fetchone() == (0,):
            pass


def test_a_session_that_has_one_table_and_wants_another_goes_on_beside_a_migration_f145(
    apply: Apply, session: psycopg.Connection, empty_database: str
) -> None:
    with session.transaction():
        session.execute("insert into drover.two values (2)")
        migrating = apply(60)
        _await_migration(empty_database)
        session.execute(
            "insert into drover.one values (1)"
        )  # a deadlock, if the migration has it and waits for the other
    assert migrating.result() == ["0002_change_tables.sql"]
    assert session.execute(COLUMNS).fetchone() == (2,)


def test_a_long_transaction_lets_a_migration_wait_and_not_the_queue_f145(
    apply: Apply, session: psycopg.Connection, empty_database: str
) -> None:
    with session.transaction(), psycopg.connect(empty_database, autocommit=True) as other:
        session.execute("select from drover.two")
        migrating = apply(60)
        _await_migration(empty_database)
        for _ in range(20):
            other.execute("insert into drover.one values (1)")
            other.execute("select from drover.two")
        assert not migrating.done()
    assert migrating.result() == ["0002_change_tables.sql"]


def test_a_migration_that_cannot_have_a_table_says_who_has_it_and_has_changed_nothing_f145(
    apply: Apply, session: psycopg.Connection
) -> None:
    with session.transaction():
        session.execute("select from drover.two")
        with pytest.raises(
            WorldError, match=rf"pid {session.info.backend_pid}, user .* keeps drover\.two locked since"
        ):
            apply(0.2).result()
        assert session.execute(COLUMNS).fetchone() == (0,)
    assert apply(60).result() == ["0002_change_tables.sql"]
