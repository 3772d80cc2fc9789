"""What a command wants of what is in hand: jobs killed, cancelled or signalled, slots tried again at once."""

from collections.abc import Iterable
from typing import Final

from scheduler.model import events as e
from scheduler.model.states import ST_FAIL, ST_PREP, ST_RUNNING, ST_SPAWNED, THAWED
from scheduler.policy import endings
from scheduler.policy.jobs import Job, Verdict
from scheduler.policy.outcome import CANCELLED, KILLED
from scheduler.policy.pools import Pool
from scheduler.policy.processes import thaw_pool
from scheduler.policy.world import World

KILL: Final = "killed"  # what a killed job says


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
        endings.kill_job(world, job, verdict, now)
        world.stirred.add(job.pool)  # what waited behind it, a rescued job not least, may go on
        _end_starting(world, job.pool, verdict.text, now)
    return True


def _end_starting(world: World, pool: Pool, why: str, now: float) -> None:
    """End the agents that are not ready yet if nobody waits for them any more: they may never be."""
    starting = [slot for slot in pool.slots if slot.job is None and slot.state in (ST_PREP, ST_SPAWNED)]
    if starting and not pool.arriving and not any(_needs_agents(job, pool) for job in world.jobs.values()):
        for slot in starting:
            world.fleet.kill(slot, why, now)


def _needs_agents(job: Job, pool: Pool) -> bool:
    return job.pool is pool and job.verdict is None and (job.expansion is not None or not job.started)


def signal(world: World, pk: int, number: int) -> int:
    """Send a signal to all agents that work on a job; give how many there are."""
    slots = [slot for slot in world.fleet.slots if slot.job is not None and slot.job.pk == pk]
    working = [slot for slot in slots if slot.state == ST_RUNNING]
    world.commands.extend(e.Signal(slot.number, number) for slot in working)
    return len(working)


def thaw(world: World, pools: Iterable[Pool], now: float) -> int:
    """Try the slots again that have failed; give how many there are."""
    thawed = 0
    for pool in pools:
        pool.failed_starts.clear()
        for slot in pool.slots:
            slot.births = []
            if slot.state == ST_FAIL:
                world.fleet.fire(slot, THAWED, now)
                thawed += 1
        thaw_pool(world, pool)
        world.stirred.add(pool)
    return thawed
