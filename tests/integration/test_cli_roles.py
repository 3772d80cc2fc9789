"""What commands show to watchers and front-ends, who may not see everything."""

import json
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.cli_tools import Done, finish, insert, run_as


def test_watcher_sees_states_but_no_arguments_of_jobs(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    job, other = (insert(active_for_roles, args="secret") for _ in range(2))
    finish(active_for_roles, job, "failed", 2, "the secret is out")
    seen = {
        words: run_as(database_with_roles, config, "readonly", words)
        for words in ("ls --json", "ls", "queue --json", "host", "agent", f"why {other}", f"wait {job}", f"exit {job}")
    }
    assert {words: done.err for words, done in seen.items() if done.err} == {}
    listed = [json.loads(line) for line in seen["ls --json"].out.splitlines()]
    assert [(each["job"], each["state"], each["text"], each["args"]) for each in listed] == [
        (job, "failed", None, None),
        (other, "queued", None, None),
    ]
    assert json.loads(seen["queue --json"].out)["queued"] == 1
    assert (seen[f"wait {job}"].status, seen[f"wait {job}"].out) == (1, f"{job} noop failed \n")
    assert seen[f"exit {job}"].out == "1\n"
    assert "secret" not in str(seen)


@pytest.mark.parametrize("role", ["frontend", "readonly", "operator"])
def test_every_role_sees_where_a_job_runs(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, role: str
) -> None:
    job = int(run_as(database_with_roles, config, "frontend", "submit noop mine").out)
    active_for_roles.execute("update drover.jobqueue set jq_state = 'claimed', jq_owner = %s, jq_starttime = now()",
                             (uuid4(),))  # fmt: skip
    active_for_roles.execute(
        "update drover.jobqueue set jq_state = 'running', jq_done_host = 'alpha', jq_done_pid = 42"
    )
    (listed,) = (json.loads(line) for line in run_as(database_with_roles, config, role, "ls --json").out.splitlines())
    assert (listed["job"], listed["host"], listed["run_host"], listed["run_pid"]) == (job, None, "alpha", 42)
    why = run_as(database_with_roles, config, role, f"why {job}").out
    assert why.startswith("running on host alpha, pid 42, in hand since ")


def test_watcher_may_refer_to_a_job_by_name(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    active_for_roles.execute(
        "insert into drover.jobqueue (jq_type, jq_name, jq_state) values ('noop', 'noop.a', 'held')"
    )
    assert run_as(database_with_roles, config, "readonly", "why noop.a") == Done(0, "held: waits for release\n", "")


def test_status_shows_a_front_end_no_numbers_of_slots_and_agents(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    done = run_as(database_with_roles, config, "frontend", "agent --json")
    assert {(each["slots"], each["agents"]) for each in map(json.loads, done.out.splitlines())} == {(None, None)}
    assert "role drover_frontend does not see slots and agents" in done.err
    watched = run_as(database_with_roles, config, "readonly", "agent --json").out.splitlines()
    assert {(each["slots"], each["agents"]) for each in map(json.loads, watched)} == {(0, 0)}


def test_front_end_lists_and_counts_its_own_jobs_with_a_note(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    insert(active_for_roles)
    mine = int(run_as(database_with_roles, config, "frontend", "submit noop mine").out)
    (listed,) = run_as(database_with_roles, config, "frontend", "ls --json").out.splitlines()
    assert (json.loads(listed)["job"], json.loads(listed)["args"]) == (mine, "mine")
    queues = run_as(database_with_roles, config, "frontend", "queue --json")
    assert json.loads(queues.out)["queued"] == 1
    assert queues.err == "drover: role drover_frontend sees its own jobs alone: no others are listed or counted\n"


@pytest.mark.parametrize(
    ("role", "count", "hidden"), [("readonly", 2, ["statements"]), ("frontend", 1, ["slots", "statements"])]
)
def test_status_names_what_the_role_may_not_see_and_shows_the_rest(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, role: str, count: int,
    hidden: list[str],
) -> None:  # fmt: skip
    insert(active_for_roles)
    with psycopg.connect(make_conninfo(database_with_roles, user="drover_frontend"), autocommit=True) as ui:
        ui.execute("insert into drover.jobqueue (jq_type) values ('noop')")
    done = run_as(database_with_roles, config, role, "status --json")
    told = json.loads(done.out)
    assert (done.status, done.err) == (0, "")
    assert [part for part in told if told[part] is None] == hidden
    assert told["jobs"] == [{"type": "noop", "queued": count, "could_start": count}]
    assert told["group"]["active"]
    shown = run_as(database_with_roles, config, role, "status")
    assert (shown.status, shown.err) == (0, "")
    assert [line for line in shown.out.splitlines() if line.startswith("note: role ")] == [
        f"note: {each}" for each in told["unseen"]
    ]


def test_check_by_a_front_end_runs_to_its_end(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    done = run_as(database_with_roles, config, "frontend", "check")
    assert (done.status, done.err) == (0, "")
    queue, watch, lease, *others = [line for line in done.out.splitlines() if not line.startswith("ok ")]
    assert all(
        "WARN log-in" in line and "DROVER_DATABASE_URL is not a daemon's login" in line
        for line in (queue, watch, lease)
    )
    assert others == ["WARN clean-ups: role drover_frontend sees its own jobs alone: no others are listed or counted"]
