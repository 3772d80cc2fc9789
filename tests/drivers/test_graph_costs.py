"""What graphs cost: rows that statements look at, counted by the server, never time."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from scheduler.drivers.loop import Loop
from scheduler.model.events_and_effects import EndedAndClaimed, Settled
from scheduler.model.queue_requests import Claim, EndAndClaim, Settle
from tests.connection_tools import take_group
from tests.counts.queues import Real
from tests.queue_tools import WANT, end

Connection = psycopg.Connection[Any]

LOOKED_AT = """
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables where schemaname = 'drover'
"""
JOBS = "insert into drover.jobqueue (jq_type, jq_args) select 'a', i::text from generate_series(1, %s) i"
EDGES = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) select child, parent from ({}) e(child, parent)"
CANCEL_FIRST = """
update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2
 where jq_pk = 1
"""
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
    """Yield a connection that never commits: the server counts what its transaction looks at."""
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
    answer = real.send(EndAndClaim((), (WANT._replace(most=most),)))
    assert isinstance(answer, EndedAndClaimed)
    return list(answer.claims)


def _end(real: Real, claims: list[Claim]) -> list[int]:
    """End jobs well; the parents among them."""
    answer = real.send(EndAndClaim([end(claim) for claim in claims], ()))
    assert isinstance(answer, EndedAndClaimed)
    return list(answer.parents)


def _settle(real: Real, parents: list[int]) -> Iterator[int]:
    """Settle piece by piece; how many children each of them brings nearer."""
    left: Settle | None = Settle(parents)
    while left is not None:
        answer = real.send(left)
        assert isinstance(answer, Settled)
        yield answer.released
        left = answer.left


def _written(queue: Connection) -> int:
    """Return how often jobs were written in this transaction."""
    query = "select n_tup_upd from pg_stat_xact_user_tables where relid = 'drover.jobqueue'::regclass"
    ((count,),) = queue.execute(query).fetchall()
    return int(count)


def _unmet(queue: Connection) -> int:
    found = queue.execute("select count(*) from drover.jobqueue where jq_unmet > 0").fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.slow
def test_an_end_among_20000_blocked_jobs_reads_its_children_only_r92(queue: Connection, real: Real) -> None:
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


@pytest.mark.slow
def test_a_claim_among_20000_blocked_jobs_does_not_read_them_r92(queue: Connection, real: Real) -> None:
    _insert(queue, 20_002, "select i, 1 from generate_series(3, 20002) i")
    real.send(EndAndClaim((), (WANT._replace(most=1),)))
    before = _looked_at(queue)
    assert [claim.args for claim in _claim(real, 100)] == [b"2"]
    assert _looked_at(queue) - before < 100


def test_1000_ends_at_once_release_their_children_with_two_statements_c29_c33(queue: Connection, real: Real) -> None:
    _insert(queue, 2000, "select i + 1000, i from generate_series(1, 1000) i")
    claims = _claim(real, 2000)
    asked = real.asked.total()
    before = _looked_at(queue)
    real.send(Settle(_end(real, claims)))
    assert real.asked.total() - asked == 2
    assert _looked_at(queue) - before < 30 * 1000
    assert (len(claims), len(_claim(real, 2000)), _unmet(queue)) == (1000, 1000, 0)


@pytest.mark.slow
def test_a_fan_is_settled_by_statements_of_bounded_size_c29_r33(queue: Connection, real: Real) -> None:
    _insert(queue, 5001, "select i, 1 from generate_series(2, 5001) i")
    parents = _end(real, _claim(real, 10))
    pieces, looks = [], [_looked_at(queue)]
    for released in _settle(real, parents):
        pieces.append(released)
        looks.append(_looked_at(queue))
    assert pieces == [1000] * 5 + [0]
    assert max(after - before for before, after in pairwise(looks)) < 30 * 1000
    assert (_unmet(queue), len(_claim(real, 6000))) == (0, 5000)


@pytest.mark.slow
def test_skipping_descendants_of_a_failure_uses_statements_of_bounded_size_c35(queue: Connection, real: Real) -> None:
    queue.execute(JOBS, (1500,))
    queue.execute("""
        insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_on_unmet)
        select i, case when i < 1000 then i - 1 else 2 end, 'skip' from generate_series(2, 1500) i""")
    queue.execute(CANCEL_FIRST)
    before = _looked_at(queue)
    assert len(list(_settle(real, [1]))) > 10
    assert _looked_at(queue) - before < 30 * 1500
    states = queue.execute("select jq_state::text, count(*) from drover.jobqueue group by 1 order by 1").fetchall()
    assert states == [("cancelled", 1), ("skipped", 1499)]


@pytest.mark.slow
def test_edges_added_one_by_one_in_a_transaction_write_their_child_once_r31(queue: Connection) -> None:
    queue.execute(JOBS, (1001,))
    queue.commit()
    edge = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (1, %s)"
    queue.cursor().executemany(edge, [(parent,) for parent in range(2, 1002)])
    assert _written(queue) < 1000 + 150  # every parent is written once: it has a child now
    queue.cursor().executemany(
        "delete from drover.jobdepends where jdep_jq_depends_fk = %s", [(n,) for n in range(2, 10)]
    )
    queue.commit()
    assert queue.execute("select jq_unmet from drover.jobqueue where jq_pk = 1").fetchone() == (992,)
    before = _written(queue)
    queue.execute("delete from drover.jobdepends")
    assert _written(queue) - before < 150
    queue.commit()
    assert queue.execute("select count(*) from drover.claimable where claim_jq_fk = 1").fetchone() == (1,)


def test_parents_named_twice_are_settled_once_by_bounded_statements_c35(queue: Connection, real: Real) -> None:
    _insert(queue, 3001, "select i, case when i < 1300 then 1 else 2 end from generate_series(3, 3001) i")
    queue.execute(CANCEL_FIRST.replace("= 1\n", "in (1, 2)\n").encode())
    before = _looked_at(queue)
    assert list(_settle(real, [1, 2, 1, 2])) == [0] * 6
    assert _looked_at(queue) - before < 10 * 6000
    assert _unmet(queue) == 2999


@pytest.mark.slow
def test_children_are_found_by_an_index_of_the_parent_c30(queue: Connection) -> None:
    queue.execute("set local session_replication_role = replica")  # no triggers: they are not what is looked at
    _insert(queue, 100_000, CHAIN.replace("%s", "100000"))
    queue.execute("analyze drover.jobdepends")
    plan = queue.execute(
        "explain select * from drover.jobdepends where jdep_jq_depends_fk = any ('{17,4711}')"
    ).fetchall()
    assert "jobdepends_of_parent" in str(plan)


@pytest.mark.parametrize("build", BUILDS)
def test_cost_of_inserting_edges_grows_with_their_number_only_r31(queue: Connection, build: str) -> None:
    jobs = 5000
    queue.execute(JOBS, (jobs,))
    before = _looked_at(queue)
    queue.execute(EDGES.format(BUILDS[build].replace("%s", str(jobs))).encode())
    assert _looked_at(queue) - before < 40 * jobs


@pytest.mark.slow
def test_edges_cost_the_same_with_statistics_of_a_small_queue_r31(queue: Connection) -> None:
    jobs = 60_000
    queue.execute(JOBS, (5000,))
    queue.execute("analyze drover.jobqueue")
    queue.execute("truncate drover.jobqueue restart identity cascade")
    queue.execute(JOBS, (jobs,))
    before = _looked_at(queue)
    queue.execute("set local statement_timeout = '60s'")  # it would be hours
    queue.execute(
        EDGES.format("select i, (i - 1) / 1000 * 1000 + 1 from generate_series(1, %s) i where i %% 1000 <> 1").encode(),
        (jobs,),
    )
    assert _looked_at(queue) - before < 40 * jobs


@pytest.mark.parametrize("build", ["chain from the root", "chain from the leaf", "one parent", "one child"])
def test_an_edge_by_itself_costs_the_same_in_a_large_graph_r31(queue: Connection, build: str) -> None:
    _insert(queue, 1002, BUILDS[build].replace("%s", "1000"))
    child, parent = {"chain from the root": (1001, 1000), "chain from the leaf": (1, 1001)}.get(build, (1001, 1002))
    before = _looked_at(queue)
    queue.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent))
    assert _looked_at(queue) - before < 40


def test_of_two_concurrent_claims_one_gets_the_job_and_neither_fails_r93(
    queue: Connection, real: Real, database: str
) -> None:
    queue.execute(JOBS, (3,))
    queue.commit()
    assert len(_claim(real, 2)) == 2  # and not committed
    with psycopg.connect(database) as other:
        assert [claim.pk for claim in _claim(Real(other, other, Loop()), 3)] == [3]
