"""Whether this daemon owns its group: register, stand by, take over, renew, be disowned.

One row decides, by the database's clock. The lease is taken when the group has no owner, when the owner is known to be
dead (same machine, its process is gone), or when the lease has run out and we have held our own connection for one
whole lease, so that a database that was away does not make every daemon look dead. After taking it the rows of whoever
had them are given back, and only then is work given out. Who has given the group up leaves it to the others until one
of them has had it, or for one lease: if it has no owner then, there is nobody to take it. `step` says which statement
to run next on the watch connection; `answered` takes what it gave. Past its own lease by its own clock a daemon gives
out nothing.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from scheduler.model.config import Scheduler

NEVER: Final = float("inf")
REFUSED_MOST_S: Final = 30.0  # between two tries to register
YIELD_LOOK_S: Final = 1.0  # between two looks whether another has taken what we gave up


class Standing(Enum):
    """What a daemon is to its group."""

    UNREGISTERED = "unregistered"
    STANDBY = "standing by"
    RESCUING = "taking over"
    SERVING = "serving"
    YIELDING = "stepping down"
    LEAVING = "leaving"


class Act(Enum):
    """A statement of schema/queries.sql to run."""

    REGISTER = "register"
    LOOK = "look_at_owner"
    TAKE = "take_lease"
    RESCUE = "rescue"
    RENEW = "renew_lease"
    LEAVE = "leave"


@dataclass(slots=True)
class Owner:
    """What is known of the group's owner."""

    uuid: str | None
    is_lapsed: bool
    is_dead: bool  # its process is known to be gone
    taken: str = ""  # when it, or the last one, took the group


class Lease:
    """The lease of the group, as one daemon sees it."""

    __slots__ = (
        "_asked_at", "_connected_at", "_due", "_refusals", "_running", "_taken", "_timers", "_yields_until",
        "owner", "standing", "until",
    )  # fmt: skip

    def __init__(self, timers: Scheduler) -> None:
        self._timers = timers
        self.standing = Standing.UNREGISTERED
        self.owner = Owner(None, False, False)
        self.until = -NEVER  # our lease, by our clock, counted from before we asked
        self._connected_at = NEVER
        self._due = NEVER
        self._asked_at = 0.0
        self._yields_until = -NEVER  # we gave the group up: others may take it first
        self._taken: str | None = None  # when we took it last
        self._running: Act | None = None
        self._refusals = 0  # of our registration, since it was accepted or we connected

    def connected(self, now: float) -> None:
        """The watch connection is up: whatever we were asking must be asked again."""
        self._connected_at = self._due = now
        self._running = None
        self._refusals = 0
        if self.standing not in (Standing.SERVING, Standing.YIELDING):
            self.standing = Standing.UNREGISTERED

    def disconnected(self) -> None:
        """The watch connection is down: nothing can be asked."""
        self._connected_at = self._due = NEVER
        self._running = None

    def leave(self) -> None:
        """Take or renew no lease any more."""
        self.standing = Standing.LEAVING
        self._due = NEVER

    def give_up(self, now: float) -> None:
        """Let another daemon have the group, if it is ours."""
        if self.standing is Standing.SERVING:
            self.standing, self._due = Standing.YIELDING, now

    def ring(self, now: float) -> None:
        """The group may have lost its owner: look soon, if we stand by."""
        if self.standing is Standing.STANDBY:
            self._due = now

    def renew(self, now: float) -> None:
        """Renew the lease now, if the group is ours."""
        if self.standing is Standing.SERVING:
            self._due = min(self._due, now)

    def next_deadline(self) -> float:
        """Give the instant of the next step."""
        return self._due if self._running is None else NEVER

    def step(self, now: float) -> Act | None:
        """Give the statement to run now, if any; the next step waits for its answer."""
        if self._running is not None or now < self._due:
            return None
        self._running = self._next_act()
        self._asked_at = now
        return self._running

    def _next_act(self) -> Act:
        if self.standing is Standing.UNREGISTERED:
            return Act.REGISTER
        if self.standing is Standing.RESCUING:
            return Act.RESCUE
        if self.standing is Standing.SERVING:
            return Act.RENEW
        if self.standing is Standing.YIELDING:
            return Act.LEAVE
        return Act.TAKE if self._may_take() else Act.LOOK

    def _may_take(self) -> bool:
        owner = self.owner
        if owner.uuid is None:
            return self.owner_is_known and self._asked_at >= self._yields_until
        return owner.is_dead or (owner.is_lapsed and self.is_patient)

    @property
    def is_settled(self) -> bool:
        """Say whether we serve, or stand by for an owner who may yet come to need us."""
        is_behind = self.standing is Standing.STANDBY and self.owner.uuid is not None and not self._may_take()
        return is_behind or self.standing is Standing.SERVING

    @property
    def owner_is_known(self) -> bool:
        """Say whether the owner was looked at since the last take-over was tried."""
        return self.owner.uuid is not None or self.owner.is_lapsed

    @property
    def is_patient(self) -> bool:
        """Say whether our own connection has lasted one whole lease."""
        return self._asked_at - self._connected_at >= self._timers.lease

    def registered(self, now: float) -> None:
        """The group knows us."""
        self._running = None
        self._refusals = 0
        self.standing = Standing.STANDBY
        self.owner = Owner(None, False, False)
        self._due = now

    def looked(self, owner: Owner, now: float) -> None:
        """Somebody owns the group, or nobody does."""
        self._running = None
        self.owner = owner
        if owner.uuid is not None or owner.taken != self._taken:
            self._yields_until = -NEVER
        wait = YIELD_LOOK_S if now < self._yields_until else self._patience_left(now)
        self._due = now if self._may_take() else now + min(self._timers.lease_renewal, wait)

    def _patience_left(self, now: float) -> float:
        left = self._connected_at + self._timers.lease - now
        return max(left, 0.1) if self.owner.is_lapsed else NEVER

    def taken(self, at: str | None, now: float) -> None:
        """We asked for the lease and got it, by the database's clock at this instant, or somebody was faster: None."""
        self._running = None
        self.owner = Owner(None, False, False)
        self._due = now
        if at is not None:
            self._taken = at
            self.until = self._asked_at + self._timers.lease
            self.standing = Standing.RESCUING

    def rescued(self, now: float) -> None:
        """The rows of former owners are given back: serve."""
        self._running = None
        self.standing = Standing.SERVING
        self._due = self.until - self._timers.lease + self._timers.lease_renewal

    def renewed(self, is_ours: bool, now: float) -> None:
        """The lease is renewed, or the group is not ours any more."""
        self._running = None
        if is_ours:
            self.until = self._asked_at + self._timers.lease
            self._due = now if self.standing is Standing.YIELDING else self._asked_at + self._timers.lease_renewal
        else:
            self._yields_until = now + self._timers.lease if self.standing is Standing.YIELDING else -NEVER
            self.standing = Standing.UNREGISTERED
            self.until = -NEVER
            self._due = now

    def refused(self, now: float) -> None:
        """The database refused a statement of ours: try it again after a while, to register ever more seldom."""
        self._running = None
        self._due = now + min(self._timers.lease_renewal, 1.0)
        if self.standing is Standing.UNREGISTERED:
            self._due = now + min(2.0**self._refusals, REFUSED_MOST_S)
            self._refusals = min(self._refusals + 1, 10)
