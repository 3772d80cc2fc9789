"""Handing work to agents: who gets the next item, where a new agent is started, who must make room.

The order: what is in hand, on agents that live, by urgency and letter, jobs of one type in turn. Second tries of items
whose agent died go to a fresh process, alone, before anything else.
"""

from heapq import heappush
from typing import Final

from scheduler.errors import AgentError
from scheduler.model.events import Fetch, Say, Send, Spawn
from scheduler.model.expand import Item, fill_template
from scheduler.model.states import CHOSEN, FED, ST_FREE, ST_PREP, ST_READY, ST_SPAWNED
from scheduler.policy.claims import is_urgent
from scheduler.policy.jobs import NEVER, Job
from scheduler.policy.pools import Pool, SecondTry, Slot
from scheduler.policy.room import find_room
from scheduler.policy.turns import Lane, Turns
from scheduler.policy.world import MARK_AFTER, World

_FEW: Final = 100  # limits of jobs that have ended are kept up to here
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


def second_try(slot: Slot) -> SecondTry | None:
    """Give the item whose first agent died that waits for a fresh process on this slot's host, if any."""
    return next((entry for entry in slot.pool.again if entry[2] in (None, slot.host.name)), None)


def _startable_try(slot: Slot) -> SecondTry | None:
    """Give the same for a slot that has just been chosen: an urgent place is for urgent work only."""
    fits = (entry for entry in slot.pool.again if entry[2] in (None, slot.host.name))
    return next((entry for entry in fits if not slot.host.is_over or is_urgent(entry[0])), None)


def give_again(slot: Slot, entry: SecondTry, now: float) -> bytes:
    """Give a fresh process an item whose first agent died."""
    slot.pool.again.remove(entry)
    job, item, host = entry
    slot.job, slot.item, slot.fed_at = job, item, now
    slot.is_bound, slot.lone = host is not None, True
    job.in_flight += 1
    return item.line


def begin(world: World, job: Job, now: float) -> None:
    """The first item of a job goes to an agent."""
    job.started = True
    world.begun.append((now, job))
    world.mark_at = min(world.mark_at, now + MARK_AFTER)
    if job.rules.timeout is not None and job.deadline == NEVER:
        job.deadline = now + job.rules.timeout
        heappush(world.limits, (job.deadline, job.pk))
        if len(world.limits) > 2 * len(world.jobs) + _FEW:  # most have ended
            world.limits = sorted((each.deadline, pk) for pk, each in world.jobs.items() if each.deadline < NEVER)


def fetch_more(world: World, job: Job) -> None:
    """Ask for more rows, as many as a batch may have of rows of this size."""
    world.may_want = True  # the last row may be out: others of this type can be claimed
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


def release(world: World, lane: Lane) -> int:
    """Let the rows of a lane wait for any host instead of theirs; give how many they are."""
    job, moved = lane.job, list(lane.items)
    assert job.expansion is not None
    assert lane.host is not None
    job.pool.bound[lane.host].drop(lane)
    del job.lanes[lane.host]
    job.expansion.waiting -= len(moved)
    enqueue(world, job, moved, None)
    return len(moved)


def dispatch(world: World, pool: Pool, unopened: Job | None, now: float) -> None:
    """Feed idle agents, fetch for those that stay idle, start agents for what still waits, `unopened` queries too."""
    _feed_idle(world, pool, now)
    is_hungry = any(pool.idle.values())
    for job in pool.live_jobs.values():
        expansion = job.expansion
        if expansion is None or not expansion.opened:
            continue
        if expansion.waiting <= (HOARD * expansion.batch if is_hungry else expansion.low):
            fetch_more(world, job)
    _start_agents(world, pool, unopened, now)


def _feed_idle(world: World, pool: Pool, now: float) -> None:
    fleet = world.fleet
    for host, idle in pool.idle.items():
        for slot in idle[::-1]:
            if not (pool.again or pool.any.first or pool.bound[host].first):
                break  # nobody of this host could be given anything
            again = second_try(slot) if pool.again and not slot.items else None
            turns = next_turns(slot)
            if again is None and turns is None:
                continue
            if must_leave(slot, again[0] if again is not None else first_job(turns)):
                leave(world, slot, now)
                continue
            if again is not None:
                line = give_again(slot, again, now)
            else:
                assert turns is not None
                line = give(world, slot, turns, now)
            idle.remove(slot)
            del slot.host.idle[slot]
            fleet.fire(slot, FED, now)
            slot.is_unsent = True
            world.commands.append(Send(slot.number, line))


def first_job(turns: Turns | None) -> Job | None:
    """Give the job whose turn it is."""
    return turns.first[0].job if turns is not None and turns.first else None


def must_leave(slot: Slot, job: Job | None) -> bool:
    """Say whether an agent that could take another item has to go instead."""
    host = slot.host
    if not host.is_tight:
        return False
    if not host.is_open:
        return True
    if host.is_over and (job is None or not is_urgent(job)):
        return True
    return slot.items > 0 and host.yields_to not in (None, slot.pool)  # one item at least, or nobody gets anywhere


def leave(world: World, slot: Slot, now: float) -> None:
    """End an agent that has to go; it is READY."""
    host = slot.host
    if host.yields_to not in (None, slot.pool):
        host.yielded_at = now
        host.kept_for = host.yields_to
        host.yield_to(None)
        why = "room for another type that has waited long enough"
    else:
        why = "urgent slot no longer needed" if host.enabled else "host disabled"
    world.fleet.kill(slot, why, now)


def _start_agents(world: World, pool: Pool, unopened: Job | None, now: float) -> None:
    """One look at each group of lanes: second tries, those bound to a host, those for any host."""
    for host in {at for _, _, at in pool.again}:
        _recycle(world, pool, host, now)
    if not any(pool.free.values()):
        sated(world, pool)
        return
    pool.starving_since = min(pool.starving_since, now)
    starving = False
    for host in (*pool.bound, None):
        turns = pool.any if host is None else pool.bound[host]
        again = sum(at == host for _, _, at in pool.again)
        if turns.first or again:
            starving |= _start_for(world, pool, host, turns, again, now)
    if unopened is not None and not starving:
        starving = _find_room(world, pool, unopened.host, unopened, now) is None
    if not starving:
        sated(world, pool)


def sated(world: World, pool: Pool) -> None:
    """A type that does not starve any more is promised nothing."""
    pool.starving_since = NEVER
    for host in world.hosts.values():
        if host.yields_to is pool:
            host.yield_to(None)
        if host.kept_for is pool:
            host.kept_for = None
            world.stirred |= world.starving


def _start_for(world: World, pool: Pool, host: str | None, turns: Turns, again: int, now: float) -> bool:
    """Start agents for lanes of one host (None: any); True when some work finds no room, or no start this turn."""
    coming = sum(slot.state in (ST_PREP, ST_SPAWNED) and host in (None, slot.host.name) for slot in pool.slots)
    while coming < again or has_more_than(turns, 0 if pool.is_exec else coming - again):
        job = first_job(turns) or next(job for job, _, at in pool.again if at == host)
        if world.starting >= world.most_starts:
            world.unstarted.add(pool)
            world.start_at = now
            return True
        slot = _find_room(world, pool, host, job, now)
        if slot is None:
            return True
        _start(world, slot, turns, now)
        coming += 1
    return False


def _find_room(world: World, pool: Pool, host: str | None, job: Job, now: float) -> Slot | None:
    """Give a slot to start an agent in; None, and the pool starves, while room is still to be made."""
    room = find_room(pool, host, is_urgent(job), now, world.timers.min_idle)
    if room.slot is not None:
        return room.slot
    if room.victim is not None:
        room.victim.host.yielded_at = now
        room.victim.host.kept_for = pool
        world.fleet.kill(room.victim, f"room for {pool.name}", now)
    elif room.yields is not None:
        room.yields.yield_to(pool)
    world.room_at = min(world.room_at, room.until)
    world.starving.add(pool)
    return None


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
    world.starting += 1
    slot.serial += 1
    slot.spawns += 1
    slot.born = now
    if slot.host.kept_for is pool:
        slot.host.kept_for = None
    world.fleet.fire(slot, CHOSEN, now)
    if not pool.is_exec:
        world.commands.append(Spawn(slot.number, slot.serial, pool.name, slot.host.name))
        return
    again = _startable_try(slot)
    if again is not None:
        give_again(slot, again, now)
    else:
        give(world, slot, turns, now)
    job, item = slot.job, slot.item
    assert job is not None
    assert item is not None
    names = job.expansion.names if job.expansion is not None else ()
    try:
        argv = tuple(fill_template(pool.kind.command, job.pk, item, names))
    except AgentError as error:
        world.commands.append(Say("warning", f"job={job.pk}: {error}"))
        argv = (b"",)  # starts nothing, which fails the item; why stands in the log
    world.commands.append(
        Spawn(slot.number, slot.serial, pool.name, slot.host.name, argv, item.line, job.pk, job.attempt)
    )


def _recycle(world: World, pool: Pool, host: str | None, now: float) -> None:
    """A second try waits for a host (None: any): end an idle agent there if no fresh process can come otherwise."""
    own = [slot for slot in pool.slots if host in (None, slot.host.name)]
    if any(slot.doom or slot.state in (ST_PREP, ST_SPAWNED) for slot in own):
        return
    if any(slot.state == ST_FREE and slot.host.has_room(urgent=False) for slot in own):
        return
    idle = [slot for slot in own if slot.state == ST_READY]
    if idle:
        world.fleet.kill(idle[0], "a fresh process is needed", now)
