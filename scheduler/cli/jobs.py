"""`drover ls`, `why`, `exit`, `log` and `out`: list jobs, and print what is known of one.

Text of agents is escaped before it reaches a terminal.
"""

import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from signal import Signals
from typing import Any

import psycopg
from psycopg.rows import dict_row

from scheduler.cli.db import connect, job_numbers, listen, table, visible
from scheduler.cli.output import (
    Table,
    as_json,
    cell,
    clipped,
    failed,
    no_such_job,
    printable,
    printable_lines,
    show,
    warn,
)
from scheduler.cli.wait import FAILURE, ends, redrawn, sleep, warn_of_inactive, woken
from scheduler.model.config import Config
from scheduler.model.states import BLOCKED, CLAIMED, FAILED, HELD, JOB_STATES, QUEUED, RUNNING

USUAL = (HELD, QUEUED, CLAIMED, RUNNING, BLOCKED, FAILED)
SHOWN = ("job", "name", "type", "queue", "state", "priority", "queued", "processed", "total", "host", "args", "text")
USUALLY = {"name": (None,), "queue": ("default", None)}  # a column that says nothing else is left out
CLIPPED = {"args": 48, "text": 60}

# Named columns only: a site may add its own.
JOBS = """
select jq_pk as job, jq_name as name, jq_job_fk as group, jq_type as type, jq_state::text as state,
       jq_urgent as urgent, jq_priority as priority, jq_queue as queue, jq_host as host, jq_submitter as submitter,
       jq_attempt as attempt, jq_queued as queued, jq_starttime as start, jq_endtime as end,
       jq_itemsprocessed as processed, jq_itemsfailed as failed, jq_itemstotal as total,
       jq_args as args, jq_endtext as text
  from drover.jobqueue
 where jq_state = any (%s::drover.job_state[]) and (%s::text[] is null or jq_type = any (%s))
   and (%s or jq_type <> 'command' or jq_endtime is null)
   and (%s or not exists (select from drover.job where job_pk = jq_job_fk and job_hidden))
 order by jq_pk desc limit %s
"""


def list_jobs(options: Namespace, config: Config) -> int:
    """Print the newest jobs that are asked for, and say so if there are more; --watch does so until Ctrl-C."""
    with connect(config) as connection:
        if options.watch:
            redrawn(connection, lambda: _list(connection, options))
        _list(connection, options)
    return 0


def _list(connection: psycopg.Connection, options: Namespace) -> None:
    limit = options.rows or None
    wants_commands = options.all or bool(options.types)
    filters = (states(options), options.types, options.types, wants_commands, options.all, limit and limit + 1)
    jobs = table(connection, "", JOBS, filters)
    newest = replace(jobs, rows=jobs.rows[:limit][::-1])
    if options.json:
        print("".join(as_json(record) + "\n" for record in newest.records()), end="")
    else:
        show(brief(newest))
    if len(jobs.rows) > len(newest.rows):
        warn(f"these are the newest {limit}; -n 0 lists all")


def states(options: Namespace) -> list[str]:
    """Every state that is asked for: the usual ones and more (-s), or others instead (-S, --all)."""
    if options.all:
        return list(JOB_STATES)
    return [state for state in JOB_STATES if state in {*options.also, *(options.only or USUAL)}]


def brief(jobs: Table) -> Table:
    """What fits a line: names and queues if one has any; an urgent job's priority bears a mark, long texts are cut."""
    records = jobs.records()
    usual = {key for key, values in USUALLY.items() if all(record[key] in values for record in records)}
    columns = tuple(name for name in SHOWN if name not in usual)
    return Table("", columns, [tuple(_brief_row(record, columns)) for record in records])


def _brief_row(record: dict[str, Any], columns: Iterable[str]) -> Iterable[Any]:
    shown = record | {"priority": ("!" if record["urgent"] else "") + record["priority"]}
    for name in columns:
        value = shown[name]
        yield clipped(value, CLIPPED[name]) if value and name in CLIPPED else value


REASON = "select reason from drover.why where jq_pk = %s"


def show_reason(options: Namespace, config: Config) -> int:
    """Print one line: why the job is not running, or what became of it."""
    with connect(config) as connection:
        (job,) = job_numbers(connection, [options.job])
        row = connection.execute(visible(connection, REASON), (job,)).fetchone()
    if row is None:
        return no_such_job(job)
    print(printable(row[0]))
    return 0


SIGNALLED = 128  # what a shell adds to the number of a signal
END = """
select jq_endtime is not null, jq_state::text, jq_end_bits & %s <> 0, jq_exitcode, jq_signal
  from drover.jobqueue where jq_pk = %s
"""


def show_exit_status(options: Namespace, config: Config) -> int:
    """Print the exit status, and the signal if there was one; with -q, exit with it. 1 if the job has not stopped."""
    with connect(config) as connection:
        (job,) = job_numbers(connection, [options.job])
        if options.wait:
            warn_of_inactive(connection, [job])
            list(ends(connection, [job], inf))
        row = connection.execute(visible(connection, END), (FAILURE, job)).fetchone()
    if row is None:
        return no_such_job(job)
    has_ended, state, has_failed, code, signal = row
    if not has_ended:
        return failed(f"job {job} has not stopped: it is {state}")
    value = exit_value(has_failed, code, signal)
    if options.quiet:
        return value
    print(value, *([signal] if signal else []))
    return 0


def exit_value(has_failed: bool, code: int | None, signal: str | None) -> int:
    """A status from 0 to 255; 0 only of a job that did not fail, 128 and more of one that a signal ended."""
    if signal:
        return SIGNALLED + _signal_number(signal)
    return code or int(has_failed)


def _signal_number(signal: str) -> int:
    """The number of SIGKILL, and of SIG40, which has no name of its own."""
    digits = signal.removeprefix("SIG")
    return int(digits) if digits.isdecimal() else Signals[signal].value


LOG_ROWS_SHOWN = 100
LOG_POLL_S = 1.0  # nothing announces a log row; the end of a job does wake us, but not on a replica
LOG_FIELDS = ("job", "host", "agent", "pid")

# Rows are numbered as they are written: of two writers at once, the later commit may be overtaken and not be followed.
LOG_ROWS = """
select * from (
  select log_pk as pk, log_date as date, log_type as type, log_jq_fk as job, log_host as host, log_agent as agent,
         log_pid as pid, log_message as message
    from drover.log l
   where log_pk > %s and (%s::bigint is null or log_jq_fk = %s)
   order by log_pk desc limit %s) newest
 order by pk
"""
HAS_ENDED = "select jq_endtime is not null from drover.jobqueue where jq_pk = %s"


def show_log(options: Namespace, config: Config) -> int:
    """Print the last rows, of one job or of all; -f goes on until the job ends."""
    with connect(config) as connection:
        if options.job is not None:
            (options.job,) = job_numbers(connection, [options.job])
        last = _print_rows(connection, options, 0, options.lines if _is_limited(options) else LOG_ROWS_SHOWN)
        if (
            options.job
            and not last
            and not connection.execute(visible(connection, HAS_ENDED), (options.job,)).fetchone()
        ):
            return no_such_job(options.job)
        if options.follow:
            _follow_log(connection, options, last)
    return 0


def log_line(row: dict[str, Any]) -> str:
    """A row as one line: when, what kind, the fields that it has, the message."""
    fields = "".join(f" {name}={row[name]}" for name in LOG_FIELDS if row[name] is not None)
    return printable(f"{cell(row['date'])} {row['type']}{fields}: {row['message']}")


def _is_limited(options: Namespace) -> bool:
    return options.lines is not None or options.job is not None


def _print_rows(connection: psycopg.Connection, options: Namespace, after: int, limit: int | None) -> int:
    """Print what is newer than `after`, and give the number of the newest."""
    cursor = connection.cursor(row_factory=dict_row)
    for row in cursor.execute(visible(connection, LOG_ROWS), (after, options.job, options.job, limit)):
        after = row.pop("pk")
        print(as_json(row) if options.json else log_line(row), flush=options.follow)
    return after


def _follow_log(connection: psycopg.Connection, options: Namespace, last: int) -> None:
    listen(connection, "drover_event")
    has_ended = False
    while not has_ended:
        for _ in connection.notifies(timeout=LOG_POLL_S, stop_after=1):
            pass
        has_ended = _has_ended(connection, options.job)  # looked at first: what it logged last is there then
        last = _print_rows(connection, options, last, None)


def _has_ended(connection: psycopg.Connection, job: int | None) -> bool:
    row = connection.execute(visible(connection, HAS_ENDED), (job,)).fetchone() if job else (False,)
    return row is None or bool(row[0])


Place = tuple[int, int]  # attempt and part: the last piece that was printed

ATTEMPT = "select jq_attempt, jq_endtime is not null, jq_owner is not null from drover.jobqueue where jq_pk = %s"
OUTPUT = """
select out_attempt, out_part, out_data from drover.output o
 where out_jq_fk = %s and (out_attempt, out_part) > (%s, %s) and out_attempt <= %s and out_stream = %s
 order by out_attempt, out_part
"""
NO_END = 2**31 - 1


def show_output(options: Namespace, config: Config) -> int:
    """Print one stream of the latest attempt, or of another; -t goes on until the job ends, or that attempt."""
    with connect(config) as connection:
        (job,) = job_numbers(connection, [options.job])
        row = connection.execute(visible(connection, ATTEMPT), (job,)).fetchone()
        if row is None:
            return no_such_job(job)
        attempt: int = options.attempt or row[0]
        if attempt > row[0] and not options.follow:
            return failed(f"job {job} has had {row[0]} attempts")
        printer = _Printer(connection, job, "err" if options.errors else "out", attempt)
        if options.follow:
            warn_of_inactive(connection, [job])
            _follow_output(printer, options.attempt or NO_END)
        else:
            printer.print_until(attempt)
    return 0


class _Printer:
    """One stream of one job from one attempt on; on a terminal, control characters are escaped."""

    def __init__(self, connection: psycopg.Connection, job: int, stream: str, attempt: int) -> None:
        self.connection, self.job = connection, job
        self._stream = stream
        self._look, self._output = visible(connection, ATTEMPT), visible(connection, OUTPUT)
        self._place: Place = (attempt, 0)
        self._is_terminal = sys.stdout.isatty()

    def print_until(self, attempt: int) -> None:
        """Print what is there and was not printed yet, up to this attempt."""
        parameters = (self.job, *self._place, attempt, self._stream)
        for *place, text in self.connection.cursor().stream(self._output, parameters):
            self._place = (place[0], place[1])
            self._write(text)
        sys.stdout.flush()

    def is_past(self, attempt: int) -> bool:
        """Whether the job has ended, or is gone, or is past this attempt."""
        row = self.connection.execute(self._look, (self.job,)).fetchone()
        if row is None:
            return True
        latest, has_ended, is_in_hand = row
        return has_ended or latest > attempt or (latest == attempt and not is_in_hand)

    def _write(self, text: str) -> None:
        if self._is_terminal:
            sys.stdout.write(printable_lines(text))
        else:
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))


def _follow_output(printer: _Printer, attempt: int) -> None:
    look_s = woken(printer.connection, "drover_output", "drover_event")
    while True:
        is_over = printer.is_past(attempt)  # looked at first: what was written last is there then
        printer.print_until(attempt)
        if is_over:
            return
        sleep(printer.connection, [printer.job], look_s)
