"""Decides what the daemon does: events and the time come in, effects come out.

    core.handle(event, now)              facts, answers of drivers, signals
    core.agent_output(slot, data, now)   the hot path: what an agent printed -> the line it gets next
    core.tick(now)                       deadlines that have come; `next_deadline` says when to call again
    core.take_effects(now)               schedules what has changed; the effects since the last call
    core.next_request(now)               what the queue connection is to do next, one at a time

It does no input or output, reads no clock but its argument `now`, and uses no random numbers. Two tables at the end
name the function that handles each event, and what is done when each deadline has come.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import Config
from scheduler.model.states import CANCELLED, NEVER, RUNNING, ST_FREE, ProgramEvent
from scheduler.policy import (
    agent_replies,
    completion,
    detached_jobs,
    group_lease,
    handover,
    intake,
    processes,
    program_rollout,
    queue_answers,
    reload,
    report,
    unstartable_jobs,
)
from scheduler.policy import deadlines as d
from scheduler.policy.conditions import Condition, Step, decide
from scheduler.policy.dispatch import assign_to_idle, dispatch, spill
from scheduler.policy.expansions import kept, open_expansions
from scheduler.policy.job import Job, Pool
from scheduler.policy.quotas import CONDITION
from scheduler.policy.rates import over_rate
from scheduler.policy.state import State
from scheduler.policy.unstartable_jobs import StartFailure


class Core:
    """The decisions of one daemon."""

    def __init__(self, config: Config, now: float = 0.0) -> None:
        self.state = State(config, now)
        self.report = report.Report(self.state)
        self._slots = self.state.slots.all

    @classmethod
    def restored(cls, given: handover.Document, config: Config, now: float) -> "Core":
        """Return the core of a program that has written this document. Errors: UnreadableError."""
        core = cls(handover.filtered(config, given.get("filters", {})), now)
        core.state.set_file(config)
        handover.restore(core.state, given, now)
        return core

    # ---- for the daemon around it

    @property
    def config(self) -> Config:
        """The configuration, with the filters of hosts that commands have set."""
        return self.state.config

    @property
    def is_draining(self) -> bool:
        """Return whether we were asked to drain."""
        return self.state.draining > 0

    @property
    def is_ending(self) -> bool:
        """Return whether we drain, stop or give the group up."""
        return self.is_draining or self.state.stopping

    @property
    def is_stepping_down(self) -> bool:
        """Return whether we give the group up, and live on."""
        return self.state.steps_down

    def report_ends(self, wanted: bool) -> None:
        """Emit an effect JobEnded at the end of each job, or none."""
        self.state.report_ends(wanted)

    def log_routine(self, wanted: bool) -> None:
        """Log the starts and ends of commands too, or not."""
        self.state.slots.log_routine(wanted)

    # ---- another program that takes over (policy/handover.py)

    def hold(self, now: float) -> None:
        """Begin nothing new, since another program is to take over."""
        handover.hold(self.state, now)
        self.schedule_dirty(now)

    def release(self) -> None:
        """End `hold`: no other program takes over yet, or this is the one that has."""
        handover.release(self.state)

    def obstacle(self) -> str:
        """Return what is still under way, so that no other program can take over yet; empty if nothing is."""
        return handover.obstacle(self.state)

    def unfinished_query(self) -> Job | None:
        """Return the job of a query with too many rows left for another program to take over now."""
        return handover.unfinished_query(self.state)

    def give_back_unmovable(self, now: float) -> None:
        """Kill and give back the jobs that another process cannot continue, since it is no parent of our children."""
        handover.give_back_unmovable(self.state, now)
        self.schedule_dirty(now)

    def idle_slots(self) -> list[int]:
        """Return the slots whose agents have nothing in hand."""
        return handover.idle_slots(self.state)

    def slots_that_came_up(self) -> set[int]:
        """Return the slots whose agents have said OK, and are not to end."""
        return handover.slots_that_came_up(self.state)

    def host_of(self, number: int) -> str:
        return self._slots[number].host.name

    def save_output(self, now: float) -> None:
        """Let all that commands have printed be saved."""
        processes.store_output(self.state, now)

    def document(self, now: float) -> handover.Document:
        """Return what another program needs to go on as this one."""
        return handover.document(self.state, now)

    # ---- what happens

    def handle(self, event: e.Event, now: float) -> None:
        if not self.state.may_want_more:
            self.state.set_may_want_more(True)
        _HANDLERS[type(event)](self.state, event, now)
        if self.state.dirty:
            self.schedule_dirty(now)

    def agent_output(self, number: int, data: bytes, now: float) -> bytes | None:
        """Act on what an agent printed; return the line to send it next, or None.

        Types that this changes are scheduled once for all output of a turn of the loop, by `take_effects`.
        """
        return agent_replies.agent_output(self.state, self._slots[number], data, now)

    def agent_stderr(self, number: int, data: bytes, now: float) -> None:
        """Act on what a line agent printed on stderr."""
        agent_replies.agent_stderr(self.state, self._slots[number], data, now)

    def exec_output(self, number: int, stream: str, data: bytes, now: float) -> None:
        """Keep what an exec agent printed on "out" or "err"."""
        processes.capture(self.state, self._slots[number], stream, data, now)

    def take_effects(self, now: float) -> list[e.Effect]:
        """Schedule what has changed, and return the effects since the last call."""
        self.schedule(now)
        return self.state.take_effects()

    def schedule(self, now: float) -> None:
        """Schedule the types that output or commands have changed; `take_effects` does so by itself."""
        if self.state.dirty:
            self.schedule_dirty(now)

    def schedule_dirty(self, now: float) -> None:
        """Assign items and start agents for every type that has changed."""
        state = self.state
        if not state.may_want_more:
            state.set_may_want_more(True)
        if state.attachments.beginning:
            for event in detached_jobs.withdraw_starts(state, now):
                processes.not_created(state, event, now)
        while state.dirty:
            for pool in sorted(state.take_dirty(), key=_longest_waiting):
                if state.is_assigning and pool.kind.detached:
                    if not state.attachments.site:
                        continue  # it is scheduled again when the site is known
                    detached_jobs.attach(state, pool, now)  # this begins nothing
                if state.is_assigning and pool.may_begin:
                    for job in pool.next_marks(state.jobs):
                        state.outbox.mark(job.mark(RUNNING, now))
                    if pool.unread:
                        intake.try_alone(state, pool, now)
                    if pool.canary is not None and pool.canary.is_on_trial and not state.draining:
                        program_rollout.begin_trial(state, pool, pool.canary, now)
                    assign_to_idle(state, pool, now)
                    waiting = open_expansions(state, pool, now) if pool.query_jobs else None
                    dispatch(state, pool, waiting, now)
        if state.draining:
            group_lease.wind_down(state, now)

    @property
    def has_effects(self) -> bool:
        """Return whether there are effects that the daemon has not carried out yet."""
        return bool(self.state.effects)

    @property
    def has_unsaved(self) -> bool:
        """Return whether ends, logs or output wait to be saved."""
        return not self.state.outbox.is_empty

    @property
    def has_work(self) -> bool:
        """Return whether `take_effects` would return something, or has something to schedule."""
        return bool(self.state.effects or self.state.dirty)

    # ---- the queue

    def next_request(self, now: float) -> r.Request | None:
        """Return what the queue connection is to do next, which is in flight then; None while another request is."""
        state = self.state
        if state.outbox.in_flight is not None:
            return None
        if not state.may_want_more and state.outbox.is_empty:
            return None
        if not state.may_want_more and state.jobs and state.outbox.gathers(now):
            return None  # others are in hand and will end soon
        if state.outbox.is_record_due and not state.is_receiving:
            return state.outbox.record_in_hand(self.live_rows())
        is_allowed = state.is_assigning and not (state.draining or state.is_held)
        wanted = self._wanted(now) if is_allowed else []
        if state.may_want_more is not bool(wanted):
            state.set_may_want_more(bool(wanted))
        if not wanted and state.jobs and state.outbox.gathers(now):
            return None
        request = state.outbox.next_request(wanted, now)
        if isinstance(request, r.EndAndClaim):
            state.claims.sent(request, now)
        return request

    def _wanted(self, now: float) -> list[r.ClaimRequest]:
        state = self.state
        for pool in state.pools.values():
            pool.measure(now)
        hosts, queues = list(state.hosts.values()), list(state.queues.values())
        if state.is_receiving and [queue for queue in queues if queue.reserved]:
            return []  # what is in hand counts
        pools, jobs = state.pools.values(), state.jobs.values()
        wanted = state.claims.next_requests(pools, queues, hosts, jobs, state.timers, now)
        if state.rated:
            state.wait_for_rates(now)
        return wanted

    @property
    def claim_under_way(self) -> object | None:
        """Return the claim whose rows are still to come; None if there is none."""
        request = self.state.outbox.in_flight
        return request if isinstance(request, r.EndAndClaim) and request.wanted else None

    def live_rows(self) -> list[int]:
        """Return the rows that are ours in memory, or whose end is on its way to the database."""
        return [*self.state.jobs, *self.state.outbox.pending()]

    def in_hand(self) -> list[tuple[int, int]]:
        """Return pk and attempt of the jobs that have not ended."""
        return [(job.pk, job.attempt) for job in self.state.jobs.values()]

    def settle(self, parents: list[int]) -> None:
        """Settle the dependencies on rows that others ended."""
        self.state.outbox.settle(parents)

    def settle_late(self, parents: list[int]) -> None:
        """Settle the dependencies on rows that a rescan found; what is not on its way already was forgotten."""
        self.state.outbox.settle_late(parents)

    def found_late(self, found: Mapping[str, int], until: float) -> None:
        """Count what rescans alone found until then: jobs that were claimed after them, and other things by kind."""
        jobs = self.state.claims.take_late(until)
        for kind, count in {**found, "jobs": jobs}.items():
            if count:
                self.state.found_late(kind, count)

    # ---- commands

    def kill(self, pk: int, text: str, now: float) -> bool:
        """Kill a job in hand as a failure, with a word on who did; False when it is not in hand any more."""
        return detached_jobs.end_by_command(self.state, pk, completion.KILLED, text, now)

    def cancel(self, pk: int, text: str, now: float) -> bool:
        """Cancel a job in hand, with a word on why; False when it is not in hand any more."""
        return detached_jobs.end_by_command(self.state, pk, CANCELLED, text, now)

    def signal(self, pk: int, number: int) -> int:
        """Send a signal to all agents that work on a job; return how many there are."""
        return completion.signal(self.state, pk, number)

    def rate_text(self, queue: str) -> str | None:
        """Return how the texts of the jobs begin that the rate limit of a queue puts off now; None if it has none."""
        rates = self.state.rated.get(queue)
        return over_rate(queue, rates.limit) if rates is not None and rates.limit.each else None

    def step_down(self, now: float) -> bool:
        """Kill the children, give their rows back, then release the group; False when we are ending anyway."""
        return group_lease.step_down(self.state, now)

    def reset_failed_slots(self, name: str | None, now: float) -> int:
        """Reset the failed slots of a type, or of all types; return how many there are."""
        pools = [pool for pool in self.state.pools.values() if name in (None, pool.name)]
        return sum([self.state.reset_failed_slots(pool, now) for pool in pools])

    def set_program(self, name: str, wanted: ProgramEvent, now: float) -> tuple[bool, str]:
        """Try, promote or roll back the new program of a type; return whether that was done, and a text."""
        self.state.set_may_want_more(True)
        return program_rollout.command(self.state, name, wanted, now)

    def cleared_conditions(self) -> list[str]:
        """Return the conditions whose check is due now: quotas with room, and hosts and types that can start again.

        A name that ends with a colon is the beginning of several.
        """
        quotas = [CONDITION + key for key in self.state.quotas.take_with_room()]
        return quotas + unstartable_jobs.take_cleared(self.state)

    @property
    def has_start_policies(self) -> bool:
        """Return whether jobs of some type are not to wait in the queue if they cannot start, or have been blocked."""
        return unstartable_jobs.has_policies(self.state)

    def know_start_conditions(self, names: Iterable[str]) -> None:
        """Learn which conditions of hosts and agent types an earlier daemon left, to let their jobs go in time."""
        self.state.start_conditions.update(names)

    def start_failures(self, now: float) -> list[StartFailure]:
        """Return which waiting jobs cannot start and are not to wait in the queue. Those in hand go back to it."""
        return unstartable_jobs.start_failures(self.state, now)

    def next_step(self, seen: Condition) -> Step:
        """Return what to do about a condition whose check is due, or whose tester has answered."""
        if seen.name.startswith(CONDITION):
            return self.state.quotas.step(seen)
        return decide(unstartable_jobs.answered(self.state, seen))

    # ---- time

    def next_deadline(self) -> float:
        """Return the instant `tick` is to be called; a lower bound, NEVER when nothing waits."""
        return min(self.state.deadlines.at.values())

    def tick(self, now: float) -> None:
        """Act on the deadlines that have come; whichever they are, agents may be started again."""
        state = self.state
        for name, act in _ON_DEADLINE.items():
            if state.deadlines.at[name] <= now:
                state.deadlines.set(name, NEVER)
                act(state, now)
        state.allow_starts()
        self.schedule_dirty(now)
        self.end_if_over()

    def resume(self, pause: float, now: float) -> None:
        """Resume after a pause, before any output is read: agents get that time back, while the lease ran on."""
        group_lease.judge_lease(self.state, now)
        self.state.resume(pause)

    def end_if_over(self) -> bool:
        """End us, or give the group up, if nothing is left to do after a drain or a stop; return whether that is so."""
        state = self.state
        if (state.draining or state.stopping) and not state.has_ended:
            is_at_work = state.jobs or state.is_receiving or any(slot.state > ST_FREE for slot in self._slots)
            if not is_at_work and state.outbox.is_empty:
                state.end()
                state.emit(e.ReleaseGroup() if state.steps_down else e.Exit())
        return state.has_ended


_HANDLERS: Final[dict[type, Callable[[State, Any, float], None]]] = {
    e.Created: processes.created,
    e.NotCreated: processes.not_created,
    e.Gone: processes.gone,
    e.Refused: processes.refused,
    e.HostUp: processes.host_up,
    e.HostDown: processes.host_down,
    e.HostMoved: processes.host_moved,
    e.Clogged: processes.clogged,
    e.Unclogged: processes.unclogged,
    e.Replaced: program_rollout.replaced,
    e.ProgramFound: program_rollout.found,
    e.StatementAnswered: processes.statement_answered,
    e.Opened: intake.opened,
    e.Fetched: intake.fetched,
    e.Kept: kept,
    e.NotExpanded: intake.not_expanded,
    e.ConnectionsChanged: group_lease.connections_changed,
    e.Woken: queue_answers.woken,
    e.RowsLost: queue_answers.rows_lost,
    e.TablesRead: reload.tables_read,
    e.EndedAndClaimed: queue_answers.ended_and_claimed,
    e.Claimed: intake.receive,
    e.Saved: queue_answers.saved,
    e.NotSaved: queue_answers.not_saved,
    e.Settled: queue_answers.settled,
    e.LockedFound: queue_answers.found_locked,
    e.ContentsRead: queue_answers.contents_read,
    e.Written: queue_answers.written,
    e.Adopted: detached_jobs.adopted,
    e.Serve: group_lease.serve,
    e.LeaseLost: group_lease.disowned,
    e.Drain: group_lease.drain,
    e.Stop: group_lease.stop,
    e.Reloaded: reload.reloaded,
}


def _longest_waiting(pool: Pool) -> tuple[float, str]:
    return min(pool.starving_since, pool.unfed_since), pool.name


def _retry_starving(state: State, now: float) -> None:
    state.retry_starving()


def _claim_again(state: State, now: float) -> None:
    state.set_may_want_more(True)


def _refill(state: State, now: float) -> None:
    state.refill(now)


def _progress_interval_passed(state: State, now: float) -> None:
    """Save progress, let rows go to other hosts, and assign nothing while too many results wait to be saved."""
    report.show_progress(state, now)
    spill(state, now)
    group_lease.hold_if_full(state)


def _send_next(state: State, now: float) -> None:
    """Do nothing: the next request is asked for after every tick."""


# What is done when a deadline of policy/deadlines.py has come and is cleared, in this order. What waits for STARTS
# goes on at every tick.
_ON_DEADLINE: Final[dict[str, Callable[[State, float], None]]] = {
    d.LEASE: group_lease.judge_lease,
    d.SLOTS: processes.end_overdue,
    d.MARK: report.mark_running,
    d.OUTPUT: processes.store_output,
    d.GATHER: _send_next,
    d.LOCKS: _send_next,
    d.RECORD: queue_answers.record_in_hand,
    d.PROGRESS: _progress_interval_passed,
    d.ROOM: _retry_starving,
    d.SHORTAGE: processes.try_more,
    d.RATES: _claim_again,
    d.ITEM_RATES: _refill,
    d.TIME_LIMITS: completion.end_late_jobs,
}
