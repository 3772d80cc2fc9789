"""Statements of the watch connection, which carries the lease: none may wait long for what a front-end keeps locked.

The connection itself would wait for a lock as long as the lease lets it: here, until the statement's own limit.
"""

import json
from collections import Counter
from typing import Any, Final

import psycopg
import pytest

from scheduler.daemon.command_rows import VERBS_ABOUT
from scheduler.drivers.loop import Loop
from tests.cli_tools import ACTIVE
from tests.cli_tools import OWNER as ACTIVE_OWNER
from tests.connection_tools import PATIENT, QUERIES, ask, fetch, opened, rows_of
from tests.queue_tools import locked, states

NEIGHBOURS: Final = ("0", "defaul", "default ", "on", "one ", "é")
LONG_OVER: Final = "jq_starttime = now() - interval '9 d', jq_endtime = now() - interval '9 d'"


def test_a_retry_whose_unique_key_is_being_taken_fails_soon_r59(watch: Any, database: str) -> None:
    insert = "insert into drover.jobqueue (jq_type, jq_unique_key) values ('a', 'k') returning jq_pk"
    ((failed,),) = fetch(database, insert)
    fetch(database, f"update drover.jobqueue set jq_state = 'failed', {LONG_OVER}, jq_end_bits = 2")
    ((order,),) = fetch(database, "insert into drover.jobqueue (jq_type) values ('command') returning jq_pk")
    with psycopg.connect(database) as other:
        other.execute(insert.encode())
        assert watch("retry_job", command=order, job=failed).sqlstate == "55P03"  # that is lock_timeout
    ((why,),) = rows_of(watch("retry_job", command=order, job=failed))
    assert why == b"another job with its jq_unique_key has not ended"


def test_an_ended_locked_child_does_not_block_the_flush_of_its_parent_r52(watch: Any, database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type) values ('a'), ('a'), ('a')")
    fetch(database, "insert into drover.jobdepends values (2, 1)")
    fetch(database, f"update drover.jobqueue set jq_state = 'cancelled', {LONG_OVER}, jq_end_bits = 2 where jq_pk < 3")
    with psycopg.connect(database) as other:
        other.execute("insert into drover.jobdepends values (3, 2)")
        piece = {"command": None, "days": '{"cancelled": 1}', "most": 1, "stage": "jobs", "place": 0}
        assert rows_of(watch("flush", **piece)) == [(b"1", b"groups", b"0", b"0", b"", None)]
    assert fetch(database, "select jq_pk from drover.jobqueue order by jq_pk") == [(2,), (3,)]


@pytest.mark.parametrize(
    ("state", "not_after", "then"), [("held", "9000-01-01", "held"), ("queued", "2000-01-01", "failed")]
)
def test_a_start_that_became_due_is_not_read_again(
    watch: Any, database: str, state: str, not_after: str, then: str
) -> None:
    columns = "jq_type, jq_state, jq_not_before, jq_not_after"
    fetch(database, f"insert into drover.jobqueue ({columns}) values ('a', %s, '9000-01-01', %s)", state, not_after)
    fetch(database, "update drover.jobqueue set jq_wait_until = now() where jq_state = 'held'")
    watch("due")
    assert fetch(database, "select jq_state::text, jq_wait_until from drover.jobqueue") == [(then, None)]


def test_a_row_that_may_start_when_it_is_too_late_fails(watch: Any, database: str) -> None:
    fetch(
        database, "insert into drover.jobqueue (jq_type, jq_not_before, jq_not_after) values ('a', '9999-01-01', now())"
    )
    fetch(database, "update drover.jobqueue set jq_wait_until = now()")
    watch("due")
    assert states(database) == ["failed"]
    assert fetch(database, "select count(*) from drover.claimable") == [(0,)]


def block(database: str, jobs: int) -> None:
    """Insert jobs and let them be blocked on a condition."""
    fetch(database, f"insert into drover.jobqueue (jq_type) select 'a' from generate_series(1, {jobs})")
    state = "jq_state = 'blocked', jq_endtext = 'blocked: tape'"
    fetch(database, f"update drover.jobqueue set {state} where jq_state = 'queued'")


def check_is_due(watch: Any, database: str) -> dict[str, Any]:
    """Let the check of that condition be due; return what a daemon reads of it."""
    fetch(database, "update drover.recovery set recovery_next = now()")
    ((recovery, _, tries, came, *_),) = rows_of(watch("read_recovery"))
    return {"recovery": recovery, "tries": tries, "came": came}


def test_jobs_blocked_since_a_check_was_read_count_for_the_next_one(watch: Any, database: str) -> None:
    block(database, 2)
    read = check_is_due(watch, database)
    block(database, 3)
    check = {"most": 2, "is_limited": True, "is_new": False, "after": 1, "wait": 60.0}
    assert rows_of(watch("release_blocked", **read, **check)) == [(b"2", b"t", None)]
    assert fetch(database, "select recovery_tries, recovery_came from drover.recovery") == [(1, 3)]


def test_a_condition_on_which_a_job_was_blocked_since_it_was_read_is_not_forgotten(watch: Any, database: str) -> None:
    block(database, 1)
    read = check_is_due(watch, database)
    block(database, 1)
    fetch(database, "update drover.jobqueue set jq_state = 'queued'")
    watch("forget_recovery", **read)
    assert fetch(database, "select recovery_came from drover.recovery") == [(2,)]
    watch("forget_recovery", **read | {"came": 2})
    assert fetch(database, "select recovery_came from drover.recovery") == []


def test_commands_of_operators_are_read_first_and_those_of_others_in_turns(database_with_roles: str) -> None:
    fetch(database_with_roles, ACTIVE)
    for role, number in (("drover_frontend", 3), ("drover_frontend_sql", 2), ("drover_operator", 2)):
        with psycopg.connect(database_with_roles, user=role, autocommit=True) as login:
            login.execute("insert into drover.jobqueue (jq_type, jq_name) values ('a', %s)", (f"a.{role}",))
            for _ in range(number):
                login.execute("select drover.command(%s)", (f"hold a.{role}",))
    loop = Loop()
    connection = opened(loop, database_with_roles, settings=PATIENT)
    values = {**VERBS_ABOUT, "group": "default", "owner": ACTIVE_OWNER, "passed": []}
    rows = rows_of(ask(loop, connection, QUERIES["read_commands"], **values))
    connection.close()
    loop.close()
    one, two, free = b"hold a.drover_frontend", b"hold a.drover_frontend_sql", b"hold a.drover_operator"
    assert [row[1] for row in rows] == [free, free, one, two, one, two, one]


def test_a_locked_expired_row_does_not_block_others_c23(watch: Any, database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type, jq_not_after) select 'a', now() from generate_series(1, 2)")
    with locked(database, 1):
        ((_, _, seconds),) = rows_of(watch("due"))
    assert states(database) == ["queued", "failed"]
    assert float(seconds or 0) <= 0  # so that it is looked at again soon


def unknown_queues(watch: Any, database: str, places: int = 1000) -> dict[str, int]:
    """Return what a group finds that has the types a, aa and b, and the queues default and one."""
    fetch(database, "insert into drover.agent (agent_group, agent_type) select 'default', unnest('{a,aa,b}'::text[])")
    fetch(database, "insert into drover.queue (queue_name, queue_group) values ('one', 'default')")
    found: Counter[str] = Counter()
    kind: bytes | None = b""
    queue: bytes | None = b""
    while kind is not None:
        place = {"type": kind.decode(), "queue": (queue or b"").decode()}
        ((_, unknown, kind, queue),) = rows_of(watch("find_unserved", places=places, most=1000, **place))
        found.update(json.loads(unknown or b"{}"))
    return found


@pytest.mark.parametrize(
    ("jobs", "found"),
    [
        ([("a", "default", 50), ("b", "one", 1)], []),
        ([("a", "default", 50), ("a", "far", 40), ("a", "one", 9), ("b", "far", 1), ("aa", "far", 1)], [("far", 42)]),
        ([("a", q, 1) for q in NEIGHBOURS], [(q, 1) for q in NEIGHBOURS]),
        ([("a", "Off", 1), ("a", "p", 2), ("b", "zz", 3)], [("Off", 1), ("p", 2), ("zz", 3)]),
        ([("other", "far", 1), ("command", "default", 1)], []),
    ],
)
def test_queues_that_do_not_exist_are_found_with_the_number_of_jobs_that_wait_t38(
    watch: Any, database: str, jobs: list[tuple[str, str, int]], found: list[tuple[str, int]]
) -> None:
    insert = "insert into drover.jobqueue (jq_type, jq_queue) select %s, %s from generate_series(1, %s)"
    for kind, queue, count in jobs:
        fetch(database, insert, kind, queue, count)
    fetch(database, "insert into drover.jobqueue (jq_type, jq_queue, jq_state) values ('a', 'held', 'held')")
    assert unknown_queues(watch, database) == dict(found)


def test_unknown_queues_are_found_a_few_places_at_a_time(watch: Any, database: str) -> None:
    fetch(
        database, "insert into drover.jobqueue (jq_type, jq_queue) select 'a', 'q' || i from generate_series(1, 300) i"
    )
    assert unknown_queues(watch, database, places=7) == {f"q{i}": 1 for i in range(1, 301)}
