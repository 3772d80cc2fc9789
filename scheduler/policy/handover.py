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
from dataclasses import asdict, fields
from typing import Any, Final

from scheduler.model.events import FindDetached
from scheduler.model.protocol import Item
from scheduler.model.queue_requests import PLAIN, Claim, ClaimRequest, ItemFailure, Rules
from scheduler.model.states import NEVER, ST_FREE, ST_PREP, ST_READY, ST_RUNNING, QueryState
from scheduler.policy import completion, processes
from scheduler.policy.agent_replies import ask_next
from scheduler.policy.canary import Canary
from scheduler.policy.deadlines import PROGRESS, RECORD, ROOM, SHORTAGE
from scheduler.policy.dispatch import enqueue
from scheduler.policy.job import JOB_KEPT, QUERY_KEPT, Job, JobQuery, KeyProgress, Pool, Prefetched, Verdict
from scheduler.policy.output import BYTES
from scheduler.policy.rates import RateLimit, Rates
from scheduler.policy.serving import let_go_detached
from scheduler.policy.slots import SLOT_KEPT, Slot, timeouts_of
from scheduler.policy.state import State

VERSION: Final = 1
READ: Final = (VERSION,)  # and the one before, when there is one
CARRIED_BYTES: Final = 16 << 20  # of the rows of a query without a key that may travel
HOST_KEPT: Final = (
    "is_up", "reason", "down_until", "yielded_at", "probe_at", "shortage", "most", "pause", "tried_again_at",
)  # fmt: skip
POOL_KEPT: Final = (
    "failed_starts", "blocked_since", "blocked_until", "reason", "rests_until", "plain_ends", "worked_s",
)  # fmt: skip

Document = dict[str, Any]


class UnreadableError(Exception):
    """The document is of a version that this program does not know."""


# ---- before it


def hold(state: State, now: float) -> None:
    """Begin nothing new; give back what was claimed and waits for anything but an agent, at no cost."""
    state.hold(True)
    let_go_detached(state, now)  # the next program adopts them
    completion.give_back_all(state, "released for restart", now, _is_unadmitted)
    for job in state.jobs.values():
        if _may_be_fetched(state, job):
            state.fetch_more(job)


def go_on(state: State) -> None:
    """Go on with everything: no other program takes over yet, or this is the one that has."""
    state.hold(False)
    if any(pool.kind.detached for pool in state.pools.values()):
        state.emit(FindDetached(0.0))
    for slot in state.slots.all:
        if slot.output.statements:
            ask_next(state, slot)


def give_up_unkept(state: State, now: float) -> None:
    """Give back what another process cannot go on with, at no cost, and kill what works on it.

    That are commands, whose exit status only their parent learns, and queries whose rows are too many to travel.
    """
    for job in [job for job in state.jobs.values() if job.verdict is None]:
        query = job.query
        is_command = job.pool.is_exec and job.started and not job.pool.kind.detached
        if is_command or (query is not None and _is_too_long(job, query)):
            completion.kill_job(state, job, Verdict(completion.GIVEN_BACK, "released for restart"), now)


def idle_slots(state: State) -> list[int]:
    """Return the slots whose agents wait for work, and have nothing in hand."""
    return [
        slot.number
        for slot in state.slots.all
        if slot.state == ST_READY and slot.job is None and not slot.prefetched
        and not (slot.output.statements or slot.output.is_statement_running or slot.is_starved)
    ]  # fmt: skip


def settled_slots(state: State) -> set[int]:
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
    """Return a query without a key whose rows are too many to travel; it is to go on until they are fewer."""
    for job in state.jobs.values():
        if job.query is not None and job.verdict is None and _is_too_long(job, job.query):
            return job
    return None


def _is_too_long(job: Job, query: JobQuery) -> bool:
    if job.rules.key is not None or not query.fetched:
        return False
    return query.state in (QueryState.OPEN, QueryState.FETCHING) and _rest_bytes(query) > CARRIED_BYTES


def obstacle(state: State) -> str:
    """Return what is still under way while nothing new is begun; nothing when another program can take over."""
    if state.keepers.is_busy:
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
        if _is_unadmitted(job) or job is state.trial:
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
    if query.state is QueryState.FETCHING:
        return "rows of its query are being fetched"
    if query.state is QueryState.OPEN and job.rules.key is None and query.fetched:
        return "its query has no key, and rows are left"
    return ""


def settle_output(state: State, now: float) -> None:
    """Let all that commands have printed be saved."""
    processes.store_output(state, now)


# ---- the document


def document(state: State, now: float) -> Document:
    """Return what another program needs to go on as this one."""
    hosts = [(name, state.hosts[name]) for name in state.config.hosts]
    return {
        "version": VERSION,
        "at": now,
        "until": state.serving_until,
        "filters": {name: _filters(host.filters) for name, host in state.config.hosts.items()},
        "hosts": {name: _kept(host, HOST_KEPT) | {"probe": _probe(host.probe)} for name, host in hosts},
        "types": {name: _type(state.pools[name]) for name in state.config.agents},
        "jobs": [_job(job) for job in state.jobs.values() if job.pool is state.pools.get(job.pool.name)],
        "lanes": _lanes(state),
        "second_tries": _second_tries(state),
        "slots": [None if slot.is_removed else _slot(state, slot) for slot in state.slots.all],
        "rates": {name: rates.kept() for name, rates in state.rated.items()},
        "counts": dict(state.counts),
    }  # fmt: skip


def _kept(thing: object, names: Sequence[str]) -> Document:
    return {name: getattr(thing, name) for name in names}


def _type(pool: Pool) -> Document:
    canary = pool.canary
    trial = None if canary is None else canary.kept() | {"slot": canary.slot and canary.slot.number}
    return _kept(pool, POOL_KEPT) | {"canary": trial}


def _filters(filters: Mapping[str, Any]) -> Document:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in filters.items()}


def _probe(probe: object) -> int | None:
    return probe.number if isinstance(probe, Slot) else None


def _item(item: Item | None) -> list[Any] | None:
    return (
        None if item is None else [_text(item.line), item.number, _text(item.key), [_text(cell) for cell in item.row]]
    )


def _text(cell: bytes | None) -> str | None:
    return None if cell is None else cell.decode(BYTES)


def _job(job: Job) -> Document:
    kept = {name: value for name in JOB_KEPT if (value := getattr(job, name)) != getattr(Job, name, None)}
    verdict = job.verdict
    return kept | {
        "is_recorded": job.is_recorded, "pk": job.pk, "attempt": job.attempt, "args": _text(job.args),
        "rank": _text(job.rank), "type": job.pool.name, "queue": job.queue, "host": job.host, "since": job.since,
        "rules": _rules(job.rules), "where": job.where and list(job.where),
        "verdict": None if verdict is None else [verdict.state, verdict.text, verdict.delay, verdict.kills],
        "query": None if job.query is None else _query(job, job.query),
    }  # fmt: skip


def _rules(rules: Rules) -> Document:
    return {each.name: value for each in fields(Rules) if (value := getattr(rules, each.name)) != each.default}


def _query(job: Job, query: JobQuery) -> Document:
    return _kept(query, QUERY_KEPT) | {
        "is_over": query.state is QueryState.EXHAUSTED,
        "names": [_text(name) for name in job.names],
        "last_key": _text(query.last_key),
        "progress": None if query.progress is None else query.progress.kept(),
        "second_tries": [_item(item) for item in query.second_tries],
        "spared": sorted(query.spared),
        "failures": [asdict(failure) for failure in query.failures],
    }


def _lanes(state: State) -> list[Any]:
    """Return what waits for agents, in the order in which it is served among equals."""
    jobs = [job for job in state.jobs.values() if job.pool is state.pools.get(job.pool.name)]
    lanes = [lane for job in jobs for lane in job.lanes.values() if lane.items]
    return [
        [lane.job.pk, lane.host, [_item(item) for item in lane.items]]
        for lane in sorted(lanes, key=lambda lane: lane.ticket)
    ]


def _second_tries(state: State) -> list[Any]:
    entries = [entry for pool in state.pools.values() for entry in pool.second_tries]
    return [[job.pk, _item(item), host] for job, item, host in entries]


def _slot(state: State, slot: Slot) -> Document:
    capture, prefetched = state.captures.get(slot.number), None
    if slot.prefetched is not None:
        prefetched = [each for each in slot.prefetched if state.jobs.get(each[0].pk) is each[0]]
    return _kept(slot, SLOT_KEPT) | {
        "type": slot.pool.name, "host": slot.host.name, "program": slot.program, "state": slot.state,
        "wanted": slot.wanted.name,
        "starves": slot.is_starved, "stays": slot.pace is not None and slot.pace.stays,
        "job": None if slot.job is None else slot.job.pk, "item": _item(slot.item),
        "prefetched": None if prefetched is None else [[job.pk, _item(item), bound] for job, item, bound in prefetched],
        "output": slot.output.kept(), "captured": None if capture is None else capture.kept(),
    }  # fmt: skip


# ---- and back


def restore(state: State, given: Mapping[str, Any], now: float) -> None:
    """Go on as the program that has written this; `state` is new, and has its configuration. Errors: UnreadableError.

    Nothing is assigned before the group is known to be ours still.
    """
    if given.get("version") not in READ:
        known = ", ".join(map(str, READ))
        raise UnreadableError(f"the state has version {given.get('version')}, this program reads {known}")
    for name, kept in given.get("types", {}).items():
        if (pool := state.pools.get(name)) is not None:
            _set(pool, kept, POOL_KEPT)
            _restore_trial(pool, kept.get("canary"))
    for kept in given.get("jobs", ()):
        _restore_job(state, kept)
    _restore_slots(state, given.get("slots", ()), now)
    _restore_hosts(state, given.get("hosts", {}))
    for name, kept in given.get("types", {}).items():
        if (trial := kept.get("canary")) is not None and trial.get("slot") is not None:
            _set_trial_slot(state.pools[name], state.slots.all[trial["slot"]])
    for pk, host, items in given.get("lanes", ()):
        enqueue(state, state.jobs[pk], [_read_item(item) for item in items], host)
    for pk, item, host in given.get("second_tries", ()):
        job = state.jobs[pk]
        job.pool.add_second_try(job, _read_item(item), host)
    state.set_rates({name: _read_rates(kept) for name, kept in given.get("rates", {}).items()})
    state.counts.update(given.get("counts", {}))
    state.set_lease(float(given.get("until", -NEVER)))
    _set_deadlines(state, now)


def _restore_trial(pool: Pool, kept: Mapping[str, Any] | None) -> None:
    if kept is not None and pool.kind.canary:
        canary = Canary(pool.kind.canary, kept["used"]["program"], is_known=bool(kept["is_known"]))
        canary.go_on(kept)
        pool.set_canary(canary)


def _set_trial_slot(pool: Pool, slot: Slot) -> None:
    if pool.canary is not None:
        pool.canary.set_slot(slot)


def _set(thing: object, kept: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name in kept:
            setattr(thing, name, kept[name])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode(BYTES)


def _read_item(kept: Sequence[Any]) -> Item:
    line, number, key, row = kept
    return Item(line.encode(BYTES), int(number), _bytes(key), tuple(map(_bytes, row)))


def _read_rates(kept: Mapping[str, Any]) -> Rates:
    rates = Rates(RateLimit(**kept["limit"]))
    rates.go_on(kept)
    return rates


def _restore_job(state: State, kept: Mapping[str, Any]) -> None:
    pool = state.pools[kept["type"]]
    known = {each.name for each in fields(Rules)}
    rules = Rules(**{name: value for name, value in kept.get("rules", {}).items() if name in known})
    request = ClaimRequest(pool.name, kept["queue"], kept.get("host") or "", False, 1)
    claim = Claim(
        kept["pk"], kept["attempt"], kept["args"].encode(BYTES), kept["rank"].encode(BYTES), request,
        PLAIN if rules == PLAIN else rules,
    )  # fmt: skip
    state.jobs[claim.pk] = job = Job(claim, pool, float(kept["since"]))
    where = kept.get("where")
    job.go_on(kept, None if where is None else (where[0], where[1], where[2]))
    if (verdict := kept.get("verdict")) is not None:
        job.set_verdict(Verdict(*verdict))
    if job.query is not None:
        _restore_query(job, job.query, kept["query"])
        pool.add_query(job)


def _restore_query(job: Job, query: JobQuery, kept: Mapping[str, Any]) -> None:
    query.go_on(kept, bool(kept["is_over"]))
    job.set_columns(tuple(name.encode(BYTES) for name in kept.get("names", ())))
    query.last_key = _bytes(kept.get("last_key"))
    if (progress := kept.get("progress")) is not None:
        query.progress = KeyProgress(progress)
        query.progress.go_on(progress)
    query.second_tries = [_read_item(item) for item in kept.get("second_tries", ())]
    query.spared = set(kept.get("spared", ()))
    query.failures = [ItemFailure(**failure) for failure in kept.get("failures", ())]


def _restore_slots(state: State, given: Sequence[Mapping[str, Any] | None], now: float) -> None:
    """Replace the slots, each with its number; a number that is vacant stays so."""
    first = state.slots.all[0] if state.slots.all else None
    for pool in state.pools.values():
        pool.clear_slots()
    state.slots.clear()
    for kept in given:
        if kept is None:
            assert first is not None
            state.slots.add_vacant(first.pool, first.host, first.timeouts, now)
            continue
        pool, host = state.pools[kept["type"]], state.hosts[kept["host"]]
        state.slots.append(pool, host, timeouts_of(pool.kind, state.timers), now)
        _restore_slot(state, state.slots.all[-1], kept)


def _restore_slot(state: State, slot: Slot, kept: Mapping[str, Any]) -> None:
    job = None if kept.get("job") is None else state.jobs[kept["job"]]
    item = None if kept.get("item") is None else _read_item(kept["item"])
    prefetched: list[Prefetched] | None = None
    if kept.get("prefetched") is not None:
        prefetched = [(state.jobs[pk], _read_item(each), bool(bound)) for pk, each, bound in kept["prefetched"]]
    slot.go_on(kept, job, item, prefetched)
    if (canary := slot.pool.canary) is not None and (program := kept.get("program")):
        slot.set_record(canary.record_of(program))
    for each in (job, *(ahead for ahead, *_ in prefetched or ())):
        if each is not None:
            each.assigned_again()
    if job is not None:
        state.began_before(job, slot)
    if (captured := kept.get("captured")) is not None:
        state.begin_capture(slot)
        state.captures[slot.number].go_on(captured)


def _restore_hosts(state: State, given: Mapping[str, Mapping[str, Any]]) -> None:
    for name, kept in given.items():
        if (host := state.hosts.get(name)) is not None:
            _set(host, kept, HOST_KEPT)
            if (number := kept.get("probe")) is not None:
                host.probe = state.slots.all[number]
            host.refresh()


def _set_deadlines(state: State, now: float) -> None:
    """Set what is due now, or is known to be due at some instant."""
    state.set_job_deadlines()
    for name in (RECORD, PROGRESS, ROOM):
        state.deadlines.bring_forward(name, now)
    again = min((host.tried_again_at for host in state.hosts.values() if host.most < NEVER), default=NEVER)
    state.deadlines.set(SHORTAGE, again)
    state.mark_dirty(*state.pools.values())
