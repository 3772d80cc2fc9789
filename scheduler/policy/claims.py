"""How many rows of which type to claim, and from where: what the agents will eat soon, and never none at all.

Held for a type is what its agents eat in about `hold` seconds, measured, and at least what could start at once; one
row is always asked for, so that a type without room shows that it needs some. A (type, queue, host) that proved
empty is not asked for again until something wakes us.

A claim goes on where the last one of its place ended. Rows that came in before that are found by a look at the whole
place, every second time, or less often when that is slow: while somebody holds a snapshot, the index still names all
that was claimed since.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from scheduler.model.config import Scheduler
from scheduler.model.events import Turn
from scheduler.model.jobs import START, After, Want
from scheduler.policy.jobs import Job
from scheduler.policy.pools import HostBook, Pool
from scheduler.policy.room import startable

Place = tuple[str, str, str, bool]  # type, queue, host, urgent only
PAUSE: Final = 9  # times what a look at whole places costs more than others: so long until the next


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
    """Which places are known to be empty, and how far the others are claimed."""

    __slots__ = ("_asked_at", "_from_start", "_start_at", "_took", "_turn", "_woken", "dry", "reached")

    def __init__(self) -> None:
        self.dry: set[Place] = set()
        self.reached: dict[Place, After] = {}
        self._woken = False  # since we last asked: what came then, the answer may not have seen
        self._turn = 0  # whose place is asked for first
        self._from_start = True  # whether what we asked last were whole places
        self._start_at = 0.0  # when whole places may be asked for again
        self._asked_at = 0.0
        self._took = 0.0  # seconds of the last claim that went on where another ended

    def wake(self) -> None:
        """Something may have come anywhere."""
        self.dry.clear()
        self._woken = True

    def asked(self, turn: Turn, now: float) -> None:
        """A turn goes to the database now."""
        self._woken = False
        if turn.wants:
            self._asked_at = now
            self._from_start = all(want.after == START for want in turn.wants)

    def wants(
        self,
        pools: Iterable[Pool],
        queues: Sequence[QueueBook],
        hosts: Sequence[HostBook],
        timers: Scheduler,
        now: float,
    ) -> list[Want]:
        """Give what to ask for now. The room of a queue is shared out, to another place first each time."""
        if not self._from_start and now >= self._start_at:
            self.reached.clear()
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
                    yield Want(*place, count or 1, self.reached.get(place, START), pool.is_guarded)

    def turned(self, turn: Turn, found: Mapping[Want, int], reached: Mapping[Want, After], now: float) -> None:
        """Learn from the answer: how many were found for each want, and how far the claim got."""
        if turn.wants:
            self._time(now - self._asked_at, now)
        is_proof = not (turn.ends or self._woken)  # what ends beside a claim, or comes meanwhile, it cannot see
        for want in turn.wants:
            place = want[:4]
            if found.get(want, 0) == want.most:
                self.reached[place] = reached[want]
                continue
            self.reached.pop(place, None)
            if want.after == START and is_proof:
                self.dry.add(place)

    def _time(self, took: float, now: float) -> None:
        if self._from_start:
            self._start_at = now + PAUSE * max(0.0, took - self._took)
        else:
            self._took = took


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
    target = min(target, timers.hold_max)
    count = target - held if held < room or held * 2 <= target else 0  # many at once, while the rest is being worked
    count = max(0, min(count, timers.fetch_limit or count))
    urgent = not count and not has_urgent(pool) and startable(pool, urgent=True) > 0
    return count, urgent


def has_urgent(pool: Pool) -> bool:
    """Say whether urgent work of this type waits in hand."""
    lanes = [pool.any.first, *(turns.first for turns in pool.bound.values())]
    return any(first and is_urgent(first[0].job) for first in lanes)


def is_urgent(job: Job) -> bool:
    """Say whether a job may use a host's urgent slots."""
    return job.rank.startswith(b"0")
