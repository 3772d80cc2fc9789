"""What the database suffers from: whoever keeps dead rows, scans the queue, holds its locks, or has unsafe settings.

Asks the server's own statistics, which costs the scheduler nothing. Decides what is worth a warning, by LIMITS;
refuses to change anything, and to know what is in the queue.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final, LiteralString

import psycopg

from scheduler.cli.output import Table

COLUMNS: Final = ("warning", "who", "age", "what", "next")
BOUNDS: Final = """
select set_config('transaction_read_only', 'on', true), set_config('statement_timeout', %(patience_ms)s::text, true)
"""

Warned = tuple[str, str, timedelta | None, str, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is too much. Ages; transactions; rows; scans of the whole queue in an hour, on the average."""

    transaction: timedelta = timedelta(minutes=5)
    behind: int = 10_000  # of a replica or a slot; told only where dead rows are many
    dead_rows: int = 1_000_000  # many; a fast drain leaves so many between two rounds of autovacuum
    vacuum: timedelta = timedelta(minutes=10)
    scanned_rows: int = 100_000  # a smaller queue is read by anybody who likes
    scans_per_hour: float = 60.0
    query: timedelta = timedelta(seconds=10)
    lock: timedelta = timedelta(minutes=1)
    blocked: timedelta = timedelta(seconds=10)
    notifications: float = 0.1  # of the server's queue
    patience_ms: int = 2000  # of ours, for each check


@dataclass(frozen=True, slots=True)
class Check:
    """A query that gives (who, age, what) a warning, and what to do then. Named parameters are those of Limits."""

    kind: str
    query: LiteralString
    advice: str


# Without pg_read_all_stats, of sessions of other users only pid, user, application and xmin are to be seen.
HIDDEN: Final = """
select 'role ' || current_user, null::interval,
       'sees little of the sessions of others: warnings are missing'
 where not pg_has_role(current_user, 'pg_read_all_stats', 'usage')
"""
SETTINGS: Final = """
select 'setting ' || name, null::interval, effect
  from pg_settings join (values
    ('fsync', 'a crash of the machine may destroy the database'),
    ('full_page_writes', 'a crash of the machine may destroy pages of the database'),
    ('synchronous_commit', 'jobs that were just handed in may be lost at a crash'),
    ('autovacuum', 'nobody removes dead rows: tables grow, and every statement becomes slower'),
    ('track_counts', 'autovacuum does not know where dead rows are, and removes none')) as s(name, effect) using (name)
 where setting = 'off' and source not in ('user', 'database user', 'client', 'session')
 order by name
"""
SWITCHED_OFF: Final = """
select 'table ' || c.oid::regclass, null::interval, 'autovacuum is switched off for it: dead rows stay'
  from pg_class c, pg_options_to_table(c.reloptions) o
 where c.relnamespace = 'drover'::regnamespace and o.option_name = 'autovacuum_enabled' and not o.option_value::boolean
 order by 1
"""
# A transaction that is idle has a snapshot only if it is repeatable read; any that has written keeps rows as well,
# and from another database too.
OLD_TRANSACTIONS: Final = """
select format('pid %%s, user %%s, application %%s%%s', pid, usename, coalesce(nullif(application_name, ''), '?'),
              ', from ' || host(client_addr)),
       now() - xact_start,
       'dead rows stay and slow claims; ' || greatest(age(backend_xid), age(backend_xmin)) || ' transactions behind, '
         || state || coalesce(': ' || left(query, 60), '')
  from pg_stat_activity
 where (backend_xid is not null or backend_xmin is not null and datname = current_database())
   and now() - xact_start > %(transaction)s and pid <> pg_backend_pid()
   and backend_type in ('client backend', 'background worker') and query !~* '^\\s*vacuum'
 order by xact_start
"""
PREPARED: Final = """
select format('prepared transaction %%L, user %%s, database %%s', gid, owner, database), now() - prepared,
       'dead rows stay and slow claims, its locks stay too, until it is ended; no restart does that'
  from pg_prepared_xacts where now() - prepared > %(transaction)s order by prepared
"""
# Neither tells a time, and a replica a little behind is a healthy one: they count only beside dead rows.
REPLICAS: Final = """
select who, null::interval, 'dead rows stay and slow claims; ' || age(xmin) || ' transactions behind'
  from (select 'replication slot ' || slot_name || case when active then '' else ', unused' end, xmin
          from pg_replication_slots
        union all
        select format('replica %%s, pid %%s, user %%s', application_name, pid, usename), backend_xmin
          from pg_stat_replication) as r(who, xmin)
 where age(xmin) > %(behind)s
   and exists (select from pg_stat_user_tables where schemaname = 'drover' and n_dead_tup > %(dead_rows)s)
 order by age(xmin) desc
"""
DEAD_ROWS: Final = """
select 'table ' || relid::regclass, now() - vacuumed,
       n_dead_tup || ' dead rows beside ' || n_live_tup || ' live ones, not vacuumed since: they slow claims'
  from pg_stat_user_tables,
       lateral (select greatest(last_vacuum, last_autovacuum, pg_postmaster_start_time()) as vacuumed) v
 where schemaname = 'drover' and n_dead_tup > %(dead_rows)s and n_dead_tup > n_live_tup / 5
   and now() - vacuumed > %(vacuum)s and relid not in (select relid from pg_stat_progress_vacuum)
 order by relid::regclass::text
"""
# Counted since the statistics were reset or, at the earliest, the table was made. A parallel scan counts several times,
# rows may have become fewer since: the lesser count is right.
SCANS: Final = """
select 'unknown', now() - since,
       'reads all ' || n_live_tup || ' rows of drover.jobqueue ' || round(scans / hours)
         || ' times an hour, on the average: no index serves its query'
  from pg_stat_user_tables t,
       lateral (select greatest((select stats_reset from pg_stat_database where datname = current_database()),
                                (select min(applied_at) from drover.migration)) as since) s,
       lateral (select greatest(extract(epoch from now() - since) / 3600, 1) as hours,
                       least(seq_scan, seq_tup_read / greatest(n_live_tup, 1)) as scans) c
 where relid = 'drover.jobqueue'::regclass and n_live_tup >= %(scanned_rows)s and scans / hours > %(scans_per_hour)s
"""
# Who has a lock on the queue and reads only; a dump does nothing else.
QUERIES: Final = """
select format('pid %%s, user %%s, application %%s', pid, usename, coalesce(nullif(application_name, ''), '?')),
       now() - query_start, 'still reads the queue: ' || left(query, 120)
  from pg_stat_activity
 where state = 'active' and now() - query_start > %(query)s and pid <> pg_backend_pid()
   and backend_type = 'client backend' and application_name !~ '^(drover|pg_dump)'
   and (select array_agg(mode) from pg_locks l
         where l.pid = pg_stat_activity.pid and l.relation = 'drover.jobqueue'::regclass) = '{AccessShareLock}'
 order by query_start
"""
LOCKS: Final = """
select format('pid %%s, user %%s, application %%s', pid, usename, coalesce(nullif(application_name, ''), '?')),
       now() - coalesce(state_change, xact_start),
       case when pid = any (blockers) then 'others wait for its locks on the queue'
            else 'leaves rows of the queue locked' end || coalesce('; ' || state || ': ' || left(query, 60), '')
  from pg_stat_activity,
       lateral (select array(select unnest(pg_blocking_pids(w.pid)) from pg_locks w
                              where not w.granted and now() - w.waitstart > %(blocked)s) as blockers) b
 where pid in (select pid from pg_locks
                where relation = 'drover.jobqueue'::regclass and granted and mode <> 'AccessShareLock')
   and pid <> pg_backend_pid() and application_name !~ '^drover '
   and (pid = any (blockers) or state like 'idle in transaction%%' and now() - state_change > %(lock)s)
 order by 2 desc
"""
# A session that listens and stays in a transaction keeps all that was told since: nobody sees which one it is.
NOTIFICATIONS: Final = """
select 'NOTIFY queue', (select max(now() - xact_start) from pg_stat_activity where state like 'idle in transaction%%'),
       round((100 * usage)::numeric) || ' %% full: when it is full, commits that tell of anything fail'
  from pg_notification_queue_usage() as usage where usage > %(notifications)s
"""
END_IT: Final = "let its owner end it, or select pg_terminate_backend(pid)"
CHECKS: Final = (
    Check("hidden", HIDDEN, "look as drover_operator, or let a superuser grant pg_read_all_stats to this role"),
    Check("setting off", SETTINGS, "switch it on, and reload"),
    Check("no autovacuum", SWITCHED_OFF, "alter table ... reset (autovacuum_enabled)"),
    Check("old transaction", OLD_TRANSACTIONS, END_IT),
    Check("old transaction", PREPARED, "commit prepared or rollback prepared, in its database"),
    Check("old replica", REPLICAS, "drop an unused slot; end long queries there, or switch hot_standby_feedback off"),
    Check("dead rows", DEAD_ROWS, "vacuum the table now; look whether autovacuum has workers left"),
    Check("scans", SCANS, "find it with pg_stat_statements; ask by jq_pk or jq_job_fk, or a replica"),
    Check("slow query", QUERIES, "ask by jq_pk or jq_job_fk, or a replica; to end it: select pg_cancel_backend(pid)"),
    Check("lock", LOCKS, END_IT),
    Check("notifications", NOTIFICATIONS, "end the sessions that listen and are idle in transaction, the oldest first"),
)


def warnings(connection: psycopg.Connection, limits: Limits) -> Table:
    """Everything that is wrong with the database at this moment; no rows if nothing is."""
    asked = asdict(limits)
    return Table("Warnings", COLUMNS, [row for check in CHECKS for row in _warned(connection, check, asked)])


def _warned(connection: psycopg.Connection, check: Check, limits: Mapping[str, Any]) -> Iterator[Warned]:
    """Rows of COLUMNS; a check that takes too long or is forbidden is one itself."""
    try:
        with connection.transaction(force_rollback=True):  # which takes BOUNDS back as well
            connection.execute(BOUNDS, limits)
            found = connection.execute(check.query, limits).fetchall()
    except (psycopg.errors.QueryCanceled, psycopg.errors.InsufficientPrivilege) as error:
        reason = error.diag.message_primary or str(error)
        found = [("nobody", None, f"could not be looked for: {reason}")]
    yield from ((check.kind, who, age, what, check.advice) for who, age, what in found)
