"""The commands that show jobs (ls, why, log, out), on a real database."""

import json
import os
import pty
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.cli_tools import ANNOUNCE, DROVER, Done, Drover, environment, finish, insert, one, write_log


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        ("", [2, 3, 4]),
        ("-s done", [1, 2, 3, 4]),
        ("-S done", [1]),
        ("-S done -S failed", [1, 2]),
        ("--all", [1, 2, 3, 4]),
        ("-t sha256", [4]),
        ("-t sha256 -t noop", [2, 3, 4]),
        ("-t nosuch", []),
        ("-n 2", [3, 4]),
        ("-n 0 --all", [1, 2, 3, 4]),
    ],
)
def test_ls_lists_the_selected_jobs_r59_r60_r61(
    drover: Drover, many: psycopg.Connection, words: str, listed: list[int]
) -> None:
    done = drover("ls", "--json", *words.split())
    assert [json.loads(line)["job"] for line in done.out.splitlines()] == listed


def test_ls_says_that_there_are_more(drover: Drover, many: psycopg.Connection) -> None:
    assert drover("ls", "-n", "2").err == "drover: only the newest 2 are listed; --before 3 lists the next, -n 0 all\n"
    assert drover("ls", "-n", "3").err == ""


def test_ls_in_another_order_does_not_call_the_first_ones_the_newest(drover: Drover, many: psycopg.Connection) -> None:
    done = drover("ls", "-n", "2", "--sort", "ran")
    assert done.err == "drover: only the first 2 are listed; -n 0 lists all\n"


def test_priority_is_printed_r76(drover: Drover, active: psycopg.Connection) -> None:
    drover("submit", "noop", "--priority", "c3", "--urgent")
    head, row = drover("ls").out.splitlines()
    assert head.split()[:4] == ["JOB", "TYPE", "STATE", "PRIORITY"]
    assert row.split()[:4] == ["1", "noop", "queued", "!c3"]


def test_ls_shows_names_of_jobs_r59(drover: Drover, active: psycopg.Connection) -> None:
    drover("submit", "noop", "x")
    assert "NAME" not in drover("ls").out
    drover("submit", "noop", "x", "--name", "noop.a")
    head, *rows = (line.split() for line in drover("ls").out.splitlines())
    assert (head[:3], [row[:3] for row in rows]) == (
        ["JOB", "NAME", "TYPE"],
        [["1", "-", "noop"], ["2", "noop.a", "noop"]],
    )


def test_columns_of_the_site_break_no_command_j35(drover: Drover, many: psycopg.Connection) -> None:
    many.execute("alter table drover.job add column job_extra text not null default 'x'")
    many.execute("alter table drover.jobqueue add column jq_extra text not null default 'x'")
    commands = (["submit", "noop"], ["ls"], ["status"], ["why", "3"], ["out", "1"], ["log"])
    assert [drover(*words).status for words in commands] == [0] * 6


def test_ls_omits_ended_commands_unless_asked(drover: Drover, active: psycopg.Connection) -> None:
    ended, waiting = insert(active, "command", "poll"), insert(active, "command", "reload")
    finish(active, ended, "failed", 2, "no")
    told = {words: drover("ls", "--json", *words.split()).out for words in ("", "--all", "-t command")}
    listed = {words: [json.loads(line)["job"] for line in out.splitlines()] for words, out in told.items()}
    assert listed == {"": [waiting], "--all": [ended, waiting], "-t command": [ended, waiting]}


def test_why_says_that_no_agent_has_the_type_f43(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active, "nosuch")
    assert drover("why", str(job)).out == "no agent type 'nosuch' is configured in group default\n"
    assert one(active.execute("select jq_state, jq_starttime from drover.jobqueue")) == ("queued", None)


@pytest.mark.parametrize(
    ("state", "next_"),
    [
        ("failed", "has failed: retry it, or cancel or ice this one"),
        ("cancelled", "is cancelled for good: cancel or ice this one"),
    ],
)
def test_why_names_a_failed_parent_and_says_what_next_r6(
    drover: Drover, active: psycopg.Connection, state: str, next_: str
) -> None:
    parent, other, child = (insert(active) for _ in range(3))
    edges = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s), (%s, %s)"
    active.execute(edges, (child, parent, child, other))
    before = f"waits for 2 dependencies: jobs {parent}, {other}"
    assert drover("why", str(child)).out == f"{before}\n"
    finish(active, parent, state, 2)
    assert drover("why", str(child)).out == f"{before}; job {parent} {next_}\n"


def test_why_prints_one_line_without_control_characters(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active)
    finish(active, job, "failed", 2, "a\n\x1b[31mb")
    assert drover("why", str(job)).out == "failed (agent_error): a\\n\\x1b[31mb\n"


def test_log_shows_line_job_agent_host_and_time_f92(drover: Drover, active: psycopg.Connection) -> None:
    job = insert(active)
    write_log(active, job, "half\r\nway \x9b2J")
    write_log(active, None, "not of this job")
    (date,) = one(active.execute("select log_date from drover.log where log_jq_fk = %s", (job,)))
    line = rf"{date.astimezone():%Y-%m-%d %H:%M:%S} LOG job={job} host=alpha agent=noop pid=12: half\r\nway \x9b2J"
    assert drover("log", str(job)).out == line + "\n"


@pytest.mark.parametrize(("words", "messages"), [("", "1 2 3"), ("-n 2", "2 3"), ("1", "1 3"), ("1 -n 1", "3")])
def test_log_shows_the_last_rows(drover: Drover, active: psycopg.Connection, words: str, messages: str) -> None:
    insert(active)
    for job, message in ((1, "1"), (None, "2"), (1, "3")):
        write_log(active, job, message)
    done = drover("log", "--json", *words.split())
    assert [json.loads(line)["message"] for line in done.out.splitlines()] == messages.split()


def test_log_of_a_silent_job_is_empty(drover: Drover, active: psycopg.Connection) -> None:
    assert drover("log", str(insert(active))) == Done(0, "", "")


@pytest.mark.slow
def test_log_follows_a_job_to_its_end(database: str, config: Path, active: psycopg.Connection) -> None:
    job = insert(active)
    write_log(active, job, "first")
    argv = [*DROVER, "log", str(job), "-f", "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment(database, config)) as follower:
        assert follower.stdout
        first = follower.stdout.readline()
        write_log(active, job, "last")
        finish(active, job)
        active.execute(ANNOUNCE, (job, "done"))
        rest = follower.stdout.read().splitlines()
    assert [json.loads(line)["message"] for line in (first, *rest)] == ["first", "last"]
    assert follower.returncode == 0


@pytest.mark.parametrize(("flag", "text"), [((), "ä\x1b[1m\nb"), (("-e",), "oops\n")])
def test_out_prints_exactly_what_the_last_attempt_wrote_r68(
    drover: Drover, active: psycopg.Connection, flag: tuple[str, ...], text: str
) -> None:
    job = insert(active)
    finish(active, job)
    active.execute("update drover.jobqueue set jq_attempt = 2")
    rows = [(1, 1, "out", "old"), (2, 1, "out", "ä\x1b[1m\n"), (2, 2, "err", "oops\n"), (2, 3, "out", "b")]
    query = """
        insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data) values (%s, %s, %s, %s, %s)
    """
    active.cursor().executemany(query, [(job, *row) for row in rows])
    assert drover("out", str(job), *flag) == Done(0, text, "")


@pytest.mark.parametrize("words", ["out -t", "wait", "exit -w"])
def test_waiting_commands_say_at_once_that_no_scheduler_is_active(
    database: str, config: Path, connection: psycopg.Connection, words: str
) -> None:
    job = insert(connection)
    argv = [*DROVER, *words.split(), str(job)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment(database, config)) as waiter:
        assert waiter.stderr
        told = waiter.stderr.readline()
        waiter.kill()
    assert told.startswith("drover: no scheduler is active for group default: the job waits until one is")


@pytest.mark.parametrize(
    ("words", "shown"),
    [(["out", "1"], "a\\x1b[2J\r\nb"), (["ls"], "a\\x1b[2J\\nb"), (["log"], "a\\x1b[2J\\nb")],
)
def test_text_of_a_job_is_escaped_on_a_terminal(
    database: str, config: Path, active: psycopg.Connection, words: list[str], shown: str
) -> None:
    job = insert(active, args="a\x1b[2J\nb")
    write_log(active, job, "a\x1b[2J\nb")
    finish(active, job, "failed", 2)
    columns = "out_jq_fk, out_attempt, out_part, out_stream, out_data"
    active.execute(f"insert into drover.output ({columns}) values (%s, 1, 1, 'out', %s)", (job, "a\x1b[2J\nb"))
    ours, theirs = pty.openpty()
    variables = environment(database, config) | {"COLUMNS": "200"}
    done = subprocess.run([*DROVER, *words], stdout=theirs, env=variables, check=False)
    os.close(theirs)
    text = os.read(ours, 65536).decode()
    os.close(ours)
    assert (done.returncode, shown in text, "\x1b[2J" in text) == (0, True, False)
