"""`drover wait`, and the loop of all commands that wait: for the end of jobs, for output, or to redraw (`--watch`).

NOTIFY wakes a waiting command. It also polls slowly, since a notification may be lost, and since a claim sends none. On
a terminal, a long wait shows its progress in one line.
"""

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from math import inf
from shutil import get_terminal_size
from time import monotonic
from typing import Final, NamedTuple, NoReturn, Self

from scheduler.cli.database_session import Session, connect
from scheduler.cli.output import as_json, clipped, failed, no_such_job, printable, span, warn
from scheduler.model.config import Config

WAITING_NAME: Final = "drover-wait"  # application_name of commands that wait for an end: `drover status` counts them
POLL_S: Final = 5.0
REPLICA_POLL_S: Final = 1.0  # a replica announces nothing
FEW_POLL_S: Final = 1.0  # of few jobs, whose progress a terminal shows
FEW: Final = 20
REDRAW_S: Final = 0.5  # between two drawings, at least
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
FAILURE: Final = 2  # in jq_end_bits
GONE: Final = "gone"  # in place of a state: there is no such job, or no more
_NUMBER: Final = re.compile(r"\d+")

PROGRESS_EVERY_S: Final = 0.2  # between two drawings, at least
NOTE_EVERY_S: Final = 0.9  # less than the time between two looks
PROGRESS_AFTER_S: Final = 0.5  # shorter waits show nothing
ERASE: Final = "\r\x1b[K"


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
    ends = []
    left = set(jobs)
    with Progress(len(jobs), "jobs", note=lambda: why_waiting(session, left)) as progress:
        for end in job_ends(session, jobs, limit_s, progress.show, progress.poll_s):
            progress.clear()
            ends.append(end)
            left.discard(end.job)
            if end.state == GONE:
                no_such_job(end.job)
            elif json:
                outcomes = session.records("job_outcome", job=end.job)
                print(as_json(outcomes[0] if outcomes else None), flush=True)
            else:
                print(printable(f"{end.job} {end.type} {end.state} {end.text}"), flush=True)
    return _status(ends, len(jobs), limit_s)


def print_results(session: Session, jobs: Collection[int], limit_s: float) -> int:
    """Print the result of each job as JSON, null if it has none; how others than done ended, on stderr."""
    warn_of_inactive_groups(session, jobs)
    with Progress(len(jobs), "jobs", note=lambda: why_waiting(session, jobs)) as progress:
        ends = sorted(job_ends(session, jobs, limit_s, progress.show, progress.poll_s))
    for end in ends:
        print(as_json(next(iter(session.records("job_outcome", job=end.job)), {"value": None})["value"]))
        if end.bits & FAILURE:
            warn(f"{end.job} {end.type} {end.state} {end.text}")
    return _status(ends, len(jobs), limit_s)


def _status(ends: Collection[End], asked: int, limit_s: float) -> int:
    """Return the exit status: 1 if a job failed; or has not ended in time, which is printed."""
    if left := asked - len(ends):
        return failed(f"after {limit_s:g} s, {left} of {asked} jobs have not ended; see drover why")
    return int(any(end.bits & FAILURE for end in ends))


def warn_of_inactive_groups(session: Session, jobs: Collection[int]) -> None:
    """Warn of each group whose jobs these are and that has no active scheduler."""
    for (group,) in session.rows("inactive_groups", jobs=list(jobs)):
        warn(
            f"no scheduler is active for group {group}: the job waits until one is; start it with drover run,"
            " unless one is just starting"
        )


def why_waiting(session: Session, jobs: Collection[int]) -> str:
    """Return why the first of these jobs has not ended."""
    reasons = session.rows("job_reason", job=min(jobs)) if jobs else []
    return f"job {min(jobs)}: {reasons[0][0]}" if reasons else ""


def job_ends(
    session: Session, jobs: Collection[int], limit_s: float, tell: Callable[[int], object] = int, poll_s: float = POLL_S
) -> Iterator[End]:
    """Yield the end of each job as it comes; stop when all have ended or after so many seconds.

    `tell` is called after each look with the number of jobs that have ended. A job that is blocked is warned of once,
    since it may stay so.
    """
    waiting, blocked = set(jobs), set[int]()
    for _ in wake_ups(session, "drover_event", jobs=waiting, limit_s=limit_s, poll_s=poll_s):
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


def wake_ups(
    session: Session, *channels: str, jobs: Collection[int], limit_s: float = inf, poll_s: float = POLL_S
) -> Iterator[None]:
    """Yield at once, then whenever one of the jobs is announced, by its number, and every few seconds.

    Ends after so many seconds, with a last time. `jobs` may change between two wake-ups.
    """
    deadline = monotonic() + limit_s
    session.rows("name_session", name=WAITING_NAME)
    poll_s = poll_s if session.listen(*channels) else REPLICA_POLL_S  # first of all, so that no end is missed
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


# ---- how far a long wait is


class Progress:
    """A line that is drawn over itself, while `done` of `total` grows; it is erased at the end of the block.

    `note` returns what is waited for; it is asked every few seconds.
    """

    def __init__(
        self, total: int, what: str, clock: Callable[[], float] = monotonic, note: Callable[[], str] = str
    ) -> None:
        self._total, self._what, self._clock, self.note = total, what, clock, note
        self._began = self._drawn = clock()
        self._noted, self._note = self._began, ""
        self._is_drawn = False
        self.is_shown = sys.stderr.isatty()

    @property
    def poll_s(self) -> float:
        """How often to look: more often for a line of few jobs, which says how far the first of them is."""
        return FEW_POLL_S if self.is_shown and self._total <= FEW else POLL_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, done: int, before: int = 0) -> None:
        """Draw the line; not if it was just drawn, or the wait is short so far. `before` were done before these."""
        now = self._clock()
        if not self.is_shown or now - self._began < PROGRESS_AFTER_S or now - self._drawn < PROGRESS_EVERY_S:
            return
        self._drawn, self._is_drawn = now, True
        if now - self._noted >= NOTE_EVERY_S:
            self._noted, self._note = now, self.note()
        passed_s = now - self._began
        if self._note and (self._total, self._what) == (1, "jobs"):  # how far that job is says more than 0 of 1
            counted = span(passed_s)
        else:
            counted = line(before + done, self._total, self._what, passed_s)
        text = ": ".join(filter(None, (counted, self._note)))
        sys.stderr.write(ERASE + clipped(text, get_terminal_size().columns - 1))
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line, so that something else can be printed."""
        if self._is_drawn:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
            self._is_drawn = False


def line(done: int, total: int, what: str, passed_s: float) -> str:
    """Return `412 of 1,000 jobs, 55/s, 11 s left`; without rate and time as long as nothing is done."""
    head = f"{done:,} of {total:,} {what}"
    rate = done / passed_s if passed_s > 0 else inf
    if not done or done >= total or rate == inf:
        return f"{head}, {span(passed_s)}"
    return f"{head}, {rate:,.0f}/s, {span((total - done) / rate)} left" if rate >= 1 else (
        f"{head}, {rate * 60:,.1f} a minute, {span((total - done) / rate)} left"
    )  # fmt: skip
