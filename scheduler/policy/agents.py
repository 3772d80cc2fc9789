"""The life of a slot: `fire` is the only writer of its state and of its deadline.

The tables say what may happen (model/states.py); here stands how long each state may last, what a death costs, and
what a slot leaves behind. It knows no jobs: whoever fires first settles what the slot had in hand.
"""

from typing import Final

from scheduler.model.config import AgentType, Scheduler
from scheduler.model.events import Command, ForceKill, Kill, LogMessage
from scheduler.model.states import (
    EVENT_NAMES,
    IS_IMPOSSIBLE,
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
)
from scheduler.policy.entities import HostBook, Pool, Slot
from scheduler.policy.throttle import is_too_fast, recent

LEAST_GRACE: Final = 1.0  # seconds from one SIGKILL to the next of the same process

_QUIET: Final = (False,) * ST_READY + (
    True,
    True,
    False,
)  # by state: moves among these are not displayed (F77)
_UNUSED: Final = (ST_FAIL, ST_FREE)


def patience_of(kind: AgentType, timers: Scheduler) -> tuple[float, ...]:
    """Give how long each state may last, by state; RUNNING by the heartbeat or the item's limit, whichever is less."""
    patience = [NEVER] * ST_END
    patience[ST_FAIL] = timers.respawn_interval
    patience[ST_FREEING] = timers.kill_grace
    patience[ST_PREP] = patience[ST_SPAWNED] = timers.start_limit
    patience[ST_READY] = timers.max_idle
    patience[ST_RUNNING] = min(kind.heartbeat or NEVER, kind.item_timeout or NEVER)
    return tuple(patience)


class Fleet:
    """All slots, and the soonest of their deadlines."""

    __slots__ = ("changed", "commands", "slots", "soonest", "tells_routine", "timers", "vacant")

    def __init__(self, timers: Scheduler, commands: list[Command]) -> None:
        self.slots: list[Slot] = []
        self.vacant: list[int] = []  # numbers of slots that are gone
        self.timers = timers
        self.soonest = NEVER  # a lower bound: a deadline that moved later costs one idle look
        self.commands = commands
        self.changed: set[Slot] = set()  # moved since the status was last shown
        self.tells_routine = True  # whether anybody reads that a command began and ended

    def add(self, pool: Pool, host: HostBook, patience: tuple[float, ...], now: float) -> None:
        """Give a type one more slot on a host; it takes the number of one that is gone, if there is any."""
        number = self.vacant.pop() if self.vacant else len(self.slots)
        slot = Slot(number, pool, host, patience, now)
        if number == len(self.slots):
            self.slots.append(slot)
        slot.serial = self.slots[number].serial  # an answer that comes late for an older process is not ours
        self.slots[number] = slot
        pool.slots.append(slot)
        pool.free[host.name].append(slot)

    def remove(self, slot: Slot, now: float) -> None:
        """Use a slot no more; its process, if it has one, is to be ended."""
        if slot.state == ST_FAIL:
            self.fire(slot, THAWED, now)
        slot.is_gone = True
        slot.pool.slots.remove(slot)
        if slot.state == ST_FREE:
            slot.pool.free[slot.host.name].remove(slot)
            self.vacant.append(slot.number)

    def fire(self, slot: Slot, event: int, now: float) -> bool:
        """Move a slot; False when the event changed nothing. A violation or a bug of ours ends in a kill."""
        old = slot.state
        new = SLOT_TABLE[old][event]
        if new < 0:
            return new != TO_IGNORE and self._refuse(slot, event, new, now)
        slot.state = new
        slot.since = now
        deadline = now + slot.patience[new]
        if new == ST_RUNNING and slot.clogged_until < deadline:  # it has not read yet what it was told before
            deadline = slot.clogged_until
        slot.deadline = deadline
        if deadline < self.soonest:
            self.soonest = deadline
        if not (_QUIET[old] and _QUIET[new]):
            self._moved(slot, old, new)
        return True

    def kill(self, slot: Slot, why: str, now: float, *, counts: bool = False) -> None:
        """Ask an agent to die. `counts`: the death is the agent's fault and counts against its slot."""
        if slot.state not in (ST_PREP, ST_SPAWNED, ST_READY, ST_RUNNING):
            return
        slot.doom, slot.counts = why, counts
        self.fire(slot, KILLED, now)

    def bury(self, slot: Slot, event: int, now: float) -> None:
        """The process is dead (GONE) or was never made: free the slot, or rest it when that is too often."""
        timers = self.timers
        is_failed_start = slot.counts and not slot.is_gone and not slot.is_up
        if slot.counts and not slot.is_gone:
            slot.births = [*recent(slot.births, now, timers.respawn_interval), slot.born]
        elif slot.doom is not None:
            slot.births = []
        if is_failed_start:
            self._count_failed_start(slot, now)
        self.fire(slot, event, now)
        slot.clear()
        if is_failed_start and slot.pool.failed_starts[slot.host.name] > timers.respawn_count:
            self._rest(list(slot.pool.free[slot.host.name]), now)
        elif is_too_fast(slot.births, now, timers.respawn_interval, timers.respawn_count):
            self._rest([slot], now)

    def _count_failed_start(self, slot: Slot, now: float) -> None:
        """Note a process that ended before its first OK; its place is left to others for as long as it held it."""
        counts, host = slot.pool.failed_starts, slot.host
        counts[host.name] = counts.get(host.name, 0) + 1
        host.probe_at = max(host.probe_at, now + (now - slot.born))
        host.revoke_promises()

    def _rest(self, slots: list[Slot], now: float) -> None:
        """Start nothing in these slots for a while."""
        for slot in slots:
            slot.births = []
            self.fire(slot, THROTTLED, now)

    def late(self, now: float) -> list[Slot]:
        """Give the slots whose deadline has come, and look anew for the soonest."""
        if now < self.soonest:
            return []
        due = [slot for slot in self.slots if slot.deadline <= now]
        waiting = (slot.deadline for slot in self.slots if slot.deadline > now)
        self.soonest = min(waiting, default=NEVER)
        return due

    def extend(self, seconds: float) -> None:
        """Move what is measured of all processes by a pause: the time in which nobody listened to them."""
        for slot in self.slots:
            if slot.state > ST_FREE:
                slot.since += seconds
                slot.heard += seconds
                slot.fed_at += seconds
                slot.clogged_until += seconds
                slot.deadline += seconds
        self.soonest = min((slot.deadline for slot in self.slots), default=NEVER)

    def put_off(self, slot: Slot, deadline: float) -> None:
        """Set the deadline of the state a slot is in: the one exception to `fire`, for what the state waits on."""
        slot.deadline = deadline
        self.soonest = min(self.soonest, deadline)

    def rearm(self, slot: Slot, patience: tuple[float, ...]) -> None:
        """Measure the states of a slot by other limits, the one that it is in too."""
        if patience == slot.patience:
            return
        slot.patience = patience
        deadline = slot.since + patience[slot.state]
        if slot.state in (ST_PREP, ST_SPAWNED):
            deadline = min(deadline, slot.deadline)  # which may be of the hint, before the limit
        elif slot.state == ST_RUNNING:
            deadline = min(deadline, slot.clogged_until)
        self.put_off(slot, deadline)

    def _moved(self, slot: Slot, old: int, new: int) -> None:
        self.changed.add(slot)
        host, pool = slot.host, slot.pool
        if old == ST_SPAWNED and new in (ST_READY, ST_RUNNING):
            slot.is_up = True
            pool.failed_starts.pop(host.name, None)
        if host.probe is slot and (slot.is_up or new == ST_FREE):
            host.probe = None
        host.used += (old in _UNUSED) - (new in _UNUSED)
        host.leaving += (new == ST_FREEING) - (old == ST_FREEING)
        host.note()
        if old == ST_FREE:
            pool.free[host.name].remove(slot)
        elif new == ST_FREE and slot.is_gone:
            self.vacant.append(slot.number)
        elif new == ST_FREE:
            pool.free[host.name].append(slot)
        if old == ST_READY:
            pool.idle[host.name].remove(slot)
            del host.idle[slot]
        if new == ST_FREEING and old != ST_PREP:
            self.commands.append(ForceKill(slot.number) if old == ST_FREEING else Kill(slot.number))
        if old == new == ST_FREEING:
            slot.deadline = max(slot.deadline, slot.since + LEAST_GRACE)
        is_routine = pool.is_exec and not slot.doom and new != ST_FAIL
        if not is_routine or self.tells_routine:
            why = f" reason={slot.doom!r}" if slot.doom else ""
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

    def say(self, level: str, slot: Slot, text: str) -> None:
        """Log one line about a slot."""
        pid = f" pid={slot.pid}" if slot.pid is not None else ""
        job = f" job={slot.job.pk}" if slot.job is not None else ""
        where = f"slot={slot.number} agent={slot.pool.name} host={slot.host.name}{pid}{job}"
        self.commands.append(LogMessage(level, f"{text} {where}"))
