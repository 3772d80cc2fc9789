"""Whether this daemon serves its group: its lease, drain, stop and stepping down, connections that cannot be made.

The lease is one row, by the clock of the database. It is taken when the group has no owner, when the owner is known
to be dead (same machine, its process is gone), or when the lease has run out and our own connection has lasted one
whole lease, so that a database that was away does not make every daemon look dead. A daemon that has stepped down
leaves the group to others until one of them has had it, or for one lease: if it has no owner then, no other wants it.

`Lease.step` returns the statement to run next on the watch connection; the answer is reported by `registered`,
`looked`, `taken`, `rescued`, `renewed` or `refused`. The states are a table, LEASE in model/states.py; `_fire` moves
them.

SQL jobs need a connection under a login of its own for their queries, whatever their type; types whose agents may send
DB: lines need one for these. While none can be made nothing of such work is begun. A job that comes meanwhile goes back
to the queue at no cost, since nothing of it began; everything else goes on. Where some connections can be made and
others not, queries share those that there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from scheduler.model import events_and_effects as e
from scheduler.model.config import Scheduler
from scheduler.model.events_and_effects import ConnectionKind, ConnectionsChanged, no_connection
from scheduler.model.states import LEASE, NEVER, NO_LIMIT, ST_PREP, ST_READY, ST_SPAWNED, LeaseEvent, LeaseState
from scheduler.policy import completion, program_rollout
from scheduler.policy.completion import NOT_BEGUN
from scheduler.policy.dispatch import stop_starving
from scheduler.policy.job import Job, Pool, Verdict
from scheduler.policy.state import QUERIES, MissingConnection, State

REFUSED_MOST_S: Final = 30.0  # between two tries to register
YIELD_LOOK_S: Final = 1.0  # between two looks whether another daemon has taken what we gave up
SLACK: Final = 0.5  # seconds after the next attempt, which has failed or not by then
STATEMENTS: Final[ConnectionKind] = "statements"


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
    """The owner of the group, as it was read."""

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
        self.is_renewed = True  # unless it was a program's before us, and we do not know yet
        self._is_hurried = False

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
        self._is_hurried = self._is_hurried and self._connected_at == NEVER
        self._connected_at, self._running = NEVER, None
        self._fire(LeaseEvent.DISCONNECTED, NEVER)

    def hurry(self) -> None:
        """Take the group, the first time, as soon as its lease has run out: its owner is dead, as an operator says.

        Not after our connection was lost: then the database may have been away for the owner, too.
        """
        self._is_hurried = True

    def leave(self) -> None:
        """Take or renew no lease any more: the daemon ends."""
        self._fire(LeaseEvent.LEAVE, NEVER)

    def step_down(self, now: float) -> None:
        """Release the group, if it is ours, so that another daemon takes it over."""
        self._fire(LeaseEvent.STEP_DOWN, now)

    def owner_changed(self, now: float) -> None:
        """The group may have lost its owner: look at it now, if we stand by."""
        self._fire(LeaseEvent.OWNER_CHANGED, now)

    def renew(self, now: float) -> None:
        """Renew the lease now, if the group is ours."""
        self._fire(LeaseEvent.RENEWAL_WANTED, min(self._due, now))

    # ---- another program that takes over, or that was before us

    def snapshot(self) -> list[Any] | None:
        """Return what another program needs to go on with the lease: its end, and when it was taken."""
        return [self.until, self._taken] if self.state is LeaseState.SERVING else None

    def restore(self, snapshot: Sequence[Any] | None) -> None:
        """Continue with the lease of a program before us, and renew it as soon as possible; if none, register anew."""
        if snapshot is not None:
            self.until, self._taken = float(snapshot[0]), snapshot[1]
            self.state, self._due, self.is_renewed = LeaseState.SERVING, NEVER, False

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
    def has_role(self) -> bool:
        """Return whether we serve, or stand by for an owner that may still need to be replaced one day."""
        is_behind = self.state is LeaseState.STANDBY and self.owner.uuid is not None and not self._may_take()
        return is_behind or self.state is LeaseState.SERVING

    @property
    def is_served_elsewhere(self) -> bool:
        """Return whether another daemon that lives holds the lease."""
        owner = self.owner
        return self.state is LeaseState.STANDBY and owner.uuid is not None and not owner.is_lapsed and not owner.is_dead

    @property
    def shown(self) -> str:
        """Return the state in words for people."""
        return _STATES[self.state][0]

    @property
    def has_waited_a_lease(self) -> bool:
        """Return whether our own connection has lasted one whole lease, or does not have to."""
        return self._is_hurried or self._asked_at - self._connected_at >= self._timers.lease

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
            self._is_hurried = False
            self._taken = at
            self.until = self._asked_at + self._timers.lease

    def rescued(self, now: float) -> None:
        """The rows of former owners are given back: serve."""
        self._running = None
        self._fire(LeaseEvent.RESCUED, self.until - self._timers.lease + self._timers.lease_renewal)

    def renewed(self, is_ours: bool, now: float) -> None:
        """The lease is renewed, or the group is not ours any more."""
        self._running, self.is_renewed = None, True
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


# ---- work is given out or not


def serve(state: State, event: e.Serve, now: float) -> None:
    """Assign work until an instant, for the group is ours, unless we are ending."""
    state.set_lease(event.until)
    assign_again(state, now)


def lapsed(state: State) -> None:
    """Assign no work until the lease is renewed, for it has run out by the clock of the database."""
    if state.is_assigning:
        state.log_message("warning", "the lease has run out by the clock of the database: it is renewed now")
    state.set_assigning(False)
    state.set_lease(-NEVER)
    state.emit(e.RenewLease())


def assign_again(state: State, now: float) -> None:
    """Assign work again, unless something forbids it."""
    if not state.is_assigning and _may_assign(state, now):
        state.set_assigning(True)
        state.wake_all()


def judge_lease(state: State, now: float) -> None:
    """Assign no work past the lease, by the clock, however long this process did not run."""
    if state.is_assigning and now >= state.serving_until:
        state.set_assigning(False)
        state.log_message("warning", "past the lease: no agent is given work until it is renewed")


def hold_if_full(state: State) -> None:
    """Assign no work while too many results wait to be saved."""
    if state.is_assigning and state.outbox.is_full:
        state.set_assigning(False)
        size = f"{state.outbox.result_size >> 20} MiB"
        state.log_message("warning", f"{size} of results wait to be saved: no agent is given work until half of it is")


def disowned(state: State, event: e.LeaseLost, now: float) -> None:
    """Kill the children and forget the rows, for another daemon owns the group: save nothing of them."""
    state.lose_group()
    why = "the group has another owner"
    for job in list(state.jobs.values()):
        completion.forget(state, job, why, now)
    for slot in state.slots.all:
        slot.kill(why, now)
    state.replace_outbox()
    program_rollout.forget_known(state)


def drain(state: State, event: e.Drain, now: float) -> None:
    """Give back what has not begun; queries with a key stop at once, others finish their slice, or not."""
    state.begin_drain()
    let_go_detached(state, now)
    completion.give_back_all(state, completion.RESTART, now, completion.is_untouched)
    for job in [job for job in state.jobs.values() if job.query is not None and job.verdict is None]:
        if job.rules.key is not None or state.draining > 1 or job.pool.is_stopped:
            completion.give_back(state, job, completion.RESTART, now)
    state.set_assigning(_may_assign(state, now))
    _end_idle(state, now)


def wind_down(state: State, now: float) -> None:
    """While draining, assign items of slices only; when the last slice is over end agents without an item."""
    if not _has_slices(state):
        state.set_assigning(False)
        _end_idle(state, now)


def _may_assign(state: State, now: float) -> bool:
    wanted = not state.stopping and (not state.draining or _has_slices(state))
    return wanted and state.serving_until > now and not state.outbox.is_full


def _has_slices(state: State) -> bool:
    return any(job.query is not None and job.verdict is None for job in state.jobs.values())


def stop(state: State, event: e.Stop, now: float) -> None:
    """Kill the children and give their rows back."""
    state.begin_stop(steps_down=False)
    _let_go(state, "the scheduler stops", now)


def step_down(state: State, now: float) -> bool:
    """Do the same, then let another daemon have the group; False when we are ending anyway."""
    if state.draining or (state.stopping and not state.steps_down):
        return False
    state.begin_stop(steps_down=True)
    state.log_message("info", "stepping down: agents are killed, their rows given back")
    _let_go(state, "the group is given up", now)
    return True


def let_go_detached(state: State, now: float) -> None:
    """Leave the detached jobs in hand alone, for another daemon to adopt; give back those that have not begun."""
    for slot in [slot for slot in state.attachments.beginning if slot.job is not None]:
        completion.take_back(state, slot, completion.RESTART, now)
        state.mark_dirty(slot.pool)
    for job in [job for job in state.jobs.values() if job.pool.kind.detached and job.started]:
        completion.forget(state, job, "left to the daemon that adopts it", now)
        state.mark_dirty(job.pool)


def _let_go(state: State, why: str, now: float) -> None:
    let_go_detached(state, now)
    completion.give_back_all(state, completion.RESTART, now, lambda job: True)
    for slot in state.slots.all:
        slot.kill(why, now)


def _end_idle(state: State, now: float) -> None:
    for slot in state.slots.all:
        if slot.job is None and slot.state in (ST_READY, ST_SPAWNED, ST_PREP):
            slot.kill("the scheduler drains", now)


# ---- connections that cannot be made


def connections_changed(state: State, event: ConnectionsChanged, now: float) -> None:
    """Begin nothing that needs such a connection, or begin it again."""
    missing = None
    if event.reason is not None and not event.up:
        former = state.missing_connections.get(event.need)
        since = former.since if former else now
        missing = MissingConnection(no_connection(event.login, event.reason), since, now + event.seconds)
    state.connections_missing(event.need, missing, NO_LIMIT if event.reason is None else event.up)
    hold_types(state)
    for job in list(state.jobs.values()):
        has_begun = not completion.is_untouched(job) or (job.query is not None and job.query.has_connection)
        if not has_begun and (lacking := missing_for(state, job)) is not None:
            give_back_unbegun(state, job, lacking, now)
    state.wake_all()


def hold_types(state: State) -> None:
    """Let every type know whether it lacks a connection; also after a reload."""
    for pool in state.pools.values():
        pool.set_may_begin(lacks_connection=missing_for_type(state, pool) is not None)
        if not pool.may_begin:
            stop_starving(state, pool)


def missing_for_type(state: State, pool: Pool) -> MissingConnection | None:
    """Return what keeps a type from being worked: its agents may send DB: lines, and no connection takes them."""
    return state.missing_connections.get(STATEMENTS) if pool.kind.db != "off" else None


def missing_for(state: State, job: Job) -> MissingConnection | None:
    """Return what keeps a job from being begun, if it is a connection."""
    of_query = state.missing_connections.get(QUERIES) if job.query is not None else None
    return of_query or missing_for_type(state, job.pool)


def give_back_unbegun(state: State, job: Job, missing: MissingConnection, now: float) -> None:
    """Return a job to the queue, at no cost; where its type goes on, not to be claimed before the next attempt."""
    lasted = min(now - missing.since, state.timers.reconnect_max)  # an attempt may take long
    delay = None if job.pool.lacks_connection else max(missing.until - now, lasted) + SLACK
    completion.stop_job(state, job, Verdict(NOT_BEGUN, missing.reason, delay), now)
