"""Hosts and queues: what each has, and how much of it is in use. State, no decisions."""

from typing import Any, Final, Protocol

from scheduler.model.config import Host
from scheduler.model.states import NEVER, NO_LIMIT
from scheduler.policy.handover_values import Snapshot, fields_of, set_fields
from scheduler.policy.rates import Rates

UNLIMITED: Final = -1
SHORTEST_PAUSE: Final = 1.0  # seconds in which no more agents are tried on a machine that could not start one
LONGEST_PAUSE: Final = 30.0
_PLAIN_FIELDS: Final = (  # of a snapshot, as they are
    "is_up", "reason", "down_until", "yielded_at", "probe_at", "shortage", "most", "pause", "tried_again_at",
)  # fmt: skip


def next_pause(pause: float) -> float:
    """Return the seconds to the next try after one that came so long after the one before; 0: it was the first."""
    return min(max(2 * pause, SHORTEST_PAUSE), LONGEST_PAUSE)


class StartingType(Protocol):
    """An agent type, as far as a host knows it to which it wants to come."""

    failed_starts: dict[str, int]

    def waits_until(self, host: str) -> float:
        """Return until when its program is not tried again on a host, on which it was being written."""
        ...

    def has_free(self, host: str) -> bool:
        """Return whether a slot on a host is free."""


class HostState:
    """A host and how much of it is in use."""

    def __init__(self, name: str, host: Host) -> None:
        self.name = name
        self.max = host.max
        self.urgent = host.urgent
        self.enabled = host.enabled
        self.is_up = not host.is_remote  # else we are told when it can be reached
        self.reason: str | None = None  # why it cannot be reached
        self.down_until = 0.0  # the next attempt to reach it
        self.used = 0  # slots that are neither FREE nor FAIL
        self.leaving = 0  # of these, slots that are FREEING
        self.idle: dict[Any, None] = {}  # slots that are READY, of all types; the one idle longest first
        self.yields_to: StartingType | None = None  # a starving type that gets the next agent's place
        self.yielded_at = -NEVER  # when that happened last
        self.kept_for: StartingType | None = None  # the starving type for which room was made
        self.probe: object | None = None  # the agent that starts here of a type whose last start failed
        self.probe_at = -NEVER  # from when the next such agent may be started
        self.shortage: str | None = None  # why the machine could start no more agents, until it could again
        self.most = NO_LIMIT  # agents at once, while nothing else is tried
        self.pause = 0.0  # seconds from one try to the next
        self.tried_again_at = NEVER
        self.refresh()

    @property
    def is_open(self) -> bool:
        """Return whether agents may be started here at all."""
        return self.enabled and self.is_up

    def has_room(self, urgent: bool) -> bool:
        """Return whether one more agent may be started here."""
        return self.is_open and self.spare(urgent) > 0

    def spare(self, urgent: bool) -> float:
        """Return how many more agents this host takes; inf if nothing limits it."""
        limit = NO_LIMIT if self.max == UNLIMITED else self.max + (self.urgent if urgent else 0)
        return min(limit, self.most) - self.used

    @property
    def is_over(self) -> bool:
        """Return whether an urgent slot is in use that is not being given up already."""
        return self.max != UNLIMITED and self.used - self.leaving > self.max

    def refresh(self) -> None:
        """Note whether an agent that has finished may have to be ended; it is kept, because every OK asks."""
        self.is_tight = self.yields_to is not None or self.is_over or not self.is_open

    def configure(self, **settings: Any) -> None:
        """Set max, urgent and enabled, or some of them."""
        for name, value in settings.items():
            setattr(self, name, value)
        self.refresh()

    def snapshot(self) -> dict[str, Any]:
        """Return what another program needs to go on with it, but for its slots."""
        return fields_of(self, _PLAIN_FIELDS)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue as the host of a snapshot."""
        set_fields(self, _PLAIN_FIELDS, snapshot)
        self.refresh()

    # ---- its slots

    def slot_moved(self, used: int, leaving: int) -> None:
        """Count a slot that came into use or fell out of it, and one that is told to end."""
        self.used += used
        self.leaving += leaving
        self.refresh()

    def add_idle(self, slot: object) -> None:
        self.idle[slot] = None

    def remove_idle(self, slot: object) -> None:
        del self.idle[slot]

    # ---- whether it is reached, and can start agents

    def set_up(self, is_up: bool) -> None:
        """Note that agents may be started here, or that it is being reached."""
        self.is_up, self.reason = is_up, None
        self.refresh()

    def went_down(self, reason: str, until: float) -> None:
        """Note that it cannot be reached, and when that is tried again."""
        self.is_up, self.reason, self.down_until = False, reason, until
        self.refresh()

    @property
    def why_down(self) -> str:
        """Return a sentence on why it cannot be reached."""
        return f"host {self.name} cannot be reached: {self.reason or '?'}"

    def run_short(self, reason: str, now: float) -> bool:
        """Let it have no more agents than it has, for a while; return whether a new pause has begun."""
        self.most, self.shortage = float(self.used), reason
        if now < self.tried_again_at != NEVER:
            return False
        self.pause = next_pause(self.pause)
        self.tried_again_at = now + self.pause
        return True

    def try_more(self, now: float) -> None:
        """Let it have more agents again if its pause is over."""
        if self.tried_again_at <= now:
            self.most = NO_LIMIT

    def recover(self) -> None:
        """Note that one more agent could be started than before."""
        self.shortage, self.pause, self.tried_again_at = None, 0.0, NEVER

    # ---- starving types, and types whose starts fail

    def keep_for(self, pool: StartingType | None, now: float) -> None:
        """Keep the place that is about to become free for a starving type."""
        self.kept_for, self.yielded_at = pool, now

    def keep_for_none(self) -> None:
        self.kept_for = None

    def is_kept_from(self, pool: StartingType) -> bool:
        """Return whether the room here was made for another type, which can use it."""
        other = self.kept_for
        return other is not None and other is not pool and other.has_free(self.name)

    def yield_to(self, pool: StartingType | None) -> None:
        """Promise the next agent's place to a starving type, or take the promise back."""
        self.yields_to = pool
        self.refresh()

    def begin_probe(self, slot: object) -> None:
        """Note the agent that starts here of a type whose last start failed; no other such one starts meanwhile."""
        self.probe = slot
        self._revoke_promises()

    def end_probe(self, slot: object) -> None:
        """Note that this agent, if it is the one, has come up or ended."""
        if self.probe is slot:
            self.probe = None

    def start_from(self, pool: StartingType) -> float:
        """Return the instant from which an agent of a type may be started here; NEVER if another is to end first."""
        waits_until = pool.waits_until(self.name)
        if self.name not in pool.failed_starts:
            return waits_until
        return max(self.probe_at, waits_until) if self.probe is None else NEVER

    def start_failed(self, until: float) -> None:
        """Start no agent whose type failed to start here before this instant, and promise it no place."""
        self.probe_at = max(self.probe_at, until)
        self._revoke_promises()

    def _revoke_promises(self) -> None:
        if self.yields_to is not None and self.name in self.yields_to.failed_starts:
            self.yield_to(None)
        if self.kept_for is not None and self.name in self.kept_for.failed_starts:
            self.kept_for = None


class QueueState:
    """A queue of the group and how many of its jobs are in hand."""

    __slots__ = ("concurrency", "in_hand", "name", "paused", "rates", "reserved")

    def __init__(
        self, name: str, concurrency: int | None, paused: bool, in_hand: int = 0, reserved: int = 0,
        rates: Rates | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.concurrency = concurrency
        self.paused = paused
        self.in_hand = in_hand
        self.reserved = reserved  # agents, of each type and in all, that others leave to it
        self.rates = rates  # None: as many starts as there is room for

    def claimed(self, count: int) -> None:
        """Count jobs that come in hand."""
        self.in_hand += count

    def ended(self, pk: int) -> None:
        """Count a job that is in hand no more."""
        self.in_hand -= 1
        if self.rates is not None:
            self.rates.ended(pk)

    def room(self, now: float) -> int | None:
        """Return the number of jobs that may come in hand; None for no limit."""
        if self.paused:
            return 0
        room = None if self.concurrency is None else max(0, self.concurrency - self.in_hand)
        rate = None if self.rates is None else self.rates.room(self.in_hand, now)
        return rate if room is None else room if rate is None else min(room, rate)

    @property
    def is_over(self) -> bool:
        """Return whether it has more in hand than it may have: what has not begun then goes back."""
        return self.in_hand > 0 and (self.paused or self.in_hand > (self.concurrency or self.in_hand))
