"""The states of jobs in the words of the Jobs service of Tapis (T114)."""

import pytest

from tests.role_tools import Login
from tests.schema_tools import add_job, claim_job, end_job, fetch_all, fetch_one, set_columns

ENDED = "jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2"
STAGE = "select stage from drover.my_stages where jq_pk = %s"


@pytest.mark.parametrize(
    ("columns", "stage"),
    [
        ("jq_state = 'held'", "PAUSED"),
        ("jq_priority = 'a'", "QUEUED"),
        ("jq_wait_until = now() + interval '1 hour'", "PENDING"),
        ("jq_state = 'blocked', jq_endtext = 'blocked: tape'", "BLOCKED"),
        (f"jq_state = 'cancelled', {ENDED}", "CANCELLED"),
        (f"jq_state = 'failed', {ENDED}", "FAILED"),
        ("jq_state = 'skipped', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 1", "FINISHED"),
    ],
)
def test_each_state_has_a_name_of_tapis_t114(login: Login, columns: str, stage: str) -> None:
    owner = login("")
    job = add_job(owner)
    set_columns(owner, job, columns)
    assert fetch_one(owner, STAGE, job) == stage


def test_a_job_that_is_worked_shows_its_stage_t67_t114(login: Login) -> None:
    owner = login("")
    plain, staging = add_job(owner), add_job(owner, jq_variables='{"stage": "STAGING_INPUTS"}')
    seen = [fetch_one(owner, STAGE, plain)]
    for job in (plain, staging):
        claim_job(owner, job)
        seen.append(fetch_one(owner, STAGE, job))
        set_columns(owner, job, "jq_state = 'running'")
        seen.append(fetch_one(owner, STAGE, job))
    ended = add_job(owner)
    end_job(owner, ended)
    assert [*seen, fetch_one(owner, STAGE, ended)] == [
        "QUEUED", "SUBMITTING_JOB", "RUNNING", "SUBMITTING_JOB", "STAGING_INPUTS", "FINISHED",
    ]  # fmt: skip


def test_a_stranger_sees_no_stages_t113_t114(login: Login) -> None:
    add_job(login(""))
    assert fetch_all(login("drover_frontend"), "select * from drover.my_stages") == []
