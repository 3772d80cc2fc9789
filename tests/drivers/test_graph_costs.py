"""What graphs cost: rows that statements look at, counted by the server, never time."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from scheduler.loop import Loop
from scheduler.model.events import Settle, Turn, Turned
from scheduler.model.jobs import Claim
from tests.counts.queues import Real
from tests.link_tools import take_group
from tests.queue_tools import WANT, end

Connection = psycopg.Connection[Any]

LOOKED_AT = """
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables where schemaname = 'drover'
"""
JOBS = "insert into drover.jobqueue (jq_type, jq_args) select 'a', i::text from generate_series(1, %s) i"
EDGES = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) select child, parent from ({}) e(child, parent)"
CHAIN = "select i, i - 1 from generate_series(2, %s) i"
BUILDS = {
    "chain from the root": f"{CHAIN} order by i",
    "chain from the leaf": f"{CHAIN} order by i desc",
    "chain in any order": f"{CHAIN} order by hashint4(i)",
    "one parent": "select i, 1 from generate_series(2, %s) i",
    "one child": "select 1, i from generate_series(2, %s) i",
}


@pytest.fixture
def queue(database: str) -> Iterator[Connection]:
    """Give a connection that never commits: the server counts what its transaction looks at."""
    take_group(database)
    with psycopg.connect(database) as connection:
        yield connection


@pytest.fixture
def real(queue: Connection) -> Real:
    return Real(queue, queue, Loop())


def _looked_at(queue: Connection) -> int:
    found = queue.execute(LOOKED_AT).fetchone()
    assert found is not None
    return int(found[0])


def _insert(queue: Connection, jobs: int, edges: str) -> None:
    queue.execute(JOBS, (jobs,))
    queue.execute(EDGES.format(edges).encode())


def _claim(real: Real, most: int) -> list[Claim]:
    answer = real.send(Turn((), (WANT._replace(most=most),)))
    assert isinstance(answer, Turned)
    return list(answer.claims)


def _end(real: Real, claims: list[Claim]) -> list[int]:
    """End jobs well; the parents among them."""
    answer = real.send(Turn([end(claim) for claim in claims], ()))
    assert isinstance(answer, Turned)
    return list(answer.parents)


def _unmet(queue: Connection) -> int:
    found = queue.execute("select count(*) from drover.jobqueue where jq_unmet > 0").fetchone()
    assert found is not None
    return int(found[0])


def test_an_end_beside_20000_blocked_jobs_looks_at_its_children_alone_r92(queue: Connection, real: Real) -> None:
    _insert(
        queue, 20_005, "select i, 1 from generate_series(6, 20005) i union all select i, 2 from generate_series(3, 5) i"
    )
    first, second = _claim(real, 10)
    before = _looked_at(queue)
    assert _end(real, [second]) == [second.pk]
    real.send(Settle([second.pk]))
    assert _looked_at(queue) - before < 100
    assert [claim.args for claim in _claim(real, 10)] == [b"3", b"4", b"5"]
    assert (first.pk, _unmet(queue)) == (1, 20_000)


def test_a_claim_beside_20000_blocked_jobs_does_not_look_at_them_r92(queue: Connection, real: Real) -> None:
    _insert(queue, 20_002, "select i, 1 from generate_series(3, 20002) i")
    real.send(Turn((), (WANT._replace(most=1),)))
    before = _looked_at(queue)
    assert [claim.args for claim in _claim(real, 100)] == [b"2"]
    assert _looked_at(queue) - before < 100


def test_1000_ends_at_once_free_their_children_with_two_statements_c29_c33(queue: Connection, real: Real) -> None:
    _insert(queue, 2000, "select i + 1000, i from generate_series(1, 1000) i")
    claims = _claim(real, 2000)
    asked = real.asked.total()
    before = _looked_at(queue)
    real.send(Settle(_end(real, claims)))
    assert real.asked.total() - asked == 2
    assert _looked_at(queue) - before < 30 * 1000
    assert (len(claims), len(_claim(real, 2000)), _unmet(queue)) == (1000, 1000, 0)


def test_children_are_found_by_an_index_of_the_parent_c30(queue: Connection) -> None:
    _insert(queue, 20_000, CHAIN.replace("%s", "20000"))
    queue.execute("analyze drover.jobdepends")
    plan = queue.execute(
        "explain select * from drover.jobdepends where jdep_jq_depends_fk = any ('{17,4711}')"
    ).fetchall()
    assert "jobdepends_of_parent" in str(plan)


@pytest.mark.parametrize("build", BUILDS)
def test_edges_of_one_statement_cost_what_grows_with_their_number_alone_r31(queue: Connection, build: str) -> None:
    jobs = 5000
    queue.execute(JOBS, (jobs,))
    before = _looked_at(queue)
    queue.execute(EDGES.format(BUILDS[build].replace("%s", str(jobs))).encode())
    assert _looked_at(queue) - before < 40 * jobs


@pytest.mark.parametrize("build", ["chain from the root", "chain from the leaf", "one parent", "one child"])
def test_an_edge_by_itself_costs_the_same_in_a_large_graph_r31(queue: Connection, build: str) -> None:
    _insert(queue, 1002, BUILDS[build].replace("%s", "1000"))
    child, parent = {"chain from the root": (1001, 1000), "chain from the leaf": (1, 1001)}.get(build, (1001, 1002))
    before = _looked_at(queue)
    queue.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent))
    assert _looked_at(queue) - before < 40


def test_a_job_that_two_look_at_is_claimed_by_one_and_is_no_error_to_the_other_r93(
    queue: Connection, real: Real, database: str
) -> None:
    queue.execute(JOBS, (3,))
    queue.commit()
    assert len(_claim(real, 2)) == 2  # and not committed
    with psycopg.connect(database) as other:
        assert [claim.pk for claim in _claim(Real(other, other, Loop()), 3)] == [3]
