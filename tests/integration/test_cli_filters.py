"""ls, retry, cancel and flush by filters, on a real database, and once by the real daemon."""

import json
import re
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from tests.cli_tools import Drover, finish, insert, one, run_as
from tests.integration.conftest import Ask, Launch
from tests.integration.puppets import puppet

INSERT = """
insert into drover.jobqueue (jq_type, jq_queue, jq_job_fk, jq_state, jq_submitter, jq_queued)
values (%s, %s, %s, %s, %s, now() - make_interval(days => %s))
"""


def listed(drover: Drover, words: str) -> list[int]:
    return [json.loads(line)["job"] for line in drover("ls", "--json", "--all", *words.split()).out.splitlines()]


@pytest.fixture
def mixed(active: psycopg.Connection) -> psycopg.Connection:
    """Jobs 1 to 5: done, failed, queued in mail and of another role, sha256 in group 1, held; 1 to 3 are old."""
    active.execute("insert into drover.queue (queue_name, queue_group) values ('mail', 'default')")
    active.execute("insert into drover.job (job_name) values ('scan')")
    for kind, queue, group, state, submitter, days in (
        ("noop", "default", None, "queued", "postgres", 3), ("noop", "default", None, "queued", "postgres", 3),
        ("noop", "mail", None, "queued", "web", 3), ("sha256", "default", 1, "queued", "postgres", 0),
        ("noop", "default", None, "held", "postgres", 0),
    ):  # fmt: skip
        active.execute(INSERT, (kind, queue, group, state, submitter, days))
    finish(active, 1)
    finish(active, 2, "failed", 2, "exit status 7")
    active.execute("update drover.jobqueue set jq_done_host = 'beta', jq_exitcode = 7 where jq_pk = 2")
    active.execute("update drover.jobqueue set jq_host = 'gamma' where jq_pk = 5")
    return active


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        ("--queue mail", [3]),
        ("--queue mail --queue default --type sha256", [4]),
        ("--by web", [3]),
        ("--group 1", [4]),
        ("--since 1h", [1, 2, 4, 5]),
        ("--since 2001-01-01", [1, 2, 3, 4, 5]),
        ("--until 1d", [3]),
        ("--since 4d --until 2d", [3]),
        ("--ran-on beta", [2]),
        ("--code 7", [2]),
        ("--code exit_status --code normal", [1, 2]),
        ("--host gamma", [5]),
        ("--sort type", [1, 2, 3, 5, 4]),
        ("--sort end", [3, 4, 5, 1, 2]),
        ("--sort queue", [1, 2, 4, 5, 3]),
        ("--sort waited -n 1", [3]),
    ],
)
def test_ls_chooses_and_sorts_jobs_r59_r61(
    drover: Drover, mixed: psycopg.Connection, words: str, jobs: list[int]
) -> None:
    assert listed(drover, words) == jobs


def test_ls_shows_ends_if_a_job_has_one(drover: Drover, mixed: psycopg.Connection) -> None:
    assert "END" in drover("ls").out.splitlines()[0].split()
    assert "END" not in drover("ls", "-S", "queued").out.splitlines()[0].split()


def test_ls_says_that_the_text_of_a_job_that_waits_is_of_before(drover: Drover, active: psycopg.Connection) -> None:
    first, second = insert(active), insert(active)
    active.execute("update drover.jobqueue set jq_endtext = 'blocked: quota:a' where jq_pk = %s", (first,))
    active.execute("update drover.jobqueue set jq_endtext = 'exit status 7', jq_retry_at = now() + interval '1 d',"
                   " jq_wait_until = now() + interval '1 d' where jq_pk = %s", (second,))  # fmt: skip
    done = drover("ls").out.splitlines()
    assert done[1].endswith("  before: blocked: quota:a")
    assert re.search(r"  next try at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: exit status 7$", done[2])
    rows = [json.loads(line) for line in drover("ls", "--json").out.splitlines()]
    assert [(row["text"], row["next_try"] is None) for row in rows] == [
        ("blocked: quota:a", True), ("exit status 7", False)
    ]  # fmt: skip


def test_ls_sorts_by_how_long_an_agent_had_a_job(drover: Drover, mixed: psycopg.Connection) -> None:
    """Both jobs waited an hour for their agents: job 1 took a minute then, job 2 a second."""
    mixed.execute("update drover.jobqueue set jq_starttime = now() - interval '1 h', jq_endtime = now(),"
                  " jq_processedtime = make_interval(secs => 60 - 59 * (jq_pk - 1)) where jq_pk in (1, 2)")  # fmt: skip
    assert listed(drover, "--sort ran")[-2:] == [2, 1]


def test_ls_refuses_a_time_that_is_none(drover: Drover, mixed: psycopg.Connection) -> None:
    done = drover("ls", "--since", "soon")
    assert done.status == 2
    assert "--since: 'soon' is neither a duration (90, 15m, 2d) nor a time (2030-12-24 18:00)" in done.err


def test_dry_run_prints_which_jobs_and_does_nothing(drover: Drover, mixed: psycopg.Connection) -> None:
    done = drover("cancel", "--type", "noop", "--dry-run")
    assert done.out.splitlines()[0] == "would cancel 2 jobs: 1 held, 1 queued"
    chosen = drover("retry", "--since", "1h", "--dry-run", "--json").out.splitlines()
    assert [json.loads(line) for line in chosen] == [{"number": 2, "state": "failed"}]
    assert one(mixed.execute("select count(*) from drover.jobqueue where jq_type = 'command'"))[0] == 0


def test_without_a_terminal_yes_is_needed(drover: Drover, mixed: psycopg.Connection) -> None:
    done = drover("cancel", "--type", "noop")
    assert (done.status, done.out) == (2, "")
    assert done.err == ("drover cancel: this is about 2 jobs: 1 held, 1 queued; give --yes, or look with --dry-run\n")


def test_nothing_to_do_is_said_and_no_failure(drover: Drover, mixed: psycopg.Connection) -> None:
    assert drover("retry", "--queue", "mail").out == "nothing to retry: no jobs in queue mail are failed\n"


@pytest.mark.parametrize(
    ("words", "status"), [("--ran-on beta --code 7 --until 2099-01-01", [2]), ("--code 8", []), ("--until 1h", [])]
)
def test_failed_jobs_are_chosen_by_code_host_and_time(
    drover: Drover, mixed: psycopg.Connection, words: str, status: list[int]
) -> None:
    done = drover("retry", *words.split(), "--dry-run", "--json")
    assert [json.loads(line)["number"] for line in done.out.splitlines() if line.startswith("{")] == status


def test_nothing_for_a_host_names_the_filter_of_where_jobs_ran(drover: Drover, mixed: psycopg.Connection) -> None:
    assert "; --ran-on chooses by the host where a job ran" in drover("retry", "--host", "beta").out


def test_flush_removes_the_chosen_and_keeps_what_others_wait_for(drover: Drover, mixed: psycopg.Connection) -> None:
    mixed.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (4, 2)")
    mixed.execute("update drover.jobqueue set jq_endtime = now() - interval '2 days' where jq_pk in (1, 2)")
    assert drover("flush", "1", "--failed", "--type", "noop", "--dry-run").out.splitlines()[0] == (
        "would flush 2 jobs: 1 done, 1 failed"
    )
    done = drover("flush", "1", "--failed", "--type", "noop", "--yes")
    assert done.out == "flush: removed 1 of 2 jobs; 1 stay, since others wait for them\n"
    assert listed(drover, "") == [2, 3, 4, 5]


def test_only_operators_flush_jobs(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    job = int(run_as(database_with_roles, config, "frontend", "submit noop mine").out)
    finish(active_for_roles, job)
    active_for_roles.execute("update drover.jobqueue set jq_endtime = now() - interval '2 days'")
    refused = run_as(database_with_roles, config, "frontend", "flush 1 --type noop --yes")
    assert (refused.status, refused.out) == (2, "")
    assert run_as(database_with_roles, config, "operator", "flush 1 --type noop --yes").status == 0
    with pytest.raises(InsufficientPrivilege):
        active_for_roles.execute("set role drover_readonly; select drover.flush_jobs('{1}')")


def test_front_end_chooses_among_its_own_jobs_only(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    insert(active_for_roles)
    mine = int(run_as(database_with_roles, config, "frontend", "submit noop mine").out)
    done = run_as(database_with_roles, config, "frontend", "cancel --type noop --dry-run --json")
    assert json.loads(done.out) == {"number": mine, "state": "queued"}


def test_daemon_retries_and_cancels_what_filters_choose(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.local]\n" + puppet() + "[queues.mail]\n")
    failing = daemon.insert_all([{"jq_type": "puppet", "jq_args": "echo FAIL no"} for _ in range(3)])
    daemon.wait_all(failing, "failed")
    done = ask("retry --type puppet --since 1h --yes")
    assert (done.status, done.out) == (0, "retry: 3 of 3 jobs\n")
    held = daemon.insert(jq_type="puppet", jq_queue="mail", jq_state="held")
    answer = json.loads(ask("cancel --queue mail --reason because --yes --json").out)
    assert (answer["ok"], answer["words"]) == (True, "cancel all because")
    assert answer["result"] == {"jobs": 1, "given": {}, "refused": 0, "reasons": {}}
    assert daemon.wait(held, "cancelled")["jq_endtext"] == "because"
