"""Decides how many jobs to claim for each agent type, and from which queues and hosts.

A type is to hold what its agents finish in about `hold` seconds, measured, and at least what could start at once; one
row is always asked for, so that a type without room shows that it needs some. A (type, queue, host) that proved
empty is not asked for again until something wakes us.

A claim looks at whole places, from their start. While a session holds a snapshot the index still names all that was
claimed since, and such a look gets dear: then claims go on where the last one of their place ended, for a while, and
look from the start for urgent rows only.

For a queue with `reserved = 2` the jobs of other queues leave two agents of each type, and two places on the hosts in
all. It is a limit of what these have in hand, whether the two are in use or not, so that they are free again at once.
What is in hand is counted from the jobs, without a counter that could go wrong. Of each type one agent is always left
to the others.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from scheduler.model.config import Scheduler
from scheduler.model.queue_requests import START, URGENT_BELOW, ClaimKey, ClaimPosition, ClaimRequest, EndAndClaim
from scheduler.model.states import NEVER
from scheduler.policy.capacity import UNLIMITED, HostState, QueueState
from scheduler.policy.job import Job, Pool
from scheduler.policy.run_queue import RunQueue

PAUSE: Final = 9  # times the excess time of a slow scan from the start: how long none is made
LONGEST_PAUSE: Final = 10.0  # seconds
HELD_BYTES: Final = 16 << 20  # of parameters of a type, if they are as long as those of late
ENOUGH: Final = 100  # rows of an answer that tell what a row costs
SLOWER: Final = 1.25  # times the least time a row has cost: a scan that costs more is slow
FORGETTING: Final = 1.01  # by which the least time grows with each answer


class Claims:
    """The places of rows, as far as claims have read them: which are empty, and up to where the others are claimed."""

    __slots__ = (
        "_asked_at", "_each", "_late", "_looked", "_open", "_rotation", "_start_at", "_woken", "empty", "reached",
    )  # fmt: skip

    def __init__(self) -> None:
        self.empty: set[ClaimKey] = set()
        self.reached: dict[ClaimKey, ClaimPosition] = {}
        # by type, queue and urgency: places not empty when last asked
        self._open: dict[tuple[str, str, bool], list[ClaimKey]] = {}
        self._woken = False  # since we last asked: what came then, the answer may not have seen
        self._looked: set[ClaimKey] = set()  # places that only a rescan has asked for
        self._late: list[tuple[float, int]] = []  # when rows were found there, and how many
        self._rotation = 0  # which type is asked for first
        self._start_at = 0.0  # when whole places may be asked for again
        self._asked_at = 0.0
        self._each = NEVER  # seconds that a row costs at best

    def wake(self) -> None:
        """Ask every place again: something told that rows may have come anywhere."""
        self._looked.clear()
        self._late.clear()
        self.ask_again()

    def look_again(self) -> None:
        """Ask every place again, for a rescan: nothing was told of rows in those that were empty."""
        self._looked = set(self.empty)
        self.ask_again()

    def take_late(self, until: float) -> int:
        """Return how many rows rescans found until then of which nothing has told since; count them once."""
        late = sum(count for at, count in self._late if at <= until)
        self._late = [(at, count) for at, count in self._late if at > until]
        return late

    def ask_again(self) -> None:
        """Ask every place again, since we may claim more than before: what that finds may yet be late."""
        self.empty.clear()
        self._open.clear()
        self._woken = True

    def sent(self, request: EndAndClaim, now: float) -> None:
        """Note that this request goes to the database now."""
        self._woken = False
        if request.wanted:
            self._asked_at = now

    def next_requests(
        self,
        pools: Iterable[Pool],
        queues: Sequence[QueueState],
        hosts: Sequence[HostState],
        jobs: Iterable[Job],
        timers: Scheduler,
        now: float,
    ) -> list[ClaimRequest]:
        """Return what to ask for now. The room of a queue is shared out, to another place first each time."""
        if now >= self._start_at:
            self.reached.clear()
        left = {queue.name: room for queue in queues if (room := queue.room(now)) != 0}
        if not left:
            return []
        pools = list(pools)
        wanted: list[ClaimRequest] = []
        for pool in pools:
            if not pool.is_stopped and pool.blocked_until == 0.0 and not (pool.stops_jobs and pool.is_cut_off):
                of_pool = self._of_pool if pool.queues.filters is None else self._of_filters
                wanted += of_pool(pool, left, hosts, timers)
        self._rotation += 1
        first = self._rotation % (len(wanted) or 1)
        wanted = wanted[first:] + wanted[:first]
        if detailed := {queue.name for queue in queues if queue.rates is not None and queue.rates.limit.each}:
            wanted = [request._replace(detailed=request.queue in detailed) for request in wanted]
        if reserved := {queue.name: queue.reserved for queue in queues if queue.reserved and not queue.paused}:
            wanted = list(self._kept_free(wanted, reserved, pools, hosts, jobs))
        return list(_within(left, wanted))

    def _of_pool(
        self, pool: Pool, queues: Iterable[str], hosts: Sequence[HostState], timers: Scheduler
    ) -> Iterator[ClaimRequest]:
        """Ask for a type as a whole, or for each host by itself if work waits for one: others may take what is left."""
        if not [queue for queue in queues if self._open.get((pool.name, queue, False)) != []]:
            return  # every place is empty, of urgent rows too
        by_host = pool.queues.by_host
        if len(by_host) > 1 and pool.singles and [run_queue for run_queue in by_host.values() if run_queue.first]:
            each = {
                name: how_many(pool, timers, where) for name, where in (("", pool.queues.anywhere), *by_host.items())
            }
            for queue, is_urgent_only in product(queues, (False, True)):
                for place in self._places(pool, queue, hosts, is_urgent_only):
                    count, urgent = each[place[2]]
                    if urgent if is_urgent_only else count:
                        yield from self._of_place(pool, place, count)
            return
        count, urgent = how_many(pool, timers)
        if count or urgent:
            for queue in queues:
                for place in self._places(pool, queue, hosts, not count):
                    yield from self._of_place(pool, place, count)

    def _of_place(self, pool: Pool, place: ClaimKey, count: int) -> list[ClaimRequest]:
        after = self.reached.get(place, START)
        wanted = [ClaimRequest(*place[:4], count or 1, after, pool.is_guarded)]
        if after.rank >= URGENT_BELOW and (*place[:3], True, None) not in self.empty:
            wanted.append(ClaimRequest(*place[:3], True, count, START, pool.is_guarded))
        return wanted

    def _of_filters(
        self, pool: Pool, queues: Iterable[str], hosts: Sequence[HostState], timers: Scheduler
    ) -> Iterator[ClaimRequest]:
        """Ask for each run queue of a type with host filters by itself, urgent rows and others apart."""
        filters, by_host = pool.queues.filters, pool.queues.by_host
        assert filters is not None
        is_open = {host.name for host in hosts if host.is_open}
        for queue in queues:
            for letters, run_queue in filters.runs(queue):
                for name in ("", *sorted(is_open.intersection(run_queue.hosts or ()))):
                    quick = ClaimRequest(pool.name, queue, name, True, 1, START, pool.is_guarded, letters)
                    rest = quick._replace(urgent=False)
                    if {quick.key, rest.key} <= self.empty:
                        continue
                    count, urgent = how_many(pool, timers, by_host[name] if name else run_queue)
                    if (count or urgent) and quick.key not in self.empty:
                        yield quick._replace(most=count or 1, after=quick.start)
                    if count and rest.key not in self.empty:
                        yield rest._replace(most=count, after=self.reached.get(rest.key, rest.start))

    def _kept_free(
        self,
        wanted: Sequence[ClaimRequest],
        reserved: Mapping[str, int],
        pools: Sequence[Pool],
        hosts: Sequence[HostState],
        jobs: Iterable[Job],
    ) -> Iterator[ClaimRequest]:
        """Yield the requests that leave to each queue what is reserved for it; jobs: all that are in hand."""
        sizes = {urgent: _sizes(pools, hosts, urgent) for urgent in (False, True)}
        in_hand = Counter((job.pool.name, job.queue if job.queue in reserved else "") for job in jobs)  # "": all others
        asked = self.empty.union(request.key for request in wanted)

        def room(request: ClaimRequest, others: int) -> int:
            of_types, total = sizes[request.urgent]
            name, size = request.type, of_types[request.type]
            of_type = size - in_hand[name, ""] - in_hand[name, request.queue]
            of_all = total - sum(count for (_, whose), count in in_hand.items() if whose in ("", request.queue))
            return min(request.most, of_type - min(others, size - 1), of_all - min(others, total - 1))

        for request in wanted:
            others = sum(reserved.values()) - reserved.get(request.queue, 0)
            if not others:
                yield request
                continue
            urgent = request._replace(urgent=True, after=request.start)  # has places of its own
            if room(request, others) <= 0 and urgent.key not in asked:
                request = urgent
            if (most := room(request, others)) > 0:
                in_hand[request.type, request.queue if request.queue in reserved else ""] += most
                yield request._replace(most=most)

    def _places(self, pool: Pool, queue: str, hosts: Sequence[HostState], urgent: bool) -> list[ClaimKey]:
        """Return the places of a type in a queue that may have something."""
        key = pool.name, queue, urgent
        if (known := self._open.get(key)) is not None:
            places = [place for place in known if place not in self.empty]
        else:
            names = ["", *(host.name for host in hosts if host.is_open and host.name in pool.free)]
            places = [place for name in names if (place := (pool.name, queue, name, urgent, None)) not in self.empty]
        self._open[key] = places
        return places

    def answered(
        self,
        sent: EndAndClaim,
        found: Mapping[ClaimRequest, int],
        reached: Mapping[ClaimRequest, ClaimPosition],
        now: float,
    ) -> None:
        """Note from an answer how many rows each request found, and how far the claim got."""
        rows = len(sent.ends) + sum(found.values())
        if rows >= ENOUGH:  # after a slow look at whole places pause
            took = now - self._asked_at
            self._each = min(self._each * FORGETTING, took / rows)
            extra = took - SLOWER * self._each * rows
            if now >= self._start_at and extra > 0:
                self._start_at = now + min(PAUSE * extra, LONGEST_PAUSE)
        is_proof = not (sent.ends or self._woken)  # what ends beside a claim, or comes meanwhile, it cannot see
        for request in sent.wanted:
            place = request.key
            if place in self._looked:
                self._looked.discard(place)
                self._late.append((now, found.get(request, 0)))
            if found.get(request, 0) == request.most:
                self.reached[place] = reached[request]
                continue
            self.reached.pop(place, None)  # from the start then, for that alone proves it empty
            if request.after.queued == START.queued and is_proof:
                self.empty.add(place)


def _within(left: dict[str, int | None], wanted: Iterable[ClaimRequest]) -> Iterator[ClaimRequest]:
    """Yield the requests that the room left in their queues allows, and use that room up."""
    for request in wanted:
        room = left[request.queue]
        if room is None:
            yield request
        elif room > 0:
            most = min(request.most, room)
            left[request.queue] = room - most
            yield request._replace(most=most)


def how_many(pool: Pool, timers: Scheduler, where: RunQueue[Job] | None = None) -> tuple[int, bool]:
    """Return how many rows to ask for, and whether to ask for an urgent one although there is no room.

    For a type as a whole, or for what is to wait in some of its lanes by themselves.
    """
    held = pool.singles + pool.arriving + len(pool.rescued) if where is None else _held(pool, where)
    held += len(pool.marking) + len(pool.unread)
    feeding = 0
    for job in pool.query_jobs.values():
        if job.query is None or job.is_fed or (where is not None and pool.queues.of_claim(job) is not where):
            continue
        held += not job.query.has_connection
        feeding += job.query.has_connection
    hosts = None if where is None else where.hosts
    room = 0 if feeding else pool.startable(urgent=False, hosts=hosts)
    target = max(room, int(pool.rate * timers.hold), 1)
    target = min(target, timers.hold_max, max(room, 1, int(HELD_BYTES / max(pool.row_bytes, 1.0))))
    count = target - held if held < room or held * 2 <= target else 0  # many at once, while the rest is being worked
    count = max(0, min(count, timers.fetch_limit or count))
    if count:
        return count, False
    run_queues = (pool.queues.any, *pool.queues.by_host.values()) if where is None else (where,)
    has_urgent = any(run_queue.first and run_queue.first[0].job.is_urgent for run_queue in run_queues)
    return 0, not has_urgent and pool.startable(urgent=True, hosts=hosts) > 0


def _held(pool: Pool, where: RunQueue[Job]) -> int:
    """Return how many one-parameter jobs wait there, or are about to, but for those that are being marked."""
    rescued = sum(pool.queues.of_claim(job) is where for job in pool.rescued)
    lanes = (lane for job in pool.query_jobs.values() for lane in job.lanes.values() if lane.items)
    queries = sum(pool.queues.of(lane.job, lane.host) is where for lane in lanes)
    return where.count() - queries + pool.coming.get(where, 0) + rescued


def _sizes(pools: Sequence[Pool], hosts: Sequence[HostState], urgent: bool) -> tuple[dict[str, int], int]:
    """Return how many jobs could be worked at once, by type and in all, if the last of them are urgent or not."""
    slots = Counter((pool.name, slot.host.name) for pool in pools for slot in pool.slots)
    limits = {
        host.name: slots.total() if host.max == UNLIMITED else host.max + urgent * host.urgent
        for host in hosts
        if host.is_open
    }
    sizes, on_host = dict.fromkeys([pool.name for pool in pools], 0), Counter[str]()
    for (name, host), count in slots.items():
        if host in limits:
            sizes[name] += min(count, limits[host])
            on_host[host] += count
    return sizes, sum(min(count, limits[host]) for host, count in on_host.items())
