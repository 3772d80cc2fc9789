"""Schedules a type: idle agents get items, agents are started for what still waits, others are ended to make room.

Items go to running agents first, by rank (urgent ones first, then by letter); jobs of equal rank take turns. Second
tries of items whose agent died go to a fresh process, alone, before anything else. What was assigned may be put back as
long as it was not sent, or once the process is dead that it was sent to. Between types rank does not count: the one
that has waited longest for room or for an expansion connection goes first, then they go by name
(`Core.schedule_dirty`).

An agent gets its next lines before it has asked for them if the `window` of its type is a number, or if it is auto and
prefetch_window.py says that the agent is fast. It works them one after the other and says OK to each in turn, so what
it says is about the line that it got first. That one is the item in hand; those behind it are `slot.prefetched`. What
was sent cannot be taken back: a job that is killed while its line is prefetched ends when the agent comes to that, and
dies, or has died before. What a dead agent had prefetched is not to blame: rows of a query go to others, a
one-parameter job back to the queue. An agent gets no more than its share of what waits, or others would be idle, and
never more bytes than a pipe takes, so that an agent that reads only when it is done is not taken for one that does not
read.

A host is full when its agents have reached its maximum, idle ones included. Then an agent of another type is asked to
go: the one idle longest, if it has been idle for `min_idle`. A type whose work has waited that long for
room takes the next agent of another type that becomes free instead, once per `min_idle` and host, so that no type can
lock out another by never being idle and two types cannot kill each other's agents in turns. A type whose
last start on a host failed is started there as slots.py says.
"""

from collections.abc import Iterator
from heapq import merge
from operator import attrgetter
from typing import Final, NamedTuple

from scheduler.errors import AgentError
from scheduler.model.events_and_effects import LogMessage, Spawn
from scheduler.model.protocol import Item, fill_template
from scheduler.model.states import DIE, FED, KEEP, NEVER, ST_FREE, ST_PREP, ST_READY, ST_SPAWNED, QueryState
from scheduler.policy import detached_jobs, program_rollout
from scheduler.policy.capacity import HostState
from scheduler.policy.completion import GIVEN_BACK, conclude_if_over
from scheduler.policy.deadlines import ROOM
from scheduler.policy.job import Job, Pool, Prefetched, SecondTry, Verdict
from scheduler.policy.prefetch_window import LOOK_S, REST_S, SLOW_S
from scheduler.policy.run_queue import AnyQueue, RunQueue
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

HOARD: Final = 20  # batches of rows held for busy hosts while others have nothing to do
PREFETCH_BYTES: Final = 16_384  # a quarter of what a pipe holds


class StartDecision(NamedTuple):
    """A step towards one more agent: start it in this slot, kill a victim, have a host yield, or look again later."""

    slot: Slot | None = None
    victim: Slot | None = None
    yields: HostState | None = None  # the next agent of another type that becomes free here must go
    until: float = NEVER


def dispatch(state: State, pool: Pool, unopened: Job | None, now: float) -> None:
    """Fetch rows for agents that stay idle, and start agents for what still waits."""
    is_hungry = any(pool.idle.values())
    for job in pool.query_jobs.values():
        query = job.query
        if query is None or query.state is not QueryState.OPEN:
            continue
        if job.waiting <= (HOARD * query.batch if is_hungry else query.low):
            state.fetch_more(job)
    _start_agents(state, pool, unopened, now)


# ---- what waits for agents
def enqueue(state: State, job: Job, items: list[Item], host: str | None) -> None:
    """Enqueue items for the agents of one host, or of any host."""
    pool, lane = job.pool, job.add_items(items, host)
    if lane is not None:
        run_queue = pool.queues.anywhere if host is None and pool.queues.filters is None else pool.queues.of(job, host)
        run_queue.add(lane, next(state.tickets))
    if pool not in state.dirty:  # it is most often: this is called for each row
        state.mark_dirty(pool)


def put_back(state: State, job: Job, item: Item, host: str | None) -> None:
    """Put an item that was not worked back at the front of its lane."""
    if state.rated and job.query is None and (rates := state.rated.get(job.queue)) is not None:
        rates.put_back(job.pk)
    lane = job.put_back(item, host)
    if lane is not None:
        job.pool.queues.of(job, host).add(lane, lane.ticket)
    state.mark_dirty(job.pool)


def spill(state: State, now: float) -> None:
    """Let rows that their host has not served for so long go to any host, where their type allows it."""
    for pool in state.pools.values():
        if not pool.kind.spill:
            continue
        for run_queue in pool.queues.by_host.values():
            for lane in [lane for lane in run_queue if lane.job.host is None]:
                if lane.has_waited(pool.kind.spill, now):
                    run_queue.drop(lane)
                    moved = lane.job.take_lane(lane.host)
                    enqueue(state, lane.job, moved, None)
                    state.count("spilled", len(moved))


# ---- one agent gets its next item
def next_run_queue(slot: Slot) -> AnyQueue[Job] | None:
    """Return the run queue that a slot takes from next: that of its host or that for any host."""
    anywhere, here = slot.any_queue.first, slot.host_queue.first
    if not here:
        return slot.any_queue if anywhere else None
    if not anywhere:
        return slot.host_queue
    a, b = anywhere[0], here[0]
    return slot.host_queue if (b.job.rank, b.ticket) <= (a.job.rank, a.ticket) else slot.any_queue


def first_job(run_queue: AnyQueue[Job] | None) -> Job | None:
    """Return the job that is served next."""
    return run_queue.first[0].job if run_queue is not None and run_queue.first else None


def assign(state: State, slot: Slot, run_queue: AnyQueue[Job], now: float) -> bytes:
    """Assign the next item of a run queue to a slot, and return its line."""
    job, item = run_queue.pop(next(state.tickets))
    slot.take(job, item, run_queue is slot.host_queue, now)
    if slot.pool.bucket is not None:
        state.take_token(slot.pool, now)
    if job.assigned():
        state.job_began(job, slot, now)
    if job.query is not None and job.waiting <= job.query.low:
        state.fetch_more(job)
    return item.line


def _second_tries(slot: Slot) -> Iterator[SecondTry]:
    """Yield the second tries that a fresh process in a slot may take: in an urgent place, those of urgent jobs."""
    at = slot.host
    for entry in slot.pool.second_tries:
        job, _, host = entry
        if slot.pool.queues.of(job, host).suits(at.name) and (job.is_urgent or not at.is_over):
            yield entry


def _assign_second_try(state: State, slot: Slot, entry: SecondTry, now: float) -> bytes:
    """Assign an item whose first agent died to a fresh process, and return its line."""
    slot.pool.remove_second_try(entry)
    job, item, host = entry
    slot.take(job, item, host is not None, now, is_second_try=True)
    if slot.pool.bucket is not None:
        state.take_token(slot.pool, now)
    job.assigned_again()
    return item.line


def prefetch(state: State, slot: Slot, now: float) -> bytes:
    """Prefetch items, once half of those before are used up, and return their lines."""
    pool, prefetched = slot.pool, slot.prefetched
    if prefetched is None or 2 * len(prefetched) > slot.ahead or slot.host.is_tight:
        return b""
    most = slot.set_ahead(now)
    is_at_work = slot.job is not None and slot.wanted is KEEP and not slot.is_second_try
    if not (most and is_at_work and state.is_assigning and pool.may_begin):
        return b""
    room = min(most, _share(slot)) - len(prefetched)
    if room <= 0 or (pool.is_auto and _has_slow_item(pool, now)):
        return b""
    size = sum([len(item.line) for _, item, _ in prefetched])
    found: list[Prefetched] = []
    while len(found) < room and (run_queue := next_run_queue(slot)) is not None:
        size += len(run_queue.first[0].items[0].line)
        if size > PREFETCH_BYTES:
            break
        job, item = run_queue.pop(next(state.tickets))
        found.append((job, item, run_queue is slot.host_queue))
        is_first = job.assigned()
        if job.query is None:
            continue  # it begins when the agent comes to it
        if is_first:
            state.job_began(job, slot, now)
        if job.waiting <= job.query.low:
            state.fetch_more(job)
    slot.add_prefetched(found)
    return b"".join([item.line for _, item, _ in found])


def _share(slot: Slot) -> int:
    """Return how many items one agent may have ahead at most, so that no other is idle because of it."""
    pool, host = slot.pool, slot.host.name
    rows = [job.waiting_for(host) for job in pool.query_jobs.values()]
    waiting = slot.any_queue.singles + slot.host_queue.singles + sum(rows)
    spare = waiting - sum(map(len, pool.idle.values()))  # beyond what idle agents are about to get
    return max(0, spare) // len(pool.slots)


def _has_slow_item(pool: Pool, now: float) -> bool:
    """Return whether an agent works on a slow item; then nothing is sent ahead in its type for a while."""
    if not pool.look_again(now, LOOK_S):
        return False
    for slot in pool.slots:
        if slot.job is not None and slot.assigned_at < now - SLOW_S:
            pool.pause_prefetch(now + REST_S)
            return True
    return False


def next_prefetched(state: State, slot: Slot, now: float) -> None:
    """Start the agent's next prefetched line; kill the agent if the job of that line was killed or lost."""
    job = slot.take_prefetched(now)
    if state.jobs.get(job.pk) is not job:
        slot.clear_item()
        slot.kill("the row has another owner", now)
    elif job.verdict is not None and job.verdict.kills:
        slot.kill(job.verdict.text, now)
    elif job.query is None:
        state.job_began(job, slot, now)


def recall_unsent(state: State, slot: Slot) -> None:
    """Put back all prefetched items: their lines are not sent yet."""
    for job, item, is_bound in slot.recall_prefetched():
        put_back(state, job, item, slot.host.name if is_bound else None)


def recall_prefetched(state: State, slot: Slot, now: float) -> None:
    """Put back the prefetched items of a dead process: other agents work on them."""
    for job, item, is_bound in slot.recall_prefetched():
        if state.jobs.get(job.pk) is not job:
            job.returned()
        elif job.verdict is None and job.query is not None:
            host = slot.host.name  # from where a reload may have taken the type
            put_back(state, job, item, host if is_bound and job.pool.queues.takes(job, host) else None)
        else:
            if job.verdict is None:
                job.item_ended(slot.where, 0.0)
                job.set_verdict(Verdict(GIVEN_BACK, "the agent died before it came to it"))
            else:
                job.returned()
            conclude_if_over(state, job, now)


# ---- idle agents
def assign_to_idle(state: State, pool: Pool, now: float) -> None:
    """Assign items to idle agents."""
    for slot in _idle(pool):
        if not pool.may_begin:
            break  # that was the last item that its rate allows
        if not (pool.second_tries or slot.any_queue.first or slot.host_queue.first):
            if [run_queue for run_queue in pool.queues.all() if run_queue.first]:
                continue  # others may take it
            break
        again = next(_second_tries(slot), None) if pool.second_tries and not slot.items else None
        run_queue = next_run_queue(slot)
        if again is None and run_queue is None:
            continue
        if must_end(slot, again[0] if again is not None else first_job(run_queue)):
            end_agent(state, slot, now)
            continue
        if again is not None:
            line = _assign_second_try(state, slot, again, now)
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
    bound, is_wanted = pool.queues.by_host, bool(pool.second_tries or pool.queues.any.first)
    waiting = [
        list(idle) for host, idle in pool.idle.items() if idle and (is_wanted or host not in bound or bound[host].first)
    ]
    return iter(waiting[0]) if len(waiting) == 1 else merge(*waiting, key=attrgetter("since"))


def must_end(slot: Slot, job: Job | None) -> bool:
    """Return whether an agent that could take another item has to go instead."""
    host = slot.host
    if not host.is_tight:
        return False
    if not host.is_open:
        return True
    if host.is_over and (job is None or not job.is_urgent):
        return True
    return slot.items > 0 and host.yields_to not in (None, slot.pool)  # one item at least, or no type makes progress


def end_agent(state: State, slot: Slot, now: float) -> None:
    """End an agent that has to go; it is READY."""
    host = slot.host
    if host.yields_to not in (None, slot.pool):
        host.keep_for(host.yields_to, now)
        host.yield_to(None)
        why = "room for another type that has waited long enough"
    else:
        unreached = "host disabled" if not host.enabled else "host is down"
        why = "urgent slot no longer needed" if host.is_open else unreached
    slot.kill(why, now)


# ---- new agents
def _start_agents(state: State, pool: Pool, unopened: Job | None, now: float) -> None:
    """Start agents for each run queue that needs more: second tries first, those of one host, that for any host."""
    for run_queue in {pool.queues.of(job, at) for job, _, at in pool.second_tries}:
        _recycle(state, pool, run_queue, now)
    if not any(pool.free.values()):
        stop_starving(state, pool)
        return
    pool.starve(now)  # taken back below if there is room
    starving = False
    for run_queue in pool.queues.all():
        again = [job for job, _, at in pool.second_tries if pool.queues.of(job, at) is run_queue]
        if run_queue.first or again:
            starving |= _start_for(state, pool, run_queue, again, now)
    if unopened is not None and not starving:  # no agent is started for it: its query opens when there is room
        starving = _find_or_make_room(state, pool, pool.queues.of(unopened, unopened.host), unopened, now) is None
    if not starving:
        stop_starving(state, pool)


def stop_starving(state: State, pool: Pool) -> None:
    """Promise no place any more to a type that does not starve."""
    if pool.starving_since < NEVER:
        pool.end_starving()
    for host in state.hosts.values():
        if host.yields_to is pool:
            host.yield_to(None)
        if host.kept_for is pool:
            host.keep_for_none()
            state.retry_starving()


def _start_for(state: State, pool: Pool, run_queue: RunQueue[Job], again: list[Job], now: float) -> bool:
    """Start agents for a run queue and second tries; True when some work finds no room, or no start this turn."""
    coming = 0
    if again or not pool.is_exec:  # a command has its item from the start: it takes none that waits
        coming = sum(slot.state in (ST_PREP, ST_SPAWNED) and run_queue.suits(slot.host.name) for slot in pool.slots)
    while coming < len(again) or _has_more_than(run_queue, 0 if pool.is_exec else coming - len(again)):
        job = first_job(run_queue) or again[0]
        if not pool.may_begin:
            return False  # its rate of items allows no more now; then it is scheduled again
        if not state.may_start(pool, now):
            return True
        slot = _find_or_make_room(state, pool, run_queue, job, now)
        if slot is None:
            return True
        _start(state, slot, run_queue, job, now)
        coming += 1
    return False


def _find_or_make_room(state: State, pool: Pool, run_queue: RunQueue[Job], job: Job, now: float) -> Slot | None:
    """Return a slot to start an agent in; None, and the type starves, while room is still to be made."""
    room = _choose_start(pool, run_queue, job.is_urgent, now, state.timers.min_idle)
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


def _choose_start(pool: Pool, run_queue: RunQueue[Job], urgent: bool, now: float, min_idle: float) -> StartDecision:
    """Return what to do for one more agent of a type, for a run queue."""
    free = [slots[0] for name, slots in pool.free.items() if slots and run_queue.suits(name)]
    if not free:
        return StartDecision()
    if not pool.failed_starts and not pool.busy:
        return _choose_among(free, pool, urgent, now, min_idle)
    start_at = {slot: slot.host.start_from(pool) for slot in free}
    room = _choose_among([slot for slot in free if start_at[slot] <= now], pool, urgent, now, min_idle)
    later = min((instant for instant in start_at.values() if instant > now), default=NEVER)
    return room._replace(until=min(room.until, later))


def _choose_among(free: list[Slot], pool: Pool, urgent: bool, now: float, min_idle: float) -> StartDecision:
    """Return where there is room for a type; or else which idle agent of another or which host is to make it, when."""
    open_to_it = [slot for slot in free if not slot.host.is_kept_from(pool)]
    if ready := [slot for slot in open_to_it if slot.host.has_room(urgent)]:
        return StartDecision(slot=min(ready, key=_load))
    hosts = list(dict.fromkeys(slot.host for slot in open_to_it if slot.host.is_open))
    if any(host.leaving for host in hosts):
        return StartDecision()  # an agent is being ended: its end schedules the type again
    # the instants from which it may take a busy type's next free agent
    due = {host: max(pool.starving_since, host.yielded_at) + min_idle for host in hosts}
    others = [next((slot for slot in host.idle if slot.pool is not pool and _is_spare(slot)), None) for host in hosts]
    oldest = min((slot for slot in others if slot is not None), key=lambda slot: slot.since, default=None)
    if oldest is not None:
        until = min(oldest.since + min_idle, due[oldest.host])
        return StartDecision(victim=oldest) if until <= now else StartDecision(until=until)
    first = min(hosts, key=lambda host: due[host], default=None)
    if first is None:
        return StartDecision()
    return StartDecision(yields=first) if due[first] <= now else StartDecision(until=due[first])


def _is_spare(slot: Slot) -> bool:
    """Return whether an idle agent has nothing to do; one that has just come up for waiting work is about to get it."""
    pool = slot.pool
    return not (
        pool.may_begin and (slot.any_queue.first or slot.host_queue.first or (pool.second_tries and not slot.items))
    )


def _load(slot: Slot) -> tuple[float, int, float]:
    """Order hosts by how full they are, then by how many agents they have, then by which slot was used longest ago."""
    host = slot.host
    return (host.used / host.max if host.max > 0 else 0.0, host.used, slot.since)


def _has_more_than(run_queue: RunQueue[Job], count: int) -> bool:
    """Return whether more than `count` items wait, without counting them all."""
    for lane in run_queue:
        count -= len(lane.items)
        if count < 0:
            return True
    return False


def _start(state: State, slot: Slot, run_queue: RunQueue[Job], cause: Job, now: float) -> None:
    """Start the process of a slot because a job waits; an exec agent gets its item with it."""
    pool, host = slot.pool, slot.host
    if host.kept_for is pool:
        host.keep_for_none()
    state.begin_process(slot, cause.pk, now)
    program = program_rollout.choose_program(state, slot)
    if not pool.is_exec:
        state.emit(Spawn(slot.number, slot.serial, pool.name, host.name, program=program))
        return
    if (again := next(_second_tries(slot), None)) is not None:
        _assign_second_try(state, slot, again, now)
    else:
        assign(state, slot, run_queue, now)
    job, item = slot.job, slot.item
    assert job is not None
    assert item is not None
    argv, whose = _argv(state, job, item), (job.pk, job.attempt, job.environment)
    spawn = Spawn(slot.number, slot.serial, pool.name, host.name, argv, item.line, *whose, program)
    if pool.kind.detached:
        detached_jobs.begin(state, slot, job, spawn, now)
    else:
        state.emit(spawn)


def _argv(state: State, job: Job, item: Item) -> tuple[bytes, ...]:
    """Return the command for an item; one that cannot be made starts nothing, which fails the item."""
    try:
        values = item._replace(row=job.row) if job.row else item
        return tuple(fill_template(job.pool.kind.command, job.pk, values, job.names))
    except AgentError as error:
        state.emit(LogMessage("warning", f"job={job.pk}{job.trace}: {error}"))
        return (b"",)  # no program has this name


def _recycle(state: State, pool: Pool, run_queue: RunQueue[Job], now: float) -> None:
    """End an idle agent where a second try waits if no fresh process can come otherwise."""
    own = [slot for slot in pool.slots if run_queue.suits(slot.host.name)]
    if any(slot.wanted is DIE or slot.state in (ST_PREP, ST_SPAWNED) for slot in own):
        return
    if any(slot.state == ST_FREE and slot.host.has_room(urgent=False) for slot in own):
        return
    idle = [slot for slot in own if slot.state == ST_READY]
    if idle:
        idle[0].kill("a fresh process is needed", now)
