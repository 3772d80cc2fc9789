"""The locks under which the schema is changed: first that of migrations, then all tables of the schema at once.

Sessions that use the queue wait behind a lock that is waited for, and one that has a table and wants another would wait
for us as we for it, until the server ends the transaction of one of both. So the tables are locked before any of them
is changed, all or none, by tries that are given up after a moment. Refuses to end another session; blocking.
"""

from time import monotonic, sleep

import psycopg

# Only who may write here can hold this lock, or keep us from it: an advisory lock could be any login's.
LOCK_MIGRATIONS = "lock table drover.migration in share row exclusive mode"
LOCK_TABLES = """
do $$ declare
  tables text;
begin
  select string_agg(oid::regclass::text, ', ' order by oid) into tables from pg_catalog.pg_class
   where relnamespace = to_regnamespace('drover') and relkind in ('r', 'p')
     and relname not in ('migration', 'later_migration');  -- daemons that wait for a migration read them
  if tables is not null then
    execute 'lock table ' || tables || ' in access exclusive mode';
  end if;
end $$
"""
PATIENCE_S = 60.0
FIRST_TRY_S = 0.1
LONGEST_TRY_S = 2.0  # longer than the default of deadlock_timeout: then the server ends an autovacuum in our way
SET_TIMEOUT = "select set_config('lock_timeout', %s, true)"  # until the transaction ends
HOLDERS = """
select pid, usename, application_name, to_char(xact_start, 'HH24:MI:SS'), relation::regclass::text
  from pg_locks join pg_class c on c.oid = relation join pg_stat_activity using (pid)
 where relnamespace = to_regnamespace('drover') and granted and pid <> pg_backend_pid() order by xact_start limit 1
"""


def lock_migrations(connection: psycopg.Connection, patience_s: float) -> None:
    """Let no other `init` change the schema until this transaction ends. Errors: LockNotAvailable."""
    _limit(connection, patience_s)
    connection.execute(LOCK_MIGRATIONS)


def lock_tables(connection: psycopg.Connection, patience_s: float) -> None:
    """Keep all others from the tables, readers too, until this transaction ends. Errors: LockNotAvailable.

    It is tried for `patience_s`; between two tries as much time passes as the try took, in which the others go on.
    """
    give_up_at = monotonic() + patience_s
    try_s = FIRST_TRY_S
    while not _try_tables(connection, min(try_s, patience_s), is_last=monotonic() + try_s >= give_up_at):
        sleep(try_s)
        try_s = min(2 * try_s, LONGEST_TRY_S)
    _limit(connection, patience_s)


def _try_tables(connection: psycopg.Connection, limit_s: float, *, is_last: bool) -> bool:
    """Return whether all tables could be locked in so many seconds. Errors: what the last try met."""
    try:
        with connection.transaction():
            _limit(connection, limit_s)
            connection.execute(LOCK_TABLES)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        if is_last:
            raise
        return False
    return True


def _limit(connection: psycopg.Connection, limit_s: float) -> None:
    connection.execute(SET_TIMEOUT, (f"{limit_s * 1000:.0f}ms",))


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
