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

from scheduler.model.queue_requests import ClaimRequest
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
    start_at = {slot: slot.host.start_from(pool) for slot in free}
    room = _find_among([slot for slot in free if start_at[slot] <= now], pool, urgent, now, min_idle)
    later = min((instant for instant in start_at.values() if instant > now), default=NEVER)
    return room._replace(until=min(room.until, later))


def _find_among(free: list[Slot], pool: Pool, urgent: bool, now: float, min_idle: float) -> StartDecision:
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
    """Say whether an idle agent has nothing to do; one that has just come up for work that waits is about to get it."""
    pool = slot.pool
    return not (pool.may_begin and (slot.any.first or slot.bound.first or (pool.second_tries and not slot.items)))


def _load(slot: Slot) -> tuple[float, int, float]:
    """Order hosts by how full they are, then by which slot was used longest ago."""
    host = slot.host
    return (host.used / host.max if host.max > 0 else 0.0, host.used, slot.since)


def kept_free(
    wanted: Sequence[ClaimRequest], reserved: Mapping[str, int], pools: Sequence[Pool], hosts: Sequence[HostState],
    jobs: Iterable[Job],
) -> Iterator[ClaimRequest]:  # fmt: skip
    """Yield the requests that leave to each queue what is reserved for it; jobs: all that are in hand."""
    sizes, total = _sizes(pools, hosts)
    in_hand = Counter((job.pool.name, job.queue if job.queue in reserved else "") for job in jobs)  # "": all others
    for request in wanted:
        name, queue = request.type, request.queue
        others = sum(reserved.values()) - reserved.get(queue, 0)
        if not others:
            yield request
            continue
        of_type = sizes[name] - in_hand[name, ""] - in_hand[name, queue]
        of_all = total - sum(count for (_, whose), count in in_hand.items() if whose in ("", queue))
        most = min(request.most, of_type - min(others, sizes[name] - 1), of_all - min(others, total - 1))
        if most > 0:
            in_hand[name, queue if queue in reserved else ""] += most
            yield request._replace(most=most)


def _sizes(pools: Sequence[Pool], hosts: Sequence[HostState]) -> tuple[dict[str, int], int]:
    """Return how many jobs could be worked at once, by type and in all."""
    slots = Counter((pool.name, slot.host.name) for pool in pools for slot in pool.slots)
    limits = {host.name: slots.total() if host.max == UNLIMITED else host.max for host in hosts if host.is_open}
    sizes, on_host = dict.fromkeys([pool.name for pool in pools], 0), Counter[str]()
    for (name, host), count in slots.items():
        if host in limits:
            sizes[name] += min(count, limits[host])
            on_host[host] += count
    return sizes, sum(min(count, limits[host]) for host, count in on_host.items())
