"""`drover ls`, `exit`, `log`, `out` and `wait`: list jobs, print what is known of one, wait for their end.

Text of agents is escaped before it reaches a terminal.

The loop of all commands that wait is here: for the end of jobs, for output, or to redraw (`--watch`). NOTIFY wakes a
waiting command. It also polls slowly, since a notification may be lost, and since a claim sends none.
"""

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from signal import Signals
from time import monotonic
from typing import Any, NamedTuple, NoReturn

from scheduler.cli.job_filters import chosen
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
from scheduler.cli.progress import Progress
from scheduler.cli.session import Session, connect
from scheduler.model.config import Config
from scheduler.model.states import BLOCKED, CLAIMED, FAILED, HELD, JOB_STATES, QUEUED, RUNNING

LISTED_STATES = (HELD, QUEUED, CLAIMED, RUNNING, BLOCKED, FAILED)
COLUMNS = (
    "job", "name", "type", "queue", "state", "priority", "queued", "end", "processed", "total", "host",
    "blocked_since", "next_check", "args", "text",
)  # fmt: skip
USUAL = {
    "name": (None,),
    "queue": ("default", None),
    "end": (None,),
    "blocked_since": (None,),
    "next_check": (None,),
}  # a column that has no other values is left out
WIDTHS = {"args": 48, "text": 60}
# On a narrow terminal columns are left out, these first.
SPARE = ("processed", "total", "priority", "next_check", "blocked_since", "queue", "queued", "host", "end", "args")
COMMAND_TYPE = "command"
SIGNALLED = 128  # what a shell adds to the number of a signal
LOG_ROWS = 100
LOG_POLL_S = 1.0  # nothing announces a log row; the end of a job does wake us, but not on a replica
LOG_FIELDS = ("job", "host", "agent", "pid")
ANY_ATTEMPT = 2**31 - 1
WAITING_NAME = "drover-wait"  # application_name of commands that wait for an end: `drover status` counts them
POLL_S = 5.0
REPLICA_POLL_S = 1.0  # a replica announces nothing
REDRAW_S = 0.5  # between two drawings, at least
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
FAILURE = 2  # in jq_end_bits
GONE = "gone"  # in place of a state: there is no such job, or no more
_NUMBER = re.compile(r"\d+")


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
        "", "list_jobs", states=states(options), with_hidden=options.all, sort=options.sort,
        with_ended_commands=options.all or bool(options.types), limit=limit and limit + 1, **chosen(session, options),
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
    return Table("", tuple(columns), [tuple(record[name] for name in columns) for record in records], SPARE)


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


# ---- waiting


class End(NamedTuple):
    """How a job ended, or why it is blocked: a row of ended_or_blocked_jobs."""

    job: int
    type: str
    state: str
    text: str
    bits: int


def wait_for_jobs(options: Namespace, config: Config) -> int:
    """Print how each job ended; 1 if one failed, does not exist, or has not ended in time."""
    with connect(config) as session:
        known = session.numbers_by_name([job for job in options.jobs if isinstance(job, str)])
        missing = [job for job in options.jobs if isinstance(job, str) and job not in known]
        for name in missing:
            no_such_job(name)
        jobs = list(dict.fromkeys(known.get(job, job) for job in options.jobs if job not in missing))
        status = print_ends(session, jobs, options.timeout, json=options.json)
    return 1 if missing else status


def print_ends(session: Session, jobs: Collection[int], limit_s: float, *, json: bool) -> int:
    """Print how each job ended, in a line or as JSON with all that came of it; return the exit status."""
    if json:
        session.records("job_outcome", job=0)  # a role that may not see outcomes fails now, not at the end
    warn_of_inactive_groups(session, jobs)
    ends, progress = [], Progress(len(jobs), "jobs")
    for end in job_ends(session, jobs, limit_s, progress.show):
        progress.clear()
        ends.append(end)
        if end.state == GONE:
            no_such_job(end.job)
        elif json:
            outcomes = session.records("job_outcome", job=end.job)
            print(as_json(outcomes[0] if outcomes else None), flush=True)
        else:
            print(printable(f"{end.job} {end.type} {end.state} {end.text}"), flush=True)
    progress.clear()
    if left := len(jobs) - len(ends):
        return failed(f"after {limit_s:g} s, {left} of {len(jobs)} jobs have not ended; see drover why")
    return int(any(end.bits & FAILURE for end in ends))


def print_results(session: Session, jobs: Collection[int], limit_s: float) -> int:
    """Print the result of each job as JSON, null if it has none; how others than done ended, on stderr."""
    warn_of_inactive_groups(session, jobs)
    progress = Progress(len(jobs), "jobs")
    ends = list(job_ends(session, jobs, limit_s, progress.show))
    progress.clear()
    for end in sorted(ends):
        print(as_json(next(iter(session.records("job_outcome", job=end.job)), {"value": None})["value"]))
        if end.bits & FAILURE:
            warn(f"{end.job} {end.type} {end.state} {end.text}")
    if left := len(jobs) - len(ends):
        return failed(f"after {limit_s:g} s, {left} of {len(jobs)} jobs have not ended; see drover why")
    return int(any(end.bits & FAILURE for end in ends))


def warn_of_inactive_groups(session: Session, jobs: Collection[int]) -> None:
    """Print at once that no scheduler will work on the jobs, rather than to wait in silence."""
    for (group,) in session.rows("inactive_groups", jobs=list(jobs)):
        warn(f"no scheduler is active for group {group}: the job waits until one is; start it with drover run")


def job_ends(
    session: Session, jobs: Collection[int], limit_s: float, tell: Callable[[int], object] = int
) -> Iterator[End]:
    """Yield the end of each job as it comes; stop when all have ended or after so many seconds.

    `tell` is called now and then with the number of those that have ended. Of each job that is blocked it is printed
    once, for it may stay so.
    """
    waiting, blocked = set(jobs), set[int]()
    for _ in wake_ups(session, "drover_event", jobs=waiting, limit_s=limit_s):
        found = [End(*row) for row in session.rows("ended_or_blocked_jobs", jobs=list(waiting))] if waiting else []
        ends = [end for end in found if end.state != "blocked"]
        yield from ends
        waiting -= {end.job for end in ends}
        tell(len(jobs) - len(waiting))
        if not waiting:
            return
        for job, reason in [(each.job, each.text) for each in found if each.job in waiting - blocked]:
            warn(f"job {job} is blocked: {reason}; drover why {job} says until when, drover unblock {job} ends that")
            blocked.add(job)


def wake_ups(session: Session, *channels: str, jobs: Collection[int], limit_s: float = inf) -> Iterator[None]:
    """Yield at once, then whenever one of the jobs is announced, by its number, and every few seconds.

    Ends after so many seconds, with a last time. `jobs` may change between two wake-ups.
    """
    deadline = monotonic() + limit_s
    session.rows("name_session", name=WAITING_NAME)
    poll_s = POLL_S if session.listen(*channels) else REPLICA_POLL_S  # first of all, so that no end is missed
    while True:
        yield
        left_s = deadline - monotonic()
        if left_s <= 0:
            return
        numbers = set(map(str, jobs))
        notifies = session.connection.notifies(timeout=min(left_s, poll_s))
        for notify in notifies:
            if not numbers.isdisjoint(_NUMBER.findall(notify.payload)):
                notifies.close()
                break


def redraw(session: Session, draw: Callable[[], object], poll_s: float = POLL_S) -> NoReturn:
    """Draw for ever, when something is announced: over the last drawing on a terminal, below it elsewhere."""
    session.listen("drover_event", "drover_queue", "drover_change")
    is_terminal = sys.stdout.isatty()
    while True:
        sys.stdout.write(CLEAR if is_terminal else "")
        draw()
        sys.stdout.write("" if is_terminal else "\n")
        sys.stdout.flush()
        drawn_at = monotonic()
        wait_for_any(session, poll_s)
        # What comes while it is too early for a drawing is one reason for the next.
        for _ in session.connection.notifies(timeout=max(drawn_at + REDRAW_S - monotonic(), 0.0)):
            pass


def wait_for_any(session: Session, timeout_s: float) -> None:
    """Wait until something is announced, or for so many seconds."""
    for _ in session.connection.notifies(timeout=timeout_s, stop_after=1):
        pass
