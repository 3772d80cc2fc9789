"""What is done from time to time: rows shown as running, progress, time limits, rates."""

from heapq import heappop

from scheduler.model.states import NEVER, ST_RUNNING
from scheduler.policy import endings, standing, status
from scheduler.policy.feed import release
from scheduler.policy.jobs import IN_PROGRESS, Expansion, Job
from scheduler.policy.outcome import progress
from scheduler.policy.supply import has_connection
from scheduler.policy.world import MARK_AFTER, World


def mark_running(world: World, now: float) -> None:
    """Rows that have been worked on for a moment are shown as running; a moment later those that are younger now."""
    begun = world.begun
    while begun and begun[0][0] + MARK_AFTER <= now:
        _, job = begun.popleft()
        if world.jobs.get(job.pk) is job and job.started and not job.marked and job.verdict is None:
            job.marked = True
            world.ledger.marks[job.pk] = (job.pk, job.attempt)
    world.mark_at = now + MARK_AFTER if begun else NEVER


def show_progress(world: World, now: float) -> None:
    """Once a second: how far the queries in hand are, and lines of which agents say ItemsProcessed."""
    world.progress_at = now + world.timers.progress_interval if world.jobs else NEVER
    counted = _counted(world)
    for job in world.jobs.values():
        expansion, count = job.expansion, counted.get(job.pk, 0)
        if job.verdict is not None or job.pk in job.pool.marking:
            continue
        if expansion is None:
            if count != job.shown:
                world.ledger.save(progress(job, now, IN_PROGRESS, count), ())
            continue
        said, expansion.said = expansion.said, _phase(world, job, expansion)
        if expansion.opened or expansion.said != said:
            failures, expansion.failures = expansion.failures, []
            world.ledger.save(progress(job, now, expansion.said, count), failures)
    spill(world, now)
    standing.hold_if_full(world)
    for slot in world.fleet.slots:
        if slot.state == ST_RUNNING or status.is_shown_otherwise(slot):
            world.fleet.changed.add(slot)


def _counted(world: World) -> dict[int, int]:
    """Return what agents have counted so far of the items that they work on, by job."""
    counted: dict[int, int] = {}
    for slot in world.fleet.slots:
        if slot.counted and slot.job is not None:
            counted[slot.job.pk] = counted.get(slot.job.pk, 0) + slot.counted
    return counted


def _phase(world: World, job: Job, expansion: Expansion) -> str:
    """Give what a query in hand waits for before it has rows, as far as agents have nothing to do with it."""
    if expansion.opened or (not expansion.opening and has_connection(world, job.pool)):
        return IN_PROGRESS
    return "its query is running" if expansion.opening else "waits for an expansion connection"


def spill(world: World, now: float) -> None:
    """Rows that their host has not served for so long go to any host, where their type allows it."""
    for pool in world.pools.values():
        if pool.kind.spill:
            waiting = [lane for turns in pool.bound.values() for lane in turns if lane.job.host is None]
            for lane in waiting:
                if lane.seen != lane.turn:
                    lane.seen, lane.seen_at = lane.turn, now
                elif now - lane.seen_at >= pool.kind.spill:
                    world.spilled += release(world, lane)


def end_late_jobs(world: World, now: float) -> None:
    """Fail the jobs that have run longer than they may."""
    while world.limits and world.limits[0][0] <= now:
        deadline, pk = heappop(world.limits)
        job = world.jobs.get(pk)
        if job is not None and job.deadline == deadline and job.verdict is None:
            endings.fail_job(world, job, f"timeout: ran longer than {job.rules.timeout:g} s", now)


def extend_limits(world: World, seconds: float) -> None:
    """Move the instants at which jobs are late; the order of the heap stays."""
    world.limits = [(deadline + seconds, pk) for deadline, pk in world.limits]
    for job in world.jobs.values():
        job.deadline += seconds


def measure(world: World, now: float) -> None:
    """How many items a second each type eats: what to hold is measured in time."""
    for pool in world.pools.values():
        span = now - pool.rated_at
        if pool.finished and span > 0.001:
            pool.rate = (pool.rate + pool.finished / min(span, 1.0)) / 2
            pool.finished, pool.rated_at = 0, now
        elif span > 1.0:
            pool.rate, pool.rated_at = pool.rate / 2, now
