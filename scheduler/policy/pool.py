"""All slots of one agent type (slots.py), and what waits for them. State, no decisions."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from scheduler.model.config import AgentType
from scheduler.model.protocol import Item
from scheduler.model.states import NEVER, ST_FREE, ST_READY, ST_SPAWNED
from scheduler.policy.run_queue import RunQueue, RunQueues, Waiting
from scheduler.policy.sql_job import JobQuery

DISABLED: Final = "agent type disabled"


class Held(Waiting, Protocol):
    """What a pool knows of a job."""

    pk: int
    query: JobQuery | None
    verdict: Any  # None while its work is to be done


JobT = TypeVar("JobT", bound=Held)
SecondTry = tuple[JobT, Item, str | None]  # an item whose agent died, and the host it is bound to


class Pool(Generic[JobT]):
    """All slots of one agent type, and what waits for them."""

    __slots__ = (
        "arriving", "blocked_since", "blocked_until", "coming", "enabled", "failed_starts", "finished", "free", "idle",
        "is_exec", "is_guarded", "kind", "lacks_connection", "marking", "may_begin", "name", "query_jobs", "queues",
        "rate", "rated_at", "reason", "rescued", "row_bytes", "second_tries", "slots", "starving_since", "unread",
    )  # fmt: skip

    def __init__(self, name: str, kind: AgentType, enabled: bool) -> None:
        self.name = name
        self.queues: RunQueues[JobT] = RunQueues()
        self.set_kind(kind)
        self.enabled = enabled
        self.slots: list[Any] = []  # of class Slot, as are those below
        self.idle: dict[str, list[Any]] = {}  # READY, by host; the one idle longest first
        self.free: dict[str, deque[Any]] = {}
        self.failed_starts: dict[str, int] = {}  # by host: in a row, that ended before their first OK; 0 is left out
        self.second_tries: deque[SecondTry[JobT]] = deque()  # each waits for a fresh process
        self.arriving = 0  # rows claimed that are still to come
        self.coming: dict[RunQueue[JobT], int] = {}  # the same, by where they are going to wait
        self.rescued: deque[JobT] = deque()  # rows rescued before, to be shown as running before they begin
        self.marking: set[int] = set()  # of these, rows whose mark is on its way
        self.unread: dict[int, JobT] = {}  # rows claimed without what they hold, which is read first
        self.query_jobs: dict[int, JobT] = {}  # multi-SQL-queries in hand
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

    def claimed(self, count: int, run_queue: RunQueue[JobT] | None, row_bytes: float) -> None:
        """Count rows that are claimed, and may still be to come."""
        self.arriving += count
        if run_queue is not None:
            self.coming[run_queue] = self.coming.get(run_queue, 0) + count
        self.row_bytes = max(row_bytes, self.row_bytes / 2)

    def received(self) -> None:
        """Note that all claimed rows are here."""
        self.arriving = 0
        self.coming.clear()

    def add_unread(self, job: JobT) -> None:
        self.unread[job.pk] = job

    def remove_unread(self, job: JobT) -> None:
        self.unread.pop(job.pk, None)

    def add_query(self, job: JobT) -> None:
        self.query_jobs[job.pk] = job

    def forget(self, job: JobT) -> None:
        """Note that a job is not in hand any more."""
        self.query_jobs.pop(job.pk, None)
        self.unread.pop(job.pk, None)

    def add_rescued(self, job: JobT) -> None:
        self.rescued.append(job)

    def next_marks(self, jobs: Mapping[int, JobT]) -> list[JobT]:
        """Return the rescued rows, of all jobs in hand, that are to be shown as running now.

        What kills the machine uses up its allowance, so this comes before their first byte. No more of them at a time
        than could begin, but always one, so that a type without room shows that it needs some.
        """
        self.marking &= jobs.keys()
        if not self.rescued:
            return []
        coming = self.singles + len(self.marking)
        room = max(self.startable(urgent=False) - coming, 0 if coming else 1)
        chosen: list[JobT] = []
        while self.rescued and len(chosen) < room:
            job = self.rescued.popleft()
            if jobs.get(job.pk) is job and job.verdict is None:
                chosen.append(job)
                self.marking.add(job.pk)
        return chosen

    def marked(self, job: JobT) -> None:
        """Note that a row is shown as running."""
        self.marking.discard(job.pk)

    def add_second_try(self, job: JobT, item: Item, host: str | None) -> None:
        """Let an item wait for a fresh process."""
        self.second_tries.append((job, item, host))

    def put_back_second_try(self, job: JobT, item: Item, host: str | None) -> None:
        """Let an item that was not worked wait again, before the others."""
        self.second_tries.appendleft((job, item, host))

    def remove_second_try(self, entry: SecondTry[JobT]) -> None:
        self.second_tries.remove(entry)

    def drop_second_tries(self, job: JobT) -> None:
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
