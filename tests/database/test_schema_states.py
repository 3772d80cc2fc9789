"""Constraints on the states, numbers, names and constant columns of a job, whoever writes."""

import psycopg
import pytest
from psycopg.errors import CheckViolation

from scheduler.database import migrate
from scheduler.errors import WorldError
from scheduler.model.states import INSERTABLE, JOB_STATES
from tests.schema_tools import (
    BEGUN,
    ENDED,
    Connection,
    add_job,
    claim_job,
    end_job,
    fetch_all,
    read_column,
    set_columns,
)

# ---- what a state means


def test_job_without_start_may_run_f30(queue: Connection) -> None:
    job = add_job(queue)
    assert read_column(queue, job, "(jq_state::text, jq_starttime, jq_endtime)") == ("queued", None, None)


@pytest.mark.parametrize("wrong", ["jq_starttime = now()", "jq_owner = gen_random_uuid()", "jq_end_bits = 1"])
@pytest.mark.parametrize("state", ["held", "queued"])
def test_waiting_job_has_no_start_no_owner_and_no_end_f30(queue: Connection, state: str, wrong: str) -> None:
    job = add_job(queue, jq_state=state)
    with pytest.raises(CheckViolation, match="jobqueue_state_says_who_and_when"):
        set_columns(queue, job, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "jq_starttime = now()",
        "jq_owner = gen_random_uuid()",
        f"{BEGUN}, jq_endtime = now()",
        f"{BEGUN}, jq_end_bits = 1",
    ],
)
def test_job_in_hand_has_an_owner_a_start_and_no_end_f31(queue: Connection, wrong: str) -> None:
    job = add_job(queue)
    with pytest.raises(CheckViolation, match="jobqueue_state_says_who_and_when"):
        set_columns(queue, job, f"jq_state = 'claimed', {wrong}")


@pytest.mark.parametrize(
    ("state", "bits"),
    [
        *[("done", 0), ("done", 2), ("done", 3), ("done", 4)],
        *[("failed", 0), ("failed", 1), ("failed", 3), ("cancelled", 1), ("cancelled", 4)],
    ],
)
def test_ended_job_has_the_bits_of_its_state_f32(queue: Connection, state: str, bits: int) -> None:
    job = add_job(queue)
    with pytest.raises(CheckViolation, match="jobqueue_state_says_who_and_when"):
        end_job(queue, job, state, bits)


@pytest.mark.parametrize(
    "wrong", ["jq_owner = null", "jq_owner = null, jq_starttime = null, jq_endtime = now()", "jq_endtime = now()"]
)
def test_ended_job_has_a_start_an_end_and_no_owner_f32(queue: Connection, wrong: str) -> None:
    job = add_job(queue)
    claim_job(queue, job)
    with pytest.raises(CheckViolation, match="jobqueue_state_says_who_and_when"):
        set_columns(queue, job, f"jq_state = 'done', jq_end_bits = 1, {wrong}")


@pytest.mark.parametrize("state", sorted(set(JOB_STATES) - INSERTABLE))
def test_job_is_inserted_held_or_queued_j25(queue: Connection, state: str) -> None:
    with pytest.raises(CheckViolation, match=f"inserted held or queued, not {state}"):
        add_job(queue, jq_state=state)


def test_states_of_code_and_database_agree_f143(database: str) -> None:
    migrate.check(database)  # raises when they do not
    with psycopg.connect(database) as connection:
        states = connection.execute("select unnest(enum_range(null::drover.job_state))::text").fetchall()
    assert [state for (state,) in states] == list(JOB_STATES)


def test_database_with_another_state_is_refused_f143(database: str, queue: Connection) -> None:
    queue.execute("alter type drover.job_state add value 'frozen'")
    with pytest.raises(WorldError, match="job state frozen: install the drover that made the database"):
        migrate.check(database)


def test_database_that_lacks_a_state_is_refused_f143(database: str, queue: Connection) -> None:
    queue.execute("alter type drover.job_state rename value 'skipped' to 'iced'")
    with pytest.raises(WorldError, match="job state iced, skipped"):
        migrate.check(database)


# ---- names, numbers, what never changes


def test_database_numbers_the_jobs_in_order_j20(queue: Connection) -> None:
    numbers = [add_job(queue), add_job(queue), add_job(queue)]
    assert numbers == sorted(set(numbers))


def test_job_number_cannot_be_chosen_j20(queue: Connection) -> None:
    with pytest.raises(psycopg.errors.GeneratedAlways):
        add_job(queue, jq_pk=7)


@pytest.mark.parametrize(
    ("job_type", "name"), [("a", "a.b"), ("billing", "billing.simpsons-8761230871234")], ids=["r22", "r23"]
)
def test_name_is_type_dot_nonce_r22_r23(queue: Connection, job_type: str, name: str) -> None:
    assert read_column(queue, add_job(queue, jq_type=job_type, jq_name=name), "jq_name") == name


@pytest.mark.parametrize("name", ["a.b.c", "a", "a.", ".b", "b.a", "a.b c", ""])
def test_other_name_is_refused_r22(queue: Connection, name: str) -> None:
    with pytest.raises(CheckViolation, match="jobqueue_name_is_type_dot_nonce"):
        add_job(queue, jq_type="a", jq_name=name)


@pytest.mark.parametrize(
    "change",
    ["jq_type = 'shell'", "jq_args = 'x'", "jq_name = 'noop.x'", "jq_msq = true", "jq_submitter = 'eve'"],
)
def test_what_a_job_asks_for_never_changes_r71(queue: Connection, change: str) -> None:
    job = add_job(queue)
    with pytest.raises(CheckViolation, match=f"what job {job} asks for never changes"):
        set_columns(queue, job, change)


def test_priority_is_stored_and_read_r76(queue: Connection) -> None:
    assert read_column(queue, add_job(queue, jq_priority="b"), "jq_priority") == "b"


@pytest.mark.parametrize("priority", ["", "a b", "ä", "x" * 17])
def test_odd_priority_is_refused_r76(queue: Connection, priority: str) -> None:
    with pytest.raises(CheckViolation):
        add_job(queue, jq_priority=priority)


def test_job_is_visible_at_once_and_may_be_cancelled_before_it_starts_t66(database: str, queue: Connection) -> None:
    job = add_job(queue)
    with psycopg.connect(database, autocommit=True) as other:
        set_columns(other, job, f"jq_state = 'cancelled', {ENDED}, jq_end_bits = 2")
    assert fetch_all(queue, "select claim_jq_fk from drover.claimable") == []
    with pytest.raises(CheckViolation):
        claim_job(queue, job)
    with pytest.raises(CheckViolation, match=f"job {job} may not move from cancelled to claimed"):
        set_columns(queue, job, f"jq_state = 'claimed', {BEGUN}, jq_endtime = null, jq_end_bits = 0")


def test_a_job_in_hand_without_a_known_obstacle_waits_for_an_agent_in_the_words_of_others(queue: Connection) -> None:
    job = add_job(queue)
    claim_job(queue, job)
    assert fetch_all(queue, "select reason from drover.why") == [("claimed, waits for an agent",)]
