"""Handles the answers of the queue connection: rows were claimed, saved, marked, read, settled or lost.

intake.py makes jobs of claimed rows; outbox.py decides which requests are sent again.
"""

from collections.abc import Sequence
from typing import Final

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.states import CLAIMED, QUEUED
from scheduler.policy import detached_jobs
from scheduler.policy.completion import end_try_alone, forget
from scheduler.policy.deadlines import PROGRESS, RECORD
from scheduler.policy.group_lease import assign_again, lapsed
from scheduler.policy.intake import admit, continue_read, end_reading_alone, receive, refuse_unmarked, refuse_unreadable
from scheduler.policy.job import TRIED_ALONE
from scheduler.policy.state import State

RECORD_AFTER: Final = 0.5  # seconds from a claim until what is in hand is recorded anew
MARK_CLAIMED_AFTER: Final = 0.4  # seconds from its claim that a job is in hand before its row says so


def woken(state: State, event: e.Woken, now: float) -> None:
    """Let every place be claimed from again: rows may have come anywhere."""
    if event.by_rescan:
        state.claims.look_again()
    else:
        state.claims.wake()


def ended_and_claimed(state: State, event: e.EndedAndClaimed, now: float) -> None:
    """Take the claimed rows in hand, and forget the ends that are saved."""
    if event.parents:
        state.outbox.settle(event.parents)
    request = state.outbox.answered()
    if request is None:
        return
    assert isinstance(request, r.EndAndClaim)
    if event.has_lapsed:
        lapsed(state)
    else:
        state.claims.answered(request, event.found, event.reached, now)
    if event.fenced and state.outbox.resent:
        state.outbox.settle(event.fenced)  # they may have ended before the answer was lost, and their children wait
    elif event.fenced:
        state.log_message("warning", f"rows that had another owner when they ended: {sorted(event.fenced)}")
    if event.found:
        state.deadlines.bring_forward(RECORD, now + RECORD_AFTER)
        _count_claims(state, event, now)
    if event.found or state.jobs:
        state.deadlines.bring_forward(PROGRESS, now + state.timers.progress_interval)


def _count_claims(state: State, event: e.EndedAndClaimed, now: float) -> None:
    """Count rows that are ours now, which may still be to come, and take in those that are here."""
    state.receive(True)
    row_bytes = event.size / sum(event.found.values())
    for request, count in event.found.items():
        pool = state.pools[request.type]
        pool.claimed(count, pool.queues.of_request(request), row_bytes)
        if (queue := state.queues.get(request.queue)) is not None:
            queue.claimed(count)
    if event.claims:
        receive(state, event, now)


def saved(state: State, event: e.Saved, now: float) -> None:
    """Continue with rows that are saved or marked; forget those that are no longer ours."""
    if event.parents:
        state.outbox.settle(event.parents)
    request = state.outbox.answered()
    if request is None:
        return
    if isinstance(request, r.Mark):
        _marked(state, request.rows, event.pks, now)
        return
    assert isinstance(request, r.Save)
    assign_again(state, now)
    for row in request.rows:
        if row.pk not in event.pks and not (state.outbox.resent and row.outcome is not None):
            _fenced(state, row.pk, row.attempt, now)
    if (suspect := state.suspect) is not None:
        texts = [row.text for row in request.rows if row.pk == suspect.pk]
        if TRIED_ALONE in texts:
            state.outbox.read(suspect.pk, suspect.attempt)
        elif any(text is not None for text in texts):
            end_reading_alone(state)  # the row does not say so any more: let the next one be tried
    ended = [row for row in request.rows if row.outcome is not None]
    if state.outbox.resent:  # likewise
        state.outbox.settle([row.pk for row in ended if row.pk not in event.pks])
    if [row for row in ended if row.state == QUEUED and row.retry_in is None]:  # they may be claimed again at once
        state.claims.wake()
    if any(row.retry_in is not None for row in request.rows):
        state.emit(e.FindNextDue())


def record_in_hand(state: State, now: float) -> None:
    """Record anew what is in hand, and show it in the rows of jobs that have been in hand for a moment."""
    state.outbox.want_record()
    recorded = [job for job in state.jobs.values() if job.is_recorded]
    for job in recorded:
        if now - job.since >= MARK_CLAIMED_AFTER:
            state.outbox.mark(job.mark(CLAIMED, now))
    if recorded:
        state.deadlines.bring_forward(RECORD, now + RECORD_AFTER)


def _marked(state: State, asked: Sequence[r.MarkRow], pks: frozenset[int], now: float) -> None:
    """Note that rows say that their jobs are in hand; only now may a rescued one begin."""
    for row in asked:
        pk, attempt = row.pk, row.attempt
        job = state.jobs.get(pk)
        if job is None or job.attempt != attempt:
            continue
        if pk not in pks:
            _fenced(state, pk, attempt, now)
            continue
        job.pool.marked(job)
        if row.spool is not None:
            detached_jobs.start_recorded(state, job, now)
        if job.rules.rescued and not job.started and job.verdict is None and not job.lanes:
            admit(state, job)


def contents_read(state: State, event: e.ContentsRead, now: float) -> None:
    """Continue with rows whose contents are read; forget those that are no longer ours."""
    request = state.outbox.answered()
    if request is None:
        return
    assert isinstance(request, r.ReadContents)
    for pk, attempt in request.rows:
        job = state.jobs.get(pk)
        if job is None or job.attempt != attempt or not job.rules.unread:
            continue
        if pk in event.contents:
            continue_read(state, job, *event.contents[pk], now)
        else:
            _fenced(state, pk, attempt, now)


def rows_lost(state: State, event: e.RowsLost, now: float) -> None:
    """Forget rows that the database, back after a loss, has otherwise: nothing of them is to be saved."""
    for pk, attempt in event.rows:
        _fenced(state, pk, attempt, now)


def _fenced(state: State, pk: int, attempt: int, now: float) -> None:
    """Forget a row that has another owner or is gone, and end the agents that work on it."""
    state.log_message("warning", f"job={pk}: the row is no longer ours")
    job = state.jobs.get(pk)
    if job is not None and job.attempt == attempt:
        forget(state, job, "the row has another owner", now)


def not_saved(state: State, event: e.NotSaved, now: float) -> None:
    """Send a failed request again, in parts, or later; or give up the one row that is to blame."""
    if state.outbox.drop_foreign(is_done=False):
        return
    request = state.outbox.in_flight
    complaint = state.outbox.failed(event, now)
    if complaint is not None and isinstance(request, r.ReadContents):
        refuse_unreadable(state, request.rows[0][0], event.reason, now)
    if complaint is not None and isinstance(request, r.Mark):
        refuse_unmarked(state, request.rows[0], event.reason, now)
    state.log_message("error" if complaint else "debug", complaint or f"not saved ({event.why}): {event.reason}")
    if state.suspect is not None and state.suspect.pk not in {*state.jobs, *state.outbox.pending()}:
        end_try_alone(state)  # its end was given up
    assign_again(state, now)  # what was given up has left room


def settled(state: State, event: e.Settled, now: float) -> None:
    """Send what is left of dependencies to settle; a claim may find the children that were released."""
    request = state.outbox.answered()
    if isinstance(request, r.Settle) and (late := state.outbox.take_late(request)) and event.released:
        state.found_late("dependencies", late)
    if event.left is not None:
        first, *others = event.left.parents
        # the others do not wait for all of the first one's children
        state.outbox.settle(others, r.Settle([first], event.left.beyond))
    if event.locked:
        state.outbox.wait_for_lock(r.Settle(event.locked), now)
    if event.released:
        state.claims.wake()
    assign_again(state, now)


def found_locked(state: State, event: e.LockedFound, now: float) -> None:
    """Save the rows that are locked later, and the others now."""
    if not state.outbox.drop_foreign():
        state.outbox.found_locked(event.pks, now)


def written(state: State, event: e.Written, now: float) -> None:
    """Forget log or output that is written."""
    state.outbox.answered()
    assign_again(state, now)
