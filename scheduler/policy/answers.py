"""What the database answered: rows claimed, saved or lost, and what others changed in the tables we follow."""

from collections.abc import Sequence
from typing import Final

from scheduler.model import events as e
from scheduler.policy import completion, intake, serving
from scheduler.policy.deadlines import PROGRESS, RECORD
from scheduler.policy.entities import Job
from scheduler.policy.query import TRIED_ALONE
from scheduler.policy.state import State

STOCK_AFTER: Final = 1.0  # seconds of claims after which is said anew what is in hand


def woken(state: State, event: e.Woken, now: float) -> None:
    """There may be something to claim anywhere."""
    state.claims.wake()


def ended_and_claimed(state: State, event: e.EndedAndClaimed, now: float) -> None:
    """Rows are claimed and ends are saved, but for those that another owner had."""
    state.outbox.parents.extend(event.parents)
    if state.outbox.was_foreign():
        return
    request = state.outbox.answered()
    assert isinstance(request, e.EndAndClaim)
    if event.has_lapsed:
        serving.lapsed(state)
    else:
        state.claims.answered(request, event.found, event.reached, now)
    if event.found:
        state.deadlines.bring_forward(RECORD, now + STOCK_AFTER)
    if event.fenced and not state.outbox.resent:
        state.log_message("warning", f"rows that had another owner when they ended: {sorted(event.fenced)}")
    intake.note_claims(state, event, now)
    if event.found or state.jobs:
        state.deadlines.bring_forward(PROGRESS, now + state.timers.progress_interval)


def saved(state: State, event: e.Saved, now: float) -> None:
    """Rows are saved or marked; one that was no longer ours is forgotten."""
    state.outbox.parents.extend(event.parents)
    if state.outbox.was_foreign():
        return
    request = state.outbox.answered()
    if isinstance(request, e.Mark):
        _marked(state, request.rows, event.pks, now)
        return
    assert isinstance(request, e.Save)
    serving.go_on(state, now)
    for row in request.rows:
        if row.pk not in event.pks and not (state.outbox.resent and row.outcome is not None):
            _fenced(state, row.pk, row.attempt, now)
    if state.trial is not None:
        _saved_of_trial(state, state.trial, [row.text for row in request.rows if row.pk == state.trial.pk])
    if any(completion.is_back(row) for row in request.rows if row.outcome is not None):
        state.claims.wake()
    if any(row.retry_in is not None for row in request.rows):
        state.commands.append(e.FindNextDue())


def _saved_of_trial(state: State, job: Job, texts: Sequence[str | None]) -> None:
    """A row that says that it is tried alone is read; one that does not any more lets the next one be tried."""
    if TRIED_ALONE in texts:
        state.outbox.reads[job.pk] = (job.pk, job.attempt)
    elif any(text is not None for text in texts):
        intake.trial_is_over(state)


def _marked(state: State, asked: Sequence[tuple[int, int]], pks: frozenset[int], now: float) -> None:
    """Rows that are shown as running; a rescued one may begin only now."""
    for pk, attempt in asked:
        job = state.jobs.get(pk)
        if job is None or job.attempt != attempt:
            continue
        if pk not in pks:
            _fenced(state, pk, attempt, now)
            continue
        job.marked = True
        job.pool.marking.discard(pk)
        if job.rules.rescued and not job.started and job.verdict is None and not job.lanes:
            intake.admit(state, job)


def have_read(state: State, event: e.ContentsRead, now: float) -> None:
    """What rows hold is known; one that is no longer ours is forgotten."""
    if state.outbox.was_foreign():
        return
    request = state.outbox.answered()
    assert isinstance(request, e.ReadContents)
    for pk, attempt in request.rows:
        job = state.jobs.get(pk)
        if job is None or job.attempt != attempt or not job.rules.unread:
            continue
        if pk in event.contents:
            intake.contents_read(state, job, *event.contents[pk], now)
        else:
            _fenced(state, pk, attempt, now)


def strayed(state: State, event: e.RowsLost, now: float) -> None:
    """The database that has come back knows these rows otherwise: nothing of them is to be saved."""
    for pk, attempt in event.rows:
        _fenced(state, pk, attempt, now)


def _fenced(state: State, pk: int, attempt: int, now: float) -> None:
    """A row of ours has another owner or is gone: forget it, and end what works on it."""
    state.log_message("warning", f"job={pk}: the row is no longer ours")
    job = state.jobs.get(pk)
    if job is not None and job.attempt == attempt:
        completion.forget(state, job, now)


def not_saved(state: State, event: e.NotSaved, now: float) -> None:
    """A request failed: it goes in parts, later, or one row of it is given up."""
    if state.outbox.was_foreign():
        return
    request = state.outbox.in_flight
    complaint = state.outbox.failed(event, now)
    if complaint is not None and isinstance(request, e.ReadContents):
        intake.refuse_unreadable(state, request.rows[0][0], event.reason, now)
    state.log_message("error" if complaint else "debug", complaint or f"not saved ({event.why}): {event.reason}")
    if state.trial is not None and state.trial.pk not in {*state.jobs, *state.outbox.pending()}:
        completion.end_trial(state)  # its end was given up


def settled(state: State, event: e.Settled, now: float) -> None:
    """Some dependencies are settled; whoever owns the group may settle the others."""
    if not state.outbox.was_foreign():
        state.outbox.answered()
    if event.left is not None:
        first, *others = event.left.parents
        state.outbox.unsettled.append(e.Settle([first], event.left.beyond))
        state.outbox.parents.extend(others)  # they do not wait for all of the first one's children
    if event.locked:
        state.outbox.wait_for_lock(e.Settle(event.locked), now)
    if event.released:
        state.claims.wake()
    serving.go_on(state, now)


def found_locked(state: State, event: e.LockedFound, now: float) -> None:
    """Some rows are locked: they are saved later, and the others now."""
    if not state.outbox.was_foreign():
        state.outbox.found_locked(event.pks, now)


def written(state: State, event: e.Written, now: float) -> None:
    """Log or output is written."""
    if not state.outbox.was_foreign():
        state.outbox.answered()
    serving.go_on(state, now)
