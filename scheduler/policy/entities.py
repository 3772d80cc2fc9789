"""What the core counts: jobs in hand and agent types (pools). State, no decisions.

A pool is all slots of one type (slots.py) and the run queues of work that waits for them. `job.query` is None for a
one-parameter job.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduler.model.config import AgentType
from scheduler.model.expand import Item, Row, as_bytes
from scheduler.model.jobs import PLAIN, Claim, ItemFailure, Rules
from scheduler.model.states import NEVER, ST_FREE, ST_READY, ST_SPAWNED, QueryState
from scheduler.policy.query import Query
from scheduler.policy.run_queue import Lane, RunQueue, RunQueues

VARIABLE: Final = b"DROVER_VAR_"  # before the name: else a job could set PATH, or what some library obeys
VARIABLES: Final = b"DROVER_VARIABLES"  # JSON
DISABLED: Final = "agent type disabled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a job is to end before its work is done: state, text, and whether it costs a failure."""

    state: str
    text: str
    delay: float | None = None  # seconds until it may run again, for queued
    kills: bool = False  # the agents that work on it are not let finish


class Job:
    """A row that we hold, from claim to end. Most of it is never set on most jobs: the defaults are the class's."""

    deadline = NEVER
    query: Query | None = None
    names: tuple[bytes, ...] = ()  # of its variables, or the columns of its query: placeholders of an exec agent
    row: Row = ()  # the values of its variables
    environment: Mapping[bytes, bytes] | None = None  # of an exec agent
    waiting = 0  # items in lanes
    in_flight = 0  # items that agents have
    succeeded = 0  # items of this slice
    started = False  # something was given to an agent
    marked = False  # the row says running
    pieces = 0  # of output, stored in this attempt
    done = 0  # as counted for the row, over all its slices
    failed = 0
    shown = 0  # what its row counts of items that are still worked
    busy = 0.0  # seconds of agents, in all attempts of a query
    nonfatal = False
    interrupted = False  # its query lost its connection: that costs an allowance
    failure: str | None = None  # why a one-parameter job failed
    logged: str | None = None  # why its agent died, if drover.log has that
    code: int | None = None
    signal: str | None = None
    result: object = None
    where: tuple[str, str, int] | None = None  # host, agent, pid that had it last
    verdict: Verdict | None = None

    def __init__(self, claim: Claim, pool: "Pool", now: float) -> None:
        self.pk, self.attempt, args, self.rank, request, rules = claim
        self.queue = request.queue
        self.host = request.host or None
        self.pool = pool
        self.since = now  # of the claim
        self.lanes: dict[str | None, Lane[Job]] = {}
        self.args, self.rules = args, rules
        if rules is not PLAIN:
            self.busy = rules.busy
            if not rules.unread:
                self.read(args, rules)

    @property
    def letter(self) -> str:
        """The first character of its priority."""
        return chr(self.rank[1])

    def read(self, args: bytes, rules: Rules) -> None:
        """Set what the row holds."""
        self.args, self.rules = args, rules
        self.query = Query(rules) if rules.msq else None
        self.done, self.failed = rules.itemsprocessed, rules.itemsfailed
        if rules.variables is None:
            return
        self.pool.expect_row_bytes(2 * len(rules.variables_json))
        values = {as_bytes(name): None if text is None else as_bytes(text) for name, text in rules.variables.items()}
        if self.query is None:
            self.names, self.row = tuple(values), tuple(values.values())
        given = {VARIABLE + name: value for name, value in values.items() if value is not None}
        self.environment = {VARIABLES: as_bytes(rules.variables_json), **given}

    # ---- what is noted of it

    def set_verdict(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def interrupt(self) -> None:
        """Note that a connection or a host was lost under it."""
        self.interrupted = True

    def fail(self, reason: str, counted: int | None) -> None:
        """Note why a one-parameter job fails, and how many items its agent has counted."""
        self.failure, self.done = reason, counted or 0

    def agent_died(self, seconds: float, counted: int | None) -> None:
        """Count the time of an agent, and of a one-parameter job the items that it has counted."""
        self.busy += seconds
        if self.query is None:
            self.done = counted or 0

    def exited(self, code: int | None, signal: str | None) -> None:
        """Note how the process of a one-parameter job ended."""
        if self.query is None:
            self.code, self.signal = code, signal

    def set_logged(self, why: str) -> None:
        self.logged = why

    def set_nonfatal(self) -> None:
        self.nonfatal = True

    def set_result(self, value: object) -> None:
        self.result = value

    def set_deadline(self, deadline: float) -> None:
        self.deadline = deadline

    def set_columns(self, names: tuple[bytes, ...]) -> None:
        self.names = names

    def next_piece(self) -> int:
        """Return the number of the next piece of output in this attempt."""
        self.pieces += 1
        return self.pieces

    def mark(self) -> None:
        """Note that its row says running."""
        self.marked = True

    def show(self, counted: int = 0) -> None:
        """Note that its row says how far it is, with so many items counted that are still worked."""
        self.marked, self.shown = self.marked or self.started, counted

    # ---- its items

    def end_second_try(self, item: Item | None) -> None:
        """Note that a second try of an item is over."""
        if self.query is not None and item is not None:
            self.query.end_second_try(item)

    @property
    def is_fed(self) -> bool:
        """Say whether nothing of its query is left to hand out."""
        query = self.query
        if query is None or self.waiting or query.second_tries:
            return False
        return query.state is QueryState.EXHAUSTED

    def add_items(self, items: Sequence[Item], host: str | None) -> "Lane[Job] | None":
        """Let items wait for a host, or for any; return their lane if it was empty."""
        lane = self._lane(host)
        self.waiting += len(items)
        return lane if lane.add(items) else None

    def put_back(self, item: Item, host: str | None) -> "Lane[Job] | None":
        """Let an item that was not worked wait again, before the others; return its lane if that was empty."""
        lane = self._lane(host)
        self.waiting += 1
        self.in_flight -= 1
        if self.query is None:
            self.started, self.deadline = False, NEVER  # its time limit begins anew
        return lane if lane.put_back(item) else None

    def _lane(self, host: str | None) -> "Lane[Job]":
        lane = self.lanes.get(host)
        if lane is None:
            lane = self.lanes[host] = Lane(self, self.rank, self.rules.submitter, host, is_single=self.query is None)
        return lane

    def take_lane(self, host: str | None) -> list[Item]:
        """Return the items that waited for a host, which are to wait elsewhere."""
        items = list(self.lanes.pop(host).items)
        self.waiting -= len(items)
        return items

    def assigned(self) -> bool:
        """Count an item that has left its lane for an agent; say whether it is the first."""
        self.waiting -= 1
        self.in_flight += 1
        is_first, self.started = not self.started, True
        return is_first

    def assigned_again(self) -> None:
        """Count an item that an agent gets for its second try."""
        self.in_flight += 1

    def returned(self) -> None:
        """Count an item that an agent had and that is not to be worked, or to be tried again."""
        self.in_flight -= 1

    def item_ended(self, where: tuple[str, str, int], seconds: float) -> None:
        """Count an item that is not done and that its agent has no more, and the agent's time."""
        self.in_flight -= 1
        self.where = where
        self.busy += seconds

    def item_succeeded(
        self, item: Item | None, counted: int | None, where: tuple[str, str, int], seconds: float
    ) -> None:
        """Count an item that is done, and the agent's time."""
        self.in_flight -= 1
        self.where = where
        self.busy += seconds
        self.done += 1 if counted is None else counted
        self.succeeded += 1
        if self.query is not None and self.query.progress is not None and item is not None and item.key is not None:
            self.query.progress.finish(item.number, item.key.decode("utf-8", "surrogateescape"))

    def item_failed(self, query: Query, item: Item, failure: ItemFailure, counted: int | None = None) -> None:
        """Record an item of its query that has failed for good."""
        self.failed += 1
        self.done += counted or 0
        query.item_failed(item, failure)

    def drop_items(self) -> None:
        """Let none of its items wait any longer."""
        for host, lane in self.lanes.items():
            self.pool.queues.of(self, host).drop(lane)
            lane.clear()
        self.waiting = 0
        if self.query is not None:
            self.query.stop()
            self.pool.drop_second_tries(self)

    def forget_lanes(self) -> None:
        """Break a ring that only the garbage collector would break: lanes name their job."""
        self.lanes.clear()


Prefetched = tuple[Job, Item, bool]  # a line that an agent has before it is done with another; may it run here only
SecondTry = tuple[Job, Item, str | None]  # an item whose agent died, and the host it is bound to


class Pool:
    """All slots of one agent type, and what waits for them."""

    __slots__ = (
        "arriving", "blocked_since", "blocked_until", "coming", "enabled", "failed_starts", "finished", "free", "idle",
        "is_exec", "is_guarded", "kind", "lacks_connection", "marking", "may_begin", "name", "query_jobs", "queues",
        "rate", "rated_at", "reason", "rescued", "row_bytes", "second_tries", "slots", "starving_since", "unread",
    )  # fmt: skip

    def __init__(self, name: str, kind: AgentType, enabled: bool) -> None:
        self.name = name
        self.queues: RunQueues[Job] = RunQueues()
        self.set_kind(kind)
        self.enabled = enabled
        self.slots: list[Any] = []  # of class Slot, as are those below
        self.idle: dict[str, list[Any]] = {}  # READY, by host; the one idle longest first
        self.free: dict[str, deque[Any]] = {}
        self.failed_starts: dict[str, int] = {}  # by host: in a row, that ended before their first OK; 0 is left out
        self.second_tries: deque[SecondTry] = deque()  # each waits for a fresh process
        self.arriving = 0  # rows claimed and not unpacked yet
        self.coming: dict[RunQueue[Job], int] = {}  # the same, by where they are going to wait
        self.rescued: deque[Job] = deque()  # rows rescued before, to be shown as running before they begin
        self.marking: set[int] = set()  # of these, rows whose mark is on its way
        self.unread: dict[int, Job] = {}  # rows claimed without what they hold, which is read first
        self.query_jobs: dict[int, Job] = {}  # multi-SQL-queries in hand
        self.starving_since = NEVER  # since when its work finds no room
        self.finished = 0  # items since the rate was last taken
        self.rate = 0.0  # items a second
        self.row_bytes = 0.0  # of the parameter of a row that was claimed, on the average
        self.rated_at = 0.0
        self.blocked_since = 0.0  # every slot is FAIL since then
        self.blocked_until = 0.0  # and until then
        self.reason: str | None = None
        self.is_exec = kind.kind == "exec"  # one process an item
        self.lacks_connection = False  # for DB: lines, which its agents may send
        self.set_may_begin()

    # ---- what is known of it

    def set_kind(self, kind: AgentType) -> None:
        """Go by this configuration."""
        self.kind = kind
        self.queues.set_fair(kind.fair)
        self.is_guarded = "*" not in kind.submitters

    def set_may_begin(self, enabled: bool | None = None, lacks_connection: bool | None = None) -> None:
        """Note what has changed of why items of this type may be given to agents, or may not."""
        self.enabled = self.enabled if enabled is None else enabled
        self.lacks_connection = self.lacks_connection if lacks_connection is None else lacks_connection
        self.may_begin = self.enabled and not self.lacks_connection

    def block(self, now: float) -> None:
        """Note that every slot has failed."""
        self.blocked_since, self.blocked_until = now, min(slot.deadline for slot in self.slots)

    def unblock(self) -> None:
        """Note that a slot may start agents again."""
        self.blocked_until = 0.0

    def starve(self, now: float) -> None:
        """Note that its work finds no room, if it is not known since before."""
        self.starving_since = min(self.starving_since, now)

    def end_starving(self) -> None:
        self.starving_since = NEVER

    def measure(self, now: float) -> None:
        """Work out how many items a second its agents finish: what to hold is measured in time."""
        span = now - self.rated_at
        if self.finished and span > 0.001:
            self.rate = (self.rate + self.finished / min(span, 1.0)) / 2
            self.finished, self.rated_at = 0, now
        elif span > 1.0:
            self.rate, self.rated_at = self.rate / 2, now

    def expect_row_bytes(self, size: int) -> None:
        """Let fewer rows be claimed at once, since one has had this size."""
        self.row_bytes = max(self.row_bytes, size)

    # ---- its jobs

    @property
    def singles(self) -> int:
        """The number of one-parameter jobs that wait for agents."""
        return sum([run_queue.singles for run_queue in self.queues.all()])

    @property
    def waits_for_connection(self) -> bool:
        """Say whether some query of this type has no expansion connection yet."""
        return any(job.query and not job.query.has_connection for job in self.query_jobs.values())

    def claimed(self, count: int, run_queue: RunQueue[Job] | None, row_bytes: float) -> None:
        """Count rows that are claimed and not unpacked yet."""
        self.arriving += count
        if run_queue is not None:
            self.coming[run_queue] = self.coming.get(run_queue, 0) + count
        self.row_bytes = max(row_bytes, self.row_bytes / 2)

    def unpacked(self) -> None:
        """Note that all claimed rows are unpacked."""
        self.arriving = 0
        self.coming.clear()

    def add_unread(self, job: Job) -> None:
        self.unread[job.pk] = job

    def remove_unread(self, job: Job) -> None:
        self.unread.pop(job.pk, None)

    def add_query(self, job: Job) -> None:
        self.query_jobs[job.pk] = job

    def forget(self, job: Job) -> None:
        """Note that a job is not in hand any more."""
        self.query_jobs.pop(job.pk, None)
        self.unread.pop(job.pk, None)

    def add_rescued(self, job: Job) -> None:
        self.rescued.append(job)

    def next_marks(self, jobs: Mapping[int, Job]) -> list[Job]:
        """Return the rescued rows, of all jobs in hand, that are to be shown as running now.

        What kills the machine uses up its allowance, so this comes before their first byte. No more of them at a time
        than could begin, but always one, so that a type without room shows that it needs some.
        """
        self.marking &= jobs.keys()
        if not self.rescued:
            return []
        coming = self.singles + len(self.marking)
        room = max(self.startable(urgent=False) - coming, 0 if coming else 1)
        chosen: list[Job] = []
        while self.rescued and len(chosen) < room:
            job = self.rescued.popleft()
            if jobs.get(job.pk) is job and job.verdict is None:
                chosen.append(job)
                self.marking.add(job.pk)
        return chosen

    def marked(self, job: Job) -> None:
        """Note that a row is shown as running."""
        self.marking.discard(job.pk)

    def add_second_try(self, job: Job, item: Item, host: str | None) -> None:
        """Let an item wait for a fresh process."""
        self.second_tries.append((job, item, host))

    def put_back_second_try(self, job: Job, item: Item, host: str | None) -> None:
        """Let an item that was not worked wait again, before the others."""
        self.second_tries.appendleft((job, item, host))

    def remove_second_try(self, entry: SecondTry) -> None:
        self.second_tries.remove(entry)

    def drop_second_tries(self, job: Job) -> None:
        self.second_tries = deque(entry for entry in self.second_tries if entry[0] is not job)

    def unbind_second_tries(self) -> None:
        """Let second tries be anywhere that their hosts do not take any more."""
        self.second_tries = deque(
            (job, item, host if host is None or self.queues.takes(job, host) else None)
            for job, item, host in self.second_tries
        )

    # ---- its slots

    def has_free(self, host: str) -> bool:
        """Say whether a slot on a host is free."""
        return bool(self.free[host])

    def startable(self, *, urgent: bool, hosts: frozenset[str] | None = None) -> int:
        """Return how many more items could begin at once, on idle agents and on new ones, of some hosts or of all."""
        count = 0
        if not urgent:
            count = sum(map(len, self.idle.values() if hosts is None else [self.idle[name] for name in hosts]))
        for name, slots in self.free.items():
            if slots and (hosts is None or name in hosts) and slots[0].host.has_room(urgent):
                count += int(min(len(slots), slots[0].host.spare(urgent)))
        return count

    def add_host(self, name: str) -> None:
        """Let slots and work of this type be on a host."""
        self.queues.add_host(name)
        self.free[name] = deque()
        self.idle[name] = []

    def remove_host(self, name: str) -> None:
        """Have nothing of this type on a host; of `idle` an empty list stays, for agents that finish there."""
        self.queues.remove_host(name)
        del self.free[name]

    def add_slot(self, slot: Any) -> None:
        """Have one more slot, which is free."""
        self.slots.append(slot)
        self.free[slot.host.name].append(slot)

    def remove_slot(self, slot: Any) -> None:
        """Have a slot no more."""
        self.slots.remove(slot)
        if slot.state == ST_FREE:
            self.free[slot.host.name].remove(slot)

    def slot_moved(self, slot: Any, old: int, new: int) -> None:
        """Note which slots are free, and which are READY no more; `add_idle` notes that they are."""
        host = slot.host.name
        if old == ST_SPAWNED and new >= ST_READY:
            self.failed_starts.pop(host, None)
        if old == ST_FREE:
            self.free[host].remove(slot)
        elif new == ST_FREE and not slot.is_removed:
            self.free[host].append(slot)
        if old == ST_READY:
            self.remove_idle(slot)

    def start_failed(self, host: str) -> None:
        """Count a process that ended before its first OK."""
        self.failed_starts[host] = self.failed_starts.get(host, 0) + 1

    def forget_failed_starts(self) -> None:
        """Start agents as if none had failed."""
        self.failed_starts.clear()

    def set_reason(self, reason: str | None) -> None:
        """Note why its agents do not come up; None: they do."""
        self.reason = reason

    def add_idle(self, slot: Any) -> None:
        """Note that a slot is READY."""
        self.idle[slot.host.name].append(slot)
        slot.host.add_idle(slot)

    def remove_idle(self, slot: Any) -> None:
        """Note that a slot is READY no more."""
        self.idle[slot.host.name].remove(slot)
        slot.host.remove_idle(slot)


def is_urgent(job: Job) -> bool:
    """Say whether a job may use a host's urgent slots."""
    return job.rank.startswith(b"0")
