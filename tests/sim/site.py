"""A site of any size: the real core between simulated agents and a simulated database, where all takes measured time.

A queueing model with two servers, the daemon's one thread and the database's queue connection, and as many customers
as there are agents. What the core decides is real; what anything costs is in COSTS, and nothing else takes time.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, Final, NamedTuple

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType, Host
from scheduler.model.queue_requests import Claim, ClaimPosition, ClaimRequest
from tests.core_tools import answer_to, claim, make_core

ENDLESS: Final = 10**15  # items
GOLDEN: Final = 0.6180339887498949
ROW: Final = (b"1", b"some/path/of/a/file")
SERVERS: Final = ("loop", "queue", "watch")


class Cost(NamedTuple):
    """What something takes, and where that was measured."""

    value: float
    unit: str
    source: str


COSTS: Final[dict[str, Cost]] = {
    "loop_row": Cost(10e-6, "s", "CPU of the daemon for the row of a query, reading and writing included: bench P2"),
    "loop_job": Cost(14e-6, "s", "the same for a one-parameter job, its claim and end included: bench P1"),
    "loop_request": Cost(80e-6, "s", "CPU of the daemon for a claim that finds nothing, by tests/counts/queues.py"),
    "loop_place": Cost(2e-6, "s", "CPU of the daemon for each place that a claim looks at: the same, 10,200 places"),
    "loop_look": Cost(0.1e-6, "s", "CPU of the core for each place of a type that is not known to be without work"),
    "loop_start": Cost(820e-6, "s", "Popen of a C agent until its first OK, 1,225/s: PERFORMANCE.md"),
    "loop_shown": Cost(4e-6, "s", "CPU of the daemon for a line of scheduler_status, made and written as JSON"),
    "db_request": Cost(260e-6, "s", "a claim that finds nothing, there and back"),
    "db_commit": Cost(300e-6, "s", "fdatasync of 4 KB, the median; one in a hundred takes 4 ms"),
    "db_job": Cost(17e-6, "s", "CPU of the database for a one-parameter job in `end_and_claim`: bench P1"),
    "db_place": Cost(1.8e-6, "s", "CPU of the database for a place that a claim finds empty, 10,200 places"),
    "db_row": Cost(0.32e-6, "s", "a row from a cursor, on a connection of its own: 3.1M/s, PERFORMANCE.md"),
    "db_shown": Cost(10e-6, "s", "the database's time for a line of scheduler_status, on the watch connection"),
    "wal_job": Cost(967 + 598, "bytes", "WAL of a one-parameter job, COPY to end: limits.toml, wal_bytes_per_*job"),
    "wal_row": Cost(1.4, "bytes", "WAL of the row of a query, saved every 400: limits.toml, wal_bytes_per_1000_items"),
    "wal_shown": Cost(220, "bytes", "WAL of a line of scheduler_status that has changed"),
    "kept_job": Cost(850 + 140, "bytes", "a finished job and its attempt with their indexes, VACUUM FULL"),
    "ssh_line": Cost(8e-6, "s", "CPU of a host's SSH process for a line over ssh; 90 us with paramiko: PERFORMANCE.md"),
}


def cost(name: str) -> float:
    """Return the value of a cost."""
    return COSTS[name].value


class Shape(NamedTuple):
    """A site: its hosts, its types, on how many hosts each type is, and how many slots it has there."""

    hosts: int
    types: int
    places: int
    slots: int
    most: int = -1  # agents a host may have

    @property
    def agents(self) -> int:
        """Return how many agents may live."""
        wanted = self.types * self.places * self.slots
        return wanted if self.most < 0 else min(wanted, self.hosts * self.most)

    @property
    def all_places(self) -> int:
        """Return where jobs may wait in one queue: of each type, for each of its hosts and for any."""
        return self.types * (self.places + 1)

    def tight(self) -> "Shape":
        """Return the same with hosts that hold half of it."""
        return self._replace(most=self.agents // self.hosts // 2)

    def make(self, kind: str) -> tuple[dict[str, Host], dict[str, AgentType]]:
        """Return the tables of hosts and of agent types; each type begins at another host."""
        names = [f"host{n}" for n in range(self.hosts)]
        around = names + names
        spread = {f"type{n}": tuple(around[n % self.hosts : n % self.hosts + self.places]) for n in range(self.types)}
        kinds = {
            name: AgentType(command=("agent",), kind=kind, hosts=hosts, slots=self.slots)  # type: ignore[arg-type]
            for name, hosts in spread.items()
        }
        return {name: Host(max=self.most) for name in names}, kinds


class Load(NamedTuple):
    """What there is to do, without end: rows of queries or jobs, and how long an agent takes for one."""

    what: str  # rows, jobs
    item_s: float
    kind: str = "line"
    timeout: float | None = None  # of a job


class Figures(NamedTuple):
    """What came of a run."""

    rate: float  # items a second
    loop: float  # share of the time that the daemon's thread was busy
    queue: float  # the same of the queue connection
    watch: float  # the same of the watch connection
    wait_s: float  # how long an agent waited for its next line, the mean
    statements: float  # on the queue connection, a second


class Site:
    """A core, its agents and its queue, on a clock of its own: that of the daemon's thread."""

    def __init__(self, shape: Shape, load: Load, **timers: Any) -> None:
        hosts, kinds = shape.make(load.kind)
        self.core = make_core(kinds, hosts=hosts, **{"expansions": 2 * shape.types, **timers})
        self.shape, self.load = shape, load
        self.now = 0.0
        self.supply = dict.fromkeys(kinds, ENDLESS)  # items not claimed or fetched yet, by type
        self.spent = dict.fromkeys((*SERVERS, "waited", "items", "statements"), 0.0)  # seconds, but for the last two
        self.wants = 0  # places that the last claim looked at
        self.is_asking = False
        self._begun: list[int] | None = None  # slots with an item, while all are to begin together
        self._idle: dict[int, float] = {}  # since when an agent waits for a line
        self._queries: dict[int, str] = {}  # types of the jobs whose queries are open
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._order, self._pks = count(), count(1)
        self._acts: dict[type, Callable[[Any], None]] = {
            e.Spawn: self._spawn, e.Send: lambda c: self._fed(c.slot), e.Expand: self._expand, e.Fetch: self._fetch,
            e.CloseQuery: self._close, e.LogMessage: _nothing, e.FindNextDue: _nothing, e.RenewLease: _nothing,
            e.Kill: self._kill,
        }  # fmt: skip
        self._later(1.0, self._show)

    # ---- time

    def run(self, items: int) -> Figures:
        """Let it work until so many more items are done."""
        then, begun = self.now, dict(self.spent)
        goal = begun["items"] + items
        while self.spent["items"] < goal:
            self.turn()
        took, made = self.now - then, {name: self.spent[name] - begun[name] for name in begun}
        loop, queue, watch = (made[name] / took for name in SERVERS)
        return Figures(
            made["items"] / took, loop, queue, watch, made["waited"] / made["items"], made["statements"] / took
        )

    def wake(self) -> None:
        """Somebody has put work into the queue."""
        self.core.handle(e.Woken(), self.now)
        self._act()

    def warm(self, agents: int = 0) -> None:
        """Let every agent that has room begin an item, or so many; these items take their time from then on."""
        self._begun = []
        self.wake()
        self.turn_until(agents or self.shape.agents)
        begun, self._begun = self._begun, None
        for slot in begun:
            self._fed(slot)

    def turn_until(self, fed: int) -> None:
        """Let it work until so many agents have had an item."""
        while self.fed < fed:
            self.turn()

    def rest(self) -> None:
        """Take all work away and wait until nobody works."""
        self.supply = dict.fromkeys(self.supply, 0)
        while self.core.state.jobs:
            self.turn()
        self.wake()
        self.calm()

    def calm(self) -> None:
        """Wait until nothing is asked of the queue."""
        while self.is_asking:
            self.turn()

    @property
    def fed(self) -> int:
        """Return how many agents have had an item."""
        return sum(slot.job is not None or slot.total > 0 for slot in self.core.state.slots.all)

    @property
    def at_work(self) -> int:
        """Return how many agents have an item in hand."""
        return sum(slot.job is not None for slot in self.core.state.slots.all)

    def turn(self) -> None:
        """One turn of the loop: wait, take what is ready, act."""
        deadline = self.core.next_deadline()
        self.now = upto = max(self.now, min(deadline, self._heap[0][0]))
        while self._heap and self._heap[0][0] <= upto:
            at, _, call = heappop(self._heap)
            call(at)
        if deadline <= upto:
            self.core.tick(self.now)
        self._act()

    def _act(self) -> None:
        self._request()
        while self.core.has_work:
            for effect in self.core.take_effects(self.now):
                self._acts[type(effect)](effect)
            self._request()

    def _later(self, delay: float, call: Callable[[float], None]) -> None:
        heappush(self._heap, (self.now + delay, next(self._order), call))

    def _work(self, seconds: float) -> None:
        """The daemon's thread is busy: all others wait."""
        self.spent["loop"] += seconds
        self.now += seconds

    # ---- the queue connection

    def _request(self) -> None:
        if self.is_asking or (request := self.core.next_request(self.now)) is None:
            return
        self.is_asking = True
        self._work(self.shape.all_places * cost("loop_look"))
        places = len(request.wanted) if isinstance(request, r.EndAndClaim) else 0
        self._work(cost("loop_request") + places * cost("loop_place"))
        event, took = self._answer(request)
        self.spent["queue"] += took
        self.spent["statements"] += 1
        self._later(took, lambda at: self._answered(event))

    def _answered(self, event: e.Event) -> None:
        self.is_asking = False
        if isinstance(event, e.EndedAndClaimed) and event.claims:  # as daemon/connections.py does
            self.core.handle(replace(event, claims=()), self.now)
            self._request()
            event = e.Claimed(event.claims)
        self.core.handle(event, self.now)

    def _answer(self, request: r.Request) -> tuple[e.Event, float]:
        """Return the answer and how long it takes."""
        took = cost("db_request") + cost("db_commit")
        if not isinstance(request, r.EndAndClaim):
            return answer_to(request), took
        claims = [found for want in request.wanted for found in self._claims(want)]
        reached = {found.request: ClaimPosition(found.rank.decode(), "now", found.pk) for found in claims}
        took += (len(request.wanted) - len(reached)) * cost("db_place")
        took += (len(claims) + len(request.ends)) / 2 * cost("db_job")
        self.wants = len(request.wanted)
        return e.EndedAndClaimed(claims, reached=reached, found=Counter(found.request for found in claims)), took

    def _claims(self, want: ClaimRequest) -> Iterator[Claim]:
        """Return what a place has: rows of our types wait for any host, and none is urgent."""
        if want.host or want.urgent or (self.load.what == "rows" and want.type in self._queries.values()):
            return
        found = min(want.most, self.supply[want.type], 1 if self.load.what == "rows" else ENDLESS)
        rules = {"msq": True} if self.load.what == "rows" else {"timeout": self.load.timeout}
        for pk in islice(self._pks, found):
            yield claim(pk, want.type, **rules)._replace(request=want)
        if self.load.what == "rows" and found:
            self._queries[pk] = want.type
        else:
            self.supply[want.type] -= found

    # ---- expansion connections

    def _expand(self, expand: e.Expand) -> None:
        opened = e.Opened(expand.job, (b"id", b"path"), self.supply[self._queries[expand.job]])
        self._later(cost("db_request"), lambda at: self.core.handle(opened, self.now))

    def _fetch(self, fetch: e.Fetch) -> None:
        kind = self._queries[fetch.job]
        found = min(fetch.count, self.supply[kind])
        self.supply[kind] -= found
        fetched = e.Fetched(fetch.job, [ROW] * found, self.supply[kind] > 0)
        self._later(cost("db_request") + found * cost("db_row"), lambda at: self.core.handle(fetched, self.now))

    def _close(self, close: e.CloseQuery) -> None:
        del self._queries[close.job]

    # ---- the watch connection

    def _show(self, at: float) -> None:
        """Show what has changed, at most once a second and when the last is there."""
        rows, _ = self.core.report.take_changed_slots(self.now)
        self._work(len(rows) * cost("loop_shown"))
        took = len(rows) * cost("db_shown")
        self.spent["watch"] += took
        self._later(max(1.0, took), self._show)

    # ---- agents

    def _spawn(self, spawn: e.Spawn) -> None:
        self._work(cost("loop_start"))
        self.core.handle(e.Created(spawn.slot, 1000 + spawn.slot), self.now)
        self._later(cost("loop_start"), lambda at: self._ok(spawn.slot, at))

    def _kill(self, kill: e.Kill) -> None:
        self._later(0.0, lambda at: self.core.handle(e.Gone(kill.slot, 0, None), self.now))

    def _fed(self, slot: int) -> None:
        """An agent has a line; how long it takes is different each time, in a way that is the same in every run."""
        self.spent["waited"] += self.now - self._idle.pop(slot, self.now)
        if self._begun is not None:
            self._begun.append(slot)
            return
        spread = 0.5 + next(self._order) * GOLDEN % 1.0
        self._later(self.load.item_s * spread, lambda at: self._done(slot, at))

    def _done(self, slot: int, at: float) -> None:
        self.spent["items"] += 1
        self._work(cost("loop_row" if self.load.what == "rows" else "loop_job"))
        self._ok(slot, at)

    def _ok(self, slot: int, at: float) -> None:
        self._idle[slot] = at
        self.core.agent_output(slot, b"OK\n", self.now)
        if self.core.state.slots.all[slot].job is not None:  # of a line that is sent now, or was sent ahead
            self._fed(slot)


def _nothing(_: e.Effect) -> None:
    """Costs nothing that counts here."""
