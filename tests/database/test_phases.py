"""Each job has one of six words, those of the original's user interface (F172)."""

import pytest

from scheduler.model.states import JOB_STATES
from tests.role_tools import Login
from tests.schema_tools import add_job, fetch_all, fetch_one, set_columns

CLAIMED = "jq_attempt = 1, jq_owner = gen_random_uuid(), jq_starttime = now()"
ENDED = "jq_starttime = now(), jq_endtime = now(), jq_end_bits"
PHASES = [
    ("jq_state = 'held'", "queued"),
    ("jq_priority = 'a'", "ready"),
    ("jq_wait_until = now() + interval '1 hour'", "queued"),
    ("jq_unmet = 1", "queued"),
    (f"jq_state = 'claimed', {CLAIMED}", "running"),
    (f"jq_state = 'claimed', {CLAIMED}; jq_state = 'running'", "running"),
    ("jq_state = 'blocked', jq_endtext = 'blocked: tape'", "blocked"),
    (f"jq_state = 'claimed', {CLAIMED}; jq_state = 'done', jq_owner = null, {ENDED} = 1", "finished"),
    (f"jq_state = 'skipped', {ENDED} = 1", "finished"),
    (f"jq_state = 'failed', {ENDED} = 2", "failed"),
    (f"jq_state = 'cancelled', {ENDED} = 2", "failed"),
    (f"jq_state = 'held'; jq_state = 'ignored', {ENDED} = 2", "failed"),
]


@pytest.mark.parametrize(("moves", "phase"), PHASES)
def test_each_state_has_one_of_six_words_f172(login: Login, moves: str, phase: str) -> None:
    owner = login("")
    job = add_job(owner)
    for columns in moves.split("; "):
        set_columns(owner, job, columns)
    assert fetch_one(owner, "select phase from drover.phases where jq_pk = %s", job) == phase


def test_every_state_was_tried_f172() -> None:
    named = " ".join(moves for moves, _ in PHASES) + " jq_state = 'queued'"
    assert [state for state in JOB_STATES if f"jq_state = '{state}'" not in named] == []
    assert {phase for _, phase in PHASES} == {"queued", "ready", "running", "blocked", "finished", "failed"}


def test_front_end_sees_the_words_of_its_own_jobs_f172(login: Login) -> None:
    add_job(login(""))
    front = login("drover_frontend")
    front.execute("insert into drover.jobqueue (jq_type) values ('noop')")
    assert fetch_all(front, "select jq_type, phase from drover.my_phases") == [("noop", "ready")]
    assert len(fetch_all(login("drover_readonly"), "select * from drover.phases")) == 2
