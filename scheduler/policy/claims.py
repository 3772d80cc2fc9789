"""How many rows of which type to claim: what the agents will eat soon, and never none at all.

Held for a type is what its agents eat in about `hold` seconds, measured, and at least what could start at once; one
row is always asked for, so that a type without room shows that it needs some. A (type, queue, host) that proved
empty is not asked for again until something wakes us.
"""

from collections.abc import Iterable, Iterator, Sequence

from scheduler.model.config import Scheduler
from scheduler.model.events import Turn
from scheduler.model.jobs import Claim, Want
from scheduler.policy.jobs import Job
from scheduler.policy.pools import HostBook, Pool
from scheduler.policy.room import startable

Place = tuple[str, str, str, bool]  # type, queue, host, urgent only


class QueueBook:
    """A queue of the group and how many of its jobs are in hand."""

    __slots__ = ("concurrency", "in_hand", "name", "paused")

    def __init__(self, name: str, concurrency: int | None, paused: bool, in_hand: int = 0) -> None:
        self.name = name
        self.concurrency = concurrency
        self.paused = paused
        self.in_hand = in_hand

    @property
    def room(self) -> int | None:
        """Give how many more jobs may be in hand; None for no limit."""
        if self.paused:
            return 0
        return None if self.concurrency is None else max(0, self.concurrency - self.in_hand)


class Claims:
    """Which places are known to be empty."""

    __slots__ = ("_turn", "_woken", "dry")

    def __init__(self) -> None:
        self.dry: set[Place] = set()
        self._woken = False  # since we last asked: what came then, the answer may not have seen
        self._turn = 0  # whose place is asked for first

    def wake(self) -> None:
        """Something may have come anywhere."""
        self.dry.clear()
        self._woken = True

    def asked(self) -> None:
        """A turn goes to the database now."""
        self._woken = False

    def wants(
        self, pools: Iterable[Pool], queues: Sequence[QueueBook], hosts: Sequence[HostBook], timers: Scheduler
    ) -> list[Want]:
        """Give what to ask for now. The room of a queue is shared out, to another place first each time."""
        left = {queue.name: queue.room for queue in queues if queue.room != 0}
        if not left:
            return []
        wants = [
            want
            for pool in pools
            if pool.enabled and pool.blocked_until == 0.0
            for want in self._of_pool(pool, left, hosts, timers)
        ]
        self._turn += 1
        first = self._turn % (len(wants) or 1)
        return list(_within(left, wants[first:] + wants[:first]))

    def _of_pool(
        self, pool: Pool, queues: Iterable[str], hosts: Sequence[HostBook], timers: Scheduler
    ) -> Iterator[Want]:
        count, urgent = how_many(pool, timers)
        if not count and not urgent:
            return
        names = ["", *(host.name for host in hosts if host.enabled and host.name in pool.free)]
        for queue in queues:
            for name in names:
                place = (pool.name, queue, name, not count)
                if place not in self.dry:
                    yield Want(*place, count or 1)

    def turned(self, turn: Turn, claims: Sequence[Claim]) -> None:
        """Learn from the answer. A claim that came short proves a place empty only if nothing ended beside it."""
        if turn.ends or self._woken:
            return
        found: dict[tuple[str, str, str], int] = {}
        for claim in claims:
            at = (claim.type, claim.queue, claim.host)
            found[at] = found.get(at, 0) + 1
        for want in turn.wants:
            if found.get((want.type, want.queue, want.host), 0) < want.most:
                self.dry.add((want.type, want.queue, want.host, want.urgent))


def _within(left: dict[str, int | None], wants: Iterable[Want]) -> Iterator[Want]:
    """Give the wants that the room left in their queues allows, and use that room up."""
    for want in wants:
        room = left[want.queue]
        if room is None:
            yield want
        elif room > 0:
            most = min(want.most, room)
            left[want.queue] = room - most
            yield want._replace(most=most)


def how_many(pool: Pool, timers: Scheduler) -> tuple[int, bool]:
    """Give how many rows of a type to ask for, and whether to ask for an urgent one although there is no room."""
    held = pool.singles + pool.arriving + len(pool.rescued) + len(pool.marking)
    feeding = 0
    for job in pool.live_jobs.values():
        if job.expansion is None or job.expansion.is_fed:
            continue
        held += not job.expansion.opening
        feeding += job.expansion.opening
    room = 0 if feeding else startable(pool, urgent=False)
    target = max(room, int(pool.rate * timers.hold), 1)
    most = min(timers.hold_max, timers.fetch_limit or timers.hold_max)
    count = max(0, min(target, most) - held)
    urgent = not count and not has_urgent(pool) and startable(pool, urgent=True) > 0
    return count, urgent


def has_urgent(pool: Pool) -> bool:
    """Say whether urgent work of this type waits in hand."""
    lanes = [pool.any.first, *(turns.first for turns in pool.bound.values())]
    return any(first and is_urgent(first[0].job) for first in lanes)


def is_urgent(job: Job) -> bool:
    """Say whether a job may use a host's urgent slots."""
    return job.rank.startswith(b"0")
