"""How items and jobs end: done, failed, lost with their agent, killed, given back; and what is saved of a job.

A job is concluded when nothing of it is in hand any more; only then is its row written. Items that failed for good are
recorded with the reason; an item whose agent died gets one more try, alone in a fresh process.

A plain success of one parameter is an `End` and goes with the next claim; everything else is a `SaveRow`.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from scheduler.model.config import AgentType, Scheduler
from scheduler.model.counters import BIN_BOUNDS, BOUNDS
from scheduler.model.events_and_effects import JobEnded, LetGo, Signal
from scheduler.model.protocol import Item, printable, shown_item
from scheduler.model.queue_requests import End, ItemFailure, SaveRow
from scheduler.model.states import (
    BIT_FAILURE,
    BIT_NONFATAL,
    BIT_SUCCESS,
    BLOCKED,
    CANCELLED,
    CLAIMED,
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    ST_PREP,
    ST_RUNNING,
    ST_SPAWNED,
    TERMINAL,
    check_move,
)
from scheduler.policy import program_rollout
from scheduler.policy.conditions import AGENT, OURS
from scheduler.policy.job import Job, Verdict
from scheduler.policy.query_progress import JobQuery, KeyProgress
from scheduler.policy.quotas import BLOCKED_BY
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

FAILURE_LINE: Final = 8192  # characters kept of the line of an item that failed: there may be many
MOST_TEXT: Final = 16_384  # characters of jq_endtext; of a longer one so many are kept:
KEPT_TEXT: Final = 16_300
ALL_DONE: Final = "all data processed"
NO_DATA: Final = "no data"
RESTART: Final = "released for restart"
MOST_DOUBLINGS: Final = 60  # of the wait before a retry; beyond 1023 it would be no number
# The kinds of a verdict, and how a job of each is written down: kind -> (state, outcome of the attempt). One that FAILS
# has retries; one that is KILLED, or refused, has none.
GIVEN_BACK, FAILS, KILLED = "given back", "failed", "killed"
BACK: Final = (QUEUED, BLOCKED)  # states of a job that is to be worked again
NOT_BEGUN: Final = "not begun"  # given back, and drover.attempt says nothing of it
_VERDICTS: Final = {
    GIVEN_BACK: (QUEUED, "given back"),
    NOT_BEGUN: (QUEUED, "not begun"),
    BLOCKED: (BLOCKED, "blocked"),
    KILLED: (FAILED, "failed"),
    CANCELLED: (CANCELLED, "cancelled"),
}


# ---- items
def finish(state: State, slot: Slot, job: Job, now: float) -> None:
    """End the item in hand, which its agent has dealt with: it said OK, or exited with status 0, or 75 (blocked)."""
    seconds = now - slot.assigned_at
    if slot.is_second_try:
        job.end_second_try(slot.item)
    if slot.blocked is None and slot.failed is None:
        job.item_succeeded(slot.item, slot.counted, slot.where, seconds)
        if slot.record is not None:
            program_rollout.item_done(state, slot, seconds, now)
    else:
        job.item_ended(slot.where, seconds)
        if slot.blocked is not None:
            block_job(state, slot, job, _condition_said(slot.blocked))
        else:
            fail_item(state, slot, job, slot.failed or "", now, final=True)
    slot.clear_item(finished=1)
    if job.in_flight:
        return
    if job.query is None:
        conclude(state, job, now)
    else:
        conclude_if_over(state, job, now)


def _condition_said(text: str) -> str:
    """Return a condition that an agent reported; one that looks like ours gets another name."""
    text = text.lstrip()
    return AGENT + text if text.startswith(OURS) else text


def block_job(state: State, slot: Slot, job: Job, why: str) -> None:
    """Block a job that cannot be done now: nothing more of it is assigned, items in hand finish."""
    if job.verdict is None:
        job.set_verdict(Verdict(BLOCKED, f"blocked: {why}"))
    else:
        state.log(slot, "WARNING", f"BLOCKED {why}")
    job.drop_items()


def fail_item(state: State, slot: Slot, job: Job, reason: str, now: float, *, final: bool) -> None:
    """Fail the item in hand; unless that is final it gets a second try."""
    item = slot.item
    assert item is not None
    if slot.record is not None and program_rollout.item_failed(state, slot, now) and job.verdict is None:
        state.log(slot, "WARNING", f"{reason}; {program_rollout.TRIED_AGAIN}")
        if job.query is None:
            job.set_verdict(Verdict(GIVEN_BACK, program_rollout.TRIED_AGAIN))
        else:
            _try_again(state, slot, job, job.query, item, spared=_is_spared(slot, job.query, item))
    elif job.query is None:
        job.fail(reason, slot.counted, for_good=slot.fails_for_good)
    elif final or not _is_spared(slot, job.query, item):
        _record_failure(state, slot, job, job.query, item, reason)
    elif job.verdict is None:
        said = "" if reason == job.logged else f"{reason}; "
        state.log(slot, "WARNING", f"{said}tried once more, alone in a new process: {shown_item(item)}")
        _try_again(state, slot, job, job.query, item, spared=False)


def _try_again(state: State, slot: Slot, job: Job, query: JobQuery, item: Item, *, spared: bool) -> None:
    """Let the item in hand be tried once more, alone in a fresh process; if it is spared the first try is none."""
    query.try_again(item, spared=spared)
    slot.pool.add_second_try(job, item, slot.host.name if slot.is_bound else None)
    state.mark_dirty(slot.pool)


def _record_failure(state: State, slot: Slot, job: Job, query: JobQuery, item: Item, reason: str) -> None:
    """Record the item in hand as failed for good."""
    line = printable(item.line.rstrip(b"\n"))
    kept = line if len(line) <= FAILURE_LINE else line[:FAILURE_LINE] + "..."
    key = None if item.key is None else printable(item.key)
    row = ItemFailure(job.pk, job.attempt, key, kept, slot.host.name, slot.pool.name, slot.pid, reason)
    job.item_failed(query, item, row, slot.counted)
    state.log(slot, "ERROR", f"item failed: {reason}: {shown_item(item)}")


def lose_item(state: State, slot: Slot, why: str, now: float, words: str = "", *, interrupted: bool = False) -> None:
    """End the item in hand of a dead process, whose last line on stderr `words` is; `interrupted`: its link is lost."""
    job = slot.job
    if job is None:
        return
    job.agent_died(now - slot.assigned_at, slot.counted)
    slot.lose_item()
    if slot.death_counts:
        slot.blame(_is_slots_fault(slot, job))
    if job.verdict is None or job.verdict.kind == GIVEN_BACK:
        is_said = slot.failed is not None or slot.blocked is not None
        if state.stopping:
            job.set_verdict(job.verdict or Verdict(GIVEN_BACK, RESTART))
        elif interrupted and not is_said:
            _interrupt(state, slot, job, why)
        elif slot.blocked is not None:
            block_job(state, slot, job, _condition_said(slot.blocked))
        else:
            fail_item(state, slot, job, slot.failed or _with_words(job, why, words), now, final=slot.failed is not None)
    take_item_from(state, slot, job, now)


def _with_words(job: Job, why: str, words: str) -> str:
    """Return why the agent of a job died, with its last line on stderr; the daemon's own log gets no output."""
    if not words:
        return why
    job.set_last_words(words)
    said = f"{why}: {words}"
    if job.logged == why:  # the log has both
        job.set_logged(said)
    return said


def _is_slots_fault(slot: Slot, job: Job) -> bool:
    """Return whether the death of a process counts against its slot.

    It does not if its item was on its second try, or is a row of a query and the process has finished items before:
    then the item is the suspect.
    """
    return not slot.is_second_try and (job.query is None or slot.items == 0)


def _is_spared(slot: Slot, query: JobQuery, item: Item) -> bool:
    """Return whether the loss of the item in hand does not use up its first try."""
    return not slot.is_second_try or item.number in query.spared


def _interrupt(state: State, slot: Slot, job: Job, why: str) -> None:
    """Give an interrupted job back, or try an item of a query again; only so often, for the job may be the cause."""
    query, item = job.query, slot.item
    if query is not None and item is not None:
        if query.count_loss(slot.is_second_try) > job.rules.max_interruptions:
            _record_failure(state, slot, job, query, item, why)
        elif job.verdict is None:
            state.log(slot, "WARNING", f"interrupted: {why}; the item is tried again: {shown_item(item)}")
            _try_again(state, slot, job, query, item, spared=_is_spared(slot, query, item))
    elif job.rules.interruptions >= job.rules.max_interruptions:
        job.fail(f"interrupted more than {job.rules.max_interruptions} times: {why}", slot.counted)
    else:
        job.interrupt()
        job.set_verdict(Verdict(GIVEN_BACK, why))


def take_back(state: State, slot: Slot, why: str, now: float) -> None:
    """Give the one-parameter job of a slot back to the queue, and end its process, which has not begun the job."""
    job = slot.job
    assert job is not None
    job.set_verdict(job.verdict or Verdict(GIVEN_BACK, why))
    take_item_from(state, slot, job, now)
    slot.kill(why, now)


def take_item_from(state: State, slot: Slot, job: Job, now: float) -> None:
    """Take the item in hand from a slot, and conclude its job if that was its last."""
    if slot.is_second_try:
        job.end_second_try(slot.item)
    job.item_ended(slot.where, 0.0)
    slot.clear_item()
    conclude_if_over(state, job, now)


# ---- jobs
def conclude_if_over(state: State, job: Job, now: float) -> None:
    """Conclude a job that has nothing in hand and nothing to come."""
    if job.in_flight:
        return
    if job.verdict is not None or (job.query is None and job.started) or job.is_fed:
        conclude(state, job, now)


def conclude(state: State, job: Job, now: float) -> None:
    """Judge a job and hand its row to the outbox; it is no longer in hand."""
    state.remove_job(job)
    if job.lanes:
        job.forget_lanes()
    pool, row = job.pool, judge(job, now, state.timers)
    worked_s = job.busy - job.rules.busy
    pool.worked_s += worked_s
    if not isinstance(row, SaveRow):
        state.outbox.end(row)
        ended, text = DONE, ALL_DONE
        pool.plain_ends[row.host, bisect_left(BIN_BOUNDS, worked_s)] += 1
    else:
        ended, text = row.state, row.text or ""
        if row.outcome in ("failed", "retry", "blocked") and not text.startswith(BLOCKED_BY):
            _log_failure(state, job, row)
        elif job.interrupted and row.state == QUEUED:
            count = f"interruption {row.interruptions} of {job.rules.max_interruptions}"
            state.log_job(job, "WARNING", f"interrupted: {row.text}; queued again, {count}")
        state.outbox.save(_shortened(row), () if job.query is None else job.query.failures)  # after its log lines
    if ended not in TERMINAL:
        return
    # One of one parameter ran while an agent had it. Counted here: a call for each job would cost more.
    seconds = worked_s if job.query is None and worked_s else job.rules.elapsed + now - job.since
    pool.ran.counts[bisect_left(BOUNDS, seconds)] += 1
    pool.ran.total += seconds
    if state.reports_ends:
        state.emit(JobEnded(job.pk, pool.name, ended, text))


def _log_failure(state: State, job: Job, row: SaveRow) -> None:
    """Log why an attempt failed and what comes next; the log of the job has the reason already if its agent died."""
    text = row.text or row.outcome or ""
    following = ""
    if row.outcome == "retry":
        retries = job.rules.retries or job.pool.kind.retries
        following = f"queued again, retry {row.failures} of {retries} in at most {row.retry_in:g} s"
    if text != job.logged:
        state.log_job(job, "ERROR", f"{text}; {following}" if following else text)
    elif following:
        state.log_job(job, "WARNING", following)
    text = text.removesuffix(f": {job.last_words}") if job.last_words else text
    state.log_message("warning", f"{row.outcome}: {text} job={job.pk}{job.trace} agent={job.pool.name}")


def _shortened(row: SaveRow) -> SaveRow:
    """Return a row with its text as jq_endtext holds it: a long one is cut, and says so. The log has it whole."""
    if row.text is None or len(row.text) <= MOST_TEXT:
        return row
    return replace(row, text=f"{row.text[:KEPT_TEXT]} [cut: {len(row.text)} characters]")


def forget(state: State, job: Job, why: str, now: float) -> None:
    """Forget a job that is not ours to work on: end the agents that work on it and save nothing."""
    job.set_verdict(Verdict(GIVEN_BACK, "no longer ours"))
    job.drop_items()
    state.remove_job(job)
    state.attachments.forget(job.pk)
    if state.suspect is job:
        end_try_alone(state)
    for slot in state.slots.all:
        if slot.job is job:
            if slot in state.attachments.attached:
                state.emit(LetGo(slot.number))
            slot.clear_item()
            slot.kill(why, now)


def end_try_alone(state: State) -> None:
    """End the trial of a row, since none says any more that it is tried alone: the next one may be."""
    state.set_suspect(None)
    state.mark_dirty(*[pool for pool in state.pools.values() if pool.unread])


def stop_job(state: State, job: Job, verdict: Verdict, now: float) -> None:
    """End a job before its time without killing: what is in hand finishes first."""
    job.set_verdict(verdict)
    job.drop_items()
    state.close_expansion(job)
    conclude_if_over(state, job, now)


def kill_job(state: State, job: Job, verdict: Verdict, now: float) -> None:
    """End a job before its time and kill the agents that work on it; it is concluded when they are dead."""
    job.set_verdict(verdict)
    job.drop_items()
    state.close_expansion(job)
    for slot in state.slots.all:
        if slot.job is job:
            slot.kill(verdict.text, now)
    conclude_if_over(state, job, now)


def give_back(state: State, job: Job, why: str, now: float) -> None:
    """Return a job to the queue; it costs nothing."""
    stop_job(state, job, Verdict(GIVEN_BACK, why), now)


def give_back_all(state: State, why: str, now: float, which: Callable[[Job], bool]) -> None:
    """Return every job in hand for which `which` holds."""
    for job in [job for job in state.jobs.values() if which(job) and job.verdict is None]:
        give_back(state, job, why, now)


def is_untouched(job: Job) -> bool:
    """Return whether nothing of a job has been given to an agent yet."""
    return not job.started and job.verdict is None


def fail_job(state: State, job: Job, why: str, now: float) -> None:
    """Fail a job as a whole, whatever its items did."""
    kill_job(state, job, Verdict(FAILS, why, kills=True), now)


def end_late_jobs(state: State, now: float) -> None:
    """Fail the jobs that have run longer than they may."""
    for job in state.take_late_jobs(now):
        if job.verdict is None:
            program_rollout.job_late(state, job, now)
            fail_job(state, job, f"timeout: ran longer than {job.rules.timeout:g} s", now)


def end_by_command(state: State, pk: int, how: str, text: str, now: float) -> bool:
    """Kill or cancel a job whatever was to become of it, unless a command has; False when it is not in hand any more.

    One that is KILLED has failed and is not tried again; it and one that is CANCELLED say `text`.
    """
    job = state.jobs.get(pk)
    if job is None:
        return False
    if job.verdict is not None and job.verdict.kind in (KILLED, CANCELLED):
        return True
    kill_job(state, job, Verdict(how, text, kills=True), now)
    pool = job.pool
    state.mark_dirty(pool)  # what waited behind it, a rescued job not least, may go on
    starting = [slot for slot in pool.slots if slot.job is None and slot.state in (ST_PREP, ST_SPAWNED)]
    live = [other for other in state.jobs.values() if other.pool is pool and other.verdict is None]
    if not pool.arriving and not [other for other in live if other.query is not None or not other.started]:
        for slot in starting:  # nothing is left that they could be given
            slot.kill(text, now)
    return True


def signal(state: State, pk: int, number: int) -> int:
    """Send a signal to all agents that work on a job; return how many there are.

    None goes to a process that is attached to a detached job and has not said so: it would die of it, which would be
    taken for what it says of the job.
    """
    is_deaf = state.attachments.first_lines
    slots = [slot for slot in state.slots.all if slot.job is not None and slot.job.pk == pk and slot not in is_deaf]
    working = [slot for slot in slots if slot.state == ST_RUNNING]
    for slot in working:
        state.emit(Signal(slot.number, number))
    return len(working)


# ---- what is saved
def judge(job: Job, now: float, timers: Scheduler) -> End | SaveRow:
    """Return what to save of a job that has nothing left in hand."""
    verdict = job.verdict
    if verdict is not None and verdict.kind != FAILS:
        state, outcome = _VERDICTS[verdict.kind]
        return _row(job, now, state, outcome, verdict.text, retry_in=verdict.delay)
    failure = job.failure if verdict is None else verdict.text
    if failure is not None:
        return _failure(job, now, timers, failure)
    if job.query is not None:
        return _slice(job, job.query, now)
    has_more = job.code or job.signal or job.result is not None or job.nonfatal or job.rules.failures or job.shown
    if job.done == 1 and not has_more:
        host, _, pid = job.where or ("", "", 0)
        return End(job.pk, job.attempt, int((now - job.since) * 1e6), int(job.busy * 1e6), host, pid, job.code)
    return _row(job, now, DONE, "done", ALL_DONE)


def progress(job: Job, now: float, text: str, counted: int = 0) -> SaveRow:
    """Return the row that shows a job still in hand; `counted` is what agents say of items that they work on."""
    state, remaining = RUNNING if job.marked or job.started else CLAIMED, None
    if job.query is not None and (over := job.succeeded + job.failed - job.rules.itemsfailed):
        remaining = (job.query.total - over) * (now - job.query.opened_at) / over  # seconds, at the rate so far
    return _row(job, now, state, None, text, remaining=remaining, counted=counted)


def _slice(job: Job, query: JobQuery, now: float) -> SaveRow:
    """Judge a multi-SQL-query whose rows are all worked."""
    if job.failed > job.rules.tolerate:
        text = f"{job.failed} items failed, {job.rules.tolerate} tolerated"
        return _row(job, now, FAILED, "failed", text)
    # If it was given back half-way: that no more of it is left, or fails, says nothing of the next slice.
    checkpoint = job.rules.checkpoint or {}
    is_rest = job.rules.repeat and (checkpoint.get("watermark") is not None or bool(checkpoint.get("beyond")))
    if query.fetched == 0 and not is_rest:
        return _row(job, now, DONE, "done", ALL_DONE if job.done else NO_DATA)
    if not job.rules.repeat:
        return _row(job, now, DONE, "done", ALL_DONE)
    if job.succeeded == 0 and not is_rest:
        return _row(job, now, FAILED, "failed", "no progress: not one item of the slice was done")
    return _row(job, now, QUEUED, "slice", f"{job.done} items so far", back=True)


def _failure(job: Job, now: float, timers: Scheduler, text: str) -> SaveRow:
    """Judge a failure of the job as a whole: it is tried again while it has retries, its own or those of its type.

    What its agent fails for good with `FAIL!` is not. One that has ended its agent more than once goes to the end of
    its queue: the next start of an agent, which may take long, is for others.
    """
    failures, kind = job.rules.failures + 1, job.pool.kind
    if job.fails_for_good or failures > (job.rules.retries or kind.retries):
        return _row(job, now, FAILED, "failed", text, failures=failures)
    delay = retry_delay(kind, timers, failures)
    back = job.has_ended_agent and failures > 1
    return _row(job, now, QUEUED, "retry", text, failures=failures, retry_in=delay, jitter=kind.retry_jitter, back=back)


def retry_delay(kind: AgentType, timers: Scheduler, failures: int) -> float:
    """Return the seconds to wait after so many failures, before jitter: as its type says, or else all types."""
    base = timers.retry_base if kind.retry_base is None else kind.retry_base
    most = max(base, timers.retry_max) if kind.retry_max is None else kind.retry_max
    if kind.retry_backoff == "constant":
        return min(base, most)
    return min(base * 2.0 ** min(failures - 1, MOST_DOUBLINGS), most)


def _row(
    job: Job, now: float, state: str, outcome: str | None, text: str | None,
    *, failures: int | None = None, retry_in: float | None = None, jitter: bool = False, back: bool = False,
    remaining: float | None = None, counted: int = 0,
) -> SaveRow:  # fmt: skip
    check_move(QUEUED if job.is_recorded else RUNNING if job.marked else CLAIMED, state)
    host, agent, pid = job.where or (None, None, None)
    done, failed, total, checkpoint = _counts(job, state, counted, is_slice=outcome == "slice")
    bits = None
    if state == DONE:
        bits = BIT_SUCCESS | (BIT_NONFATAL if job.nonfatal or job.failed else 0)
    elif state in TERMINAL:
        bits = BIT_FAILURE | (BIT_NONFATAL if job.nonfatal else 0)
    in_hand = now - job.since  # of a single line its wait for an agent is no part of the attempt
    return SaveRow(
        pk=job.pk, attempt=job.attempt, state=state, bits=bits, text=text, outcome=outcome,
        code=job.code, signal=job.signal, result=job.result, processed=done, failed=failed, total=total,
        elapsed=job.rules.elapsed + in_hand, busy=job.busy, remaining=remaining,
        took=in_hand if job.query is not None or not job.busy else job.busy,
        failures=failures, retry_in=retry_in, jitter=jitter, checkpoint=checkpoint, back=back,
        interruptions=job.rules.interruptions + 1 if job.interrupted else None, host=host, agent=agent,
        pid=pid or None,  # 0: it could not be started
    )  # fmt: skip


def _counts(
    job: Job, state: str, counted: int, *, is_slice: bool
) -> tuple[int | None, int | None, int | None, dict[str, object] | None]:
    """Return processed, failed, total and checkpoint of a job, to be saved with its state.

    * a row that is not read yet: nothing changes
    * one parameter: nothing is kept of a job that is to be worked again
    * a query with a key: its progress by key; its processed items do not have those `counted` of unfinished ones
    * a query without a key: nothing is kept of a slice that must run again, so its checkpoint is the counts before it
    """
    query = job.query
    if job.rules.unread:
        return None, None, None, None
    if query is None:
        return 0 if state in BACK else job.done + counted, job.failed, 1, None
    total = job.rules.itemsprocessed + job.rules.itemsfailed + query.total if query.has_run else None
    if query.progress is not None:  # a checkpoint is of its slice: the next one asks anew
        checkpoint = KeyProgress(None).checkpoint() if is_slice else query.progress.checkpoint()
        only_done = {"itemsprocessed": job.done} if counted else {}
        return job.done + counted, job.failed, total, checkpoint | only_done
    old_done, old_failed = job.rules.itemsprocessed, job.rules.itemsfailed
    if state not in BACK:
        return job.done + counted, job.failed, total, {"itemsprocessed": old_done, "itemsfailed": old_failed}
    done, failed = (job.done, job.failed) if is_slice else (old_done, old_failed)
    return done, failed, total, {"itemsprocessed": done, "itemsfailed": failed}
