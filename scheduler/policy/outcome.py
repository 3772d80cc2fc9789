"""What becomes of a job: the one place that turns a job whose work is over into the row to save.

A plain success of one parameter is an `End` and goes with the next claim; everything else is a `SaveRow`.
"""

from typing import Final

from scheduler.model.config import Scheduler
from scheduler.model.jobs import End, SaveRow
from scheduler.model.states import (
    BIT_FAILURE,
    BIT_NONFATAL,
    BIT_SUCCESS,
    CLAIMED,
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    check_move,
)
from scheduler.policy.entities import Job
from scheduler.policy.query import KeyProgress, Query

ALL_DONE: Final = "all data processed"
NO_DATA: Final = "no data"
MOST_DOUBLINGS: Final = 60  # of the wait before a retry; beyond 1023 it would be no number
# How a job that ends before its work is done is written down: verdict -> (state, outcome of the attempt)
GIVEN_BACK, BLOCKED_AGAIN, FAILS, KILLED, CANCELLED = "given back", "blocked", "failed", "killed", "cancelled"
NOT_BEGUN: Final = "not begun"  # given back, and drover.attempt says nothing of it
_VERDICTS: Final = {
    GIVEN_BACK: (QUEUED, "given back"),
    NOT_BEGUN: (QUEUED, "not begun"),
    BLOCKED_AGAIN: (QUEUED, "blocked"),
    KILLED: (FAILED, "failed"),
    CANCELLED: ("cancelled", "cancelled"),
}


def judge(job: Job, now: float, timers: Scheduler) -> End | SaveRow:
    """Return what to save of a job that has nothing left in hand."""
    if job.verdict is not None and job.verdict.state != FAILS:
        state, outcome = _VERDICTS[job.verdict.state]
        return _row(job, now, state, outcome, job.verdict.text, retry_in=job.verdict.delay)
    if job.verdict is not None:
        return _failure(job, now, timers, job.verdict.text)
    if job.query is not None:
        return _slice(job, job.query, now, timers)
    if job.failure is not None:
        return _failure(job, now, timers, job.failure)
    has_more = job.code or job.signal or job.result is not None or job.nonfatal or job.rules.failures or job.shown
    if job.done == 1 and not has_more:
        host, _, pid = job.where or ("", "", 0)
        return End(job.pk, job.attempt, int(job.busy * 1e6), host, pid, job.code)
    return _row(job, now, DONE, "done", ALL_DONE)


def progress(job: Job, now: float, text: str, counted: int = 0) -> SaveRow:
    """Return the row that shows a job still in hand; `counted` is what agents say of items that they work on."""
    state = RUNNING if job.marked or job.started else CLAIMED
    return _row(job, now, state, None, text, remaining=_remaining(job, now), counted=counted)


def _remaining(job: Job, now: float) -> float | None:
    """Return the seconds until every item of the slice is over, at the rate so far; None until one is."""
    query = job.query
    if query is None or not (over := job.succeeded + job.failed - job.rules.itemsfailed):
        return None
    return (query.total - over) * (now - query.opened_at) / over


def _slice(job: Job, query: Query, now: float, timers: Scheduler) -> SaveRow:
    """Judge a multi-SQL-query whose rows are all worked."""
    if job.failed > job.rules.tolerate:
        text = f"{job.failed} items failed, {job.rules.tolerate} tolerated"
        return _row(job, now, FAILED, "failed", text)
    is_rest = _is_rest(job)
    if query.fetched == 0 and not is_rest:
        return _row(job, now, DONE, "done", ALL_DONE if job.done else NO_DATA)
    if not job.rules.repeat:
        return _row(job, now, DONE, "done", ALL_DONE)
    if job.succeeded == 0 and not is_rest:
        return _row(job, now, FAILED, "failed", "no progress: not one item of the slice was done")
    return _row(job, now, QUEUED, "slice", f"{job.done} items so far", back=True)


def _is_rest(job: Job) -> bool:
    """Say whether the slice was given back half-way: that no more of it is left, or fails, says nothing of the next."""
    checkpoint = job.rules.checkpoint or {}
    return job.rules.repeat and (checkpoint.get("watermark") is not None or bool(checkpoint.get("beyond")))


def _failure(job: Job, now: float, timers: Scheduler, text: str) -> SaveRow:
    """Judge a failure of the job as a whole: it is tried again while it has retries."""
    failures = job.rules.failures + 1
    if failures > job.rules.retries:
        return _row(job, now, FAILED, "failed", text, failures=failures)
    delay = min(timers.retry_base * 2.0 ** min(failures - 1, MOST_DOUBLINGS), timers.retry_max)
    return _row(job, now, QUEUED, "retry", text, failures=failures, retry_in=delay, jitter=True)


def _row(
    job: Job, now: float, state: str, outcome: str | None, text: str | None,
    *, failures: int | None = None, retry_in: float | None = None, jitter: bool = False, back: bool = False,
    remaining: float | None = None, counted: int = 0,
) -> SaveRow:  # fmt: skip
    check_move(RUNNING if job.marked else CLAIMED, state)
    host, agent, pid = job.where or (None, None, None)
    done, failed, total, checkpoint = _counts(job, state, counted)
    return SaveRow(
        pk=job.pk, attempt=job.attempt, state=state, bits=_bits(job, state), text=text, outcome=outcome,
        code=job.code, signal=job.signal, result=job.result, processed=done, failed=failed, total=total,
        elapsed=job.rules.elapsed + now - job.since, busy=job.busy, took=_took(job, now), remaining=remaining,
        failures=failures, retry_in=retry_in, jitter=jitter, checkpoint=checkpoint, back=back,
        interruptions=job.rules.interruptions + 1 if job.interrupted else None, host=host, agent=agent, pid=pid,
    )  # fmt: skip


def _took(job: Job, now: float) -> float:
    """Return the seconds of this attempt: of a single line without its wait for an agent."""
    return now - job.since if job.query is not None or not job.busy else job.busy


def _bits(job: Job, state: str) -> int | None:
    if state == DONE:
        return BIT_SUCCESS | (BIT_NONFATAL if job.nonfatal or job.failed else 0)
    if state in (QUEUED, CLAIMED, RUNNING):
        return None
    return BIT_FAILURE | (BIT_NONFATAL if job.nonfatal else 0)


def _counts(job: Job, state: str, counted: int) -> tuple[int | None, int | None, int | None, dict[str, object] | None]:
    """Return processed, failed, total, checkpoint: with a key its progress, without one the counts to begin anew.

    What a slice without a key did is not kept if it must run again, nor what a line did, nor what is `counted` of items
    that are still worked: the checkpoint of a job with a key has the processed items without these. Of a row that is
    not read nothing changes.
    """
    query = job.query
    if job.rules.unread:
        return None, None, None, None
    if query is None:
        return 0 if state == QUEUED else job.done + counted, job.failed, 1, None
    total = job.rules.itemsprocessed + job.rules.itemsfailed + query.total if query.has_run else None
    is_slice = state == QUEUED and job.is_fed and job.in_flight == 0 and job.verdict is None
    if query.progress is not None:  # a checkpoint is of its slice: the next one asks anew
        checkpoint = KeyProgress(None).checkpoint() if is_slice else query.progress.checkpoint()
        only_done = {"itemsprocessed": job.done} if counted else {}
        return job.done + counted, job.failed, total, checkpoint | only_done
    old_done, old_failed = job.rules.itemsprocessed, job.rules.itemsfailed
    if state != QUEUED:
        return job.done + counted, job.failed, total, {"itemsprocessed": old_done, "itemsfailed": old_failed}
    done, failed = (job.done, job.failed) if is_slice else (old_done, old_failed)
    return done, failed, total, {"itemsprocessed": done, "itemsfailed": failed}
