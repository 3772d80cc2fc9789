"""A pool: all slots of one agent type, and what waits for them. State, no decisions."""

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from scheduler.model.config import AUTO, AgentType
from scheduler.model.counters import Times
from scheduler.model.protocol import Item
from scheduler.model.states import NEVER, ST_FREE, ST_READY, ST_SPAWNED
from scheduler.policy.canary_verdict import Canary
from scheduler.policy.capacity import next_pause
from scheduler.policy.handover_values import Snapshot, fields_of, set_fields
from scheduler.policy.item_rate import TokenBucket
from scheduler.policy.prefetch_window import MeanPace
from scheduler.policy.run_queue import RunQueue, RunQueues, Waiting

WAIT: Final = "wait"  # what jobs do that cannot start, if their type says nothing else
DISABLED: Final = "agent type disabled"
_PLAIN_FIELDS: Final = (  # of a snapshot, as they are
    "failed_starts", "blocked_since", "blocked_until", "reason", "rests_until", "worked_s",
)  # fmt: skip


class Held(Waiting, Protocol):
    """The attributes of a job that a pool reads."""

    pk: int
    verdict: Any  # None while its work is to be done

    @property
    def waits_for_connection(self) -> bool: ...


JobT = TypeVar("JobT", bound=Held)


class BusyProgram(NamedTuple):
    """A program that was being written when it was to be started: the pause after that, until when, and why."""

    pause: float
    until: float
    reason: str


SecondTry = tuple[JobT, Item, str | None]  # an item whose agent died, and the host it is bound to


class Pool(Generic[JobT]):
    """All slots of one agent type, and what waits for them."""

    __slots__ = (
        "arriving", "blocked_since", "blocked_until", "bucket", "busy", "canary", "coming", "enabled", "failed_starts",
        "finished", "free", "idle", "is_auto", "is_counted", "is_exec", "is_guarded", "kind", "lacks_connection",
        "looked_at", "marking", "may_begin", "most_ahead", "name", "pace", "plain_ends", "query_jobs", "queues", "ran",
        "rate", "rated_at", "reason", "rescued", "rests_until", "row_bytes", "second_tries", "slots", "starving_since",
        "stops_jobs", "unfed_since", "unread", "waits_for_token", "worked_s",
    )  # fmt: skip

    def __init__(self, name: str, kind: AgentType, enabled: bool) -> None:
        self.name = name
        self.is_counted = False
        self.queues: RunQueues[JobT] = RunQueues()
        self.bucket: TokenBucket | None = None  # of a type with a rate of items
        self.waits_for_token = False
        self.enabled, self.lacks_connection = enabled, False  # the latter for DB: lines, which its agents may send
        self.set_kind(kind)
        self.slots: list[Any] = []  # of class Slot, as are those below
        self.idle: dict[str, list[Any]] = {}  # READY, by host; the one idle longest first
        self.free: dict[str, deque[Any]] = {}
        self.failed_starts: dict[str, int] = {}  # by host: in a row, that ended before their first OK; 0 is left out
        self.busy: dict[str, BusyProgram] = {}  # by host
        self.second_tries: deque[SecondTry[JobT]] = deque()  # each waits for a fresh process
        self.arriving = 0  # rows claimed that are still to come
        self.coming: dict[RunQueue[JobT], int] = {}  # the same, by where they are going to wait
        self.rescued: deque[JobT] = deque()  # rows rescued before, to be shown as running before they begin
        self.marking: set[int] = set()  # of these, rows whose mark is on its way
        self.unread: dict[int, JobT] = {}  # rows claimed without what they hold, which is read first
        self.query_jobs: dict[int, JobT] = {}  # multi-SQL-queries in hand
        self.starving_since = NEVER  # since when its work finds no room
        self.unfed_since = NEVER  # since when no connection is left for a query that an agent could work on
        self.finished = 0  # items since the rate was last taken
        self.rate = 0.0  # items a second
        # Jobs that were done and had nothing more to say, since they were last counted: by host, and bin of time.
        self.plain_ends: dict[tuple[str, int], int] = defaultdict(int)
        self.ran = Times()  # how long jobs ran that have ended
        self.worked_s = 0.0  # of agents
        self.row_bytes = 0.0  # of the parameter of a row that was claimed, on the average
        self.rated_at = 0.0
        self.pace = MeanPace()
        self.looked_at = 0.0  # at its agents, for one that is slow
        self.rests_until = 0.0  # until when no lines are sent ahead, since an item was slow
        self.blocked_since = 0.0  # every slot is FAIL since then
        self.blocked_until = 0.0  # and until then
        self.reason: str | None = None
        self.canary: Canary | None = None  # of a type whose new programs are tried in one slot first
        self.is_exec = kind.kind == "exec"  # one process an item
        self.set_may_begin()

    # ---- what is known of it

    def set_kind(self, kind: AgentType) -> None:
        """Go by this configuration."""
        self.kind = kind
        self.most_ahead, self.is_auto = kind.most_lines - 1, kind.window == AUTO
        self.stops_jobs = kind.on_start_failure != WAIT
        self._set_item_rate(kind.item_rate)
        self.queues.set_fair(kind.fair)
        self.set_counted(self.is_counted)

    def snapshot(self) -> dict[str, Any]:
        """Return what another program needs to go on with it, but for its slots and its jobs."""
        canary = self.canary
        trial = None if canary is None else canary.snapshot() | {"slot": canary.slot and canary.slot.number}
        ends = [[host, bin, jobs] for (host, bin), jobs in self.plain_ends.items()]
        tokens = None if self.bucket is None else self.bucket.snapshot()
        return fields_of(self, _PLAIN_FIELDS) | {"canary": trial, "ended_plainly": ends, "tokens": tokens}

    def restore(self, snapshot: Snapshot) -> None:
        """Continue as the pool of a snapshot; the slot of a trial is set later."""
        set_fields(self, _PLAIN_FIELDS, snapshot)
        for host, bin, jobs in snapshot.get("ended_plainly", ()):
            self.plain_ends[host, bin] = jobs
        if self.bucket is not None and (tokens := snapshot.get("tokens")) is not None:
            self.bucket.restore(tokens)
            self.waits_for_token = True  # until `State.refill`
        trial = snapshot.get("canary")
        if trial is not None and self.kind.canary:
            self.canary = Canary.restored(self.kind.canary, trial)

    @property
    def is_cut_off(self) -> bool:
        """Return whether none of its hosts is reached and enabled."""
        return not any(slot.host.is_open for slot in self.slots)

    def set_counted(self, is_counted: bool) -> None:
        """Note whether quotas count its jobs: then claims name submitters, as for a type that only some may queue."""
        self.is_counted = is_counted
        self.is_guarded = is_counted or "*" not in self.kind.submitters

    def set_may_begin(self, enabled: bool | None = None, lacks_connection: bool | None = None) -> None:
        """Note what has changed of why items of this type may be given to agents, or may not."""
        self.enabled = self.enabled if enabled is None else enabled
        self.lacks_connection = self.lacks_connection if lacks_connection is None else lacks_connection
        self.may_begin = not (self.is_stopped or self.waits_for_token)

    @property
    def is_stopped(self) -> bool:
        """Return whether none of its items may be given to agents, however long they wait."""
        return not self.enabled or self.lacks_connection

    def _set_item_rate(self, rate: float) -> None:
        """Give out so many items a second; 0 is no limit. `State.refill` goes on with those that wait."""
        if not rate:
            self.bucket, self.waits_for_token = None, False
        elif self.bucket is None:
            self.bucket = TokenBucket(rate)
        else:
            self.bucket.set_rate(rate)
        self.set_may_begin()

    def look_for_token(self, now: float) -> bool:
        """Note whether an item may be given out now, as far as the rate of items goes; return that."""
        self.waits_for_token = self.bucket is not None and not self.bucket.has_token(now)
        self.set_may_begin()
        return not self.waits_for_token

    def item_wait(self, now: float) -> float | None:
        """Return in how many seconds its item_rate lets the next item begin; None if that is soon."""
        if self.bucket is None or not self.waits_for_token:
            return None
        wait = self.bucket.next_at() - now
        return wait if wait >= 1.0 else None

    def set_canary(self, canary: Canary | None) -> None:
        """Try new programs in one slot first, or not."""
        self.canary = canary

    def block(self, now: float) -> None:
        """Note that every slot has failed."""
        self.blocked_since, self.blocked_until = now, min(slot.deadline for slot in self.slots)

    @property
    def failure(self) -> str:
        """Return why its jobs go back to the queue while every slot has failed."""
        return f"agent failed: {self.reason}"

    def unblock(self) -> None:
        """Note that a slot may start agents again."""
        self.blocked_until = 0.0

    def starve(self, now: float) -> None:
        """Note that its work finds no room, if it is not known since before."""
        self.starving_since = min(self.starving_since, now)

    def end_starving(self) -> None:
        self.starving_since = NEVER

    def set_unfed(self, is_unfed: bool, now: float) -> None:
        """Note whether no connection is left for a query that an agent could work on."""
        self.unfed_since = min(self.unfed_since, now) if is_unfed else NEVER

    def measure(self, now: float) -> None:
        """Work out how many items a second its agents finish: what to hold is measured in time."""
        span = now - self.rated_at
        if self.finished and span > 0.001:
            self.rate = (self.rate + self.finished / min(span, 1.0)) / 2
            self.finished, self.rated_at = 0, now
        elif span > 1.0:
            self.rate, self.rated_at = self.rate / 2, now

    def forget_counted(self) -> None:
        """Begin to count anew: what was counted is on its way to drover.counter."""
        self.plain_ends, self.worked_s = defaultdict(int), 0.0

    def look_again(self, now: float, interval: float) -> bool:
        """Return whether its agents are to be looked at, since the last look was so long ago."""
        is_due = now >= self.looked_at + interval
        if is_due:
            self.looked_at = now
        return is_due

    def pause_prefetch(self, until: float) -> None:
        """Send no lines ahead for a while: an item is slow."""
        self.rests_until = until

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
        """Return whether some query of this type is to have an expansion connection and has none."""
        return any(job.waits_for_connection for job in self.query_jobs.values())

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
        """Enqueue an item for a fresh process."""
        self.second_tries.append((job, item, host))

    def put_back_second_try(self, job: JobT, item: Item, host: str | None) -> None:
        """Put an item that was not worked back at the front."""
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
        """Add a host for slots and work of this type."""
        self.queues.add_host(name)
        self.free[name] = deque()
        self.idle[name] = []

    def remove_host(self, name: str) -> None:
        """Have nothing of this type on a host; of `idle` an empty list stays, for agents that finish there."""
        self.queues.remove_host(name)
        del self.free[name]

    def clear_slots(self) -> None:
        """Have no slots: others are added."""
        self.slots.clear()
        for free in self.free.values():
            free.clear()

    def add_slot(self, slot: Any) -> None:
        self.slots.append(slot)
        self.free[slot.host.name].append(slot)

    def remove_slot(self, slot: Any) -> None:
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

    def lacks_program(self, host: str, most: int) -> bool:
        """Note that its program is not on a host, so that the start which failed is the last one there for a while.

        Return whether that is so: not if it has failed more than `most` times on each of its other hosts, or has none.
        """
        others = {slot.host.name for slot in self.slots if slot.host.is_open} - {host}
        if all(self.failed_starts.get(other, 0) > most for other in others):
            return False
        self.failed_starts[host] = max(self.failed_starts.get(host, 0), most)
        return True

    def forget_failed_starts(self) -> None:
        """Start agents as if none had failed."""
        self.failed_starts.clear()
        self.busy.clear()

    def program_is_busy(self, host: str, reason: str, now: float) -> bool:
        """Wait before its program is tried again on a host; return whether a new pause has begun."""
        before = self.busy.get(host)
        if before is not None and now < before.until:
            return False
        pause = next_pause(0.0 if before is None else before.pause)
        self.busy[host] = BusyProgram(pause, now + pause, reason)
        return True

    def program_was_free(self, host: str) -> None:
        """Note that its program could be started on a host."""
        self.busy.pop(host, None)

    def waits_until(self, host: str) -> float:
        """Return until when its program is not tried again on a host, on which it was being written."""
        busy = self.busy.get(host)
        return -NEVER if busy is None else busy.until

    def set_reason(self, reason: str | None) -> None:
        """Note why its agents do not come up; None: they do."""
        self.reason = reason

    def add_idle(self, slot: Any) -> None:
        self.idle[slot.host.name].append(slot)
        slot.host.add_idle(slot)

    def remove_idle(self, slot: Any) -> None:
        """Note that a slot is READY no more."""
        self.idle[slot.host.name].remove(slot)
        slot.host.remove_idle(slot)
