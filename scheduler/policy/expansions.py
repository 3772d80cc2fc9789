"""Decides which query has an expansion connection, and which one gives its connection back.

All types share `expansions` connections, and one type has at most `expansions_per_type` queries that have begun. A
query has its connection until its rows are all fetched. A type whose agents are busy may open queries ahead, but leaves
one connection to types with agents that could begin. If such a type finds none left, a query with rows in lanes gives
its connection back:

* one with a key is closed, and is run again for the rows behind the last one fetched when its lanes run low;
* of one without a key the other rows go to a file, from which they are fetched then: `msq_file_bytes` of all queries;
* one that has no room there is closed if none of its rows was handed out, and is run again from its first row.

What is left are queries without a key that have begun and have more rows than there is room. They never have the last
connection: one that would have it is closed before its first row is handed out, and waits for room (`hold_back`).
"""

from typing import Final

from scheduler.model.events_and_effects import Kept
from scheduler.model.sql_text import cursor_query
from scheduler.model.states import NEVER, QueryEvent, QueryState
from scheduler.policy.dispatch import HOARD
from scheduler.policy.job import Job, Pool
from scheduler.policy.query_progress import JobQuery
from scheduler.policy.state import State

_COMING: Final = (QueryState.OPENING, QueryState.FETCHING, QueryState.KEEPING)  # its next rows are on their way


def open_expansions(state: State, pool: Pool, now: float) -> Job | None:
    """Ask for connections for the queries of a type; return the first one that only waits for an agent.

    Idle agents have been given what waits for them before.
    """
    if state.is_held:
        return None
    unopened: Job | None = None
    is_unfed = False
    waiting = [job for job in pool.query_jobs.values() if job.waits_for_connection and _wants_rows(job)]
    for job in sorted(waiting, key=lambda job: (job.rank, job.since)):
        where = pool.queues.of(job, job.host)
        has_agent = _has_agent(pool, job)
        is_needed = has_agent and not _comes_soon(pool)
        if not has_agent and not any(slot.pid is not None and where.suits(slot.host.name) for slot in pool.slots):
            unopened = unopened or job
        elif _is_allowed(state, job) and _find_connection(state, job, is_needed):
            _open(state, job)
        else:
            is_unfed |= is_needed
    pool.set_unfed(is_unfed, now)
    return unopened


def lacks_connection(state: State, job: Job) -> bool:
    """Return whether an agent could work on a query at once, if it had a connection."""
    if not job.waits_for_connection or not _wants_rows(job) or not _has_agent(job.pool, job):
        return False
    return not (_is_allowed(state, job) and _has_room(state, job, is_needed=True))


def _wants_rows(job: Job) -> bool:
    """Return whether a query without a connection has too few rows in lanes, as `dispatch` has it for others."""
    query = job.query
    assert query is not None
    return job.waiting <= (HOARD * query.batch if any(job.pool.idle.values()) else query.low)


def _has_agent(pool: Pool, job: Job) -> bool:
    """Return whether an idle agent, or one that may be started for nothing else, could take a row of a query."""
    where = pool.queues.of(job, job.host)
    for name, free in pool.free.items():
        if not where.suits(name):
            continue
        if any(slot.host.is_open for slot in pool.idle[name]):  # one that is to go at its next item is replaced then
            return True
        waits_there = pool.queues.by_host[name].first or pool.queues.any_of(name).first
        if free and not waits_there and free[0].host.has_room(job.is_urgent):
            return True
    return False


def _comes_soon(pool: Pool) -> bool:
    """Return whether rows of another query of a type are about to come."""
    return any(
        job.query is not None and not job.waiting and job.query.state in _COMING for job in pool.query_jobs.values()
    )


def _is_allowed(state: State, job: Job) -> bool:
    """Return whether a type has no more queries than it may, with this one."""
    others = [other.query for other in job.pool.query_jobs.values() if other is not job]
    begun = sum(query is not None and (query.has_connection or query.has_run) for query in others)
    return begun < state.timers.expansions_per_type


def _every(state: State) -> float:
    """Return how many expansion connections there are."""
    return min(state.timers.expansions, state.most_queries)


def _has_room(state: State, job: Job, is_needed: bool) -> bool:
    """Return whether a connection is left, for rows that agents need now, or for those that are read ahead.

    A query that was held back gets the last one when its rows have room in a file.
    """
    every = _every(state)
    is_held_back = job.query is not None and job.query.needs_bytes > _file_room(state) and every > 1
    return len(state.expanding) + (is_held_back or not is_needed) < every


def _find_connection(state: State, job: Job, is_needed: bool) -> bool:
    """Return whether there is a connection for a query; where agents need its rows others give theirs back."""
    while not _has_room(state, job, is_needed):
        if not (is_needed and _take_connection(state)):
            return False
    return True


def _take_connection(state: State) -> bool:
    """Have a query with rows in lanes give its connection back; return whether one is free now."""
    if len(state.expanding) > _every(state):
        return False  # more are open than a reload, or the database, allows
    jobs = [(job, job.query) for pk in state.expanding if (job := state.jobs[pk]).query is not None]
    fed = [(job, query) for job, query in jobs if query is not None and query.state is QueryState.OPEN and job.waiting]
    keyed = [(job, query) for job, query in fed if job.rules.key is not None]
    if keyed:
        _close(state, *max(keyed, key=lambda each: (each[0].waiting, each[0].pk)))
        return True
    if any(query is not None and _is_leaving(query) for _, query in jobs):
        return False
    leaving = [(job, query) for job, query in fed if query.fetched and _can_leave(state, job, query)]
    if leaving:
        _leave(state, *min(leaving, key=lambda each: (each[1].bytes_left, each[0].pk)))
        return False
    return _close_unbegun(state)


def _file_room(state: State) -> int:
    """Return how many bytes of rows may still go to files."""
    return state.timers.msq_file_bytes - sum(state.kept.values())


def _can_leave(state: State, job: Job, query: JobQuery) -> bool:
    """Return whether a query can give its connection back, or may, since its rows are not known yet."""
    if job.rules.key is not None or not query.fetched or query.state is QueryState.EXHAUSTED:
        return True
    is_last_batch = query.total - query.fetched - query.kept <= query.batch
    return is_last_batch or (not query.stays and query.bytes_left <= _file_room(state))


def _is_leaving(query: JobQuery) -> bool:
    """Return whether the rows are on their way for which a query has its connection."""
    is_last = query.state is QueryState.FETCHING and query.total - query.fetched - query.kept <= query.batch
    return is_last or query.state is QueryState.KEEPING


def _leave(state: State, job: Job, query: JobQuery) -> None:
    """Fetch the next rows of a query into its file, unless agents need some, or the last batch may wait in lanes."""
    is_last_batch = not query.kept and query.total - query.fetched <= query.batch
    if is_last_batch or _wants_rows(job):
        state.fetch_more(job)
    else:
        state.keep_more(job, query)


def kept(state: State, event: Kept, now: float) -> None:
    """Leave the connection of a query whose rows are all fetched or in its file, or go on."""
    job = state.jobs.get(event.job)
    if job is None or job.query is None or job.verdict is not None:
        return
    state.count_kept(job, event.size)
    job.query.keep(event.rows, stays=bool(event.problem))
    if not event.more:
        state.leave_connection(job)
    if event.problem and event.more:
        text = "its query keeps its connection, which others may wait for"
        state.log_message("warning", f"job={job.pk}: no file for the rows of its query: {event.problem}: {text}")
    state.mark_dirty(job.pool, *[pool for pool in state.pools.values() if pool.unfed_since < NEVER])


def hold_back(state: State, job: Job) -> None:
    """Close a query that has the last connection if no query could leave its own; its first rows have come."""
    every = _every(state)
    if every == 1 or len(state.expanding) < every:
        return
    jobs = [state.jobs[pk] for pk in state.expanding]
    if any(each.query is not None and _can_leave(state, each, each.query) for each in jobs):
        return
    if not _close_unbegun(state) and job.query is not None and job.failed == job.rules.itemsfailed:
        _run_again(state, job, job.query)


def _close_unbegun(state: State) -> bool:
    """Close a query of which no row was handed out, nor will be in a moment; return whether there was one."""
    for pk in sorted(state.expanding, reverse=True):
        job = state.jobs[pk]
        query = job.query
        if query is None or query.state is not QueryState.OPEN or job.started or job.rules.key is not None:
            continue
        if job.waiting and job.failed == job.rules.itemsfailed and not _has_agent(job.pool, job):
            _run_again(state, job, query)
            return True
    return False


def _run_again(state: State, job: Job, query: JobQuery) -> None:
    job.begin_anew(query)
    state.close_expansion(job)
    state.mark_dirty(job.pool)


def _close(state: State, job: Job, query: JobQuery) -> None:
    query.fire(QueryEvent.CLOSED)
    state.close_expansion(job)


def _open(state: State, job: Job) -> None:
    query = job.query
    assert query is not None
    query.fire(QueryEvent.ASKED)
    sql = job.args.decode("utf-8", "surrogateescape")
    state.expand(job, cursor_query(sql, job.rules.key, *query.left))
