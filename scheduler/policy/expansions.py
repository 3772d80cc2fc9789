"""Decides which query has an expansion connection, and which one gives its connection back.

All types share `expansions` connections, and one type has at most `expansions_per_type` queries that have begun. A
query has its connection until its rows are all fetched. A type whose agents are busy may open queries ahead, but leaves
one connection to types with agents that could begin. If such a type finds none left, the query with the most rows in
lanes gives its connection back: one with a key is closed, and is run again for the rows behind the last one fetched
when its lanes run low; of one without a key all rows are fetched first, as long as they fit in READ_BYTES.
"""

from typing import Final

from scheduler.model.sql_text import cursor_query
from scheduler.model.states import QueryEvent, QueryState
from scheduler.policy.dispatch import HOARD
from scheduler.policy.job import Job, Pool
from scheduler.policy.state import State

READ_BYTES: Final = 256 << 20  # of rows that are fetched early, of all queries
ITEM_BYTES: Final = 250  # of memory that an item takes beside its line


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
        elif _is_allowed(state, job) and (_has_room(state, is_needed) or (is_needed and _take_connection(state))):
            _open(state, job)
        else:
            is_unfed |= is_needed
    pool.set_unfed(is_unfed, now)
    return unopened


def lacks_connection(state: State, job: Job) -> bool:
    """Return whether an agent could work on a query at once, if it had a connection."""
    if not job.waits_for_connection or not _wants_rows(job) or not _has_agent(job.pool, job):
        return False
    return not (_is_allowed(state, job) and _has_room(state, is_needed=True))


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
        job.query is not None and not job.waiting and job.query.state in (QueryState.OPENING, QueryState.FETCHING)
        for job in pool.query_jobs.values()
    )


def _is_allowed(state: State, job: Job) -> bool:
    """Return whether a type has no more queries than it may, with this one."""
    others = [other.query for other in job.pool.query_jobs.values() if other is not job]
    begun = sum(query is not None and (query.has_connection or query.has_run) for query in others)
    return begun < state.timers.expansions_per_type


def _has_room(state: State, is_needed: bool) -> bool:
    """Return whether a connection is left, for rows that agents need now, or for those that are read ahead."""
    every = min(state.timers.expansions, state.most_queries)
    return len(state.expanding) + (not is_needed) < every


def _take_connection(state: State) -> bool:
    """Have a query with rows in lanes give its connection back; return whether one is free now."""
    if len(state.expanding) > min(state.timers.expansions, state.most_queries):
        return False  # more are open than a reload, or the database, allows
    jobs = [state.jobs[pk] for pk in state.expanding]
    fed = [job for job in jobs if job.query is not None and job.query.state is QueryState.OPEN and job.query.fetched]
    keyed = [job for job in fed if job.rules.key is not None and job.waiting]
    if keyed:
        _close(state, max(keyed, key=lambda job: (job.waiting, job.pk)))
        return True
    if not any(job.query is not None and job.query.is_read_out for job in jobs):
        room = READ_BYTES - sum([_bytes_of(job) for pool in state.pools.values() for job in pool.query_jobs.values()])
        fitting = [job for job in fed if job.rules.key is None and job.waiting and _bytes_left(job) <= room]
        if fitting:
            _read_out(state, min(fitting, key=lambda job: (_bytes_left(job), job.pk)))
    return False


def _bytes_of(job: Job) -> int:
    """Return what the rows take that were fetched early."""
    query = job.query
    return int(job.waiting * (query.line_bytes + ITEM_BYTES)) if query is not None and query.is_read_out else 0


def _bytes_left(job: Job) -> int:
    """Return what the rows take that are not fetched."""
    query = job.query
    return 0 if query is None else int((query.total - query.fetched) * (query.line_bytes + ITEM_BYTES))


def _close(state: State, job: Job) -> None:
    assert job.query is not None
    job.query.fire(QueryEvent.CLOSED)
    state.close_expansion(job)


def _read_out(state: State, job: Job) -> None:
    assert job.query is not None
    job.query.read_out()
    state.fetch_more(job)


def _open(state: State, job: Job) -> None:
    query = job.query
    assert query is not None
    query.fire(QueryEvent.ASKED)
    sql = job.args.decode("utf-8", "surrogateescape")
    state.expand(job, cursor_query(sql, job.rules.key, *query.left))
