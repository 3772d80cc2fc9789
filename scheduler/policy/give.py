"""One agent gets its next item: of the lane whose turn it is, or one whose first agent died.

What is given may be put back as long as it was not sent, or once the process is dead that it was sent to.
"""

from heapq import heappush
from typing import Final

from scheduler.model.events import Fetch
from scheduler.model.expand import Item
from scheduler.model.states import NEVER
from scheduler.policy.claims import is_urgent
from scheduler.policy.jobs import Job
from scheduler.policy.pools import SecondTry, Slot
from scheduler.policy.turns import Lane, Turns
from scheduler.policy.world import MARK_AFTER, World

_FEW: Final = 100  # limits of jobs that have ended are kept up to here


def next_turns(slot: Slot) -> Turns[Job] | None:
    """Give the lanes this slot takes from next: of its own host or for any host."""
    anywhere, here = slot.any.first, slot.bound.first
    if not here:
        return slot.any if anywhere else None
    if not anywhere:
        return slot.bound
    a, b = anywhere[0], here[0]
    return slot.bound if (b.job.rank, b.turn) <= (a.job.rank, a.turn) else slot.any


def give(world: World, slot: Slot, turns: Turns[Job], now: float) -> bytes:
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
    return next((entry for entry in slot.pool.again if _suits(slot, entry)), None)


def startable_try(slot: Slot) -> SecondTry | None:
    """Give the same for a slot that has just been chosen: an urgent place is for urgent work only."""
    fits = (entry for entry in slot.pool.again if _suits(slot, entry))
    return next((entry for entry in fits if not slot.host.is_over or is_urgent(entry[0])), None)


def _suits(slot: Slot, entry: SecondTry) -> bool:
    job, _, host = entry
    return slot.pool.lanes_of(job, host).suits(slot.host.name)


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


def put_back(world: World, job: Job, item: Item, host: str | None) -> None:
    """An item that was not worked waits again, before the others of its lane."""
    lane = job.lanes.get(host)
    if lane is None:
        lane = job.lanes[host] = Lane(job, job.rank, job.rules.submitter, host, is_single=job.expansion is None)
    if not lane.items:
        job.pool.lanes_of(job, host).add(lane)
    lane.items.appendleft(item)
    if job.expansion is None:
        job.pool.singles += 1
        job.started, job.deadline = False, NEVER  # its time limit begins anew
    else:
        job.expansion.waiting += 1
    world.stirred.add(job.pool)
