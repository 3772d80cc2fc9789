"""Where work comes from: claimed rows become jobs in hand, rows of their queries become items in lanes.

A multi-SQL-query waits for an expansion connection: all types share `expansions` of them, one type has at most
`expansions_per_type`, and one is kept for types that have none. It is opened only when agents can take its rows.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Final

from scheduler.model.events import EndedAndClaimed, Expand, Fetched, NotExpanded, Opened
from scheduler.model.expand import (
    LINE_LIMIT,
    Item,
    Row,
    as_bytes,
    check_argument,
    check_columns,
    check_line,
    check_template,
    cursor_query,
    line_maker,
)
from scheduler.model.jobs import PLAIN, SUSPECT_AFTER, ItemFailure, read_contents
from scheduler.model.protocol import printable
from scheduler.model.states import NEVER
from scheduler.policy.assignment import enqueue, fetch_more
from scheduler.policy.capacity import startable
from scheduler.policy.completion import conclude, conclude_if_over, end_trial, fail_job, forget, give_back, stop_job
from scheduler.policy.entities import Job, Pool, Verdict, is_urgent
from scheduler.policy.outcome import GIVEN_BACK, KILLED, progress
from scheduler.policy.query import IN_PROGRESS, TRIED_ALONE, Expansion
from scheduler.policy.run_queue import Turns
from scheduler.policy.serving import lack_of, put_back
from scheduler.policy.state import Lack, World

OVERSIZED: Final = 16 << 20  # bytes of SQL or of variables: query `end_and_claim` gives no more


# ---- claims
def arrived(world: World, event: EndedAndClaimed, now: float) -> None:
    """Note rows that are ours now; they are unpacked once the next request is on its way: both sides work then."""
    if not event.found:
        return
    world.arrivals.append(event.claims)
    world.arrived_at = now
    row_bytes = event.size / sum(event.found.values())
    for want, count in event.found.items():
        pool = world.pools[want.type]
        pool.arriving += count
        if (turns := pool.lanes_for(want)) is not None:
            pool.coming[turns] = pool.coming.get(turns, 0) + count
        pool.row_bytes = max(row_bytes, pool.row_bytes / 2)
        if (queue := world.queues.get(want.queue)) is not None:
            queue.in_hand += count


def unpack(world: World) -> None:
    """Take the rows that have arrived in hand."""
    arrivals, world.arrivals = world.arrivals, []
    for pool in world.pools.values():
        pool.arriving = 0
        pool.coming.clear()
    pools, jobs, now = world.pools, world.jobs, world.arrived_at
    for claim in chain.from_iterable(arrivals):
        want = claim.want
        pool = pools[want.type]
        if (former := jobs.get(claim.pk)) is not None:
            world.say("warning", f"job={claim.pk}: somebody put the row back in the queue while it was in hand")
            forget(world, former, now)
        jobs[claim.pk] = job = Job(claim, pool, now)
        if want.guarded is not pool.is_guarded or ((want.host or pool.doors is not None) and not pool.has_place(job)):
            give_back(world, job, "asked for before a reload", now)
        elif world.lacks and (lack := lack_of(world, job)) is not None:
            put_back(world, job, lack, now)
        elif (refusal := _refusal(job)) is not None:
            _refuse(world, job, refusal, now)
        elif not world.feeding or world.draining or not pool.enabled or pool.blocked_until:
            give_back(world, job, "released for restart", now)
        elif job.rules is PLAIN:
            admit(world, job)
        elif job.rules.unread:
            _read(world, job)
        elif job.rules.rescued:
            pool.rescued.append(job)
            world.stirred.add(pool)
        else:
            admit(world, job)


def mark_rescued(world: World, pool: Pool) -> None:
    """Let rescued rows be shown as running before their first byte: what kills the machine uses up its allowance.

    No more of them at a time than could begin, but always one, so that a type without room shows that it needs some.
    """
    pool.marking &= world.jobs.keys()
    coming = pool.singles + len(pool.marking)
    room = max(startable(pool, urgent=False) - coming, 0 if coming else 1)
    while pool.rescued and room > 0:
        job = pool.rescued.popleft()
        if world.jobs.get(job.pk) is job and job.verdict is None:
            world.ledger.marks[job.pk] = (job.pk, job.attempt)
            pool.marking.add(job.pk)
            room -= 1


def _read(world: World, job: Job) -> None:
    """Have what the row holds read: at once, or when its turn comes to be tried alone."""
    job.pool.unread[job.pk] = job
    if job.rules.rescued < SUSPECT_AFTER:
        world.ledger.reads[job.pk] = (job.pk, job.attempt)
    world.stirred.add(job.pool)


def try_alone(world: World, pool: Pool, now: float) -> None:
    """Read what a row holds that daemons died with in hand, of no other at the same time.

    The row says so first: if this daemon dies of it too, the next one fails the job and none of the others.
    """
    if world.trial is None and pool.unread:
        suspects = (job for job in pool.unread.values() if job.rules.rescued >= SUSPECT_AFTER)
        world.trial = job = next(suspects, None)
        if job is not None:
            job.marked = True
            world.ledger.save(progress(job, now, TRIED_ALONE), ())


def take_contents(world: World, job: Job, args: bytes, more: bytes, now: float) -> None:
    """What a row holds is read: go on with it as with any that was claimed.

    One that was tried alone begins when its row does not say so any more: else a death at work would convict it.
    """
    job.pool.unread.pop(job.pk, None)
    job.read(args, read_contents(job.rules, more))
    if (refusal := _refusal(job)) is not None:
        _refuse(world, job, refusal, now)
    elif world.trial is job:
        world.ledger.save(progress(job, now, IN_PROGRESS), ())
    elif job.rules.rescued and not job.marked:
        job.pool.rescued.append(job)
        world.stirred.add(job.pool)
    else:
        admit(world, job)


def trial_is_over(world: World) -> None:
    """The row that was tried alone does not say so any more."""
    job = world.trial
    end_trial(world)
    if job is not None and world.jobs.get(job.pk) is job and job.verdict is None:
        admit(world, job)


def refuse_unreadable(world: World, pk: int, reason: str, now: float) -> None:
    """The database cannot give what a row holds: the job fails alone."""
    job = world.jobs.get(pk)
    if job is not None and job.rules.unread:
        _refuse(world, job, f"its parameter or variables cannot be read: {reason}: insert another job with less", now)


def _refuse(world: World, job: Job, reason: str, now: float) -> None:
    job.verdict = Verdict(KILLED, reason)
    conclude(world, job, now)


def _refusal(job: Job) -> str | None:
    """Give the reason why a row can never be worked, or None; as far as it is read."""
    pool = job.pool
    if pool.is_guarded and not {job.rules.submitter, *job.rules.roles}.intersection(pool.kind.submitters):
        return f"role {job.rules.submitter} may not queue agent type {pool.name}"
    if job.rules is not PLAIN:
        if job.rules.is_oversized or len(job.args) > OVERSIZED:
            return f"its variables or its SQL have over {OVERSIZED} bytes: put them in a file or a table and name that"
        if job.expansion is not None or job.rules.unread:
            return None
    if not pool.is_exec:
        return check_argument(job.args, pool.kind.empty)
    return check_columns(job.names) or check_template(pool.kind.command, job.names)


def admit(world: World, job: Job) -> None:
    """Let a job in hand wait for its agents: its parameter in a lane, its query for a connection."""
    if job.expansion is None:
        enqueue(world, job, [Item(job.args + b"\n", 0)], job.host)
        return
    job.pool.live_jobs[job.pk] = job
    world.stirred.add(job.pool)


# ---- queries
def open_expansions(world: World, pool: Pool) -> Job | None:
    """Ask for connections for the queries of a type that wait; give the first one that only waits for an agent."""
    waiting = [job for job in pool.live_jobs.values() if job.expansion and not job.expansion.opening]
    unopened: Job | None = None
    for job in sorted(waiting, key=lambda job: (job.rank, job.since)):
        if not has_connection(world, pool):
            return None
        if _can_take_rows(pool, pool.lanes_of(job, job.host), urgent=is_urgent(job)):
            _open(world, job)
        else:
            unopened = unopened or job
    return unopened


def has_connection(world: World, pool: Pool) -> bool:
    """Say whether one more query of a type may have an expansion connection."""
    every = min(world.timers.expansions, world.most_queries)
    own = sum(1 for job in pool.live_jobs.values() if job.expansion and job.expansion.opening)
    kept = 1 if own and every > 1 else 0
    return own < world.timers.expansions_per_type and len(world.expanding) < every - kept


def _can_take_rows(pool: Pool, where: Turns[Job], *, urgent: bool) -> bool:
    has_agent = any(slot.pid is not None and where.suits(slot.host.name) for slot in pool.slots)
    return has_agent or startable(pool, urgent=urgent, hosts=where.hosts) > 0


def _open(world: World, job: Job) -> None:
    expansion = job.expansion
    assert expansion is not None
    expansion.opening = True
    world.expanding.add(job.pk)
    progress = expansion.progress
    left = (progress.watermark, progress.beyond, progress.again) if progress is not None else (None, [], [])
    sql = job.args.decode("utf-8", "surrogateescape")
    world.commands.append(Expand(job.pk, cursor_query(sql, job.rules.key, *left)))


def opened(world: World, event: Opened, now: float) -> None:
    """The query ran: its columns and the number of its rows are known."""
    job = world.jobs.get(event.job)
    if job is None or job.expansion is None or job.verdict is not None:
        return
    expansion = job.expansion
    expansion.opened, expansion.opened_at = True, now
    job.names = event.names
    expansion.total = event.total
    expansion.more = event.total > 0
    if (reason := check_columns(event.names) or _missing(job, expansion)) is not None:
        fail_job(world, job, reason, now)
        return
    kind = job.pool.kind
    expansion.make_line = line_maker(event.names, kind.escape, kind.nulls)
    expansion.is_raw = kind.escape == "shell" and not job.pool.is_exec
    fetch_more(world, job)
    conclude_if_over(world, job, now)


def _missing(job: Job, expansion: Expansion) -> str | None:
    """Find the columns that the row names; give the reason when one is not there."""
    names = list(job.names)
    for title, name in (("jq_key", job.rules.key), ("jq_runonpfile", job.rules.runonpfile)):
        if name is not None and as_bytes(name) not in names:
            return f"{title} names column {name!r}, and the query has none"
    expansion.key_at = None if job.rules.key is None else names.index(as_bytes(job.rules.key))
    place = job.rules.runonpfile
    expansion.place_at = None if place is None else names.index(as_bytes(place))
    return check_template(job.pool.kind.command, names) if job.pool.is_exec else None


def not_expanded(world: World, event: NotExpanded, now: float) -> None:
    """The query failed, or its connection did; what was to become of its job before that stands."""
    job = world.jobs.get(event.job)
    if job is None or job.verdict is not None:
        return
    if event.interrupted and job.rules.interruptions >= job.rules.max_interruptions:
        fail_job(world, job, f"interrupted more than {job.rules.max_interruptions} times: {event.reason}", now)
        return
    if event.retry_in is not None:
        is_partial = 0 < world.most_queries < NEVER  # it may have one of the connections that there are
        at = now if is_partial else now + event.retry_in
        put_back(world, job, lack_of(world, job) or Lack(event.reason, now, at), now)
        return
    if event.again:
        job.interrupted = event.interrupted
        stop_job(world, job, Verdict(GIVEN_BACK, event.reason, world.timers.retry_base), now)
        return
    fail_job(world, job, event.reason, now)


# ---- rows
def fetched(world: World, event: Fetched, now: float) -> None:
    """Rows have come: make them items and let them wait."""
    job = world.jobs.get(event.job)
    if job is None or job.expansion is None or job.verdict is not None:
        return
    expansion = job.expansion
    expansion.fetching = False
    expansion.more = event.more
    rows = event.rows
    if _has_null_key(expansion, rows):
        fail_job(world, job, "the key column is NULL in a row: every row needs a key", now)
        return
    base = expansion.fetched
    items = _items(job, expansion, rows)
    expansion.fetched += len(rows)
    _size_batch(world, expansion, items)
    items = _sendable(world, job, expansion, items)
    if expansion.place_at is None or job.host is not None:
        if items:
            enqueue(world, job, items, job.host)
    else:
        places = {item.number: rows[item.number - base][expansion.place_at] for item in items}
        _enqueue_by_host(world, job, items, places)
    conclude_if_over(world, job, now)


def _items(job: Job, expansion: Expansion, rows: Sequence[Row]) -> list[Item]:
    make_line, key_at = expansion.make_line, expansion.key_at
    assert make_line is not None
    numbers = range(expansion.fetched, expansion.fetched + len(rows))
    keys = repeat(None) if key_at is None else [row[key_at] for row in rows]
    kept = rows if job.pool.is_exec else repeat(())
    return list(map(Item._make, zip(map(make_line, rows), numbers, keys, kept, strict=False)))


def _has_null_key(expansion: Expansion, rows: Sequence[Row]) -> bool:
    at = expansion.key_at
    return at is not None and any(row[at] is None for row in rows)


def _size_batch(world: World, expansion: Expansion, items: Sequence[Item]) -> None:
    """Ask next for as many rows as `fetch_bytes` hold, and for more when half of them are gone."""
    if items:
        average = sum(len(item.line) for item in items) / len(items)
        expansion.batch = max(1, min(world.timers.fetch_rows, int(world.timers.fetch_bytes / average)))
        expansion.low = expansion.batch // 2


def _sendable(world: World, job: Job, expansion: Expansion, items: list[Item]) -> list[Item]:
    """Fail the items whose line is too long or, of a line agent, empty or not one; return the others."""
    may_be_empty, is_raw = job.pool.is_exec or job.pool.kind.empty == "send", expansion.is_raw
    least = 0 if may_be_empty else 1
    bad = {
        item.number
        for item in items
        if not least < len(item.line) <= LINE_LIMIT + 1 or (is_raw and b"\n" in item.line[:-1])
    }
    for item in items if bad else ():
        if item.number in bad:
            _fail_unsent(world, job, expansion, item)
    return [item for item in items if item.number not in bad] if bad else items


def _fail_unsent(world: World, job: Job, expansion: Expansion, item: Item) -> None:
    """Record an item whose line can be sent to no agent."""
    job.failed += 1
    key = None if item.key is None else printable(item.key)
    reason = check_line(item.line) or ""
    head = printable(item.line[:1000].removesuffix(b"\n")) + ("..." if len(item.line) > 1000 else "")
    expansion.failures.append(ItemFailure(job.pk, job.attempt, key, head, "", job.pool.name, None, reason))
    if expansion.progress is not None and key is not None:
        expansion.progress.finish(item.number, key)
    world.log_job(job, "ERROR", f"item failed: {reason}" + (f": {head[:200]}" if head else ""))


def _enqueue_by_host(world: World, job: Job, items: Sequence[Item], values: Mapping[int, bytes | None]) -> None:
    """Let each item wait for the host its value names; a host without slots of this type means any host."""
    by_host: dict[str | None, list[Item]] = {}
    taking = job.pool.bound if job.pool.doors is None else job.pool.doors.at(job.queue, job.letter).hosts or ()
    for item in items:
        host = world.places.host_of(job.pool.name, values[item.number])
        by_host.setdefault(host if host in taking else None, []).append(item)
    for host, some in by_host.items():
        world.placed += len(some) if host is not None else 0
        enqueue(world, job, some, host)
