"""How items and jobs end: done, failed, lost with their agent, killed, given back.

A job is concluded when nothing of it is in hand any more; only then is its row written. Items that failed for good are
recorded with the reason; an item whose agent died gets one more try, alone in a fresh process.
"""

from collections.abc import Callable
from typing import Final

from scheduler.model import events as e
from scheduler.model.events import CloseQuery, JobEnded
from scheduler.model.jobs import ItemFailure, SaveRow
from scheduler.model.protocol import printable
from scheduler.model.states import QUEUED, ST_PREP, ST_RUNNING, ST_SPAWNED, TERMINAL
from scheduler.policy.entities import Job, Pool, Verdict
from scheduler.policy.outcome import ALL_DONE, BLOCKED_AGAIN, CANCELLED, FAILS, GIVEN_BACK, KILLED, judge
from scheduler.policy.query import Query
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

FAILURE_LINE: Final = 8192  # characters kept of the line of an item that failed: there may be many
KILL: Final = "killed"  # what a killed job says


def finish(state: State, slot: Slot, job: Job, now: float) -> None:
    """End the item in hand, to which its agent said OK."""
    seconds = now - slot.assigned_at
    if slot.is_second_try:
        _end_second_try(slot, job)
    if slot.blocked is None and slot.failed is None:
        job.item_succeeded(slot.item, slot.counted, slot.where, seconds)
    else:
        job.item_ended(slot.where, seconds)
        if slot.blocked is not None:
            _block(state, slot, job)
        else:
            fail_item(state, slot, job, slot.failed or "", final=True)
    slot.clear_item(finished=1)
    if job.in_flight:
        return
    if job.query is None:
        conclude(state, job, now)
    else:
        conclude_if_over(state, job, now)


def _block(state: State, slot: Slot, job: Job) -> None:
    """Let a job wait that cannot be done now: nothing more of it is assigned, items in hand finish."""
    if job.verdict is None:
        job.verdict = Verdict(BLOCKED_AGAIN, f"blocked: {slot.blocked}", state.timers.blocked_delay)
    else:
        state.log(slot, "WARNING", f"BLOCKED {slot.blocked}")
    drop_waiting(state, job)


def fail_item(state: State, slot: Slot, job: Job, reason: str, *, final: bool) -> None:
    """Fail the item in hand; unless that is final it gets a second try."""
    item = slot.item
    assert item is not None
    if job.query is None:
        job.failure, job.done = reason, slot.counted or 0
    elif final or (slot.is_second_try and item.number not in job.query.spared):
        record_failure(state, slot, job, reason)
    elif job.verdict is None:
        job.query.spared.discard(item.number)
        _try_again(state, slot, job, job.query)


def _try_again(state: State, slot: Slot, job: Job, query: Query) -> None:
    """Let the item in hand be tried once more, alone in a fresh process."""
    assert slot.item is not None
    query.second_tries.append(slot.item)
    slot.pool.second_tries.append((job, slot.item, slot.host.name if slot.is_bound else None))
    state.mark_dirty(slot.pool)


def record_failure(state: State, slot: Slot, job: Job, reason: str) -> None:
    """Record the item in hand as failed for good."""
    item, query = slot.item, job.query
    assert item is not None
    assert query is not None
    job.item_failed(slot.counted)
    key = None if item.key is None else printable(item.key)
    if query.progress is not None and key is not None:
        query.progress.finish(item.number, key)
    line = printable(item.line.rstrip(b"\n"))
    if len(line) > FAILURE_LINE:
        line = line[:FAILURE_LINE] + "..."
    row = ItemFailure(job.pk, job.attempt, key, line, slot.host.name, slot.pool.name, slot.pid, reason)
    query.failures.append(row)
    state.log(slot, "ERROR", f"item failed: {reason}: {line[:200]}")


def release_slot(state: State, slot: Slot, job: Job, now: float) -> None:
    """Take the item in hand from a slot, and conclude its job if that was its last."""
    if slot.is_second_try:
        _end_second_try(slot, job)
    job.item_ended(slot.where, 0.0)
    slot.clear_item()
    if not job.in_flight:
        conclude_if_over(state, job, now)


def _end_second_try(slot: Slot, job: Job) -> None:
    if job.query is not None and slot.item is not None:
        job.query.end_second_try(slot.item)


def conclude_if_over(state: State, job: Job, now: float) -> None:
    """Conclude a job that has nothing in hand and nothing to come."""
    if job.in_flight:
        return
    if job.verdict is not None or (job.query is None and job.started) or job.is_fed:
        conclude(state, job, now)


def conclude(state: State, job: Job, now: float) -> None:
    """Judge a job and hand its row to the outbox; it is no longer in hand."""
    del state.jobs[job.pk]
    job.pool.query_jobs.pop(job.pk, None)
    if (queue := state.queues.get(job.queue)) is not None:
        queue.ended()
    query = job.query
    job.lanes.clear()  # they name the job: a ring that only the garbage collector would break
    if query is not None and query.has_connection:
        state.emit(CloseQuery(job.pk))
        state.expanding.discard(job.pk)
        waiting = [pool for pool in state.pools.values() if pool.waits_for_connection]
        state.mark_dirty(job.pool, *waiting)
    row = judge(job, now, state.timers)
    if not isinstance(row, SaveRow):
        state.outbox.end(row)
        if state.reports_ends:
            _report_end(state, job, "done", ALL_DONE)
        return
    job.pool.unread.pop(job.pk, None)
    failures = query.failures if query is not None else ()
    state.outbox.save(row, failures)
    if row.outcome in ("failed", "retry", "blocked"):
        if row.text != job.logged:
            state.log_job(job, "ERROR", row.text or row.outcome)
        state.log_message("warning", f"{row.outcome}: {row.text} job={job.pk} agent={job.pool.name}")
    if row.state in TERMINAL and state.reports_ends:
        _report_end(state, job, row.state, row.text or "")


def end_trial(state: State) -> None:
    """End the trial of a row, since none says any more that it is tried alone: the next one may be."""
    state.set_trial(None)
    state.mark_dirty(*[pool for pool in state.pools.values() if pool.unread])


def _report_end(state: State, job: Job, outcome: str, text: str) -> None:
    state.emit(JobEnded(job.pk, job.pool.name, outcome, text))


# ---- ending jobs before their time
def drop_waiting(state: State, job: Job) -> None:
    """Forget the items that wait; what is in hand goes on."""
    pool, query = job.pool, job.query
    for host, lane in job.lanes.items():
        pool.run_queue_of(job, host).drop(lane)
    job.drop_items()
    if query is not None:
        query.stop()
        pool.drop_second_tries(job)


def stop_job(state: State, job: Job, verdict: Verdict, now: float) -> None:
    """End a job before its time without killing: what is in hand finishes first."""
    job.verdict = verdict
    drop_waiting(state, job)
    conclude_if_over(state, job, now)


def kill_job(state: State, job: Job, verdict: Verdict, now: float) -> None:
    """End a job before its time and kill the agents that work on it; it is concluded when they are dead."""
    job.verdict, verdict.kills = verdict, True
    drop_waiting(state, job)
    for slot in state.slots.all:
        if slot.job is job:
            slot.kill(verdict.text, now)
    conclude_if_over(state, job, now)


def give_back(state: State, job: Job, why: str, now: float) -> None:
    """Return a job to the queue; it costs nothing."""
    stop_job(state, job, Verdict(GIVEN_BACK, why), now)


def fail_job(state: State, job: Job, why: str, now: float) -> None:
    """Fail a job as a whole, whatever its items did."""
    kill_job(state, job, Verdict(FAILS, why), now)


def forget(state: State, job: Job, now: float) -> None:
    """Forget a job that is no longer ours: end the agents that work on it and save nothing."""
    del state.jobs[job.pk]
    job.verdict = Verdict(GIVEN_BACK, "no longer ours")
    drop_waiting(state, job)
    job.pool.query_jobs.pop(job.pk, None)
    if (queue := state.queues.get(job.queue)) is not None:
        queue.ended()
    job.pool.unread.pop(job.pk, None)
    if state.trial is job:
        end_trial(state)
    if job.pk in state.expanding:
        state.emit(CloseQuery(job.pk))
        state.expanding.discard(job.pk)
    for slot in state.slots.all:
        if slot.job is job:
            slot.clear_item()
            slot.kill("the row has another owner", now)


def give_back_all(state: State, why: str, now: float, which: Callable[[Job], bool]) -> None:
    """Return every job in hand for which `which` holds."""
    for job in [job for job in state.jobs.values() if which(job) and job.verdict is None]:
        give_back(state, job, why, now)


def is_untouched(job: Job) -> bool:
    """Say whether nothing of a job has been given to an agent yet."""
    return not job.started and job.verdict is None


# ---- a process has died
def lose_item(state: State, slot: Slot, why: str, now: float, *, interrupted: bool = False) -> None:
    """End the item in hand of a dead process, or `interrupted`: of one whose link is lost."""
    job = slot.job
    if job is None:
        return
    job.busy += now - slot.assigned_at
    slot.lose_item()
    if job.query is None:
        job.done = slot.counted or 0
    if slot.death_counts:
        slot.blame(not slot.is_second_try and (job.query is None or slot.items == 0))
    if job.verdict is None or job.verdict.state == GIVEN_BACK:
        is_said = slot.failed is not None or slot.blocked is not None
        if interrupted and not is_said and not state.stopping:
            _interrupt(state, slot, job, why)
        else:
            _charge(state, slot, job, why)
    release_slot(state, slot, job, now)


def _charge(state: State, slot: Slot, job: Job, why: str) -> None:
    """Count a death while working as a failure, unless the daemon stops."""
    if state.stopping:
        job.verdict = job.verdict or Verdict(GIVEN_BACK, "released for restart")
    elif slot.blocked is not None:
        _block(state, slot, job)
    else:
        fail_item(state, slot, job, why if slot.failed is None else slot.failed, final=slot.failed is not None)


def _interrupt(state: State, slot: Slot, job: Job, why: str) -> None:
    """Give an interrupted job back, or try an item of a query again; only so often, for it may be the cause."""
    if job.query is not None:
        if job.query.count_loss(slot.is_second_try) > job.rules.max_interruptions:
            record_failure(state, slot, job, why)
        elif job.verdict is None:
            if slot.item is not None and not slot.is_second_try:
                job.query.spared.add(slot.item.number)
            _try_again(state, slot, job, job.query)
    elif job.rules.interruptions >= job.rules.max_interruptions:
        job.failure = f"interrupted more than {job.rules.max_interruptions} times: {why}"
    else:
        job.interrupted = True
        job.verdict = Verdict(GIVEN_BACK, why)


def is_back(row: SaveRow) -> bool:
    """Say whether a saved row may be claimed again at once."""
    return row.state == QUEUED and row.retry_in is None


def end_late_jobs(state: State, now: float) -> None:
    """Fail the jobs that have run longer than they may."""
    for job in state.take_late_jobs(now):
        if job.verdict is None:
            fail_job(state, job, f"timeout: ran longer than {job.rules.timeout:g} s", now)


def kill_by_command(state: State, pk: int, now: float) -> bool:
    """Kill a job as a failure that is not tried again; False when it is not in hand any more."""
    return _end(state, pk, Verdict(KILLED, KILL), now)


def cancel_by_command(state: State, pk: int, text: str, now: float) -> bool:
    """Cancel a job, with a word on why; False when it is not in hand any more."""
    return _end(state, pk, Verdict(CANCELLED, text), now)


def _end(state: State, pk: int, verdict: Verdict, now: float) -> bool:
    """End a job by command, whatever was to become of it, unless a command has ended it."""
    job = state.jobs.get(pk)
    if job is None:
        return False
    if job.verdict is None or job.verdict.state not in (KILLED, CANCELLED):
        kill_job(state, job, verdict, now)
        state.mark_dirty(job.pool)  # what waited behind it, a rescued job not least, may go on
        _end_starting(state, job.pool, verdict.text, now)
    return True


def _end_starting(state: State, pool: Pool, why: str, now: float) -> None:
    """End the agents that are not ready yet if no job waits for them any more: they may never be."""
    starting = [slot for slot in pool.slots if slot.job is None and slot.state in (ST_PREP, ST_SPAWNED)]
    if starting and not pool.arriving and not any(_needs_agents(job, pool) for job in state.jobs.values()):
        for slot in starting:
            slot.kill(why, now)


def _needs_agents(job: Job, pool: Pool) -> bool:
    return job.pool is pool and job.verdict is None and (job.query is not None or not job.started)


def signal(state: State, pk: int, number: int) -> int:
    """Send a signal to all agents that work on a job; return how many there are."""
    slots = [slot for slot in state.slots.all if slot.job is not None and slot.job.pk == pk]
    working = [slot for slot in slots if slot.state == ST_RUNNING]
    for slot in working:
        state.emit(e.Signal(slot.number, number))
    return len(working)
