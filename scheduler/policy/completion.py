"""How items and jobs end: done, failed, lost with their agent, killed, given back.

A job is concluded when nothing of it is in hand any more; only then is its row written. Items that failed for good are
recorded with the reason; an item whose agent died gets one more try, alone in a fresh process.
"""

from collections.abc import Callable
from heapq import heappop
from typing import Final

from scheduler.model import events as e
from scheduler.model.events import CloseQuery, JobEnded
from scheduler.model.jobs import ItemFailure, SaveRow
from scheduler.model.protocol import printable
from scheduler.model.states import QUEUED, ST_PREP, ST_RUNNING, ST_SPAWNED, TERMINAL
from scheduler.policy.entities import Job, Pool, Slot, Verdict
from scheduler.policy.outcome import BLOCKED_AGAIN, CANCELLED, FAILS, GIVEN_BACK, KILLED, judge
from scheduler.policy.query import Expansion
from scheduler.policy.state import World

FAILURE_LINE: Final = 8192  # characters kept of the line of an item that failed: there may be many
KILL: Final = "killed"  # what a killed job says


def finish(world: World, slot: Slot, job: Job, now: float) -> None:
    """The agent said OK to the item in hand."""
    took = now - slot.fed_at
    job.busy += took
    slot.items += 1
    slot.total += 1
    slot.pool.finished += 1
    if slot.blocked is not None:
        _block(world, slot, job)
    elif slot.failed is not None:
        fail_item(world, slot, job, slot.failed, final=True)
    else:
        _succeed(slot, job)
    part(world, slot, job, now)


def _succeed(slot: Slot, job: Job) -> None:
    job.done += 1 if slot.counted is None else slot.counted
    expansion = job.expansion
    if expansion is not None:
        expansion.succeeded += 1
        item = slot.item
        if expansion.progress is not None and item is not None and item.key is not None:
            expansion.progress.finish(item.number, item.key.decode("utf-8", "surrogateescape"))


def _block(world: World, slot: Slot, job: Job) -> None:
    """The item cannot be done now: feeding stops, items in hand finish, the job waits."""
    if job.verdict is None:
        job.verdict = Verdict(BLOCKED_AGAIN, f"blocked: {slot.blocked}", world.timers.blocked_delay)
    else:
        world.log(slot, "WARNING", f"BLOCKED {slot.blocked}")
    drop_waiting(world, job)


def fail_item(world: World, slot: Slot, job: Job, reason: str, *, final: bool) -> None:
    """The item in hand has failed; unless that is final it gets its second try."""
    item = slot.item
    assert item is not None
    if job.expansion is None:
        job.failure, job.done = reason, slot.counted or 0
    elif final or (slot.lone and item.number not in job.expansion.spared):
        record_failure(world, slot, job, reason)
    elif job.verdict is None:
        job.expansion.spared.discard(item.number)
        _try_again(world, slot, job, job.expansion)


def _try_again(world: World, slot: Slot, job: Job, expansion: Expansion) -> None:
    """The item in hand gets one more try, alone in a fresh process."""
    assert slot.item is not None
    expansion.again.append(slot.item)
    slot.pool.again.append((job, slot.item, slot.host.name if slot.is_bound else None))
    world.stirred.add(slot.pool)


def record_failure(world: World, slot: Slot, job: Job, reason: str) -> None:
    """The item in hand has failed for good."""
    item, expansion = slot.item, job.expansion
    assert item is not None
    assert expansion is not None
    job.failed += 1
    job.done += slot.counted or 0
    key = None if item.key is None else printable(item.key)
    if expansion.progress is not None and key is not None:
        expansion.progress.finish(item.number, key)
    line = printable(item.line.rstrip(b"\n"))
    if len(line) > FAILURE_LINE:
        line = line[:FAILURE_LINE] + "..."
    row = ItemFailure(job.pk, job.attempt, key, line, slot.host.name, slot.pool.name, slot.pid, reason)
    expansion.failures.append(row)
    world.log(slot, "ERROR", f"item failed: {reason}: {line[:200]}")


def part(world: World, slot: Slot, job: Job, now: float) -> None:
    """The slot and the job have nothing to do with each other any more."""
    job.where = slot.where
    if slot.lone and job.expansion is not None and slot.item in job.expansion.again:
        job.expansion.again.remove(slot.item)
        if slot.item not in job.expansion.again:
            job.expansion.spared.discard(slot.item.number)
    slot.lone = False
    slot.part()
    job.in_flight -= 1
    if not job.in_flight:
        conclude_if_over(world, job, now)


def conclude_if_over(world: World, job: Job, now: float) -> None:
    """Conclude a job that has nothing in hand and nothing to come."""
    if job.in_flight:
        return
    expansion = job.expansion
    if job.verdict is not None or (expansion is None and job.started) or (expansion is not None and expansion.is_fed):
        conclude(world, job, now)


def conclude(world: World, job: Job, now: float) -> None:
    """Judge a job and hand its row to the ledger; it is no longer in hand."""
    del world.jobs[job.pk]
    job.pool.live_jobs.pop(job.pk, None)
    if (queue := world.queues.get(job.queue)) is not None:
        queue.in_hand -= 1
    expansion = job.expansion
    job.lanes = {}  # they name the job: a ring that only the garbage collector would break
    if expansion is not None and expansion.opening:
        world.commands.append(CloseQuery(job.pk))
        world.expanding.discard(job.pk)
        world.stirred.add(job.pool)
        world.stirred.update(pool for pool in world.pools.values() if pool.waits_for_connection)
    row = judge(job, now, world.timers)
    if not isinstance(row, SaveRow):
        world.ledger.ends.append(row)
        _tell(world, job, "done", "all data processed")
        return
    job.pool.unread.pop(job.pk, None)
    failures = expansion.failures if expansion is not None else ()
    world.ledger.save(row, failures)
    if row.outcome in ("failed", "retry", "blocked"):
        if row.text != job.logged:
            world.log_job(job, "ERROR", row.text or row.outcome)
        world.say("warning", f"{row.outcome}: {row.text} job={job.pk} agent={job.pool.name}")
    if row.state in TERMINAL:
        _tell(world, job, row.state, row.text or "")


def end_trial(world: World) -> None:
    """No row says any more that it is tried alone: the next one may be."""
    world.trial = None
    world.stirred.update(pool for pool in world.pools.values() if pool.unread)


def _tell(world: World, job: Job, state: str, text: str) -> None:
    if world.tells_ends:
        world.commands.append(JobEnded(job.pk, job.pool.name, state, text))


# ---- ending jobs before their time
def drop_waiting(world: World, job: Job) -> None:
    """Forget the items that wait; what is in hand goes on."""
    pool, expansion = job.pool, job.expansion
    for host, lane in job.lanes.items():
        pool.lanes_of(job, host).drop(lane)
        if expansion is None:
            pool.singles -= len(lane.items)
        else:
            expansion.waiting -= len(lane.items)
        lane.items.clear()
    if expansion is not None:
        expansion.more = False
        expansion.again = []
        pool.again = type(pool.again)(entry for entry in pool.again if entry[0] is not job)


def stop_job(world: World, job: Job, verdict: Verdict, now: float) -> None:
    """End a job before its time without killing: what is in hand finishes first."""
    job.verdict = verdict
    drop_waiting(world, job)
    conclude_if_over(world, job, now)


def kill_job(world: World, job: Job, verdict: Verdict, now: float) -> None:
    """End a job before its time and kill the agents that work on it; it is concluded when they are dead."""
    job.verdict, verdict.kills = verdict, True
    drop_waiting(world, job)
    for slot in world.slots.all:
        if slot.job is job:
            world.slots.kill(slot, verdict.text, now)
    conclude_if_over(world, job, now)


def give_back(world: World, job: Job, why: str, now: float) -> None:
    """Return a job to the queue; it costs nothing."""
    stop_job(world, job, Verdict(GIVEN_BACK, why), now)


def fail_job(world: World, job: Job, why: str, now: float) -> None:
    """The job as a whole has failed, whatever its items did."""
    kill_job(world, job, Verdict(FAILS, why), now)


def forget(world: World, job: Job, now: float) -> None:
    """A job is no longer ours: end what works on it and write nothing."""
    del world.jobs[job.pk]
    job.verdict = Verdict(GIVEN_BACK, "no longer ours")
    drop_waiting(world, job)
    job.pool.live_jobs.pop(job.pk, None)
    if (queue := world.queues.get(job.queue)) is not None:
        queue.in_hand -= 1
    job.pool.unread.pop(job.pk, None)
    if world.trial is job:
        end_trial(world)
    if job.pk in world.expanding:
        world.commands.append(CloseQuery(job.pk))
        world.expanding.discard(job.pk)
    for slot in world.slots.all:
        if slot.job is job:
            slot.part()
            world.slots.kill(slot, "the row has another owner", now)


def give_back_all(world: World, why: str, now: float, which: Callable[[Job], bool]) -> None:
    """Return every job in hand for which `which` holds."""
    for job in [job for job in world.jobs.values() if which(job) and job.verdict is None]:
        give_back(world, job, why, now)


def is_untouched(job: Job) -> bool:
    """Say whether nothing of a job has been given to an agent yet."""
    return not job.started and job.verdict is None


# ---- a process has died
def lose(world: World, slot: Slot, why: str, now: float, *, interrupted: bool = False) -> None:
    """The process of a slot is dead with an item in hand, or `interrupted`: the way to it is lost."""
    job = slot.job
    if job is None:
        return
    job.busy += now - slot.fed_at
    slot.total += 1
    if job.expansion is None:
        job.done = slot.counted or 0
    if slot.death_counts:
        slot.blame(not slot.lone and (job.expansion is None or slot.items == 0))
    if job.verdict is None or job.verdict.state == GIVEN_BACK:
        is_said = slot.failed is not None or slot.blocked is not None
        if interrupted and not is_said and not world.stopping:
            _interrupt(world, slot, job, why)
        else:
            _charge(world, slot, job, why)
    part(world, slot, job, now)


def _charge(world: World, slot: Slot, job: Job, why: str) -> None:
    """A death while working is a failure, unless the daemon is going away itself."""
    if world.stopping:
        job.verdict = job.verdict or Verdict(GIVEN_BACK, "released for restart")
    elif slot.blocked is not None:
        _block(world, slot, job)
    else:
        fail_item(world, slot, job, why if slot.failed is None else slot.failed, final=slot.failed is not None)


def _interrupt(world: World, slot: Slot, job: Job, why: str) -> None:
    """A job goes back to the queue, an item of a query is tried again: so many times, for it may be their own doing."""
    if job.expansion is not None:
        job.expansion.losses += slot.lone
        if job.expansion.losses > job.rules.max_interruptions:
            record_failure(world, slot, job, why)
        elif job.verdict is None:
            if slot.item is not None and not slot.lone:
                job.expansion.spared.add(slot.item.number)
            _try_again(world, slot, job, job.expansion)
    elif job.rules.interruptions >= job.rules.max_interruptions:
        job.failure = f"interrupted more than {job.rules.max_interruptions} times: {why}"
    else:
        job.interrupted = True
        job.verdict = Verdict(GIVEN_BACK, why)


def is_back(row: SaveRow) -> bool:
    """Say whether a saved row may be claimed again at once."""
    return row.state == QUEUED and row.retry_in is None


def end_late_jobs(world: World, now: float) -> None:
    """Fail the jobs that have run longer than they may."""
    while world.limits and world.limits[0][0] <= now:
        deadline, pk = heappop(world.limits)
        job = world.jobs.get(pk)
        if job is not None and job.deadline == deadline and job.verdict is None:
            fail_job(world, job, f"timeout: ran longer than {job.rules.timeout:g} s", now)


def extend_limits(world: World, seconds: float) -> None:
    """Move the instants at which jobs are late; the order of the heap stays."""
    world.limits = [(deadline + seconds, pk) for deadline, pk in world.limits]
    for job in world.jobs.values():
        job.deadline += seconds


def kill_by_command(world: World, pk: int, now: float) -> bool:
    """Kill a job as a failure that is not tried again; False when it is not in hand any more."""
    return _end(world, pk, Verdict(KILLED, KILL), now)


def cancel_by_command(world: World, pk: int, text: str, now: float) -> bool:
    """Cancel a job, with a word on why; False when it is not in hand any more."""
    return _end(world, pk, Verdict(CANCELLED, text), now)


def _end(world: World, pk: int, verdict: Verdict, now: float) -> bool:
    """End a job so, whatever was to become of it, if it is still to be written down."""
    job = world.jobs.get(pk)
    if job is None:
        return False
    if job.verdict is None or job.verdict.state not in (KILLED, CANCELLED):
        kill_job(world, job, verdict, now)
        world.stirred.add(job.pool)  # what waited behind it, a rescued job not least, may go on
        _end_starting(world, job.pool, verdict.text, now)
    return True


def _end_starting(world: World, pool: Pool, why: str, now: float) -> None:
    """End the agents that are not ready yet if nobody waits for them any more: they may never be."""
    starting = [slot for slot in pool.slots if slot.job is None and slot.state in (ST_PREP, ST_SPAWNED)]
    if starting and not pool.arriving and not any(_needs_agents(job, pool) for job in world.jobs.values()):
        for slot in starting:
            world.slots.kill(slot, why, now)


def _needs_agents(job: Job, pool: Pool) -> bool:
    return job.pool is pool and job.verdict is None and (job.expansion is not None or not job.started)


def signal(world: World, pk: int, number: int) -> int:
    """Send a signal to all agents that work on a job; give how many there are."""
    slots = [slot for slot in world.slots.all if slot.job is not None and slot.job.pk == pk]
    working = [slot for slot in slots if slot.state == ST_RUNNING]
    world.commands.extend(e.Signal(slot.number, number) for slot in working)
    return len(working)
