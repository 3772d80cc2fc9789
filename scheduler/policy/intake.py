"""Where work comes from: claimed rows become jobs in hand, rows of their queries become items in lanes."""

from collections.abc import Sequence
from typing import Final

from scheduler.model import events_and_effects as e
from scheduler.model.protocol import (
    LINE_LIMIT,
    Item,
    as_bytes,
    check_argument,
    check_columns,
    check_line,
    check_template,
    line_maker,
    printable,
)
from scheduler.model.queue_requests import PLAIN, SUSPECT_AFTER, ItemFailure, MarkRow, read_contents
from scheduler.model.states import BLOCKED, NEVER, NO_LIMIT, RUNNING, QueryEvent, QueryState
from scheduler.policy.agent_pool import DISABLED
from scheduler.policy.completion import (
    GIVEN_BACK,
    KILLED,
    NOT_BEGUN,
    RESTART,
    conclude,
    conclude_if_over,
    end_try_alone,
    fail_job,
    forget,
    give_back,
    kill_job,
    progress,
    stop_job,
)
from scheduler.policy.dispatch import enqueue
from scheduler.policy.expansions import hold_back
from scheduler.policy.group_lease import give_back_unbegun, missing_for
from scheduler.policy.job import TRIED_ALONE, Job, Pool, Verdict
from scheduler.policy.query_progress import IN_PROGRESS, JobQuery
from scheduler.policy.rates import over_rate, short_value
from scheduler.policy.state import MissingConnection, State

OVERSIZED: Final = 16 << 20  # bytes of SQL or of variables: query `end_and_claim` gives no more
BATCH: Final = 1000  # rows of a query, or
SHARE: Final = 32  # for each agent that its type may have, if that is more: so many may have lines ahead


# ---- claimed rows
def receive(state: State, event: e.EndedAndClaimed | e.Claimed, now: float) -> None:
    """Make jobs of the claimed rows, and let them wait for agents, contents, a mark or a connection."""
    state.receive(False)
    not_taken = {}
    for name, pool in state.pools.items():
        pool.received()
        not_taken[name] = _not_taken(state, pool)
    pools, jobs = state.pools, state.jobs
    for claim in event.claims:
        request = claim.request
        pool = pools[request.type]
        if (former := jobs.get(claim.pk)) is not None:
            state.log_message("warning", f"job={claim.pk}: the row was put back in the queue while in hand")
            forget(state, former, "the row was put back in the queue while in hand", now)
        jobs[claim.pk] = job = Job(claim, pool, now)
        is_plain_line = job.rules is PLAIN and not (pool.is_guarded or pool.is_exec)
        refusal = check_argument(job.args, pool.kind.empty) if is_plain_line else _refusal(job)
        is_bound = request.host or pool.queues.filters is not None
        if request.guarded is not pool.is_guarded or (is_bound and not pool.queues.has_place(job)):
            give_back(state, job, "asked for before a reload", now)
        elif state.missing_connections and (missing := missing_for(state, job)) is not None:
            give_back_unbegun(state, job, missing, now)
        elif refusal is not None:
            _refuse(state, job, refusal, now)
        elif (why := not_taken[request.type]) is not None:
            give_back(state, job, why, now)
        elif pool.is_counted and (over := state.quotas.admit(job)) is not None:
            stop_job(state, job, Verdict(BLOCKED, over), now)
        elif state.has_limits_each and _is_over_rate(state, job, now):
            pass
        elif job.rules is PLAIN:
            enqueue(state, job, [Item(job.args + b"\n", 0)], job.host)  # as `admit` does: most are such
        elif job.rules.unread:
            pool.add_unread(job)
            if job.rules.rescued < SUSPECT_AFTER:  # else it is read when it is tried alone
                state.outbox.read(job.pk, job.attempt)
            state.mark_dirty(pool)
        elif job.rules.rescued:
            pool.add_rescued(job)
            state.mark_dirty(pool)
        else:
            admit(state, job)


def _not_taken(state: State, pool: Pool) -> str | None:
    """Return why jobs of a type that were asked for are not taken in hand any more; None if they are."""
    if not state.is_assigning or state.draining:
        return RESTART
    if not pool.enabled:
        return DISABLED
    return pool.failure if pool.blocked_until else None


def _is_over_rate(state: State, job: Job, now: float) -> bool:
    """Give a job back until later if enough jobs with its value of an attribute have begun; return whether it was."""
    rates = state.rated.get(job.queue)
    if rates is None or not rates.limit.each or job.rules.unread:
        return False
    limit, value = rates.limit, short_value(job.attribute(rates.limit.by))
    if (at := rates.admit(job.pk, value, now)) is None:
        return False
    why = over_rate(job.queue, limit) + repr(value)
    stop_job(state, job, Verdict(NOT_BEGUN, why, at - now), now)
    return True


def try_alone(state: State, pool: Pool, now: float) -> None:
    """Read the contents of a suspect, a row that daemons died with in hand: of one at a time.

    The row says so first: if this daemon dies of it too, the next one fails the job and none of the others.
    """
    if state.suspect is None and pool.unread:
        job = next((job for job in pool.unread.values() if job.rules.rescued >= SUSPECT_AFTER), None)
        state.set_suspect(job)
        if job is not None:
            job.mark(RUNNING, now)
            state.outbox.save(progress(job, now, TRIED_ALONE))
            job.show()


def continue_read(state: State, job: Job, args: bytes, more: bytes, now: float) -> None:
    """Continue with a row whose contents are read as with any that was claimed.

    One that was read alone begins when its row no longer says so: if the daemon died, `rescue` would fail the job.
    """
    job.pool.remove_unread(job)
    job.read(args, read_contents(job.rules, more))
    if (refusal := _refusal(job)) is not None:
        _refuse(state, job, refusal, now)
    elif state.has_limits_each and _is_over_rate(state, job, now):
        pass
    elif state.suspect is job:
        state.outbox.save(progress(job, now, IN_PROGRESS))
        job.show()
    elif job.rules.rescued and not job.marked:
        job.pool.add_rescued(job)
        state.mark_dirty(job.pool)
    else:
        admit(state, job)


def end_reading_alone(state: State) -> None:
    """Let the row begin that was tried alone and does not say so any more."""
    job = state.suspect
    end_try_alone(state)
    if job is not None and state.jobs.get(job.pk) is job and job.verdict is None:
        admit(state, job)


def refuse_unreadable(state: State, pk: int, reason: str, now: float) -> None:
    """Fail the one job whose contents the database cannot give."""
    job = state.jobs.get(pk)
    if job is not None and job.rules.unread:
        _refuse(state, job, f"its parameter or variables cannot be read: {reason}: insert another job with less", now)


def refuse_unmarked(state: State, row: MarkRow, reason: str, now: float) -> None:
    """Fail a job that may begin only once its row says that it runs, which the database refuses."""
    job = state.jobs.get(row.pk)
    if job is None or job.attempt != row.attempt or job.verdict is not None:
        return
    is_begun = job.started or job.lanes or row.pk in job.pool.query_jobs
    if row.spool is not None or (job.rules.rescued and not is_begun):
        kill_job(state, job, Verdict(KILLED, f"its row cannot be shown as running: {reason}", kills=True), now)
        state.mark_dirty(job.pool)


def _refuse(state: State, job: Job, reason: str, now: float) -> None:
    job.set_verdict(Verdict(KILLED, reason))
    conclude(state, job, now)


def _refusal(job: Job) -> str | None:
    """Return the reason why a row can never be worked, or None; as far as it is read."""
    pool = job.pool
    allowed = pool.kind.submitters
    if pool.is_guarded and "*" not in allowed and not {job.rules.submitter, *job.rules.roles}.intersection(allowed):
        return f"role {job.rules.submitter} may not queue agent type {pool.name}"
    if job.rules is not PLAIN:
        if job.query is not None and pool.kind.detached:
            return f"agent type {pool.name} is detached: it takes one parameter, no SQL"
        if job.rules.is_oversized or len(job.args) > OVERSIZED:
            return f"its variables or its SQL have over {OVERSIZED} bytes: put them in a file or a table and name that"
        if job.query is not None or job.rules.unread:
            return None
    if not pool.is_exec:
        return check_argument(job.args, pool.kind.empty)
    return check_columns(job.names) or check_template(pool.kind.command, job.names)


def admit(state: State, job: Job) -> None:
    """Enqueue a job in hand: its parameter in a lane, its query for a connection."""
    if job.query is None:
        enqueue(state, job, [Item(job.args + b"\n", 0)], job.host)
        return
    job.pool.add_query(job)
    state.mark_dirty(job.pool)


# ---- queries
def opened(state: State, event: e.Opened, now: float) -> None:
    """Check the columns of a query that ran, and fetch its first rows."""
    job = state.jobs.get(event.job)
    if job is None or job.query is None or job.verdict is not None:
        return
    query, kind = job.query, job.pool.kind
    query.opened(event.total, now)
    job.set_columns(event.names)
    if (reason := check_columns(event.names) or _wrong_columns(job, event.names)) is not None:
        fail_job(state, job, reason, now)
        return
    key_at, place_at = (
        None if name is None else event.names.index(as_bytes(name)) for name in (job.rules.key, job.rules.runonpfile)
    )
    is_raw = kind.escape == "shell" and not job.pool.is_exec
    query.read_as(line_maker(event.names, kind.escape, kind.nulls), key_at, place_at, is_raw=is_raw)
    _fetch_or_close(state, job, query)
    conclude_if_over(state, job, now)


def _wrong_columns(job: Job, names: tuple[bytes, ...]) -> str | None:
    """Return why the columns of a query do not do for its row or its agent, or None."""
    for title, name in (("jq_key", job.rules.key), ("jq_runonpfile", job.rules.runonpfile)):
        if name is not None and as_bytes(name) not in names:
            return f"{title} names column {name!r}, and the query has none"
    return check_template(job.pool.kind.command, names) if job.pool.is_exec else None


def not_expanded(state: State, event: e.NotExpanded, now: float) -> None:
    """Fail a job whose query failed, or give it back; unless it was to end otherwise before that."""
    job = state.jobs.get(event.job)
    if job is None or job.verdict is not None:
        return
    if event.interrupted and job.rules.interruptions >= job.rules.max_interruptions:
        fail_job(state, job, f"interrupted more than {job.rules.max_interruptions} times: {event.reason}", now)
        return
    if event.retry_in is not None:
        is_partial = 0 < state.most_queries < NO_LIMIT  # it may have one of the connections that there are
        at = now if is_partial else now + event.retry_in
        give_back_unbegun(state, job, missing_for(state, job) or MissingConnection(event.reason, now, at), now)
        return
    if event.again:
        if event.interrupted:
            job.interrupt()
        stop_job(state, job, Verdict(GIVEN_BACK, event.reason, state.timers.retry_base), now)
        return
    fail_job(state, job, event.reason, now)


# ---- rows
def fetched(state: State, event: e.Fetched, now: float) -> None:
    """Make items of fetched rows, and let them wait for agents."""
    job = state.jobs.get(event.job)
    if job is None or job.query is None or job.verdict is not None:
        return
    query, rows, base = job.query, event.rows, job.query.fetched
    query.fire(QueryEvent.FETCHED if event.more else QueryEvent.FETCHED_LAST)
    key_at, place_at = query.key_at, query.place_at
    if key_at is not None and any(row[key_at] is None for row in rows):
        fail_job(state, job, "the key column is NULL in a row: every row needs a key", now)
        return
    items = query.items_of(rows, keep_rows=job.pool.is_exec)
    most = state.timers.fetch_rows or max(BATCH, SHARE * len(job.pool.slots))
    query.size_batch(items, most, state.timers.fetch_bytes)
    items = _sendable(state, job, query, items)
    if place_at is None or job.host is not None:
        if items:
            enqueue(state, job, items, job.host)
    else:
        _enqueue_by_host(state, job, [(item, rows[item.number - base][place_at]) for item in items])
    if query.state is QueryState.EXHAUSTED:
        state.close_expansion(job)
    elif base == 0:
        hold_back(state, job)
    state.mark_dirty(job.pool)  # so that more rows are fetched, even if none of these can be sent
    state.mark_dirty(*[pool for pool in state.pools.values() if pool.unfed_since < NEVER])  # it may give its connection
    conclude_if_over(state, job, now)


def _fetch_or_close(state: State, job: Job, query: JobQuery) -> None:
    """Fetch more rows of a query, or leave its connection to another one if there are no more."""
    if query.state is QueryState.EXHAUSTED:
        state.close_expansion(job)
    else:
        state.fetch_more(job)


def _sendable(state: State, job: Job, query: JobQuery, items: list[Item]) -> list[Item]:
    """Fail the items whose line is too long or, of a line agent, empty or not one; return the others."""
    least, is_raw = 0 if job.pool.is_exec or job.pool.kind.empty == "send" else 1, query.is_raw
    bad = [
        item for item in items if not least < len(item.line) <= LINE_LIMIT + 1 or (is_raw and b"\n" in item.line[:-1])
    ]
    if not bad:
        return items
    for item in bad:
        key = None if item.key is None else printable(item.key)
        reason = check_line(item.line) or ""
        head = printable(item.line[:1000].removesuffix(b"\n")) + ("..." if len(item.line) > 1000 else "")
        failure = ItemFailure(job.pk, job.attempt, key, head, "", job.pool.name, None, reason)
        job.item_failed(query, item, failure)
        state.log_job(job, "ERROR", f"item failed: {reason}" + (f": {head[:200]}" if head else ""))
    numbers = {item.number for item in bad}
    return [item for item in items if item.number not in numbers]


def _enqueue_by_host(state: State, job: Job, items: Sequence[tuple[Item, bytes | None]]) -> None:
    """Enqueue each item for the host its value names; a host without slots of this type means any host."""
    by_host: dict[str | None, list[Item]] = {}
    queues = job.pool.queues
    taking = queues.by_host if queues.filters is None else queues.filters.at(job.queue, job.priority).hosts or ()
    for item, value in items:
        host = state.places.host_of(job.pool.name, value)
        by_host.setdefault(host if host in taking else None, []).append(item)
    for host, some in by_host.items():
        if host is not None:
            state.count("placed", len(some))
        enqueue(state, job, some, host)
