"""The agent slots: their states and deadlines, what is wanted of their processes, and when none may be started.

`fire` is the only writer of the state of a slot and of its deadline, `_want` of what is wanted of its process; what may
happen stands in the tables SLOT_TABLE and WANTED of model/states.py. This module knows no jobs: the caller settles what
the slot had in hand before it fires.

Throttle: deaths of agents that had said OK count per slot, those of the last respawn_interval. A start that ended
before the first OK tells something of the program and not of the slot: those count for all slots of a type on a host,
in a row, however far apart they are, since an agent that never says OK is killed by start_limit only, and one of these
after the other fills no interval. One first OK forgets them. After the last that is allowed all slots of the type on
the host rest; then one start after each rest is allowed, until one says OK.

A type whose last start on a host failed so is on probation there: of all such types one agent at a time is started on
a host, and after one that failed none for as long as it held its place. So agents that do not come up hold one place
of a host, half of the time, once their first starts are over.
"""

from collections.abc import Sequence
from typing import Final

from scheduler.model.config import AgentType, Scheduler
from scheduler.model.events import Command, ForceKill, Kill, LogMessage
from scheduler.model.states import (
    DIE,
    EVENT_NAMES,
    IS_IMPOSSIBLE,
    KEEP,
    KILLED,
    NEVER,
    SLOT_TABLE,
    ST_END,
    ST_FAIL,
    ST_FREE,
    ST_FREEING,
    ST_PREP,
    ST_READY,
    ST_RUNNING,
    ST_SPAWNED,
    STATE_NAMES,
    THAWED,
    THROTTLED,
    TO_IGNORE,
    WANTED,
    Wish,
)
from scheduler.policy.deadlines import SLOTS, Deadlines
from scheduler.policy.entities import Pool, Slot
from scheduler.policy.hosts import HostState

LEAST_GRACE: Final = 1.0  # seconds from one SIGKILL to the next of the same process

_UNUSED: Final = (ST_FAIL, ST_FREE)


def timeouts_of(kind: AgentType, timers: Scheduler) -> tuple[float, ...]:
    """Return the seconds that each state may last, by state; of ST_RUNNING the lesser of heartbeat and item_timeout."""
    timeouts = [NEVER] * ST_END
    timeouts[ST_FAIL] = timers.respawn_interval
    timeouts[ST_FREEING] = timers.kill_grace
    timeouts[ST_PREP] = timeouts[ST_SPAWNED] = timers.start_limit
    timeouts[ST_READY] = timers.max_idle
    timeouts[ST_RUNNING] = min(kind.heartbeat or NEVER, kind.item_timeout or NEVER)
    return tuple(timeouts)


class Slots:
    """All slots, and the soonest of their deadlines."""

    __slots__ = ("all", "changed", "commands", "deadlines", "logs_routine", "timers", "vacant")

    def __init__(self, timers: Scheduler, commands: list[Command], deadlines: Deadlines) -> None:
        self.all: list[Slot] = []
        self.vacant: list[int] = []  # numbers of slots that were removed
        self.timers = timers
        self.deadlines = deadlines
        self.commands = commands
        self.changed: set[Slot] = set()  # moved since the status was last shown
        self.logs_routine = True  # whether the log has the level at which starts and ends of commands are told

    # ---- slots of a type

    def add(self, pool: Pool, host: HostState, timeouts: tuple[float, ...], now: float) -> None:
        """Add a slot of a type on a host; it takes the number of one that was removed, if there is any."""
        number = self.vacant.pop() if self.vacant else len(self.all)
        slot = Slot(number, pool, host, timeouts, now)
        if number == len(self.all):
            self.all.append(slot)
        slot.serial = self.all[number].serial  # an answer that comes late for an older process is not ours
        self.all[number] = slot
        pool.slots.append(slot)
        pool.free[host.name].append(slot)

    def remove(self, slot: Slot, now: float) -> None:
        """Start no process in a slot any more; one that it has is dismissed by the caller."""
        if slot.state == ST_FAIL:
            self.fire(slot, THAWED, now)
        slot.is_removed = True
        slot.pool.slots.remove(slot)
        if slot.state == ST_FREE:
            slot.pool.free[slot.host.name].remove(slot)
            self.vacant.append(slot.number)

    def take_changed(self) -> set[Slot]:
        """Return the slots that have moved since the last call."""
        changed, self.changed = self.changed, set()
        return changed

    # ---- states

    def fire(self, slot: Slot, event: int, now: float) -> bool:
        """Move a slot; False when the event changed nothing. A violation or a bug of ours ends in a kill."""
        old = slot.state
        new = SLOT_TABLE[old][event]
        if new < 0:
            return new != TO_IGNORE and self._refuse(slot, event, new, now)
        slot.state = new
        slot.since = now
        deadline = now + slot.timeouts[new]
        if new == ST_RUNNING and slot.clogged_until < deadline:  # it has not read yet what it was sent before
            deadline = slot.clogged_until
        slot.deadline = deadline
        if deadline < self.deadlines.at[SLOTS]:
            self.deadlines.set(SLOTS, deadline)
        if old < ST_READY or new < ST_READY:  # moves between READY and RUNNING, the last two, are not displayed (F77)
            self._moved(slot, old, new)
        return True

    def _moved(self, slot: Slot, old: int, new: int) -> None:
        """Keep the books of host and type, and carry out what the move means."""
        self.changed.add(slot)
        host, pool = slot.host, slot.pool
        if old == ST_SPAWNED and new in (ST_READY, ST_RUNNING):
            slot.is_up = True
            pool.failed_starts.pop(host.name, None)
        if host.probe is slot and (slot.is_up or new == ST_FREE):
            host.probe = None
        host.slot_moved((old in _UNUSED) - (new in _UNUSED), (new == ST_FREEING) - (old == ST_FREEING))
        if old == ST_FREE:
            pool.free[host.name].remove(slot)
        elif new == ST_FREE and slot.is_removed:
            self.vacant.append(slot.number)
        elif new == ST_FREE:
            pool.free[host.name].append(slot)
        if old == ST_READY:
            pool.remove_idle(slot)
        if new == ST_FREEING and old != ST_PREP:
            self.commands.append(ForceKill(slot.number) if old == ST_FREEING else Kill(slot.number))
        if old == new == ST_FREEING:
            slot.deadline = max(slot.deadline, slot.since + LEAST_GRACE)
        is_routine = pool.is_exec and slot.wanted is not DIE and new != ST_FAIL
        if not is_routine or self.logs_routine:
            why = f" reason={slot.reason!r}" if slot.wanted is DIE else ""
            self.say("debug" if is_routine else "info", slot, f"{STATE_NAMES[old]} -> {STATE_NAMES[new]}{why}")

    def _refuse(self, slot: Slot, event: int, verdict: int, now: float) -> bool:
        what = f"{EVENT_NAMES[event]} in {STATE_NAMES[slot.state]}"
        if verdict == IS_IMPOSSIBLE:
            self.say("error", slot, f"impossible: {what}; the slot is quarantined, please report this")
            self.kill(slot, f"impossible: {what}", now)
        else:
            self.say("warning", slot, f"protocol violation: {what}; killed")
            self.kill(slot, f"protocol violation: {what}", now, counts=True)
        return False

    # ---- what is wanted of a process

    def _want(self, slot: Slot, wish: Wish, reason: str) -> None:
        wanted = WANTED.after(slot.wanted, wish)
        if wanted is not None:
            slot.wanted, slot.reason = wanted, reason

    def dismiss(self, slot: Slot, why: str) -> None:
        """Give a process nothing more, and end it when it has finished what it has in hand."""
        self._want(slot, Wish.DISMISS, why)
        slot.starve()

    def kill(self, slot: Slot, why: str, now: float, *, counts: bool = False) -> None:
        """Ask a process to die, unless it was. `counts`: the death is its own fault, and counts against its slot."""
        if SLOT_TABLE[slot.state][KILLED] == TO_IGNORE:
            return
        self._want(slot, Wish.KILL, why)
        slot.blame(counts)
        self.fire(slot, KILLED, now)

    def process_ended(self, slot: Slot, event: int, now: float) -> None:
        """Free the slot of a process that is dead (GONE) or was never made, or let it rest when that is too often."""
        timers = self.timers
        is_charged = slot.death_counts and not slot.is_removed
        is_failed_start = is_charged and not slot.is_up
        if is_charged:
            slot.starts = [*recent(slot.starts, now, timers.respawn_interval), slot.born]
        elif slot.wanted is DIE:
            slot.starts = []
        if is_failed_start:
            self._count_failed_start(slot, now)
        self.fire(slot, event, now)
        if slot.wanted is not KEEP:
            self._want(slot, Wish.ENDED, "")
        slot.clear()
        if is_failed_start and slot.pool.failed_starts[slot.host.name] > timers.respawn_count:
            self._rest(list(slot.pool.free[slot.host.name]), now)
        elif is_too_fast(slot.starts, now, timers.respawn_interval, timers.respawn_count):
            self._rest([slot], now)

    def _count_failed_start(self, slot: Slot, now: float) -> None:
        """Count a process that ended before its first OK; its place is left to others for as long as it held it."""
        failed, host = slot.pool.failed_starts, slot.host
        failed[host.name] = failed.get(host.name, 0) + 1
        host.probe_at = max(host.probe_at, now + (now - slot.born))
        host.revoke_promises()

    def _rest(self, slots: list[Slot], now: float) -> None:
        """Start nothing in these slots for a while."""
        for slot in slots:
            slot.starts = []
            self.fire(slot, THROTTLED, now)

    # ---- deadlines

    def overdue(self, now: float) -> list[Slot]:
        """Return the slots whose deadline has come, and search for the soonest deadline of the others."""
        if now < self.deadlines.at[SLOTS]:
            return []
        due = [slot for slot in self.all if slot.deadline <= now]
        waiting = (slot.deadline for slot in self.all if slot.deadline > now)
        self.deadlines.set(SLOTS, min(waiting, default=NEVER))
        return due

    def extend_deadlines(self, seconds: float) -> None:
        """Move what is measured of all processes by a pause: the time in which nothing was read from them."""
        for slot in self.all:
            if slot.state > ST_FREE:
                slot.since += seconds
                slot.output.heartbeat(slot.output.at + seconds)
                slot.assigned_at += seconds
                slot.clog(slot.clogged_until + seconds)
                slot.deadline += seconds
        self.deadlines.set(SLOTS, min((slot.deadline for slot in self.all), default=NEVER))

    def set_deadline(self, slot: Slot, deadline: float) -> None:
        """Set the deadline of the state that a slot is in: the one exception to `fire`, for what the state waits on."""
        slot.deadline = deadline
        self.deadlines.bring_forward(SLOTS, deadline)

    def set_timeouts(self, slot: Slot, timeouts: tuple[float, ...]) -> None:
        """Measure the states of a slot by other limits, the one that it is in too."""
        if timeouts == slot.timeouts:
            return
        slot.timeouts = timeouts
        deadline = slot.since + timeouts[slot.state]
        if slot.state in (ST_PREP, ST_SPAWNED):
            deadline = min(deadline, slot.deadline)  # which may be of the hint, before the limit
        elif slot.state == ST_RUNNING:
            deadline = min(deadline, slot.clogged_until)
        self.set_deadline(slot, deadline)

    # ---- the log

    def say(self, level: str, slot: Slot, text: str) -> None:
        """Log one line about a slot."""
        pid = f" pid={slot.pid}" if slot.pid is not None else ""
        job = f" job={slot.job.pk}" if slot.job is not None else ""
        where = f"slot={slot.number} agent={slot.pool.name} host={slot.host.name}{pid}{job}"
        self.commands.append(LogMessage(level, f"{text} {where}"))


# ---- the throttle


def recent(starts: Sequence[float], now: float, interval: float) -> list[float]:
    """Return the starts that still count: those of the last `interval` seconds."""
    return [start for start in starts if now - start < interval]


def is_too_fast(starts: Sequence[float], now: float, interval: float, count: int) -> bool:
    """Say whether one more start would be the respawn too many: the first start and `count` respawns are allowed.

    **source**: F71, F72 (six starts in five minutes, then no more).
    """
    return len(recent(starts, now, interval)) > count


def start_from(pool: Pool, host: HostState) -> float:
    """Return the instant from which an agent of a type may be started on a host; NEVER if another is to end first."""
    if host.name not in pool.failed_starts:
        return -NEVER
    return host.probe_at if host.probe is None else NEVER
