"""How many rows of which type to claim, and from where: what the agents will eat soon, and never none at all.

Held for a type is what its agents eat in about `hold` seconds, measured, and at least what could start at once; one
row is always asked for, so that a type without room shows that it needs some. A (type, queue, host) that proved
empty is not asked for again until something wakes us.

A claim looks at whole places, from their start. While somebody holds a snapshot the index still names all that was
claimed since, and such a look gets dear: then claims go on where the last one of their place ended, for a while, and
look from the start for urgent rows only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from scheduler.model.config import Scheduler
from scheduler.model.events import EndAndClaim
from scheduler.model.jobs import START, URGENT_BELOW, ClaimKey, ClaimPosition, ClaimRequest
from scheduler.model.states import NEVER
from scheduler.policy.capacity import kept_free, startable
from scheduler.policy.entities import HostBook, Job, Pool, QueueBook, is_urgent
from scheduler.policy.run_queue import Turns

PAUSE: Final = 9  # times what a look at whole places cost more than it should: so long until the next
LONGEST_PAUSE: Final = 10.0  # seconds
HELD_BYTES: Final = 16 << 20  # of parameters of a type, if they are as long as those of late
ENOUGH: Final = 100  # rows of a turn that tell what a row costs
SLOWER: Final = 1.25  # times what they cost at best is still as it should be; the best is forgotten slowly
FORGETTING: Final = 1.01


class Claims:
    """Which places are known to be empty, and how far the others are claimed."""

    __slots__ = ("_asked_at", "_each", "_open", "_start_at", "_turn", "_woken", "dry", "reached")

    def __init__(self) -> None:
        self.dry: set[ClaimKey] = set()
        self.reached: dict[ClaimKey, ClaimPosition] = {}
        self._open: dict[
            tuple[str, str, bool], list[ClaimKey]
        ] = {}  # by type and queue: places not dry when last asked
        self._woken = False  # since we last asked: what came then, the answer may not have seen
        self._turn = 0  # whose place is asked for first
        self._start_at = 0.0  # when whole places may be asked for again
        self._asked_at = 0.0
        self._each = NEVER  # seconds that a row costs at best

    def wake(self) -> None:
        """Something may have come anywhere."""
        self.dry.clear()
        self._open.clear()
        self._woken = True

    def asked(self, turn: EndAndClaim, now: float) -> None:
        """A turn goes to the database now."""
        self._woken = False
        if turn.wants:
            self._asked_at = now

    def wants(
        self,
        pools: Iterable[Pool],
        queues: Sequence[QueueBook],
        hosts: Sequence[HostBook],
        jobs: Iterable[Job],
        timers: Scheduler,
        now: float,
    ) -> list[ClaimRequest]:
        """Give what to ask for now. The room of a queue is shared out, to another place first each time."""
        if now >= self._start_at:
            self.reached.clear()
        left = {queue.name: queue.room for queue in queues if queue.room != 0}
        if not left:
            return []
        pools = list(pools)
        wants = [
            want
            for pool in pools
            if pool.may_begin and pool.blocked_until == 0.0
            for want in (
                self._of_pool(pool, left, hosts, timers)
                if pool.doors is None
                else self._of_doors(pool, left, hosts, timers)
            )
        ]
        self._turn += 1
        first = self._turn % (len(wants) or 1)
        wants = wants[first:] + wants[:first]
        if reserved := {queue.name: queue.reserved for queue in queues if queue.reserved and not queue.paused}:
            wants = list(kept_free(wants, reserved, pools, hosts, jobs))
        return list(_within(left, wants))

    def _of_pool(
        self, pool: Pool, queues: Iterable[str], hosts: Sequence[HostBook], timers: Scheduler
    ) -> Iterator[ClaimRequest]:
        if all(self._open.get((pool.name, queue, False)) == [] for queue in queues):
            return  # every place is empty, of urgent rows too
        if pool.singles and len(pool.bound) > 1 and [turns for turns in pool.bound.values() if turns.first]:
            yield from self._of_hosts(pool, queues, hosts, timers)
            return
        count, urgent = how_many(pool, timers)
        if not count and not urgent:
            return
        for queue in queues:
            for place in self._places(pool, queue, hosts, not count):
                yield from self._of_place(pool, place, count)

    def _of_hosts(
        self, pool: Pool, queues: Iterable[str], hosts: Sequence[HostBook], timers: Scheduler
    ) -> Iterator[ClaimRequest]:
        """Ask for each host by itself: what waits for one that is busy holds up nothing that others could take."""
        each = {name: how_many(pool, timers, turns) for name, turns in (("", pool.any), *pool.bound.items())}
        for queue, is_urgent_only in product(queues, (False, True)):
            for place in self._places(pool, queue, hosts, is_urgent_only):
                count, urgent = each[place[2]]
                if urgent if is_urgent_only else count:
                    yield from self._of_place(pool, place, count)

    def _of_place(self, pool: Pool, place: ClaimKey, count: int) -> list[ClaimRequest]:
        after = self.reached.get(place, START)
        wants = [ClaimRequest(*place[:4], count or 1, after, pool.is_guarded)]
        if after.rank >= URGENT_BELOW and (*place[:3], True, None) not in self.dry:
            wants.append(ClaimRequest(*place[:3], True, count, START, pool.is_guarded))
        return wants

    def _of_doors(
        self, pool: Pool, queues: Iterable[str], hosts: Sequence[HostBook], timers: Scheduler
    ) -> Iterator[ClaimRequest]:
        """Ask for each door of a type by itself, urgent rows and others apart."""
        assert pool.doors is not None
        is_open = {host.name for host in hosts if host.is_open}
        for queue in queues:
            for letters, door in pool.doors.runs(queue):
                for name in ("", *sorted(is_open.intersection(door.hosts or ()))):
                    quick = ClaimRequest(pool.name, queue, name, True, 1, START, pool.is_guarded, letters)
                    rest = quick._replace(urgent=False)
                    if {quick.place, rest.place} <= self.dry:
                        continue
                    count, urgent = how_many(pool, timers, pool.bound[name] if name else door)
                    if (count or urgent) and quick.place not in self.dry:
                        yield quick._replace(most=count or 1, after=quick.start)
                    if count and rest.place not in self.dry:
                        yield rest._replace(most=count, after=self.reached.get(rest.place, rest.start))

    def _places(self, pool: Pool, queue: str, hosts: Sequence[HostBook], urgent: bool) -> list[ClaimKey]:
        """Give the places of a type in a queue that may have something."""
        key = pool.name, queue, urgent
        if (known := self._open.get(key)) is not None:
            places = [place for place in known if place not in self.dry]
        else:
            names = ["", *(host.name for host in hosts if host.is_open and host.name in pool.free)]
            places = [place for name in names if (place := (pool.name, queue, name, urgent, None)) not in self.dry]
        self._open[key] = places
        return places

    def turned(
        self,
        turn: EndAndClaim,
        found: Mapping[ClaimRequest, int],
        reached: Mapping[ClaimRequest, ClaimPosition],
        now: float,
    ) -> None:
        """Learn from the answer: how many were found for each want, and how far the claim got."""
        rows = len(turn.ends) + sum(found.values())
        if rows >= ENOUGH:
            self._time(now - self._asked_at, rows, now)
        is_proof = not (turn.ends or self._woken)  # what ends beside a claim, or comes meanwhile, it cannot see
        for want in turn.wants:
            place = (*want[:4], want.letters)
            if found.get(want, 0) == want.most:
                self.reached[place] = reached[want]
                continue
            self.reached.pop(place, None)  # from the start then, for that alone proves it empty
            if want.after.queued == START.queued and is_proof:
                self.dry.add(place)

    def _time(self, took: float, rows: int, now: float) -> None:
        """Pause after a look at whole places that was dear."""
        self._each = min(self._each * FORGETTING, took / rows)
        extra = took - SLOWER * self._each * rows
        if now >= self._start_at and extra > 0:
            self._start_at = now + min(PAUSE * extra, LONGEST_PAUSE)


def _within(left: dict[str, int | None], wants: Iterable[ClaimRequest]) -> Iterator[ClaimRequest]:
    """Give the wants that the room left in their queues allows, and use that room up."""
    for want in wants:
        room = left[want.queue]
        if room is None:
            yield want
        elif room > 0:
            most = min(want.most, room)
            left[want.queue] = room - most
            yield want._replace(most=most)


def how_many(pool: Pool, timers: Scheduler, where: Turns[Job] | None = None) -> tuple[int, bool]:
    """Give how many rows to ask for, and whether to ask for an urgent one although there is no room.

    For a type as a whole, or for what is to wait in some of its lanes by themselves.
    """
    held = pool.singles + pool.arriving + len(pool.rescued) if where is None else _held(pool, where)
    held += len(pool.marking) + len(pool.unread)
    feeding = 0
    for job in pool.live_jobs.values():
        if job.expansion is None or job.expansion.is_fed or (where is not None and pool.place_of(job) is not where):
            continue
        held += not job.expansion.opening
        feeding += job.expansion.opening
    hosts = None if where is None else where.hosts
    room = 0 if feeding else startable(pool, urgent=False, hosts=hosts)
    target = max(room, int(pool.rate * timers.hold), 1)
    target = min(target, timers.hold_max, max(room, 1, int(HELD_BYTES / max(pool.row_bytes, 1.0))))
    count = target - held if held < room or held * 2 <= target else 0  # many at once, while the rest is being worked
    count = max(0, min(count, timers.fetch_limit or count))
    urgent = not count and not has_urgent(pool, where) and startable(pool, urgent=True, hosts=hosts) > 0
    return count, urgent


def _held(pool: Pool, where: Turns[Job]) -> int:
    """Give how many one-parameter jobs wait there, or are about to, but for those that are being marked."""
    rescued = sum(pool.place_of(job) is where for job in pool.rescued)
    lanes = (lane for job in pool.live_jobs.values() for lane in job.lanes.values() if lane.items)
    queries = sum(pool.lanes_of(lane.job, lane.host) is where for lane in lanes)
    return where.count() - queries + pool.coming.get(where, 0) + rescued


def has_urgent(pool: Pool, where: Turns[Job] | None = None) -> bool:
    """Say whether urgent work of this type waits in hand, there or anywhere."""
    lanes = [turns.first for turns in ((where,) if where is not None else (pool.any, *pool.bound.values()))]
    return any(first and is_urgent(first[0].job) for first in lanes)
