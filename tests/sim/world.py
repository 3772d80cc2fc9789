"""A simulated world around the core: one seed orders everything, time jumps to whatever comes next.

Holds the clock, the tables, the dice and the books of what agents really did; the parts with a life of their own are
agents.py, queries.py, database.py, harness.py and watch.py (the daemon) and frontend.py. After every step the
invariants hold.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import Config, Host
from scheduler.model.host_filters import FILTERS
from scheduler.model.queue_requests import ClaimRequest
from scheduler.policy.slots import Slot
from tests.sim import configs, end_invariants, frontend, invariants, shown, start_invariants, swarm, wait_invariants
from tests.sim.agents import CALM, CHARACTERS, WORSE, Character, read_item
from tests.sim.broken import Broken
from tests.sim.database import Database
from tests.sim.harness import Daemon
from tests.sim.keepers import Spools
from tests.sim.planner import Planner
from tests.sim.rows import Row

HISTORY: Final = 40  # events told of a failing seed
RATES: Final[tuple[dict[str, Any] | None, ...]] = (  # of a queue
    None,
    {"rate": 2, "interval": 5.0},
    None,
    {"each": 1, "by": "submitter", "interval": 3.0},
)
PLACES: Final = (b"alpha", b"beta", b"here", b"there", None)
CALM_LIMIT: Final = 4 * 3600.0  # fake seconds in which everything must have ended
TURN: Final = 0.002  # seconds: what happens so close together may meet in one turn
QUIET_S: Final = 30.0  # in which all that is under way at the end arrives
CALM_STEPS: Final = 30_000
BLOCKED_OFTEN: Final = 2  # of eight seeds: the one whose agents meet conditions most of the time
FOLLOWED: Final = ("max", "urgent", "enabled", *FILTERS)  # of hosts: what commands may change


class Sim:
    """One world of one seed."""

    def __init__(
        self, seed: int, often: Collection[str] = (), *, reexecs: float = 0.0, features: frozenset[str] = frozenset()
    ) -> None:
        """Make the world of a seed; acts of the front-end named in `often` come often.

        With `reexecs` the daemon is executed anew every so many seconds, about; `features` are those of swarm.py.
        """
        self.features = features
        self.reached: Callable[[object], None] = lambda thing: None  # events and effects
        self.seed = seed
        self.takeovers = 0
        self.rng = Random(seed)
        self.now = 1000.0
        self.steps = 0
        self.is_calm = False
        self.history: deque[tuple[float, Any]] = deque(maxlen=HISTORY)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serials = dict.fromkeys(("event", "owner", "pid", "pk"), 0)
        self.often = {*often, "cut_link"} if configs.has_start_policies(seed) else often
        self.never = {do for do in frontend.ACTS if do is not frontend.insert_some and self.chance(0.4)}
        self.faults = self.rng.choice((0.0, 0.0, 0.01, 0.05))  # of the database, a request
        self.delay = self.rng.choice((0.0005, 0.005, 0.5))  # of the database, about
        self.pace = self.rng.choice((0.05, 0.5, 5.0))  # seconds between acts of the front-end
        self.database = Database(self.ring, self._ended)
        self.spools = Spools(self)
        self.database.policy = configs.POLICIES[seed % len(configs.POLICIES)]
        if "testers" in features:
            self.database.policy = swarm.POLICIES[seed % len(swarm.POLICIES)]
        self.config = self._configured(configs.first(self.rng))
        self.files: Counter[str] = Counter()  # the program in the file of each type, by number
        self.natures: dict[str, Character] = {}  # of every type there ever was
        self.queue_names = ["default", "heavy", "light"]
        self.queues: list[dict[str, Any]] = [
            {"name": name, "concurrency": None, "paused": False, "reserved": 0} for name in self.queue_names
        ]
        self.queues[1]["concurrency"] = 2
        self.quotas: list[dict[str, Any]] = configs.quotas(seed)
        self.queues[2]["rate"] = RATES[seed % len(RATES)]
        self.hosts: list[dict[str, Any]] = []
        self.types: list[dict[str, Any]] = []
        self._register(Config(), self.config)
        self.placements = [
            {"type": None, "from": "here", "to": None, "host": "alpha"},
            {"type": None, "from": "t", "to": "u", "host": "beta"},
        ]
        self.shown_starts: dict[tuple[str, str], list[float]] = {}  # by queue with a rate limit, and value
        self.begun: set[tuple[int, int]] = set()  # (pk, attempt) of one-parameter jobs that an agent was given
        self.tries: dict[tuple[int, int, int], int] = {}  # (pk, attempt, item) -> times given
        self.losses: Counter[tuple[int, int, int]] = Counter()  # the same -> of these, times lost with its host
        self.finished = 0  # rows at their end
        self._dead_owners: set[str] = set()
        self.daemon = Daemon(self, self.config)
        self.memory = invariants.Memory()
        self.at(0.0, frontend.act, self)
        if "schedules" in features:
            self.planner = Planner(self)
        if reexecs or "reexec" in features:
            self.at(reexecs or 3.0, self._reexec, reexecs or 3.0)

    def has(self, feature: str) -> bool:
        """Return whether this world has a feature of swarm.py."""
        return feature in self.features

    def _configured(self, config: Config) -> Config:
        return swarm.configured(self.features, configs.by_seed(self.seed, config), self.rng)

    # ---- time and dice

    def at(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Call `delay` seconds from now."""
        self._serials["event"] += 1
        heappush(self._heap, (self.now + delay, self._serials["event"], call, args))

    def chance(self, probability: float) -> bool:
        """Throw the dice."""
        return self.rng.random() < probability

    def note(self, what: object) -> None:
        """Keep for the story of a failing seed."""
        self.history.append((self.now, what))

    def new_owner(self) -> str:
        """Return the uuid of a daemon."""
        return f"owner-{self._next('owner')}"

    def new_pid(self) -> int:
        """Return the pid of a process."""
        return self._next("pid")

    def new_pk(self) -> int:
        """Return the jq_pk of a row."""
        return self._next("pk")

    def _next(self, what: str) -> int:
        self._serials[what] += 1
        return self._serials[what]

    # ---- steps

    def run(self, steps: int) -> None:
        """Run so many steps, then let the faults stop and see everything end."""
        while self.steps < steps:
            self.step()
        self.calm_down()

    def step(self) -> None:
        """One turn: what is due, some of what happens together, the commands that follow, the invariants."""
        self.steps += 1
        daemon = self.daemon
        deadline = daemon.next_deadline() if daemon.is_alive else float("inf")
        heap = self._heap
        if deadline <= heap[0][0]:
            invariants.time_goes_on(self, deadline)
            self.now = max(self.now, deadline)
            daemon.tick()
        else:
            self._one_event()
            while heap and heap[0][0] <= self.now + TURN and self.rng.random() < 0.7:
                self._one_event()
        if self.daemon.is_alive:
            self.daemon.pump()
        if self.daemon.has_exited:
            self.daemon.has_exited = False
            self.restart_later()
        invariants.check(self)
        shown.show(self)

    def _one_event(self) -> None:
        when, _, call, args = heappop(self._heap)
        self.now = max(self.now, when)
        call(*args)

    def calm_down(self) -> None:
        """Faults stop, everything is enabled, agents are polite: within bounded time everything has ended."""
        self.is_calm, self.faults, self.delay = True, 0.0, 0.001
        self.database.locked.clear()
        self.reload(configs.every(self.config, set(self.natures)))
        for queue in self.queues:
            queue["paused"] = False
        for host in self.hosts:
            host["enabled"] = True
            host["max"] = max(host["max"], 1) if host["max"] != -1 else -1
            host |= Host().filters
        for row in self.types:
            row["enabled"] = True
        for waiting in [row for row in self.database.open.values() if row.state == "held"]:
            self.database.move(waiting, "queued", self.now)
        self.ring()
        self.at(0.0, self.change)
        self.at(120.0, self._beat)
        self.at(QUIET_S, self._beat)
        end, last = self.now + CALM_LIMIT, self.steps + CALM_STEPS
        while self.steps < last and self.now < end and not invariants.all_ended(self):
            self.step()
        invariants.everything_ends(self)
        if self.features:
            quiet_at = self.now + QUIET_S
            while self.now < quiet_at:
                self.step()
            wait_invariants.rescans_find_nothing(self)

    def _beat(self) -> None:
        """Something to wait for while nothing else happens."""
        self.at(120.0, self._beat)

    # ---- the database's behaviour

    def database_delay(self) -> float:
        """Seconds for half a statement."""
        return self.delay * (20 if self.chance(0.02) else 1) * self.rng.random()

    def query_delay(self) -> float:
        """Seconds for a query of a user."""
        return self.rng.random() * (30 if self.chance(0.02) else 0.2)

    def query_is_lost(self) -> bool:
        """Return whether a query's connection breaks."""
        return self.chance(self.faults)

    def watch_delay(self) -> float:
        """Seconds for half a statement of the watch connection; sometimes a renewal comes late."""
        if self.has("lease") and not self.is_calm:
            return self.rng.random()
        return self.rng.random() * (40 if not self.is_calm and self.chance(0.01) else 0.01)

    def fate_of(self, request: r.Request) -> str:
        """Decide how a request fares."""
        if not self.chance(self.faults):
            return "done"
        return self.rng.choice(("lost before", "lost after", "lock"))

    def refusal_of(self, request: r.Request) -> str | None:
        """Return why the database refuses a request now: a lock on one of its rows, or data it cannot store."""
        match request:
            case r.EndAndClaim() | r.Save() | r.Mark():
                pks = request.pks
                is_mark = isinstance(request, r.Mark) and not self.is_calm
                if is_mark and any(self.database.rows[pk].unmarkable for pk in pks):
                    return "data"
            case r.WriteLog(rows):
                return "data" if any("unstorable" in row.message for row in rows) else None
            case r.ReadContents(rows):
                return "data" if any(self.database.rows[pk].unreadable for pk, _ in rows) else None
            case _:
                return None
        if self.database.locked_of(pks, self.now):
            return "lock"
        if isinstance(request, r.EndAndClaim) and self.database.meets_unreadable(request, self.now):
            return "data"
        return "data" if isinstance(request, r.Save) and any(map(self._is_unstorable, request.rows)) else None

    def _is_unstorable(self, row: Any) -> bool:
        text = row.text or ""
        return self.database.rows[row.pk].unstorable and row.outcome is not None and not text.startswith("the database")

    def looked(self) -> e.TablesRead:
        """Return the tables as they are."""
        copies = [[dict(row) for row in table] for table in (self.queues, self.hosts, self.types, self.placements)]
        for (queue, value), starts in self.shown_starts.items():
            for row in copies[0]:
                if row["name"] == queue and row.get("rate"):
                    row.setdefault("starts", {})[value] = [self.now - at for at in starts]
        return e.TablesRead(*copies, [dict(row) for row in self.quotas])

    def place_of(self, number: int) -> bytes | None:
        """Return the jq_runonpfile column of an item."""
        return PLACES[number % len(PLACES)]

    def ring(self) -> None:
        """NOTIFY."""
        if self.daemon.is_alive:
            self.daemon.watch.woken()

    def change(self) -> None:
        """A table that daemons follow has changed."""
        if self.daemon.is_alive:
            self.daemon.watch.look_around()

    def reload(self, config: Config) -> None:
        """The file is another one, and the daemon is told to read it; if it is dead the next one will."""
        config = self._configured(config)
        old, self.config = self.config, config
        if self.daemon.is_alive:
            self.daemon.pump()
            invariants.check(self)
        self._register(old, config)
        self.memory.stillborn.clear()
        if self.daemon.is_alive:
            shown.tell_changes(self.daemon.file, config)
            self.daemon.reload(config)
            invariants.reload_frees_what_failed(self.daemon.core.state)

    def _register(self, old: Config, new: Config) -> None:
        """Write hosts and types into their tables: what has changed in the file wins."""
        known = {host["name"]: host for host in self.hosts}
        self.hosts = [known.get(name, {"name": name}) for name in new.hosts]
        for row in self.hosts:
            before, host = old.hosts.get(row["name"]), new.hosts[row["name"]]
            keys = [key for key in FOLLOWED if getattr(before, key, None) != getattr(host, key)]
            row |= {key: getattr(host, key) for key in keys}
        types = {row["type"]: row for row in self.types}
        self.types = [types.get(name, {"type": name, "enabled": True}) for name in new.agents]
        for name in new.agents:
            if name not in self.natures:
                nature = self.rng.choice(CHARACTERS)
                is_blocked = self.seed % 8 == BLOCKED_OFTEN or (self.has("testers") and nature.crash < 0.1)
                self.natures[name] = replace(nature, blocked=0.6) if is_blocked else nature
        self.database.register(new.agents)

    def settle_later(self, row: Row) -> None:
        """Somebody else ended a row: its trigger settles."""
        if row.end is not None:
            self.database.settle([row.pk], self.now)

    # ---- other daemons, and the next one

    def is_known_dead(self, owner: str | None) -> bool:
        """Return whether an owner's process is known to be gone."""
        return owner in self._dead_owners

    def restart_later(self) -> None:
        """A daemon is gone; another starts."""
        if self.chance(0.5):
            self._dead_owners.add(self.daemon.owner)
        self.at(10 * self.rng.random(), self._restart)

    def _restart(self) -> None:
        self.note("restart")
        self.daemon = Daemon(self, self.config)
        self.memory = invariants.Memory()

    def cut_watch(self, seconds: float) -> None:
        """The watch connection of the daemon is away for a while."""
        daemon = self.daemon
        if daemon.is_alive and daemon.watch.is_up:
            daemon.watch.lose()
            self.at(seconds, daemon.watch.come_back)

    def _reexec(self, pause: float) -> None:
        """Another program is to be executed in the place of the daemon."""
        if not self.is_calm:
            if self.daemon.is_alive:
                self.daemon.reexec()
            self.at(2 * pause * self.rng.random(), self._reexec, pause)

    def usurp(self) -> None:
        """Another daemon takes the group if its lease has run out, rescues, and leaves or dies a while later."""
        other = self.new_owner()
        if not self.database.take_lease(other, None, True, 30.0, self.now):
            return
        self.note(f"{other} takes over")
        self.at(self.rng.random(), self._usurper_works, other)

    def _usurper_works(self, other: str) -> None:
        _, parents = self.database.rescue(other, [], 0.0, self.now)
        self.database.settle(parents, self.now)
        waiting = [row for rows in self.database.queued.values() for row in rows.values() if row.is_claimable]
        mine = self.rng.sample(waiting, min(5, len(waiting)))
        for row in mine:
            self.database.claim(row, ClaimRequest(*row.place, False, 1), other, self.now)
        self.database.noted.append((other, [row.pk for row in mine], self.now))
        self.at(5 * self.rng.random(), self._usurper_ends, other, mine)

    def _usurper_ends(self, other: str, mine: list[Row]) -> None:
        for row in mine:
            if row.was_stolen:
                continue
            end_invariants.owners_keep_their_rows(row, other)
            row.bits = 2
            state = self.rng.choice(("queued", "cancelled"))
            self.database.write(row, row.attempt_in_hand, state, self.now, other, self.now)
            self.settle_later(row)
        if self.chance(0.5):
            self.at(5 * self.rng.random(), self.database.leave, other)
        else:
            self._dead_owners.add(other)

    # ---- what agents really did

    def nature_of(self, name: str, program: str = "") -> Character:
        """Return what agents of a type are like now; of those of programs with names every second one is worse."""
        if self.is_calm:
            return CALM
        return WORSE if program and int(program) % 2 else self.natures[name]

    def perform(self, pk: int, item: int) -> None:
        """An agent has done an item."""
        row = self.database.rows[pk]
        row.done[item] = row.done.get(item, 0) + 1
        end_invariants.no_item_is_done_too_often(self, row, item)

    def disrupt(self, pk: int) -> None:
        """Work in hand on a row was cut short."""
        self.database.rows[pk].disruptions += 1

    def began(self, slot: Slot, line: bytes) -> None:
        """The core gives a line to an agent now: that of the item in hand, or one ahead."""
        given = [(slot.job, slot.item), *((job, item) for job, item, _ in slot.prefetched or ())]
        jobs = [job for job, item in given if job is not None and item is not None and item.line == line]
        found = read_item(line, is_exec=slot.pool.is_exec)
        if not jobs or found is None or found[0] != jobs[0].pk:
            raise Broken("lines_are_whole", f"{line!r} is sent, {given} are given")
        start_invariants.work_begins_rightly(self, slot, jobs[0], found[1])

    def not_tried(self, slot: Slot) -> None:
        """An agent dies with lines that it had not come to, as far as anybody knows."""
        if slot.is_unsent:
            return  # these were never given
        for job, item, _ in slot.prefetched or ():
            if job.query is None:
                start_invariants.never_started(self, job)
            elif (found := read_item(item.line)) is not None:
                self.tries[job.pk, job.attempt, found[1]] -= 1

    def _ended(self, row: Row) -> None:
        self.finished += 1
        end_invariants.job_ends_rightly(self, row)
