"""`drover wait`, and the loop of all commands that wait: for the end of jobs, for output, or to redraw (`--watch`).

NOTIFY wakes a waiting command; a slow poll of its own covers a lost wake-up, and what nobody announces, as a job that
is claimed.
"""

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from math import inf
from time import monotonic
from typing import NamedTuple, NoReturn

from scheduler.cli.output import as_json, failed, no_such_job, printable, warn
from scheduler.cli.session import Session, connect
from scheduler.model.config import Config

WAITING_NAME = "drover-wait"  # application_name of commands that wait for an end: `drover status` counts them
POLL_S = 5.0
REPLICA_POLL_S = 1.0  # a replica announces nothing
REDRAW_S = 0.5  # between two drawings, at least
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
FAILURE = 2  # in jq_end_bits
GONE = "gone"  # in place of a state: there is no such job, or no more
_NUMBER = re.compile(r"\d+")


class End(NamedTuple):
    """How a job ended: a row of ended_jobs."""

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
    ends = []
    for end in job_ends(session, jobs, limit_s):
        ends.append(end)
        if end.state == GONE:
            no_such_job(end.job)
        elif json:
            outcomes = session.records("job_outcome", job=end.job)
            print(as_json(outcomes[0] if outcomes else None), flush=True)
        else:
            print(printable(f"{end.job} {end.type} {end.state} {end.text}"), flush=True)
    if left := len(jobs) - len(ends):
        return failed(f"after {limit_s:g} s, {left} of {len(jobs)} jobs have not ended; see drover why")
    return int(any(end.bits & FAILURE for end in ends))


def warn_of_inactive_groups(session: Session, jobs: Collection[int]) -> None:
    """Print at once that no scheduler will work on the jobs, rather than to wait in silence."""
    for (group,) in session.rows("inactive_groups", jobs=list(jobs)):
        warn(f"no scheduler is active for group {group}: the job waits until one is; start it with drover run")


def job_ends(session: Session, jobs: Collection[int], limit_s: float) -> Iterator[End]:
    """Yield the end of each job as it comes; stop when all have ended or after so many seconds."""
    waiting = set(jobs)
    for _ in wake_ups(session, "drover_event", jobs=waiting, limit_s=limit_s):
        ends = [End(*row) for row in session.rows("ended_jobs", jobs=list(waiting))] if waiting else []
        yield from ends
        waiting -= {end.job for end in ends}
        if not waiting:
            return


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
        drawn_at = monotonic()
        sys.stdout.write(CLEAR if is_terminal else "")
        draw()
        sys.stdout.write("" if is_terminal else "\n")
        sys.stdout.flush()
        wait_for_any(session, poll_s)
        # What comes while it is too early for a drawing is one reason for the next.
        for _ in session.connection.notifies(timeout=max(drawn_at + REDRAW_S - monotonic(), 0.0)):
            pass


def wait_for_any(session: Session, timeout_s: float) -> None:
    """Wait until something is announced, or for so many seconds."""
    for _ in session.connection.notifies(timeout=timeout_s, stop_after=1):
        pass
