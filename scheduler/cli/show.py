"""`drover show`, `items`, `why`, `log`, `out` and `exit`: what is known of one job, or of all that wait.

A part that the role may not see is None, and a note says so; the log of a job is shown by its last lines, other parts
by their first rows, with the command that prints all. `describe` reads, and prints nothing: others may draw the same.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from signal import Signals
from typing import Any, Final

from scheduler.cli.database_session import NOTHING, Session, connect
from scheduler.cli.output import (
    Table,
    as_json,
    cell,
    clipped,
    failed,
    no_such_job,
    print_fields,
    print_newest,
    print_rows,
    print_table,
    printable,
    printable_lines,
    warn,
)
from scheduler.cli.wait import (
    FAILURE,
    Progress,
    job_ends,
    wait_for_any,
    wake_ups,
    warn_of_inactive_groups,
    why_waiting,
)
from scheduler.model.config import Config

ATTEMPTS, KEEPERS, EDGES, ITEMS, LOG_LINES = 20, 20, 20, 10, 20  # how many of each are shown
TEXT_WIDTH: Final = 2000  # of one field; --json has all of it
WIDTHS: Final = {"line": 60, "reason": 60, "key": 24, "name": 32, "example": 60}
TITLES: Final = {  # of the parts, and the command that prints all of one
    "attempts": ("Attempts", ""),
    "keepers": ("Kept on hosts", ""),
    "parents": ("Depends on", ""),
    "children": ("Jobs that depend on it", ""),
    "items": ("Items that failed", "drover items {job}"),
    "log": ("Log", "drover log {job}"),
}
EMPTY: Final[tuple[object, ...]] = (None, "", False, [], {})
NOTED_WAIT: Final = timedelta(seconds=1)

MOST_REASONS: Final = 100  # kinds of jobs that are asked about, those with the most jobs
REASON_COLUMNS: Final = ("jobs", "types", "oldest", "example", "reason")

SIGNALLED: Final = 128  # what a shell adds to the number of a signal
FEW_FAILURES: Final = 20  # more are counted by their reasons too
MOST_FAILURES: Final = 50  # reasons that are listed, those of the most items
LOG_ROWS: Final = 100
LOG_POLL_S: Final = 1.0  # nothing announces a log row; the end of a job does wake us, but not on a replica
LOG_FIELDS: Final = ("job", "host", "agent", "pid")
ANY_ATTEMPT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Description:
    """One job: its facts, why it does not run or how it ended, and its parts; a part that may not be seen is None."""

    facts: dict[str, Any]
    why: str
    parts: dict[str, Table | None]
    unseen: list[str]


def show_job(options: Namespace, config: Config) -> int:
    """Print all that is known of one job, or one JSON object."""
    with connect(config) as session:
        job = session.job_number(options.job)
        found = describe(session, job)
    if found is None:
        return no_such_job(job)
    if options.json:
        parts = {name: part if part is None else part.records() for name, part in found.parts.items()}
        print(as_json({"job": found.facts, "why": found.why, **parts, "unseen": found.unseen}))
        return 0
    print_fields(fields(found.facts, found.why))
    for name, part in found.parts.items():
        if part and part.rows:
            print()
            _print_part(name, part, job)
    for sentence in found.unseen:
        warn(sentence)
    return 0


def describe(session: Session, job: int) -> Description | None:
    """Return what the role may know of a job, as of one moment; None if there is no such job."""
    with session.connection.transaction():
        session.run("one_moment")
        facts = session.records("job_facts", job=job)
        if not facts:
            return None
        reasons = session.rows("job_reason", job=job)
        parts = {
            "attempts": session.table("", "job_attempts", job=job, limit=ATTEMPTS + 1),
            "keepers": session.table("", "job_keepers", job=job, limit=KEEPERS + 1),
            "parents": session.table("", "job_parents", job=job, limit=EDGES + 1),
            "children": session.table("", "job_children", job=job, limit=EDGES + 1),
            "items": _unless_hidden(session, "item_failure", "failed_items", job=job, limit=ITEMS + 1, every=False),
            "log": _unless_hidden(session, "log", "job_log", job=job, limit=LOG_LINES + 1),
        }
    why = reasons[0][0] if reasons else ""
    return Description(facts[0], why, parts, session.restrictions("log", "item_failure"))


def _unless_hidden(session: Session, table: str, statement: str, **values: Any) -> Table | None:
    return None if session.access[table] == NOTHING else session.table("", statement, **values)


def fields(facts: dict[str, Any], why: str) -> list[tuple[str, str]]:
    """Return the lines about a job itself: a name and what it is; what does not apply is left out."""
    return [(name, clipped(value, TEXT_WIDTH)) for name, value in _fields(facts, why) if value]


def _fields(job: dict[str, Any], why: str) -> Iterator[tuple[str, str]]:
    yield "job", _with(str(job["job"]), job["name"])
    yield "state", _with(job["state"], job["code"] if job["code"] not in (job["state"], "normal") else None)
    yield "why", why
    kind = "an SQL query" if job["query"] else ""
    yield "type", ", ".join(filter(None, (job["type"], kind, "manual" if job["mode"] == "manual" else "")))
    yield "args", job["args"] or ""
    yield "variables", as_json(job["variables"]) if job["variables"] else ""
    yield "queue", f"{cell(job['queue'])}, {'urgent, ' if job['urgent'] else ''}priority {job['priority']}"
    yield "host", _host(job)
    yield "group", _with(str(job["group"]), job["group_name"]) if job["group"] else ""
    yield "submitter", _with(job["submitter"], f"resubmit of {job['resubmit_of']}" if job["resubmit_of"] else None)
    yield "queued", cell(job["queued"])
    yield "started", _after(job["start"], "waited", job["waited"])
    yield "ended", _after(job["end"], "ran", job["ran"]) + _waited_for_agent(job["waited_for_agent"])
    yield "window", _window(job)
    yield "items", _items(job)
    yield "limits", _limits(job)
    yield "exit", _with(cell(job["exit_code"]), job["signal"]) if job["exit_code"] is not None or job["signal"] else ""
    yield "result", as_json(job["result"]) if job["result"] is not None else ""
    yield "deletes", " ".join(job["delete"] or ())
    yield "unique key", job["unique_key"] or ""


def _with(text: str, more: str | None) -> str:
    return f"{text} ({more})" if more else text


def _after(at: Any, verb: str, length: timedelta | None) -> str:
    return "" if at is None else cell(at) if length is None else f"{cell(at)}, {verb} {cell(length)}"


def _waited_for_agent(length: timedelta | None) -> str:
    """Return how long a job that was in hand waited for its agent, which was still starting; nothing if not long."""
    return "" if length is None or length < NOTED_WAIT else f", after {cell(length)} of waiting for its agent"


def _host(job: dict[str, Any]) -> str:
    ran = f"{job['run_host']}, pid {cell(job['run_pid'])}" if job["run_host"] else ""
    if not job["host"]:
        return ran
    return f"{job['host']}, as asked" + (f", pid {cell(job['run_pid'])}" if ran else "")


def _window(job: dict[str, Any]) -> str:
    ends = (("not before", job["not_before"]), ("not after", job["not_after"]))
    return ", ".join(f"{name} {cell(at)}" for name, at in ends if at)


def _items(job: dict[str, Any]) -> str:
    """Return how far a query is; nothing for a job of one parameter, which is its only item."""
    tolerated = f" ({job['tolerate']:,} tolerated)" if job["tolerate"] else ""
    return f"{job['progress']}{tolerated}" if job["progress"] else ""


def _limits(job: dict[str, Any]) -> str:
    """Return what is used up of its allowances, and its time limit."""
    used = (
        f"{cell(job['timeout'])} an attempt" if job["timeout"] else "",
        f"{job['failures']} of {job['retries']} retries used" if job["retries"] > 0 else "",
        f"{job['interruptions']} of {job['max_interruptions']} interruptions" if job["interruptions"] else "",
        f"rescued {job['rescued']} times" if job["rescued"] else "",
    )
    return ", ".join(filter(None, used))


def _print_part(name: str, part: Table, job: int) -> None:
    limit = {"attempts": ATTEMPTS, "items": ITEMS, "log": LOG_LINES}.get(name, EDGES)
    title, command = TITLES[name]
    is_newest_last = name in ("attempts", "log")
    rows = part.rows[-limit:] if is_newest_last else part.rows[:limit]
    if len(part.rows) > limit:
        which = "the last" if is_newest_last else "the first" if name != "items" else "the newest"
        title += f", {which} {limit}" + (f"; all: {command.format(job=job)}" if command else "")
    if name == "log":
        lines = (log_line({**row, "job": None}) for row in replace(part, rows=rows).records())
        print(title, *lines, sep="\n")
    else:
        print_table(without_empty(shortened(replace(part, title=title, rows=rows))))


def shortened(table: Table) -> Table:
    """Return the table with long texts cut, as a line holds them."""
    widths = [WIDTHS.get(name) for name in table.columns]
    rows = [
        tuple(clipped(value, width) if width and value else value for value, width in zip(row, widths, strict=True))
        for row in table.rows
    ]
    return replace(table, rows=rows)


def without_empty(table: Table) -> Table:
    """Return the table without the columns in which no row has anything."""
    columns = zip(table.columns, table.values(), strict=True)
    return table.only([name for name, values in columns if any(value not in EMPTY for value in values)])


def list_items(options: Namespace, config: Config) -> int:
    """Print the items of a job that failed, with the reason of each, the oldest first; of many, how many have which."""
    limit, every = options.rows or None, options.all
    with connect(config) as session:
        job = session.job_number(options.job)
        if session.access["item_failure"] == NOTHING:
            (sentence,) = session.restrictions("item_failure")
            warn(sentence)
            return 1
        facts = session.records("job_facts", job=job)
        items = session.table("", "failed_items", job=job, limit=limit and limit + 1, every=every)
        has_many = options.by_reason or (len(items.rows) > FEW_FAILURES and not options.json)
        counted = {"job": job, "every": every, "most": MOST_FAILURES}
        reasons = session.table("Reasons", "failure_reasons", **counted) if has_many else None
    if not facts:
        return no_such_job(job)
    if not items.rows and not options.json:
        print(printable(_no_items(job, facts[0])))
        return 0
    if not options.by_reason:
        print_newest(items, limit, lambda newest: without_empty(shortened(newest)), json=options.json)
    if reasons is not None:
        print_rows(reasons if options.json else shortened(reasons), json=options.json)
    return 0


def _no_items(job: int, facts: dict[str, Any]) -> str:
    """Return that no items of a job failed, and what is known of others."""
    if not facts["query"]:
        return f"job {job} is no query: it has no items; it is {facts['state']}"
    tried = f"; drover items {job} --all lists those of earlier attempts" if facts["attempt"] > 1 else ""
    return f"no items of job {job} failed; it is {facts['state']}{tried}"


# ---- why it does not run


def show_reason(options: Namespace, config: Config) -> int:
    """Print why the job is not running, or how it ended; with --all a table of the reasons of all jobs."""
    with connect(config) as session:
        if options.all:
            return _show_all(session, json=options.json)
        job = session.job_number(options.job)
        rows = session.rows("job_reason", job=job)
    if not rows:
        return no_such_job(job)
    print(as_json({"job": job, "reason": rows[0][0]}) if options.json else printable(rows[0][0]))
    return 0


def _show_all(session: Session, *, json: bool) -> int:
    """Print the reasons of all jobs that have not ended, that of the most jobs first."""
    reasons = session.table("", "reasons", most=MOST_REASONS)
    for sentence in session.restrictions("jobqueue"):
        warn(sentence)
    if not reasons.rows and not json:
        print("no job waits or runs")
        return 0
    return print_rows(reasons if json else reasons.only(REASON_COLUMNS), json=json)


# ---- its log, its output, its exit status


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
            warn_of_inactive_groups(session, [job] if job else [])
        has_ended = not options.follow
        with Progress(1, "jobs", note=lambda: why_waiting(session, [job] if job else [])) as progress:
            while not has_ended:
                wait_for_any(session, LOG_POLL_S)
                has_ended = bool(job) and session.rows("job_has_ended", job=job) in ([], [(True,)])
                progress.clear()
                # After the question, so that the last rows are printed.
                before, last = last, _print_log(session, options, job, last, None)
                if job and last == before:
                    progress.show(0)
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
        with Progress(1, "jobs", note=lambda: why_waiting(session, [job])) as progress:
            for _ in wake_ups(session, "drover_output", "drover_event", jobs=[job]):
                is_over = _is_past(session, job, last)  # before printing: what was written last is there then
                progress.clear()
                place = _print_output(session, job, stream, place, last)
                if is_over:
                    break
                if place == (attempt, 0):  # nothing was printed that the line would be drawn over
                    progress.show(0)
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


def show_exit_status(options: Namespace, config: Config) -> int:
    """Print the exit status, and the signal if there was one; with -q, exit with it. 1 if the job has not stopped."""
    with connect(config) as session:
        job = session.job_number(options.job)
        if options.wait:
            warn_of_inactive_groups(session, [job])
            with Progress(1, "jobs", note=lambda: why_waiting(session, [job])) as progress:
                list(job_ends(session, [job], inf, progress.show))
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
