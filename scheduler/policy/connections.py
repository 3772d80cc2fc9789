"""Work that needs a connection under a login of its own, while none can be made: nothing of it is begun.

SQL jobs need one for their queries, whatever their type; types whose agents may send DB: lines need one for these. A
job that comes meanwhile goes back to the queue at no cost, since nothing of it began; everything else goes on. Where
some connections can be made and others not, queries share those that there are.
"""

from typing import Final

from scheduler.model.events import ConnectionKind, ConnectionsChanged, no_connection
from scheduler.model.states import NEVER
from scheduler.policy import endings
from scheduler.policy.feed import sated
from scheduler.policy.jobs import Job, Verdict
from scheduler.policy.outcome import NOT_BEGUN
from scheduler.policy.pools import Pool
from scheduler.policy.world import Lack, World

SLACK: Final = 0.5  # seconds after the next attempt, which has failed or not by then
QUERIES: Final[ConnectionKind] = "queries"
STATEMENTS: Final[ConnectionKind] = "statements"


def connections_changed(world: World, event: ConnectionsChanged, now: float) -> None:
    """Begin nothing that needs such a connection, or begin it again."""
    if event.need == QUERIES:
        world.most_queries = NEVER if event.reason is None else event.up
    if event.reason is None or event.up:
        world.lacks.pop(event.need, None)
    else:
        former = world.lacks.get(event.need)
        reason = no_connection(event.login, event.reason)
        world.lacks[event.need] = Lack(reason, former.since if former else now, now + event.seconds)
    hold_types(world)
    for job in list(world.jobs.values()):
        if (lack := lack_of(world, job)) is not None and _is_waiting(job):
            put_back(world, job, lack, now)
    world.claims.wake()
    world.stirred.update(world.pools.values())


def hold_types(world: World) -> None:
    """Let every type know whether it lacks a connection; also after a reload."""
    for pool in world.pools.values():
        pool.lacks_connection = lack_of_type(world, pool) is not None
        pool.note()
        if not pool.may_begin:
            sated(world, pool)


def lack_of_type(world: World, pool: Pool) -> Lack | None:
    """Return what keeps a type from being worked: its agents may send DB: lines, and no connection takes them."""
    return world.lacks.get(STATEMENTS) if pool.kind.db != "off" else None


def lack_of(world: World, job: Job) -> Lack | None:
    """Return what keeps a job from being begun, if it is a connection."""
    return (world.lacks.get(QUERIES) if job.expansion is not None else None) or lack_of_type(world, job.pool)


def put_back(world: World, job: Job, lack: Lack, now: float) -> None:
    """Return a job to the queue, at no cost; where its type goes on, not to be claimed before the next attempt."""
    lasted = min(now - lack.since, world.timers.reconnect_max)  # an attempt may take long
    delay = None if job.pool.lacks_connection else max(lack.until - now, lasted) + SLACK
    endings.stop_job(world, job, Verdict(NOT_BEGUN, lack.reason, delay), now)


def _is_waiting(job: Job) -> bool:
    """Say whether nothing of a job was begun, its query included."""
    return endings.is_untouched(job) and (job.expansion is None or not job.expansion.opening)
