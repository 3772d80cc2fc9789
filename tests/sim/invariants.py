"""What must hold after every step, and at the last; start_invariants.py and end_invariants.py hold at their moments.

I1 to I5 are RELIABILITY 3's: no job lost, rows in hand are core memory, one end a job, attempts never decrease, no
(job, attempt) begins twice. Each function is one claim and raises Broken with its own name.
"""

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from scheduler.model.queue_requests import SUSPECT_AFTER, EndAndClaim, Mark, ReadContents, Save
from scheduler.model.states import (
    BLOCKED,
    DIE,
    FINISH,
    NEVER,
    QUEUED,
    RUNNING,
    ST_FAIL,
    ST_FREE,
    ST_FREEING,
    ST_READY,
    ST_RUNNING,
    TERMINAL,
    QueryState,
)
from scheduler.policy.capacity import UNLIMITED, HostState
from scheduler.policy.deadlines import SLOTS
from scheduler.policy.job import Job
from scheduler.policy.query_progress import JobQuery
from scheduler.policy.quotas import Quota
from scheduler.policy.slots import Slot, timeouts_of
from scheduler.policy.state import State
from tests.sim import wait_invariants
from tests.sim.broken import broken
from tests.sim.rows import IN_HAND, STAFF, Row

if TYPE_CHECKING:
    from tests.sim.world import Sim

MOST_TICKS: Final = 50  # at one instant
SOON_S: Final = 6.0  # after which jobs of a host that is back are looked at: the core is asked every 5 s


class Memory:
    """What must be remembered from step to step."""

    def __init__(self) -> None:
        self.ticked_at = -NEVER
        self.ticks = 0
        self.used: dict[str, int] = {}
        self.drained_at = NEVER
        self.filtered = (0, -NEVER)  # the step and the instant in which a host began to take other jobs than before
        self.stillborn: dict[int, list[float]] = {}  # slot -> births of processes that never said OK
        self.programs: dict[int, tuple[str, ...]] = {}  # slot -> those that its type had when it was started last
        self.failures: Counter[tuple[str, str]] = Counter()  # items that a program on trial said FAIL to
        self.quotas: dict[tuple[Quota, str | None], int] = {}  # in hand of each, and submitter
        self.starts: dict[tuple[str, str, str], list[float]] = {}  # by owner, queue with a rate limit, and submitter
        self.ahead: dict[tuple[int, int, str], tuple[list[float], float]] = {}  # where the start of a job is noted
        self.items: dict[tuple[object, ...], list[float]] = {}  # when items of types with a rate of them began
        self.limits_set = 0  # how often a rate limit was set: what was started before is counted anew, or not at all
        self.limits: dict[str, int | None] = {}  # of queues, when what was claimed last was asked for


def check(sim: "Sim") -> None:
    """All that holds between any two steps."""
    if sim.daemon.is_alive:
        world = sim.daemon.core.state
        books_are_right(world)
        slots_are_as_configured(sim, world)
        lanes_are_right(world)
        deadlines_are_set(world)
        what_is_killed_is_worked_no_more(world)
        hosts_keep_their_limits(sim, world)
        urgent_places_are_for_urgent_work(sim, world)
        queues_keep_their_limits(sim, world)
        quotas_keep_their_limits(sim, world)
        rows_are_memory(sim)
        rows_say_where_they_run(sim, world)
        cursors_match_expanding(sim, world)
        last_connection_is_free_or_can_be(sim, world)
        idle_agents_have_connections(world)
        no_wake_up_is_lost(sim, world)
        wait_invariants.check(world)
    blocked_jobs_are_listed(sim)
    jobs_return_with_their_host(sim)
    conditions_end(sim)
    leases_are_single(sim)
    what_is_in_hand_is_noted(sim)


# ---- between any two steps


def books_are_right(world: State) -> None:
    """Use of hosts, idle and free lists, items in flight: all as a recount gives them."""
    used: dict[HostState, int] = {}
    leaving: dict[HostState, int] = {}
    in_flight: dict[int, int] = {}
    for slot in world.slots.all:
        state, host, name = slot.state, slot.host, slot.host.name
        if state > ST_FREE:
            used[host] = used.get(host, 0) + 1
            if state == ST_FREEING:
                leaving[host] = leaving.get(host, 0) + 1
        is_free = slot.number in world.slots.vacant if slot.is_removed else slot in slot.pool.free[name]
        if (state == ST_FREE) != is_free or (state == ST_READY) != (slot in slot.pool.idle[name] and slot in host.idle):
            broken("books_are_right", f"slot {slot.number} in state {state} is in the wrong list")
        if (slot.job is None) != (slot.item is None) or (state == ST_RUNNING and slot.job is None):
            broken("books_are_right", f"slot {slot.number} in state {state}: {slot.job} and {slot.item}")
        if slot.job is not None:
            room_costs_no_work(slot)
            in_flight[slot.job.pk] = in_flight.get(slot.job.pk, 0) + 1
            if state in (ST_FREE, ST_FAIL, ST_READY):
                broken("books_are_right", f"slot {slot.number} in state {state} has job {slot.job.pk}")
            if world.jobs.get(slot.job.pk) is not slot.job:
                broken("books_are_right", f"slot {slot.number} works on job {slot.job.pk}, which is not in hand")
        for job, _, _ in slot.prefetched or ():
            if state not in (ST_RUNNING, ST_FREEING):
                broken("books_are_right", f"slot {slot.number} in state {state} has lines ahead")
            if slot.is_second_try:
                broken("second_tries_are_alone", f"slot {slot.number} has lines behind that of {slot.item}")
            if world.jobs.get(job.pk) is job:
                in_flight[job.pk] = in_flight.get(job.pk, 0) + 1
    for pk in world.attachments.waiting:
        in_flight[pk] = in_flight.get(pk, 0) + 1  # its command has it
    for host in world.hosts.values():
        if host.used != used.get(host, 0) or host.leaving != leaving.get(host, 0):
            broken(
                "books_are_right", f"host {host.name}: {host.used} used, {host.leaving} leaving, of {used} {leaving}"
            )
        if any(slot.state != ST_READY or slot.host is not host for slot in host.idle):
            broken("books_are_right", f"not all are idle on host {host.name}: {list(host.idle)}")
        if host.is_tight != (host.yields_to is not None or host.is_over or not host.is_open):
            broken("books_are_right", f"host {host.name} is tight: {host.is_tight}")
    for job in world.jobs.values():
        if job.in_flight != in_flight.get(job.pk, 0):
            broken("books_are_right", f"job {job.pk}: {job.in_flight} in flight of {in_flight.get(job.pk, 0)}")


def slots_are_as_configured(sim: "Sim", world: State) -> None:
    """Each type has its slots on each of its hosts, and all of them its limits; what is gone is out of the way."""
    config, slots = sim.daemon.config, world.slots
    limits = {pool: timeouts_of(pool.kind, config.scheduler) for pool in world.pools.values()}
    for number, slot in enumerate(slots.all):
        is_idle = slot.state == ST_READY and (slot.is_removed or slot.wanted is FINISH)
        if slot.number != number or slots.vacant.count(number) != slot.is_vacant or is_idle:
            broken("slots_are_as_configured", f"slot {number} is {slot.number}, in state {slot.state}: {slot.wanted}")
        configured = limits.get(slot.pool) or timeouts_of(slot.pool.kind, config.scheduler)  # of a type that is gone
        if slot.timeouts != configured:
            broken("slots_are_as_configured", f"slot {number} has old limits")
    for name, pool in world.pools.items():
        kind = config.agents.get(name)
        found: dict[str, int] = {}
        for slot in pool.slots:
            if not slot.is_removed and slot.pool is pool:
                found[slot.host.name] = found.get(slot.host.name, 0) + 1
        wanted = dict.fromkeys(config.hosts_of(name), kind.slots) if kind is not None else {}
        if found != wanted or (kind is not None and pool.kind is not kind) or sum(found.values()) != len(pool.slots):
            broken("slots_are_as_configured", f"type {name} has slots {found}, {wanted} are configured")


def reload_frees_what_failed(world: State) -> None:
    """FAIL -> FREE on reload."""
    failed = [slot.number for slot in world.slots.all if slot.state == ST_FAIL]
    blocked = [pool.name for pool in world.pools.values() if pool.blocked_until]
    if failed or blocked:
        broken("reload_frees_what_failed", f"slots {failed} and types {blocked} rest after a reload")


def room_costs_no_work(slot: Slot) -> None:
    """Nobody is killed at work to make room for another type."""
    if slot.wanted is DIE and slot.reason.startswith("room for"):
        broken("room_costs_no_work", f"slot {slot.number} works and is killed: {slot.reason}")


def lanes_are_right(world: State) -> None:
    """What waits is counted right, in lanes that are served; a job in hand has something to come or in flight."""
    singles: dict[str, int] = {}
    waiting: dict[int, int] = {}
    for pool in world.pools.values():
        if any(at is not None and at not in pool.free for _, _, at in pool.second_tries):
            broken(
                "lanes_are_right", f"pool {pool.name}: a second try waits for a host that is gone: {pool.second_tries}"
            )
        count = 0
        for turns in pool.queues.all():
            lanes = list(turns)
            if (lanes[0] if lanes else None) is not (turns.first[0] if turns.first else None):
                broken("lanes_are_right", f"pool {pool.name}: first is not the best of {lanes}")
            for lane in lanes:
                job, size = lane.job, len(lane.items)
                if not size or world.jobs.get(job.pk) is not job or job.verdict is not None:
                    broken("lanes_are_right", f"a lane of job {job.pk} with {size} items waits in pool {pool.name}")
                waiting[job.pk] = waiting.get(job.pk, 0) + size
                count += job.query is None and size
        singles[pool.name] = count
        if pool.singles != count:
            broken("lanes_are_right", f"pool {pool.name}: {pool.singles} singles of {count}")
    for job in world.jobs.values():
        if job.waiting != waiting.get(job.pk, 0):
            broken("lanes_are_right", f"job {job.pk}: {job.waiting} waiting of {waiting.get(job.pk, 0)}")
        if not job.in_flight and not waiting.get(job.pk):
            has_future(world, job)


def has_future(world: State, job: Job) -> None:
    """A job with nothing in lanes and nothing in flight waits for something that will come."""
    expansion, ledger = job.query, world.outbox
    # else it is asked for, and the type waits for that
    knows_site = not job.pool.kind.detached or world.attachments.site
    is_served = job.pool is world.pools[job.pool.name] and job.pool.name in world.config.agents
    if not is_served or (job.host is not None and job.host not in job.pool.free):
        broken("has_future", f"job {job.pk} waits for type {job.pool.name} on {job.host}, which is gone")
    if job.verdict is None and expansion is not None:
        if expansion.state is not QueryState.EXHAUSTED or expansion.second_tries:
            return
    elif job.verdict is None and job.rules.unread:
        sent = [getattr(each, "request", each) for each in (ledger.in_flight, *ledger.repeats, *ledger.locked)]
        if world.suspect is job and job.pk in ledger.saves:
            return
        is_suspect = job.rules.rescued >= SUSPECT_AFTER and job.pk in job.pool.unread
        may_try = world.is_assigning and job.pool.may_begin and knows_site
        if is_suspect and world.suspect is not job and (world.suspect or not may_try):
            return  # its turn comes
        if job.pk in ledger.reads or any((job.pk, job.attempt) in _rows_of(each) for each in sent):
            return
    elif job.verdict is None and world.suspect is job and job.pk in ledger.pending():
        return  # it begins when its row does not say any more that it is tried alone
    elif job.verdict is None and job.rules.rescued:
        sent = [getattr(each, "request", each) for each in (ledger.in_flight, *ledger.repeats, *ledger.locked)]
        pool = job.pool
        is_busy = pool.singles or pool.marking or any(slot.job is not None or slot.wanted is DIE for slot in pool.slots)
        if job in pool.rescued and (is_busy or not world.is_assigning or not pool.may_begin or not knows_site):
            return  # its turn comes with the next room
        if job.pk in ledger.marks or any((job.pk, job.attempt) in _rows_of(each) for each in sent):
            return
    broken("has_future", f"job {job.pk} waits for nothing: {job.verdict and job.verdict.kind}")


def _rows_of(request: object) -> list[tuple[int, int]]:
    rows = getattr(request, "rows", ()) if isinstance(request, Mark | ReadContents | Save) else ()
    return [row[:2] if isinstance(row, tuple) else (row.pk, row.attempt) for row in rows]


def deadlines_are_set(world: State) -> None:
    """No state waits for ever, and the soonest deadline is not after any."""
    soonest = world.deadlines.at[SLOTS]
    for slot in world.slots.all:
        if slot.deadline < soonest:
            broken("deadlines_are_set", f"slot {slot.number}: {slot.deadline} is before the soonest, {soonest}")
        if slot.deadline == NEVER and slot.state not in (ST_FREE, ST_RUNNING):
            broken("deadlines_are_set", f"slot {slot.number} may stay in state {slot.state} for ever")
        if slot.state == ST_RUNNING and slot.deadline == NEVER and slot.timeouts[ST_RUNNING] < NEVER:
            broken("deadlines_are_set", f"slot {slot.number} works without its deadline")


def adopters(world: State) -> set[Slot]:
    """Return the slots of adopted jobs, which need no place of their host."""
    return {slot for slot, keeper in world.attachments.attached.items() if keeper.verb == "adopt"}


def adoptees(world: State) -> set[Job]:
    """Return the adopted jobs, which no limit holds up."""
    waiting = {job for job, _, _ in world.attachments.waiting.values()}
    return waiting | {slot.job for slot in adopters(world) if slot.job is not None}


def limits_change(sim: "Sim", world: State) -> None:
    """Note what began earlier in this turn, by the limits of then."""
    agents, plain = _agents(world), _plain(world)
    for name in world.hosts:
        sim.memory.used |= {name: agents[name], "plain " + name: plain[name]}


def hosts_keep_their_limits(sim: "Sim", world: State) -> None:
    """More agents than the maximum are never started; `urgent` more only for urgent work."""
    agents, before = _agents(world), sim.memory.used
    for host in world.hosts.values():
        count = agents[host.name]
        if host.max != UNLIMITED and count > before.get(host.name, 0) and count > host.max + host.urgent:
            broken("hosts_keep_their_limits", f"host {host.name} has {count} of {host.max}+{host.urgent}")
        before[host.name] = count


def urgent_places_are_for_urgent_work(sim: "Sim", world: State) -> None:
    """Never do more agents than the maximum begin items that are not urgent."""
    plain, before = _plain(world), sim.memory.used
    for host in world.hosts.values():
        count, label = plain[host.name], "plain " + host.name
        if host.max != UNLIMITED and count > host.max and count > before.get(label, 0):
            broken("urgent_places_are_for_urgent_work", f"host {host.name}: {count} of {host.max} not urgent")
        before[label] = count


def _agents(world: State) -> Counter[str]:
    """Return how many agents each host has beside those of adopted jobs."""
    adopted = Counter(slot.host.name for slot in adopters(world))
    return Counter({host.name: host.used - adopted[host.name] for host in world.hosts.values()})


def _plain(world: State) -> Counter[str]:
    """Return how many of these work at what is not urgent."""
    adopted = adopters(world)
    working = (s for s in world.slots.all if s.job is not None and s.state != ST_FREEING and s not in adopted)
    return Counter(s.host.name for s in working if s.job is not None and not s.job.is_urgent)


def queues_keep_their_limits(sim: "Sim", world: State) -> None:
    """Jobs in hand of a queue are counted right and never grow beyond its concurrency."""
    in_hand = Counter(job.queue for job in world.jobs.values())
    adopted = Counter(job.queue for job in adoptees(world))
    before = sim.memory.used
    for queue in world.queues.values():
        count, label = in_hand[queue.name], "queue " + queue.name
        if queue.in_hand != count:
            broken("queues_keep_their_limits", f"queue {queue.name}: {queue.in_hand} in hand of {count}")
        count -= adopted[queue.name]  # they ran already, whatever was claimed meanwhile
        limits = (queue.concurrency, sim.memory.limits.get(queue.name))
        if count > before.get(label, 0) and all(limit is not None and count > limit for limit in limits):
            broken("queues_keep_their_limits", f"queue {queue.name}: {count} in hand, {limits} allowed")
        before[label] = count


def quotas_keep_their_limits(sim: "Sim", world: State) -> None:
    """Jobs in hand that a quota counts, by what their rows say, never grow beyond it (T116)."""
    before, sim.memory.quotas = sim.memory.quotas, {}
    counted = Counter(key for job in world.jobs.values() for key in job.quotas)
    if counted != +world.quotas.in_hand:
        broken("quotas_keep_their_limits", f"counted are {world.quotas.in_hand}, in hand {counted}")
    adopted = adoptees(world)
    for quota in world.quotas.all:
        jobs = [job for job in world.jobs.values() if (job.verdict is None or job.started) and job not in adopted]
        rows = [sim.database.rows[job.pk] for job in jobs]
        fit = [
            row for row in rows
            if quota.queue in ("", row.queue) and quota.host in ("", row.host)
            and quota.user in ("", "*", row.submitter) and (not quota.tenant or row.submitter in STAFF)
        ]  # fmt: skip
        for who, count in Counter(row.submitter if quota.user == "*" else "" for row in fit).items():
            label = replace(quota, most=0), who
            if quota.most < count > before.get(label, 0 if (replace(quota, most=0), None) in before else count):
                broken("quotas_keep_their_limits", f"{quota}: {count} in hand {who}")
            sim.memory.quotas[label] = count
        sim.memory.quotas[replace(quota, most=0), None] = 0  # it was there


def claims_leave_what_is_reserved(world: State, turn: EndAndClaim) -> None:
    """Queues without a reservation claim nothing that would be in the way of one that has some."""
    kept = {q.name: q.reserved for q in world.queues.values() if q.reserved and not q.paused}
    if not kept:
        return
    in_hand = Counter((job.pool, job.queue) for job in world.jobs.values())
    for pool, urgent in product(world.pools.values(), (False, True)):  # urgent rows have places of their own
        own = Counter({queue: count for (of, queue), count in in_hand.items() if of is pool})
        wanted = [want for want in turn.wanted if want.type == pool.name and (urgent or not want.urgent)]
        asked = sum(want.most for want in wanted if want.queue not in kept)
        common = asked + sum(count for queue, count in own.items() if queue not in kept)
        slots = Counter(slot.host.name for slot in pool.slots if slot.host.is_open)
        places = {name: (max(host.max, 0) or slots[name]) + urgent * host.urgent for name, host in world.hosts.items()}
        size = sum(min(count, places[name]) for name, count in slots.items())
        if asked and common > max(size - min(sum(kept.values()), size - 1), 0):
            broken("claims_leave_what_is_reserved", f"{common} of {pool.name} in hand, {kept} is kept of {size}")


def rows_are_memory(sim: "Sim") -> None:
    """I1, I2: a row that is ours in the database is in memory, or its claim or loss is on its way to us."""
    daemon, database = sim.daemon, sim.database
    live: set[int] | None = None
    for row in database.hand.values():
        if row.holder != daemon.owner or row.pk in daemon.core.state.jobs or database.runs_detached(row):
            continue
        if live is None:
            pending = daemon.core.state.outbox.pending()
            live = {*daemon.core.state.jobs, *pending}
        if row.pk not in live and not daemon.may_have_lost(row):
            broken("rows_are_memory", f"job {row.pk} attempt {row.attempt_in_hand} is in hand, and nobody knows it")


def jobs_return_with_their_host(sim: "Sim") -> None:
    """Jobs that are blocked on a host that is up are looked at soon, by the daemon after a crash too (C56)."""
    daemon, now = sim.daemon, sim.now
    if not (daemon.is_alive and daemon.watch.is_up and daemon.watch.is_serving):
        return
    for recovery in sim.database.conditions.values():
        name = recovery.name.removeprefix("host:")
        if recovery.jobs and name != recovery.name and daemon.links.get(name):
            since = max(recovery.looked, daemon.up_since[name], daemon.watch.sees_since)
            if now - since > SOON_S:
                broken("jobs_return_with_their_host", f"{recovery.name} was not looked at for {now - since:.1f} s")


def blocked_jobs_are_listed(sim: "Sim") -> None:
    """A blocked row is on the list of its condition and on no other, and no other row is (T77, T88)."""
    listed = sorted(pk for recovery in sim.database.conditions.values() for pk in recovery.jobs)
    blocked = sorted(row.pk for row in sim.database.open.values() if row.state == BLOCKED)
    if listed != blocked:
        broken("blocked_jobs_are_listed", f"{listed} are listed, {blocked} are blocked")


def conditions_end(sim: "Sim") -> None:
    """No condition is checked more often in vain than its policy allows (T90)."""
    most = sim.database.policy.max_tries
    for recovery in sim.database.conditions.values():
        if most and recovery.tries > most:
            broken("conditions_end", f"{recovery.name} was checked {recovery.tries} times of {most}")


def rows_say_where_they_run(sim: "Sim", world: State) -> None:
    """A row that says running names the agent that works on it, once all is written."""
    outbox, daemon = world.outbox, sim.daemon
    if outbox.in_flight is not None or outbox.repeats or outbox.locked:
        return
    for slot in world.slots.all:
        job = slot.job
        if job is None or job.query is not None or job.verdict is not None or slot.state != ST_RUNNING:
            continue
        if slot in world.begun_slots or job.pk in outbox.marks or job.pk in outbox.saves:
            continue
        if (
            slot.pid is None or slot in world.attachments.first_lines
        ):  # it is attached, and has not said yet to which keeper
            continue
        row = sim.database.owned(daemon.owner, job.pk, job.attempt)
        if (
            row is not None
            and not row.unmarkable
            and row.state == RUNNING
            and row.place_of_work != (slot.host.name, slot.pid)
        ):
            broken("rows_say_where_they_run", f"job {job.pk} is at {slot.where}, its row says {row.place_of_work}")


def cursors_match_expanding(sim: "Sim", world: State) -> None:
    """Connections are held by the jobs that the core counts, and no more of them than there are."""
    timers, before = world.timers, sim.memory.used
    if len(world.expanding) > max(timers.expansions, before.get("expansions", 0)):
        broken("cursors_match_expanding", f"{len(world.expanding)} queries are open")
    known = world.expanding | world.kept.keys()
    if not world.effects and set(sim.daemon.cursors) != known:
        broken("cursors_match_expanding", f"{set(sim.daemon.cursors)} are open, {known} are known")
    for pool in world.pools.values():
        count = sum(1 for job in pool.query_jobs.values() if job.query is not None and job.query.has_connection)
        if count > max(timers.expansions_per_type, before.get("queries of " + pool.name, 0)):
            broken("cursors_match_expanding", f"{count} queries of {pool.name} are open")
        before["queries of " + pool.name] = count
    before["expansions"] = len(world.expanding)


def idle_agents_have_connections(world: State) -> None:
    """No query waits for a connection while an agent is idle and one is free, or could be given back at once (F49).

    Could be: by a query with a key, by one of which nothing was handed out, or by one whose rows have room in a file.
    """
    if world.effects or world.dirty or world.is_held or not world.is_assigning:
        return
    every, used = min(world.timers.expansions, world.most_queries), len(world.expanding)
    room = world.timers.msq_file_bytes - sum(world.kept.values())
    can_give = used == every and any(_can_give(world.jobs[pk], room) for pk in world.expanding)
    for pool in [pool for pool in world.pools.values() if pool.may_begin and (used < every or can_give)]:
        queries = [(job, job.query) for job in pool.query_jobs.values() if job.query is not None]
        begun = [job for job, query in queries if query.state is not QueryState.WAITING or query.fetched]
        coming = (QueryState.OPENING, QueryState.FETCHING, QueryState.KEEPING)
        if any(not job.waiting and query.state in coming for job, query in queries):
            continue  # rows are about to come
        waiting = [job for job, query in queries if job.waits_for_connection and query.needs_bytes <= max(room, 0)]
        for job in [job for job in waiting if not job.waiting]:
            at = pool.queues.of(job, job.host)
            idle = [slot for slot in pool.slots if slot.state == ST_READY and at.suits(slot.host.name)]
            is_allowed = len([other for other in begun if other is not job]) < world.timers.expansions_per_type
            if is_allowed and [slot for slot in idle if not slot.host.is_tight]:
                broken("idle_agents_have_connections", f"job {job.pk} has none, {used} of {every} are in use")


def _can_give(job: Job, room: float) -> bool:
    """Return whether a query has rows in lanes and can give its connection back; one in the way of that will soon."""
    query = job.query
    if query is None or query.state is not QueryState.OPEN or not job.waiting:
        return False
    return bool(job.rules.key)


def last_connection_is_free_or_can_be(sim: "Sim", world: State) -> None:
    """The last connection is not held by a query that has begun, has no key and cannot leave its rows to a file (F49).

    That is so once one was free under the limits of now. It is looked at where there are no files.
    """
    every, used = min(world.timers.expansions, world.most_queries), len(world.expanding)
    limits, before = int(min(every, 99)) + 100 * (not world.timers.msq_file_bytes), sim.memory.used
    if used < every:
        before["free under"] = limits
    if used < every or every < 2 or limits < 100 or before.get("free under") != limits:
        return
    jobs = [(world.jobs[pk], world.jobs[pk].query) for pk in world.expanding]
    if not any(query is None or _may_leave(job, query) for job, query in jobs):
        broken("last_connection_is_free_or_can_be", f"jobs {sorted(world.expanding)} have all {every} connections")


def _may_leave(job: Job, query: JobQuery) -> bool:
    is_known = query.fetched and query.state in (QueryState.OPEN, QueryState.FETCHING)
    return bool(job.rules.key) or not is_known or query.total - query.fetched <= query.batch


def begun_work_is_never_forgotten(sim: "Sim", pks: set[int]) -> None:
    """I1: what a daemon itself gives back as lost on its way was never begun by it."""
    for row in (sim.database.rows[pk] for pk in pks):
        if (row.pk, row.attempt) in sim.begun:
            broken("rows_are_memory", f"job {row.pk} attempt {row.attempt} was begun, and is given back as unknown")


def no_wake_up_is_lost(sim: "Sim", world: State) -> None:
    """A place that is held to be empty is empty, unless a wake-up or a claim is on its way."""
    daemon = sim.daemon
    if not world.is_assigning or daemon.watch.woken_in_flight or daemon.flight is not None or not daemon.watch.is_up:
        return
    ledger = world.outbox
    if not daemon.is_queue_up or ledger.repeats or ledger.locked or ledger.saves or ledger.parents:
        return
    for kind, queue, host, urgent, letters in world.claims.empty:
        rows = sim.database.claimable((kind, queue, host), urgent, sim.now)
        if letters is not None:
            rows = (row for row in rows if row.urgent == urgent and letters[0] <= row.letter < letters[1])
        if next(rows, None) is not None:
            broken("no_wake_up_is_lost", f"{kind}, {queue}, {host!r}, {letters} is held to be empty")


def what_is_in_hand_is_noted(sim: "Sim") -> None:
    """A rescue looks only where drover.in_hand points to; detached jobs that run are found in drover.detached."""
    noted = {pk for _, pks, _ in sim.database.noted for pk in pks}
    if lost := [pk for pk, row in sim.database.hand.items() if pk not in noted and not sim.database.runs_detached(row)]:
        broken("what_is_in_hand_is_noted", f"no record or row says that these jobs are in hand: {lost}")


def leases_are_single(sim: "Sim") -> None:
    """I3, I4: a row in hand has an owner; whatever is not in hand has none."""
    for row in sim.database.hand.values():
        is_told = row.owner is not None and row.attempt >= 1 and row.state in IN_HAND and row.taken_by is None
        if not is_told and (row.taken_by is None or row.owner is not None or row.state != QUEUED):
            broken("leases_are_single", f"job {row.pk} is {row.state} of {row.owner}, by a record of {row.taken_by}")


def handovers_are_whole(given: dict[str, Any], again: dict[str, Any]) -> None:
    """A core that was made of a document would hand the same one over."""
    for document in (given, again):
        for each in document[
            "types"
        ].values():  # of a rate of items both have the tokens of now: see item_rates_are_kept
            each.pop("tokens", None)
    for key, value in given.items():
        if again[key] == value:
            continue
        pairs = zip(value, again[key], strict=False) if isinstance(value, list) else ((value, again[key]),)
        broken("handovers_are_whole", f"{key}: {[pair for pair in pairs if pair[0] != pair[1]][:2]}")


def time_goes_on(sim: "Sim", deadline: float) -> None:
    """A deadline that has come is dealt with: no spinning."""
    memory = sim.memory
    memory.ticks = memory.ticks + 1 if memory.ticked_at == sim.now and deadline <= sim.now else 0
    memory.ticked_at = sim.now
    if memory.ticks > MOST_TICKS:
        broken("time_goes_on", f"{memory.ticks} ticks at {sim.now}")


def what_is_killed_is_worked_no_more(world: State) -> None:
    """An agent that has a line of a job that was killed or cancelled in hand is on its way out."""
    for slot in world.slots.all:
        verdict = slot.job.verdict if slot.job is not None else None
        if slot.job is not None and verdict is not None and verdict.kills and slot.state in (ST_READY, ST_RUNNING):
            broken("commands_are_kept", f"job {slot.job.pk} is killed, and slot {slot.number} works on")


# ---- at the last


def all_ended(sim: "Sim") -> bool:
    """Return whether every row has ended that can."""
    return all(is_excused(row) for row in sim.database.open.values()) and not sim.spools.live


def is_excused(row: Row) -> bool:
    """Return whether a row can never run: it waits for a parent that ended otherwise, or can never end itself."""
    waits = [edge.parent for edge in row.above if not edge.met]
    return bool(waits) and any(parent.state in TERMINAL or is_excused(parent) for parent in waits)


def everything_ends(sim: "Sim") -> None:
    """Liveness: without faults no job stays queued while its type has room, and all that can end ends."""
    left = [row for row in sim.database.open.values() if not is_excused(row)]
    if left:
        told = ", ".join(f"{r.pk} {r.type} {r.queue} {r.host!r} {r.state} unmet {r.unmet}" for r in left[:8])
        broken("everything_ends", f"{len(left)} jobs at {sim.now:.0f} s after {sim.steps} steps: {told}")
    if live := sim.spools.live:
        told = ", ".join(f"{each.pk}.{each.attempt} on {each.host}" for each in live)
        broken("everything_ends", f"all jobs have ended, and commands run: {told}")
