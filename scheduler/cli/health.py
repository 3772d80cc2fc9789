"""Warnings of `drover status`: what keeps the work of a group waiting, and what hurts the database.

Asks what the daemon has written about itself and the server's own statistics, which costs the scheduler nothing. Each
warning is a statement of schema/cli.sql that returns (who, age, what). Changes nothing.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

import psycopg

from scheduler.cli.db import Session

COLUMNS: Final = ("warning", "who", "age", "what", "next")
Row = tuple[str, str, timedelta | None, str, str]  # of COLUMNS


class Check(NamedTuple):
    """The kind of a warning, the statement that finds it, and what to do next."""

    kind: str
    statement: str
    next: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is too much. Ages; transactions; rows; scans of the whole queue in an hour, on the average."""

    transaction: timedelta = timedelta(minutes=5)
    behind: int = 10_000  # of a replica or a slot; a warning only where dead rows are many
    dead_rows: int = 1_000_000  # many; a fast drain leaves so many between two rounds of autovacuum
    vacuum: timedelta = timedelta(minutes=10)
    scanned_rows: int = 100_000  # a smaller queue may be read as a whole
    scans_per_hour: float = 60.0
    query: timedelta = timedelta(seconds=10)
    lock: timedelta = timedelta(minutes=1)
    blocked: timedelta = timedelta(seconds=10)
    notifications: float = 0.1  # of the server's queue
    timeout_ms: int = 2000  # of each of our own statements


OF_GROUP: Final = (  # the worst first
    Check("no scheduler", "no_scheduler", "start one with drover run"),
    Check(
        "agents failed", "agents_failed", "look at drover log and the agent; try it at once: drover agent enable TYPE"
    ),
    Check("no more agents", "no_more_agents", "raise the limit that is named, or run fewer agents: max of the host"),
    Check(
        "refused", "statements_refused", "mend it in the database; the scheduler tries again, and goes on by itself"
    ),
    Check(
        "connection", "connections_failed",
        "it is tried again by itself; run drover check where the scheduler runs: it says what to do",
    ),
)  # fmt: skip
END_IT: Final = "let its owner end it, or select pg_terminate_backend(pid)"
OF_DATABASE: Final = (
    Check(
        "hidden", "statistics_hidden",
        "look as drover_operator, or let a superuser grant pg_read_all_stats to this role",
    ),
    Check("setting off", "settings_off", "switch it on, and reload"),
    Check("no autovacuum", "tables_without_autovacuum", "alter table ... reset (autovacuum_enabled)"),
    Check("old transaction", "old_transactions", END_IT),
    Check("old transaction", "prepared_transactions", "commit prepared or rollback prepared, in its database"),
    Check(
        "old replica", "replicas_behind",
        "drop an unused slot; end long queries there, or switch hot_standby_feedback off",
    ),
    Check("dead rows", "dead_rows", "vacuum the table now; look whether autovacuum has workers left"),
    Check("scans", "queue_scans", "find it with pg_stat_statements; ask by jq_pk or jq_job_fk, or a replica"),
    Check(
        "slow query", "slow_queries",
        "ask by jq_pk or jq_job_fk, or a replica; to end it: select pg_cancel_backend(pid)",
    ),
    Check("lock", "blocking_locks", END_IT),
    Check(
        "notifications", "notify_queue_filling",
        "end the sessions that listen and are idle in transaction, the oldest first",
    ),
)  # fmt: skip


def group_warnings(session: Session, group: str) -> Iterator[Row]:
    """Yield what keeps the work of a group waiting; nothing for a role that may not see it."""
    for check in OF_GROUP:
        for who, age, what in session.rows(check.statement, group=group):
            yield check.kind, who, age, what, check.next


def database_warnings(session: Session, limits: Limits) -> Iterator[Row]:
    """Yield everything that is wrong with the database at this moment."""
    for check in OF_DATABASE:
        for who, age, what in _found(session, check.statement, asdict(limits)):
            yield check.kind, who, age, what, check.next


def _found(session: Session, statement: str, limits: dict[str, Any]) -> list[Any]:
    """Return the rows of a statement, read-only; one that takes too long or is forbidden is a warning itself."""
    try:
        with session.connection.transaction(force_rollback=True):  # which takes the settings back as well
            session.rows("limit_statement", **limits)
            return session.rows(statement, **limits)
    except (psycopg.errors.QueryCanceled, psycopg.errors.InsufficientPrivilege) as error:
        return [("nobody", None, f"could not be looked for: {error.diag.message_primary or error}")]
