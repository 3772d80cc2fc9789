"""Going on with another configuration: what it adds is there at once, what it drops ends as its work does.

The old one and the new are compared: host by host, type by type, and for each type the slots on each of its hosts. A
process knows only what it was started with. Where that is another now, or where its slot is to go, it is dismissed: it
ends at once if it is idle, else after its item. Nothing is killed at work. A slot that goes is of its type no more from
that moment on, and its number is another's only when its process is dead. A type whose kind has changed is another type
of the same name. What has changed in the file wins over what commands have changed in the tables.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import attrs

from scheduler.model import events as e
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.events import Reloaded, TablesRead
from scheduler.model.expand import Item
from scheduler.model.states import NEVER
from scheduler.policy import completion, processes, serving
from scheduler.policy.assignment import enqueue
from scheduler.policy.deadlines import PROGRESS
from scheduler.policy.dispatch import stop_starving
from scheduler.policy.entities import DISABLED, Job, Pool
from scheduler.policy.hosts import HostState, QueueState
from scheduler.policy.processes import thaw_pool
from scheduler.policy.run_queue import Placement
from scheduler.policy.slots import Slot, timeouts_of
from scheduler.policy.state import State

STARTED_WITH: Final = frozenset(
    ("command", "cwd", "env", "pass_env", "limits", "database", "user")
)  # of a type: processes
REACHED_BY: Final = frozenset(("transport", "address", "user", "identity", "known_hosts", "command"))  # of a host
FIXED: Final = (  # of the scheduler: what connections, lease and log were made with, until they are made again
    "group", "lease", "lease_renewal", "rescan", "poll_interval", "statement_limit", "lock_limit", "reconnect_max",
    "hang_limit", "reexec", "ready_file", "log_level", "log_format", "log_file",
)  # fmt: skip


def within_reach(old: Config, wanted: Config) -> Config:
    """Return the configuration to go on with: what only a new start can change stays as it is."""
    kept = {name: getattr(old.scheduler, name) for name in FIXED}
    return attrs.evolve(wanted, database=old.database, scheduler=attrs.evolve(wanted.scheduler, **kept))


def changes(old: Config, wanted: Config) -> str:
    """Say in one line what changes, and for what the daemon must be started again."""
    new = within_reach(old, wanted)
    parts = [*_tables_told(old, new), *_keys_told("scheduler", _differences(old.scheduler, new.scheduler))]
    late = [f"database.{key}" for key in _differences(new.database, wanted.database)]
    late += [f"scheduler.{key}" for key in _differences(new.scheduler, wanted.scheduler)]
    text = "; ".join(parts) or "nothing has changed"
    return f"{text}; not before a restart: {', '.join(late)}" if late else text


def _tables_told(old: Config, new: Config) -> Iterator[str]:
    for title in ("hosts", "agents", "queues"):
        before, after = getattr(old, title), getattr(new, title)
        words = [f"+{name}" for name in after if name not in before]
        words += [f"-{name}" for name in before if name not in after]
        for name in after:
            words += _keys_told(name, _differences(before.get(name, after[name]), after[name]))
        if words:
            yield f"{title}: {' '.join(words)}"


def _keys_told(name: str, keys: list[str]) -> list[str]:
    return [f"{name}({', '.join(keys)})"] if keys else []


def _differences(old: "attrs.AttrsInstance", new: "attrs.AttrsInstance") -> list[str]:
    """Return the keys of two tables of the same kind whose values differ."""
    names = [each.name for each in attrs.fields(type(old))]
    return [name for name in names if getattr(old, name) != getattr(new, name)]


# ---- what changes
def reloaded(state: State, event: Reloaded, now: float) -> None:
    """Go on with another configuration; a filter that a command has set stays while the file says no other."""
    hosts = {name: attrs.evolve(host, **_kept(state, name, host)) for name, host in event.config.hosts.items()}
    state.file_hosts = event.config.hosts
    state.timers = event.config.scheduler
    state.slots.configure(state.timers)
    processes.thaw(state, state.pools.values(), now)
    _go_on(state, attrs.evolve(event.config, hosts=hosts), now)


def _kept(state: State, name: str, host: Host) -> dict[str, Any]:
    """Return the filters of a host that the file sets as it did before."""
    before, current = state.file_hosts.get(name), state.config.hosts.get(name)
    if before is None or current is None:
        return {}
    return {key: value for key, value in current.filters.items() if getattr(before, key) == getattr(host, key)}


def tables_read(state: State, event: TablesRead, now: float) -> None:
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
    follow_tables(state, event, now)


def _go_on(state: State, new: Config, now: float) -> None:
    old, state.config = state.config, new
    for name, host in new.hosts.items():
        _take_host(state, name, old.hosts.get(name), host)
    for name in old.hosts.keys() - new.hosts.keys():
        state.hosts[name].configure(enabled=False)
    for name in {**old.agents, **new.agents}:
        _take_type(state, name, old, new, now)
    serving.hold_types(state)
    for job in list(state.jobs.values()):
        _find_another_place(state, job, now)
    _rearm(state, now)
    state.claims.wake()
    state.mark_dirty(*state.pools.values())


def _take_host(state: State, name: str, before: Host | None, host: Host) -> None:
    """Add a host, or change it; one that was removed before may still have agents."""
    book = state.hosts.setdefault(name, HostState(name, host))
    if before is None or not REACHED_BY.isdisjoint(_differences(before, host)):
        book.reach(host)
        state.hosts_changed.add(book)
    settings = {key: getattr(host, key) for key in ("max", "urgent", "enabled")}
    is_new = {key: before is None or getattr(before, key) != value for key, value in settings.items()}
    book.configure(**{key: value for key, value in settings.items() if is_new[key]})


def _take_type(state: State, name: str, old: Config, new: Config, now: float) -> None:
    """Remove, add, change or replace a type. The Pool of one that is removed stays, for claims."""
    before, kind = old.agents.get(name), new.agents.get(name)
    is_same = before is not None and kind is not None and before.kind == kind.kind
    was_enabled = before is not None and state.pools[name].enabled
    if before is not None and not is_same:
        _end_type(state, state.pools[name], now)
    if kind is None:
        return
    enabled = was_enabled if before is not None and before.enabled == kind.enabled else kind.enabled
    if before is not None and is_same:
        _change_type(state, state.pools[name], kind, enabled, now)
        _dismiss_the_old(state, state.pools[name], before, old, now)
    else:
        state.pools[name] = Pool(name, kind, enabled)
        old = Config()
    hosts = {host: new.hosts[host] for host in new.hosts_of(name)}
    were_choosy = state.pools[name].filters is not None
    is_other_turn = before is not None and before.fair != kind.fair
    if is_other_turn or were_choosy or not hosts or any(host.is_selective for host in hosts.values()):
        state.pools[name].filter(hosts)
    _fit_slots(state, state.pools[name], tuple(hosts), now)
    if is_other_turn:
        _take_turns_anew(state.pools[name])
    if is_other_turn or were_choosy or state.pools[name].filters is not None:
        _sort_anew(state, state.pools[name])


def _end_type(state: State, pool: Pool, now: float) -> None:
    stop_starving(state, pool)
    pool.set_may_begin(enabled=False)
    _remove(state, list(pool.slots), "agent type not configured any more", now)


def _change_type(state: State, pool: Pool, kind: AgentType, enabled: bool, now: float) -> None:
    enable(state, pool, enabled, now)
    pool.set_kind(kind)


def _dismiss_the_old(state: State, pool: Pool, before: AgentType, old: Config, now: float) -> None:
    """End the processes that would be started otherwise now."""
    hosts, is_other = state.config.hosts, not STARTED_WITH.isdisjoint(_differences(before, pool.kind))
    kept = [name for name in hosts if name in old.hosts]
    moved = {name for name in kept if not REACHED_BY.isdisjoint(_differences(old.hosts[name], hosts[name]))}
    for slot in pool.slots:
        if is_other or slot.host.name in moved:
            _dismiss(state, slot, "its configuration has changed", now)


def _fit_slots(state: State, pool: Pool, hosts: Sequence[str], now: float) -> None:
    """Add or remove slots of a type on its hosts; those that work are the last to be removed."""
    slots: dict[str, list[Slot]] = {name: [] for name in (*pool.free, *hosts)}
    for slot in pool.slots:
        slots[slot.host.name].append(slot)
    timeouts = timeouts_of(pool.kind, state.timers)
    for name, here in slots.items():
        if name not in hosts:
            _withdraw(state, pool, name, here, now)
            continue
        here.sort(key=lambda slot: (slot.state, -slot.number))
        _remove(state, here[: max(0, len(here) - pool.kind.slots)], "fewer slots are configured", now)
        state.add_slots(pool, name, pool.kind.slots - len(here), timeouts, now)
    thaw_pool(state, pool)


def _take_turns_anew(pool: Pool) -> None:
    """Let what waits for one host wait in lanes of the other kind; what waits for any is moved by `_sort_anew`."""
    for host, before in pool.bound.items():
        pool.bound[host] = run_queue = pool.run_queue(before.hosts)
        for lane in sorted(before, key=lambda lane: lane.ticket):
            run_queue.add(lane, lane.ticket)
    for slot in pool.slots:
        if slot.bound is not slot.any:
            slot.bound = pool.bound[slot.host.name]


def _sort_anew(state: State, pool: Pool) -> None:
    """Let what waits for any host wait where the filters of now say, and second tries too."""
    lanes = [lane for job in state.jobs.values() if job.pool is pool and (lane := job.lanes.get(None)) is not None]
    for lane in sorted(lanes, key=lambda lane: lane.ticket):
        if lane.items:
            pool.run_queue_of(lane.job, None).add(lane, lane.ticket)
    for slot in pool.slots:
        if slot.any is not slot.bound:  # which it is for a process that is given nothing more
            slot.any = pool.any_of(slot.host.name)
        if slot.job is not None:
            slot.is_bound = slot.is_bound and pool.takes(slot.job, slot.host.name)
    pool.second_tries = deque(
        (job, item, at if at is None or pool.takes(job, at) else None) for job, item, at in pool.second_tries
    )


def _withdraw(state: State, pool: Pool, host: str, slots: Iterable[Slot], now: float) -> None:
    """Remove a type from a host."""
    stop_starving(state, pool)
    for slot in slots:
        slot.is_bound = False  # a second try may be anywhere
    pool.second_tries = deque((job, item, None if at == host else at) for job, item, at in pool.second_tries)
    _remove(state, slots, f"agent type not configured on host {host} any more", now)
    pool.remove_host(host)


def _remove(state: State, slots: Iterable[Slot], why: str, now: float) -> None:
    for slot in slots:
        state.slots.remove(slot, now)
        _dismiss(state, slot, why, now)


def _dismiss(state: State, slot: Slot, why: str, now: float) -> None:
    """Let a process finish what it has in hand, and do no more."""
    if slot.job is not None:
        slot.dismiss(why)
    else:
        slot.kill(why, now)


def _find_another_place(state: State, job: Job, now: float) -> None:
    """Let rows whose host is removed go anywhere; give a job back whose own host or type is."""
    pool, query = job.pool, job.query
    moved: list[Item] = []
    for host in [host for host in job.lanes if host is not None and not pool.takes(job, host)]:
        if host in pool.bound:
            pool.bound[host].drop(job.lanes[host])
        moved += job.take_lane(host)
    is_served = state.pools[pool.name] is pool and pool.name in state.config.agents
    if is_served and pool.has_place(job):
        if moved:
            enqueue(state, job, moved, None)
    elif job.verdict is None and (query is not None or completion.is_untouched(job)):
        completion.give_back(state, job, "its agent type or its host is not configured any more", now)


def _rearm(state: State, now: float) -> None:
    """Apply the new limits to the deadlines that run."""
    pools = {slot.pool for slot in state.slots.all}
    timeouts = {pool: timeouts_of(pool.kind, state.timers) for pool in pools}
    for slot in state.slots.all:
        slot.set_timeouts(timeouts[slot.pool])
    if state.deadlines.at[PROGRESS] != NEVER:
        state.deadlines.bring_forward(PROGRESS, now + state.timers.progress_interval)


def follow_tables(state: State, event: e.TablesRead, now: float) -> None:
    """Follow queues, hosts, types and placements as their tables have them now."""
    in_hand: dict[str, int] = {}
    for job in state.jobs.values():
        in_hand[job.queue] = in_hand.get(job.queue, 0) + 1
    state.queues = {
        q["name"]: QueueState(q["name"], q["concurrency"], q["paused"], in_hand.get(q["name"], 0), q["reserved"])
        for q in event.queues
    }
    closed = {queue.name for queue in state.queues.values() if queue.is_over}
    if closed:
        completion.give_back_all(
            state, "the queue takes no more", now, lambda job: job.queue in closed and completion.is_untouched(job)
        )
    for row in event.hosts:
        if row["name"] in state.config.hosts:  # what is told may be older than a reload
            host = state.hosts[row["name"]]
            host.configure(max=row["max"], urgent=row["urgent"], enabled=row["enabled"])
    for row in event.types:
        if row["type"] in state.config.agents:
            enable(state, state.pools[row["type"]], row["enabled"], now)
    state.places = Placement(state.hosts, event.placements)
    state.claims.wake()
    state.mark_dirty(*state.pools.values())


def enable(state: State, pool: Pool, enabled: bool, now: float) -> None:
    """Enable a type, or disable it: jobs that have not begun go back, agents without an item end."""
    if pool.enabled and not enabled:
        pool.set_may_begin(enabled=False)
        stop_starving(state, pool)
        completion.give_back_all(state, DISABLED, now, lambda job: job.pool is pool and completion.is_untouched(job))
        for slot in pool.slots:
            if slot.job is None:
                slot.kill(DISABLED, now)
    pool.set_may_begin(enabled=enabled)
