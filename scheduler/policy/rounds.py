"""What is done from time to time: rows shown as running, progress, time limits, rates."""

from scheduler.model.states import ST_RUNNING
from scheduler.policy import endings, status
from scheduler.policy.jobs import NEVER
from scheduler.policy.outcome import progress
from scheduler.policy.world import MARK_AFTER, World


def mark_running(world: World, now: float) -> None:
    """Rows that have been worked on for a moment are shown as running; a moment later those that are younger now."""
    world.mark_at = NEVER
    for slot in world.fleet.slots:
        job = slot.job
        if job is None or job.marked or job.verdict is not None:
            continue
        if slot.fed_at + MARK_AFTER <= now:
            job.marked = True
            world.ledger.marks[job.pk] = (job.pk, job.attempt)
        else:
            world.mark_at = now + MARK_AFTER


def show_progress(world: World, now: float) -> None:
    """Once a second: how far the queries in hand are."""
    world.progress_at = now + world.timers.progress_interval if world.jobs else NEVER
    for job in world.jobs.values():
        expansion = job.expansion
        if expansion is not None and expansion.opened and job.verdict is None:
            failures, expansion.failures = expansion.failures, []
            world.ledger.save(progress(job, now), failures)
    for slot in world.fleet.slots:
        if slot.state == ST_RUNNING or status.is_shown_otherwise(slot):
            world.fleet.changed.add(slot)


def end_late_jobs(world: World, now: float) -> None:
    """Fail the jobs that have run longer than they may."""
    world.limits = [job for job in world.limits if world.jobs.get(job.pk) is job and job.verdict is None]
    for job in [job for job in world.limits if job.deadline <= now]:
        endings.fail_job(world, job, f"timeout: ran longer than {job.rules.timeout:g} s", now)


def measure(world: World, now: float) -> None:
    """How many items a second each type eats: what to hold is measured in time."""
    for pool in world.pools.values():
        span = now - pool.rated_at
        if pool.finished and span > 0.001:
            pool.rate = (pool.rate + pool.finished / min(span, 1.0)) / 2
            pool.finished, pool.rated_at = 0, now
        elif span > 1.0:
            pool.rate, pool.rated_at = pool.rate / 2, now
