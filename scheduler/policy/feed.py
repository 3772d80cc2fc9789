"""Handing work to agents: who gets the next item, where a new agent is started, who must make room.

The order: what is in hand, on agents that live, by urgency and letter, jobs of one type in turn. Second tries of items
whose agent died go to a fresh process, alone, before anything else.
"""

from typing import Final

from scheduler.errors import AgentError
from scheduler.model.events import Fetch, Say, Send, Spawn
from scheduler.model.expand import Item, fill_template
from scheduler.model.states import CHOSEN, FED, ST_PREP, ST_SPAWNED
from scheduler.policy.claims import is_urgent
from scheduler.policy.jobs import NEVER, Job
from scheduler.policy.pools import Pool, Slot
from scheduler.policy.room import find_room
from scheduler.policy.turns import Lane, Turns
from scheduler.policy.world import MARK_AFTER, World

HOARD: Final = 20  # batches of rows held for busy hosts while others have nothing to do


# ---- one agent gets its next item


def next_turns(slot: Slot) -> Turns | None:
    """Give the lanes this slot takes from next: of its own host or for any host."""
    anywhere, here = slot.any.first, slot.bound.first
    if not here:
        return slot.any if anywhere else None
    if not anywhere:
        return slot.bound
    a, b = anywhere[0], here[0]
    return slot.bound if (b.job.rank, b.turn) <= (a.job.rank, a.turn) else slot.any


def give(world: World, slot: Slot, turns: Turns, now: float) -> bytes:
    """Take the next item from these lanes for this slot and give its line."""
    lane = turns.first[0]
    item = lane.items.popleft()
    world.turn = turn = world.turn + 1
    turns.served(turn)
    job = lane.job
    slot.job = job
    slot.item = item
    slot.fed_at = now
    slot.is_bound = turns is slot.bound
    job.in_flight += 1
    if not job.started:
        begin(world, job, now)
    expansion = job.expansion
    if expansion is None:
        slot.pool.singles -= 1
    else:
        expansion.waiting -= 1
        if expansion.waiting <= expansion.low:
            fetch_more(world, job)
    return item.line


def give_again(world: World, slot: Slot, now: float) -> bytes | None:
    """Give a fresh process an item whose first agent died, if one waits for its host."""
    for entry in slot.pool.again:
        job, item, host = entry
        if host in (None, slot.host.name):
            slot.pool.again.remove(entry)
            slot.job, slot.item, slot.fed_at = job, item, now
            slot.is_bound, slot.lone = host is not None, True
            job.in_flight += 1
            return item.line
    return None


def begin(world: World, job: Job, now: float) -> None:
    """The first item of a job goes to an agent."""
    job.started = True
    world.mark_at = min(world.mark_at, now + MARK_AFTER)
    if job.rules.timeout is not None:
        job.deadline = now + job.rules.timeout
        world.limits.append(job)


def fetch_more(world: World, job: Job) -> None:
    """Ask for more rows, as many as a batch may have of rows of this size."""
    expansion = job.expansion
    if expansion is None or not expansion.more or expansion.fetching or job.verdict is not None:
        return
    expansion.fetching = True
    world.commands.append(Fetch(job.pk, expansion.batch))


# ---- a pool is looked at


def enqueue(world: World, job: Job, items: list[Item], host: str | None) -> None:
    """Let items wait for agents of a host, or of any."""
    lane = job.lanes.get(host)
    if lane is None:
        lane = job.lanes[host] = Lane(job, host)
    if not lane.items:
        world.turn = lane.turn = world.turn + 1
        turns = job.pool.any if host is None else job.pool.bound[host]
        lane.items.extend(items)
        turns.add(lane)
    else:
        lane.items.extend(items)
    if job.expansion is None:
        job.pool.singles += len(items)
    else:
        job.expansion.waiting += len(items)
    world.stirred.add(job.pool)


def dispatch(world: World, pool: Pool, now: float) -> None:
    """Feed idle agents, fetch for those that stay idle, start agents for what still waits."""
    if not world.feeding or not pool.enabled:
        return
    _feed_idle(world, pool, now)
    is_hungry = any(pool.idle.values())
    for job in pool.live_jobs.values():
        expansion = job.expansion
        if expansion is None or not expansion.opened:
            continue
        if expansion.waiting <= (HOARD * expansion.batch if is_hungry else expansion.low):
            fetch_more(world, job)
    _start_agents(world, pool, now)


def _feed_idle(world: World, pool: Pool, now: float) -> None:
    fleet = world.fleet
    for idle in pool.idle.values():
        for slot in idle[::-1]:
            turns = next_turns(slot)
            if turns is None and not (pool.again and not slot.items):
                continue
            if must_leave(slot, turns):
                leave(world, slot, now)
                continue
            line = give_again(world, slot, now) if pool.again and not slot.items else None
            if line is None and turns is not None:
                line = give(world, slot, turns, now)
            if line is not None:
                idle.remove(slot)
                fleet.fire(slot, FED, now)
                world.commands.append(Send(slot.number, line))


def must_leave(slot: Slot, turns: Turns | None) -> bool:
    """Say whether an agent that could take another item has to go instead."""
    host = slot.host
    if not host.is_tight:
        return False
    if not host.enabled:
        return True
    if host.is_over and (turns is None or not is_urgent(turns.first[0].job)):
        return True
    return host.yields_to not in (None, slot.pool)


def leave(world: World, slot: Slot, now: float) -> None:
    """End an agent that has to go; it is READY."""
    host = slot.host
    if host.yields_to not in (None, slot.pool):
        host.yielded_at = now
        host.yield_to(None)
        why = "room for another type that has waited long enough"
    else:
        why = "urgent slot no longer needed" if host.enabled else "host disabled"
    world.fleet.kill(slot, why, now)


def _start_agents(world: World, pool: Pool, now: float) -> None:
    """One look at each group of lanes: second tries, those bound to a host, those for any host."""
    if not any(pool.free.values()):
        if pool.again:
            _recycle(world, pool, now)
        return
    pool.starving_since = min(pool.starving_since, now)
    starving = False
    for host in (*pool.bound, None):
        turns = pool.any if host is None else pool.bound[host]
        again = sum(at == host for _, _, at in pool.again)
        if turns.first or again:
            starving |= _start_for(world, pool, host, turns, again, now)
    if not starving:
        pool.starving_since = NEVER


def _start_for(world: World, pool: Pool, host: str | None, turns: Turns, again: int, now: float) -> bool:
    """Start agents for lanes of one host (None: any); True when some work finds no room."""
    coming = sum(slot.state in (ST_PREP, ST_SPAWNED) and host in (None, slot.host.name) for slot in pool.slots)
    while coming < again or has_more_than(turns, 0 if pool.is_exec else coming - again):
        urgent = any(is_urgent(lane.job) for lane in list(turns.first)[:1])
        room = find_room(pool, host, urgent, world.pools.values(), now, world.timers.min_idle)
        if room.slot is not None:
            _start(world, room.slot, turns, now)
            coming += 1
            continue
        if room.victim is not None:
            room.victim.host.yielded_at = now
            world.fleet.kill(room.victim, f"room for {pool.name}", now)
        elif room.yields is not None:
            room.yields.yield_to(pool)
        world.room_at = min(world.room_at, room.until)
        world.starving.add(pool)
        return True
    return False


def has_more_than(turns: Turns, count: int) -> bool:
    """Say whether more than `count` items wait, without counting them all."""
    for lane in turns:
        count -= len(lane.items)
        if count < 0:
            return True
    return False


def _start(world: World, slot: Slot, turns: Turns, now: float) -> None:
    """Start the process of a slot; an exec agent gets its item with it."""
    pool = slot.pool
    slot.serial += 1
    slot.spawns += 1
    slot.born = now
    world.fleet.fire(slot, CHOSEN, now)
    if not pool.is_exec:
        world.commands.append(Spawn(slot.number, slot.serial, pool.name, slot.host.name))
        return
    if give_again(world, slot, now) is None:
        give(world, slot, turns, now)
    job, item = slot.job, slot.item
    assert job is not None
    assert item is not None
    names = job.expansion.names if job.expansion is not None else ()
    try:
        argv = tuple(fill_template(pool.kind.command, job.pk, item, names))
    except AgentError as error:
        world.commands.append(Say("warning", f"job={job.pk}: {error}"))
        argv = (b"",)  # cannot be started: the item fails with that reason
    world.commands.append(
        Spawn(slot.number, slot.serial, pool.name, slot.host.name, argv, item.line, job.pk, job.attempt)
    )


def _recycle(world: World, pool: Pool, now: float) -> None:
    """Second tries wait and every slot has an agent: end an idle one, so that a fresh process can take its place."""
    if any(slot.state in (ST_PREP, ST_SPAWNED) or slot.doom for slot in pool.slots):
        return
    idle = [slot for slots in pool.idle.values() for slot in slots]
    if idle:
        world.fleet.kill(idle[0], "a fresh process is needed", now)
