"""What is counted, by name: each measure gives some figures, the same ones in every run, and knows no limits.

Those of this file run in this process, in lockstep (lockstep.py); processes.py looks at a daemon from outside.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from scheduler.model.config_reader import parse
from scheduler.model.queue_requests import EndAndClaim
from scheduler.policy.core import Core
from tests.core_tools import make_core
from tests.counts.lockstep import TYPE, Lockstep
from tests.counts.memory import Memory
from tests.counts.meters import ENTRIES, LSN, TUPLES, Work, buffers, number, work
from tests.counts.place import Place
from tests.counts.queues import TELL, Real, WatchStatements

Figures = dict[str, float]
Make = Callable[..., Core]

JOBS: Final = 2000
FEW, MANY = 16, 1000  # slots
FEW_HOSTS, MANY_HOSTS, ON_HOST = 10, 100, 50  # slots: F153's site, and a tenth of it
SHALLOW, DEEP = 1000, 100_000  # rows of a table
ONE_LOOK: Final = 5000  # rows that query `due` lets go at once
CLAIMED: Final = 100
SAVED_S: Final = 0.01  # between two saves of progress: every 400 items

PUT: Final = """
insert into drover.jobqueue (jq_type, jq_args) select %s, 'argument number ' || i from generate_series(1, %s) i
"""

# In statements so small that their jobs share no tokens.
PUT_APART: Final = """
do $$ begin
  for n in 1..{1} / 25 loop
    insert into drover.jobqueue (jq_type, jq_args) select '{0}', 'argument number ' || i from generate_series(1, 25) i;
  end loop;
end $$
"""
# Each beyond the others, a minute after it.
PUT_WAITING: Final = """
insert into drover.jobqueue (jq_type, jq_args, jq_not_before)
select %s, 'argument number ' || i, now() + interval '1 day' + i * interval '1 min' from generate_series(1, %s) i
"""
COME: Final = """
update drover.jobqueue set jq_wait_until = now() - interval '1 s'
 where jq_pk in (select jq_pk from drover.jobqueue where jq_wait_until is not null order by jq_wait_until limit %s)
"""
PUT_QUERY: Final = "insert into drover.jobqueue (jq_type, jq_args, jq_msq, jq_key) values ('noop', %s, true, %s)"
ROWS: Final = "select i as id, 'some/path/of/file_' || i as path from generate_series(1, {}) i"
COPY: Final = "copy drover.jobqueue (jq_type, jq_args) from stdin"


# ---- our Python


def python(make: Make = make_core) -> Figures:
    """Calls of the core's functions for a job, for the row of a query, and for a job that finds all idle."""
    return {
        "calls_per_job": _drained(4, make).calls / JOBS,
        "calls_per_item": _expanded(4, make).calls / JOBS,
        "calls_per_lone_job": _lone(4, make).calls,
        "calls_per_idle_tick": _idle(4, make).calls,
    }


def slots(make: Make = make_core) -> Figures:
    """Measure how many times the lines grow from FEW to MANY slots."""
    return {
        "job_growth_with_slots": _drained(MANY, make).lines / _drained(FEW, make).lines,
        "item_growth_with_slots": _expanded(MANY, make).lines / _expanded(FEW, make).lines,
        "lone_job_growth_with_slots": _lone(MANY, make).lines / _lone(FEW, make).lines,
    }


def idle_slots(make: Make = make_core) -> Figures:
    """The same for a turn without work."""
    return {"idle_tick_growth_with_slots": _idle(MANY, make).lines / _idle(FEW, make).lines}


def sites() -> Figures:
    """Lines that it takes to read a configuration and be ready for it, a slot; and how many times more on 10 times."""
    _loaded(FEW_HOSTS)  # what is made once
    few, many = _loaded(FEW_HOSTS).lines / FEW_HOSTS, _loaded(MANY_HOSTS).lines / MANY_HOSTS
    return {"lines_per_slot_loaded": many / ON_HOST, "load_growth_with_hosts": many / few}


def in_hand(make: Make = make_core) -> Figures:
    """Measure how many times the lines of a job or an item grow when 20 times as many rows are in hand."""
    few, many = {"hold_max": 50, "hold": 100.0}, {"hold_max": 1000, "hold": 100.0}
    return {
        "job_growth_in_hand": _drained(4, make, **many).lines / _drained(4, make, **few).lines,
        "item_growth_in_hand": _expanded(4, make, fetch_rows=1000).lines / _expanded(4, make, fetch_rows=50).lines,
    }


def _drained(slots: int, make: Make, **timers: Any) -> Work:
    memory = Memory()
    daemon = _warm(memory, slots, make, **timers)
    memory.put(JOBS)
    with work() as counted:
        daemon.work(JOBS)
    return counted


def _expanded(slots: int, make: Make, **timers: Any) -> Work:
    memory = Memory()
    daemon = _warm(memory, slots, make, **timers)
    memory.put_query(JOBS)
    with work() as counted:
        daemon.work(JOBS)
    return counted


def _lone(slots: int, make: Make) -> Work:
    memory = Memory()
    daemon = _warm(memory, slots, make)
    memory.put(1)
    with work() as counted:
        daemon.work(1)
    return counted


def _idle(slots: int, make: Make) -> Work:
    daemon = _warm(Memory(), slots, make)
    with work() as counted:
        daemon.core.tick(daemon.now)
        daemon.act()
    return counted


def _loaded(hosts: int) -> Work:
    text = "".join(f"[hosts.h{number}]\nmax = {ON_HOST}\n" for number in range(hosts))
    with work() as counted:
        Core(parse([("drover.toml", f'{text}[agents.a]\ncommand = ["agent"]\nslots = {ON_HOST}\n')]))
    return counted


def _warm(memory: Memory, slots: int, make: Make, **timers: Any) -> Lockstep:
    """A daemon whose every slot has an agent, and that has come to rest."""
    daemon = Lockstep(memory, slots=slots, make=make, **timers)
    memory.put(JOBS)
    daemon.work(JOBS)
    return daemon


# ---- the database


def jobs(place: Place, kind: type[Real] = Real) -> Figures:
    """Measure what a drain of one-parameter jobs costs the database, and our Python with all it takes to ask it."""
    with _served(place, kind) as (queue, owner, daemon):
        _put(owner, JOBS)
        before = _tuples(queue, owner)
        with _asked(queue) as asked, _written(owner) as written, work() as counted:
            daemon.work(JOBS)
        inserted, updated, hot, deleted = (new - old for new, old in zip(_tuples(queue, owner), before, strict=True))
    return {
        "statements_per_1000_jobs": 1000 * asked[0] / JOBS,
        "wal_bytes_per_job": written[0] / JOBS,
        "row_versions_per_job": (inserted + updated + deleted) / JOBS,
        "indexed_updates_per_job": (updated - hot) / JOBS,
        "calls_per_job_asked_for": counted.calls / JOBS,
    }


def lone_jobs(place: Place) -> Figures:
    """Measure what a job costs the database that finds all idle; the mean of some."""
    with _served(place) as (queue, owner, daemon):
        asked_of, written_of = [], []
        for _ in range(20):
            _put(owner, 1)
            with _asked(queue) as asked, _written(owner) as written:
                daemon.work(1)
            asked_of += asked
            written_of += written
    return {"statements_per_lone_job": sum(asked_of) / 20, "wal_bytes_per_lone_job": sum(written_of) / 20}


def items(place: Place) -> Figures:
    """Measure what the rows of a query cost the database, without a key and with one."""
    figures: Figures = {}
    for name, key in (("item", None), ("keyed_item", "id")):
        with _served(place, progress_interval=SAVED_S) as (queue, owner, daemon):
            _put_query(owner, JOBS, key)
            with _asked(queue) as asked, _written(owner) as written:
                daemon.work(JOBS)
        figures[f"statements_per_1000_{name}s"] = 1000 * asked[0] / JOBS
        figures[f"wal_bytes_per_1000_{name}s"] = 1000 * written[0] / JOBS
    return figures


def copied(place: Place) -> Figures:
    """Measure what a front-end's COPY of one-parameter jobs writes."""
    with place.queue() as (_, owner):
        before = number(owner, ENTRIES)
        with _written(owner) as written:
            _copy(owner, 10_000)
        owner.execute("analyze")
        entries = number(owner, ENTRIES) - before
    return {"wal_bytes_per_copied_job": written[0] / 10_000, "index_entries_per_copied_job": entries / 10_000}


def claims(place: Place) -> Figures:
    """Pages that a claim of CLAIMED rows looks at: among few, behind many of another type, before many of its own."""
    with place.queue() as (queue, owner):
        _put(owner, SHALLOW)
        owner.execute("analyze")
        few = _pages(queue)
        owner.execute(PUT_APART.format("another", DEEP).encode())
        fresh = _pages(queue)
        owner.execute("analyze")
        other = _pages(queue)
        _put(owner, DEEP)
        owner.execute("analyze")
        own = _pages(queue)
        owner.execute(PUT_WAITING.encode(), (TYPE, DEEP))
        owner.execute("analyze")
        waiting = _pages(queue)
    return {
        "pages_per_claim": few / CLAIMED,
        "claim_growth_behind_new_rows": fresh / few,
        "claim_growth_behind_other_types": other / few,
        "claim_growth_with_depth": own / few,
        "claim_growth_beside_waiting_rows": waiting / own,
    }


def due(place: Place) -> Figures:
    """Pages that a look for rows whose time has come looks at: CLAIMED of few that wait, of many, and all of many."""
    with place.queue() as (_, owner), psycopg.connect(owner.info.dsn, user="drover_scheduler", autocommit=True) as ours:
        watch = WatchStatements(ours)
        owner.execute(PUT_WAITING.encode(), (TYPE, SHALLOW))
        owner.execute(COME.encode(), (CLAIMED,))
        owner.execute("analyze")
        few = buffers(watch.explain_due())
        owner.execute(PUT_WAITING.encode(), (TYPE, DEEP))
        fresh = buffers(watch.explain_due())
        owner.execute("analyze")
        many = buffers(watch.explain_due())
        _put(owner, DEEP)
        owner.execute("analyze")
        beside = buffers(watch.explain_due())
        owner.execute(COME.encode(), (DEEP,))
        every = buffers(watch.explain_due())
    return {
        "pages_per_due_row": few / CLAIMED,
        "due_growth_behind_new_rows": fresh / few,
        "due_growth_with_waiting": many / few,
        "due_growth_beside_queued": beside / few,
        "due_row_growth_when_all_are_due": every / ONE_LOOK / (few / CLAIMED),
    }


def _pages(queue: Real) -> int:
    """Explain what a daemon with as many free slots asks first."""
    request = Lockstep(queue, slots=CLAIMED).core.next_request(0.0)
    assert isinstance(request, EndAndClaim)
    return buffers(queue.explain(request))


@contextmanager
def _served(
    place: Place, kind: type[Real] = Real, **timers: Any
) -> Iterator[tuple[Real, psycopg.Connection[Any], Lockstep]]:
    """Yield a queue and the daemon that serves it, both used enough that a first time costs nothing any more."""
    with place.queue(kind) as (queue, owner):
        daemon = Lockstep(queue, **timers)
        _put(owner, JOBS)
        daemon.work(JOBS)
        _put_query(owner, 100, None)
        daemon.work(100)
        yield queue, owner, daemon


def _put(owner: psycopg.Connection[Any], count: int) -> None:
    owner.execute(PUT.encode(), (TYPE, count))


def _put_query(owner: psycopg.Connection[Any], rows: int, key: str | None) -> None:
    owner.execute(PUT_QUERY.encode(), (ROWS.format(rows), key))


def _copy(owner: psycopg.Connection[Any], count: int) -> None:
    owner.execute("set role drover_frontend")
    with owner.cursor().copy(COPY.encode()) as copy:
        for number in range(count):
            copy.write_row((TYPE, f"argument number {number}"))
    owner.execute("reset role")


@contextmanager
def _asked(queue: Real) -> Iterator[list[int]]:
    """Yield how many statements were run within a block."""
    found: list[int] = []
    before = queue.asked.total()
    yield found
    found.append(queue.asked.total() - before)


@contextmanager
def _written(owner: psycopg.Connection[Any]) -> Iterator[list[int]]:
    """Yield how many bytes of WAL were written within a block."""
    found: list[int] = []
    before = number(owner, LSN)
    yield found
    found.append(number(owner, LSN) - before)


def _tuples(queue: Real, owner: psycopg.Connection[Any]) -> tuple[int, ...]:
    """Return rows inserted, updated, those of them heap-only, and deleted by the daemon so far."""
    queue.tell_statistics()
    owner.execute(TELL.encode())
    row = owner.execute(TUPLES.encode()).fetchone()
    assert row is not None
    return tuple(row)
