"""drover.claimable is exactly what may be claimed, and jobs are counted, whatever happened to the rows.

See man/decisions/0008 and 0074.
"""

from collections.abc import Iterator

import psycopg
import pytest

from tests.job_count_tools import jobs_out_of_bounds, wrong_counts

DIFFERENCE = """
    with named as (
      select unnest(coalesce(claim_jobs, array[claim_jq_fk])), claim_type, claim_queue, claim_host, claim_rank,
             claim_queued
        from drover.claimable),
    due as (
      select jq_pk, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''),
             case when jq_urgent then '0' else '1' end || jq_priority,
             jq_queued
        from drover.jobqueue
       where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null)
    select 'too many', * from (table named except all table due) n
    union all
    select 'missing', * from (table due except all table named) d
"""
CLAIM = """
    update drover.jobqueue set jq_state = 'claimed', jq_owner = gen_random_uuid(), jq_starttime = now() where jq_pk = 1
"""
BACK = """
    update drover.jobqueue set jq_state = 'queued', jq_owner = null, jq_starttime = null where jq_pk = 1
"""
TAKE = "delete from drover.claimable where claim_jq_fk = 1"  # as query `end_and_claim` does with what it claims
BOTH = """
    with j as (insert into drover.jobqueue (jq_type) values ('a') returning jq_pk)
    insert into drover.jobdepends select jq_pk, 1 from j {}
"""  # with a limit the trigger on the edges comes first
END = "jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2"


ALONE = "insert into drover.jobqueue (jq_type) values ('a'), ('a'), ('b')"
SHARED = """
    insert into drover.jobqueue (jq_pk, jq_type) overriding system value
    select case when i > 3 then 100 + i else i end, case i when 3 then 'b' else 'a' end from generate_series(1, 60) i
"""


@pytest.fixture(params=[ALONE, SHARED], ids=["alone", "shared"])
def queue(database: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """Yield a queue of three plain jobs, one held, one for later and one command; the first two may share a token."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(request.param)
        connection.execute("select setval('drover.jobqueue_jq_pk_seq', 3)")
        connection.execute("insert into drover.jobqueue (jq_type, jq_state) values ('a', 'held')")
        connection.execute("insert into drover.jobqueue (jq_type, jq_not_before) values ('a', now() + interval '1 h')")
        connection.execute("insert into drover.jobqueue (jq_type, jq_args) values ('command', 'poll')")
        yield connection


MOVES = pytest.mark.parametrize(
    "moves",
    [
        pytest.param([], id="inserted"),
        pytest.param([CLAIM, TAKE], id="claimed"),
        pytest.param([CLAIM, TAKE, BACK], id="given back"),
        pytest.param([CLAIM, TAKE, BACK, "update drover.jobqueue set jq_priority = 'a'"], id="given back, moved up"),
        pytest.param(["update drover.jobqueue set jq_state = 'held' where jq_pk = 1"], id="held"),
        pytest.param(["update drover.jobqueue set jq_state = 'queued' where jq_pk = 4"], id="released"),
        pytest.param(["update drover.jobqueue set jq_wait_until = null where jq_pk = 5"], id="due"),
        pytest.param(
            ["update drover.jobqueue set jq_wait_until = now() + interval '1 h' where jq_pk = 2"], id="put off"
        ),
        pytest.param(["update drover.jobqueue set jq_host = 'h', jq_queue = 'q' where jq_pk = 2"], id="sent elsewhere"),
        pytest.param(["update drover.jobqueue set jq_urgent = true"], id="urgent"),
        pytest.param([f"update drover.jobqueue set jq_state = 'cancelled', {END} where jq_pk = 2"], id="cancelled"),
        pytest.param([f"update drover.jobqueue set jq_state = 'failed', {END} where jq_pk = 2"], id="failed"),
        pytest.param(["delete from drover.jobqueue where jq_pk = 3"], id="deleted"),
        pytest.param(["insert into drover.jobdepends values (2, 1)"], id="waits for another"),
        pytest.param(
            ["insert into drover.jobdepends values (2, 1)", "delete from drover.jobdepends"], id="waits no longer"
        ),
        pytest.param([BOTH.format("")], id="inserted with its edge"),
        pytest.param([BOTH.format("limit 1")], id="its edge is there first"),
        pytest.param([BOTH.format("limit 1"), "delete from drover.jobdepends"], id="its edge was there first"),
    ],
)


@MOVES
def test_claimable_holds_exactly_the_jobs_that_may_be_claimed(queue: psycopg.Connection, moves: list[str]) -> None:
    for move in moves:
        queue.execute(move.encode())
    assert queue.execute(DIFFERENCE).fetchall() == []


@MOVES
def test_jobs_are_counted_exactly_p11(queue: psycopg.Connection, moves: list[str]) -> None:
    for move in moves:
        queue.execute(move.encode())
        queue.execute("select drover.add_up_changes(3)")
    assert wrong_counts(queue) == []
    assert jobs_out_of_bounds(queue) == []
    while queue.execute("select drover.add_up_changes(3)").fetchone() != (0,):
        pass
    assert wrong_counts(queue) == []
    assert jobs_out_of_bounds(queue) == []
    assert queue.execute("select from drover.job_change").fetchall() == []


def test_plain_jobs_are_claimed_and_ended_without_touching_an_index(queue: psycopg.Connection) -> None:
    queue.execute(CLAIM)
    queue.execute("""update drover.jobqueue set jq_state = 'done', jq_owner = null, jq_endtime = now(), jq_end_bits = 1
                      where jq_pk = 1""")
    queue.execute("select pg_stat_force_next_flush()" if queue.info.server_version >= 150000 else "select 1")
    updated = queue.execute("select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'jobqueue'")
    assert updated.fetchone() == (2, 2)
