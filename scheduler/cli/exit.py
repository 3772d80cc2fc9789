"""`drover exit N`: how the program of a job ended, as a number that a shell understands."""

from argparse import Namespace
from math import inf
from signal import Signals

from scheduler.cli.complain import failed, no_such_job
from scheduler.cli.database import connect, visible
from scheduler.cli.orders import numbers
from scheduler.cli.wait import warn_of_inactive
from scheduler.cli.waiting import FAILURE, ends
from scheduler.model.config import Config

SIGNALLED = 128  # what a shell adds to the number of a signal
END = """
select jq_endtime is not null, jq_state::text, jq_end_bits & %s <> 0, jq_exitcode, jq_signal
  from drover.jobqueue where jq_pk = %s
"""


def run(options: Namespace, config: Config) -> int:
    """Print the exit status, and the signal if there was one; with -q, exit with it. 1 if the job has not stopped."""
    with connect(config) as connection:
        (job,) = numbers(connection, [options.job])
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
        return SIGNALLED + _number(signal)
    return code or int(has_failed)


def _number(signal: str) -> int:
    """The number of SIGKILL, and of SIG40, which has no name of its own."""
    digits = signal.removeprefix("SIG")
    return int(digits) if digits.isdecimal() else Signals[signal].value
