"""Slots, places for agents: each moves itself by the tables SLOT_TABLE and WANTED of model/states.py.

Throttle: deaths count per slot, those of the last respawn_interval: the first start and respawn_count respawns are
allowed. A start that ended before the first OK counts besides for all slots of the type on the host, since it tells
something of the program: in a row, however far apart they are, since an agent that never says OK is killed by
start_limit only, and one of these after the other fills no interval. One first OK forgets this second count. After the
last that is allowed all slots of the type on the host rest; then one start after each rest is allowed, until one says
OK.

A type whose last start on a host failed so is on probation there: of all such types one agent at a time is started on
a host, and after one that failed none for as long as it held its place. So agents that do not come up hold one place
of a host, half of the time, once their first starts are over.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from scheduler.model import states as s
from scheduler.model.config import AgentType, Scheduler
from scheduler.model.events_and_effects import Effect, ForceKill, Kill, LogMessage
from scheduler.model.protocol import Item
from scheduler.policy.canary_verdict import Record
from scheduler.policy.capacity import HostState
from scheduler.policy.deadlines import SLOTS, Deadlines
from scheduler.policy.handover_values import Snapshot, set_fields
from scheduler.policy.job import Job, Pool, Prefetched
from scheduler.policy.output_buffers import AgentOutput
from scheduler.policy.prefetch_window import Pace
from scheduler.policy.run_queue import RunQueue

PLAIN_FIELDS: Final = (  # of a snapshot, as they are
    "serial", "since", "deadline", "starts", "spawns", "total", "reason", "pid", "born", "about_job", "death_counts",
    "is_up", "items", "clogged_until", "ahead", "is_second_try", "is_bound", "assigned_at", "failed", "fails_for_good",
    "blocked", "counted",
)  # fmt: skip
LEAST_GRACE: Final = 1.0  # seconds from one SIGKILL to the next of the same process


def timeouts_of(kind: AgentType, timers: Scheduler) -> tuple[float, ...]:
    """Return the seconds that each state may last, by state; of ST_RUNNING the lesser of heartbeat and item_timeout."""
    timeouts = [s.NEVER] * s.ST_END
    timeouts[s.ST_FAIL] = timers.respawn_interval
    timeouts[s.ST_FREEING] = timers.kill_grace
    timeouts[s.ST_PREP] = timeouts[s.ST_SPAWNED] = timers.start_limit
    timeouts[s.ST_READY] = timers.max_idle
    timeouts[s.ST_RUNNING] = min(kind.heartbeat or s.NEVER, kind.item_timeout or s.NEVER)
    return tuple(timeouts)


class Slot:
    """A place for one agent, and its process; `fire` moves its state and sets the deadline of that."""

    __slots__ = (
        "about_job", "ahead", "any_queue", "assigned_at", "blocked", "born", "clogged_until", "counted", "deadline",
        "death_counts", "failed", "fails_for_good", "host", "host_queue", "is_bound", "is_removed", "is_second_try",
        "is_unsent", "is_up", "item", "items", "job", "number", "output", "pace", "pid", "pool", "prefetched", "reason",
        "record", "serial", "shown", "since", "slots", "spawns", "starts", "state", "timeouts", "total", "wanted",
        "where",
    )  # fmt: skip

    def __init__(
        self, number: int, serial: int, pool: Pool, host: HostState, timeouts: tuple[float, ...], slots: "Slots",
        now: float,
    ) -> None:  # fmt: skip
        self.number = number
        self.pool = pool
        self.host = host
        self.timeouts = timeouts  # seconds a state may last, by state
        self.slots = slots
        self.state = s.ST_FREE
        self.deadline = s.NEVER
        self.since = now  # of the state
        self.starts: list[float] = []  # instants: of processes whose death counts, see the throttle
        self.spawns = 0
        self.total = 0  # items over all processes
        self.serial = serial  # of the process
        self.shown: tuple[int, int | None, int | None, int] | None = None  # what scheduler_status has
        self.is_removed = False  # no other process is started here
        self.wanted = s.KEEP  # of its process
        self.reason = ""  # why that is wanted
        self.clear()

    def clear(self) -> None:
        """Forget the process."""
        self.pid: int | None = None
        self.record: Record | None = None  # of its program, if its type has trials of new ones
        self.where = (self.host.name, self.pool.name, 0)  # and the pid: what is noted of a job it has
        self.born = 0.0
        self.about_job: int | None = None  # without an item: the job it was started for, later the last one it had
        self.death_counts = True  # against the slot
        self.is_up = False  # it said its first OK, or is a command that runs
        self.items = 0  # finished by this process
        self.output = AgentOutput(0.0)
        self.clogged_until = s.NEVER
        self.prefetched: deque[Prefetched] | None = None  # lines behind that of the item in hand; None: it has none
        self.ahead = 0  # how many of them it may have, as of the last look at its pace
        self.pace: Pace | None = None
        self.is_unsent = False  # the line of the item in hand is still among the effects
        queues, host = self.pool.queues, self.host.name
        if host in queues.by_host:
            self.any_queue, self.host_queue = queues.any_of(host), queues.by_host[host]
        self.clear_item()

    def clear_item(self, finished: int = 0) -> None:
        """Forget the item in hand, and count it if it is finished."""
        self.items += finished
        self.total += finished
        self.pool.finished += finished  # here: a call for each item would cost more
        self.is_second_try = False
        self.job: Job | None = None
        self.item: Item | None = None
        self.is_bound = False  # the item may run on this host only
        self.assigned_at = 0.0
        self.failed: str | None = None
        self.fails_for_good = False  # it said FAIL!
        self.blocked: str | None = None
        self.counted: int | None = None

    def restore(
        self, snapshot: Snapshot, job: Job | None, item: Item | None, prefetched: Iterable[Prefetched] | None
    ) -> None:
        """Continue as the slot of a snapshot: in its state, with its process and what that has in hand."""
        set_fields(self, PLAIN_FIELDS, snapshot)
        self.state, self.wanted = int(snapshot["state"]), s.Wanted[snapshot.get("wanted", "KEEP")]
        self.where = (self.host.name, self.pool.name, self.pid or 0)
        self.job, self.item = job, item
        self.output.restore(snapshot.get("output", {}))
        if prefetched is not None:
            self.prefetched, self.pace = deque(prefetched), Pace(self.pool.pace)
            if snapshot.get("stays"):
                self.pace.stay()
        if snapshot.get("starves"):
            self.starve()
        self.slots.restored(self)

    @property
    def is_starved(self) -> bool:
        """Return whether nothing more is assigned to its process."""
        return self.any_queue is self.host_queue

    @property
    def is_vacant(self) -> bool:
        """Return whether this was a slot: it has no process any more, and its number may be another's."""
        return self.is_removed and self.state == s.ST_FREE

    def fire(self, event: int, now: float) -> bool:
        """Move the slot; False when the event changed nothing. A violation or a bug of ours ends in a kill."""
        old = self.state
        new = s.SLOT_TABLE[old][event]
        if new < 0:
            if new != s.TO_IGNORE:
                self._refuse(event, new, now)
            return False
        self.state = new
        self.since = now
        deadline = now + self.timeouts[new]
        if new == s.ST_RUNNING and self.clogged_until < deadline:  # it has not read yet what it was sent before
            deadline = self.clogged_until
        self.deadline = deadline
        deadlines = self.slots.deadlines
        if deadline < deadlines.at[SLOTS]:
            deadlines.set(SLOTS, deadline)
        if old < s.ST_READY or new < s.ST_READY:  # moves between these last two states are not displayed
            self.is_up = self.is_up or (old == s.ST_SPAWNED and new >= s.ST_READY)
            self.slots.moved(self, old, new)
            if old == new == s.ST_FREEING:
                self.deadline = max(deadline, now + LEAST_GRACE)
        return True

    def _refuse(self, event: int, verdict: int, now: float) -> None:
        what = f"{s.EVENT_NAMES[event]} in {s.STATE_NAMES[self.state]}"
        if verdict == s.IS_IMPOSSIBLE:
            self.say("error", f"impossible: {what}; the slot is quarantined, please report this")
            self.kill(f"impossible: {what}", now)
        else:
            self.say("warning", f"protocol violation: {what}; killed")
            self.kill(f"protocol violation: {what}", now, counts=True)

    def set_deadline(self, deadline: float) -> None:
        """Set the deadline of the state that it is in: the one exception to `fire`, for what the state waits on."""
        self.deadline = deadline
        self.slots.deadlines.bring_forward(SLOTS, deadline)

    def set_timeouts(self, timeouts: tuple[float, ...]) -> None:
        """Measure its states by other limits, the one that it is in too."""
        if timeouts == self.timeouts:
            return
        self.timeouts = timeouts
        deadline = self.since + timeouts[self.state]
        if self.state in (s.ST_PREP, s.ST_SPAWNED):
            deadline = min(deadline, self.deadline)  # which may be of the hint, before the limit
        elif self.state == s.ST_RUNNING:
            deadline = min(deadline, self.clogged_until)
        self.set_deadline(deadline)

    def resume(self, pause: float) -> None:
        self.since += pause
        self.output.heartbeat(self.output.at + pause)
        self.assigned_at += pause
        self.clogged_until += pause
        self.deadline += pause

    def say(self, level: str, text: str) -> None:
        """Log one line about the slot."""
        pid = f" pid={self.pid}" if self.pid is not None else ""
        job = f" job={self.job.pk}{self.job.trace}" if self.job is not None else ""
        where = f"slot={self.number} agent={self.pool.name} host={self.host.name}{pid}{job}"
        self.slots.emit(LogMessage(level, f"{text} {where}"))

    def _want(self, wish: s.Wish, reason: str) -> None:
        wanted = s.WANTED.after(self.wanted, wish)
        if wanted is not None:
            self.wanted, self.reason = wanted, reason

    def dismiss(self, why: str, now: float) -> None:
        """Send the process no more items, and end it when it has finished those in hand."""
        if self.job is None:
            self.kill(why, now)
        else:
            self._want(s.Wish.DISMISS, why)
            self.starve()

    def starve(self) -> None:
        """Assign nothing more to the process: it takes from an empty run queue."""
        self.any_queue = self.host_queue = RunQueue()

    def kill(self, why: str, now: float, *, counts: bool = False) -> None:
        """Ask the process to die, unless it was. `counts`: the death is its own fault, and counts against its slot."""
        if s.SLOT_TABLE[self.state][s.KILLED] != s.TO_IGNORE:
            self._want(s.Wish.KILL, why)
            self.death_counts = counts
            self.fire(s.KILLED, now)

    def blame(self, counts: bool) -> None:
        """Set whether the death of the process counts against its slot."""
        self.death_counts = counts

    def begin_process(self, job: int | None, now: float) -> None:
        """Note that a process is being made because a job waits, or for the trial of its program."""
        self.serial += 1
        self.spawns += 1
        self.born = now
        self.about_job = job
        if self.pool.most_ahead:
            self.prefetched, self.pace = deque(), Pace(self.pool.pace)
        self.fire(s.CHOSEN, now)

    def process_began(self, pid: int, now: float) -> None:
        self.pid = pid
        self.where = (self.host.name, self.pool.name, pid)
        self.born = now
        self.output.heartbeat(now)
        self.fire(s.CREATED, now)

    def set_pid(self, pid: int | None) -> None:
        """Show another pid: a detached job is worked on by its keeper, not by the process that is attached to it."""
        self.pid = pid
        self.where = (self.host.name, self.pool.name, pid or 0)
        self.slots.show_again(self)

    def set_record(self, record: Record | None) -> None:
        """Note what its program does in this record."""
        self.record = record

    @property
    def program(self) -> str:
        """The program of its process; empty if its type has no trials of new ones."""
        return "" if self.record is None else self.record.program

    def have_no_lines_ahead(self) -> None:
        """Prefetch nothing for this process."""
        self.prefetched = self.pace = None

    def launched(self, now: float) -> None:
        """Note that an exec agent works on its item, which it has from the start."""
        self.assigned_at = now
        self.fire(s.LAUNCHED, now)

    def clog(self, until: float) -> None:
        """Note until when all that was written is to be read; NEVER when it is."""
        self.clogged_until = until
        if self.state == s.ST_RUNNING:
            self.set_deadline(min(self.deadline, until))

    def process_ended(self, event: int, timers: Scheduler, now: float) -> None:
        """Free the slot of a process that is dead (GONE) or was never made; let it rest if that happened too often."""
        host, pool = self.host, self.pool
        is_charged = self.death_counts and not self.is_removed
        is_failed_start = is_charged and not self.is_up
        starts = [*self.starts, self.born] if is_charged else [] if self.wanted is s.DIE else self.starts
        self.starts = [start for start in starts if now - start < timers.respawn_interval]
        if is_failed_start:
            pool.start_failed(host.name)
            host.start_failed(now + (now - self.born))  # its place is left to others for as long as it held it
        self.fire(event, now)
        if self.wanted is not s.KEEP:
            self._want(s.Wish.ENDED, "")
        self.clear()
        resting = [self] if len(self.starts) > timers.respawn_count else []
        if is_failed_start and pool.failed_starts[host.name] > timers.respawn_count:
            resting = list(pool.free[host.name])
        for slot in resting:
            slot.rest(now)

    def rest(self, now: float) -> None:
        """Start nothing here for a while; what counted before is older than the throttle looks back then."""
        self.fire(s.THROTTLED, now)

    def thaw(self, now: float) -> bool:
        """Forget the deaths that count against the slot; return whether it rested for them."""
        self.starts = []
        return self.state == s.ST_FAIL and self.fire(s.THAWED, now)

    def remove(self, now: float) -> None:
        """Start no process here any more."""
        if self.state == s.ST_FAIL:
            self.fire(s.THAWED, now)
        self.is_removed = True

    def find_run_queues(self) -> None:
        """Find the run queues anew after a reload, unless nothing more is assigned to the process."""
        queues, host = self.pool.queues, self.host.name
        if not self.is_starved:
            self.any_queue, self.host_queue = queues.any_of(host), queues.by_host[host]
        if self.job is not None and not queues.takes(self.job, host):
            self.unbind()

    def take(self, job: Job, item: Item, is_bound: bool, now: float, *, is_second_try: bool = False) -> None:
        self.job, self.item, self.is_bound, self.assigned_at = job, item, is_bound, now
        self.is_second_try = is_second_try

    def set_ahead(self, now: float) -> int:
        """Set how many lines it may have ahead, by the pace of its items if its window is auto; return that."""
        pool, pace = self.pool, self.pace
        self.ahead = pool.most_ahead
        if pool.is_auto and pace is not None:
            pace.look(self.items, now if self.job is None else self.assigned_at, now)
            self.ahead = 0 if now < pool.rests_until else min(pool.most_ahead, pace.lines(len(pool.slots)))
        return self.ahead

    def stop_prefetching(self) -> None:
        """Send nothing ahead to this process any more, unless its type has a window of its own."""
        if self.pace is not None:
            self.pace.stay()

    def add_prefetched(self, items: Iterable[Prefetched]) -> None:
        """Keep items behind the one in hand."""
        assert self.prefetched is not None
        self.prefetched += items

    def take_prefetched(self, now: float) -> Job:
        """Take the next prefetched item in hand, and return its job."""
        assert self.prefetched is not None
        self.job, self.item, self.is_bound = self.prefetched.popleft()
        self.assigned_at = now
        self.fire(s.NEXT, now)
        return self.job

    def recall_prefetched(self) -> list[Prefetched]:
        """Return all prefetched items, the last first, and keep none."""
        recalled = list(reversed(self.prefetched or ()))
        if self.prefetched is not None:
            self.prefetched.clear()
        return recalled

    def set_unsent(self, is_unsent: bool) -> None:
        """Note whether the line of the item in hand is still among the effects."""
        self.is_unsent = is_unsent

    def unbind(self) -> None:
        self.is_bound = False

    def say_item_failed(self, why: str, *, for_good: bool) -> None:
        self.failed, self.fails_for_good = why, for_good

    def say_item_blocked(self, why: str) -> None:
        self.blocked = why

    def count_items(self, number: int) -> None:
        self.counted = (self.counted or 0) + number

    def lose_item(self) -> None:
        """Count the item in hand, with which the process died."""
        self.total += 1

    def set_about_job(self, pk: int | None) -> None:
        self.about_job = pk

    @property
    def look(self) -> tuple[int, int | None, int | None, int]:
        """Return what the status shows of the slot, but for its ages."""
        return (self.state, self.pid, self.job.pk if self.job is not None else None, self.total)

    def set_shown(self) -> None:
        self.shown = self.look


class Slots:
    """All slots."""

    def __init__(self, emit: Callable[[Effect], None], deadlines: Deadlines) -> None:
        self.all: list[Slot] = []
        self.vacant: list[int] = []  # numbers of slots that were removed
        self.deadlines = deadlines
        self.emit = emit
        self.changed: set[Slot] = set()  # moved since the status was last shown
        self.logs_routine = True  # whether the log has the level at which starts and ends of commands are told

    def log_routine(self, wanted: bool) -> None:
        self.logs_routine = wanted

    def add(self, pool: Pool, host: HostState, timeouts: tuple[float, ...], now: float) -> None:
        """Add a slot of a type on a host; it takes the number of one that was removed, if there is any."""
        number, serial = len(self.all), 0
        if self.vacant:
            number = self.vacant.pop()
            serial = self.all[number].serial  # an answer that comes late for an older process is not ours
        slot = Slot(number, serial, pool, host, timeouts, self, now)
        self.all[number : number + 1] = [slot]
        self.changed.add(slot)  # else the one that had its number is still shown
        pool.add_slot(slot)

    def clear(self) -> None:
        """Have no slots: others are added."""
        self.all.clear()
        self.vacant.clear()

    def append(self, pool: Pool, host: HostState, timeouts: tuple[float, ...], now: float) -> None:
        """Add a slot with the next number, though others may be vacant."""
        slot = Slot(len(self.all), 0, pool, host, timeouts, self, now)
        self.all.append(slot)
        pool.add_slot(slot)

    def add_vacant(self, pool: Pool, host: HostState, timeouts: tuple[float, ...], now: float) -> None:
        """Add the number of a slot that was removed."""
        gone = Slot(len(self.all), 0, pool, host, timeouts, self, now)
        gone.remove(now)
        self.vacant.append(gone.number)
        self.all.append(gone)

    def restored(self, slot: Slot) -> None:
        """Count a restored slot in its host and its type."""
        state = slot.state
        self.changed.add(slot)
        self.deadlines.bring_forward(SLOTS, slot.deadline)
        slot.host.slot_moved(int(state > s.ST_FREE), int(state == s.ST_FREEING))
        if state != s.ST_FREE:
            slot.pool.slot_moved(slot, s.ST_FREE, state)
        if state == s.ST_READY:
            slot.pool.add_idle(slot)

    def remove(self, slot: Slot, why: str, now: float) -> None:
        """Start no process in a slot any more, and dismiss the one that it has."""
        slot.remove(now)
        self.changed.add(slot)
        slot.pool.remove_slot(slot)
        if slot.state == s.ST_FREE:
            self.vacant.append(slot.number)
        slot.dismiss(why, now)

    def show_again(self, slot: Slot) -> None:
        self.changed.add(slot)

    def take_changed(self) -> set[Slot]:
        """Return the slots that have moved since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    def moved(self, slot: Slot, old: int, new: int) -> None:
        """Count the slot in its host and its type after a move, and emit the effect or log line of the move."""
        self.changed.add(slot)
        slot.host.slot_moved((old <= s.ST_FREE) - (new <= s.ST_FREE), (new == s.ST_FREEING) - (old == s.ST_FREEING))
        if slot.is_up or new == s.ST_FREE:
            slot.host.end_probe(slot)
        slot.pool.slot_moved(slot, old, new)
        if new == s.ST_FREE and slot.is_removed:
            self.vacant.append(slot.number)
        if new == s.ST_FREEING and old != s.ST_PREP:
            self.emit(ForceKill(slot.number) if old == s.ST_FREEING else Kill(slot.number))
        is_routine = slot.pool.is_exec and slot.wanted is not s.DIE and new != s.ST_FAIL
        if not is_routine or self.logs_routine:
            why = f" reason={slot.reason!r}" if slot.wanted is s.DIE else ""
            slot.say("debug" if is_routine else "info", f"{s.STATE_NAMES[old]} -> {s.STATE_NAMES[new]}{why}")

    def overdue(self, now: float) -> list[Slot]:
        """Return the slots whose deadline has come, and search for the soonest deadline of the others."""
        due = [slot for slot in self.all if slot.deadline <= now]
        waiting = (slot.deadline for slot in self.all if slot.deadline > now)
        self.deadlines.set(SLOTS, min(waiting, default=s.NEVER))
        return due

    def resume(self, pause: float) -> None:
        """Resume after a pause, in which nothing was read from any process."""
        for slot in self.all:
            if slot.state > s.ST_FREE:
                slot.resume(pause)
        self.deadlines.set(SLOTS, min((slot.deadline for slot in self.all), default=s.NEVER))
