"""Jobs that one statement inserts share tokens (decision 0032): each is claimed once, in order, whoever else comes."""

import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

import psycopg
import pytest
from psycopg.errors import CheckViolation, LockNotAvailable

from scheduler.drivers.loop import Loop
from scheduler.model.events_and_effects import EndedAndClaimed
from scheduler.model.queue_requests import Claim, EndAndClaim, Settle
from tests.connection_tools import OWNER, fetch, take_group
from tests.counts.queues import Real
from tests.patience import PATIENCE_S
from tests.queue_tools import WANT, Desk, end, insert, locked, many

Connection = psycopg.Connection[Any]

ALL: Final = WANT._replace(most=1000)
BLOCK: Final = 32
TOKENS: Final = (
    "select coalesce(claim_jobs, array[claim_jq_fk]) from drover.claimable order by claim_queued, claim_first"
)
HOLD: Final = "update drover.jobqueue set jq_state = 'held' where jq_pk = any (%s)"
RELEASE: Final = "update drover.jobqueue set jq_state = 'queued' where jq_pk = any (%s)"
EDGES: Final = (
    "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) select pk, %s from unnest(%s::bigint[]) pk"
)
BLOCKED: Final = """
select pid from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0
"""
DELETE: Final = """
delete from drover.jobqueue where jq_pk = any (%s) and jq_pk not in (select jdep_jq_depends_fk from drover.jobdepends)
"""


def tokens(database: str) -> list[list[int]]:
    """Return the jobs of each token, in the order of claims."""
    return [jobs for (jobs,) in fetch(database, TOKENS)]


def waiting(database: str) -> list[int]:
    """Return the jobs that have a token, in the order of claims."""
    return [pk for jobs in tokens(database) for pk in jobs]


def numbers(claims: list[Claim]) -> list[int]:
    return [claim.pk for claim in claims]


def without(*gone: int) -> list[int]:
    """Return the first 100 numbers but these."""
    return [pk for pk in range(1, 101) if pk not in gone]


@pytest.fixture
def shared(database: str) -> str:
    """Return the conninfo of a queue with 100 plain jobs of one statement, 1 to 100."""
    many(database, 100)
    return database


@contextmanager
def claiming(database: str, most: int) -> Iterator[tuple[list[int], Connection]]:
    """Claim in a transaction; yield the numbers of the jobs, and the connection that commits."""
    take_group(database)
    with psycopg.connect(database) as connection:
        connection.execute("select")  # begins the transaction
        answer = Real(connection, connection, Loop()).send(EndAndClaim((), (WANT._replace(most=most),)))
        assert isinstance(answer, EndedAndClaimed)
        yield numbers(list(answer.claims)), connection


@contextmanager
def blocked(database: str, statement: str, *values: object) -> Iterator[Future[list[tuple[Any, ...]]]]:
    """Run a statement that waits for a lock of another session; yield when it does."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(fetch, database, statement, *values)
        late = monotonic() + PATIENCE_S
        while not fetch(database, BLOCKED):
            assert monotonic() < late
            assert not future.done()
        yield future


# ---- which jobs share a token


def test_jobs_of_a_large_statement_share_a_token_in_each_block(shared: str) -> None:
    found = tokens(shared)
    assert [pk for jobs in found for pk in jobs] == without()
    assert [len({pk // BLOCK for pk in jobs}) for jobs in found] == [1, 1, 1, 1]


def test_jobs_of_a_small_statement_have_a_token_each(database: str) -> None:
    many(database, BLOCK - 1)
    assert tokens(database) == [[pk] for pk in range(1, BLOCK)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("jq_msq", "true"),
        ("jq_unique_key", "i::text"),
        ("jq_not_after", "now() + interval '1 h'"),
        ("jq_host", "i::text"),
        ("jq_queue", "i::text"),
        ("jq_priority", "chr(64 + i / 2)"),
        ("jq_queued", "now() - i * interval '1 s'"),
    ],
)
def test_a_job_that_its_row_must_show_or_that_is_claimed_elsewhere_has_its_own_token(
    database: str, column: str, value: str
) -> None:
    ones = f"select 'a', {value} from generate_series(2, 50, 2) i"
    fetch(
        database, f"insert into drover.jobqueue (jq_type, {column}) {ones} union all {ones.replace('2, 50', '3, 51')}"
    )
    assert {len(jobs) for jobs in tokens(database)} <= {1, 2}


def test_jobs_of_a_fair_type_have_a_token_each(database: str) -> None:
    fair = "insert into drover.agent (agent_group, agent_type, agent_fair, agent_fair_file)"
    fetch(database, f"{fair} values ('default', 'a', true, true)")
    many(database, 100)
    assert {len(jobs) for jobs in tokens(database)} == {1}


def test_no_token_is_shared_while_a_daemon_of_the_version_before_is_active(database: str) -> None:
    take_group(database)
    fetch(
        database,
        "insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid,"
        " scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version)"
        " values (%s, 'default', 'h', 1, 'b', 's', 1, '0')",
        OWNER,
    )
    many(database, 100)
    assert {len(jobs) for jobs in tokens(database)} == {1}


def test_children_that_are_let_go_at_once_share_tokens(desk: Desk, database: str) -> None:
    (parent,) = insert(database)
    many(database, 100)
    fetch(database, EDGES, parent, list(range(2, 102)))
    assert waiting(database) == [parent]
    desk.ask(EndAndClaim([end(claim) for claim in desk.claim(ALL)], ()))
    desk.ask(Settle([parent]))
    assert (waiting(database), len(tokens(database))) == (list(range(2, 102)), 4)


# ---- claims


def test_claims_cut_tokens_and_take_every_job_once_in_order_j47_j48(desk: Desk, shared: str) -> None:
    claims = [desk.claim(WANT._replace(most=7)) for _ in range(16)]
    assert [claim.args for each in claims for claim in each] == [b"%d" % pk for pk in without()]
    assert [len(each) for each in claims] == [7] * 14 + [2, 0]
    assert tokens(shared) == []


def test_a_claim_continues_within_a_token(desk: Desk, shared: str) -> None:
    answer = desk.turn(WANT._replace(most=40))
    assert numbers(desk.claim(WANT._replace(most=5, after=answer.reached[WANT._replace(most=40)]))) == [
        41, 42, 43, 44, 45,
    ]  # fmt: skip


def test_a_claim_continues_after_jobs_that_were_left_before_its_position(desk: Desk, shared: str) -> None:
    with locked(shared, 3):
        answer = desk.turn(WANT._replace(most=10))
        assert numbers(list(answer.claims)) == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert numbers(desk.claim(WANT._replace(most=2, after=answer.reached[WANT._replace(most=10)]))) == [12, 13]
    assert numbers(desk.claim(WANT._replace(most=2))) == [3, 14]


def test_a_locked_row_stays_in_its_token_and_the_others_are_taken_j51(desk: Desk, shared: str) -> None:
    with locked(shared, 3):
        assert numbers(desk.claim(ALL)) == without(3)
    assert tokens(shared) == [[3]]
    assert numbers(desk.claim(ALL)) == [3]


def test_a_shared_job_that_is_given_back_has_a_token_again(desk: Desk, shared: str) -> None:
    claims = desk.claim_and_mark(ALL)
    back = "jq_state = 'queued', jq_owner = null, jq_starttime = null"
    fetch(shared, f"update drover.jobqueue set {back} where jq_pk in (5, 9)")
    assert waiting(shared) == [5, 9]
    desk.ask(EndAndClaim([end(claim) for claim in claims if claim.pk not in (5, 9)], ()))
    assert [(claim.pk, claim.attempt) for claim in desk.claim(ALL)] == [(5, 2), (9, 2)]


def test_of_two_concurrent_claims_each_gets_tokens_of_its_own_r93(desk: Desk, shared: str) -> None:
    with claiming(shared, 40) as (theirs, _):
        ours = numbers(desk.claim(ALL))
    rest = numbers(desk.claim(ALL))
    assert theirs == list(range(1, 41))
    assert sorted(theirs + ours + rest) == without()
    assert rest == list(range(41, 64))  # of the token that they cut


# ---- others take jobs out of tokens


@pytest.mark.parametrize(
    ("statement", "gone"),
    [
        ("update drover.jobqueue set jq_state = 'held' where jq_pk in (1, 40, 100)", (1, 40, 100)),
        ("delete from drover.jobqueue where jq_pk between 30 and 70", tuple(range(30, 71))),
        (
            "update drover.jobqueue set jq_wait_until = now() + interval '1 h' where jq_pk % 2 = 0",
            tuple(range(2, 101, 2)),
        ),
        ("update drover.jobqueue set jq_queue = 'q' where jq_pk = 7", (7,)),
    ],
)
def test_a_job_that_may_not_run_any_more_leaves_its_token(desk: Desk, shared: str, statement: str, gone: Any) -> None:
    fetch(shared, statement)
    assert numbers(desk.claim(ALL)) == without(*gone)


def test_jobs_that_get_a_dependency_leave_their_tokens_at_once_r31(desk: Desk, shared: str) -> None:
    fetch(shared, EDGES, 1, [2, 3, 33, 64, 99])
    assert numbers(desk.claim(ALL)) == without(2, 3, 33, 64, 99)


def test_a_job_that_was_held_and_released_is_claimed_in_its_place(desk: Desk, shared: str) -> None:
    fetch(shared, HOLD, [5, 6, 50])
    fetch(shared, RELEASE, [5, 6, 50])
    assert waiting(shared) == without()
    assert numbers(desk.claim(ALL)) == without()


def test_a_token_that_a_front_end_has_locked_is_skipped_and_its_commit_wakes_the_daemon(
    desk: Desk, shared: str
) -> None:
    with psycopg.connect(shared, autocommit=True) as listener:
        listener.execute("listen drover_queue")
        with psycopg.connect(shared) as other:
            other.execute(HOLD, ([3],))
            assert numbers(desk.claim(ALL)) == list(range(32, 101))
        assert [each.channel for each in listener.notifies(timeout=PATIENCE_S, stop_after=1)] == ["drover_queue"]
    assert numbers(desk.claim(ALL)) == [pk for pk in range(1, 32) if pk != 3]


def test_to_hold_a_job_that_a_claim_leaves_in_its_token_waits_for_the_claim(shared: str) -> None:
    with claiming(shared, 5) as (claims, session), blocked(shared, HOLD, [9]) as held:
        session.commit()
        held.result()
    assert waiting(shared) == without(*claims, 9)


def test_to_hold_a_job_that_a_claim_takes_is_refused(shared: str) -> None:
    with claiming(shared, 5) as (_, session), blocked(shared, HOLD, [3]) as held:
        session.commit()
        with pytest.raises(LockNotAvailable, match="job 3 has just been claimed: try again"):
            held.result()


def test_an_edge_to_a_job_that_a_claim_leaves_in_its_token_waits_for_the_claim_r31(shared: str) -> None:
    with claiming(shared, 5) as (claims, session), blocked(shared, EDGES, 100, [9, 40]) as added:
        session.commit()
        added.result()
    assert waiting(shared) == without(*claims, 9, 40)


def test_an_edge_to_a_job_that_a_claim_takes_is_refused_r31(shared: str) -> None:
    with claiming(shared, 5) as (_, session), blocked(shared, EDGES, 100, [3, 9]) as added:
        session.commit()
        with pytest.raises(CheckViolation, match="job 3 is claimed already: it takes no new dependency"):
            added.result()


def test_two_sessions_that_take_jobs_out_of_one_token_wait_for_each_other(shared: str) -> None:
    with psycopg.connect(shared) as other:
        other.execute(HOLD, ([3],))
        with blocked(shared, HOLD, [9]) as held:
            other.commit()
            held.result()
    assert waiting(shared) == without(3, 9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_each_waiting_job_has_one_token_whatever_happens(desk: Desk, shared: str, seed: int) -> None:
    rng = random.Random(seed)
    claimed: list[Claim] = []
    held: list[int] = []
    for _ in range(30):
        free = waiting(shared)
        match rng.choice(("claim", "hold", "release", "edges", "delete", "insert")):
            case "claim":
                with locked(shared, rng.choice(free) if free else 0):
                    claimed += desk.claim(WANT._replace(most=rng.choice((1, 5, 40))))
            case "hold":
                some = rng.sample(free, min(3, len(free)))
                fetch(shared, HOLD, some)
                held += some
            case "release":
                fetch(shared, RELEASE, held)
                held = []
            case "edges" if len(free) > 10:
                parent, *children = rng.sample(free, 4)
                fetch(shared, EDGES, parent, children)
                fetch(shared, "delete from drover.jobdepends where jdep_jq_fk = any (%s)", children[:2])
            case "delete":
                fetch(shared, DELETE, rng.sample(free, min(2, len(free))))
            case _:
                many(shared, rng.choice((1, 40)))
        named = waiting(shared) + numbers(claimed)
        runnable = fetch(shared, "select jq_pk from drover.jobqueue where jq_state = 'queued' and jq_unmet = 0")
        assert sorted(named) == sorted(pk for (pk,) in runnable)
