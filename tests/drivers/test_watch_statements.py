"""Statements of the watch connection, which carries the lease: none may wait long for what a front-end keeps locked.

The connection itself would wait for a lock as long as the lease lets it: here, until the statement's own limit.
"""

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from scheduler.commands import VERBS_ABOUT
from scheduler.loop import Loop
from tests.cli_tools import ACTIVE
from tests.cli_tools import OWNER as ACTIVE_OWNER
from tests.link_tools import OWNER, QUERIES, ask, fetch, opened, rows_of, take_group
from tests.queue_tools import locked, states

PATIENT: Final = ["set lock_timeout = '1min'", "set statement_timeout = '10s'"]
LONG_OVER: Final = "jq_starttime = now() - interval '9 d', jq_endtime = now() - interval '9 d'"


@pytest.fixture
def watch(database: str) -> Iterator[Any]:
    """Give what runs a named query of the daemon that owns the group."""
    take_group(database)
    loop = Loop()
    link = opened(loop, database, settings=PATIENT)
    yield lambda name, **values: ask(loop, link, QUERIES[name], group="default", owner=OWNER, **values)
    link.close()
    loop.close()


def test_a_retry_whose_unique_key_is_about_to_be_taken_gives_up_soon_r59(watch: Any, database: str) -> None:
    insert = "insert into drover.jobqueue (jq_type, jq_unique_key) values ('a', 'k') returning jq_pk"
    ((failed,),) = fetch(database, insert)
    fetch(database, f"update drover.jobqueue set jq_state = 'failed', {LONG_OVER}, jq_end_bits = 2")
    ((order,),) = fetch(database, "insert into drover.jobqueue (jq_type) values ('command') returning jq_pk")
    with psycopg.connect(database) as other:
        other.execute(insert.encode())
        assert watch("retry_job", command=order, job=failed).sqlstate == "55P03"  # that is lock_timeout
    ((why,),) = rows_of(watch("retry_job", command=order, job=failed))
    assert why == b"another job with its jq_unique_key has not ended"


def test_a_child_that_is_over_and_locked_holds_up_no_flush_of_its_parent_r52(watch: Any, database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type) values ('a'), ('a'), ('a')")
    fetch(database, "insert into drover.jobdepends values (2, 1)")
    fetch(database, f"update drover.jobqueue set jq_state = 'cancelled', {LONG_OVER}, jq_end_bits = 2 where jq_pk < 3")
    with psycopg.connect(database) as other:
        other.execute("insert into drover.jobdepends values (3, 2)")
        piece = {"command": None, "days": 1, "failed": False, "most": 1, "stage": "jobs", "place": 0}
        assert rows_of(watch("flush", **piece)) == [(b"1", b"groups", b"0")]
    assert fetch(database, "select jq_pk from drover.jobqueue order by jq_pk") == [(2,), (3,)]


@pytest.mark.parametrize(
    ("state", "not_after", "then"), [("held", "9000-01-01", "held"), ("queued", "2000-01-01", "failed")]
)
def test_a_start_whose_time_has_come_is_looked_for_no_more(
    watch: Any, database: str, state: str, not_after: str, then: str
) -> None:
    columns = "jq_type, jq_state, jq_not_before, jq_not_after"
    fetch(database, f"insert into drover.jobqueue ({columns}) values ('a', %s, '9000-01-01', %s)", state, not_after)
    fetch(database, "update drover.jobqueue set jq_wait_until = now() where jq_state = 'held'")
    watch("due")
    assert fetch(database, "select jq_state::text, jq_wait_until from drover.jobqueue") == [(then, None)]


def test_operators_commands_are_read_first_and_those_of_others_in_turn(database_with_roles: str) -> None:
    fetch(database_with_roles, ACTIVE)
    for role, number in (("drover_frontend", 3), ("drover_frontend_sql", 2), ("drover_operator", 2)):
        with psycopg.connect(database_with_roles, user=role, autocommit=True) as login:
            login.execute("insert into drover.jobqueue (jq_type, jq_name) values ('a', %s)", (f"a.{role}",))
            for _ in range(number):
                login.execute("select drover.command(%s)", (f"hold a.{role}",))
    loop = Loop()
    link = opened(loop, database_with_roles, settings=PATIENT)
    values = {**VERBS_ABOUT, "group": "default", "owner": ACTIVE_OWNER, "passed": []}
    rows = rows_of(ask(loop, link, QUERIES["read_commands"], **values))
    link.close()
    loop.close()
    one, two, free = b"hold a.drover_frontend", b"hold a.drover_frontend_sql", b"hold a.drover_operator"
    assert [row[1] for row in rows] == [free, free, one, two, one, two, one]


def test_a_locked_row_whose_time_is_over_holds_up_no_other_c23(watch: Any, database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type, jq_not_after) select 'a', now() from generate_series(1, 2)")
    with locked(database, 1):
        ((_, _, seconds),) = rows_of(watch("due"))
    assert states(database) == ["queued", "failed"]
    assert float(seconds or 0) <= 0  # so that it is looked at again soon


def test_a_job_that_is_retried_has_used_up_none_of_its_allowances(watch: Any, database: str) -> None:
    ((failed,), (order,)) = fetch(
        database, "insert into drover.jobqueue (jq_type) values ('a'), ('command') returning jq_pk"
    )
    used = "jq_failures = 1, jq_interruptions = 2, jq_rescued = 3, jq_retry_at = now()"
    fetch(
        database,
        f"update drover.jobqueue set jq_state = 'failed', {LONG_OVER}, jq_end_bits = 2, {used} where jq_pk = 1",
    )
    assert rows_of(watch("retry_job", command=order, job=failed)) == [(None,)]
    counts = "select jq_failures, jq_interruptions, jq_rescued, jq_retry_at from drover.jobqueue where jq_pk = 1"
    assert fetch(database, counts) == [(0, 0, 0, None)]


def test_the_jobs_that_are_unblocked_wait_for_that_condition_alone_t85(watch: Any, database: str) -> None:
    ((order,),) = fetch(database, "insert into drover.jobqueue (jq_type) values ('command') returning jq_pk")
    for words in ("disk", "disk is full", "disk2", "disk2 is full", "dis"):
        fetch(database, "insert into drover.jobqueue (jq_type, jq_args) values ('a', %s)", words)
    blocked = "jq_wait_until = 'infinity', jq_endtext = 'blocked: ' || jq_args"
    fetch(database, f"update drover.jobqueue set {blocked} where jq_type = 'a'")
    assert rows_of(watch("unblock", command=order, job=None, condition="disk")) == [(b"2", b"2")]
    free = "select jq_args from drover.jobqueue where jq_type = 'a' and jq_wait_until is null order by jq_pk"
    assert fetch(database, free) == [("disk",), ("disk is full",)]
