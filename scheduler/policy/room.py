"""Where the next agent of a type is started, and which idle one must go to make room for it.

A host is full when its agents have reached its maximum, idle ones included. Then an agent of another type is asked to
go: the one idle longest, if it has been idle for `min_idle` (F119, F121). A type whose work has waited that long for
room takes the next agent of another type that becomes free instead, once per `min_idle` and host, so that no type can
lock out another by never being idle and two types cannot kill each other's agents in turns (F2, F120). A type whose
last start on a host failed is started there as throttle.py says.
"""

from typing import NamedTuple

from scheduler.model.states import NEVER
from scheduler.policy.jobs import Job
from scheduler.policy.pools import HostBook, Pool, Slot
from scheduler.policy.throttle import start_from
from scheduler.policy.turns import Turns


class Room(NamedTuple):
    """What to do for one more agent: start it here, kill this one first, or look again at `until`."""

    slot: Slot | None = None
    victim: Slot | None = None
    yields: HostBook | None = None  # the next agent of another type that becomes free here must go
    until: float = NEVER


def startable(pool: Pool, *, urgent: bool, hosts: frozenset[str] | None = None) -> int:
    """Give how many more items could begin at once, on idle agents and on new ones, of some hosts or of all."""
    idle = new = 0
    if not urgent:
        idle = sum(map(len, pool.idle.values() if hosts is None else [pool.idle[name] for name in hosts]))
    for name, slots in pool.free.items():
        if not slots or not (hosts is None or name in hosts):
            continue
        host = slots[0].host
        if host.has_room(urgent):
            new += int(min(len(slots), host.spare(urgent)))
    return idle + new


def find_room(pool: Pool, where: Turns[Job], urgent: bool, now: float, min_idle: float) -> Room:
    """Say what to do for one more agent of a type for what waits there."""
    free = [slots[0] for name, slots in pool.free.items() if slots and where.suits(name)]
    if not pool.failed_starts:
        return _find_among(free, pool, urgent, now, min_idle)
    begin = {slot: start_from(pool, slot.host) for slot in free}
    room = _find_among([slot for slot in free if begin[slot] <= now], pool, urgent, now, min_idle)
    later = min((instant for instant in begin.values() if instant > now), default=NEVER)
    return room._replace(until=min(room.until, later))


def _find_among(free: list[Slot], pool: Pool, urgent: bool, now: float, min_idle: float) -> Room:
    ready = [slot for slot in free if slot.host.has_room(urgent) and not slot.host.is_kept_from(pool)]
    if ready:
        return Room(slot=min(ready, key=_load))
    hosts = list(dict.fromkeys(slot.host for slot in free if slot.host.is_open and not slot.host.is_kept_from(pool)))
    if any(host.leaving for host in hosts):
        return Room()  # one is on its way out: its end brings us back
    idle = [slot for host in hosts if (slot := _longest_idle(host, pool)) is not None]
    due = {host: may_take(pool, host, min_idle) for host in hosts}
    if not idle:
        first = min(due, key=lambda host: due[host], default=None)
        if first is None:
            return Room()
        return Room(yields=first) if due[first] <= now else Room(until=due[first])
    oldest = min(idle, key=lambda slot: slot.since)
    until = min(oldest.since + min_idle, due[oldest.host])
    return Room(victim=oldest) if until <= now else Room(until=until)


def may_take(pool: Pool, host: HostBook, min_idle: float) -> float:
    """Give the instant from which a starving type may take a busy type's next free agent on a host."""
    return max(pool.starving_since, host.yielded_at) + min_idle


def _longest_idle(host: HostBook, pool: Pool) -> Slot | None:
    """Give the agent of another type that has had nothing to do for longest on a host."""
    return next((slot for slot in host.idle if slot.pool is not pool and _is_spare(slot)), None)


def _is_spare(slot: Slot) -> bool:
    """Say whether an idle agent has nothing to do; one that has just come up for work that waits is about to get it."""
    pool = slot.pool
    return not (pool.may_begin and (slot.any.first or slot.bound.first or (pool.again and not slot.items)))


def _load(slot: Slot) -> tuple[float, int, float]:
    """Order hosts by how full they are, then by which slot was used longest ago."""
    host = slot.host
    return (host.used / host.max if host.max > 0 else 0.0, host.used, slot.since)
