"""What the daemon shows: slots in drover.scheduler_status, types for drover.why, progress in the rows of jobs in hand.

Only what has changed since it was shown last is returned again, so that an idle daemon writes nothing.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from scheduler.model.counters import ENDED, ENDED_PLAINLY, RAN, WORKED, Counted
from scheduler.model.protocol import printable
from scheduler.model.states import (
    DIE,
    DONE,
    NEVER,
    NO_LIMIT,
    RUNNING,
    ST_FAIL,
    ST_FREE,
    ST_PREP,
    ST_READY,
    ST_RUNNING,
    STATE_NAMES,
)
from scheduler.policy import rows_in_hand
from scheduler.policy.capacity import HostState
from scheduler.policy.completion import progress
from scheduler.policy.deadlines import PROGRESS
from scheduler.policy.expansions import lacks_connection
from scheduler.policy.group_lease import missing_for_type
from scheduler.policy.job import Job, Pool
from scheduler.policy.query_progress import IN_PROGRESS, JobQuery
from scheduler.policy.slots import Slot
from scheduler.policy.state import State

PARAMETER_BYTES = 200  # of the line in hand


class Report:
    """Rows and lines that show the state of the core."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.refused: str | None = None  # statements that the database refuses, and its words

    def show_refused(self, text: str | None) -> None:
        """Show which statements the database refuses, or none."""
        self.refused = text

    def phase(self, standing: str) -> str:
        """Return what the daemon is doing; `standing` is what it is to its group."""
        if self._state.steps_down:
            return "stepping down"
        if self._state.stopping:
            return "stopping"
        return "draining" if self._state.draining else standing

    def all_slots(self, now: float) -> list[dict[str, Any]]:
        """Return the row of every slot, for the first show and the slow one."""
        return [_slot_row(slot, now) for slot in self._slots()]

    def agents_at_work(self, *, host: str | None = None, kind: str | None = None) -> int:
        """Return how many agents have something in hand, on this host and of this type if these are given."""
        busy = (slot for slot in self._state.slots.all if slot.job is not None)
        return sum(host in (None, slot.host.name) and kind in (None, slot.pool.name) for slot in busy)

    def _slots(self) -> list[Slot]:
        return [slot for slot in self._state.slots.all if not slot.is_vacant]

    @property
    def has_slot_changes(self) -> bool:
        """Return whether a slot may look other than it was shown."""
        return bool(self._state.slots.changed)

    @property
    def has_host_changes(self) -> bool:
        """Return whether a host looks other than it was shown."""
        return bool(self._state.hosts_changed)

    @property
    def has_rate_changes(self) -> bool:
        """Return whether jobs of a queue with a rate limit were started that are not written down."""
        rated = self._state.rated
        return bool(rated) and any(rates.has_changes for rates in rated.values())

    def take_changed_rates(self, now: float) -> list[dict[str, Any]]:
        """Return the starts of queues with a rate limit that are to be written down."""
        changed = {name: rates for name, rates in self._state.rated.items() if rates.has_changes}
        return [{"queue": name} | row for name, rates in changed.items() for row in rates.shown(now)]

    def show_rates_again(self, queues: set[str]) -> None:
        """Note that the starts of these queues are not written down after all."""
        for name in queues & self._state.rated.keys():
            self._state.rated[name].show_again()

    @property
    def vacant(self) -> list[int]:
        """The numbers of slots that are gone."""
        return self._state.slots.vacant

    def take_changed_slots(self, now: float) -> tuple[list[dict[str, Any]], list[int]]:
        """Return the rows of slots that look other than they were shown, and the numbers of those that are gone."""
        changed = self._state.slots.take_changed()
        rows = [_slot_row(slot, now) for slot in changed if not slot.is_vacant and slot.shown != slot.look]
        return rows, [slot.number for slot in changed if slot.is_vacant and slot.number in self.vacant]

    def scheduler_row(
        self, pid: int, name: str, age: float, statements: dict[str, Any], vitals: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the row of the scheduler, slot -1: its state, what is in hand, its statements, how it is."""
        held = {
            "jobs": len(self._state.jobs), "expansions": len(self._state.expanding), **self._state.counts,
            "shortages": [*self._shortages()],
        } | vitals  # fmt: skip
        return {
            "slot": -1,
            "state": ST_RUNNING if self._state.is_assigning else ST_FREE,
            "name": self.phase(name),
            "age": age,
            "pid": pid,
            "parameter": json.dumps(held | {"statements": statements}),
            "spawns": sum(slot.spawns for slot in self._state.slots.all),
            "items": sum(slot.total for slot in self._state.slots.all),
            "reason": self.refused,
        }

    def _shortages(self) -> Iterator[str]:
        yield from [_shortage(host) for host in self._state.hosts.values() if host.most < NO_LIMIT]
        for pool in self._state.pools.values():
            yield from _busy_programs(pool)

    def take_counted(self) -> Counted:
        """Return what was counted for drover metrics and stats since the last call."""
        counted = self._state.take_counted()
        for pool in self._state.pools.values():
            if pool.plain_ends:
                counted[ENDED, pool.name, DONE, "normal"] = sum(pool.plain_ends.values())
            for (host, bin), jobs in pool.plain_ends.items():
                counted[ENDED_PLAINLY, pool.name, host, str(bin)] = jobs
            if pool.worked_s:
                counted[WORKED, pool.name] = pool.worked_s
            counted.update(pool.ran.take(RAN, pool.name))
            pool.forget_counted()
        return counted

    def agent_rows(self, now: float) -> list[dict[str, Any]]:
        """Return, for each type, since and until when nothing of it is begun, and why its jobs wait."""
        return [self._agent_row(pool, now) for pool in self._state.pools.values()]

    def _agent_row(self, pool: Pool, now: float) -> dict[str, Any]:
        missing = missing_for_type(self._state, pool)
        since, until = (pool.blocked_since, pool.blocked_until) if pool.blocked_until else (None, None)
        if missing is not None:
            since, until = missing.since, missing.until
        reason = self._why_waiting(pool, now) if missing is None else missing.reason
        return {
            "type": pool.name,
            "since": None if since is None else now - since,
            "seconds": None if until is None else until - now,
            "reason": "the scheduler drains" if self._state.draining else reason,
            "queries_wait": any(lacks_connection(self._state, job) for job in pool.query_jobs.values()),
            "knows": pool.canary.is_known if pool.canary is not None else not pool.kind.canary,
            "item_wait": pool.item_wait(now),
            "trial": None if pool.canary is None else pool.canary.shown(pool.kind.command),
        }

    def take_changed_hosts(self, now: float) -> list[dict[str, Any]]:
        """Return the hosts that came up or went down: the next attempt, and why; and forget that they changed."""
        changed = self._state.take_changed_hosts()
        return [
            {
                "name": host.name,
                "seconds": None if host.is_up else max(host.down_until - now, 0.0),
                "reason": None if host.is_up else host.reason or "it is being reached",
            }
            for host in changed
        ]

    def show_hosts_again(self) -> None:
        """Show the hosts that have to be reached once more: what was shown of them may not have arrived."""
        remote = [name for name, host in self._state.config.hosts.items() if host.is_remote]
        self._state.show_hosts(*[self._state.hosts[name] for name in remote])

    def _why_waiting(self, pool: Pool, now: float) -> str | None:
        """Return what drover.why cannot see from the slots that are shown."""
        hosts = {slot.host for slot in pool.slots}
        if not any(host.enabled for host in hosts):
            return "every host of the type is disabled"
        if not any(host.is_open for host in hosts):
            return "; ".join(sorted(host.why_down for host in hosts))
        if all(host.spare(urgent=False) <= 0 and host.shortage for host in hosts):
            return "; ".join(sorted(_shortage(host) for host in hosts))
        if busy := [*_busy_programs(pool)]:
            return "; ".join(busy)
        if pool.waits_for_token:
            soon = "" if pool.item_wait(now) else "; the next begins within a second"
            return f"agent type {pool.name} has reached its item_rate of {pool.kind.item_rate:g} a second{soon}"
        is_up = any(slot.state in (ST_READY, ST_RUNNING) for slot in pool.slots)
        reason = None if is_up and not pool.blocked_until else pool.reason  # of agents that do not come up, if known
        return reason or (pool.canary.text if pool.canary is not None and pool.canary.is_held_back else None)

    def in_short(self) -> str:
        """Return what is in hand, in a few words."""
        alive = [slot.state for slot in self._state.slots.all if slot.state > ST_FREE]
        return f"{len(self._state.jobs)} jobs in hand, {len(alive)} agents, {alive.count(ST_RUNNING)} of them at work"

    def alive(self) -> str:
        """Return which agents have a process, in a few words; nothing if none has."""
        alive = [slot for slot in self._slots() if slot.state > ST_FREE]
        return ", ".join(f"agent {slot.pool.name} on host {slot.host.name}, process {slot.pid}" for slot in alive)

    def summary(self) -> list[str]:
        """Return a line of counts, and one for each slot with a process: for HUP, USR1 and the log."""
        counts = dict.fromkeys(STATE_NAMES[:-2], 0)
        for slot in self._slots():
            counts[STATE_NAMES[slot.state]] += 1
        total = " ".join(f"{name}={count}" for name, count in counts.items())
        lines = [f"jobs in hand: {len(self._state.jobs)}; slots: {total}"]
        for slot in self._state.slots.all:
            if slot.state > ST_FREE:
                job = f" job={slot.job.pk}{slot.job.trace}" if slot.job is not None else ""
                lines.append(
                    f"slot={slot.number} {STATE_NAMES[slot.state]} agent={slot.pool.name} host={slot.host.name} "
                    f"pid={slot.pid} items={slot.total}{job}"
                )
        return lines

    def overview(self) -> dict[str, Any]:
        """Return the answer to command `status`: jobs in hand, queues, slots of each type by state."""
        agents: dict[str, dict[str, int]] = {name: {} for name in self._state.pools}
        for slot in self._slots():
            counts, name = agents[slot.pool.name], STATE_NAMES[slot.state]
            counts[name] = counts.get(name, 0) + 1
        items = sum(slot.total for slot in self._state.slots.all)
        queues = {
            name: {"paused": queue.paused, "concurrency": queue.concurrency, "in_hand": queue.in_hand}
            for name, queue in self._state.queues.items()
        }
        return {
            "jobs": len(self._state.jobs), "expansions": len(self._state.expanding), "items": items,
            "agents": agents, "queues": queues,
        }  # fmt: skip

    def queries(self) -> list[str]:
        """Return the lines of each multi-SQL-query in hand and of its rows: for USR2."""
        return [*rows_in_hand.lines(self._state)]


def _slot_row(slot: Slot, now: float) -> dict[str, Any]:
    """Return the row of a slot, which counts as shown from now on. Ages in seconds."""
    slot.set_shown()
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
        "program": slot.record.program if slot.record is not None and slot.state > ST_FREE else None,
    }


def _busy_programs(pool: Pool) -> Iterator[str]:
    """Yield where the program of a type, for which work waits, is being written, and when it is tried again."""
    for host, busy in pool.busy.items() if pool.starving_since < NEVER else ():
        yield f"{busy.reason}; tried again on host {host} within {busy.pause:g} s"


def _shortage(host: HostState) -> str:
    again = f", tried again within {host.pause:g} s"
    return f"host {host.name} cannot start more than {host.most:g} agents{again}: {host.shortage}"


# ---- the rows of jobs in hand


def mark_running(state: State, now: float) -> None:
    """Show the rows as running that have been worked on for a moment, and where; a query has many agents."""
    for job, slot in state.take_begun_jobs(now):
        if state.jobs.get(job.pk) is not job or not job.started or job.verdict is not None:
            continue
        is_here = slot.job is job  # else it was put back, and has begun elsewhere
        if is_here and slot.state == ST_PREP:
            state.job_began(job, slot, now)  # it is looked at again a moment later
        elif job.query is not None and not job.marked:
            state.outbox.mark(job.mark(RUNNING, now))
        elif job.query is None and is_here and slot.where != job.where:  # it may be marked already, without a place
            state.outbox.mark(job.mark(RUNNING, now, slot.where))


def show_progress(state: State, now: float) -> None:
    """Save how far the queries in hand are, and jobs of whose lines agents say ItemsProcessed."""
    state.deadlines.set(PROGRESS, now + state.timers.progress_interval if state.jobs else NEVER)
    counted: Counter[int] = Counter()  # what agents have counted so far of the items that they work on, by job
    for slot in state.slots.all:
        if slot.counted and slot.job is not None:
            counted[slot.job.pk] += slot.counted
    for job in state.jobs.values():
        query, count = job.query, counted[job.pk]
        if job.verdict is not None or job.pk in job.pool.marking:
            continue
        if query is None:
            if count != job.shown:
                state.outbox.save(progress(job, now, IN_PROGRESS, count))
                job.show(count)
            continue
        if query.show(_phase(state, job, query)) or query.has_run:
            failures = query.take_failures()
            state.outbox.save(progress(job, now, query.shown, count), failures)
            job.show(count)
    for slot in state.slots.all:
        if slot.state == ST_RUNNING or (slot.shown is not None and slot.shown[0] != slot.state):
            state.slots.show_again(slot)


def _phase(state: State, job: Job, query: JobQuery) -> str:
    """Return what a query in hand waits for before it has rows, as far as agents have nothing to do with it."""
    if query.has_run or (not query.has_connection and not lacks_connection(state, job)):
        return IN_PROGRESS
    return "its query is running" if query.has_connection else "waits for an expansion connection"
