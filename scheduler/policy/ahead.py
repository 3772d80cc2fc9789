"""Lines ahead: an agent whose type has a `window` gets its next lines before it has asked for them.

It works them one after the other and says OK to each in turn, so what it says is about the line that it got first.
That one is the item in hand; those behind it are `slot.ahead`. What was sent cannot be taken back: a job that is killed
while its line is ahead ends when the agent comes to that, and dies, or has died before. What is ahead of an agent that
dies is not to blame: rows of a query go to others, a one-parameter job back to the queue.

An agent gets no more ahead than its share of what waits, or others would be idle, and never more bytes than a pipe
takes, so that an agent that reads only when it is done is not taken for one that does not read.
"""

from typing import Final

from scheduler.model.expand import Item
from scheduler.model.states import NEXT
from scheduler.policy.endings import conclude_if_over
from scheduler.policy.give import begin, fetch_more, next_turns, put_back
from scheduler.policy.jobs import Job, Verdict
from scheduler.policy.outcome import GIVEN_BACK
from scheduler.policy.pools import Pool, Slot
from scheduler.policy.turns import Turns
from scheduler.policy.world import World

AHEAD_BYTES: Final = 16_384  # a quarter of what a pipe holds


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
    is_at_work = slot.job is not None and slot.doom is None and slot.leaves is None and not slot.lone
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
    world.fleet.fire(slot, NEXT, now)
    if world.jobs.get(job.pk) is not job:
        slot.part()
        world.fleet.kill(slot, "the row has another owner", now)
    elif job.verdict is not None and job.verdict.kills:
        world.fleet.kill(slot, job.verdict.text, now)
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
