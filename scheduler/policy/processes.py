"""Decides what happens when the process of an agent starts, cannot start, is silent, is replaced or dies.

The same for hosts, which are reached and lost.

A death is settled in three steps: the last output of the process is read, its item is settled, its slot is freed.

A host that has to be reached may be down: work for any host goes elsewhere meanwhile, and what is bound to it waits in
the queue as far as it can, where drover.why tells the reason. A machine that has no descriptor, process or memory for
one more agent keeps those that it has; items are put back at no cost. More are tried after a pause, which doubles each
time that it fails at once. A type whose program is being written waits so too, alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from scheduler.model import events_and_effects as e
from scheduler.model import states as s
from scheduler.model.counters import DIED, SPAWNED
from scheduler.model.queue_requests import OutputRow
from scheduler.policy import agent_replies, completion, detached_jobs, group_lease, program_rollout
from scheduler.policy.capacity import HostState
from scheduler.policy.conditions import AGENT
from scheduler.policy.deadlines import OUTPUT, SHORTAGE
from scheduler.policy.dispatch import recall_prefetched, stop_starving
from scheduler.policy.job import Job
from scheduler.policy.output_buffers import Piece
from scheduler.policy.slots import Slot
from scheduler.policy.state import State
from scheduler.policy.unstartable_jobs import BLOCK

EX_TEMPFAIL: Final = 75  # an exec agent's exit status that means blocked
NOT_FOUND: Final = 127  # the exit status of a shell for a command that does not exist


def created(state: State, event: e.Created, now: float) -> None:
    """Note that a process exists: an exec agent works from now on, a line agent has so long for its first OK."""
    slot = state.slots.all[event.slot]
    host = slot.host
    if host.shortage is not None and host.most == s.NO_LIMIT:
        host.recover()
        state.log_message("info", f"host {host.name}: more agents can be started again")
    slot.pool.program_was_free(host.name)
    slot.process_began(event.pid, now)
    state.count_process(SPAWNED, slot)
    if slot.state != s.ST_SPAWNED:
        return
    if slot.pool.is_exec:
        state.begin_capture(slot)
        is_probe = host.probe is slot
        slot.launched(now)
        if slot.pool.kind.detached:
            detached_jobs.attached(state, slot, now)
        if is_probe:
            state.mark_dirty(slot.pool)  # and so all those that wait to be the next
    elif state.timers.start_hint < state.timers.start_limit:
        slot.set_deadline(now + state.timers.start_hint)


def not_created(state: State, event: e.NotCreated, now: float) -> None:
    """Settle the item of a process that could not be made, by whose fault that is, and free its slot.

    The machine's, or nobody's, as its program is being written: it is put back, and also where the host lacks the
    program and another may have it. The link's: it is interrupted. Else it fails, or is blocked if its type says so.
    """
    slot = state.slots.all[event.slot]
    state.count_process(DIED, slot, "not started")
    if slot in state.attachments.attached and detached_jobs.attach_failed(state, slot, event, now):
        _process_ended(state, slot, now, s.NOT_CREATED)
        return
    if event.is_machines_fault:
        _not_startable(state, slot, event.reason, now)
        return
    if event.is_busy:
        _program_is_busy(state, slot, event.reason, now)
        return
    if slot.job is not None and event.lost and not event.is_items_fault:
        completion.lose_item(state, slot, event.reason, now, interrupted=True)  # the log is told of that
    else:
        state.log(slot, "ERROR", event.reason)
        if not event.is_items_fault and _lacks_program(state, slot, event.code) and not slot.is_bound:
            _put_back_unsent(state, slot, now)
        else:
            _fail_start(state, slot, event, now)
    if slot.wanted is not s.DIE:
        slot.blame(not event.is_items_fault and slot.host.is_up)
    if slot.death_counts:
        slot.pool.set_reason(event.reason)
    _process_ended(state, slot, now, s.NOT_CREATED)


def _fail_start(state: State, slot: Slot, event: e.NotCreated, now: float) -> None:
    """Fail the item for which a process could not be made, or block its job if the type says so."""
    job = slot.job
    if job is None:
        return
    is_asked_for, is_slots = slot.wanted is s.DIE, not event.is_items_fault
    job.exited(event.code if not is_asked_for else None, None)
    if slot.record is not None and is_slots and not is_asked_for:
        program_rollout.start_failed(state, slot, event.reason, now)
    if slot.pool.kind.on_start_failure == BLOCK and is_slots and not is_asked_for:
        completion.block_job(state, slot, job, f"{AGENT}{slot.pool.name} {event.reason}")
    else:
        completion.fail_item(state, slot, job, event.reason, now, final=False)
    completion.take_item_from(state, slot, job, now)


def _lacks_program(state: State, slot: Slot, code: int | None) -> bool:
    """Return whether a start failed since the host lacks the program, which another may have; it is not tried again."""
    pool, host, timers = slot.pool, slot.host.name, state.timers
    if code != NOT_FOUND or slot.wanted is s.DIE or not pool.lacks_program(host, timers.respawn_count):
        return False
    pause = timers.respawn_interval
    state.log_message("warning", f"host {host} has no program of agent {pool.name}, so that none is started there for "
                      f"{pause:g} s: give the host types without it, or the type hosts without this one")  # fmt: skip
    return True


def _not_startable(state: State, slot: Slot, reason: str, now: float) -> None:
    """Put back the item of an agent that the machine could not start, and start no more agents there for a while."""
    host = slot.host
    _not_begun(state, slot, now)
    if host.run_short(reason, now):
        state.log_message("warning", f"host {host.name}: no more agents are started for {host.pause:g} s: {reason}")
    state.deadlines.bring_forward(SHORTAGE, host.tried_again_at)


def _program_is_busy(state: State, slot: Slot, reason: str, now: float) -> None:
    """Put back the item of an agent whose program is being written, and start no more agents of that type there yet."""
    pool, host = slot.pool, slot.host
    _not_begun(state, slot, now)
    stop_starving(state, pool)  # no place is kept for it meanwhile
    if pool.program_is_busy(host.name, reason, now):
        pause = pool.busy[host.name].pause
        state.log_message("warning", f"host {host.name}: this type is not started for {pause:g} s: {reason}")


def _not_begun(state: State, slot: Slot, now: float) -> None:
    _put_back_unsent(state, slot, now)
    slot.blame(False)
    _process_ended(state, slot, now, s.NOT_CREATED)


def _put_back_unsent(state: State, slot: Slot, now: float) -> None:
    """Put back the item of a process that has not got it, as if it had not been assigned."""
    job = slot.job
    if job is not None and job.verdict is None:
        agent_replies.put_back_unsent(state, slot)
        if state.draining and job.query is None:
            completion.give_back(state, job, completion.RESTART, now)
    elif job is not None:
        completion.take_item_from(state, slot, job, now)


def gone(state: State, event: e.Gone, now: float) -> None:
    """Read the last output of a dead process, settle its item, free its slot."""
    slot = state.slots.all[event.slot]
    state.count_process(DIED, slot, _kind_of_end(slot, event))
    if event.keeper_said == "could not keep" and (capture := state.end_capture(slot)) is not None:
        _store(state, slot, capture.end(), is_over=True)
    if slot in state.attachments.attached and detached_jobs.attached_ended(state, slot, event, now):
        slot.blame(False)
        state.end_capture(slot)
        _process_ended(state, slot, now, s.GONE)
        return
    if event.lost:
        slot.blame(False)
    if event.left:
        _note_left(state, slot, event.why)
    how = _how(slot, event)
    words = _read_rest(state, slot, now)
    if slot.is_unsent and slot.job is not None:  # it was assigned an item in this turn, and died without it
        state.withdraw_line(slot)
        _put_back_unsent(state, slot, now)
        slot.set_about_job(None)
    if slot.job is not None:
        slot.job.exited(event.code, event.signal)
    if slot.state == s.ST_RUNNING and slot.pool.is_exec and slot.job is not None:
        _exec_ended(state, slot, slot.job, event, how, words, now)
    else:
        _died(state, slot, event, how, words, now)
    if event.left:
        slot.blame(True)  # whatever it had in hand: else ever more of them could be started, and left
    _process_ended(state, slot, now, s.GONE)


def _note_left(state: State, slot: Slot, why: str) -> None:
    """Tell that the process of a slot lives on."""
    state.log(slot, "ERROR", why)
    slot.say("error", why)
    job = slot.job
    if job is not None and job.verdict is not None:
        job.set_verdict(replace(job.verdict, text=f"{job.verdict.text}; {why}"))


def refused(state: State, event: e.Refused, _now: float) -> None:
    """Tell that a signal to the process of a slot was refused."""
    slot = state.slots.all[event.slot]
    slot.say("warning", event.why)
    if slot.job is not None:
        state.log(slot, "WARNING", event.why)


def _how(slot: Slot, event: e.Gone) -> str:
    """Return how a process ended, in words; of one that was to die, why."""
    if event.left:
        reason = slot.reason if slot.wanted is s.DIE else "protocol violation: it closed its output and lives on"
        return f"{reason}; {event.why}"
    if slot.wanted is s.DIE:
        return slot.reason
    if event.lost:
        return f"the link to host {slot.host.name} was lost" + (f": {event.why}" if event.why else "")
    how = event.why if event.code is None else f"with exit status {_status(event)}"
    return f"agent terminated prematurely, {how if event.signal is None else f'by {event.signal}'}"


def _status(event: e.Gone) -> str:
    """Return an exit status, and what kept the program from running, if that is known."""
    return f"{event.code}: {event.why}" if event.why else f"{event.code}"


def _read_rest(state: State, slot: Slot, now: float) -> str:
    """Act on what a dead process printed last without a newline, and store the rest of its output.

    Return the last line of what it printed on stderr about its item, which most often says why that failed.
    """
    if last := slot.output.last_line():
        slot.starve()
        if slot.wanted is not s.DIE:
            agent_replies.agent_output(state, slot, last + b"\n", now)
    if slot.output.partial_stderr:
        agent_replies.agent_stderr(state, slot, b"\n", now)
    if (capture := state.end_capture(slot)) is not None:  # who follows it is notified of the end of the job
        _store(state, slot, capture.end(), is_over=slot.job is not None and slot.job.query is None)
        return capture.last_error
    return slot.output.error_about(slot.total)


def _kind_of_end(slot: Slot, event: e.Gone) -> str:
    """Return how a process ended: its host was lost, we asked it to, it is a command, or it died by itself."""
    if event.lost:
        return "lost"
    if slot.wanted is s.DIE:
        return "asked"
    return "exited" if slot.pool.is_exec and event.signal is None else "died"


def _exec_ended(state: State, slot: Slot, job: Job, event: e.Gone, how: str, words: str, now: float) -> None:
    """End the item of an exec agent that exited, whatever its status; that does not count against the slot."""
    slot.blame(False)
    if event.code == 0:
        completion.finish(state, slot, job, now)
    elif event.code == EX_TEMPFAIL:
        slot.say_item_blocked("exit status 75")
        completion.finish(state, slot, job, now)
    elif event.lost or (event.code is None and event.signal is None):
        completion.lose_item(state, slot, how, now, interrupted=True)
    else:
        reason = f"exit status {_status(event)}" if event.signal is None else f"killed by {event.signal}"
        completion.lose_item(state, slot, reason, now, "" if event.why or slot.wanted is s.DIE else words)


def _died(state: State, slot: Slot, event: e.Gone, how: str, words: str, now: float) -> None:
    """Log a death, unless we asked for it, and settle the item."""
    if slot.wanted is s.DIE:
        words = ""
    else:
        if slot.state == s.ST_READY:
            slot.set_about_job(None)  # the job that it had last has nothing to do with this
        if not event.lost or slot.job is None:  # else the log is told of the interruption
            state.log_death(slot, how, killed=False)
        slot.say("warning", how)
    if slot.death_counts:
        slot.pool.set_reason(how)
        if not slot.is_up and not slot.pool.is_exec:
            _lacks_program(state, slot, event.code)
    completion.lose_item(state, slot, how, now, "" if event.lost else words, interrupted=event.lost)


def _process_ended(state: State, slot: Slot, now: float, event: int) -> None:
    """Free the slot; when that leaves its type without a usable one, its untouched jobs go back to the queue."""
    recall_prefetched(state, slot, now)
    program_rollout.process_ended(state, slot, event, now)
    slot.process_ended(event, state.timers, now)
    pool = slot.pool
    if slot.state == s.ST_FAIL and all(other.state == s.ST_FAIL for other in pool.slots):
        pool.block(now)
        state.log_message("error", f"every slot of agent {pool.name} has failed: {pool.reason}")
        completion.give_back_all(
            state, pool.failure, now, lambda job: job.pool is pool and completion.is_untouched(job)
        )
    state.mark_dirty(pool)


# ---- deadlines


def end_overdue(state: State, now: float) -> None:
    """Act on the slots whose deadline has come."""
    for slot in state.slots.overdue(now):
        _late(state, slot, now)


def _late(state: State, slot: Slot, now: float) -> None:
    start_limit, is_made = state.timers.start_limit, slot.state == s.ST_SPAWNED
    if is_made and now < slot.since + start_limit:
        hint = f"no OK yet; {slot.output.why_no_ok()}"
        state.log(slot, "WARNING", hint)
        slot.say("warning", hint)
        slot.set_deadline(slot.since + start_limit)
    elif slot.state in (s.ST_PREP, s.ST_SPAWNED):
        what = f"{'no OK' if is_made else 'not started'} within {start_limit:g} s"
        state.log(slot, "ERROR", f"{what}; killed")
        why = f"{what} of the start; {slot.output.why_no_ok()}" if is_made else what
        slot.pool.set_reason(why)
        slot.say("warning", why)
        slot.kill(why, now, counts=True)
    elif slot.state == s.ST_READY:
        slot.kill("idle", now)
    elif slot.state == s.ST_RUNNING:
        _late_while_working(state, slot, now)
    else:
        slot.fire(s.LATE, now)
        state.unblock(slot.pool)
        state.mark_dirty(slot.pool)


def _late_while_working(state: State, slot: Slot, now: float) -> None:
    """Kill an agent that is silent, slow or does not read; the time of each is measured from another instant."""
    kind = slot.pool.kind
    silent_at = max(slot.output.at, slot.assigned_at) + (kind.heartbeat or s.NEVER)
    slow_at = slot.assigned_at + (kind.item_timeout or s.NEVER)
    deadline, why, counts = min(
        (slot.clogged_until, "does not read its line", False),
        (silent_at, f"no heartbeat for {kind.heartbeat:g} s", True),
        (slow_at, f"item took longer than {kind.item_timeout:g} s", False),
    )
    if deadline > now:
        slot.set_deadline(deadline)
        return
    state.log_death(slot, why, killed=True)
    slot.kill(why, now, counts=counts)


# ---- what agents read


def clogged(state: State, event: e.Clogged, now: float) -> None:
    """Limit the time of an agent that does not read its line, from the first byte that is not read."""
    slot = state.slots.all[event.slot]
    slot.clog(min(slot.clogged_until, now + state.timers.write_limit))


def unclogged(state: State, event: e.Unclogged, now: float) -> None:
    """Clear the deadline of an agent that has read all, and run its next DB: line."""
    slot = state.slots.all[event.slot]
    slot.clog(s.NEVER)
    agent_replies.ask_next(state, slot)


def statement_answered(state: State, event: e.StatementAnswered, now: float) -> None:
    """Send the answer to a DB: line to the process that asked, if it still lives."""
    slot = state.slots.all[event.slot]
    if slot.serial == event.serial and slot.state in (s.ST_SPAWNED, s.ST_READY, s.ST_RUNNING):
        slot.output.statement_answered()
        state.emit(e.Send(slot.number, event.lines))
        agent_replies.ask_next(state, slot)


# ---- output of exec agents


def capture(state: State, slot: Slot, stream: str, data: bytes, now: float) -> None:
    """Keep the output of a command; what of it is to be stored now waits a moment for more."""
    if slot in state.attachments.first_lines and stream == "out":
        data = detached_jobs.take_pid_line(state, slot, data)
    capture = state.captures.get(slot.number)
    if capture is not None and capture.add(stream, data):
        state.deadlines.bring_forward(OUTPUT, now + state.timers.output_interval)


def store_output(state: State, now: float) -> None:
    """Store the output that has waited, and notify those who follow it."""
    for number, capture in state.captures.items():
        _store(state, state.slots.all[number], capture.take(), is_over=False)


def _store(state: State, slot: Slot, pieces: Sequence[Piece], *, is_over: bool) -> None:
    job = slot.job
    if job is None or not pieces:
        return
    for piece in pieces:
        state.outbox.output(OutputRow(job.pk, job.attempt, job.next_piece(), *piece), is_followed=not is_over)
    group_lease.hold_if_full(state)


# ---- hosts


def host_up(state: State, event: e.HostUp, now: float) -> None:
    """Let agents be started on a host that is reached."""
    host = state.hosts[event.host]
    host.set_up(True)
    state.log_message("info", f"host {host.name}: reached")
    _host_changed(state, host)


def host_down(state: State, event: e.HostDown, now: float) -> None:
    """Start nothing on a host that is down; the end of each process there is an event of its own."""
    host = state.hosts[event.host]
    host.went_down(event.reason, now + event.seconds)
    what = f"host {host.name} cannot be reached: {event.reason}; next attempt in {event.seconds:.1f} s"
    state.log_message("warning", what)
    why = f"host {host.name} is down"
    completion.give_back_all(state, why, now, lambda job: job.host == host.name and completion.is_untouched(job))
    _host_changed(state, host)


def host_moved(state: State, event: e.HostMoved, now: float) -> None:
    """Start nothing on a host until it is reached anew, and end its processes, which are where its name led before."""
    host = state.hosts[event.host]
    host.set_up(False)
    state.log_message("info", f"host {host.name}: it is {event.to} now, or reached otherwise; its agents are replaced")
    for slot in state.slots.all:
        if slot.host is host:
            slot.dismiss("its host is reached otherwise now", now)
    _host_changed(state, host)


def _host_changed(state: State, host: HostState) -> None:
    state.show_hosts(host)
    state.claims.wake()
    state.mark_dirty(*[pool for pool in state.pools.values() if host.name in pool.free])


def try_more(state: State, now: float) -> None:
    """Try again to start more agents where the machine could not."""
    for host in state.hosts.values():
        host.try_more(now)
    again = min((host.tried_again_at for host in state.hosts.values() if host.most < s.NO_LIMIT), default=s.NEVER)
    state.deadlines.set(SHORTAGE, again)
    state.retry_starving()
