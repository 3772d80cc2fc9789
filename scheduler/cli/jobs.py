"""`drover ls`, `why`, `exit`, `log` and `out`: list jobs, and print what is known of one.

Text of agents is escaped before it reaches a terminal.
"""

import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from math import inf
from signal import Signals
from typing import Any

from scheduler.cli.output import (
    Table,
    as_json,
    cell,
    clipped,
    failed,
    no_such_job,
    print_records,
    print_table,
    printable,
    printable_lines,
    warn,
)
from scheduler.cli.session import Session, connect
from scheduler.cli.wait import FAILURE, job_ends, redraw, wait_for_any, wake_ups, warn_of_inactive_groups
from scheduler.model.config import Config
from scheduler.model.states import BLOCKED, CLAIMED, FAILED, HELD, JOB_STATES, QUEUED, RUNNING

LISTED_STATES = (HELD, QUEUED, CLAIMED, RUNNING, BLOCKED, FAILED)
COLUMNS = ("job", "name", "type", "queue", "state", "priority", "queued", "processed", "total", "host", "args", "text")
USUAL = {"name": (None,), "queue": ("default", None)}  # a column that has no other values is left out
WIDTHS = {"args": 48, "text": 60}
SIGNALLED = 128  # what a shell adds to the number of a signal
LOG_ROWS = 100
LOG_POLL_S = 1.0  # nothing announces a log row; the end of a job does wake us, but not on a replica
LOG_FIELDS = ("job", "host", "agent", "pid")
ANY_ATTEMPT = 2**31 - 1


def list_jobs(options: Namespace, config: Config) -> int:
    """Print the newest jobs that are asked for, and say so if there are more; --watch does so until Ctrl-C."""
    with connect(config) as session:
        if options.watch:
            redraw(session, partial(_list, session, options))
        _list(session, options)
    return 0


def _list(session: Session, options: Namespace) -> None:
    limit = options.rows or None
    jobs = session.table(
        "", "list_jobs", states=states(options), types=options.types, with_hidden=options.all,
        with_ended_commands=options.all or bool(options.types), limit=limit and limit + 1,
    )  # fmt: skip
    newest = replace(jobs, rows=jobs.rows[:limit][::-1])
    if options.json:
        print_records(newest.records())
    else:
        print_table(brief(newest))
    if len(jobs.rows) > len(newest.rows):
        warn(f"only the newest {limit} are listed; -n 0 lists all")


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
        record["priority"] = ("!" if record["urgent"] else "") + record["priority"]
        for name, width in WIDTHS.items():
            record[name] = clipped(record[name], width) if record[name] else record[name]
    return Table("", tuple(columns), [tuple(record[name] for name in columns) for record in records])


def show_reason(options: Namespace, config: Config) -> int:
    """Print one line: why the job is not running, or what became of it."""
    with connect(config) as session:
        job = session.job_number(options.job)
        rows = session.rows("job_reason", job=job)
    if not rows:
        return no_such_job(job)
    print(printable(rows[0][0]))
    return 0


def show_exit_status(options: Namespace, config: Config) -> int:
    """Print the exit status, and the signal if there was one; with -q, exit with it. 1 if the job has not stopped."""
    with connect(config) as session:
        job = session.job_number(options.job)
        if options.wait:
            warn_of_inactive_groups(session, [job])
            list(job_ends(session, [job], inf))
        rows = session.rows("job_exit", job=job, failure=FAILURE)
    if not rows:
        return no_such_job(job)
    has_ended, state, has_failed, code, signal = rows[0]
    if not has_ended:
        return failed(f"job {job} has not ended: it is {state}")
    status = code or int(has_failed)
    if signal:
        digits = signal.removeprefix("SIG")  # of SIG40, which has no name of its own
        status = SIGNALLED + (int(digits) if digits.isdecimal() else Signals[signal].value)
    if options.quiet:
        return status
    print(status, *([signal] if signal else []))
    return 0


def show_log(options: Namespace, config: Config) -> int:
    """Print the last rows, of one job or of all; -f goes on until the job ends."""
    with connect(config) as session:
        job = None if options.job is None else session.job_number(options.job)
        limit = LOG_ROWS if options.lines is None and job is None else options.lines
        last = _print_log(session, options, job, 0, limit)
        if job and not last and not session.rows("job_has_ended", job=job):
            return no_such_job(job)
        if options.follow:
            session.listen("drover_event")
        has_ended = not options.follow
        while not has_ended:
            wait_for_any(session, LOG_POLL_S)
            has_ended = bool(job) and session.rows("job_has_ended", job=job) in ([], [(True,)])
            last = _print_log(session, options, job, last, None)  # only now, so that its last rows are there
    return 0


def log_line(row: dict[str, Any]) -> str:
    """Return a row as one line: when, what kind, the fields that it has, the message."""
    fields = "".join(f" {name}={row[name]}" for name in LOG_FIELDS if row[name] is not None)
    return printable(f"{cell(row['date'])} {row['type']}{fields}: {row['message']}")


def _print_log(session: Session, options: Namespace, job: int | None, after: int, limit: int | None) -> int:
    """Print the rows beyond `after`, and return the number of the newest."""
    for row in session.records("log_rows", after=after, job=job, limit=limit):
        after = row.pop("pk")
        print(as_json(row) if options.json else log_line(row), flush=options.follow)
    return after


def show_output(options: Namespace, config: Config) -> int:
    """Print one stream of the latest attempt, or of another; -t goes on until the job ends, or that attempt."""
    with connect(config) as session:
        job = session.job_number(options.job)
        rows = session.rows("job_attempt", job=job)
        if not rows:
            return no_such_job(job)
        latest = rows[0][0]
        attempt: int = options.attempt or latest
        if attempt > latest and not options.follow:
            return failed(f"job {job} has had only {latest} attempts")
        stream, place = "err" if options.errors else "out", (attempt, 0)
        if not options.follow:
            _print_output(session, job, stream, place, attempt)
            return 0
        warn_of_inactive_groups(session, [job])
        last = options.attempt or ANY_ATTEMPT
        for _ in wake_ups(session, "drover_output", "drover_event", jobs=[job]):
            is_over = _is_past(session, job, last)  # before printing: what was written last is there then
            place = _print_output(session, job, stream, place, last)
            if is_over:
                break
    return 0


def _is_past(session: Session, job: int, attempt: int) -> bool:
    """Return whether the job has ended, or is gone, or is past this attempt."""
    for latest, has_ended, is_in_hand in session.rows("job_attempt", job=job):
        return has_ended or latest > attempt or (latest == attempt and not is_in_hand)
    return True


def _print_output(session: Session, job: int, stream: str, place: tuple[int, int], last: int) -> tuple[int, int]:
    """Print what comes after a place (attempt, part), up to an attempt; return the place of the end."""
    after = {"attempt": place[0], "part": place[1]}
    for attempt, part, text in session.stream("job_output", job=job, stream=stream, until_attempt=last, **after):
        place = attempt, part
        if sys.stdout.isatty():  # where control characters are escaped
            sys.stdout.write(printable_lines(text))
        else:
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.flush()
    return place
