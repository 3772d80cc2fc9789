"""A type is scheduled: idle agents get items, agents are started for what still waits, others must make room.

The order: what is in hand, on agents that live, by urgency and letter, jobs of one type in turn. Second tries of items
whose agent died go to a fresh process, alone, before anything else.
"""

from collections.abc import Iterator
from heapq import merge
from operator import attrgetter
from typing import Final

from scheduler.errors import AgentError
from scheduler.model.events import LogMessage, Spawn
from scheduler.model.expand import fill_template
from scheduler.model.states import DIE, FED, ST_FREE, ST_PREP, ST_READY, ST_SPAWNED, QueryState
from scheduler.policy.assignment import (
    assign,
    assign_second_try,
    next_run_queue,
    prefetch,
    second_try,
    startable_try,
)
from scheduler.policy.capacity import find_room
from scheduler.policy.deadlines import ROOM
from scheduler.policy.entities import Job, Pool, is_urgent
from scheduler.policy.run_queue import RunQueue
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

HOARD: Final = 20  # batches of rows held for busy hosts while others have nothing to do


def dispatch(state: State, pool: Pool, unopened: Job | None, now: float) -> None:
    """Assign items to idle agents, fetch rows for those that stay idle, start agents for what still waits."""
    _assign_to_idle(state, pool, now)
    is_hungry = any(pool.idle.values())
    for job in pool.query_jobs.values():
        query = job.query
        if query is None or query.state is not QueryState.OPEN:
            continue
        if job.waiting <= (HOARD * query.batch if is_hungry else query.low):
            state.fetch_more(job)
    _start_agents(state, pool, unopened, now)


def _assign_to_idle(state: State, pool: Pool, now: float) -> None:
    for slot in _idle(pool):
        if not (pool.second_tries or slot.any.first or slot.bound.first):
            if [run_queue for run_queue in pool.run_queues() if run_queue.first]:
                continue  # others may take it
            break
        again = second_try(slot) if pool.second_tries and not slot.items else None
        run_queue = next_run_queue(slot)
        if again is None and run_queue is None:
            continue
        if must_end(slot, again[0] if again is not None else first_job(run_queue)):
            end_agent(state, slot, now)
            continue
        if again is not None:
            line = assign_second_try(slot, again, now)
        else:
            assert run_queue is not None
            line = assign(state, slot, run_queue, now)
        pool.remove_idle(slot)
        slot.fire(FED, now)
        if slot.prefetched is not None:
            line += prefetch(state, slot, now)
        state.send(slot, line)


def _idle(pool: Pool) -> Iterator[Slot]:
    """Return the idle agents that may have something to do, the one idle longest first, whatever its host."""
    waiting = [
        list(idle)
        for host, idle in pool.idle.items()
        if idle and (pool.second_tries or pool.any.first or host not in pool.bound or pool.bound[host].first)
    ]
    return iter(waiting[0]) if len(waiting) == 1 else merge(*waiting, key=attrgetter("since"))


def first_job(run_queue: RunQueue[Job] | None) -> Job | None:
    """Return the job that is served next."""
    return run_queue.first[0].job if run_queue is not None and run_queue.first else None


def must_end(slot: Slot, job: Job | None) -> bool:
    """Say whether an agent that could take another item has to go instead."""
    host = slot.host
    if not host.is_tight:
        return False
    if not host.is_open:
        return True
    if host.is_over and (job is None or not is_urgent(job)):
        return True
    return slot.items > 0 and host.yields_to not in (None, slot.pool)  # one item at least, or nobody gets anywhere


def end_agent(state: State, slot: Slot, now: float) -> None:
    """End an agent that has to go; it is READY."""
    host = slot.host
    if host.yields_to not in (None, slot.pool):
        host.keep_for(host.yields_to, now)
        host.yield_to(None)
        why = "room for another type that has waited long enough"
    else:
        why = "urgent slot no longer needed" if host.enabled else "host disabled"
    slot.kill(why, now)


def _start_agents(state: State, pool: Pool, unopened: Job | None, now: float) -> None:
    """Start agents for each run queue that needs more: second tries first, those of one host, that for any host."""
    for run_queue in {pool.run_queue_of(job, at) for job, _, at in pool.second_tries}:
        _recycle(state, pool, run_queue, now)
    if not any(pool.free.values()):
        stop_starving(state, pool)
        return
    pool.starve(now)
    starving = False
    for run_queue in pool.run_queues():
        again = [job for job, _, at in pool.second_tries if pool.run_queue_of(job, at) is run_queue]
        if run_queue.first or again:
            starving |= _start_for(state, pool, run_queue, again, now)
    if unopened is not None and not starving:
        starving = _find_room(state, pool, pool.run_queue_of(unopened, unopened.host), unopened, now) is None
    if not starving:
        stop_starving(state, pool)


def stop_starving(state: State, pool: Pool) -> None:
    """Promise no place any more to a type that does not starve."""
    pool.end_starving()
    for host in state.hosts.values():
        if host.yields_to is pool:
            host.yield_to(None)
        if host.kept_for is pool:
            host.keep_for_none()
            state.retry_starving()


def _start_for(state: State, pool: Pool, run_queue: RunQueue[Job], again: list[Job], now: float) -> bool:
    """Start agents for a run queue and second tries; True when some work finds no room, or no start this turn."""
    coming = sum(slot.state in (ST_PREP, ST_SPAWNED) and run_queue.suits(slot.host.name) for slot in pool.slots)
    while coming < len(again) or has_more_than(run_queue, 0 if pool.is_exec else coming - len(again)):
        job = first_job(run_queue) or again[0]
        if not state.may_start(pool, now):
            return True
        slot = _find_room(state, pool, run_queue, job, now)
        if slot is None:
            return True
        _start(state, slot, run_queue, job, now)
        coming += 1
    return False


def _find_room(state: State, pool: Pool, where: RunQueue[Job], job: Job, now: float) -> Slot | None:
    """Return a slot to start an agent in; None, and the type starves, while room is still to be made."""
    room = find_room(pool, where, is_urgent(job), now, state.timers.min_idle)
    if room.slot is not None:
        return room.slot
    if room.victim is not None:
        room.victim.host.keep_for(pool, now)
        room.victim.kill(f"room for {pool.name}", now)
    elif room.yields is not None:
        room.yields.yield_to(pool)
    state.deadlines.bring_forward(ROOM, room.until)
    state.add_starving(pool)
    return None


def has_more_than(run_queue: RunQueue[Job], count: int) -> bool:
    """Say whether more than `count` items wait, without counting them all."""
    for lane in run_queue:
        count -= len(lane.items)
        if count < 0:
            return True
    return False


def _start(state: State, slot: Slot, run_queue: RunQueue[Job], cause: Job, now: float) -> None:
    """Start the process of a slot because a job waits; an exec agent gets its item with it."""
    pool = slot.pool
    state.started()
    if slot.host.kept_for is pool:
        slot.host.keep_for_none()
    if slot.host.name in pool.failed_starts:
        slot.host.begin_probe(slot)
    slot.begin_process(cause.pk, now)
    if not pool.is_exec:
        state.emit(Spawn(slot.number, slot.serial, pool.name, slot.host.name))
        return
    again = startable_try(slot)
    if again is not None:
        assign_second_try(slot, again, now)
    else:
        assign(state, slot, run_queue, now)
    job, item = slot.job, slot.item
    assert job is not None
    assert item is not None
    try:
        values = item._replace(row=job.row) if job.row else item
        argv = tuple(fill_template(pool.kind.command, job.pk, values, job.names))
    except AgentError as error:
        state.emit(LogMessage("warning", f"job={job.pk}: {error}"))
        argv = (b"",)  # starts nothing, which fails the item; why stands in the log
    state.emit(
        Spawn(
            slot.number, slot.serial, pool.name, slot.host.name, argv, item.line, job.pk, job.attempt, job.environment
        )
    )


def _recycle(state: State, pool: Pool, where: RunQueue[Job], now: float) -> None:
    """End an idle agent where a second try waits if no fresh process can come otherwise."""
    own = [slot for slot in pool.slots if where.suits(slot.host.name)]
    if any(slot.wanted is DIE or slot.state in (ST_PREP, ST_SPAWNED) for slot in own):
        return
    if any(slot.state == ST_FREE and slot.host.has_room(urgent=False) for slot in own):
        return
    idle = [slot for slot in own if slot.state == ST_READY]
    if idle:
        idle[0].kill("a fresh process is needed", now)
