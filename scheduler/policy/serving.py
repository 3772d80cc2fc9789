"""Whether work is given out: the group is ours, its lease has not passed, no drain or stop, connections can be made.

SQL jobs need a connection under a login of its own for their queries, whatever their type; types whose agents may send
DB: lines need one for these. While none can be made nothing of such work is begun. A job that comes meanwhile goes back
to the queue at no cost, since nothing of it began; everything else goes on. Where some connections can be made and
others not, queries share those that there are.
"""

from typing import Final

from scheduler.model import events as e
from scheduler.model.events import ConnectionKind, ConnectionsChanged, no_connection
from scheduler.model.states import NEVER, ST_PREP, ST_READY, ST_SPAWNED
from scheduler.policy import completion
from scheduler.policy.dispatch import sated
from scheduler.policy.entities import Job, Pool, Verdict
from scheduler.policy.outcome import NOT_BEGUN
from scheduler.policy.state import Lack, World

SLACK: Final = 0.5  # seconds after the next attempt, which has failed or not by then
QUERIES: Final[ConnectionKind] = "queries"
STATEMENTS: Final[ConnectionKind] = "statements"


def serve(world: World, event: e.Serve, now: float) -> None:
    """The group is ours until an instant: give out work, unless we are ending."""
    world.serving_until = event.until
    go_on(world, now)


def lapsed(world: World) -> None:
    """Give out nothing until the lease is renewed, for it has run out by the clock of the database."""
    if world.feeding:
        world.say("warning", "the lease has run out by the clock of the database: it is renewed now")
    world.feeding = False
    world.serving_until = -NEVER
    world.commands.append(e.RenewLease())


def go_on(world: World, now: float) -> None:
    """Give out work again, if nothing is in the way."""
    if not world.feeding and _may_feed(world, now):
        world.feeding = True
        world.claims.wake()
        world.stirred.update(world.pools.values())


def judge_lease(world: World, now: float) -> None:
    """Give out no work past the lease, by the clock, however long this process did not run."""
    if world.feeding and now >= world.serving_until:
        world.feeding = False
        world.say("warning", "past the lease: no agent is given work until it is renewed")


def hold_if_full(world: World) -> None:
    """Give out no work while too much of what was done waits to be saved."""
    if world.feeding and world.ledger.is_full:
        world.feeding = False
        size = world.ledger.result_size >> 20
        world.say("warning", f"{size} MiB of results wait to be saved: no agent is given work until half of it is")


def disowned(world: World, event: e.LeaseLost, now: float) -> None:
    """Another daemon owns the group and has our rows: kill the children, forget the rows, save nothing of them."""
    world.feeding = world.over = False
    world.serving_until = -NEVER
    if world.steps_down:
        world.steps_down = world.stopping = False
    for job in list(world.jobs.values()):
        completion.forget(world, job, now)
    for slot in world.slots.all:
        world.slots.kill(slot, "the group has another owner", now)
    world.ledger, world.trial = world.ledger.disown(), None


def drain(world: World, event: e.Drain, now: float) -> None:
    """Give back what has not begun; queries with a key stop at once, others finish their slice, or not."""
    world.draining += 1
    world.steps_down = False
    completion.give_back_all(world, "released for restart", now, completion.is_untouched)
    for job in [job for job in world.jobs.values() if job.expansion is not None and job.verdict is None]:
        if job.rules.key is not None or world.draining > 1 or not job.pool.may_begin:
            completion.give_back(world, job, "released for restart", now)
    world.feeding = _may_feed(world, now)
    _end_idle(world, now)


def wind_down(world: World, now: float) -> None:
    """While draining, agents are fed for slices only; when the last slice is over those without an item go."""
    if not _has_slices(world):
        world.feeding = False
        _end_idle(world, now)


def _may_feed(world: World, now: float) -> bool:
    wanted = not world.stopping and (not world.draining or _has_slices(world))
    return wanted and world.serving_until > now and not world.ledger.is_full


def _has_slices(world: World) -> bool:
    return any(job.expansion is not None and job.verdict is None for job in world.jobs.values())


def stop(world: World, event: e.Stop, now: float) -> None:
    """Kill the children and give their rows back."""
    world.steps_down = False
    _let_go(world, "the scheduler stops", now)


def step_down(world: World, now: float) -> bool:
    """The same, then let another daemon have the group; False when we are ending anyway."""
    if world.draining or (world.stopping and not world.steps_down):
        return False
    world.steps_down = True
    world.say("info", "stepping down: agents are killed, their rows given back")
    _let_go(world, "the group is given up", now)
    return True


def _let_go(world: World, why: str, now: float) -> None:
    world.stopping = True
    world.feeding = False
    for job in list(world.jobs.values()):
        if job.verdict is None:
            completion.give_back(world, job, "released for restart", now)
    for slot in world.slots.all:
        world.slots.kill(slot, why, now)


def _end_idle(world: World, now: float) -> None:
    for slot in world.slots.all:
        if slot.job is None and slot.state in (ST_READY, ST_SPAWNED, ST_PREP):
            world.slots.kill(slot, "the scheduler drains", now)


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
    completion.stop_job(world, job, Verdict(NOT_BEGUN, lack.reason, delay), now)


def _is_waiting(job: Job) -> bool:
    """Say whether nothing of a job was begun, its query included."""
    return completion.is_untouched(job) and (job.expansion is None or not job.expansion.opening)
