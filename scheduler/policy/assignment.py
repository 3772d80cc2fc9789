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

from typing import Final

from scheduler.model.expand import Item
from scheduler.model.states import KEEP, NEXT
from scheduler.policy.completion import GIVEN_BACK, conclude_if_over
from scheduler.policy.entities import Job, Pool, SecondTry, Verdict, is_urgent
from scheduler.policy.run_queue import Lane, RunQueue
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

_FEW: Final = 100  # limits of jobs that have ended are kept up to here
PREFETCH_BYTES: Final = 16_384  # a quarter of what a pipe holds


def enqueue(state: State, job: Job, items: list[Item], host: str | None) -> None:
    """Let items wait for agents of a host, or of any."""
    pool, lane = job.pool, job.add_items(items, host)
    if lane is not None:
        run_queue = pool.any if host is None and pool.filters is None else pool.run_queue_of(job, host)
        run_queue.add(lane, next(state.tickets))
    state.mark_dirty(pool)


def release(state: State, lane: Lane[Job]) -> int:
    """Let the rows of a lane wait for any host instead of theirs; give how many they are."""
    job = lane.job
    assert lane.host is not None
    job.pool.bound[lane.host].drop(lane)
    moved = job.take_lane(lane.host)
    enqueue(state, job, moved, None)
    return len(moved)


def next_run_queue(slot: Slot) -> RunQueue[Job] | None:
    """Return the run queue that a slot takes from next: that of its host or that for any host."""
    anywhere, here = slot.any.first, slot.bound.first
    if not here:
        return slot.any if anywhere else None
    if not anywhere:
        return slot.bound
    a, b = anywhere[0], here[0]
    return slot.bound if (b.job.rank, b.ticket) <= (a.job.rank, a.ticket) else slot.any


def assign(state: State, slot: Slot, run_queue: RunQueue[Job], now: float) -> bytes:
    """Assign the next item of a run queue to a slot, and return its line."""
    job, item = run_queue.pop(next(state.tickets))
    slot.take(job, item, run_queue is slot.bound, now)
    if job.assigned():
        state.job_began(job, now)
    if job.query is not None and job.waiting <= job.query.low:
        state.fetch_more(job)
    return item.line


def second_try(slot: Slot) -> SecondTry | None:
    """Return the second try that waits for a fresh process on a slot's host, if any."""
    return next((entry for entry in slot.pool.second_tries if _suits(slot, entry)), None)


def startable_try(slot: Slot) -> SecondTry | None:
    """Return the same for a slot that has just been chosen: an urgent place is for urgent work only."""
    fits = (entry for entry in slot.pool.second_tries if _suits(slot, entry))
    return next((entry for entry in fits if not slot.host.is_over or is_urgent(entry[0])), None)


def _suits(slot: Slot, entry: SecondTry) -> bool:
    job, _, host = entry
    return slot.pool.run_queue_of(job, host).suits(slot.host.name)


def assign_second_try(slot: Slot, entry: SecondTry, now: float) -> bytes:
    """Assign an item whose first agent died to a fresh process, and return its line."""
    slot.pool.remove_second_try(entry)
    job, item, host = entry
    slot.take(job, item, host is not None, now, is_second_try=True)
    job.assigned_again()
    return item.line


def put_back(state: State, job: Job, item: Item, host: str | None) -> None:
    """Let an item that was not worked wait again, before the others of its lane."""
    lane = job.put_back(item, host)
    if lane is not None:
        job.pool.run_queue_of(job, host).add(lane, lane.ticket)
    state.mark_dirty(job.pool)


def prefetch(state: State, slot: Slot, now: float) -> bytes:
    """Prefetch items, once half of those before are used up, and return their lines."""
    prefetched, most = slot.prefetched, slot.pool.kind.window - 1
    if prefetched is None or 2 * len(prefetched) > most or not _may_have_more(state, slot):
        return b""
    room = min(most - len(prefetched), _spare(slot.pool) // len(slot.pool.slots))
    size = sum(len(item.line) for _, item, _ in prefetched)
    lines: list[bytes] = []
    while len(lines) < room and (run_queue := next_run_queue(slot)) is not None:
        size += len(run_queue.first[0].items[0].line)
        if size > PREFETCH_BYTES:
            break
        lines.append(_prefetch_one(state, slot, run_queue, now))
    return b"".join(lines)


def _may_have_more(state: State, slot: Slot) -> bool:
    is_at_work = slot.job is not None and slot.wanted is KEEP and not slot.is_second_try
    return is_at_work and state.is_assigning and slot.pool.may_begin and not slot.host.is_tight


def _spare(pool: Pool) -> int:
    """Return how many items of a type wait, beyond those that idle agents are about to get."""
    rows = sum(job.waiting for job in pool.query_jobs.values())
    return max(0, pool.singles + rows - sum(map(len, pool.idle.values())))


def _prefetch_one(state: State, slot: Slot, run_queue: RunQueue[Job], now: float) -> bytes:
    """Prefetch the next item of a run queue; a one-parameter job begins when the agent comes to it."""
    assert slot.prefetched is not None
    job, item = run_queue.pop(next(state.tickets))
    slot.prefetched.append((job, item, run_queue is slot.bound))
    is_first = job.assigned()
    if job.query is not None:
        if is_first:
            state.job_began(job, now)
        if job.waiting <= job.query.low:
            state.fetch_more(job)
    return item.line


def next_prefetched(state: State, slot: Slot, now: float) -> None:
    """Let the agent work on its next prefetched line; kill it if the job of that was killed or lost."""
    assert slot.prefetched is not None
    job, item, is_bound = slot.prefetched.popleft()
    slot.take(job, item, is_bound, now)
    slot.fire(NEXT, now)
    if state.jobs.get(job.pk) is not job:
        slot.clear_item()
        slot.kill("the row has another owner", now)
    elif job.verdict is not None and job.verdict.kills:
        slot.kill(job.verdict.text, now)
    elif job.query is None:
        state.job_began(job, now)


def recall_unsent(state: State, slot: Slot) -> None:
    """Put back all prefetched items: their lines are not sent yet."""
    while slot.prefetched:
        job, item, is_bound = slot.prefetched.pop()
        put_back(state, job, item, slot.host.name if is_bound else None)


def recall_prefetched(state: State, slot: Slot, now: float) -> None:
    """Put back the prefetched items of a dead process: other agents work on them."""
    while slot.prefetched:
        job, item, is_bound = slot.prefetched.pop()
        if state.jobs.get(job.pk) is job:
            _work_elsewhere(state, slot, job, item, is_bound, now)
        else:
            job.returned()


def _work_elsewhere(state: State, slot: Slot, job: Job, item: Item, is_bound: bool, now: float) -> None:
    if job.verdict is None and job.query is not None:
        is_bound = is_bound and job.pool.takes(job, slot.host.name)  # or a reload has taken the type from there
        put_back(state, job, item, slot.host.name if is_bound else None)
        return
    if job.verdict is None:
        job.item_ended(slot.where, 0.0)
        job.set_verdict(Verdict(GIVEN_BACK, "the agent died before it came to it"))
    else:
        job.returned()
    conclude_if_over(state, job, now)


def spill(state: State, now: float) -> None:
    """Let rows that their host has not served for so long go to any host, where their type allows it."""
    for pool in state.pools.values():
        if pool.kind.spill:
            waiting = [lane for run_queue in pool.bound.values() for lane in run_queue if lane.job.host is None]
            for lane in waiting:
                if lane.has_waited(pool.kind.spill, now):
                    state.count_spilled(release(state, lane))
