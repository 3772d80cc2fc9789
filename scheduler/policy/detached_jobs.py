"""Decides about detached jobs: when one begins, which are adopted, and which are left alone when others are killed.

A detached job is an exec agent's whose command runs under a keeper of its host (drivers/keeper_scripts.py). The process
of its slot is only attached to it: that this process is gone says nothing of the job, unless it says so itself. Then
the job is forgotten, and adopted like that of a dead daemon: its row still says running, and where.
"""

from dataclasses import replace
from typing import Final, Literal

from scheduler.model import states as s
from scheduler.model.events_and_effects import Adopted, FindDetached, Gone, Keeper, NotCreated, Spawn
from scheduler.model.protocol import Item
from scheduler.policy import completion
from scheduler.policy.attachments import REMOTE_SPOOL
from scheduler.policy.deadlines import RECORD
from scheduler.policy.job import Job, Pool, Verdict
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

SOON_S: Final = 1.0  # until a job whose attached process is gone is adopted anew, or one that has ended is released
LATER_S: Final = 10.0  # the same, where the host could not look at it
RECORD_S: Final = 0.5
MOST_PID: Final = 1 << 22  # of Linux


def begin(state: State, slot: Slot, job: Job, spawn: Spawn, now: float) -> None:
    """Mark the row of a job as running, with its host and spool; its process is started when that is saved."""
    host = state.config.hosts[slot.host.name]
    spool = host.spool or (REMOTE_SPOOL if host.is_remote else state.attachments.local_spool)
    state.attachments.begin(slot, replace(spawn, keeper=_keeper(state, slot, "start", spool, 0)))
    row = job.mark(s.RUNNING, now, (slot.host.name, slot.pool.name, 0))
    state.outbox.mark(row._replace(pid=None, spool=spool))


def _keeper(state: State, slot: Slot, verb: Literal["start", "adopt"], spool: str, turn: int) -> Keeper:
    limit, grace = slot.pool.kind.output_limit, max(1, round(state.timers.kill_grace))
    return Keeper(verb, state.attachments.site, spool, turn, limit, grace)


def start_recorded(state: State, job: Job, now: float) -> None:
    """Start the process of a job whose row says now where it runs; give the job back if it is not to begin any more."""
    for slot, spawn in list(state.attachments.beginning.items()):
        if slot.job is not job or slot.wanted is s.DIE or slot.state != s.ST_PREP:
            continue
        if state.is_assigning and _may_still_begin(slot, job):
            del state.attachments.beginning[slot]
            _spawn(state, slot, spawn)
        else:
            completion.take_back(state, slot, "it was not begun in time", now)
            state.mark_dirty(slot.pool)


def _may_still_begin(slot: Slot, job: Job) -> bool:
    """Return whether a slot still takes a job that was assigned to it: type and host may be others by now."""
    pool, host = slot.pool, slot.host
    is_same = pool is job.pool and not slot.is_removed
    return is_same and not pool.is_stopped and host.is_open and pool.queues.takes(job, host.name)


def _spawn(state: State, slot: Slot, spawn: Spawn) -> None:
    assert spawn.keeper is not None
    state.attachments.attach(slot, spawn.keeper)
    state.emit(spawn)


def withdraw_starts(state: State, now: float) -> list[NotCreated]:
    """Cancel starts that are no longer wanted: give back their jobs, and return a NotCreated for each."""
    over = [slot for slot in state.attachments.beginning if slot.wanted is s.DIE or slot.job is None]
    for slot in over:
        del state.attachments.beginning[slot]
        if slot.job is not None:
            completion.take_back(state, slot, slot.reason, now)
        slot.blame(False)
    return [NotCreated(slot.number, slot.reason) for slot in over]


# ---- adopted jobs
def adopted(state: State, event: Adopted, now: float) -> None:
    """Take running jobs in hand; each waits for a slot of its type on its host."""
    state.attachments.learn(event.site, event.spool)
    if state.is_held or state.draining or state.stopping:
        return  # this daemon, or the next owner of the group, finds them again
    state.mark_dirty(*[pool for pool in state.pools.values() if pool.kind.detached])
    for adoption in event.jobs:
        claim = adoption.claim
        pool = state.pools.get(claim.request.type)
        if pool is None or claim.pk in state.jobs:
            continue
        job = state.jobs[claim.pk] = Job(claim, pool, now - adoption.age)
        job.adopt((adoption.host, pool.name, 0))
        if (queue := state.queues.get(job.queue)) is not None:
            queue.claimed(1)
        state.limit_time(job, now - adoption.age)
        state.attachments.wait(job, Item(job.args + b"\n", 0), adoption)
        state.log_message("info", f"job={job.pk}: adopted, detached on host {adoption.host}")
        if adoption.wanted == "kill":
            end_by_command(state, job.pk, completion.KILLED, "killed", now)
        elif adoption.wanted.startswith("cancel "):
            end_by_command(state, job.pk, s.CANCELLED, adoption.wanted[7:], now)
    if event.jobs:
        state.deadlines.bring_forward(RECORD, now + RECORD_S)


def attach(state: State, pool: Pool, now: float) -> None:
    """Attach a process to each adopted job of a type whose host is up and has a free slot, however full it is."""
    for pk, (job, item, adoption) in list(state.attachments.waiting.items()):
        free = pool.free.get(adoption.host)
        if job.pool is not pool or not free or not free[0].host.is_up:
            continue
        state.attachments.forget(pk)
        slot = free[0]
        slot.begin_process(pk, now)  # no command is started: the starts are not limited by it
        slot.take(job, item, False, now)
        told = "HUP" if job.verdict is not None and job.verdict.kills else ""
        keeper = replace(_keeper(state, slot, "adopt", adoption.spool, adoption.turn), told=told)
        argv, whose = (b"",), (pk, job.attempt, job.environment)
        spawn = Spawn(slot.number, slot.serial, pool.name, slot.host.name, argv, b"", *whose, keeper=keeper)
        _spawn(state, slot, spawn)


def leave_other_types(state: State, now: float) -> None:
    """Forget jobs that wait for a slot of a type that is gone or was replaced; those of detached types come again."""
    for job, _, _ in list(state.attachments.waiting.values()):
        pool = job.pool
        if state.pools[pool.name] is not pool or pool.name not in state.config.agents or not pool.kind.detached:
            completion.forget(state, job, "its type is gone", now)
            state.emit(FindDetached(0.0))


def end_by_command(state: State, pk: int, how: str, text: str, now: float) -> bool:
    """End a job as completion.py does; one that waits for a host that cannot be reached ends at once."""
    found = completion.end_by_command(state, pk, how, text, now)
    if found and pk in state.attachments.waiting:
        job, _, adoption = state.attachments.waiting[pk]
        host = state.hosts.get(adoption.host)
        if host is None or not host.is_up or adoption.host not in job.pool.free:
            state.attachments.forget(pk)
            job.returned()
            why = f"{how} while its host {adoption.host} cannot be reached: its command is ended when it can"
            state.log_job(job, "WARNING", why)
            completion.conclude_if_over(state, job, now)
    return found


# ---- the process of a slot is gone
def attached(state: State, slot: Slot, now: float) -> None:
    """Kill the command if its job was killed before the process was attached that passes signals on."""
    slot.set_pid(None)  # until its keeper is known
    job = slot.job
    if job is not None and job.verdict is not None and job.verdict.kills:
        slot.kill(job.verdict.text, now)


def take_pid_line(state: State, slot: Slot, data: bytes) -> bytes:
    """Take the first line of an attached process, the pid of the keeper; return the output behind it."""
    found = state.attachments.take_first_line(slot, data)
    if found is None:
        return b""
    line, rest = found
    pid = int(line) if line.isdigit() and len(line) <= len(str(MOST_PID)) else 0
    if not 1 < pid <= MOST_PID:  # a host printed something else
        return line + b"\n" + rest
    slot.set_pid(pid)
    if slot.job is not None:
        state.began_before(slot.job, slot)  # so its row is to say the pid
    return rest


def attach_failed(state: State, slot: Slot, event: NotCreated, now: float) -> bool:
    """Note that no process could be attached to a job; return whether the job may run all the same, and was forgotten.

    What could not be started is a shell on the host: that is no fault of the job, unless its arguments are too long.
    """
    keeper = state.attachments.detach(slot)
    is_fault = event.is_items_fault or event.is_machines_fault or event.is_busy
    if keeper is None or slot.job is None or (is_fault and keeper.verb == "start"):
        return False
    _adopt_later(state, slot, event.reason, SOON_S if event.lost else LATER_S, now)
    return True


def attached_ended(state: State, slot: Slot, event: Gone, now: float) -> bool:
    """Act on the end of an attached process; return False if it exited as the command of its job did."""
    keeper = state.attachments.detach(slot)
    if keeper is None:
        return False
    state.emit(FindDetached(SOON_S))
    job = slot.job
    if job is None:
        return True
    host = slot.host.name
    if event.keeper_said == "not begun":
        job.set_verdict(job.verdict or Verdict(completion.GIVEN_BACK, "its command was never started"))
        completion.take_item_from(state, slot, job, now)
    elif event.keeper_said == "interrupted":
        completion.lose_item(state, slot, f"its keeper on host {host} is gone", now, interrupted=True)
    elif event.keeper_said == "could not keep" and keeper.verb == "start":
        completion.lose_item(state, slot, f"host {host} could not keep it: its error output says why", now)
    elif event.keeper_said or event.lost:
        _adopt_later(state, slot, event.why, LATER_S if event.keeper_said == "could not keep" else SOON_S, now)
    else:
        return False
    return True


def _adopt_later(state: State, slot: Slot, why: str, seconds: float, now: float) -> None:
    job = slot.job
    assert job is not None
    what = f"job={job.pk}: runs on host {slot.host.name}, and no process is attached to it any more"
    state.log_message("warning", f"{what}{': ' if why else ''}{why}; it is adopted again as soon as possible")
    completion.forget(state, job, "it is adopted again", now)
    state.emit(FindDetached(seconds))
