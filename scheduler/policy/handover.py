"""What one program hands over to another that is executed in its place: the core's memory as a document, and back.

The process stays, with its children and all pipes; only what the core knows would be lost. The document is JSON of
explicit values, with a version. A reader takes that version and the one before, ignores keys that it does not know, and
has a value for each that is missing. What the database has is not in it: hosts, types, queues and quotas are read again
before an agent gets a line. Instants are those of the monotonic clock, which goes on.

To keep it small nothing may be under way between the core and its drivers but the work of agents: `hold` begins nothing
new, and `obstacle` says what is still to end. What agents have in hand goes on meanwhile, and so do one-parameter jobs
and rows that wait in lanes: they travel. A query with a key is run again for the rows that were not fetched. A query
without a key cannot be: its rows travel, when the last one is fetched; those of a long one are waited for.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from scheduler.model.config import Config
from scheduler.model.events_and_effects import FindDetached
from scheduler.model.states import NEVER, ST_FREE, ST_PREP, ST_READY, ST_RUNNING, QueryState
from scheduler.policy import completion
from scheduler.policy.agent_replies import ask_next
from scheduler.policy.capacity import HostState
from scheduler.policy.deadlines import PROGRESS, RECORD, ROOM, SHORTAGE
from scheduler.policy.dispatch import enqueue
from scheduler.policy.group_lease import let_go_detached
from scheduler.policy.handover_values import Snapshot, fields_of, item_of, item_snapshot
from scheduler.policy.job import Job, Prefetched, Verdict
from scheduler.policy.query_progress import JobQuery
from scheduler.policy.rates import Rates
from scheduler.policy.slots import PLAIN_FIELDS, Slot, timeouts_of
from scheduler.policy.state import State

VERSION: Final = 1
READ: Final = (VERSION,)  # and the one before, when there is one
CARRIED_BYTES: Final = 16 << 20  # of the rows of a query without a key that may travel

Document = dict[str, Any]


class UnreadableError(Exception):
    """The document is of a version that this program does not know."""


# ---- before the document is written


def hold(state: State, now: float) -> None:
    """Begin nothing new; give back what was claimed and waits for anything but an agent, at no cost."""
    state.hold(True)
    let_go_detached(state, now)  # the next program adopts them
    completion.give_back_all(state, completion.RESTART, now, _is_unadmitted)
    for job in state.jobs.values():
        if _may_be_fetched(state, job):
            state.fetch_more(job)


def release(state: State) -> None:
    """End `hold`: no other program takes over yet, or this is the one that has."""
    state.hold(False)
    if any(pool.kind.detached for pool in state.pools.values()):
        state.emit(FindDetached(0.0))
    for slot in state.slots.all:
        if slot.output.statements:
            ask_next(state, slot)


def give_back_unmovable(state: State, now: float) -> None:
    """Kill the jobs that no other process can continue, and give them back at no cost.

    These are commands, whose exit status only their parent can read, and queries with too many rows for the document.
    """
    for job in [job for job in state.jobs.values() if job.verdict is None]:
        query = job.query
        is_command = job.pool.is_exec and job.started and not job.pool.kind.detached
        if is_command or (query is not None and _is_too_long(job, query)):
            completion.kill_job(state, job, Verdict(completion.GIVEN_BACK, completion.RESTART), now)


def idle_slots(state: State) -> list[int]:
    """Return the slots whose agents wait for work, and have nothing in hand."""
    return [
        slot.number
        for slot in state.slots.all
        if slot.state == ST_READY and slot.job is None and not slot.prefetched
        and not (slot.output.statements or slot.output.is_statement_running or slot.is_starved)
    ]  # fmt: skip


def slots_that_came_up(state: State) -> set[int]:
    """Return the slots whose agents have said OK, and are not to end."""
    return {slot.number for slot in state.slots.all if slot.state in (ST_READY, ST_RUNNING) and not slot.is_starved}


def _is_unadmitted(job: Job) -> bool:
    return completion.is_untouched(job) and not job.lanes and job.pk not in job.pool.query_jobs


def _may_be_fetched(state: State, job: Job) -> bool:
    """Return whether the rest of a query without a key is to be fetched now, since it fits into the document."""
    query = job.query
    if query is None or query.state is not QueryState.OPEN or job.rules.key is not None or not query.fetched:
        return False
    return job.verdict is None and _rest_bytes(query) <= CARRIED_BYTES


def _rest_bytes(query: JobQuery) -> float:
    return (query.total - query.fetched) * query.line_bytes


def unfinished_query(state: State) -> Job | None:
    """Return a query without a key that has too many rows left for the document; it continues until they are fewer."""
    for job in state.jobs.values():
        if job.query is not None and job.verdict is None and _is_too_long(job, job.query):
            return job
    return None


def _is_too_long(job: Job, query: JobQuery) -> bool:
    if job.rules.key is not None or not query.fetched:
        return False
    is_open = query.state in (QueryState.OPEN, QueryState.FETCHING, QueryState.KEEPING)
    return is_open and _rest_bytes(query) > CARRIED_BYTES


def obstacle(state: State) -> str:
    """Return what is still under way, so that no other program can take over yet; empty if nothing is."""
    if state.attachments.is_busy:
        return "processes attached to detached jobs are ending"
    if state.is_receiving:
        return "claimed rows are on their way"
    for slot in state.slots.all:
        if why := _obstacle_of_slot(state, slot):
            return f"slot {slot.number}, agent {slot.pool.name}: {why}"
    for job in state.jobs.values():
        if job.query is not None and job.verdict is None and (why := _obstacle_of_query(job, job.query)):
            return f"job {job.pk}: {why}"
        if job.pool is not state.pools.get(job.pool.name):
            return f"job {job.pk}: its agent type is of a configuration of before"
        if _is_unadmitted(job) or job is state.suspect:
            return f"job {job.pk}: it is being read or marked"
    return ""


def _obstacle_of_slot(state: State, slot: Slot) -> str:
    if slot.state == ST_PREP:
        return "it is being started"
    if slot.output.is_statement_running:
        return "a statement of it is running"
    if slot.is_removed and slot.state > ST_FREE:
        return "it is of a configuration of before"
    if [job for job, *_ in slot.prefetched or () if state.jobs.get(job.pk) is not job]:
        return "it has a line of a job that is not in hand any more"
    return "its line is not sent yet" if slot.is_unsent else ""


def _obstacle_of_query(job: Job, query: JobQuery) -> str:
    if query.state in (QueryState.FETCHING, QueryState.KEEPING):
        return "rows of its query are being fetched"
    if query.state is QueryState.OPEN and job.rules.key is None and query.fetched:
        return "its query has no key, and rows are left"
    return ""


# ---- the document


def document(state: State, now: float) -> Document:
    """Return what another program needs to go on as this one."""
    hosts = [(name, state.hosts[name]) for name in state.config.hosts]
    return {
        "version": VERSION,
        "at": now,
        "until": state.serving_until,
        "filters": {name: dict(host.filters) for name, host in state.config.hosts.items()},
        "hosts": {name: _host(host) for name, host in hosts},
        "types": {name: state.pools[name].snapshot() for name in state.config.agents},
        "jobs": [job.snapshot() for job in state.jobs.values() if job.pool is state.pools.get(job.pool.name)],
        "lanes": _lanes(state),
        "second_tries": _second_tries(state),
        "slots": [None if slot.is_removed else _slot(state, slot) for slot in state.slots.all],
        "rates": {name: rates.snapshot() for name, rates in state.rated.items()},
        "counts": dict(state.counts),
    }  # fmt: skip


def _host(host: HostState) -> Document:
    return host.snapshot() | {"probe": host.probe.number if isinstance(host.probe, Slot) else None}


def _lanes(state: State) -> list[Any]:
    """Return what waits for agents, in the order in which it is served among equals."""
    jobs = [job for job in state.jobs.values() if job.pool is state.pools.get(job.pool.name)]
    lanes = [lane for job in jobs for lane in job.lanes.values() if lane.items]
    return [
        [lane.job.pk, lane.host, [item_snapshot(item) for item in lane.items]]
        for lane in sorted(lanes, key=lambda lane: lane.ticket)
    ]


def _second_tries(state: State) -> list[Any]:
    entries = [entry for pool in state.pools.values() for entry in pool.second_tries]
    return [[job.pk, item_snapshot(item), host] for job, item, host in entries]


def _slot(state: State, slot: Slot) -> Document:
    capture, prefetched = state.captures.get(slot.number), None
    if slot.prefetched is not None:
        held = [each for each in slot.prefetched if state.jobs.get(each[0].pk) is each[0]]
        prefetched = [[job.pk, item_snapshot(item), is_bound] for job, item, is_bound in held]
    return fields_of(slot, PLAIN_FIELDS) | {
        "type": slot.pool.name, "host": slot.host.name, "program": slot.program, "state": slot.state,
        "wanted": slot.wanted.name, "starves": slot.is_starved, "stays": slot.pace is not None and slot.pace.stays,
        "job": None if slot.job is None else slot.job.pk, "item": item_snapshot(slot.item),
        "prefetched": prefetched, "output": slot.output.snapshot(),
        "captured": None if capture is None else capture.snapshot(),
    }  # fmt: skip


# ---- restoring it


def filtered(config: Config, filters: Mapping[str, Mapping[str, Any]]) -> Config:
    """Return a configuration with the filters of hosts that commands had set, as a document has them."""
    hosts = dict(config.hosts)
    for name in filters.keys() & hosts.keys():
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in filters[name].items()
        }
        hosts[name] = attrs.evolve(hosts[name], **given)
    return attrs.evolve(config, hosts=hosts)


def restore(state: State, snapshot: Snapshot, now: float) -> None:
    """Continue as the program that wrote this; `state` is new, and has its configuration. Errors: UnreadableError.

    Nothing is assigned before the group is known to be ours still.
    """
    if snapshot.get("version") not in READ:
        known = ", ".join(map(str, READ))
        raise UnreadableError(f"the state has version {snapshot.get('version')}, this program reads {known}")
    for name, each in snapshot.get("types", {}).items():
        if (pool := state.pools.get(name)) is not None:
            pool.restore(each)
    state.refill(now)
    for each in snapshot.get("jobs", ()):
        job = state.jobs[each["pk"]] = Job.restored(each, state.pools[each["type"]])
        if job.query is not None:
            job.pool.add_query(job)
    _restore_slots(state, snapshot.get("slots", ()), now)
    _restore_hosts(state, snapshot.get("hosts", {}))
    for name, each in snapshot.get("types", {}).items():
        trial = each.get("canary") or {}
        if trial.get("slot") is not None and (canary := state.pools[name].canary) is not None:
            canary.set_slot(state.slots.all[trial["slot"]])
    for pk, host, items in snapshot.get("lanes", ()):
        enqueue(state, state.jobs[pk], [item_of(item) for item in items], host)
    for pk, item, host in snapshot.get("second_tries", ()):
        job = state.jobs[pk]
        job.pool.add_second_try(job, item_of(item), host)
    state.set_rates({name: Rates.restored(each) for name, each in snapshot.get("rates", {}).items()})
    state.counts.update(snapshot.get("counts", {}))
    state.set_lease(float(snapshot.get("until", -NEVER)))
    _set_deadlines(state, now)


def _restore_slots(state: State, slots: Sequence[Snapshot | None], now: float) -> None:
    """Replace the slots, each with its number; a number that is vacant stays so."""
    first = state.slots.all[0] if state.slots.all else None
    for pool in state.pools.values():
        pool.clear_slots()
    state.slots.clear()
    for each in slots:
        if each is None:
            assert first is not None
            state.slots.add_vacant(first.pool, first.host, first.timeouts, now)
            continue
        pool, host = state.pools[each["type"]], state.hosts[each["host"]]
        state.slots.append(pool, host, timeouts_of(pool.kind, state.timers), now)
        _restore_slot(state, state.slots.all[-1], each)


def _restore_slot(state: State, slot: Slot, snapshot: Snapshot) -> None:
    job = None if snapshot.get("job") is None else state.jobs[snapshot["job"]]
    item = None if snapshot.get("item") is None else item_of(snapshot["item"])
    prefetched: list[Prefetched] | None = None
    if snapshot.get("prefetched") is not None:
        prefetched = [(state.jobs[pk], item_of(each), bool(bound)) for pk, each, bound in snapshot["prefetched"]]
    slot.restore(snapshot, job, item, prefetched)
    if (canary := slot.pool.canary) is not None and (program := snapshot.get("program")):
        slot.set_record(canary.record_of(program))
    for held in (job, *(ahead for ahead, *_ in prefetched or ())):
        if held is not None:
            held.assigned_again()
    if job is not None:
        state.began_before(job, slot)
    if (captured := snapshot.get("captured")) is not None:
        state.begin_capture(slot)
        state.captures[slot.number].restore(captured)


def _restore_hosts(state: State, hosts: Mapping[str, Snapshot]) -> None:
    for name, each in hosts.items():
        if (host := state.hosts.get(name)) is not None:
            host.restore(each)
            if (number := each.get("probe")) is not None:
                host.begin_probe(state.slots.all[number])


def _set_deadlines(state: State, now: float) -> None:
    """Make due now what has no deadline in the snapshot."""
    state.set_job_deadlines()
    for name in (RECORD, PROGRESS, ROOM, SHORTAGE):
        state.deadlines.bring_forward(name, now)
    state.mark_dirty(*state.pools.values())
