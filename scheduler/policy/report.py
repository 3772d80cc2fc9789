"""What the daemon shows of itself: slots for drover.scheduler_status, types for drover.why, progress of jobs in hand.

Only what has changed since it was shown last is returned again, so that an idle daemon writes nothing.
"""

import json
from typing import Any

from scheduler.model.protocol import printable
from scheduler.model.states import DIE, NEVER, ST_FAIL, ST_FREE, ST_READY, ST_RUNNING, STATE_NAMES
from scheduler.policy import serving
from scheduler.policy.assignment import spill
from scheduler.policy.entities import HostState, Job, Pool, Slot
from scheduler.policy.intake import has_connection
from scheduler.policy.outcome import progress
from scheduler.policy.query import IN_PROGRESS, Query
from scheduler.policy.serving import missing_for_type
from scheduler.policy.state import MARK_AFTER, State

PARAMETER_BYTES = 200  # of the line in hand
ATTEMPT_S = 60.0  # that a host counts as down beyond its next attempt, which takes its time


def all_slots(state: State) -> list[Slot]:
    """Give every slot, for the first show and the slow one."""
    return [slot for slot in state.slots.all if not slot.is_vacant]


def changed_slots(state: State) -> list[Slot]:
    """Give the slots that look other than they were shown, and forget that they do."""
    changed, state.slots.changed = state.slots.changed, set()
    return [slot for slot in changed if not slot.is_vacant and slot.shown != _as_shown(slot)]


def is_shown_otherwise(slot: Slot) -> bool:
    """Say whether a slot was shown in another state than it is in."""
    return isinstance(slot.shown, tuple) and slot.shown[0] != slot.state


def slot_row(slot: Slot, now: float) -> dict[str, Any]:
    """Give the row of a slot; it counts as shown. Ages in seconds."""
    slot.shown = _as_shown(slot)
    return {
        "slot": slot.number,
        "host": slot.host.name,
        "agent": slot.pool.name,
        "state": slot.state,
        "name": STATE_NAMES[slot.state],
        "age": max(0.0, now - (slot.assigned_at if slot.state == ST_RUNNING else slot.since)),
        "pid": slot.pid,
        "job": slot.job.pk if slot.job is not None else None,
        "parameter": printable(slot.item.line[:PARAMETER_BYTES].rstrip(b"\n")) if slot.item is not None else None,
        "spawns": slot.spawns,
        "items": slot.total,
        "reason": slot.reason if slot.wanted is DIE else slot.pool.reason if slot.state == ST_FAIL else None,
    }


def scheduler_row(
    state: State, pid: int, name: str, age: float, statements: dict[str, Any], vitals: dict[str, Any]
) -> dict[str, Any]:
    """Give the row of the scheduler, slot -1: its standing, what it holds, what it asked the database, how it is."""
    held = {
        "jobs": len(state.jobs), "expansions": len(state.expanding), "successes": state.successes,
        "placed": state.placed, "spilled": state.spilled,
        "shortages": [_shortage(host) for host in state.hosts.values() if host.most < NEVER],
    } | vitals  # fmt: skip
    return {
        "slot": -1,
        "state": ST_RUNNING if state.is_assigning else ST_FREE,
        "name": "draining" if state.draining else name,
        "age": age,
        "pid": pid,
        "parameter": json.dumps(held | {"statements": statements}),
        "spawns": sum(slot.spawns for slot in state.slots.all),
        "items": sum(slot.total for slot in state.slots.all),
        "reason": state.refused,
    }


def agent_rows(state: State, now: float) -> list[dict[str, Any]]:
    """Give, for each type, since and until when all its slots have failed, and why its jobs wait."""
    return [
        {
            "type": pool.name,
            **_held(state, pool, now),
            "reason": "the scheduler drains" if state.draining else _why_waiting(state, pool),
            "queries_wait": pool.waits_for_connection and not has_connection(state, pool),
        }
        for pool in state.pools.values()
    ]


def host_rows(state: State, now: float) -> list[dict[str, Any]]:
    """Give the hosts that can or cannot be reached, of late: until when not, and why; and forget that they changed."""
    changed, state.hosts_changed = state.hosts_changed, set()
    return [
        {
            "name": host.name,
            "seconds": None if host.is_up else max(host.down_until - now, 0.0) + ATTEMPT_S,
            "reason": None if host.is_up else host.reason or "it is being reached",
        }
        for host in changed
    ]


def tell_hosts_anew(state: State) -> None:
    """What was told of hosts that have to be reached may not have arrived."""
    state.hosts_changed.update(state.hosts[name] for name, host in state.config.hosts.items() if host.is_far)


def _held(state: State, pool: Pool, now: float) -> dict[str, float | None]:
    """Return since and until when nothing of a type is begun: it lacks a connection, or all its slots rest."""
    if (missing := missing_for_type(state, pool)) is not None:
        return {"since": now - missing.since, "seconds": missing.until - now}
    if pool.blocked_until:
        return {"since": now - pool.blocked_since, "seconds": pool.blocked_until - now}
    return {"since": None, "seconds": None}


def _why_waiting(state: State, pool: Pool) -> str | None:
    """Give what drover.why cannot see from the slots that are shown."""
    if (missing := missing_for_type(state, pool)) is not None:
        return missing.reason
    hosts = {slot.host for slot in pool.slots}
    if not any(host.enabled for host in hosts):
        return "every host of the type is disabled"
    if not any(host.is_open for host in hosts):
        return "; ".join(sorted(f"host {host.name} cannot be reached: {host.reason or '?'}" for host in hosts))
    if all(host.spare(urgent=False) <= 0 and host.shortage for host in hosts):
        return "; ".join(sorted(_shortage(host) for host in hosts))
    is_up = any(slot.state in (ST_READY, ST_RUNNING) for slot in pool.slots)
    return None if is_up and not pool.blocked_until else pool.reason  # why its agents do not come up, if it is known


def _shortage(host: HostState) -> str:
    again = f", tried again within {host.pause:g} s"
    return f"host {host.name} cannot start more than {host.most:g} agents{again}: {host.shortage}"


def in_short(state: State) -> str:
    """Give what is in hand, in a few words."""
    alive = [slot.state for slot in state.slots.all if slot.state > ST_FREE]
    return f"{len(state.jobs)} jobs in hand, {len(alive)} agents, {alive.count(ST_RUNNING)} of them at work"


def summary(state: State) -> list[str]:
    """Give a line of counts, and one for each slot with a process: for HUP, USR1 and the log (F55, F57)."""
    counts = dict.fromkeys(STATE_NAMES[:-2], 0)
    for slot in all_slots(state):
        counts[STATE_NAMES[slot.state]] += 1
    total = " ".join(f"{name}={count}" for name, count in counts.items())
    lines = [f"jobs in hand: {len(state.jobs)}; slots: {total}"]
    for slot in state.slots.all:
        if slot.state > ST_FREE:
            job = f" job={slot.job.pk}" if slot.job is not None else ""
            lines.append(
                f"slot={slot.number} {STATE_NAMES[slot.state]} agent={slot.pool.name} host={slot.host.name} "
                f"pid={slot.pid} items={slot.total}{job}"
            )
    return lines


def overview(state: State) -> dict[str, Any]:
    """Give what command `status` answers: what is in hand, queues, how many slots of each type are in which state."""
    agents: dict[str, dict[str, int]] = {name: {} for name in state.pools}
    for slot in all_slots(state):
        counts, name = agents[slot.pool.name], STATE_NAMES[slot.state]
        counts[name] = counts.get(name, 0) + 1
    items = sum(slot.total for slot in state.slots.all)
    queues = {
        name: {"paused": queue.paused, "concurrency": queue.concurrency, "in_hand": queue.in_hand}
        for name, queue in state.queues.items()
    }
    return {
        "jobs": len(state.jobs), "expansions": len(state.expanding), "items": items, "agents": agents, "queues": queues
    }  # fmt: skip


def queries(state: State) -> list[str]:
    """Give a line for each multi-SQL-query in hand (F56)."""
    return [
        f"job={job.pk} agent={job.pool.name} total={query.total} fetched={query.fetched} "
        f"waiting={query.waiting} in_flight={job.in_flight} done={job.done} failed={job.failed}"
        for job in state.jobs.values()
        if (query := job.query) is not None
    ]


def _as_shown(slot: Slot) -> tuple[int, int | None, int | None, int]:
    return (slot.state, slot.pid, slot.job.pk if slot.job is not None else None, slot.total)


def mark_running(state: State, now: float) -> None:
    """Rows that have been worked on for a moment are shown as running; a moment later those that are younger now."""
    begun = state.started_jobs
    while begun and begun[0][0] + MARK_AFTER <= now:
        _, job = begun.popleft()
        if state.jobs.get(job.pk) is job and job.started and not job.marked and job.verdict is None:
            job.marked = True
            state.outbox.marks[job.pk] = (job.pk, job.attempt)
    state.mark_at = now + MARK_AFTER if begun else NEVER


def show_progress(state: State, now: float) -> None:
    """Once a second: how far the queries in hand are, and lines of which agents say ItemsProcessed."""
    state.progress_at = now + state.timers.progress_interval if state.jobs else NEVER
    counted = _counted(state)
    for job in state.jobs.values():
        query, count = job.query, counted.get(job.pk, 0)
        if job.verdict is not None or job.pk in job.pool.marking:
            continue
        if query is None:
            if count != job.shown:
                state.outbox.save(progress(job, now, IN_PROGRESS, count), ())
            continue
        agent_said, query.agent_said = query.agent_said, _phase(state, job, query)
        if query.opened or query.agent_said != agent_said:
            failures, query.failures = query.failures, []
            state.outbox.save(progress(job, now, query.agent_said, count), failures)
    spill(state, now)
    serving.hold_if_full(state)
    for slot in state.slots.all:
        if slot.state == ST_RUNNING or is_shown_otherwise(slot):
            state.slots.changed.add(slot)


def _counted(state: State) -> dict[int, int]:
    """Return what agents have counted so far of the items that they work on, by job."""
    counted: dict[int, int] = {}
    for slot in state.slots.all:
        if slot.counted and slot.job is not None:
            counted[slot.job.pk] = counted.get(slot.job.pk, 0) + slot.counted
    return counted


def _phase(state: State, job: Job, query: Query) -> str:
    """Give what a query in hand waits for before it has rows, as far as agents have nothing to do with it."""
    if query.opened or (not query.opening and has_connection(state, job.pool)):
        return IN_PROGRESS
    return "its query is running" if query.opening else "waits for an expansion connection"
