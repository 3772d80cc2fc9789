"""What `--depends` and `depends` of a new job may name, and who may hand in SQL; on a real database."""

import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests import warm
from tests.cli_tools import DROVER, Drover, environment, finish, insert, one, run_as


def set_up(database: str, config: Path, name: str, text: str) -> "subprocess.CompletedProcess[str]":
    variables = environment(database, config)
    return subprocess.run(
        [*DROVER, "setup", name], input=text, capture_output=True, text=True, env=variables, check=False
    )


def count(connection: psycopg.Connection) -> int:
    return int(one(connection.execute("select count(*) from drover.jobqueue"))[0])


def test_a_parent_that_does_not_exist_is_named(drover: Drover, active: psycopg.Connection) -> None:
    parent = insert(active)
    done = drover("submit", "noop", "--depends", str(parent), "--depends", "400", "--depends", "401")
    assert (done.status, done.out) == (1, "")
    assert done.err == "drover: no job 400, 401; nothing was queued; drover ls --all lists all jobs\n"
    assert count(active) == 1


@pytest.mark.parametrize("state", ["cancelled", "skipped", "ignored"])
def test_a_parent_that_never_succeeds_is_refused(drover: Drover, active: psycopg.Connection, state: str) -> None:
    parent = insert(active)
    active.execute("update drover.jobqueue set jq_state = 'held' where jq_pk = %s and %s = 'ignored'", (parent, state))
    active.execute(
        "update drover.jobqueue set jq_state = (%s::text)::drover.job_state, jq_starttime = now(), jq_endtime = now(),"
        " jq_end_bits = 2 where jq_pk = %s", (state, parent),
    )  # fmt: skip
    done = drover("submit", "noop", "--depends", str(parent))
    assert (done.status, count(active)) == (1, 1)
    assert done.err == (
        f"drover: job {parent} is {state}, and never succeeds: a job that depends on it waits for ever; "
        "queue it nevertheless with --force\n"
    )
    assert drover("submit", "noop", "--force", "--depends", str(parent)).status == 0


def test_a_failed_parent_is_taken_with_a_warning(drover: Drover, active: psycopg.Connection) -> None:
    parent = insert(active)
    finish(active, parent, "failed", 2, "exit status 3")
    done = drover("submit", "noop", "--depends", str(parent))
    assert (done.status, count(active)) == (0, 2)
    assert done.err == (
        f"drover: job {parent} has failed: what depends on it waits until it is done, after drover retry {parent}\n"
    )


def test_parents_that_are_done_or_wait_are_taken_without_a_word(drover: Drover, active: psycopg.Connection) -> None:
    done, waiting = insert(active), insert(active)
    finish(active, done)
    answer = drover("submit", "noop", "--depends", str(done), "--depends", str(waiting))
    assert (answer.status, answer.err) == (0, "")


def test_setup_behind_a_cancelled_job_is_refused(
    drover: Drover, database: str, config: Path, active: psycopg.Connection
) -> None:
    parent = insert(active)
    active.execute(
        "update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2"
    )
    done = set_up(database, config, "noop.1", f"depends={parent}\n")
    assert (done.returncode, count(active)) == (2, 1)
    assert f"job {parent} is cancelled, and never succeeds" in done.stderr


@pytest.mark.parametrize(
    ("words", "columns"),
    [("--sql", "jq_msq"), ("--runonpfile host", "jq_runonpfile"), ("--sql --key a", "jq_key, jq_msq")],
)
def test_front_end_that_may_hand_in_no_sql_reads_which_role_may(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, words: str, columns: str
) -> None:
    done = run_as(database_with_roles, config, "frontend", f"submit {words} noop select")
    assert (done.status, count(active_for_roles)) == (2, 0)
    assert done.err == (
        f"permission denied: role drover_frontend may not give {columns}; members of drover_frontend_sql may: "
        "connect as a role that has the right; see drover-jobqueue(7)\n"
    )
    assert run_as(database_with_roles, config, "frontend_sql", f"submit {words} noop select").status == 0


@pytest.mark.parametrize("words", [["submit"], ["schedule", "add", "nightly"]])
def test_role_that_may_queue_nothing_reads_who_may_though_it_asks_for_attributes(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, words: list[str]
) -> None:
    variables = environment(make_conninfo(database_with_roles, user="drover_readonly"), config)
    every = ["--every", "1d"] if words[0] == "schedule" else []
    done = warm.run([*DROVER, *words, *every, "license version=2", "x"], env=variables)
    assert (done.returncode, count(active_for_roles)) == (2, 0)
    assert done.stderr.startswith("permission denied for role drover_readonly, which may not queue jobs; members of ")
