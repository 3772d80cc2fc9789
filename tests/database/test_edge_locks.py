"""Edges and row locks: a front-end neither locks jobs of others nor waits for long for one of its own."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege, LockNotAvailable

Connection = psycopg.Connection[Any]

EDGE = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)"
TRANSACTIONS = "select count(*) from pg_locks where locktype = 'transactionid' and mode = 'ExclusiveLock' and pid = %s"
FREE = "select jq_pk from drover.jobqueue where jq_pk = any (%s) order by jq_pk for no key update skip locked"


@pytest.fixture
def sessions(database_with_roles: str) -> Iterator[list[Connection]]:
    """Yield two sessions of drover_frontend and one of the owner, in autocommit; no statement lasts ten seconds."""
    logins = [make_conninfo(database_with_roles, user="drover_frontend")] * 2 + [database_with_roles]
    with ExitStack() as stack:
        yield [
            stack.enter_context(psycopg.connect(login, autocommit=True, options="-c statement_timeout=10s"))
            for login in logins
        ]


def _job(session: Connection) -> int:
    row = session.execute(
        "insert into drover.jobqueue (jq_type, jq_state) values ('noop', 'held') returning jq_pk"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_edge_to_a_locked_job_of_another_user_is_refused_without_waiting(sessions: list[Connection]) -> None:
    ours, _, owner = sessions
    mine, theirs = _job(ours), _job(owner)
    with owner.transaction():
        owner.execute(FREE, ([theirs],))
        with pytest.raises(InsufficientPrivilege, match=f"job {mine} or {theirs} is not yours"):
            ours.execute(EDGE, (mine, theirs))


@pytest.mark.slow
def test_waiting_for_a_lock_of_the_same_user_ends_with_an_error_that_says_what_next(sessions: list[Connection]) -> None:
    first, second, _ = sessions
    child, parent, other = (_job(first) for _ in range(3))
    with first.transaction():
        first.execute(EDGE, (child, parent))
        with pytest.raises(LockNotAvailable, match=f"job {parent} is kept locked by another transaction: end that one"):
            second.execute(EDGE, (other, parent))
    second.execute(EDGE, (other, parent))


def test_refused_edges_wait_for_no_lock_and_keep_none(sessions: list[Connection]) -> None:
    ours, again, owner = sessions
    mine, other, held, theirs = _job(ours), _job(ours), _job(ours), _job(owner)
    with ours.transaction():
        ours.execute(EDGE, (other, held))
        with pytest.raises(InsufficientPrivilege, match=f"job {mine} or {theirs} is not yours"):
            again.execute(f"{EDGE}, (%s, %s)", (mine, held, mine, theirs))
        assert owner.execute(FREE, ([mine, theirs],)).fetchall() == [(mine,), (theirs,)]


def test_lock_timeout_of_the_session_is_unchanged(sessions: list[Connection]) -> None:
    session = sessions[0]
    session.execute("set lock_timeout = '7s'")
    with session.transaction():
        session.execute(EDGE, (_job(session), _job(session)))
        assert session.execute("show lock_timeout").fetchone() == ("7s",)
    assert session.execute("show lock_timeout").fetchone() == ("7s",)


def test_transaction_with_many_edges_has_no_subtransactions(sessions: list[Connection]) -> None:
    """Each would be a number that every snapshot has to look up: sixty-four are remembered, the rest slow all down."""
    session, _, owner = sessions
    parent, *kids = (_job(session) for _ in range(20))
    with session.transaction():
        session.cursor().executemany(EDGE, [(kid, parent) for kid in kids])
        assert owner.execute(TRANSACTIONS, (session.info.backend_pid,)).fetchone() == (1,)
