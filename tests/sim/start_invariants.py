"""What must hold whenever an agent is started or gets work, or a job begins, in a simulation (invariants.py)."""

import re
from math import sqrt
from typing import TYPE_CHECKING, Final

from scheduler.model import events_and_effects as e
from scheduler.model.config import AUTO
from scheduler.model.states import FINISH, KEEP, RUNNING
from scheduler.policy.job import TRIED_ALONE, Job
from scheduler.policy.prefetch_window import LOOK_S, SLOW_S
from scheduler.policy.slots import Slot
from tests.sim import wait_invariants
from tests.sim.broken import broken
from tests.sim.rows import Row

if TYPE_CHECKING:
    from tests.sim.agents import Process
    from tests.sim.keepers import Attached, Entry
    from tests.sim.world import Sim

TRIED: Final = re.compile(r"agent type (\w+): .*program (\d+) is tried in one slot")
PASSED: Final = re.compile(
    r"agent type (\w+): the new program (\d+) passed its trial, (\d+) of (\d+) failed, "
    r"of the program in use (\d+) of (\d+)"
)
FEW_ITEMS: Final = 1  # that an agent finishes before it gets lines ahead
TOLERANCE_S: Final = 0.001


def work_begins_rightly(sim: "Sim", slot: Slot, job: Job, item: int) -> None:
    """An item goes to an agent: under the lease, of a row that is ours, at most once an attempt."""
    row = sim.database.rows[job.pk]
    only_under_the_lease(sim, job)
    work_begins_where_it_is_configured(sim, slot, job)
    wait_invariants.item_rates_are_kept(sim, slot)
    rescued_rows_are_marked(sim, row, job)
    suspects_are_tried_alone(sim, row, job)
    if job.query is None:
        nothing_begins_twice(sim, job)
        rates_are_kept(sim, slot, job)
    else:
        second_tries_are_alone(sim, slot, job, item)
    if job.query is None and slot.assigned_at > sim.memory.drained_at:
        broken("drain_starts_nothing", f"job {job.pk} begins")
    if job.host is not None and job.host != slot.host.name:
        broken("rows_keep_their_host", f"job {job.pk} for {job.host} begins on {slot.host.name}")


def rates_are_kept(sim: "Sim", slot: Slot, job: Job) -> None:
    """No interval has more starts of a queue than its rate limit says, in all nor of one submitter.

    A job whose line is sent ahead is given to its agent then; the slot says when the job before it was.
    """
    if (rates := sim.daemon.core.state.rated.get(job.queue)) is None:
        return
    limit, row = rates.limit, sim.database.rows[job.pk]
    given_at = slot.assigned_at if job is slot.job else sim.now
    for most, value in ((limit.rate, ""), (limit.each, f"={_attribute(row, limit.by)}")):
        starts = sim.memory.starts.setdefault((f"{sim.daemon.owner} {sim.memory.limits_set}", job.queue, value), [])
        starts.append(given_at)
        sim.memory.ahead[job.pk, job.attempt, value] = starts, given_at
        starts.sort()
        found = [(a, b) for a, b in zip(starts, starts[most:], strict=False) if b - a < limit.interval - TOLERANCE_S]
        if most and found:
            broken("rates_are_kept", f"queue {job.queue} {value}: more than {most} starts from {found[0]}")


def _attribute(row: Row, name: str) -> str:
    """Return the value of a row that a rate limit is by."""
    own = {"submitter": row.submitter, "host": row.host, "type": row.type, "": row.submitter}
    return own[name] if name in own else (row.variables or {}).get(name.removeprefix("data.")) or ""


def never_started(sim: "Sim", job: Job) -> None:
    """Count no start of a job whose line was sent ahead to an agent that died before it came to it."""
    for key in [key for key in sim.memory.ahead if key[:2] == (job.pk, job.attempt)]:
        starts, at = sim.memory.ahead.pop(key)
        if at in starts:
            starts.remove(at)


def work_begins_where_it_is_configured(sim: "Sim", slot: Slot, job: Job) -> None:
    """What a reload has taken away gets nothing more: types, hosts, types on hosts, slots."""
    config = sim.daemon.config
    hosts = config.hosts_of(job.pool.name) if job.pool.name in config.agents else ()
    if slot.host.name not in hosts or slot.is_removed or slot.pool is not job.pool:
        broken("work_begins_where_it_is_configured", f"job {job.pk} on host {slot.host.name}, slot {slot.number}")
    host, row = config.hosts[slot.host.name], sim.database.rows[job.pk]
    step, instant = sim.memory.filtered
    if step == sim.steps and slot.assigned_at < instant:
        return  # earlier in this turn, by the filters of then
    if (host.queues and row.queue not in host.queues) or not re.match(host.priorities, row.letter):
        broken("filters_hold", f"job {job.pk} of queue {row.queue}, priority {row.letter}, begins on {slot.host.name}")


def old_programs_get_nothing(sim: "Sim", process: "Process | Attached", slot: Slot) -> None:
    """An agent that would be started otherwise now gets no more lines; one that is dismissed had its line before."""
    if slot.wanted is FINISH:
        return
    if process.command != sim.daemon.config.agents[slot.pool.name].command:
        broken("old_programs_get_nothing", f"slot {slot.number} is still {process.command}")
    canary = slot.pool.canary
    if canary is not None and process.program and process.program not in canary.programs:
        broken("old_programs_get_nothing", f"slot {slot.number} is still program {process.program}")


def new_programs_have_one_slot(sim: "Sim", spawn: e.Spawn) -> None:
    """A program that is not in use is started in one slot at a time, on this machine, while it is on trial."""
    canary, name = sim.daemon.core.state.pools[spawn.type].canary, "new_programs_have_one_slot"
    if canary is None or not spawn.program or spawn.program == canary.used.program:
        return
    if sim.daemon.core.state.slots.all[spawn.slot].wanted is not KEEP:
        return  # the trial has ended since it was to be started: it is dismissed
    if not canary.is_on_trial or canary.new is None or canary.new.program != spawn.program:
        broken(name, f"slot {spawn.slot} starts program {spawn.program} of {spawn.type}, which is not on trial")
    slots = [slot for slot in sim.daemon.core.state.pools[spawn.type].slots if slot.record is canary.new]
    if [slot.number for slot in slots] != [spawn.slot]:  # those that it had before are finishing their last items
        broken(name, f"slots {[slot.number for slot in slots]} have program {spawn.program} of {spawn.type}")


def worse_programs_are_not_followed(sim: "Sim", told: str) -> None:
    """A new program that passes has failed no more items than chance allows: the expected number and two deviations."""
    if found := TRIED.search(told):
        sim.memory.failures[found[1], found[2]] = 0
    if found := PASSED.search(told):
        failed, items, before, of = map(int, found.groups()[2:])
        expected = before * items / of if of else 0.0
        seen = sim.memory.failures[found[1], found[2]]
        if max(failed, seen) > expected + 2 * sqrt(expected) + TOLERANCE_S:
            broken("worse_programs_are_not_followed", f"{told}; {seen} were seen to fail")


def lines_ahead_are_of_fast_agents(sim: "Sim", process: "Process | Attached", slot: Slot, lines: int) -> None:
    """Where that is left to us only an agent that is fast gets lines ahead, and while no other one is slow."""
    name, ahead = "lines_ahead_are_of_fast_agents", min(lines, len(slot.prefetched or ()))
    if not ahead or slot.pool.kind.window != AUTO or process.is_liar:
        return
    if process.finished < FEW_ITEMS or process.took > SLOW_S:
        broken(name, f"slot {slot.number} has done {process.finished} items, the last one in {process.took:g} s")
    others = [other for other in sim.daemon.processes.values() if other.is_of(slot.pool.name) and other.is_at_work]
    seen = SLOW_S + LOOK_S + TOLERANCE_S
    if slow := [other.slot for other in others if sim.now - other.begun_at > seen]:
        broken(name, f"slot {slot.number} has {ahead} lines ahead while slots {slow} are slow")
    waiting = slot.pool.singles + sum(job.waiting for job in slot.pool.query_jobs.values())
    waiting += sum(len(other.prefetched or ()) + 1 for other in slot.pool.slots)  # they may have got theirs since then
    if ahead * len(slot.pool.slots) > waiting:
        broken(name, f"slot {slot.number} has {ahead} lines ahead, {waiting} are left for {len(slot.pool.slots)} slots")


def only_under_the_lease(sim: "Sim", job: Job) -> None:
    """Work begins only while the group is ours by the database's clock."""
    if sim.database.group_owner != sim.daemon.owner or sim.now >= sim.database.lease_until:
        broken("only_under_the_lease", f"job {job.pk} begins while {sim.database.group_owner} has the group")


def rescued_rows_are_marked(sim: "Sim", row: Row, job: Job) -> None:
    """A row that begins is ours at this attempt, and running already if it was rescued before."""
    if row.was_stolen:
        return  # from whom, the daemon does not know yet
    if row.holder != sim.daemon.owner or row.attempt_in_hand != job.attempt:
        broken("rescued_rows_are_marked", f"job {job.pk} begins at attempt {job.attempt}; it is {row.holder}'s")
    if row.rescued and row.state != RUNNING:
        broken("rescued_rows_are_marked", f"job {job.pk} was rescued and begins while {row.state}")


def suspects_are_tried_alone(sim: "Sim", row: Row, job: Job) -> None:
    """Nothing begins that is not read, and of the rows of one owner one at most is tried alone."""
    if row.unreadable or job.rules.unread:
        broken("suspects_are_tried_alone", f"job {job.pk} begins, and was never read")
    alone = [each.pk for each in sim.database.hand.values() if each.text == TRIED_ALONE and each.holder == row.holder]
    if len(alone) > 1:
        broken("suspects_are_tried_alone", f"jobs {alone} are tried at the same time")


def nothing_begins_twice(sim: "Sim", job: Job) -> None:
    """I5: no (job, attempt) of one parameter begins twice."""
    if (job.pk, job.attempt) in sim.begun:
        broken("nothing_begins_twice", f"job {job.pk} attempt {job.attempt}")
    sim.begun.add((job.pk, job.attempt))


def commands_are_alone(sim: "Sim", entry: "Entry") -> None:
    """A detached command never begins beside another of its job, whatever became of its daemon."""
    if others := [each for each in sim.spools.live if each.pk == entry.pk]:
        told = ", ".join(f"{each.attempt} on {each.host}" for each in (*others, entry))
        broken("commands_are_alone", f"job {entry.pk} runs as attempts {told}")


def second_tries_are_alone(sim: "Sim", slot: Slot, job: Job, item: int) -> None:
    """An item is tried once, and once more alone in a fresh process; tries that were lost with their host are none."""
    key = job.pk, job.attempt, item
    tries = sim.tries[key] = sim.tries.get(key, 0) + 1
    if tries - sim.losses[key] > 2 or (tries > 1 and not (slot.is_second_try and slot.items == 0)):
        broken("second_tries_are_alone", f"job {job.pk} item {item}: try {tries}, {slot.items} items before")


def respawns_are_limited(sim: "Sim", slot: Slot) -> None:
    """F72: not more than so many respawns of agents that die as they start, in an interval."""
    timers, canary = sim.config.scheduler, slot.pool.canary
    programs = () if canary is None else canary.programs
    if sim.memory.programs.get(slot.number, programs) != programs:
        sim.memory.stillborn.pop(slot.number, None)  # another program may be tried at once
    sim.memory.programs[slot.number] = programs
    died = [born for born in sim.memory.stillborn.get(slot.number, ()) if sim.now - born < timers.respawn_interval]
    if len(died) > timers.respawn_count:
        broken("respawns_are_limited", f"slot {slot.number} is started again after {len(died)} deaths")
