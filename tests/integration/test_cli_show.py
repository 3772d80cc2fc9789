"""drover show, items and why --all, on a real database, and once by the real daemon."""

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.cli_tools import Drover, finish, insert, run_as, write_log
from tests.integration.conftest import Ask, Launch
from tests.integration.puppets import rows

FAILURE = """
with job as (update drover.jobqueue set jq_itemsfailed = %(count)s where jq_pk = %(job)s)
insert into drover.item_failure (item_jq_fk, item_attempt, item_key, item_line, item_host, item_agent, item_reason)
select %(job)s, %(attempt)s, n, 'path="' || n || '"', 'alpha', 'noop', %(reason)s || n
  from generate_series(1, %(count)s) n
"""


def fail_items(
    session: psycopg.Connection, job: int, count: int, *, attempt: int = 1, reason: str = "no file /srv/"
) -> None:
    """Let so many items of a job fail in an attempt, each with its number in the reason."""
    session.execute(FAILURE, {"job": job, "count": count, "attempt": attempt, "reason": reason})


def test_show_prints_all_that_is_known_of_a_job(drover: Drover, active: psycopg.Connection) -> None:
    parent, job, child = (insert(active, args=f"args of {n}") for n in range(3))
    for below, above in ((job, parent), (child, job)):
        active.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (below, above))
    finish(active, parent)
    active.execute("select drover.settle(array[%s::bigint], 0, 100, true)", (parent,))
    finish(active, job, "failed", 2, "exit status 3")
    fail_items(active, job, 11)
    write_log(active, job, "it said \x1b[2J")
    told = drover("show", str(job)).out
    heads = [line.split("  ")[0] for line in told.splitlines()]
    assert heads[:5] == ["job", "state", "why", "type", "args"]
    for text in ("Depends on", "Jobs that depend on it", "Items that failed, the newest 10", "Log", r"it said \x1b[2J"):
        assert text in told
    assert f"drover items {job}" in told
    seen = json.loads(drover("show", str(job), "--json").out)
    assert (seen["job"]["args"], seen["job"]["state"]) == ("args of 1", "failed")
    assert [edge["job"] for part in ("parents", "children") for edge in seen[part]] == [parent, child]
    assert (len(seen["items"]), len(seen["log"]), seen["unseen"]) == (11, 1, [])


def test_show_and_items_of_no_job_fail(drover: Drover, active: psycopg.Connection) -> None:
    for command in ("show", "items", "why"):
        done = drover(command, "99")
        assert (done.status, done.err) == (1, "drover: no job 99; drover ls --all lists all jobs\n")


def test_items_lists_failed_items_with_their_reasons(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active)
    fail_items(active, job, 3)
    assert [json.loads(line)["key"] for line in drover("items", str(job), "--json").out.splitlines()] == ["1", "2", "3"]
    fewer = drover("items", str(job), "-n", "2")
    assert fewer.err == "drover: only the newest 2 are listed; -n 0 lists all\n"
    assert [line.split()[1] for line in fewer.out.splitlines()] == ["KEY", "2", "3"]


def test_items_lists_what_failed_last_and_with_all_the_rest(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active)
    fail_items(active, job, 5, attempt=1)
    fail_items(active, job, 2, attempt=2, reason="still no file /srv/")

    def attempts(*options: str) -> list[int]:
        lines = drover("items", str(job), "--json", *options).out.splitlines()
        return [json.loads(line)["attempt"] for line in lines]

    assert (attempts(), attempts("--all")) == ([2, 2], [1, 1, 1, 1, 1, 2, 2])
    assert len(json.loads(drover("show", str(job), "--json").out)["items"]) == 2


def test_items_counts_many_failures_by_reason(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active)
    fail_items(active, job, 30, attempt=1, reason="timeout after ")
    fail_items(active, job, 21, attempt=1)
    active.execute("update drover.jobqueue set jq_itemsfailed = 51 where jq_pk = %s", (job,))
    counted = [json.loads(line) for line in drover("items", str(job), "--by-reason", "--json").out.splitlines()]
    assert [(each["items"], each["reason"]) for each in counted] == [(30, "timeout after 1"), (21, "no file /srv/1")]
    lines = drover("items", str(job)).out.splitlines()
    assert [line.split()[:3] for line in lines[-2:]] == [["30", "timeout", "after"], ["21", "no", "file"]]


def test_items_says_that_there_are_none(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active)
    assert drover("items", str(job)).out == f"job {job} is no query: it has no items; it is queued\n"


def test_why_all_groups_jobs_by_reason(drover: Drover, active: psycopg.Connection) -> None:
    jobs = [insert(active, kind) for kind in ("nosuch", "nosuch", "noop", "command")]
    held = active.execute("insert into drover.jobqueue (jq_type, jq_state) values ('noop', 'held') returning jq_pk")
    ((held_job,),) = held.fetchall()
    reasons = [json.loads(line) for line in drover("why", "--all", "--json").out.splitlines()]
    assert [(each["jobs"], each["reason"], each["example"]) for each in reasons if each["types"] == "nosuch"] == [
        (2, "no agent type 'nosuch' is configured in group default", jobs[0])
    ]
    assert {each["example"]: each["reason"] for each in reasons}[held_job] == "held: waits for release"
    assert sum(each["jobs"] for each in reasons) == 4
    assert drover("why", "--all").out.splitlines()[0].split() == ["JOBS", "TYPES", "OLDEST", "EXAMPLE", "REASON"]


def test_why_all_says_in_general_what_differs_from_job_to_job(drover: Drover, active: psycopg.Connection) -> None:
    parent, *children = (insert(active) for _ in range(3))
    for child in children:
        active.execute(
            "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent)
        )
    active.execute("insert into drover.jobqueue (jq_type, jq_not_before) values ('noop', now() + interval '1 h')")
    reasons = {
        each["reason"]: each["jobs"] for each in map(json.loads, drover("why", "--all", "--json").out.splitlines())
    }
    assert reasons["waits for other jobs"] == 2
    assert reasons["waits until the time that it asks for"] == 1


def test_why_all_asks_about_the_hundred_kinds_with_the_most_jobs_and_counts_the_others(
    drover: Drover, active: psycopg.Connection
) -> None:
    active.execute(
        "insert into drover.jobqueue (jq_type) select 'two' || i from generate_series(1, 100) i, (values (1), (2)) v"
    )
    active.execute("insert into drover.jobqueue (jq_type) select 'one' || i from generate_series(10, 24) i")
    reasons = [json.loads(line) for line in drover("why", "--all", "--json").out.splitlines()]
    assert sum(each["jobs"] for each in reasons) == 215
    (others,) = [each for each in reasons if each["reason"].startswith("not looked at: kinds with fewer jobs")]
    assert (others["jobs"], others["kinds"], others["example"]) == (15, 15, None)
    assert others["types"] == ", ".join(f"one{i}" for i in range(10, 20)) + " and 5 more"
    assert len([each for each in reasons if "is configured" in each["reason"] and each["jobs"] == 2]) == 100


def test_why_all_of_nothing_says_so(drover: Drover, active: psycopg.Connection) -> None:
    assert drover("why", "--all").out == "no job waits or runs\n"


def test_front_end_sees_what_is_known_of_its_own_job_and_nothing_of_others(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    other = insert(active_for_roles, args="secret")
    mine = int(run_as(database_with_roles, config, "frontend", "submit noop mine").out)
    fail_items(active_for_roles, mine, 1)
    fail_items(active_for_roles, other, 1)
    seen = json.loads(run_as(database_with_roles, config, "frontend", f"show {mine} --json").out)
    assert (seen["job"]["args"], len(seen["items"]), seen["unseen"]) == ("mine", 1, [])
    for words in (f"show {other}", f"items {other}", f"why {other}"):
        done = run_as(database_with_roles, config, "frontend", words)
        assert (done.status, done.out) == (1, "")
    reasons = run_as(database_with_roles, config, "frontend", "why --all --json")
    assert [json.loads(line)["jobs"] for line in reasons.out.splitlines()] == [1]
    assert reasons.err == "drover: role drover_frontend sees its own jobs alone: no others are listed or counted\n"


def test_watcher_sees_states_and_edges_but_no_data(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection
) -> None:
    job = insert(active_for_roles, args="secret")
    finish(active_for_roles, job, "failed", 2, "the secret is out")
    fail_items(active_for_roles, job, 1)
    write_log(active_for_roles, job, "secret")
    done = run_as(database_with_roles, config, "readonly", f"show {job} --json")
    seen = json.loads(done.out)
    assert (seen["job"]["state"], seen["items"], seen["log"], len(seen["unseen"])) == ("failed", None, None, 2)
    assert "secret" not in done.out + done.err
    assert run_as(database_with_roles, config, "readonly", f"show {job}").status == 0
    assert run_as(database_with_roles, config, "readonly", f"items {job}").status == 1


@pytest.fixture
def fellow(database_with_roles: str, active_for_roles: psycopg.Connection) -> Iterator[int]:
    """Yield a job of another member of the tenant of drover_frontend."""
    active_for_roles.execute("create role lab_of_show nologin; create role anna_of_show login in role drover_frontend")
    active_for_roles.execute("grant lab_of_show to drover_frontend, anna_of_show")
    active_for_roles.execute("insert into drover.tenant (tenant_name) values ('lab_of_show')")
    with psycopg.connect(make_conninfo(database_with_roles, user="anna_of_show"), autocommit=True) as anna:
        job = insert(anna, args="of anna")
    yield job
    active_for_roles.execute("drop role lab_of_show, anna_of_show")


def test_member_of_a_tenant_sees_the_job_of_a_fellow_c42(database_with_roles: str, config: Path, fellow: int) -> None:
    seen = json.loads(run_as(database_with_roles, config, "frontend", f"show {fellow} --json").out)
    assert (seen["job"]["args"], seen["job"]["submitter"]) == ("of anna", "anna_of_show")
    assert run_as(database_with_roles, config, "frontend", f"why {fellow}").status == 0


def test_show_and_items_of_a_job_that_the_daemon_ran(launch: Launch, ask: Ask) -> None:
    daemon = launch("[hosts.local]\n" + rows("reader", "case $line in *2*) echo FAIL no two;; esac"))
    query = "select n from generate_series(1, 3) n"
    job = daemon.insert(jq_type="reader", jq_args=query, jq_msq=True, jq_key="n")
    daemon.wait(job, "failed")
    seen = json.loads(ask(f"show {job} --json").out)
    assert (seen["job"]["processed"], seen["job"]["failed"], seen["job"]["code"]) == (2, 1, "items_failed")
    assert [attempt["outcome"] for attempt in seen["attempts"]] == ["failed"]
    (item,) = (json.loads(line) for line in ask(f"items {job} --json").out.splitlines())
    assert (item["key"], item["line"], item["reason"]) == ("2", 'n="2"', "no two")


def test_show_counts_the_start_of_an_agent_as_waiting(launch: Launch, ask: Ask) -> None:
    slow = '["sh", "-c", "sleep 2; echo OK; while read -r line; do echo OK; done"]'
    daemon = launch(f"[hosts.local]\n[agents.slow]\ncommand = {slow}\n")
    job = daemon.wait(daemon.insert(jq_type="slow", jq_args="x"))["jq_pk"]
    seen = json.loads(ask(f"show {job} --json").out)["job"]
    assert seen["ran"] < seen["waited_for_agent"]
    assert "of waiting for its agent" in ask(f"show {job}").out


def test_show_of_a_job_that_is_queued_again_after_a_slice_says_no_wait(
    drover: Drover, active: psycopg.Connection
) -> None:
    columns = "(jq_type, jq_args, jq_msq, jq_repeat) values ('noop', 'select 1', true, true)"
    ((job,),) = active.execute(f"insert into drover.jobqueue {columns} returning jq_pk".encode())
    began = "jq_state = 'claimed', jq_owner = gen_random_uuid(), jq_starttime = now() - interval '9 s'"
    active.execute(f"update drover.jobqueue set {began} where jq_pk = {job}".encode())
    assert ", waited" not in next(line for line in drover("show", str(job)).out.splitlines() if "started" in line)
    assert json.loads(drover("show", str(job), "--json").out)["job"]["waited"] is None
