"""`drover status`: who schedules, what is wrong, what the agents do, and how many jobs wait for what.

Reads what the daemon has written, and the server's statistics, which costs the scheduler nothing; a stopped daemon is
no reason to fail. It fits a screen: what is idle is a number, and each table is cut to its share of the lines; -v
prints all.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import inf
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, Final

from scheduler.cli.columns import width_of
from scheduler.cli.config_files import EMBEDDED, load, locate, shipped
from scheduler.cli.database_session import MASKED, NOTHING, Session, connect
from scheduler.cli.embedded_database import embedded_directory
from scheduler.cli.health import (
    COLUMNS,
    CRITICAL,
    Limits,
    Row,
    by_urgency,
    database_warnings,
    group_warnings,
    headline,
    level_of,
    read_group,
    sentence,
)
from scheduler.cli.job_totals import Counts, busy_agents, jobs_by_type, jobs_line, live_jobs, slots_line, totals
from scheduler.cli.output import Table, as_json, print_fields, print_table, printable
from scheduler.cli.wait import WAITING_NAME, redraw
from scheduler.errors import ConfigError, DroverError, NoDatabaseYetError
from scheduler.model.config import Config
from scheduler.model.list_bounds import LISTED, UNBOUNDED, WORST, and_more
from scheduler.package_data import version

# Parts that are empty for a role that sees less than all of drover.scheduler_status.
HIDDEN_PARTS: Final = {MASKED: ("statements",), NOTHING: ("slots", "statements")}
SHOWN: Final = ("conditions", "agents", "detached", "jobs", "queues", "schedulers")  # on a screen, in this order
WITH_V: Final = (
    "conditions", "slots", "detached", "jobs", "unserved", "unknown_queues", "queues", "schedulers", "statements",
)  # fmt: skip
SPARE: Final = ("successes", "memory_mb", "longest_turn_ms", "slow_turns", "version", "tester", "policy", "started")
GAP_WIDTH: Final = 2
TABLE_LINES: Final = 4  # that a table takes beside its rows

GREETING: Final = "Drover {} drives a queue in Postgres through agents; drover --help lists the commands."
TRY: Final = ("drover demo", "works on real files, with a database of its own")
RUN: Final = ("drover run", "starts a scheduler in this terminal; Ctrl-C ends it")

Step = tuple[str, tuple[str, str]]  # how things are, and a command with what it does


def show_status(options: Namespace, config: Config) -> int:
    """Print it as a headline and tables, or all of it as one JSON object; --watch does so until Ctrl-C."""
    name = options.group or config.scheduler.group
    with connect(config) as session:
        # A group that never had a scheduler, if others had one, is most often misspelt.
        known = [known for (known,) in session.rows("group_names")] if options.group else []
        if known and name not in known:
            raise ConfigError(f"no group {name}: there are {', '.join(known)}")
        draw = partial(_print_json if options.json else _print, session, name, is_verbose=options.verbose)
        if options.watch:
            redraw(session, draw)
        draw()
    return 0


def _print_json(session: Session, name: str, *, is_verbose: bool) -> None:
    with session.connection.transaction():
        head = _head(session, name)
        hidden = HIDDEN_PARTS.get(session.access["scheduler_status"], ())
        found = by_urgency(_warnings(session, name, is_verbose=is_verbose))
        counts = session.rows("waiting_counts")
        tables = dict(_parts(session, name, counts, is_verbose=is_verbose))
    warnings = [dict(zip(COLUMNS, row, strict=True)) for row in found]
    parts = {key: None if key in hidden else part.records() for key, part in tables.items()}
    left_out = {key: part.left for key, part in tables.items() if part.left}
    print(as_json(head | {"warnings": warnings, "totals": totals(counts)} | parts | {"left_out": left_out}))


def _print(session: Session, name: str, *, is_verbose: bool) -> None:
    """Print what is wrong, the most urgent first, then all in a few lines, then tables of what is not idle.

    The tables share the lines of the screen; elsewhere than on a terminal, those of a usual one.
    """
    lines = inf if is_verbose else get_terminal_size().lines - 2
    with session.connection.transaction():
        head = _head(session, name)
        first, *others = _facts(head)
        if not head["group"]["active"]:
            print(first)
        warnings = by_urgency(_warnings(session, name, is_verbose=is_verbose))
        used = _print_warnings(warnings, lines / 2 if sys.stdout.isatty() else inf)
        if head["group"]["active"]:
            print(first)
        print("".join(f"{line}\n" for line in others), end="", flush=True)  # before the queue, which may be locked
        counts = session.rows("waiting_counts")
        parts = dict(_parts(session, name, counts, is_verbose=is_verbose))
    in_short = [line for line in (jobs_line(totals(counts)), slots_line(parts["slots"].records())) if line]
    print(*in_short, sep="\n")
    lines -= 1 + len(others) + len(in_short) + (used if sys.stdout.isatty() else 0)
    _print_tables(parts if is_verbose else _what_is_not_idle(parts), WITH_V if is_verbose else SHOWN, lines)


def _facts(head: Mapping[str, Any]) -> list[str]:
    """Return who schedules, and what is to be noted of that and of this role."""
    notes = [f"note: {note}" for note in (*standby_notes(head["group"]), *head["unseen"])]
    clients = head["waiting_clients"]
    waits = [f"{clients} {'client waits' if clients == 1 else 'clients wait'} for jobs or answers"] if clients else []
    return [headline(head["group"]), *notes, *waits]


def _print_tables(parts: Mapping[str, Table], names: Sequence[str], lines: float) -> None:
    """Print the tables of these names that have rows, each as far as its share of the lines goes."""
    shown = [part for name in names if (part := parts[name]).rows]
    for part, rows in zip(shown, shares([len(part.rows) for part in shown], lines), strict=True):
        print()
        print_table(replace(part, rows=part.rows[:rows], spare=SPARE))
        _tell_more(part.left + len(part.rows) - rows)


def _what_is_not_idle(parts: Mapping[str, Table]) -> dict[str, Table]:
    """Return the tables without the types that have no job which waits or runs, idle queues, and a lone scheduler."""
    queues, schedulers = parts["queues"], parts["schedulers"]
    at_work = [tuple(row.values()) for row in queues.records() if row["paused"] or row["queued"] or row["in_hand"]]
    is_lone = [row["role"] for row in schedulers.records()] == ["owner"]
    return {
        **parts,
        "agents": _cut(busy_agents(parts["slots"].records()), LISTED),
        "jobs": live_jobs(parts["jobs"]),
        "queues": replace(queues, rows=at_work, left=queues.left + len(queues.rows) - len(at_work)),
        "schedulers": replace(schedulers, rows=[] if is_lone else schedulers.rows),
    }


def _head(session: Session, name: str) -> dict[str, Any]:
    return {
        "group": read_group(session, name),
        "waiting_clients": session.value("waiting_clients", name=WAITING_NAME),
        "unseen": session.restrictions("jobqueue", "scheduler_status"),
    }


def _warnings(session: Session, name: str, *, is_verbose: bool) -> Iterator[Row]:
    most = UNBOUNDED if is_verbose else WORST
    yield from group_warnings(session, name, most)
    yield from database_warnings(session, Limits(), most)


def _print_warnings(warnings: Sequence[Row], lines: float) -> int:
    """Print as many as fit these lines, one at least, and an empty line; return how many lines that took."""
    if not warnings:
        return 0
    fields = [sentence(row) for row in warnings]
    heights = list(accumulate(_heights(fields), initial=TABLE_LINES))
    most = max(sum(height <= lines for height in heights[1:]), 1)
    print_fields(fields[:most], "Warnings", [level_of(row) for row in warnings[:most]])
    _tell_more(len(warnings) - most)
    print(flush=True)
    return heights[most]


def _heights(fields: Sequence[tuple[str, str]]) -> Iterator[int]:
    """Yield how many lines each of them takes on a screen."""
    width = get_terminal_size().columns - max(width_of(name) for name, _ in fields) - GAP_WIDTH
    width = max(width, 1)
    return (max(len(wrap(text, width)), -(-width_of(text) // width)) for _, text in fields)


def _tell_more(more: int) -> None:
    if more > 0:
        print(and_more(more, how="drover status -v lists all"))


def shares(needs: Sequence[int], lines: float, beside: int = TABLE_LINES) -> list[int]:
    """Return how many rows of each table are shown: all of a short one, an equal share of the others; at least one.

    `beside` is how many lines a table takes beside its rows.
    """
    left = lines - beside * len(needs)
    given: dict[int, int] = {}
    for place, need in sorted(enumerate(needs), key=lambda each: each[1]):
        fair = left / (len(needs) - len(given))
        given[place] = need if need <= fair else max(int(fair), 1)
        left -= given[place]
    return [given[place] for place in range(len(needs))]


def standby_notes(group: Mapping[str, Any]) -> list[str]:
    """Return a note if no scheduler would go on when the owner of the group dies."""
    is_alone = group["active"] and not group["standbys"]
    return ["the group has no standby, which would take over if this scheduler ended"] if is_alone else []


def _parts(session: Session, name: str, counts: Counts, *, is_verbose: bool) -> Iterator[tuple[str, Table]]:
    """Yield each table as it is read; those that no configuration bounds are cut, unless -v is given."""
    worst, listed = (UNBOUNDED, UNBOUNDED) if is_verbose else (WORST, LISTED)
    yield "schedulers", session.table("Schedulers", "schedulers", group=name)
    yield "slots", session.table("Slots", "slots", group=name)
    yield "detached", session.first(listed, "Detached jobs", "detached_jobs")
    yield "jobs", _cut(jobs_by_type(counts), listed)
    yield "unserved", session.first(worst, "Types that no scheduler serves", "unserved_types", group=None)
    yield "unknown_queues", session.first(worst, "Jobs in queues that do not exist", "unknown_queues")
    yield "conditions", session.first(worst, "Conditions that jobs are blocked on", "conditions")
    yield "queues", session.first(listed, "Queues", "queues", group=name)
    yield "statements", session.table("Statements of the schedulers", "statements", group=name)


def _cut(table: Table, most: int) -> Table:
    """Return the rows with the largest numbers, in the order that they have, if there are more than so many."""
    largest = sorted(range(len(table.rows)), key=lambda place: -sum(filter(_is_number, table.rows[place])))
    kept = [table.rows[place] for place in sorted(largest[:most])]
    return replace(table, rows=kept, left=len(table.rows) - len(kept))


def _is_number(value: Any) -> bool:
    return isinstance(value, int)


# ---- drover without a command


def greet(options: Namespace) -> int:
    """Print it; 0 in every situation."""
    situation, (command, does) = _situation(options)
    print(GREETING.format(version()), printable(situation), "", f"  {command}", f"      {does}", sep="\n")
    return 0


def _situation(options: Namespace) -> Step:
    try:
        config = load(options.config, os.environ)
    except ConfigError as error:
        first, *more = str(error).splitlines()
        others = f"; and {len(more)} more mistakes" if more else ""
        return f"{first}{others}", ("drover check", "says what is wrong with the configuration, and with all it names")
    try:
        with connect(config) as session, session.connection.transaction():
            return _in_database(session, config)
    except NoDatabaseYetError:
        return _without_database(options, config)
    except DroverError as error:
        return " ".join(str(error).split()), ("drover check", "tries every log-in, and says what to do")


def _without_database(options: Namespace, config: Config) -> Step:
    """Return what to run first: `drover demo` without a configuration, else `drover run`, which makes the database."""
    place = embedded_directory(config.database.url)
    if config.database.url == EMBEDDED and locate(options.config, os.environ) == shipped():
        return f"No daemon runs. Without [database] url, Drover uses a PostgreSQL of its own, in {place}.", TRY
    return f"No daemon runs, and no database is in {place} yet.", RUN


def _in_database(session: Session, config: Config) -> Step:
    name = config.scheduler.group
    group = read_group(session, name)
    ((live, ended),) = session.rows("queue_in_short")
    counts = f"{live:,} wait or run, {ended:,} have ended"
    if not group["active"]:
        place = embedded_directory(config.database.url) or "the database"
        return f"No daemon runs for group {name}; jobs in {place}: {counts}.", RUN
    head = f"{headline(group)}; jobs: {counts}"
    warnings = list(group_warnings(session, name))
    if warnings:
        worst = next((row for row in warnings if level_of(row) == CRITICAL), warnings[0])
        return f"{head}\n{worst[0]}: {worst[1]}: {worst[3]}", ("drover status", "says what is wrong, and what to do")
    if not live and not ended:
        return head, ("drover submit --wait sha256 /etc/hosts", "queues a first job, and waits for its end")
    if live:
        return head, ("drover why --all", "says what the jobs that have not ended wait for")
    return head, ("drover stats", "says how fast jobs end, and what fails")
