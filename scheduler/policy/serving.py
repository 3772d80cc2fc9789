"""Whether work is given out: the group is ours, its lease has not passed, no drain or stop, connections can be made.

SQL jobs need a connection under a login of its own for their queries, whatever their type; types whose agents may send
DB: lines need one for these. While none can be made nothing of such work is begun. A job that comes meanwhile goes back
to the queue at no cost, since nothing of it began; everything else goes on. Where some connections can be made and
others not, queries share those that there are.
"""

from typing import Final

from scheduler.model import events as e
from scheduler.model.events import ConnectionKind, ConnectionsChanged, no_connection
from scheduler.model.states import NEVER, ST_PREP, ST_READY, ST_SPAWNED
from scheduler.policy import completion
from scheduler.policy.completion import NOT_BEGUN
from scheduler.policy.dispatch import stop_starving
from scheduler.policy.job import Job, Pool, Verdict
from scheduler.policy.state import QUERIES, MissingConnection, State

SLACK: Final = 0.5  # seconds after the next attempt, which has failed or not by then
STATEMENTS: Final[ConnectionKind] = "statements"


def serve(state: State, event: e.Serve, now: float) -> None:
    """Assign work until an instant, for the group is ours, unless we are ending."""
    state.set_lease(event.until)
    go_on(state, now)


def lapsed(state: State) -> None:
    """Assign no work until the lease is renewed, for it has run out by the clock of the database."""
    if state.is_assigning:
        state.log_message("warning", "the lease has run out by the clock of the database: it is renewed now")
    state.set_assigning(False)
    state.set_lease(-NEVER)
    state.emit(e.RenewLease())


def go_on(state: State, now: float) -> None:
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
    for job in list(state.jobs.values()):
        completion.forget(state, job, now)
    for slot in state.slots.all:
        slot.kill("the group has another owner", now)
    state.replace_outbox()


def drain(state: State, event: e.Drain, now: float) -> None:
    """Give back what has not begun; queries with a key stop at once, others finish their slice, or not."""
    state.begin_drain()
    completion.give_back_all(state, "released for restart", now, completion.is_untouched)
    for job in [job for job in state.jobs.values() if job.query is not None and job.verdict is None]:
        if job.rules.key is not None or state.draining > 1 or not job.pool.may_begin:
            completion.give_back(state, job, "released for restart", now)
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


def _let_go(state: State, why: str, now: float) -> None:
    completion.give_back_all(state, "released for restart", now, lambda job: True)
    for slot in state.slots.all:
        slot.kill(why, now)


def _end_idle(state: State, now: float) -> None:
    for slot in state.slots.all:
        if slot.job is None and slot.state in (ST_READY, ST_SPAWNED, ST_PREP):
            slot.kill("the scheduler drains", now)


def connections_changed(state: State, event: ConnectionsChanged, now: float) -> None:
    """Begin nothing that needs such a connection, or begin it again."""
    missing = None
    if event.reason is not None and not event.up:
        former = state.missing_connections.get(event.need)
        since = former.since if former else now
        missing = MissingConnection(no_connection(event.login, event.reason), since, now + event.seconds)
    state.connections_missing(event.need, missing, NEVER if event.reason is None else event.up)
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
