"""The locks under which the schema is changed: that of migrations, then all tables and views of the schema at once.

A migration that locks one table after another meets deadlocks with sessions that use the queue, and the server ends
one of both. So all are locked before any is changed, or none: a try is given up long before the server looks for
deadlocks (deadlock_timeout), and the others go on before the next one. Refuses to end another session; blocking.
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
# A table that an autovacuum has locked, and no session. The server cancels an autovacuum when somebody has waited for
# the table longer than deadlock_timeout. An autovacuum has no user.
FIND_VACUUMED: Final = """
select relation::regclass::text from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity a using (pid)
 where database = (select oid from pg_catalog.pg_database where datname = current_database()) and usesysid is null
   and relation = any (%s) and mode = 'ShareUpdateExclusiveLock' and granted
   and not exists (
     select from pg_catalog.pg_locks o join pg_catalog.pg_stat_activity u using (pid)
      where (o.database, o.relation) = (l.database, l.relation) and o.granted and u.usesysid is not null)
 limit 1
"""
READ_LIMITS: Final = """
select extract(epoch from current_setting('deadlock_timeout')::interval)::float8, current_setting('statement_timeout')
"""
SET_LOCAL: Final = "select set_config(%s, %s, true)"
# Who keeps one of our tables; when that began is null if it is not ours to know. A prepared transaction has no pid.
HOLDERS: Final = """
select pid, coalesce(usename, 'none, it is the server''s'), application_name, to_char(xact_start, 'HH24:MI:SS'),
       relation::regclass::text
  from pg_locks join pg_class c on c.oid = relation left join pg_stat_activity using (pid)
 where relnamespace = to_regnamespace('drover') and granted and pid is distinct from pg_backend_pid()
   and database = (select oid from pg_database where datname = current_database())
 order by relname in ('scheduler', 'scheduler_group'), coalesce(xact_start, '-infinity') limit 1
"""
# A migration waits longer than an ordinary transaction may.
LIFT_LIMITS: Final = """
select set_config(name, '0', true) from pg_catalog.pg_settings
 where name in ('transaction_timeout', 'idle_in_transaction_session_timeout')
"""
PATIENCE_S: Final = 60.0
FIRST_TRY_S: Final = 0.1
LONGEST_TRY_S: Final = 0.5
MOST_OF_DEADLOCK_TIMEOUT: Final = 0.5  # that a try takes
VACUUM_S: Final = 1.0  # beyond deadlock_timeout
MOST_VACUUMS: Final = 3  # that are waited for: one against the wraparound of transaction numbers is not stopped


def lock_migrations(connection: psycopg.Connection) -> None:
    """Let no other `init` change the schema until this transaction ends. Errors: LockNotAvailable."""
    connection.execute(LOCK_MIGRATIONS)


def lock_all(connection: psycopg.Connection, schemas: Collection[str], leases: bool, patience_s: float) -> None:
    """Keep all others from tables, and from the views in these schemas too, until this transaction ends; readers too.

    `leases`: those in which daemons renew theirs, too. Errors: LockNotAvailable after `patience_s`.
    """
    spared = READ_WHILE_WAITING if leases else READ_WHILE_WAITING + LEASES
    tables, lock = _row(connection, FIND, list(spared), ["drover", *schemas])
    deadlock_timeout_s, usual_limit = _row(connection, READ_LIMITS)
    longest_s = max(FIRST_TRY_S, min(LONGEST_TRY_S, MOST_OF_DEADLOCK_TIMEOUT * deadlock_timeout_s))
    give_up_at, try_s, vacuums = monotonic() + patience_s, FIRST_TRY_S, 0
    while not _try(connection, lock, try_s, usual_limit):
        if monotonic() + try_s >= give_up_at:
            raise psycopg.errors.LockNotAvailable("the schema is in use")
        sleep(try_s)  # the others go on
        if vacuums < MOST_VACUUMS:
            left_s = give_up_at - monotonic()
            vacuums += _end_vacuum(connection, tables or [], min(deadlock_timeout_s + VACUUM_S, left_s))
        try_s = min(2 * try_s, longest_s)


def _row(connection: psycopg.Connection, query: str, *values: object) -> tuple[Any, ...]:
    found = connection.execute(query.encode(), values or None).fetchone()
    assert found is not None
    return found


def _try(connection: psycopg.Connection, lock: str, limit_s: float, usual_limit: str) -> bool:
    """Lock all, or nothing; return whether it was done in `limit_s`. Errors: QueryCanceled, if `init` is cancelled."""
    began = monotonic()
    try:
        with connection.transaction():
            _set_local(connection, "statement_timeout", _in_ms(limit_s))
            connection.execute(lock.encode())
            _set_local(connection, "statement_timeout", usual_limit)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return False
    except psycopg.errors.QueryCanceled:
        if monotonic() - began < limit_s:
            raise
        return False
    return True


def _end_vacuum(connection: psycopg.Connection, tables: list[int], limit_s: float) -> bool:
    """Wait for a table under autovacuum until the server cancels that; return whether there is such a table."""
    found = connection.execute(FIND_VACUUMED, (tables,)).fetchone()
    if found is not None:
        refused = psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected
        with suppress(*refused), connection.transaction(force_rollback=True):
            _set_local(connection, "lock_timeout", _in_ms(limit_s))
            connection.execute(f"lock table {found[0]} in access exclusive mode".encode())
    return found is not None


def set_patience(connection: psycopg.Connection, patience_s: float) -> None:
    """Let no statement of this transaction wait longer for a lock, LockNotAvailable else; lift other limits."""
    connection.execute(LIFT_LIMITS)
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
    if pid is None:
        return f"a prepared transaction keeps {table} locked: see pg_prepared_xacts, end it and try again"
    who = f"pid {pid}, user {user}" + (f", {program}" if program else "")
    what = f"keeps {table} locked" + (f" since {since}" if since else "")
    return (
        f"{who}, {what}: try again when it is done; to end it, that user, a member of pg_signal_backend "
        f"or a superuser may select pg_terminate_backend({pid})"
    )
