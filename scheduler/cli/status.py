"""`drover status`: who schedules, what the slots do, how many jobs wait for what, and what is wrong.

Reads what the daemon has written, and the server's statistics (health.py); a stopped daemon is no reason to fail.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from scheduler.cli.db import MASKED, NOTHING, Session, connect
from scheduler.cli.health import COLUMNS, Limits, database_warnings, group_warnings
from scheduler.cli.output import Table, as_json, cell, print_table, printable
from scheduler.cli.wait import WAITING_NAME, redraw
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.states import JOB_STATES

# Parts that are empty for a role that sees less than all of drover.scheduler_status.
HIDDEN_PARTS: Final = {MASKED: ("statements",), NOTHING: ("slots", "statements")}


def show_status(options: Namespace, config: Config) -> int:
    """Print it as a headline and tables, or all of it as one JSON object; --watch does so until Ctrl-C."""
    name = options.group or config.scheduler.group
    with connect(config) as session:
        if options.group:
            _check_group(session, options.group)
        if options.watch:
            redraw(session, lambda: _print(session, name, json=options.json))
        _print(session, name, json=options.json)
    return 0


def headline(group: dict[str, Any]) -> str:
    """Return one line: who owns the group, and when its lease ends."""
    name = printable(group["name"])
    if not group["active"]:
        return f"group {name}: no scheduler is active; start one with drover run"
    owner = f"{group['host']}.{group['pid']}" if group["host"] else str(group["owner"])
    since, left = cell(group["since"]), cell(group["lease_left"])
    return f"group {name}: {printable(owner)} is active since {since}, its lease ends in {left}"


def standby_note(group: dict[str, Any]) -> str | None:
    """Return a line that says so if no scheduler would go on when the owner of the group dies."""
    if not group["active"] or group["standbys"]:
        return None
    return "note: no other scheduler of the group stands by to take over"


def waiting_note(clients: int) -> str | None:
    """Return a line that says how many clients wait for an end, if any."""
    return f"{clients} {'client waits' if clients == 1 else 'clients wait'} for jobs or answers" if clients else None


def pivot(counts: list[tuple[Any, ...]]) -> Table:
    """Return rows of (type, state, jobs) as a row a type and a column for every state that occurs."""
    jobs = Counter({(kind, state): count for kind, state, count in counts})
    states = [state for state in JOB_STATES if any(state == other for _, other in jobs)]
    kinds = dict.fromkeys(kind for kind, _ in jobs)
    return Table("Jobs", ("type", *states), [(kind, *(jobs[kind, state] for state in states)) for kind in kinds])


def _check_group(session: Session, name: str) -> None:
    """Refuse a group that never had a scheduler if others had: it is most often misspelt. Errors: ConfigError."""
    names = [known for (known,) in session.rows("group_names")]
    if names and name not in names:
        raise ConfigError(f"no group {name}: there are {', '.join(names)}")


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
        notes = [f"note: {each}" for each in restrictions]
        lines = [headline(group), standby_note(group), *notes, waiting_note(clients)]
        print(*filter(None, lines), sep="\n", flush=True)
        for _, part in parts:
            if part.rows:
                print()
                print_table(part)
                sys.stdout.flush()


def _parts(session: Session, name: str) -> Iterator[tuple[str, Table]]:
    """Yield each table as it is read: what is wrong comes before the queue, which a session may keep locked."""
    warnings = [*group_warnings(session, name), *database_warnings(session, Limits())]
    yield "warnings", Table("Warnings", COLUMNS, warnings)
    yield "schedulers", session.table("Schedulers", "schedulers", group=name)
    yield "slots", session.table("Slots", "slots", group=name)
    yield "jobs", pivot(session.rows("job_counts"))
    yield "unserved", session.table("Types that nobody serves", "unserved_types")
    yield "unknown_queues", session.table("Jobs in queues that do not exist", "unknown_queues")
    yield "queues", session.table("Queues", "queues", group=name)
    yield "statements", session.table("Statements of the schedulers", "statements", group=name)
