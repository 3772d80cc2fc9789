"""What the rows of jobs in hand show of their progress: that they run, and how far they are."""

from collections import Counter

from scheduler.model.states import NEVER, ST_RUNNING
from scheduler.policy import serving
from scheduler.policy.completion import progress
from scheduler.policy.deadlines import PROGRESS
from scheduler.policy.dispatch import spill
from scheduler.policy.intake import has_connection
from scheduler.policy.job import Job
from scheduler.policy.sql_job import IN_PROGRESS, JobQuery
from scheduler.policy.state import State


def mark_running(state: State, now: float) -> None:
    """Show the rows as running that have been worked on for a moment."""
    for job in state.take_begun_jobs(now):
        if state.jobs.get(job.pk) is job and job.started and not job.marked and job.verdict is None:
            job.mark()
            state.outbox.mark(job.pk, job.attempt)


def show_progress(state: State, now: float) -> None:
    """Save how far the queries in hand are, and jobs of whose lines agents say ItemsProcessed."""
    state.deadlines.set(PROGRESS, now + state.timers.progress_interval if state.jobs else NEVER)
    counted: Counter[int] = Counter()  # what agents have counted so far of the items that they work on, by job
    for slot in state.slots.all:
        if slot.counted and slot.job is not None:
            counted[slot.job.pk] += slot.counted
    for job in state.jobs.values():
        query, count = job.query, counted[job.pk]
        if job.verdict is not None or job.pk in job.pool.marking:
            continue
        if query is None:
            if count != job.shown:
                state.outbox.save(progress(job, now, IN_PROGRESS, count))
                job.show(count)
            continue
        if query.show(_phase(state, job, query)) or query.has_run:
            failures = query.take_failures()
            state.outbox.save(progress(job, now, query.shown, count), failures)
            job.show(count)
    spill(state, now)
    serving.hold_if_full(state)
    for slot in state.slots.all:
        if slot.state == ST_RUNNING or (slot.shown is not None and slot.shown[0] != slot.state):
            state.slots.show_again(slot)


def _phase(state: State, job: Job, query: JobQuery) -> str:
    """Return what a query in hand waits for before it has rows, as far as agents have nothing to do with it."""
    if query.has_run or (not query.has_connection and has_connection(state, job.pool)):
        return IN_PROGRESS
    return "its query is running" if query.has_connection else "waits for an expansion connection"
