"""Sessions that add edges at the same time: none waits for another's graph, and no cycle comes of what each sees."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.errors import CheckViolation, DeadlockDetected, InvalidTransactionState, LockNotAvailable

from tests.patience import LONG_PATIENCE_S
from tests.queue_tools import insert

Connection = psycopg.Connection[Any]

EDGE = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s) on conflict do nothing"
EDGES = "select jdep_jq_fk, jdep_jq_depends_fk from drover.jobdepends"
CROSSWISE = (CheckViolation, DeadlockDetected, LockNotAvailable)  # the last: the server was slow to find which
SESSIONS = 6


@pytest.fixture
def queue(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("set lock_timeout = '50ms'")
        yield connection


def _held(database: str, count: int) -> list[int]:
    return insert(database, ", ".join(["('noop', 'held')"] * count), "jq_type, jq_state")


def test_uncommitted_edges_do_not_block_other_graphs_r31(database: str, queue: Connection) -> None:
    jobs = _held(database, 6)
    for mine in jobs[:3], jobs[3:]:
        queue.execute(EDGE, mine[:2])
    with psycopg.connect(database) as other:
        other.execute(EDGE, jobs[1:3])
        queue.execute(EDGE, jobs[4:6])
        with pytest.raises(CheckViolation, match="that would be a cycle"):
            queue.execute(EDGE, (jobs[5], jobs[3]))


def test_second_half_of_a_cycle_waits_for_the_first(database: str, queue: Connection) -> None:
    """The two halves share no row, so locks on the rows of the edges alone would let both in."""
    jobs = _held(database, 4)
    queue.execute(EDGE, jobs[:2])
    queue.execute(EDGE, jobs[2:])
    with psycopg.connect(database) as other:
        other.execute(EDGE, jobs[1:3])
        with pytest.raises(LockNotAvailable):
            queue.execute(EDGE, (jobs[3], jobs[0]))
    with pytest.raises(CheckViolation, match="that would be a cycle"):
        queue.execute(EDGE, (jobs[3], jobs[0]))


def test_cycle_built_by_four_sessions_at_once_lacks_an_edge(database: str) -> None:
    jobs = _held(database, 4)
    start = threading.Barrier(4)

    def tie(child: int, parent: int) -> str:
        with psycopg.connect(database, autocommit=True) as session:
            start.wait(LONG_PATIENCE_S)
            try:
                session.execute(EDGE, (child, parent))
            except CROSSWISE as error:
                return str(error)
            return "tied"

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(tie, jobs, jobs[1:] + jobs[:1]))
    assert told.count("tied") == 3
    assert [text for text in told if any(why in text for why in ("that would be a cycle", "deadlock", "lock timeout"))]


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_transaction_stricter_than_read_committed_cannot_join_graphs_r31(
    database: str, queue: Connection, level: IsolationLevel
) -> None:
    jobs = _held(database, 4)
    queue.execute(EDGE, jobs[:2])
    queue.execute(EDGE, jobs[2:])
    with psycopg.connect(database) as other:
        other.isolation_level = level
        with pytest.raises(InvalidTransactionState, match="read committed"):
            other.execute(EDGE, jobs[1:3])
        other.rollback()
        other.execute(EDGE, (*_held(database, 1), jobs[0]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_sessions_that_add_edges_at_random_make_no_cycle_r31(database: str, queue: Connection, seed: int) -> None:
    jobs = _held(database, 24)
    with ThreadPoolExecutor(SESSIONS) as pool:
        tied = list(pool.map(lambda session: _tie(database, jobs, f"{seed} {session}"), range(SESSIONS)))
    assert sum(tied) > SESSIONS  # who comes late may find every edge of its own to close a cycle
    parents: dict[int, set[int]] = {job: set() for job in jobs}
    for child, parent in queue.execute(EDGES):
        parents[child].add(parent)
    assert len(list(TopologicalSorter(parents).static_order())) == len(jobs)


def _tie(database: str, jobs: list[int], seed: str) -> int:
    """Add edges in twenty transactions, which take their time to commit; how many of them were let in."""
    rng, tied = random.Random(seed), 0
    with psycopg.connect(database) as session:
        session.execute("set deadlock_timeout = '20ms'")
        session.commit()
        for _ in range(20):
            try:
                session.cursor().executemany(EDGE, [rng.sample(jobs, 2) for _ in range(rng.randint(1, 3))])
                session.execute("select pg_sleep(%s)", (rng.random() / 100,))
                session.commit()
                tied += 1
            except CROSSWISE:
                session.rollback()
    return tied
