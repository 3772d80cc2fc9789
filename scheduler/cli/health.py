"""Warnings: what keeps jobs waiting and what harms the database, each with the next step; `drover health` prints them.

Each warning is a statement of schema/cli.sql that returns (who, age, what), and what to do next if that differs from
row to row. Changes nothing. A check that could not look is no finding: its warning is `not looked for`, of level
unknown.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from shlex import quote
from typing import Any, Final, NamedTuple

import psycopg

from scheduler.cli.database_session import ALL, Session, connect
from scheduler.cli.output import as_json, cell, printable
from scheduler.cli.schema_names import schema_names
from scheduler.cli.unknown_checks import NotLooked, look, not_looked
from scheduler.drivers.statements import FILES_REPLACED, lacks_files
from scheduler.errors import DroverError
from scheduler.model.config import Config
from scheduler.model.list_bounds import UNBOUNDED, WORST, and_more

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


# Who may, since drover_operator may not.
BY_SIGNALLERS: Final = "that user, a member of pg_signal_backend or a superuser may select"
END_IT: Final = f"to end it, {BY_SIGNALLERS} pg_terminate_backend(pid)"
# Warnings that are critical for `drover health`: no work is done, or work may be lost. Others will slow work down.
STOPPED: Final = "stopped by site"
CRITICAL_KINDS: Final = {
    "no scheduler", "agents failed", "refused", "connection", "impossible", "notifications", "database", STOPPED
}  # fmt: skip
HIDDEN: Final = "hidden"  # what a role never sees is no reason: a note says it
NOT_LOOKED_FOR: Final = "not looked for"
UNKNOWN_KINDS: Final = {HIDDEN, NOT_LOOKED_FOR}
SHOW_ALL: Final = "drover health --all shows them"
# Warnings that only a role finds which may read all of a table.
READERS_OF: Final = {"impossible": "impossible", "filters refused": "impossible", "lost role": "subscription"}
OK, UNKNOWN, WARNING, CRITICAL = "ok", "unknown", "warning", "critical"
# Exit statuses of monitoring plug-ins, the worst last: what was found tells more than what was not looked for.
STATUS: Final = {OK: 0, UNKNOWN: 3, WARNING: 1, CRITICAL: 2}
UNSERVED_NEXT: Final = {  # what to do where jobs wait for a type, by the reason
    "disabled": "drover agent enable {type}",
    "not configured": "configure it, or cancel them: drover cancel --type {type}",
    "no longer configured": "configure it again, or cancel them: drover cancel --type {type}",
}
OF_GROUP: Final = (  # the worst first
    Check("no scheduler", "no_scheduler", "start one with drover run"),
    Check("agents failed", "agents_failed",
          "look at drover log and the agent; try it at once: drover agent enable TYPE"),
    Check("new program", "programs_held_back",
          "drover agent canary TYPE tries it again, drover agent promote TYPE uses it"),
    Check("host down", "hosts_down", "look at the host and the network; it is tried again by itself"),
    Check("no more agents", "no_more_agents", "raise the limit that is named, or run fewer agents: max of the host"),
    Check("refused", "statements_refused",
          "mend it in the database, drover check names what a site has added; it is tried again by itself"),
    Check("connection", "connections_failed",
          "it is tried again by itself; run drover check where the scheduler runs: it says what to do"),
    Check("process left", "processes_left",
          "end it as root, or as that user; agents of another user can be ended if user of their type names it"),
    Check("server files", "server_replaced",
          "if it stays so, install the binaries that are named, and look into the log beside its data"),
)  # fmt: skip
NEXT_OF_GROUP: Final = {check.kind: check.next for check in OF_GROUP}
OF_SITE: Final = (  # each has its own next step
    Check(STOPPED, "site_stops", ""),
    Check("site object", "site_objects", ""),
    Check("lost role", "lost_roles", ""),
    Check("filters refused", "filters_refused", ""),
)
ADDED_BY_SITE: Final = Check("site object", "site_additions", "")  # which may stay: drover check alone shows it
OF_DATABASE: Final = (
    *OF_SITE,
    Check("impossible", "impossible_rows", "report it"),
    Check(HIDDEN, "statistics_hidden",
          "look as drover_operator, or let a superuser grant pg_read_all_stats to this role"),
    Check("setting off", "settings_off", "switch it on, as a superuser, and reload"),
    Check("no autovacuum", "tables_without_autovacuum",
          "as the owner of the table: alter table ... reset (autovacuum_enabled)"),
    Check("old transaction", "old_transactions", END_IT),
    Check("old transaction", "prepared_transactions",
          "that user or a superuser: commit prepared or rollback prepared, in its database"),
    Check("old replica", "replicas_behind",
          "as a superuser drop an unused slot; end long queries there, or switch hot_standby_feedback off"),
    Check("dead rows", "dead_rows",
          "as the owner of the table vacuum it now; look whether autovacuum has workers left"),
    Check("scans", "queue_scans", "find it with pg_stat_statements; ask by jq_pk or jq_job_fk, or a replica"),
    Check("slow query", "slow_queries",
          f"ask by jq_pk or jq_job_fk, or a replica; to end it, {BY_SIGNALLERS} pg_cancel_backend(pid)"),
    Check("lock", "blocking_locks", END_IT),
    Check("notifications", "notify_queue_filling",
          f"the sessions that listen and are idle in transaction, the oldest first: {END_IT}"),
)  # fmt: skip


def show_health(options: Namespace, config: Config) -> int:
    """Print a line for each warning of the group; return the exit status of the worst of them, by STATUS."""
    name, most = options.group or config.scheduler.group, UNBOUNDED if options.all else WORST
    head, unseen = "", list[str]()
    try:
        with connect(config) as session, session.connection.transaction():
            group = read_group(session, name)
            unseen = session.restrictions("jobqueue", "scheduler_status")
            head = headline(group)
            warnings = [*group_warnings(session, name, most), *database_warnings(session, Limits(), most)]
            unseen += [f"{who} {what}" for kind, who, _, what, _ in warnings if kind == HIDDEN]
            found = by_urgency(reasons(group, warnings))
    except DroverError as error:
        found = [_unread(error)]
    level = max((level_of(row) for row in found), key=list(STATUS).index, default=OK)
    if options.json:
        records = [{"level": level_of(row), **dict(zip(COLUMNS, row, strict=True))} for row in found]
        print(as_json({"health": level, "group": name, "reasons": records, "unseen": unseen}))
    else:
        lines = [": ".join(filter(None, (level_of(row), *sentence(row)))) for row in found] or [f"{OK}: {head}"]
        print(*map(printable, lines), *(f"note: {each}" for each in unseen), sep="\n")
    return STATUS[level]


def _unread(error: DroverError) -> Row:
    """Return the only warning where the database, or the group, could not be read."""
    if unlooked := not_looked(error.__cause__):
        return _not_looked_for("everything", unlooked)
    return "database", "", None, " ".join(str(error).split()), ""


def _not_looked_for(kind: str, unlooked: NotLooked) -> Row:
    return NOT_LOOKED_FOR, kind, None, unlooked.why, unlooked.next


def reasons(group: Mapping[str, Any], warnings: Sequence[Row]) -> Iterator[Row]:
    """Yield the warnings that count for the exit status, and that no scheduler is active although no job waits."""
    if not group["active"] and not any(kind == "no scheduler" for kind, *_ in warnings):
        yield "no scheduler", f"group {group['name']}", None, "no scheduler is active", OF_GROUP[0].next
    yield from (row for row in warnings if row[0] != HIDDEN)


def level_of(row: Row) -> str:
    """Return how bad a warning is."""
    return UNKNOWN if row[0] in UNKNOWN_KINDS else CRITICAL if row[0] in CRITICAL_KINDS else WARNING


def by_urgency(warnings: Iterable[Row]) -> list[Row]:
    """Return the warnings, critical ones first, those that could not be looked for last."""
    order = (CRITICAL, WARNING, UNKNOWN)
    return sorted(warnings, key=lambda row: order.index(level_of(row)))


def sentence(row: Row) -> tuple[str, str]:
    """Return the kind of a warning, and the rest of it: who, for how long, what, and what to do next."""
    kind, told, next_step = in_parts(row)
    return kind, f"{told}; next: {next_step}" if next_step else told


def in_parts(row: Row) -> tuple[str, str, str]:
    """Return the kind of a warning, who, for how long and what as one text, and what to do next."""
    kind, who, age, what, next_step = row
    whose = ", ".join(filter(None, (who, f"for {cell(age)}" if age else "")))
    return kind, ": ".join(filter(None, (whose, what))), next_step


def next_of(kind: str, who: str) -> str:
    """Return what to do next about a warning of a group."""
    return NEXT_OF_GROUP[kind].replace("TYPE", who.removeprefix("type "))


def read_group(session: Session, name: str) -> dict[str, Any]:
    """Return who owns a group, and for how long."""
    return session.records("group", group=name)[0] | {"name": name}


def headline(group: Mapping[str, Any]) -> str:
    """Return one line: who owns the group."""
    name = printable(group["name"])
    if not group["active"]:
        return f"group {name}: no scheduler is active; start one with drover run"
    owner = f"{group['host']}.{group['pid']}" if group["host"] else str(group["owner"])
    return f"group {name}: scheduler {printable(owner)} is active since {cell(group['since'])}"


def group_warnings(session: Session, group: str, most: int = WORST) -> Iterator[Row]:
    """Yield what keeps the work of a group waiting, the worst of each kind; nothing for a role that may not see it."""
    return _told_once(_group_warnings(session, group, most))


def _told_once(warnings: Iterable[Row]) -> Iterator[Row]:
    """Yield the warnings; of two checks of a kind that could not look for the same reason only one."""
    told = set[Row]()
    for row in warnings:
        if row not in told:
            yield row
        if row[0] == NOT_LOOKED_FOR:
            told.add(row)


def _group_warnings(session: Session, group: str, most: int) -> Iterator[Row]:
    for kind, statement, _ in OF_GROUP:
        found = look(session, partial(session.first, most, "", statement, group=group))
        if isinstance(found, NotLooked):
            yield _not_looked_for(kind, found)
            continue
        yield from ((kind, who, age, what, next_of(kind, who)) for who, age, what in found.rows)
        yield from _left_out(kind, found.left)
    yield from _unserved(session, group, most)


def _unserved(session: Session, group: str, most: int) -> Iterator[Row]:
    """Yield the types and queues that no scheduler serves, though jobs wait for them."""
    types = look(session, partial(session.first, most, "", "unserved_types", group=group))
    if isinstance(types, NotLooked):
        yield _not_looked_for("unserved", types)
    else:
        for row in types.records():
            what = f"no scheduler serves it, it is {row['reason']}; jobs that wait: {row['jobs']}"
            if row["elsewhere"]:
                what += f", and {row['elsewhere']} in queues that are not of the group"
            next_step = UNSERVED_NEXT[row["reason"]].format(type=quote(row["type"]))
            yield "unserved", f"type {row['type']}", None, what, next_step
        yield from _left_out("unserved", types.left, "types that no scheduler serves")
    queues = look(session, partial(session.first, most, "", "unknown_queues"))
    if isinstance(queues, NotLooked):
        yield _not_looked_for("unserved", queues)
        return
    for row in queues.records():
        what = f"no scheduler has this queue; jobs that wait: {row['jobs']}, of type {row['types']}"
        yield "unserved", f"queue {row['queue']}", None, what, "add it to the configuration, or with drover queue add"
    yield from _left_out("unserved", queues.left, "queues that no scheduler has")


def _left_out(kind: str, left: int, what: str = "") -> Iterator[Row]:
    """Yield a warning in place of those that are not shown."""
    if left:
        yield kind, "", None, and_more(left, what), SHOW_ALL


def database_warnings(session: Session, limits: Limits, most: int = WORST) -> Iterator[Row]:
    """Yield what is wrong with the database, the worst of each kind, and what could not be looked for."""
    yield from _unusable_sessions(session)
    yield from _told_once(found_by(OF_DATABASE, session, limits, most))
    if session.access["impossible"] == ALL:
        yield from _walk_that_stands(session, limits)


def found_by(checks: Iterable[Check], session: Session, limits: Limits, most: int = WORST) -> Iterator[Row]:
    """Yield what these checks find, as far as the role may look, and what could not be looked for."""
    values = asdict(limits) | schema_names()
    may_not = {kind for kind, table in READERS_OF.items() if session.access[table] != ALL}
    for kind, statement, next_step in (check for check in checks if check.kind not in may_not):
        found = look(session, partial(session.rows, statement, **values), limits.timeout_ms)
        if isinstance(found, NotLooked):
            yield _not_looked_for(kind, found)
            continue
        for who, age, what, *own in found[:most]:
            yield kind, who, age, what, own[0] if own else next_step
        yield from _left_out(kind, max(len(found) - most, 0))


def _walk_that_stands(session: Session, limits: Limits) -> Iterator[Row]:
    """Yield that no scheduler looks for impossible rows; a scheduler of a version before has never done so."""
    found = look(session, partial(session.rows, "impossible_not_looked_for"), limits.timeout_ms)
    for age, is_first in () if isinstance(found, NotLooked) else found:
        what = "no scheduler has looked yet" if is_first else "no scheduler has looked since"
        yield NOT_LOOKED_FOR, "impossible", age, what, "start a scheduler of this version: it looks by itself"


def _unusable_sessions(session: Session) -> Iterator[Row]:
    """Yield that the server cannot load its libraries into new sessions, since an upgrade replaced them below it."""
    try:
        with session.connection.transaction(force_rollback=True):
            session.run("use_plpgsql")
    except psycopg.Error as error:
        if not lacks_files(str(error), error.sqlstate):
            return  # the role may not
        yield "database", "new sessions", None, error.diag.message_primary or str(error), FILES_REPLACED
