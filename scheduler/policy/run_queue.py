"""Where work items wait, and which goes next: lanes in rank order, host filters, placement.

A lane holds the items of one job for one host, or for any. A slot takes from the lanes of its host and from those for
any host; between the two the better rank (urgency, then letter) goes first, then the lane that was served longest ago.
In a fair type the submitters of a rank are served in turn, and then the lanes of each.

Host filters say which hosts take which jobs of a type, by queue and by ranges of priorities. Jobs that the same hosts
take wait in one run queue, counted and claimed by itself, so that what waits for a busy host holds up nothing else. A
type none of whose hosts has such a filter has one run queue for any host.

Placement maps the value of a row's jq_runonpfile column to a host, or to any: first the exact name of a host, then an
exact value of drover.placement, then a range of it. Rules for the agent type come before rules for every type. Values
are compared as bytes.
"""

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, Final, Generic, Protocol, TypeVar

from scheduler.model.config import Host
from scheduler.model.priority_ranges import EVERY
from scheduler.model.protocol import Item
from scheduler.model.queue_requests import ClaimRequest, Letters


class Waiting(Protocol):
    """The attributes of a job that a run queue reads."""

    queue: str
    host: str | None  # its own

    @property
    def priority(self) -> str: ...


JobT = TypeVar("JobT", bound=Waiting)


class Lane(Generic[JobT]):
    """The items of one job that wait for agents of one host (None: any)."""

    __slots__ = ("_checked_at", "_checked_ticket", "host", "is_single", "items", "job", "rank", "submitter", "ticket")

    def __init__(
        self, job: JobT, rank: bytes, submitter: str, host: str | None, items: Iterable[Item], *, is_single: bool
    ) -> None:
        self.job, self.rank, self.submitter, self.host = job, rank, submitter, host
        self.is_single = is_single  # of a one-parameter job
        # of a one-parameter job a list: a deque has room for 64 from the start
        self.items: deque[Item] | list[Item] = list(items) if is_single else deque(items)
        self.ticket = 0  # numbers its last assignment, or when it began to wait: lower goes first
        self._checked_ticket, self._checked_at = 0, 0.0  # its ticket at an earlier check, and when that was

    def add(self, items: Sequence[Item]) -> bool:
        """Append items; return whether the lane was empty, so that a run queue is to get it."""
        was_empty = not self.items
        self.items.extend(items)
        return was_empty

    def put_back(self, item: Item) -> bool:
        """Put an item back at the front; return whether the lane was empty."""
        was_empty = not self.items
        self.items.insert(0, item)
        return was_empty

    def clear(self) -> None:
        """Forget its items."""
        self.items.clear()

    def has_waited(self, seconds: float, now: float) -> bool:
        """Return whether it was not served for so long; to be called periodically."""
        if self._checked_ticket != self.ticket:
            self._checked_ticket, self._checked_at = self.ticket, now
            return False
        return now - self._checked_at >= seconds


_NOTHING: Final[deque[Lane[Any]]] = deque()


class RunQueue(Generic[JobT]):
    """Lanes in rank order, round robin within a rank. `first` is the deque to serve next, empty when none waits.

    Of a fair type the submitters of a rank are served in turn, and then the lanes of each.
    """

    __slots__ = ("_is_fair", "_lines", "_ranks", "first", "hosts", "singles")

    def __init__(self, hosts: frozenset[str] | None = None, *, is_fair: bool = False) -> None:
        self.hosts = hosts  # whose agents take from here; None: any
        self._is_fair = is_fair
        # by rank and submitter ("" if not fair), the next one first; none is empty
        self._lines: dict[bytes, OrderedDict[str, deque[Lane[JobT]]]] = {}
        self._ranks: list[bytes] = []
        self.first: deque[Lane[JobT]] = _NOTHING
        self.singles = 0  # lanes of one-parameter jobs

    def add(self, lane: Lane[JobT], ticket: int) -> None:
        """Put a lane that has begun to wait at the end of its rank, or behind its submitter's others."""
        rank, lane.ticket = lane.rank, ticket
        lines = self._lines.get(rank)
        if lines is None:
            lines = self._lines[rank] = OrderedDict()
            insort(self._ranks, rank)
        submitter = lane.submitter if self._is_fair else ""
        lanes = lines.get(submitter)
        if lanes is None:
            lanes = lines[submitter] = deque()
        lanes.append(lane)
        self.singles += lane.is_single
        if not self.first or rank < self.first[0].rank:
            self.first = lanes

    def pop(self, ticket: int) -> tuple[JobT, Item]:
        """Return the next item and its job; its lane, served with this ticket, and its submitter go to the end."""
        lanes = self.first
        lane = lanes[0]
        lane.ticket = ticket
        items = lane.items
        item = items.popleft() if isinstance(items, deque) else items.pop()
        if not items:
            lanes.popleft()
            self.singles -= lane.is_single
        elif len(lanes) > 1:
            lanes.rotate(-1)
        if self._is_fair:
            self._lines[lane.rank].move_to_end(lane.submitter)
            self._find_first(lane)
        elif not lanes:
            self._find_first(lane)
        return lane.job, item

    def drop(self, lane: Lane[JobT]) -> None:
        """Take a lane out, wherever it stands."""
        lines = self._lines.get(lane.rank)
        lanes = None if lines is None else lines.get(lane.submitter if self._is_fair else "")
        if lanes is not None and lane in lanes:
            lanes.remove(lane)
            self.singles -= lane.is_single
            self._find_first(lane)

    def _find_first(self, moved: Lane[JobT]) -> None:
        """Find which lane is first, after one has moved or left."""
        rank, submitter = moved.rank, moved.submitter if self._is_fair else ""
        lines = self._lines[rank]
        if not lines[submitter]:
            del lines[submitter]
        if not lines:
            del self._lines[rank]
            self._ranks.remove(rank)
        self.first = next(iter(self._lines[self._ranks[0]].values())) if self._ranks else _NOTHING

    def suits(self, host: str) -> bool:
        """Return whether agents on this host take from here."""
        return self.hosts is None or host in self.hosts

    def count(self) -> int:
        """Return how many lanes wait."""
        return sum(len(lanes) for lines in self._lines.values() for lanes in lines.values())

    def __iter__(self) -> Iterator[Lane[JobT]]:
        return (lane for rank in self._ranks for lanes in self._lines[rank].values() for lane in lanes)


class MergedQueue(Generic[JobT]):
    """The run queues of one host seen as one: the best lane of any is first, and what is served is served there."""

    __slots__ = ("queues",)

    def __init__(self) -> None:
        self.queues: list[RunQueue[JobT]] = []

    @property
    def first(self) -> deque[Lane[JobT]]:
        """The deque to serve next, empty when none waits."""
        waiting = (run_queue.first for run_queue in self.queues if run_queue.first)
        return min(waiting, key=lambda lanes: (lanes[0].rank, lanes[0].ticket), default=_NOTHING)

    @property
    def singles(self) -> int:
        """The number of lanes of one-parameter jobs in all of them."""
        return sum([run_queue.singles for run_queue in self.queues])

    def pop(self, ticket: int) -> tuple[JobT, Item]:
        """Return the next item and its job from the run queue whose first lane is the best."""
        first = self.first
        return next(run_queue for run_queue in self.queues if run_queue.first is first).pop(ticket)

    def __iter__(self) -> Iterator[Lane[JobT]]:
        return chain.from_iterable(self.queues)


AnyQueue = RunQueue[JobT] | MergedQueue[JobT]  # what agents of a host take from


class HostFilters(Generic[JobT]):
    """The run queues of one type by the hosts that take from them; each is made when it is first needed."""

    __slots__ = ("_bounds", "_by_hosts", "_found", "_is_fair", "_queues", "_ranges", "_runs", "by_host", "every")

    def __init__(self, hosts: Mapping[str, Host], *, is_fair: bool = False) -> None:
        self._is_fair = is_fair
        self._queues = {name: host.queues for name, host in hosts.items()}
        self._ranges = {name: host.ranges for name, host in hosts.items()}
        # where a priority may be taken by other hosts than the one before it, and the end of all
        self._bounds = sorted(
            {bound for ranges in (EVERY, *self._ranges.values()) for each in ranges for bound in each}
        )
        self._by_hosts: dict[frozenset[str], RunQueue[JobT]] = {}
        self._found: dict[tuple[str, str], RunQueue[JobT]] = {}  # by queue and bound
        self._runs: dict[str, list[tuple[Letters, RunQueue[JobT]]]] = {}
        self.every: MergedQueue[JobT] = MergedQueue()
        # what an agent on a host takes from:
        self.by_host: dict[str, MergedQueue[JobT]] = {name: MergedQueue() for name in hosts}

    def at(self, queue: str, priority: str) -> RunQueue[JobT]:
        """Return the lanes in which jobs of a queue and a priority wait for any host that takes them."""
        start = self._bounds[bisect_right(self._bounds, priority) - 1]
        run_queue = self._found.get((queue, start))
        if run_queue is not None:
            return run_queue
        hosts = frozenset(
            name
            for name, queues in self._queues.items()
            if (not queues or queue in queues) and any(first <= start < end for first, end in self._ranges[name])
        )
        run_queue = self._by_hosts.get(hosts)
        if run_queue is None:
            run_queue = self._by_hosts[hosts] = RunQueue(hosts, is_fair=self._is_fair)
            for merged in (self.every, *(self.by_host[name] for name in hosts)):
                merged.queues.append(run_queue)
        self._found[queue, start] = run_queue
        return run_queue

    def runs(self, queue: str) -> list[tuple[Letters, RunQueue[JobT]]]:
        """Return the run queues of a queue that some host takes from, each with adjacent priorities."""
        runs = self._runs.get(queue)
        if runs is None:
            runs = self._runs[queue] = []
            for run_queue, run in groupby(pairwise(self._bounds), lambda each: self.at(queue, each[0])):
                ranges = list(run)
                if run_queue.hosts:
                    runs.append(((ranges[0][0], ranges[-1][1]), run_queue))
        return runs


class RunQueues(Generic[JobT]):
    """All run queues of one agent type: one for each host, one for any, or several by what hosts take."""

    __slots__ = ("_is_fair", "any", "anywhere", "by_host", "filters")

    def __init__(self) -> None:
        self._is_fair = False
        self.anywhere: RunQueue[JobT] = RunQueue()  # lanes for any host
        self.filters: HostFilters[JobT] | None = None  # instead, where some host does not take every job
        self.any: AnyQueue[JobT] = self.anywhere  # whichever of the two is used
        self.by_host: dict[str, RunQueue[JobT]] = {}  # lanes for one host

    def add_host(self, name: str) -> None:
        self.by_host[name] = RunQueue(frozenset((name,)), is_fair=self._is_fair)

    def remove_host(self, name: str) -> None:
        del self.by_host[name]

    def filter(self, hosts: Mapping[str, Host]) -> None:
        """Make new run queues for any host: several if some host does not take every job, or there is no host."""
        is_choosy = not hosts or any(host.is_selective for host in hosts.values())
        self.filters = HostFilters(hosts, is_fair=self._is_fair) if is_choosy else None
        self.anywhere = RunQueue(is_fair=self._is_fair)
        self.any = self.anywhere if self.filters is None else self.filters.every

    def set_fair(self, is_fair: bool) -> None:
        """Let what waits for one host wait in run queues of this kind; `filter` does so with the others."""
        if is_fair == self._is_fair:
            return
        self._is_fair = is_fair
        for host, before in self.by_host.items():
            run_queue: RunQueue[JobT] = RunQueue(before.hosts, is_fair=is_fair)
            self.by_host[host] = run_queue
            for lane in sorted(before, key=lambda lane: lane.ticket):
                run_queue.add(lane, lane.ticket)

    def of(self, job: JobT, host: str | None) -> RunQueue[JobT]:
        """Return the run queue in which a job waits for a host, or for any that takes it."""
        if host is not None:
            return self.by_host[host]
        return self.anywhere if self.filters is None else self.filters.at(job.queue, job.priority)

    def of_claim(self, job: JobT) -> RunQueue[JobT] | None:
        """Return the run queue for which a job was claimed; None if a reload has removed it meanwhile."""
        return self.of(job, None) if job.host is None else self.by_host.get(job.host)

    def of_request(self, request: ClaimRequest) -> RunQueue[JobT] | None:
        """Return the run queue for which rows are requested; None if a reload has removed it meanwhile."""
        if request.host:
            return self.by_host.get(request.host)
        if self.filters is None:
            return self.anywhere
        return self.filters.at(request.queue, request.letters[0]) if request.letters is not None else None

    def any_of(self, host: str) -> AnyQueue[JobT]:
        """Return the run queue for any host from which agents on this host take."""
        return self.any if self.filters is None else self.filters.by_host[host]

    def all(self) -> tuple[RunQueue[JobT], ...]:
        return (*self.by_host.values(), *((self.anywhere,) if self.filters is None else self.filters.every.queues))

    def takes(self, job: JobT, host: str) -> bool:
        """Return whether a job may be worked on a host."""
        return host in self.by_host and (self.filters is None or self.filters.at(job.queue, job.priority).suits(host))

    def has_place(self, job: JobT) -> bool:
        """Return whether a job may be worked on its host, or on any."""
        if job.host is not None:
            return self.takes(job, job.host)
        return self.filters is None or bool(self.filters.at(job.queue, job.priority).hosts)


class Placement:
    """The placement table, for lookups."""

    __slots__ = ("_exact", "_hosts", "_ranges")

    def __init__(self, hosts: Iterable[str], rules: Sequence[Mapping[str, Any]]) -> None:
        self._hosts = {name.encode(): name for name in hosts}
        self._exact: dict[tuple[str | None, bytes], str] = {}
        self._ranges: list[tuple[str | None, bytes, bytes, str]] = []
        for rule in rules:
            first = rule["from"].encode()
            if rule["to"] is None:
                self._exact.setdefault((rule["type"], first), rule["host"])
            else:
                self._ranges.append((rule["type"], first, rule["to"].encode(), rule["host"]))

    def host_of(self, kind: str, value: bytes | None) -> str | None:
        """Return the host for a value of an agent type, or None for any host."""
        if value is None:
            return None
        if (host := self._hosts.get(value)) is not None:
            return host
        for wanted in (kind, None):
            if (host := self._exact.get((wanted, value))) is not None:
                return host
            for rule_type, first, last, target in self._ranges:
                if rule_type == wanted and first <= value <= last:
                    return target
        return None
