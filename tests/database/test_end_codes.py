"""The code of a job that has ended: what drover.end_code makes of the texts that the product writes."""

import psycopg
import pytest

from tests.schema_tools import add_job, end_job, fetch_all, fetch_one

LEFT = "its process 17 runs as user root and could not be ended: it is left"
FAILED = [
    ("killed", "killed"),
    ("killed by command of ops", "killed"),
    ('killed by command of "A; b ""c"""', "killed"),
    (f"killed by command of ops; {LEFT}", "killed"),
    ("killed by SIGKILL", "agent_died"),
    ("not started by 2026-01-01 00:00:00+00", "expired"),
    ("timeout: ran longer than 5 s", "timeout"),
    ("item took longer than 5 s", "timeout"),
    ("the query ran longer than 3600 s", "timeout"),
    ("no heartbeat for 3 s", "no_heartbeat"),
    ("does not read its line", "no_heartbeat"),
    (f"does not read its line; {LEFT}", "no_heartbeat"),
    (f"killed; {LEFT}", "killed"),
    ("killed; the cat did it", "agent_error"),
    ("recovery_timeout: condition tape was still there after 2 checks: blocked: tape is away", "recovery_timeout"),
    ("recovery_failure: the tester of condition tape failed: blocked: tape", "recovery_failure"),
    ("interrupted more than 3 times", "interrupted"),
    ("interrupted more than 3 times: the link was lost", "interrupted"),
    ("its scheduler died 3 times with this job in hand, the last time as it was tried alone", "interrupted"),
    ("agent 'a': cannot start 'nothing': No such file or directory (errno 2)", "launch_failure"),
    ("exit status 3", "exit_status"),
    ("agent terminated prematurely, with exit status 3", "exit_status"),
    ("agent terminated prematurely, by SIGSEGV", "agent_died"),
    ("killed by SIGTERM", "agent_died"),
    ("exit status 3: syntax error (SQLSTATE 42601)", "exit_status"),
    ("agent terminated prematurely, by SIGSEGV: no table (SQLSTATE 42P01)", "agent_died"),
    ("protocol violation: line over 1048576 bytes", "agent_died"),
    ("3 items failed, 0 tolerated", "items_failed"),
    ("no progress: not one item of the slice was done", "no_progress"),
    ('syntax error at or near "selct" (SQLSTATE 42601, at character 1)', "query_failed"),
    ('relation "x" does not exist (SQLSTATE 42P01)', "query_failed"),
    ("role alice may not queue agent type shell", "not_permitted"),
    ("the parameter is empty, and agents may read past an empty line without an answer", "invalid_definition"),
    ("the parameter holds a newline or NUL: a line agent takes one line", "invalid_definition"),
    ("the command names {x}, and the job has no such column", "invalid_definition"),
    ("the key column is NULL in a row: every row needs a key", "invalid_definition"),
    ("its variables or its SQL have over 16777216 bytes: put them in a file", "invalid_definition"),
    ("jq_key names column 'x', and the query has none", "invalid_definition"),
    ("column name 'x' is given twice: give one an alias", "invalid_definition"),
    ("the database refuses a Save of one row: invalid byte sequence", "not_saved"),
    ("the database refuses to save job 7: invalid byte sequence", "not_saved"),
    ("disc is full", "agent_error"),
    ("", "agent_error"),
]
CODE = "select drover.end_code(%s, %s, %s, %s, %s, %s)"


@pytest.mark.parametrize(("text", "code"), FAILED, ids=[text[:40] for text, _ in FAILED])
def test_each_failure_has_a_code_t115(queue: psycopg.Connection, text: str, code: str) -> None:
    assert fetch_one(queue, CODE, "failed", "a", 2, text, None, None) == code


@pytest.mark.parametrize(
    ("state", "bits", "code"),
    [
        ("done", 1, "normal"),
        ("done", 5, "nonfatal_errors"),
        ("cancelled", 2, "cancelled"),
        ("skipped", 1, "on_ice"),
        ("skipped", 2, "dependency_not_met"),
        ("ignored", 2, "unserved"),
    ],
)
def test_each_other_end_has_a_code_t115(queue: psycopg.Connection, state: str, bits: int, code: str) -> None:
    assert fetch_one(queue, CODE, state, "a", bits, "killed", None, None) == code


@pytest.mark.parametrize("state", ["held", "queued", "claimed", "running", "blocked"])
def test_a_job_that_has_not_ended_has_no_code_t115(queue: psycopg.Connection, state: str) -> None:
    assert fetch_one(queue, CODE, state, "a", 0, "killed", None, None) is None


def test_a_refused_command_has_a_code_t115(queue: psycopg.Connection) -> None:
    assert fetch_one(queue, CODE, "failed", "command", 2, "job 1 has ended", None, None) == "command_refused"


@pytest.mark.parametrize("status", [126, 127])
def test_a_shell_that_finds_no_program_is_a_launch_failure_t115(queue: psycopg.Connection, status: int) -> None:
    assert fetch_one(queue, CODE, "failed", "a", 2, f"exit status {status}", status, None) == "launch_failure"


def test_every_code_is_described_with_its_state_t115(queue: psycopg.Connection) -> None:
    ends = [("failed", 2, text) for text, _ in FAILED]
    ends += [("done", 1, ""), ("done", 5, ""), ("cancelled", 2, ""), ("skipped", 1, ""), ("skipped", 2, "")]
    ends += [("ignored", 2, "")]
    found = {(fetch_one(queue, CODE, state, "a", bits, text, None, None), state) for state, bits, text in ends}
    found |= {(fetch_one(queue, CODE, "failed", "command", 2, "", None, None), "failed")}
    assert found == set(fetch_all(queue, "select condition_code, condition_state from drover.condition"))


@pytest.mark.parametrize("view", ["jobs", "my_jobs", "jobs_masked"])
def test_the_views_of_jobs_show_the_code_t115(queue: psycopg.Connection, view: str) -> None:
    job = add_job(queue)
    end_job(queue, job, "failed", 2)
    queue.execute("update drover.jobqueue set jq_endtext = 'exit status 3'")
    assert fetch_all(queue, f"select jq_end_code from drover.{view}") == [("exit_status",)]


def test_why_shows_the_code_of_an_end_t115(queue: psycopg.Connection) -> None:
    job = add_job(queue)
    end_job(queue, job, "failed", 2)
    queue.execute("update drover.jobqueue set jq_endtext = 'exit status 3'")
    assert fetch_one(queue, "select reason from drover.why") == "failed (exit_status): exit status 3"
    assert fetch_one(queue, "select reason from drover.why_masked") == "failed (exit_status)"
