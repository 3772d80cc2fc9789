"""One agent gets its next items: from the lanes whose turn it is, or one whose first agent died; prefetched ones too.

What was assigned may be put back as long as it was not sent, or once the process is dead that it was sent to.

An agent whose type has a `window` gets its next lines before it has asked for them. It works them one after the other
and says OK to each in turn, so what it says is about the line that it got first. That one is the item in hand; those
behind it are `slot.ahead`. What was sent cannot be taken back: a job that is killed while its line is prefetched ends
when the agent comes to that, and dies, or has died before. What a dead agent had prefetched is not to blame: rows of a
query go to others, a one-parameter job back to the queue. An agent gets no more than its share of what waits, or
others would be idle, and never more bytes than a pipe takes, so that an agent that reads only when it is done is not
taken for one that does not read.
"""

from heapq import heappush
from typing import Final

from scheduler.model.events import Fetch
from scheduler.model.expand import Item
from scheduler.model.states import KEEP, NEVER, NEXT
from scheduler.policy.completion import conclude_if_over
from scheduler.policy.entities import Job, Pool, SecondTry, Slot, Verdict, is_urgent
from scheduler.policy.outcome import GIVEN_BACK
from scheduler.policy.run_queue import Lane, Turns
from scheduler.policy.state import MARK_AFTER, World

_FEW: Final = 100  # limits of jobs that have ended are kept up to here
AHEAD_BYTES: Final = 16_384  # a quarter of what a pipe holds


def enqueue(world: World, job: Job, items: list[Item], host: str | None) -> None:
    """Let items wait for agents of a host, or of any."""
    pool, lane = job.pool, job.lanes.get(host)
    if lane is None:
        lane = job.lanes[host] = Lane(job, job.rank, job.rules.submitter, host, is_single=job.expansion is None)
    if not lane.items:
        world.turn = lane.turn = world.turn + 1
        turns = pool.any if host is None and pool.doors is None else pool.lanes_of(job, host)
        turns.add(lane)
    lane.items.extend(items)
    if job.expansion is None:
        pool.singles += len(items)
    else:
        job.expansion.waiting += len(items)
    world.stirred.add(pool)


def release(world: World, lane: Lane[Job]) -> int:
    """Let the rows of a lane wait for any host instead of theirs; give how many they are."""
    job, moved = lane.job, list(lane.items)
    assert job.expansion is not None
    assert lane.host is not None
    job.pool.bound[lane.host].drop(lane)
    del job.lanes[lane.host]
    job.expansion.waiting -= len(moved)
    enqueue(world, job, moved, None)
    return len(moved)


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


def fill(world: World, slot: Slot, now: float) -> bytes:
    """Give the lines to send ahead now, once half of those before are used up."""
    ahead, most = slot.ahead, slot.pool.kind.window - 1
    if ahead is None or 2 * len(ahead) > most or not _may_have_more(world, slot):
        return b""
    room = min(most - len(ahead), _spare(slot.pool) // len(slot.pool.slots))
    size = sum(len(item.line) for _, item, _ in ahead)
    lines: list[bytes] = []
    while len(lines) < room and (turns := next_turns(slot)) is not None:
        size += len(turns.first[0].items[0].line)
        if size > AHEAD_BYTES:
            break
        lines.append(_give_ahead(world, slot, turns, now))
    return b"".join(lines)


def _may_have_more(world: World, slot: Slot) -> bool:
    is_at_work = slot.job is not None and slot.wanted is KEEP and not slot.lone
    return is_at_work and world.feeding and slot.pool.may_begin and not slot.host.is_tight


def _spare(pool: Pool) -> int:
    """Give how many items of a type wait, beyond those that idle agents are about to get."""
    rows = (job.expansion.waiting for job in pool.live_jobs.values() if job.expansion is not None)
    return max(0, pool.singles + sum(rows) - sum(map(len, pool.idle.values())))


def _give_ahead(world: World, slot: Slot, turns: Turns[Job], now: float) -> bytes:
    """Take the next item from these lanes, as `give` does; a one-parameter job begins when the agent comes to it."""
    assert slot.ahead is not None
    lane = turns.first[0]
    item, job = lane.items.popleft(), lane.job
    world.turn = turn = world.turn + 1
    turns.served(turn)
    job.in_flight += 1
    slot.ahead.append((job, item, turns is slot.bound))
    if job.expansion is None:
        slot.pool.singles -= 1
        job.started = True
    else:
        if not job.started:
            begin(world, job, now)
        job.expansion.waiting -= 1
        if job.expansion.waiting <= job.expansion.low:
            fetch_more(world, job)
    return item.line


def advance(world: World, slot: Slot, now: float) -> None:
    """The agent comes to the next line that it has; if nobody wants that any more it dies."""
    assert slot.ahead is not None
    job, slot.item, slot.is_bound = slot.ahead.popleft()
    slot.job, slot.fed_at = job, now
    world.slots.fire(slot, NEXT, now)
    if world.jobs.get(job.pk) is not job:
        slot.part()
        world.slots.kill(slot, "the row has another owner", now)
    elif job.verdict is not None and job.verdict.kills:
        world.slots.kill(slot, job.verdict.text, now)
    elif job.expansion is None:
        begin(world, job, now)


def recall_unsent(world: World, slot: Slot) -> None:
    """Lines ahead were given but not sent: all of them wait again."""
    while slot.ahead:
        job, item, is_bound = slot.ahead.pop()
        job.in_flight -= 1
        put_back(world, job, item, slot.host.name if is_bound else None)


def recall(world: World, slot: Slot, now: float) -> None:
    """The process is dead: what it had ahead is worked by others."""
    while slot.ahead:
        job, item, is_bound = slot.ahead.pop()
        job.in_flight -= 1
        if world.jobs.get(job.pk) is job:
            _work_elsewhere(world, slot, job, item, is_bound, now)


def _work_elsewhere(world: World, slot: Slot, job: Job, item: Item, is_bound: bool, now: float) -> None:
    if job.verdict is None and job.expansion is not None:
        is_bound = is_bound and job.pool.takes(job, slot.host.name)  # or a reload has taken the type from there
        put_back(world, job, item, slot.host.name if is_bound else None)
        return
    if job.verdict is None:
        job.where = slot.where
        job.verdict = Verdict(GIVEN_BACK, "the agent died before it came to it")
    conclude_if_over(world, job, now)


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
