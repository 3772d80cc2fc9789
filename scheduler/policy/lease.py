"""Whether this daemon owns its group: when to register, stand by, take over, renew and step down.

One row decides, by the clock of the database. The lease is taken when the group has no owner, when the owner is known
to be dead (same machine, its process is gone), or when the lease has run out and our own connection has lasted one
whole lease, so that a database that was away does not make every daemon look dead. A daemon that has stepped down
leaves the group to others until one of them has had it, or for one lease: if it has no owner then, no other wants it.

`step` returns the statement to run next on the watch connection; the answer is reported by `registered`, `looked`,
`taken`, `rescued`, `renewed` or `refused`. The states are a table, LEASE in model/states.py; `_fire` moves them.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from scheduler.model.config import Scheduler
from scheduler.model.states import LEASE, NEVER, LeaseEvent, LeaseState

REFUSED_MOST_S: Final = 30.0  # between two tries to register
YIELD_LOOK_S: Final = 1.0  # between two looks whether another daemon has taken what we gave up


class LeaseStatement(Enum):
    """A statement of schema/queries.sql to run."""

    REGISTER = "register"
    LOOK = "read_owner"
    TAKE = "take_lease"
    RESCUE = "rescue"
    RENEW = "renew_lease"
    LEAVE = "unregister"


_STATES: Final = {  # words for people, and the statement that is run in a state
    LeaseState.UNREGISTERED: ("unregistered", LeaseStatement.REGISTER),
    LeaseState.STANDBY: ("standing by", LeaseStatement.LOOK),
    LeaseState.TAKING: ("standing by", LeaseStatement.TAKE),
    LeaseState.RESCUING: ("taking over", LeaseStatement.RESCUE),
    LeaseState.SERVING: ("serving", LeaseStatement.RENEW),
    LeaseState.STEPPING_DOWN: ("stepping down", LeaseStatement.LEAVE),
    LeaseState.LEAVING: ("leaving", None),
}


@dataclass(slots=True)
class Owner:
    """What is known of the owner of the group."""

    uuid: str | None
    is_lapsed: bool
    is_dead: bool  # its process is known to be gone
    taken: str = ""  # when it, or the last owner, took the group


class Lease:
    """The lease of the group, as one daemon sees it."""

    def __init__(self, timers: Scheduler) -> None:
        self._timers = timers
        self.state = LeaseState.UNREGISTERED
        self.owner = Owner(None, False, False)
        self.until = -NEVER  # our lease, by our clock, counted from before we asked
        self._connected_at = NEVER
        self._due = NEVER  # when the statement of the state is to be run
        self._asked_at = 0.0
        self._yields_until = -NEVER  # we gave the group up: others may take it first
        self._taken: str | None = None  # when we took it last
        self._running: LeaseStatement | None = None
        self._refusals = 0  # of our registration, since it was accepted or we connected

    def _fire(self, event: LeaseEvent, due: float) -> bool:
        """Move the lease and set when its next statement is due; False when the event is ignored."""
        state = LEASE.after(self.state, event)
        if state is None:
            return False
        self.state, self._due = state, due
        return True

    # ---- the connection, and what others want

    def connected(self, now: float) -> None:
        """The watch connection is up: what was being asked must be asked again."""
        self._connected_at, self._running, self._refusals = now, None, 0
        self._fire(LeaseEvent.CONNECTED, now)

    def disconnected(self) -> None:
        """The watch connection is down: nothing can be asked."""
        self._connected_at, self._running = NEVER, None
        self._fire(LeaseEvent.DISCONNECTED, NEVER)

    def leave(self) -> None:
        """Take or renew no lease any more: the daemon ends."""
        self._fire(LeaseEvent.LEAVE, NEVER)

    def step_down(self, now: float) -> None:
        """Let another daemon have the group, if it is ours."""
        self._fire(LeaseEvent.STEP_DOWN, now)

    def owner_changed(self, now: float) -> None:
        """The group may have lost its owner: look at it now, if we stand by."""
        self._fire(LeaseEvent.OWNER_CHANGED, now)

    def renew(self, now: float) -> None:
        """Renew the lease now, if the group is ours."""
        self._fire(LeaseEvent.RENEWAL_WANTED, min(self._due, now))

    # ---- the next statement

    def next_deadline(self) -> float:
        """Return the instant of the next step."""
        return self._due if self._running is None else NEVER

    def step(self, now: float) -> LeaseStatement | None:
        """Return the statement to run now, if any; the next step waits for its answer."""
        if self._running is not None or now < self._due:
            return None
        self._running = _STATES[self.state][1]
        self._asked_at = now
        return self._running

    def _may_take(self) -> bool:
        owner = self.owner
        if owner.uuid is None:
            return owner.is_lapsed and self._asked_at >= self._yields_until  # else it was not looked at yet
        return owner.is_dead or (owner.is_lapsed and self.has_waited_a_lease)

    @property
    def is_settled(self) -> bool:
        """Say whether we serve, or stand by for an owner that may still need to be replaced one day."""
        is_behind = self.state is LeaseState.STANDBY and self.owner.uuid is not None and not self._may_take()
        return is_behind or self.state is LeaseState.SERVING

    @property
    def shown(self) -> str:
        """Return the state in words for people."""
        return _STATES[self.state][0]

    @property
    def has_waited_a_lease(self) -> bool:
        """Say whether our own connection has lasted one whole lease."""
        return self._asked_at - self._connected_at >= self._timers.lease

    # ---- answers

    def registered(self, now: float) -> None:
        """The group knows us."""
        self._running = None
        self._refusals = 0
        self.owner = Owner(None, False, False)
        self._fire(LeaseEvent.REGISTERED, now)

    def looked(self, owner: Owner, now: float) -> None:
        """The row of the group was read: it has this owner, or none."""
        self._running = None
        self.owner = owner
        if owner.uuid is not None or owner.taken != self._taken:
            self._yields_until = -NEVER
        wait = NEVER
        if now < self._yields_until:
            wait = YIELD_LOOK_S
        elif owner.is_lapsed:  # a take-over waits until the connection has lasted one lease
            wait = max(self._connected_at + self._timers.lease - now, 0.1)
        self._fire(LeaseEvent.OWNER_SEEN, now + min(self._timers.lease_renewal, wait))
        if self._may_take():
            self._fire(LeaseEvent.MAY_TAKE, now)

    def taken(self, at: str | None, now: float) -> None:
        """We asked for the lease and got it, at this instant of the database's clock; None: another was faster."""
        self._running = None
        self.owner = Owner(None, False, False)
        if at is None:
            self._fire(LeaseEvent.NOT_TAKEN, now)
        elif self._fire(LeaseEvent.TAKEN, now):
            self._taken = at
            self.until = self._asked_at + self._timers.lease

    def rescued(self, now: float) -> None:
        """The rows of former owners are given back: serve."""
        self._running = None
        self._fire(LeaseEvent.RESCUED, self.until - self._timers.lease + self._timers.lease_renewal)

    def renewed(self, is_ours: bool, now: float) -> None:
        """The lease is renewed, or the group is not ours any more."""
        self._running = None
        is_stepping_down = self.state is LeaseState.STEPPING_DOWN
        if not is_ours:
            self._yields_until = now + self._timers.lease if is_stepping_down else -NEVER
            self.until = -NEVER
            self._fire(LeaseEvent.LOST, now)
        elif self._fire(LeaseEvent.RENEWED, now if is_stepping_down else self._asked_at + self._timers.lease_renewal):
            self.until = self._asked_at + self._timers.lease

    def refused(self, now: float) -> None:
        """The database refused a statement: run it again after a while, a registration after ever longer ones."""
        self._running = None
        wait = min(self._timers.lease_renewal, 1.0)
        if self.state is LeaseState.UNREGISTERED:
            wait = min(2.0**self._refusals, REFUSED_MOST_S)
            self._refusals = min(self._refusals + 1, 10)
        self._fire(LeaseEvent.REFUSED, now + wait)
        if self.state is LeaseState.STANDBY and self._may_take():
            self._fire(LeaseEvent.MAY_TAKE, now + wait)
