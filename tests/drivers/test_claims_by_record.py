"""A job that a record alone says is in hand (decision 0030): what others may do to it, and what they see."""

from typing import Any

import psycopg
import pytest

from scheduler.model.events_and_effects import EndedAndClaimed
from scheduler.model.queue_requests import End, EndAndClaim, RecordInHand
from tests.connection_tools import OTHER, QUERIES, ask, fetch, rows_of, take_group
from tests.queue_tools import OWNER, WANT, Desk, insert, many, states

ROW = "select jq_state::text, jq_attempt, jq_wanted from drover.jobqueue where jq_pk = 1"


@pytest.fixture
def order(desk: Desk, database: str) -> int:
    """Let job 1 be claimed by a record; return the number of a command about it."""
    (job,) = insert(database)
    (claim,) = desk.claim()
    assert (claim.pk, claim.is_marked, job) == (1, False, 1)
    return insert(database, "('command', 'cancel 1')")[0]


@pytest.mark.parametrize("statement", ["cancel_job", "hold_job", "ice_job"])
def test_it_is_not_taken_from_its_agent_by_a_command_about_waiting_jobs_t3(
    watch: Any, database: str, order: int, statement: str
) -> None:
    assert rows_of(watch(statement, command=order, job=1, text="x")) == []
    assert (fetch(database, ROW), states(database)[0]) == ([("queued", 0, None)], "claimed")


@pytest.mark.parametrize("wanted", ["kill", "cancel not wanted"])
def test_what_a_command_wants_of_it_is_written_and_its_end_is_saved_after_that_f126(
    watch: Any, desk: Desk, database: str, order: int, wanted: str
) -> None:
    assert rows_of(watch("set_wanted", command=order, job=1, wanted=wanted)) == [(b"1",)]
    assert fetch(database, ROW) == [("claimed", 1, wanted)]
    assert desk.ask(EndAndClaim([End(1, 1, 2_000_000, 1_500_000, "alpha", 42, None)], ())) == EndedAndClaimed([])
    assert states(database)[0] == "done"


def test_it_takes_no_new_dependency_r31(database: str, order: int) -> None:
    (parent,) = insert(database)
    with pytest.raises(psycopg.errors.CheckViolation, match="job 1 is claimed already: it takes no new dependency"):
        fetch(database, "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (1, %s)", parent)


def test_it_is_not_removed(database: str, order: int) -> None:
    with pytest.raises(psycopg.errors.LockNotAvailable, match="job 1 has just been claimed: try again"):
        fetch(database, "delete from drover.jobqueue where jq_pk = 1")


def test_a_command_that_runs_it_is_told_that_it_is_claimed_t25(watch: Any, order: int) -> None:
    ((queued, errors, _),) = rows_of(watch("begin_run", command=order, jobs=[1]))
    assert (queued, errors) == (b"0", b'{"1": "job 1 is claimed, not held"}')


@pytest.mark.parametrize("view", ["jobs", "my_jobs", "jobs_masked", "graph", "why"])
def test_views_of_people_show_it_as_claimed_j51(database: str, order: int, view: str) -> None:
    assert fetch(database, f"select jq_state::text from drover.{view} where jq_pk = 1") == [("claimed",)]


@pytest.mark.parametrize("view", ["jobs", "my_jobs"])
def test_views_of_people_show_its_attempt_and_start(database: str, order: int, view: str) -> None:
    shown = f"select jq_attempt, jq_owner::text, jq_starttime <= now(), jq_endtext from drover.{view} where jq_pk = 1"
    assert fetch(database, shown) == [(1, OWNER, True, "in progress")]


@pytest.mark.parametrize("view", ["jobs", "why"])
def test_views_ask_no_job_for_its_token_that_no_record_names(database: str, order: int, view: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type) select 'a' from generate_series(1, 5000)")
    with psycopg.connect(database) as session:
        session.execute("analyze drover.jobqueue, drover.in_hand")
        session.execute("set track_functions = 'all'")
        session.execute(f"select * from drover.{view}".encode()).fetchall()
        asked = session.execute("select calls from pg_stat_xact_user_functions where funcname = 'has_token'").fetchone()
    assert asked is not None
    assert asked[0] < 10


OLDER = """
insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid, scheduler_boot_id,
                              scheduler_pid_space, scheduler_pid_start, scheduler_version)
values (%s, 'default', 'here', 1, '', '', 1, '0.0.9')
"""


def test_a_daemon_of_the_version_before_that_takes_over_sees_all_jobs(desk: Desk, database: str) -> None:
    many(database, 40)
    taken = [claim.pk for claim in desk.claim(WANT._replace(most=3))]
    fetch(database, OLDER, OTHER)
    take_group(database, OTHER)
    marked = fetch(database, "select jq_pk, jq_attempt, jq_owner::text from drover.jobqueue where jq_state = 'claimed'")
    assert sorted(marked) == [(pk, 1, OWNER) for pk in taken]
    tokens = fetch(database, "select claim_jq_fk, claim_jobs from drover.claimable order by claim_jq_fk")
    assert tokens == [(pk, None) for pk in range(1, 41) if pk not in taken]


def test_a_daemon_of_this_version_that_takes_over_leaves_rows_and_tokens_as_they_are(desk: Desk, database: str) -> None:
    many(database, 40)
    desk.claim(WANT._replace(most=3))
    before = fetch(database, "select claim_jobs from drover.claimable order by claim_first")
    take_group(database, OTHER)
    assert fetch(database, "select claim_jobs from drover.claimable order by claim_first") == before
    assert fetch(database, "select count(*) from drover.jobqueue where jq_state <> 'queued'") == [(0,)]


def test_a_former_owner_that_forgot_it_leaves_its_record_to_the_rescue_of_the_next(desk: Desk, database: str) -> None:
    insert(database)
    take_group(database, OTHER)
    with Desk(database, OTHER) as former:
        former.claim()
        take_group(database)
        late = former.ask(EndAndClaim([End(1, 1, 2_000_000, 1_500_000, "alpha", 42, None)], ()))
        assert isinstance(late, EndedAndClaimed)
        assert list(late.fenced) == [1]
        former.ask(RecordInHand([]))
    ask(desk.loop, desk.connection, QUERIES["rescue"], group="default", owner=OWNER, live=[], age=0.0)
    assert [(claim.pk, claim.attempt) for claim in desk.claim()] == [(1, 2)]
