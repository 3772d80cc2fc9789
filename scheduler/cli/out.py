"""`drover out N`: what the programs of a job wrote, exactly as they wrote it, while they do if that is wanted."""

import sys
from argparse import Namespace

import psycopg

from scheduler.cli.complain import failed, no_such_job
from scheduler.cli.database import connect, visible
from scheduler.cli.orders import numbers
from scheduler.cli.text import printable_lines
from scheduler.cli.wait import warn_of_inactive
from scheduler.cli.waiting import sleep, woken
from scheduler.model.config import Config

Place = tuple[int, int]  # attempt and part: the last piece that was printed

JOB = "select jq_attempt, jq_endtime is not null, jq_owner is not null from drover.jobqueue where jq_pk = %s"
OUTPUT = """
select out_attempt, out_part, out_data from drover.output o
 where out_jq_fk = %s and (out_attempt, out_part) > (%s, %s) and out_attempt <= %s and out_stream = %s
 order by out_attempt, out_part
"""
NO_END = 2**31 - 1


def run(options: Namespace, config: Config) -> int:
    """Print one stream of the latest attempt, or of another; -t goes on until the job ends, or that attempt."""
    with connect(config) as connection:
        (job,) = numbers(connection, [options.job])
        row = connection.execute(visible(connection, JOB), (job,)).fetchone()
        if row is None:
            return no_such_job(job)
        attempt: int = options.attempt or row[0]
        if attempt > row[0] and not options.follow:
            return failed(f"job {job} has had {row[0]} attempts")
        printer = _Printer(connection, job, "err" if options.errors else "out", attempt)
        if options.follow:
            warn_of_inactive(connection, [job])
            _follow(printer, options.attempt or NO_END)
        else:
            printer.print_until(attempt)
    return 0


class _Printer:
    """One stream of one job from one attempt on; on a terminal, control characters are escaped."""

    def __init__(self, connection: psycopg.Connection, job: int, stream: str, attempt: int) -> None:
        self.connection, self.job = connection, job
        self._stream = stream
        self._look, self._output = visible(connection, JOB), visible(connection, OUTPUT)
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


def _follow(printer: _Printer, attempt: int) -> None:
    look_s = woken(printer.connection, "drover_output", "drover_event")
    while True:
        is_over = printer.is_past(attempt)  # looked at first: what was written last is there then
        printer.print_until(attempt)
        if is_over:
            return
        sleep(printer.connection, [printer.job], look_s)
