"""Whether this daemon gives out work: serving its group, past its lease, draining, stopping, disowned."""

from scheduler.model import events as e
from scheduler.model.states import NEVER, ST_PREP, ST_READY, ST_SPAWNED
from scheduler.policy import endings
from scheduler.policy.world import World


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
        endings.forget(world, job, now)
    for slot in world.fleet.slots:
        world.fleet.kill(slot, "the group has another owner", now)
    world.ledger, world.trial = world.ledger.disown(), None


def drain(world: World, event: e.Drain, now: float) -> None:
    """Give back what has not begun; queries with a key stop at once, others finish their slice, or not."""
    world.draining += 1
    world.steps_down = False
    endings.give_back_all(world, "released for restart", now, endings.is_untouched)
    for job in [job for job in world.jobs.values() if job.expansion is not None and job.verdict is None]:
        if job.rules.key is not None or world.draining > 1 or not job.pool.may_begin:
            endings.give_back(world, job, "released for restart", now)
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
            endings.give_back(world, job, "released for restart", now)
    for slot in world.fleet.slots:
        world.fleet.kill(slot, why, now)


def _end_idle(world: World, now: float) -> None:
    for slot in world.fleet.slots:
        if slot.job is None and slot.state in (ST_READY, ST_SPAWNED, ST_PREP):
            world.fleet.kill(slot, "the scheduler drains", now)
