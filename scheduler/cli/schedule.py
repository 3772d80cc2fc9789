"""`drover schedule`: list, add and remove rows of drover.schedule; the scheduler runs, enables and disables them.

What could never start is refused before anything is written: the times here, the job by the database.
"""

import heapq
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

from psycopg.types.json import Jsonb

from scheduler.cli.admin import VERB_OF, send_and_print
from scheduler.cli.database_session import Session, connect
from scheduler.cli.output import Table, as_json, failed, print_rows
from scheduler.cli.submit import COLUMNS, COMMAND, refusal
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.schedule_times import (
    Times,
    TimesError,
    check_cron,
    next_time,
    next_times,
    read_interval,
    read_time,
    zone_of,
)
from scheduler.model.verbs import CommandError, parse

NOTHING: Final = "nothing was added"
MOST: Final = 10_000  # starts that are shown
ONE_OF: Final = ("at", "every", "cron")


def list_or_change(options: Namespace, config: Config) -> int:
    """Print schedules or their next starts, or change one; 1 if that is refused."""
    _check_options(options)
    with connect(config) as session:
        match options.action:
            case "list":
                return _print_list(session, json=options.json)
            case "next":
                return _print_next(session, options)
            case "add":
                return _add(session, options)
            case "remove":
                return _remove(session, _name_alone(options), json=options.json)
        verb = VERB_OF[f"schedule {options.action}"].name
        return send_and_print(
            session, [f"{verb} {_name_alone(options)}"], options.wait, options.patience, json=options.json
        )


def _print_list(session: Session, *, json: bool) -> int:
    """Print all schedules; people see the times of each in its own zone, with the offset."""
    table = session.table("", "list_schedule")
    if json:
        return print_rows(table, json=True)
    rows = [row | {name: _shown(row[name].astimezone(zone_of(row["zone"]))) for name in ("next", "last") if row[name]}
            for row in table.records()]  # fmt: skip
    return print_rows(replace(table, rows=[tuple(row.values()) for row in rows]), json=False)


def _check_options(options: Namespace) -> None:
    """Refuse words and options that mean nothing to an action. Errors: ConfigError."""
    if options.action == "list" and options.args:
        raise ConfigError("too many words: drover schedule list")
    if options.action != "add" and any(getattr(options, each) is not None for each in (*ONE_OF, "jobs")):
        raise ConfigError(f"drover schedule {options.action} takes no times and no jobs: these are for schedule add")


def _name_alone(options: Namespace) -> str:
    if len(options.args) != 1:
        raise ConfigError(f"one name is required: drover schedule {options.action} NAME")
    return str(options.args[0])


def _remove(session: Session, name: str, *, json: bool) -> int:
    if not session.rows("remove_schedule", name=name):
        return failed(f"no schedule {name}; drover schedule lists all")
    print(as_json({"schedule": name, "removed": True}) if json else f"schedule {name}: removed")
    return 0


# ---- the next starts


def _print_next(session: Session, options: Namespace) -> int:
    """Print the next starts of all schedules that are enabled, or of one."""
    *names, last = options.args or ["10"]
    if not last.isdecimal() and not names:
        names, last = [last], "10"
    if len(names) > 1 or not last.isdecimal() or not 1 <= int(last) <= MOST:
        raise ConfigError(f"drover schedule next [NAME] [N]: N is from 1 to {MOST} (got {last!r})")
    rows = session.records("next_schedules", name=names[0] if names else None, most=int(last))
    if names and not rows:
        return failed(f"no schedule {names[0]}; drover schedule lists all")
    coming = islice(heapq.merge(*(_coming(row) for row in rows)), int(last))
    shown = [(at if options.json else _shown(at), name) for at, name in coming]
    return print_rows(Table("", ("start", "schedule"), shown), json=options.json)


def _coming(row: dict[str, Any]) -> Iterator[tuple[datetime, str]]:
    times = Times(row["at"], row["every"], row["cron"], row["zone"], row["since"])
    try:
        for at in next_times(times, row["now"]):
            yield at.astimezone(zone_of(row["zone"])), row["name"]
    except TimesError:  # drover schedule list shows why
        return


def _shown(at: datetime) -> str:
    """Return a start as text, with the offset of its zone: a table would show it in the zone of the reader."""
    return at.isoformat(" ", "seconds")


# ---- a new one


def _add(session: Session, options: Namespace) -> int:
    if not options.args:
        raise ConfigError(f"drover schedule add NAME TYPE [ARGS]: a name is required; {NOTHING}")
    name, *words = options.args
    try:
        with session.connection.transaction():
            now = session.value("now")
            times = _times(options, now)
            first = _first_start(options, times, now)
            jitter = timedelta(0) if options.jitter == "0" else read_interval(options.jitter)
            job = _group(options, words) if options.jobs is not None else _job(options, words)
            is_forced = options.force or options.jobs is not None
            if reason := refusal(session, job.get("jq_type", ""), options.queue, options.host, force=is_forced):
                return failed(reason)
            session.run(
                "add_schedule", name=name, at=times.at, every=times.every, cron=times.cron, zone=times.zone,
                catch_up=options.catch_up, jitter=jitter, overlap=options.overlap, enabled=not options.disabled,
                job=Jsonb(job), next=first,
            )  # fmt: skip
    except (TimesError, CommandError) as mistake:
        raise ConfigError(f"{mistake}; {NOTHING}") from None
    if options.json:
        print(as_json({"schedule": name, "next": None if options.disabled else first}))
    else:
        shown = _shown(first.astimezone(zone_of(times.zone)))
        print(f"schedule {name}: {'disabled' if options.disabled else f'next {shown}'}")
    return 0


def _first_start(options: Namespace, times: Times, now: datetime) -> datetime:
    """Return when the schedule starts first. Errors: TimesError if it never does."""
    if (first := next_time(times, now)) is not None:
        return first
    if times.cron is None:
        raise TimesError(f"--at {options.at!r} has passed: write a later time")
    return check_cron(times.cron, times.zone, now)


def _times(options: Namespace, now: datetime) -> Times:
    """Return the times that were asked for. Errors: TimesError."""
    given = [f"--{each}" for each in ONE_OF if getattr(options, each) is not None]
    if len(given) != 1:
        raise TimesError(f"one of --at, --every and --cron is required (got {' and '.join(given) or 'none'})")
    zone = zone_of(options.zone)
    if options.at is not None:
        return Times(at=read_time(options.at, zone), zone=options.zone)
    if options.every is not None:
        return Times(every=read_interval(options.every), zone=options.zone, since=now)
    return Times(cron=" ".join(options.cron.split()), zone=options.zone)


def _job(options: Namespace, words: list[str]) -> dict[str, Any]:
    """Return the columns of the one job. Errors: ConfigError, CommandError."""
    if not words:
        raise ConfigError(f"drover schedule add NAME TYPE [ARGS]: a type is required, or --jobs FILE; {NOTHING}")
    kind, *rest = words
    text = " ".join(rest)
    if kind == COMMAND:
        parse(text)
    given = {column: getattr(options, name, None) for name, column in COLUMNS.items()}
    return {"jq_type": kind, "jq_args": text} | {column: value for column, value in given.items() if value is not None}


def _group(options: Namespace, words: list[str]) -> dict[str, Any]:
    """Return the group of jobs that a file describes. Errors: ConfigError."""
    if words or any(getattr(options, name, None) is not None for name in COLUMNS):
        raise ConfigError(f"--jobs says what to queue: leave out type, arguments and options of a job; {NOTHING}")
    try:
        text = sys.stdin.read() if options.jobs == "-" else Path(options.jobs).read_text()
        found = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--jobs {options.jobs}: {error}; {NOTHING}") from None
    if isinstance(found, list):
        found = {"jobs": found}
    if not isinstance(found, dict) or "jobs" not in found:
        raise ConfigError(
            f'--jobs {options.jobs}: a list of jobs is required, or {{"group": ..., "jobs": ...}}; {NOTHING}'
        )
    return found
