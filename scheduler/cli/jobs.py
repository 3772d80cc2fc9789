"""`drover ls`, `hide` and `unhide`: list jobs, and leave some out of the list; which jobs options choose.

The filters, as --type, --since and --code, are those of `cancel`, `retry` and others too; see bulk.py.
"""

from argparse import Namespace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from scheduler.cli.arguments import FILTERS, TIMES
from scheduler.cli.database_session import Session, connect
from scheduler.cli.job_lists import Found, find, reading
from scheduler.cli.output import Table, as_json, cell, clipped, failed, print_newest, warn
from scheduler.cli.wait import redraw
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.schedule_times import TimesError, UnreadableError, read_interval, read_time
from scheduler.model.states import BLOCKED, CLAIMED, FAILED, HELD, JOB_STATES, QUEUED, RUNNING

WORDS: Final = {
    "types": "of type", "queues": "in queue", "submitters": "by", "groups": "of group", "hosts": "for host",
    "ran_on": "that ran on", "codes": "with code",
}  # fmt: skip
LISTED_STATES: Final = (HELD, QUEUED, CLAIMED, RUNNING, BLOCKED, FAILED)
COLUMNS: Final = (
    "job", "name", "type", "queue", "state", "priority", "queued", "end", "host", "blocked_since", "next_check",
    "progress", "args", "text",
)  # fmt: skip
USUAL: Final = {  # a column that has no other values is left out
    "name": (None,), "queue": ("default", None), "end": (None,), "blocked_since": (None,), "next_check": (None,),
    "progress": (None,),
}  # fmt: skip
IN_PROGRESS: Final = "in progress"
WIDTHS: Final = {"args": 48, "text": 60}
# On a narrow terminal columns are left out, these first.
SPARE: Final = (
    "priority",
    "next_check",
    "blocked_since",
    "queue",
    "queued",
    "host",
    "end",
    "args",
)
COMMAND_TYPE: Final = "command"


def list_jobs(options: Namespace, config: Config) -> int:
    """Print the newest jobs that are asked for, and say so if there are more; --watch does so until Ctrl-C."""
    with connect(config) as session:
        if options.watch:
            redraw(session, partial(_list, session, options))
        _list(session, options)
    return 0


def _list(session: Session, options: Namespace) -> None:
    limit = options.rows or None
    wanted = chosen(session, options) | {
        "states": states(options), "with_hidden": options.all, "sort": options.sort, "before": options.before,
        "with_ended_commands": options.all or bool(options.types),
    }  # fmt: skip
    with reading(session):
        found = find(session, wanted, limit and limit + 1)
        jobs = session.table("", "list_jobs", jobs=found.jobs, sort=options.sort, limit=limit and limit + 1)
    others = "-n 0 lists all"
    if limit and options.sort == "job" and len(jobs.rows) > limit:
        others = f"--before {jobs.rows[limit - 1][0]} lists the next, -n 0 all"
    which = "newest" if options.sort == "job" else "first"
    print_newest(jobs, limit, brief, json=options.json, which=which, others=others)
    _say_where_it_stopped(options, found)


def _say_where_it_stopped(options: Namespace, found: Found) -> None:
    """Print how far jobs were searched, if the search for a page ended before all jobs were read."""
    if found.down_to is not None:
        warn(f"only searched down to job {found.down_to}; --before {found.down_to} goes on, -n 0 searches all")
    elif not found.is_whole:
        warn(f"not all jobs were read that may sort last by {options.sort}: others may belong among these;"
             " choose fewer, as by --type or --since, or give -n 0")  # fmt: skip


def states(options: Namespace) -> list[str]:
    """Return every state that is asked for: the usual ones and more (-s), or others instead (-S, --all)."""
    if options.all:
        return list(JOB_STATES)
    return [state for state in JOB_STATES if state in {*options.also, *(options.only or LISTED_STATES)}]


def brief(jobs: Table) -> Table:
    """Return what fits a line: names and queues if one has any; `!` marks an urgent job, long texts are cut."""
    records = jobs.records()
    usual = {key for key, values in USUAL.items() if all(record[key] in values for record in records)}
    columns = [name for name in COLUMNS if name not in usual]
    for record in records:
        record["text"] = _text_now(record)
        record["priority"] = ("!" if record["urgent"] else "") + record["priority"]
        for name, width in WIDTHS.items():
            record[name] = clipped(record[name], width) if record[name] else record[name]
    return Table("", tuple(columns), [tuple(record[name] for name in columns) for record in records], SPARE)


def _text_now(record: dict[str, Any]) -> str | None:
    """Return the text of a job; of one that waits it is of before, or says until when it waits for that."""
    text: str | None = record["text"]
    if (record["state"], text) == (CLAIMED, IN_PROGRESS):  # it waits for an agent
        return None
    if not text or record["state"] not in (QUEUED, HELD):
        return text
    return f"next try at {cell(record['next_try'])}: {text}" if record["next_try"] else f"before: {text}"


def hide(options: Namespace, config: Config) -> int:
    """Hide jobs, or show them again; 1 if one is not there, or another's."""
    status, is_hidden = 0, options.command == "hide"
    with connect(config) as session:
        for job in session.job_numbers(options.jobs):
            if not session.value("hide_job", job=job, is_hidden=is_hidden):
                status = failed(f"no job {job} of yours")
            elif options.json:
                print(as_json({"job": job, "hidden": is_hidden}))
            else:
                print(f"job {job}: {'hidden' if is_hidden else 'shown'}")
    return status


# ---- which jobs the options choose


def chosen(session: Session, options: Namespace) -> dict[str, Any]:
    """Return the parameters of the fragment `chosen` of schema/cli.sql. Errors: ConfigError."""
    values: dict[str, Any] = {name: getattr(options, name) or None for name in FILTERS}
    return values | {name: instant(session, f"--{name}", getattr(options, name), sign=-1) for name in TIMES}


def instant(session: Session, option: str, text: str | None, sign: int) -> datetime | None:
    """Return the instant that an option names: a local time, or so long before (-1) or after (1) now.

    Errors: ConfigError.
    """
    if text is None:
        return None
    try:
        length = read_interval(text)
    except TimesError:
        try:
            return read_time(text, datetime.now().astimezone().tzinfo or UTC)
        except UnreadableError:
            neither = "is neither a duration (90, 15m, 2d) nor a time (2030-12-24 18:00)"
            raise ConfigError(f"{option}: {text[:64]!r} {neither}") from None
        except TimesError as no_time:
            raise ConfigError(f"{option}: {no_time}") from None
    now: datetime = session.value("now")
    return now + sign * min(length, timedelta(days=365_00))


def interval(option: str, text: str | None) -> timedelta | None:
    """Return the length of time that an option names. Errors: ConfigError."""
    try:
        return None if text is None else read_interval(text)
    except TimesError as mistake:
        raise ConfigError(f"{option}: {mistake}") from None


def in_words(options: Namespace) -> str:
    """Return what is chosen, as in `of type a or b, by web, since 1h`; empty if nothing is."""
    words = [
        f"{word} {' or '.join(map(str, getattr(options, name)))}"
        for name, word in WORDS.items()
        if getattr(options, name, None)
    ]
    times = [f"{name} {text}" for name in TIMES if (text := getattr(options, name))]
    return ", ".join([*words, *times])
