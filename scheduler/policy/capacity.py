"""Where the next agent of a type is started, which idle one makes room for it, and what is kept free for queues.

A host is full when its agents have reached its maximum, idle ones included. Then an agent of another type is asked to
go: the one idle longest, if it has been idle for `min_idle` (F119, F121). A type whose work has waited that long for
room takes the next agent of another type that becomes free instead, once per `min_idle` and host, so that no type can
lock out another by never being idle and two types cannot kill each other's agents in turns (F2, F120). A type whose
last start on a host failed is started there as slots.py says.

For a queue with `reserved = 2` the jobs of other queues leave two agents of each type, and two places on the hosts in
all. It is a limit of what these have in hand, whether the two are in use or not, so that they are free again at once.
What is in hand is counted from the jobs, without a counter that could go wrong. Of each type one agent is always left
to the others.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from scheduler.model.jobs import ClaimRequest
from scheduler.model.states import NEVER
from scheduler.policy.hosts import UNLIMITED, HostState
from scheduler.policy.job import Job, Pool
from scheduler.policy.run_queue import RunQueue
from scheduler.policy.slots import Slot


class StartDecision(NamedTuple):
    """What to do for one more agent: start it here, kill this one first, or look again at `until`."""

    slot: Slot | None = None
    victim: Slot | None = None
    yields: HostState | None = None  # the next agent of another type that becomes free here must go
    until: float = NEVER


def find_room(pool: Pool, where: RunQueue[Job], urgent: bool, now: float, min_idle: float) -> StartDecision:
    """Return what to do for one more agent of a type, for a run queue."""
    free = [slots[0] for name, slots in pool.free.items() if slots and where.suits(name)]
    if not pool.failed_starts:
        return _find_among(free, pool, urgent, now, min_idle)
    begin_job = {slot: slot.host.start_from(pool) for slot in free}
    room = _find_among([slot for slot in free if begin_job[slot] <= now], pool, urgent, now, min_idle)
    later = min((instant for instant in begin_job.values() if instant > now), default=NEVER)
    return room._replace(until=min(room.until, later))


def _find_among(free: list[Slot], pool: Pool, urgent: bool, now: float, min_idle: float) -> StartDecision:
    ready = [slot for slot in free if slot.host.has_room(urgent) and not slot.host.is_kept_from(pool)]
    if ready:
        return StartDecision(slot=min(ready, key=_load))
    hosts = list(dict.fromkeys(slot.host for slot in free if slot.host.is_open and not slot.host.is_kept_from(pool)))
    if any(host.leaving for host in hosts):
        return StartDecision()  # one is on its way out: its end brings us back
    idle = [slot for host in hosts if (slot := _longest_idle(host, pool)) is not None]
    due = {host: may_take(pool, host, min_idle) for host in hosts}
    if not idle:
        first = min(due, key=lambda host: due[host], default=None)
        if first is None:
            return StartDecision()
        return StartDecision(yields=first) if due[first] <= now else StartDecision(until=due[first])
    oldest = min(idle, key=lambda slot: slot.since)
    until = min(oldest.since + min_idle, due[oldest.host])
    return StartDecision(victim=oldest) if until <= now else StartDecision(until=until)


def may_take(pool: Pool, host: HostState, min_idle: float) -> float:
    """Return the instant from which a starving type may take a busy type's next free agent on a host."""
    return max(pool.starving_since, host.yielded_at) + min_idle


def _longest_idle(host: HostState, pool: Pool) -> Slot | None:
    """Return the agent of another type that has had nothing to do for longest on a host."""
    return next((slot for slot in host.idle if slot.pool is not pool and _is_spare(slot)), None)


def _is_spare(slot: Slot) -> bool:
    """Say whether an idle agent has nothing to do; one that has just come up for work that waits is about to get it."""
    pool = slot.pool
    return not (pool.may_begin and (slot.any.first or slot.bound.first or (pool.second_tries and not slot.items)))


def _load(slot: Slot) -> tuple[float, int, float]:
    """Order hosts by how full they are, then by which slot was used longest ago."""
    host = slot.host
    return (host.used / host.max if host.max > 0 else 0.0, host.used, slot.since)


def kept_free(
    wanted: Sequence[ClaimRequest],
    reserved: Mapping[str, int],
    pools: Sequence[Pool],
    hosts: Sequence[HostState],
    jobs: Iterable[Job],
) -> Iterator[ClaimRequest]:
    """Yield the requests that leave to each queue what is reserved for it; jobs: all that are in hand."""
    room, total = _Reservations(reserved, pools, hosts, jobs), sum(reserved.values())
    for request in wanted:
        others = total - reserved.get(request.queue, 0)
        if not others:
            yield request
        elif (most := room.beside(request, others)) > 0:
            room.use(request, most)
            yield request._replace(most=most)


class _Reservations:
    """How many jobs could be worked at once, by type and in all, and how many of the common queues are in hand."""

    __slots__ = ("_common", "_own", "_reserved", "_sizes", "_total")

    def __init__(
        self, reserved: Mapping[str, int], pools: Sequence[Pool], hosts: Sequence[HostState], jobs: Iterable[Job]
    ) -> None:
        most = {host.name: host.max for host in hosts if host.is_open}
        on_host = dict.fromkeys(most, 0)
        self._sizes: dict[str, int] = {}
        for pool in pools:
            slots = [slot.host.name for slot in pool.slots if slot.host.name in most]
            self._sizes[pool.name] = sum(_at_most(slots.count(name), most[name]) for name in set(slots))
            for name in slots:
                on_host[name] += 1
        self._total = sum(_at_most(on_host[name], limit) for name, limit in most.items())
        self._reserved = reserved
        self._own = {(pool.name, queue): 0 for pool in pools for queue in reserved}
        self._common = dict.fromkeys(self._sizes, 0)
        for (name, queue), count in Counter((job.pool.name, job.queue) for job in jobs).items():
            self._use(name, queue, count)

    def beside(self, request: ClaimRequest, others: int) -> int:
        """Return how many rows may be claimed for a request where so many agents are for other queues."""
        of_type = (
            self._sizes[request.type] - self._common[request.type] - self._own.get((request.type, request.queue), 0)
        )
        of_all = self._total - sum(self._common.values())
        of_all -= sum(count for (_, queue), count in self._own.items() if queue == request.queue)
        return min(
            request.most,
            of_type - min(others, self._sizes[request.type] - 1),
            of_all - min(others, self._total - 1),
        )

    def use(self, request: ClaimRequest, count: int) -> None:
        """Count rows that are going to be claimed."""
        self._use(request.type, request.queue, count)

    def _use(self, name: str, queue: str, count: int) -> None:
        if queue in self._reserved:
            self._own[name, queue] += count
        else:
            self._common[name] += count


def _at_most(count: int, limit: int) -> int:
    return count if limit == UNLIMITED else min(count, limit)
