"""A migration beside sessions that use the queue: it ends none of them, and holds none up for long."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate, schema_locks
from scheduler.errors import WorldError

TABLES = """
create table drover.one (n int);
create table drover.two (n int);
create view drover.seen as select n from drover.one;
"""
CHANGE = "alter table drover.one add column m int; alter table drover.two add column m int;"
PAUSE = "select pg_advisory_xact_lock(7);"  # until the test lets it go on
WAITS = """
select count(*) from pg_locks
 where not granted and database = (select oid from pg_database where datname = %s) and locktype = %s
"""
COLUMNS = "select count(*) from information_schema.columns where table_schema = 'drover' and column_name = 'm'"
OWNED = (
    "schema drover", "table drover.migration", "table drover.later_migration", "table drover.one", "table drover.two",
    "view drover.seen",
)  # fmt: skip

Apply = Callable[..., "Future[list[str]]"]


@pytest.fixture
def apply(empty_database: str, tmp_path: Path) -> Iterator[Apply]:
    """Yield a function that applies a second migration in another thread; one that changes both tables is usual."""
    (tmp_path / "0001_create_tables.sql").write_text(TABLES)
    assert migrate.apply(empty_database, tmp_path) == ["0001_create_tables.sql"]

    def apply(text: str = CHANGE, patience_s: float = 60.0, user: str = "postgres") -> "Future[list[str]]":
        (tmp_path / "0002_change_tables.sql").write_text(text)
        return threads.submit(migrate.apply, make_conninfo(empty_database, user=user), tmp_path, patience_s)

    with ThreadPoolExecutor(1) as threads:
        yield apply


@pytest.fixture
def session(empty_database: str, apply: Apply) -> Iterator[psycopg.Connection]:
    """Yield a session; it is closed before the migration is waited for."""
    with psycopg.connect(empty_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def pause(empty_database: str, apply: Apply) -> Iterator[psycopg.Connection]:
    """Yield a session that keeps a migration in PAUSE, until it unlocks 7."""
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(7)")
        yield connection


@pytest.fixture
def owner(session: psycopg.Connection) -> Iterator[str]:
    """Yield a role that owns all, and is no superuser."""
    role = f"test_{uuid4().hex}"
    session.execute(f"create role {role} login; alter database {session.info.dbname} owner to {role}".encode())
    for name in OWNED:
        session.execute(f"alter {name} owner to {role}".encode())
    yield role
    session.execute(f"reassign owned by {role} to postgres; drop owned by {role}; drop role {role}".encode())


def _await_waiter(conninfo: str, kind: str = "relation") -> None:
    """Return once a session of the database waits for a lock of this kind."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        while connection.execute(WAITS, (connection.info.dbname, kind)).fetchone() == (0,):
            pass


@pytest.mark.parametrize("tries", [1, 5])  # they become longer
def test_a_session_that_has_one_table_and_wants_another_goes_on_beside_a_migration_f145(
    apply: Apply, session: psycopg.Connection, empty_database: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, failed = schema_locks._try, Semaphore(0)
    monkeypatch.setattr(schema_locks, "_try", lambda *given: fails(*given) or failed.release())
    with session.transaction():
        session.execute("insert into drover.two values (2)")
        migrating = apply()
        for _ in range(tries):
            failed.acquire()
        _await_waiter(empty_database)
        session.execute("insert into drover.one values (1)")  # a deadlock, if the migration has it and waits for two
    assert migrating.result() == ["0002_change_tables.sql"]
    assert session.execute(COLUMNS).fetchone() == (2,)


def test_a_long_transaction_lets_a_migration_wait_and_not_the_queue_f145(
    apply: Apply, session: psycopg.Connection, empty_database: str
) -> None:
    with session.transaction(), psycopg.connect(empty_database, autocommit=True) as other:
        session.execute("select from drover.two")
        migrating = apply()
        _await_waiter(empty_database)
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
            apply(patience_s=0.2).result()
        assert session.execute(COLUMNS).fetchone() == (0,)
    assert apply().result() == ["0002_change_tables.sql"]


def test_a_reader_of_a_view_goes_on_beside_a_migration_that_replaces_it_f145(
    apply: Apply, session: psycopg.Connection, pause: psycopg.Connection, empty_database: str
) -> None:
    migrating = apply(f"{CHANGE}{PAUSE}create or replace view drover.seen as select n, m from drover.one;")
    _await_waiter(empty_database, "advisory")
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(session.execute, "select from drover.seen")
        _await_waiter(empty_database)
        pause.execute("select pg_advisory_unlock(7)")
        assert migrating.result() == ["0002_change_tables.sql"]
        assert reading.result().fetchall() == []


def test_daemons_renew_their_leases_beside_a_long_migration_f145(
    apply: Apply, session: psycopg.Connection, pause: psycopg.Connection, empty_database: str
) -> None:
    session.execute("create table drover.scheduler_group (until timestamptz)")
    migrating = apply(CHANGE + PAUSE)
    _await_waiter(empty_database, "advisory")
    session.execute("set statement_timeout = '10s'")
    session.execute("update drover.scheduler_group set until = now()")
    pause.execute("select pg_advisory_unlock(7)")
    assert migrating.result() == ["0002_change_tables.sql"]


def test_a_migration_that_changes_leases_has_them_locked_from_the_beginning_f145(
    apply: Apply, session: psycopg.Connection, pause: psycopg.Connection, empty_database: str
) -> None:
    session.execute("create table drover.scheduler_group (until timestamptz)")
    migrating = apply(PAUSE + "alter table drover.scheduler_group add column m int;")
    _await_waiter(empty_database, "advisory")
    session.execute("set lock_timeout = '10ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        session.execute("update drover.scheduler_group set until = now()")
    pause.execute("select pg_advisory_unlock(7)")
    assert migrating.result() == ["0002_change_tables.sql"]


def test_a_table_that_others_have_put_into_the_schema_is_left_alone_f145(
    apply: Apply, session: psycopg.Connection, owner: str
) -> None:
    session.execute("create table drover.theirs (n int)")
    assert apply(user=owner).result() == ["0002_change_tables.sql"]


def test_an_owner_who_is_no_superuser_is_told_who_has_a_table_f145(
    apply: Apply, session: psycopg.Connection, owner: str
) -> None:
    with session.transaction():
        session.execute("select from drover.two")
        told = rf"pid {session.info.backend_pid}, user postgres, keeps drover\.two locked: try again"
        with pytest.raises(WorldError, match=told):
            apply(patience_s=0.2, user=owner).result()


def test_limits_of_idle_transactions_do_not_end_a_migration_that_waits_f145(
    apply: Apply, session: psycopg.Connection
) -> None:
    short = f"alter database {session.info.dbname} set idle_in_transaction_session_timeout = '500ms'"
    session.execute(short.encode())
    with session.transaction():
        session.execute("select from drover.two")
        with pytest.raises(WorldError, match=r"keeps drover\.two locked since"):
            apply(patience_s=3.0).result()


def test_a_vacuum_by_hand_keeps_nobody_from_its_table_but_the_migration_f145(
    apply: Apply, session: psycopg.Connection, empty_database: str
) -> None:
    with psycopg.connect(empty_database) as vacuum:
        vacuum.execute("lock table drover.two in share update exclusive mode")
        tables = [session.execute("select 'drover.two'::regclass::oid").fetchone()[0]]  # type: ignore[index]
        assert not schema_locks._end_vacuum(session, tables, 0.1)
        migrating = apply()
        _await_waiter(empty_database)
        for _ in range(20):
            session.execute("insert into drover.two values (1)")
        assert not migrating.done()
    assert migrating.result() == ["0002_change_tables.sql"]


def test_init_waits_for_another_that_creates_the_schema_as_long_as_it_is_told_f145(
    empty_database: str, tmp_path: Path
) -> None:
    (tmp_path / "0001_create_tables.sql").write_text(TABLES)
    with psycopg.connect(empty_database) as other:
        other.execute("create schema drover")
        with pytest.raises(WorldError, match="another session kept the schema locked for too long"):
            migrate.apply(empty_database, tmp_path, 0.2)
