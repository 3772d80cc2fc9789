"""Decides what is done when the program of an agent type is replaced, and runs the trial of a new one in one slot.

Without canary agents all agents of a replaced program are dismissed, and the next ones start the new one. With them
(`canary` of the type) one process at most runs the new program; what it does with its items is compared
(canary_verdict.py). All others run the program in use: those that run already are left alone, those that are started
are started from its copy. The process of a trial gets no lines ahead, so that each item is seen as it ends, and none is
taken from it.

The item with which a new program turns out worse, and one that it has in hand then and fails, is not lost to it: a
one-parameter job goes back to the queue at no cost, a row of a query gets one more try that counts as its first.

Hosts that are not this machine have files of their own, which nobody looks at: agents there are no part of a trial.
"""

from collections.abc import Mapping
from typing import Any, Final

from scheduler.model import events_and_effects as e
from scheduler.model import states as s
from scheduler.model.states import ProgramEvent, ProgramState
from scheduler.policy.canary_verdict import BY_COMMAND, Canary, Judgement
from scheduler.policy.job import Job, Pool
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

REPLACED: Final = "program replaced"
ON_TRIAL: Final = "program replaced: a new one is tried in its place"
WORSE: Final = "its program failed its trial"
TRIED_AGAIN: Final = "the new program of its type failed its trial with it: it is tried again by the one in use"


def replaced(state: State, event: e.Replaced, now: float) -> None:
    """End idle agents of a replaced program now, busy ones after their item; failed slots may start the new one."""
    pool = state.pools[event.type]
    state.log_message("info", f"the program of agent type {pool.name} was replaced")
    state.reset_failed_slots(pool, now)
    _dismiss_all(pool, now)


def found(state: State, event: e.ProgramFound, now: float) -> None:
    """Note which program the file of a type has: one that is new goes on trial."""
    pool = state.pools.get(event.type)
    if pool is None or not pool.kind.canary:
        return  # what was found is older than a reload
    if pool.canary is None:
        pool.set_canary(Canary(pool.kind.canary, event.program, event.copies, is_known=state.is_assigning))
        return
    pool.canary.set_copies(event.copies)
    _compare(state, pool, pool.canary, event.program, now)


def know(state: State, pool: Pool, known: Mapping[str, Any] | None, now: float) -> None:
    """Continue with the program that the last daemon of the group had in use, until the one in the file passes."""
    if pool.canary is None or pool.canary.is_known:
        return
    program, copies = pool.canary.in_file, pool.canary.copies
    pool.canary.set_known(True)
    if known is None or known["command"] != list(pool.kind.command):
        return
    canary = Canary(pool.kind.canary, str(known["used"]), copies, is_known=True)
    pool.set_canary(canary)
    is_held_back = known["state"] == ProgramState.HELD_BACK.name and program == known["new"]
    if not is_held_back or canary.used.program not in copies:
        _compare(state, pool, canary, program, now)
        return
    canary.fire(ProgramEvent.REPLACED)
    canary.begin(program)
    canary.fire(ProgramEvent.ROLLBACK)
    canary.hold_back(str(known["why"]))
    state.log_message("info", f"agent type {pool.name}: as before, {canary.text}")


def _compare(state: State, pool: Pool, canary: Canary, program: str, now: float) -> None:
    """Act on the program in the file of a type."""
    if program == canary.in_file:
        return
    if program == canary.used.program:
        canary.fire(ProgramEvent.RESTORED)
        canary.restore()
        state.log_message("info", f"agent type {pool.name}: its file has the program {program} again, which is in use")
        _dismiss_others(pool, canary, REPLACED, now)
        return
    canary.fire(ProgramEvent.REPLACED)
    _try(state, pool, canary, program, now)
    why = "there is no copy of that in use" if canary.used.program not in canary.copies else ""
    why = why or ("" if any(is_here(state, slot) for slot in pool.slots) else "none of its agents run on this machine")
    if why:
        state.log_message("warning", f"agent type {pool.name}: no trial of its new program: {why}")
        promote(state, pool, canary, ProgramEvent.PROMOTE, now)


def _try(state: State, pool: Pool, canary: Canary, program: str, now: float) -> None:
    """Begin the trial of a program."""
    canary.begin(program)
    used = canary.used.program
    what = f"program {program} is tried in one slot with {canary.most} items, all others stay with {used}"
    state.log_message("info", f"agent type {pool.name}: its program was replaced: {what}")
    if canary.slot is not None and canary.slot.program == program:
        canary.slot.set_record(canary.new)
    state.reset_failed_slots(pool, now)
    _dismiss_others(pool, canary, REPLACED, now)


def _dismiss_all(pool: Pool, now: float) -> None:
    for slot in pool.slots:
        if slot.state in (s.ST_READY, s.ST_RUNNING) and not pool.is_exec:
            slot.dismiss(REPLACED, now)


def _dismiss_others(pool: Pool, canary: Canary, why: str, now: float, dead: Slot | None = None) -> None:
    """Dismiss the agents whose program is not to run any more; but not the one whose process is `dead` already."""
    if pool.is_exec:
        return  # a command ends with its item
    for slot in pool.slots:
        is_other = slot.record is not None and slot.record.program not in canary.programs
        if is_other and slot is not dead and slot.state > s.ST_FREE and slot.wanted is s.KEEP:
            slot.dismiss(why, now)


# ---- the process of a trial


def is_here(state: State, slot: Slot) -> bool:
    """Return whether the processes of a slot are started from the files of this machine."""
    host = state.config.hosts.get(slot.host.name)
    return host is not None and host.transport == "local"


def choose_program(state: State, slot: Slot) -> str:
    """Return the program for a process that is being made; the first one during a trial gets the new program."""
    canary = slot.pool.canary
    if canary is None or not is_here(state, slot):
        return ""
    if canary.is_on_trial and canary.slot is None and canary.new is not None:
        canary.set_slot(slot)
        slot.set_record(canary.new)
        slot.have_no_lines_ahead()
    else:
        slot.set_record(canary.used)
    return slot.program


def begin_trial(state: State, pool: Pool, canary: Canary, now: float) -> None:
    """Start the process of a trial where agents run that would get all the work; or end one of these first.

    Without agents the first one that work needs is that of the trial, and so is each command.
    """
    if canary.slot is not None or not canary.is_on_trial or pool.is_exec:
        return
    here = [slot for slot in pool.slots if is_here(state, slot)]
    agents = [slot for slot in here if slot.state > s.ST_FREE]
    if not agents or any(slot.wanted is not s.KEEP for slot in agents):
        return
    free = [slot for slot in here if slot.state == s.ST_FREE]
    for slot in free:
        if slot.host.has_room(urgent=False) and not slot.host.is_kept_from(pool) and _may_start(state, slot, now):
            state.begin_process(slot, None, now)  # which no job waits for
            program = choose_program(state, slot)
            state.emit(e.Spawn(slot.number, slot.serial, pool.name, slot.host.name, program=program))
            return
    if not free:
        _make_place(agents, now)


def _may_start(state: State, slot: Slot, now: float) -> bool:
    return slot.host.start_from(slot.pool) <= now and state.may_start(slot.pool, now)


def _make_place(agents: list[Slot], now: float) -> None:
    """Dismiss the agent that is idle longest, or if none is, one that works: it ends after its item."""
    idle = [slot for slot in agents if slot.state == s.ST_READY]
    working = [slot for slot in agents if slot.state == s.ST_RUNNING]
    for slot in sorted(idle, key=lambda slot: slot.since)[:1] or working[:1]:
        slot.dismiss(ON_TRIAL, now)


def process_ended(state: State, slot: Slot, event: int, now: float) -> None:
    """Note the end of a process before its slot forgets it: one that never came up ends its trial."""
    canary, record = slot.pool.canary, slot.record
    if canary is None or record is None:
        return
    if not slot.is_up and slot.death_counts:
        start_failed(state, slot, slot.pool.reason or "it ended before its first OK", now)
    elif event == s.GONE and slot.state == s.ST_READY and slot.wanted is s.KEEP:
        record.item_failed()  # it died by itself, between two items
        _end_if_judged(state, slot, canary, now)
    if canary.slot is slot:
        canary.set_slot(None)


# ---- what programs do


def item_done(state: State, slot: Slot, seconds: float, now: float) -> None:
    """Note that the program of a slot did an item."""
    canary, record = slot.pool.canary, slot.record
    if canary is None or record is None or slot.is_second_try:
        return
    record.item_done(seconds)
    if record is canary.new:
        _end_if_judged(state, slot, canary, now)


def item_failed(state: State, slot: Slot, now: float) -> bool:
    """Note that the program of a slot failed its item; return whether the item is to be tried by the one in use."""
    canary, record = slot.pool.canary, slot.record
    if canary is None or record is None:
        return False
    if not slot.is_second_try:
        record.item_failed()
    if record is not canary.new:
        return False
    if not slot.is_second_try:
        _end_if_judged(state, slot, canary, now)
    return canary.state is ProgramState.HELD_BACK


def job_late(state: State, job: Job, now: float) -> None:
    """Count a one-parameter job that ran longer than its time limit as a failure of its program."""
    if job.pool.canary is not None and job.query is None:
        for slot in job.pool.slots:
            if slot.job is job:
                item_failed(state, slot, now)


def start_failed(state: State, slot: Slot, why: str, now: float) -> None:
    """Hold the new program back if this slot could not start it."""
    canary = slot.pool.canary
    if canary is not None and canary.is_on_trial and slot.record is canary.new:
        _hold_back(state, slot.pool, canary, ProgramEvent.WORSE, why, now, dead=slot)


def _end_if_judged(state: State, slot: Slot, canary: Canary, now: float) -> None:
    """End the trial of the program of a slot once it is decided."""
    if not canary.is_on_trial or slot.record is not canary.new:
        return
    judgement = canary.judgement
    if judgement is Judgement.PASSES:
        promote(state, slot.pool, canary, ProgramEvent.PASSED, now)
    elif judgement is not Judgement.OPEN:
        how = f"it is slower: {canary.figures}" if judgement is Judgement.SLOW else canary.figures
        _hold_back(state, slot.pool, canary, ProgramEvent.WORSE, how, now)


def promote(state: State, pool: Pool, canary: Canary, event: ProgramEvent, now: float) -> None:
    """Use the new program in all slots: those of the one before end after their items."""
    if canary.new is None or not canary.fire(event):
        return
    how = f"passed its trial, {canary.figures}" if event is ProgramEvent.PASSED else "is promoted"
    state.log_message("info", f"agent type {pool.name}: the new program {canary.new.program} {how}: all agents get it")
    canary.promote()
    state.reset_failed_slots(pool, now)
    _dismiss_others(pool, canary, REPLACED, now)
    for slot in pool.slots:
        if slot.record is None and slot.state in (s.ST_READY, s.ST_RUNNING) and not pool.is_exec:
            slot.dismiss(REPLACED, now)  # on another machine, where it may be replaced too


def _hold_back(
    state: State, pool: Pool, canary: Canary, event: ProgramEvent, why: str, now: float, dead: Slot | None = None
) -> None:
    """Use the new program no more: its process ends after its item, and the program in use stays."""
    if canary.new is None or not canary.fire(event):
        return
    canary.hold_back(why)
    new, used = canary.new.program, canary.used.program
    what = f"the new program {new} failed its trial: {why}" if event is ProgramEvent.WORSE else f"{new} is rolled back"
    level = "warning" if event is ProgramEvent.WORSE else "info"
    then = f"the one in use, {used}, stays; drover agent promote|canary {pool.name} overrules"
    state.log_message(level, f"agent type {pool.name}: {what}; {then}")
    _dismiss_others(pool, canary, WORSE, now, dead)
    state.mark_dirty(pool)


# ---- what people want, and another configuration


def command(state: State, name: str, wanted: ProgramEvent, now: float) -> tuple[bool, str]:
    """Try, promote or roll back the new program of a type; return whether that was done, and a text."""
    pool = state.pools.get(name)
    if pool is None or name not in state.config.agents:
        return False, f"no agent type {name}"
    canary = pool.canary
    if canary is None:
        how = "" if pool.kind.canary else f"; set canary of [agents.{name}]"
        return False, f"agent type {name} has no trials of new programs{how}"
    if canary.new is None:
        return False, f"agent type {name}: no other program is known than that in use, {canary.used.program}"
    new = canary.new.program
    if wanted is ProgramEvent.PROMOTE:
        promote(state, pool, canary, wanted, now)
        return True, f"agent type {name}: program {new} in all slots"
    if wanted is ProgramEvent.ROLLBACK:
        _hold_back(state, pool, canary, wanted, BY_COMMAND, now)
        return True, f"agent type {name}: program {canary.used.program} stays, {new} is held back"
    canary.fire(wanted)
    _try(state, pool, canary, new, now)
    return True, f"agent type {name}: program {new} is tried with {canary.most} items"


def reconfigured(state: State, pool: Pool, *, is_other_command: bool, now: float) -> None:
    """Apply another configuration of a type: without canary agents all agents run what the file has."""
    canary = pool.canary
    if canary is None:
        return
    if pool.kind.canary and not is_other_command:
        canary.set_most(pool.kind.canary)
        return
    pool.set_canary(None)
    for slot in pool.slots:
        is_other = slot.record is not None and slot.record.program != canary.in_file
        slot.set_record(None)
        if is_other and slot.state > s.ST_FREE and not pool.is_exec:
            slot.dismiss(REPLACED, now)


def forget_known(state: State) -> None:
    """Note that another daemon may decide about programs from now on."""
    for pool in state.pools.values():
        if pool.canary is not None:
            pool.canary.set_known(False)
