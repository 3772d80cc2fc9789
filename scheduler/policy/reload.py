"""Going on with another configuration: what it adds is there at once, what it drops ends as its work does.

The old one and the new are compared: host by host, type by type, and for each type the slots on each of its hosts. A
process knows only what it was started with. Where that is another now, or where its slot is to go, it is dismissed: it
ends at once if it is idle, else after its item. Nothing is killed at work. A slot that goes is of its type no more from
that moment on, and its number is another's only when its process is dead. A type whose kind has changed is another type
of the same name. What has changed in the file wins over what commands have changed in the tables.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.protocol import Item
from scheduler.model.states import BLOCKED, NEVER
from scheduler.policy import completion, detached_jobs, group_lease, program_rollout
from scheduler.policy.agent_pool import DISABLED
from scheduler.policy.capacity import QueueState
from scheduler.policy.deadlines import PROGRESS
from scheduler.policy.dispatch import enqueue, stop_starving
from scheduler.policy.job import Job, Pool, Verdict
from scheduler.policy.rates import RateLimit, Rates
from scheduler.policy.run_queue import Placement
from scheduler.policy.slots import Slot, timeouts_of
from scheduler.policy.state import State

STARTED_WITH: Final = frozenset(
    ("command", "cwd", "env", "pass_env", "limits", "database", "user")
)  # of a type: processes
REACHED_BY: Final = frozenset(("transport", "address", "user", "identity", "known_hosts", "command"))  # of a host
FIXED: Final = (  # of the scheduler: what connections, lease and log were made with, until they are made again
    "group", "lease", "lease_renewal", "rescan", "poll_interval", "statement_limit", "lock_limit", "reconnect_max",
    "hang_limit", "reexec", "reexec_limit", "keep_agents", "ready_file", "log_level", "log_format", "log_file",
    "log_also",
)  # fmt: skip


def within_reach(old: Config, wanted: Config) -> Config:
    """Return the configuration to go on with: what only a new start can change stays as it is."""
    kept = {name: getattr(old.scheduler, name) for name in FIXED}
    return attrs.evolve(wanted, database=old.database, scheduler=attrs.evolve(wanted.scheduler, **kept))


def changes(old: Config, wanted: Config) -> str:
    """Return one line about what changes, and which changes take effect only when the daemon is started again."""
    new = within_reach(old, wanted)
    parts = []
    for title in ("hosts", "agents", "queues", "schedules"):
        before, after = getattr(old, title), getattr(new, title)
        words = [f"+{name}" for name in after if name not in before]
        words += [f"-{name}" for name in before if name not in after]
        words += [told for name in after if (told := _keys_told(name, before.get(name, after[name]), after[name]))]
        if words:
            parts.append(f"{title}: {' '.join(words)}")
    if told := _keys_told("scheduler", old.scheduler, new.scheduler):
        parts.append(told)
    late = [f"database.{key}" for key in _differences(new.database, wanted.database)]
    late += [f"scheduler.{key}" for key in _differences(new.scheduler, wanted.scheduler)]
    text = "; ".join(parts) or "nothing has changed"
    return f"{text}; not before a restart: {', '.join(late)}" if late else text


def _keys_told(name: str, old: "attrs.AttrsInstance", new: "attrs.AttrsInstance") -> str:
    keys = _differences(old, new)
    return f"{name}({', '.join(keys)})" if keys else ""


def _differences(old: "attrs.AttrsInstance", new: "attrs.AttrsInstance") -> list[str]:
    """Return the keys of two tables of the same kind whose values differ."""
    names = [each.name for each in attrs.fields(type(old))]
    return [name for name in names if getattr(old, name) != getattr(new, name)]


# ---- what changes


def _merged(before: object, after: object, current: Mapping[str, Any]) -> dict[str, Any]:
    """Return the current value of each of these keys, or that of the file, which wins if it has changed there."""
    return {
        key: value if before is not None and getattr(before, key) == getattr(after, key) else getattr(after, key)
        for key, value in current.items()
    }


def reloaded(state: State, event: e.Reloaded, now: float) -> None:
    """Apply another configuration; a filter that a command has set stays while the file says no other."""
    hosts = {}
    for name, host in event.config.hosts.items():
        filters = state.config.hosts.get(name, host).filters
        hosts[name] = attrs.evolve(host, **_merged(state.file_hosts.get(name), host, filters))
    state.set_file(event.config)
    for pool in state.pools.values():
        state.reset_failed_slots(pool, now)
    _go_on(state, attrs.evolve(event.config, hosts=hosts), now)


def tables_read(state: State, event: e.TablesRead, now: float) -> None:
    """Follow the tables as they are now; a host that takes other jobs than before makes another configuration."""
    hosts = dict(state.config.hosts)
    for row in event.hosts:
        filters = {"types": row["types"], "queues": tuple(row["queues"] or ()), "priorities": row["priorities"]}
        if row["name"] in hosts and hosts[row["name"]].filters != filters:
            try:
                hosts[row["name"]] = attrs.evolve(hosts[row["name"]], **filters)
            except ValueError as mistake:  # no command wrote that
                state.log_message(
                    "error", f"host {row['name']}: a filter in drover.host {mistake}; it takes what it took"
                )
    if hosts != state.config.hosts:
        _go_on(state, attrs.evolve(state.config, hosts=hosts), now)
    _follow_tables(state, event, now)


def _go_on(state: State, new: Config, now: float) -> None:
    old = state.config
    state.set_config(new)
    for name, host in new.hosts.items():
        _take_host(state, name, old.hosts.get(name), host)
    for name in old.hosts.keys() - new.hosts.keys():
        state.hosts[name].configure(enabled=False)
    for name in {**old.agents, **new.agents}:
        _take_type(state, name, old, new, now)
    group_lease.hold_types(state)
    detached_jobs.leave_other_types(state, now)
    for job in list(state.jobs.values()):
        _find_another_place(state, job, now)
    for slot in state.slots.all:
        slot.set_timeouts(timeouts_of(slot.pool.kind, state.timers))
    if state.deadlines.at[PROGRESS] != NEVER:
        state.deadlines.bring_forward(PROGRESS, now + state.timers.progress_interval)
    state.wake_all()


def _take_host(state: State, name: str, before: Host | None, host: Host) -> None:
    """Add a host, or change it; one that was removed before may still have agents."""
    host_state = state.add_host(name, host)
    if before is None or not REACHED_BY.isdisjoint(_differences(before, host)):
        host_state.set_up(not host.is_remote)
        state.show_hosts(host_state)
    host_state.configure(
        **_merged(before, host, {"max": host_state.max, "urgent": host_state.urgent, "enabled": host_state.enabled})
    )


def _take_type(state: State, name: str, old: Config, new: Config, now: float) -> None:
    """Remove, add, change or replace a type. The Pool of one that is removed stays, for claims."""
    before, kind, pool = old.agents.get(name), new.agents.get(name), state.pools.get(name)
    if pool is not None and before is not None and kind is not None and before.kind == kind.kind:
        _enable(state, pool, _merged(before, kind, {"enabled": pool.enabled})["enabled"], now)
        pool.set_kind(kind)
        state.refill(now)  # another rate of items, or none, is for those that wait too
        state.mark_dirty(pool)
        _dismiss_old_processes(state, pool, before, old, now)
    else:
        was_enabled = pool is not None and pool.enabled
        if pool is not None and before is not None:
            stop_starving(state, pool)
            pool.set_may_begin(enabled=False)
            for slot in list(pool.slots):
                state.slots.remove(slot, "agent type not configured any more", now)
        if kind is None:
            return
        pool = state.add_pool(name, kind, _merged(before, kind, {"enabled": was_enabled})["enabled"])
    hosts = {host: new.hosts[host] for host in new.hosts_of(name)}
    is_other_turn = before is not None and before.fair != kind.fair
    are_other_queues = is_other_turn or not hosts or pool.queues.filters is not None
    if are_other_queues or any(host.is_selective for host in hosts.values()):
        pool.queues.filter(hosts)
    _fit_slots(state, pool, tuple(hosts), now)
    if are_other_queues or pool.queues.filters is not None:
        _sort_lanes(state, pool)
    pool.unbind_second_tries()
    for slot in pool.slots:
        slot.find_run_queues()


def _dismiss_old_processes(state: State, pool: Pool, before: AgentType, old: Config, now: float) -> None:
    """End the processes that would be started otherwise now."""
    hosts, is_other = state.config.hosts, not STARTED_WITH.isdisjoint(_differences(before, pool.kind))
    kept = [name for name in hosts if name in old.hosts]
    moved = {name for name in kept if not REACHED_BY.isdisjoint(_differences(old.hosts[name], hosts[name]))}
    for slot in pool.slots:
        if is_other or slot.host.name in moved:
            slot.dismiss("its configuration has changed", now)
    program_rollout.reconfigured(state, pool, is_other_command=is_other, now=now)


def _fit_slots(state: State, pool: Pool, hosts: Sequence[str], now: float) -> None:
    """Add or remove slots of a type on its hosts; those that work are the last to be removed."""
    slots: dict[str, list[Slot]] = {name: [] for name in (*pool.free, *hosts)}
    for slot in pool.slots:
        slots[slot.host.name].append(slot)
    for name, here in slots.items():
        if name not in hosts:
            stop_starving(state, pool)
            for slot in here:
                slot.unbind()  # a second try may be anywhere
                state.slots.remove(slot, f"agent type not configured on host {name} any more", now)
            pool.remove_host(name)
            continue
        here.sort(key=lambda slot: (slot.state, -slot.number))
        for slot in here[: max(0, len(here) - pool.kind.slots)]:
            state.slots.remove(slot, "fewer slots are configured", now)
        state.add_slots(pool, name, pool.kind.slots - len(here), now)
    state.unblock(pool)


def _sort_lanes(state: State, pool: Pool) -> None:
    """Let what waits for any host wait where the filters of now say."""
    lanes = [lane for job in state.jobs.values() if job.pool is pool and (lane := job.lanes.get(None)) is not None]
    for lane in sorted(lanes, key=lambda lane: lane.ticket):
        if lane.items:
            pool.queues.of(lane.job, None).add(lane, lane.ticket)


def _find_another_place(state: State, job: Job, now: float) -> None:
    """Let rows whose host is removed go anywhere; give a job back whose own host or type is."""
    pool, query = job.pool, job.query
    moved: list[Item] = []
    for host in [host for host in job.lanes if host is not None and not pool.queues.takes(job, host)]:
        if host in pool.queues.by_host:
            pool.queues.by_host[host].drop(job.lanes[host])
        moved += job.take_lane(host)
    is_served = state.pools[pool.name] is pool and pool.name in state.config.agents
    if is_served and pool.queues.has_place(job):
        if moved:
            enqueue(state, job, moved, None)
    elif job.verdict is None and (query is not None or completion.is_untouched(job)):
        completion.give_back(state, job, "its agent type or its host is not configured any more", now)


def _follow_tables(state: State, event: e.TablesRead, now: float) -> None:
    """Follow queues, hosts, types and placements as their tables have them now."""
    in_hand = Counter(job.queue for job in state.jobs.values())
    queues = [
        QueueState(
            row["name"], row["concurrency"], row["paused"], in_hand[row["name"]], row["reserved"],
            _rates(state, row, now),
        )
        for row in event.queues
    ]  # fmt: skip
    state.set_tables(queues, Placement(state.hosts, event.placements))
    _follow_quotas(state, event, now)
    closed = {queue.name for queue in queues if queue.is_over}
    completion.give_back_all(
        state, "the queue takes no more", now, lambda job: job.queue in closed and completion.is_untouched(job)
    )
    for row in event.hosts:
        if row["name"] in state.config.hosts:  # what is told may be older than a reload
            host = state.hosts[row["name"]]
            host.configure(max=row["max"], urgent=row["urgent"], enabled=row["enabled"])
    for row in event.types:
        if row["type"] in state.config.agents:
            _enable(state, state.pools[row["type"]], row["enabled"], now)
            program_rollout.know(state, state.pools[row["type"]], row.get("trial"), now)
    state.wake_all()


def _follow_quotas(state: State, event: e.TablesRead, now: float) -> None:
    """Go by the quotas of now; jobs that are over one and have not begun are blocked, the others left alone."""
    if not event.quotas and not state.quotas.all:
        return
    for job, over in state.quotas.set(event.quotas, state.jobs.values()):
        if over is None:
            completion.give_back(state, job, "claimed before there were quotas", now)
        else:
            completion.stop_job(state, job, Verdict(BLOCKED, over), now)
    for pool in state.pools.values():
        pool.set_counted(bool(event.quotas))


def _rates(state: State, row: Mapping[str, Any], now: float) -> Rates | None:
    """Return the rate limits of a queue with what was started; before we served, as the table says."""
    if not row.get("rate"):
        return None
    limit = RateLimit(**row["rate"])
    if (rates := state.rated.get(row["name"])) is None:
        rates = Rates(limit)
        for job in state.jobs.values():
            if job.queue == row["name"] and job.started:
                rates.began(job.pk, now)
    rates.set_limit(limit)
    if not rates.is_known:
        rates.took_over(row.get("starts") or {}, now)
    return rates


def _enable(state: State, pool: Pool, enabled: bool, now: float) -> None:
    """Enable a type, or disable it: jobs that have not begun go back, agents without an item end."""
    if pool.enabled and not enabled:
        pool.set_may_begin(enabled=False)
        stop_starving(state, pool)
        completion.give_back_all(state, DISABLED, now, lambda job: job.pool is pool and completion.is_untouched(job))
        for slot in pool.slots:
            if slot.job is None:
                slot.kill(DISABLED, now)
    pool.set_may_begin(enabled=enabled)
