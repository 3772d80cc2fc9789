"""The locks under which the schema is changed: that of migrations, then all tables and views of the schema at once.

A session that has one table and wants another, which a migration has, waits for the migration as the migration for it,
until the server ends one of both transactions. So all are locked before any of them is changed, or none: a try that
takes too long is given up, sooner than the server looks for such circles, and the others go on before the next one.
Refuses to end another session; blocking.
"""

from collections.abc import Collection
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final

import psycopg

# Only who may write here can hold this lock, or keep us from it: an advisory lock could be any login's.
LOCK_MIGRATIONS: Final = "lock table drover.migration in share row exclusive mode"
READ_WHILE_WAITING: Final = ("migration", "later_migration")  # by daemons that wait for a migration
LEASES: Final = ("scheduler", "scheduler_group")  # a migration may take longer than a lease, which daemons renew here
# The oids of our tables, and a statement that locks them and our views; not what others have put there. Views come
# first, as for those who read them, and one by one: `lock table` would lock all below a view too.
FIND: Final = """
with found as materialized (
  select c.oid, relkind, relowner::regrole as owner
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = relnamespace
   where (nspname = 'drover' and relkind in ('r', 'p') and relname <> all (%s) or nspname = any (%s) and relkind = 'v')
     and pg_catalog.pg_has_role(relowner, 'usage'))
select array_agg(oid) filter (where relkind <> 'v'),
       'do $lock$ begin '
       || coalesce(string_agg(format('alter view %%s owner to %%s; ', oid::regclass, owner), '' order by oid)
                     filter (where relkind = 'v'), '')
       || coalesce('lock table ' || string_agg(oid::regclass::text, ', ' order by oid) filter (where relkind <> 'v')
                     || ' in access exclusive mode; ', '')
       || 'end $lock$'
  from found
"""
# A table that the server vacuums by itself, as nobody; it ends that for one who waits longer than deadlock_timeout.
FIND_VACUUMED: Final = """
select relation::regclass::text from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity a using (pid)
 where database = (select oid from pg_catalog.pg_database where datname = current_database()) and usesysid is null
   and relation = any (%s) and mode = 'ShareUpdateExclusiveLock' and granted limit 1
"""
READ_LIMITS: Final = """
select extract(epoch from current_setting('deadlock_timeout')::interval)::float8, current_setting('statement_timeout')
"""
SET_LOCAL: Final = "select set_config(%s, %s, true)"
HOLDERS: Final = """
select pid, coalesce(usename, 'none, it is the server''s'), application_name, to_char(xact_start, 'HH24:MI:SS'),
       relation::regclass::text
  from pg_locks join pg_class c on c.oid = relation join pg_stat_activity using (pid)
 where relnamespace = to_regnamespace('drover') and granted and pid <> pg_backend_pid()
   and database = (select oid from pg_database where datname = current_database())
 order by xact_start limit 1
"""
REFUSED: Final = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
PATIENCE_S: Final = 60.0
FIRST_TRY_S: Final = 0.1
LONGEST_TRY_S, LONGEST_TRY = 0.5, 0.5  # and of deadlock_timeout
VACUUM_S: Final = 1.0  # beyond deadlock_timeout
MOST_VACUUMS: Final = 3  # that are waited for: one that keeps the server from running out of numbers is not ended


def lock_migrations(connection: psycopg.Connection) -> None:
    """Let no other `init` change the schema until this transaction ends. Errors: LockNotAvailable."""
    connection.execute(LOCK_MIGRATIONS)


def lock_all(connection: psycopg.Connection, schemas: Collection[str], leases: bool, patience_s: float) -> None:
    """Keep all others from tables, and from the views in these schemas too, until this transaction ends; readers too.

    `leases`: those in which daemons renew theirs, too. Errors: LockNotAvailable after `patience_s`.
    """
    spared = READ_WHILE_WAITING if leases else READ_WHILE_WAITING + LEASES
    tables, lock = _row(connection, FIND, list(spared), ["drover", *schemas])
    circles_s, usual_limit = _row(connection, READ_LIMITS)
    longest_s = min(LONGEST_TRY_S, LONGEST_TRY * circles_s)
    give_up_at, try_s, vacuums = monotonic() + patience_s, min(FIRST_TRY_S, longest_s), 0
    while not _try(connection, lock, try_s, usual_limit):
        if monotonic() + try_s >= give_up_at:
            raise psycopg.errors.LockNotAvailable("the schema is in use")
        sleep(try_s)  # the others go on
        if vacuums < MOST_VACUUMS:
            vacuums += _end_vacuum(connection, tables or [], circles_s + VACUUM_S)
        try_s = min(2 * try_s, longest_s)


def _row(connection: psycopg.Connection, query: str, *values: object) -> tuple[Any, ...]:
    found = connection.execute(query.encode(), values or None).fetchone()
    assert found is not None
    return found


def _try(connection: psycopg.Connection, lock: str, limit_s: float, usual_limit: str) -> bool:
    """Return whether all could be locked in so many seconds; else nothing is."""
    try:
        with connection.transaction():
            _set_local(connection, "statement_timeout", _in_ms(limit_s))
            connection.execute(lock.encode())
            _set_local(connection, "statement_timeout", usual_limit)
    except REFUSED:
        return False
    return True


def _end_vacuum(connection: psycopg.Connection, tables: list[int], limit_s: float) -> bool:
    """Wait for a table that the server vacuums, and for it alone, so long that it ends that; return if there is one."""
    found = connection.execute(FIND_VACUUMED, (tables,)).fetchone()
    if found is not None:
        with suppress(*REFUSED), connection.transaction(force_rollback=True):
            _set_local(connection, "lock_timeout", _in_ms(limit_s))
            connection.execute(f"lock table {found[0]} in access exclusive mode".encode())
    return found is not None


def set_patience(connection: psycopg.Connection, patience_s: float) -> None:
    """Let no statement of this transaction wait longer for a lock; it fails with LockNotAvailable then."""
    _set_local(connection, "lock_timeout", _in_ms(patience_s))


def _set_local(connection: psycopg.Connection, name: str, value: str) -> None:
    """Set a parameter until the transaction ends, or the part of it that is rolled back."""
    connection.execute(SET_LOCAL, (name, value))


def _in_ms(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def holder(connection: psycopg.Connection) -> str:
    """Return which session keeps the schema locked: the one whose transaction is the oldest."""
    found = connection.execute(HOLDERS).fetchone()
    if found is None:
        return "another session kept the schema locked for too long: try again"
    pid, user, program, since, table = found
    who = f"pid {pid}, user {user}" + (f", {program}" if program else "")
    return (
        f"{who}, keeps {table} locked since {since}: try again when it is done, or select pg_terminate_backend({pid})"
    )
