"""`drover status`: who schedules, what the slots do, how many jobs wait for what, and what is wrong.

Reads what the daemon has written, and the server's statistics, which costs the scheduler nothing; a stopped daemon is
no reason to fail. Each warning is a statement of schema/cli.sql that returns (who, age, what), and what to do next if
that differs from row to row. Changes nothing.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import psycopg

from scheduler.cli.jobs import WAITING_NAME, redraw
from scheduler.cli.output import Table, as_json, cell, print_table, printable
from scheduler.cli.session import MASKED, NOTHING, Session, connect
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.states import JOB_STATES

# Parts that are empty for a role that sees less than all of drover.scheduler_status.
HIDDEN_PARTS: Final = {MASKED: ("statements",), NOTHING: ("slots", "statements")}
COLUMNS: Final = ("warning", "who", "age", "what", "next")
Row = tuple[str, str, timedelta | None, str, str]  # of COLUMNS


class Check(NamedTuple):
    """The kind of a warning, the statement that finds it, and what to do next."""

    kind: str
    statement: str
    next: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the warnings: ages; transactions; rows; scans of the whole queue in an hour, on the average."""

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


END_IT: Final = "let its owner end it, or select pg_terminate_backend(pid)"
OF_GROUP: Final = (  # the worst first
    Check("no scheduler", "no_scheduler", "start one with drover run"),
    Check("agents failed", "agents_failed",
          "look at drover log and the agent; try it at once: drover agent enable TYPE"),
    Check("host down", "hosts_down", "look at the host and the network; it is tried again by itself"),
    Check("no more agents", "no_more_agents", "raise the limit that is named, or run fewer agents: max of the host"),
    Check("refused", "statements_refused",
          "mend it in the database; the scheduler tries again, and goes on by itself"),
    Check("connection", "connections_failed",
          "it is tried again by itself; run drover check where the scheduler runs: it says what to do"),
)  # fmt: skip
OF_DATABASE: Final = (
    Check("impossible", "impossible_rows", "report it"),
    Check("hidden", "statistics_hidden",
          "look as drover_operator, or let a superuser grant pg_read_all_stats to this role"),
    Check("setting off", "settings_off", "switch it on, and reload"),
    Check("no autovacuum", "tables_without_autovacuum", "alter table ... reset (autovacuum_enabled)"),
    Check("old transaction", "old_transactions", END_IT),
    Check("old transaction", "prepared_transactions", "commit prepared or rollback prepared, in its database"),
    Check("old replica", "replicas_behind",
          "drop an unused slot; end long queries there, or switch hot_standby_feedback off"),
    Check("dead rows", "dead_rows", "vacuum the table now; look whether autovacuum has workers left"),
    Check("scans", "queue_scans", "find it with pg_stat_statements; ask by jq_pk or jq_job_fk, or a replica"),
    Check("slow query", "slow_queries",
          "ask by jq_pk or jq_job_fk, or a replica; to end it: select pg_cancel_backend(pid)"),
    Check("lock", "blocking_locks", END_IT),
    Check("notifications", "notify_queue_filling",
          "end the sessions that listen and are idle in transaction, the oldest first"),
)  # fmt: skip


def show_status(options: Namespace, config: Config) -> int:
    """Print it as a headline and tables, or all of it as one JSON object; --watch does so until Ctrl-C."""
    name = options.group or config.scheduler.group
    with connect(config) as session:
        # A group that never had a scheduler, if others had one, is most often misspelt.
        known = [known for (known,) in session.rows("group_names")] if options.group else []
        if known and name not in known:
            raise ConfigError(f"no group {name}: there are {', '.join(known)}")
        if options.watch:
            redraw(session, partial(_print, session, name, json=options.json))
        _print(session, name, json=options.json)
    return 0


def _print(session: Session, name: str, *, json: bool) -> None:
    with session.connection.transaction():
        group = session.records("group", group=name)[0] | {"name": name}
        clients = session.value("waiting_clients", name=WAITING_NAME)
        restrictions = session.restrictions("jobqueue", "scheduler_status")
        parts = _parts(session, name)
        if json:
            hidden = HIDDEN_PARTS.get(session.access["scheduler_status"], ())
            head = {"group": group, "waiting_clients": clients, "unseen": restrictions}
            print(as_json(head | {key: None if key in hidden else part.records() for key, part in parts}))
            return
        print(headline(group), *(f"note: {note}" for note in [*standby_notes(group), *restrictions]), sep="\n")
        if clients:
            print(clients, "client waits" if clients == 1 else "clients wait", "for jobs or answers")
        sys.stdout.flush()
        for _, part in parts:
            if part.rows:
                print()
                print_table(part)
                sys.stdout.flush()


def headline(group: dict[str, Any]) -> str:
    """Return one line: who owns the group, and when its lease ends."""
    name = printable(group["name"])
    if not group["active"]:
        return f"group {name}: no scheduler is active; start one with drover run"
    owner = f"{group['host']}.{group['pid']}" if group["host"] else str(group["owner"])
    since, left = cell(group["since"]), cell(group["lease_left"])
    return f"group {name}: {printable(owner)} is active since {since}, its lease ends in {left}"


def standby_notes(group: dict[str, Any]) -> list[str]:
    """Return a note if no scheduler would go on when the owner of the group dies."""
    is_alone = group["active"] and not group["standbys"]
    return ["the group has no standby, which would take over if this scheduler ended"] if is_alone else []


def _parts(session: Session, name: str) -> Iterator[tuple[str, Table]]:
    """Yield each table as it is read: what is wrong comes before the queue, which a session may keep locked."""
    warnings = [*group_warnings(session, name), *database_warnings(session, Limits())]
    yield "warnings", Table("Warnings", COLUMNS, warnings)
    yield "schedulers", session.table("Schedulers", "schedulers", group=name)
    yield "slots", session.table("Slots", "slots", group=name)
    yield "jobs", pivot(session.rows("job_counts"))
    yield "unserved", session.table("Types that no scheduler serves", "unserved_types")
    yield "unknown_queues", session.table("Jobs in queues that do not exist", "unknown_queues")
    yield "conditions", session.table("Conditions that jobs are blocked on", "conditions")
    yield "queues", session.table("Queues", "queues", group=name)
    yield "statements", session.table("Statements of the schedulers", "statements", group=name)


def pivot(counts: list[tuple[Any, ...]]) -> Table:
    """Return rows of (type, state, jobs) as a row a type and a column for every state that occurs."""
    jobs = Counter({(kind, state): count for kind, state, count in counts})
    states = [state for state in JOB_STATES if any(state == other for _, other in jobs)]
    kinds = dict.fromkeys(kind for kind, _ in jobs)
    return Table("Jobs", ("type", *states), [(kind, *(jobs[kind, state] for state in states)) for kind in kinds])


def group_warnings(session: Session, group: str) -> Iterator[Row]:
    """Yield what keeps the work of a group waiting; nothing for a role that may not see it."""
    for kind, statement, next_step in OF_GROUP:
        for who, age, what in session.rows(statement, group=group):
            yield kind, who, age, what, next_step


def database_warnings(session: Session, limits: Limits) -> Iterator[Row]:
    """Yield everything that is wrong with the database at this moment; a check that fails is a warning itself."""
    values = asdict(limits)
    may_not = {"impossible"} if session.access["impossible"] == NOTHING else set()
    for kind, statement, next_step in (check for check in OF_DATABASE if check.kind not in may_not):
        try:
            with session.connection.transaction(force_rollback=True):  # which takes the settings back as well
                session.rows("limit_statement", **values)
                found = session.rows(statement, **values)
        except (psycopg.errors.QueryCanceled, psycopg.errors.InsufficientPrivilege) as error:
            found = [("nobody", None, f"could not be looked for: {error.diag.message_primary or error}")]
        for who, age, what, *own in found:
            yield kind, who, age, what, own[0] if own else next_step
