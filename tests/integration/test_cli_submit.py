"""`drover submit`, on a real database."""

import json
import subprocess
from pathlib import Path
from threading import Thread

import psycopg
import pytest

from scheduler.cli.database_session import Session
from scheduler.cli.wait import job_ends
from tests.cli_tools import ANNOUNCE, DROVER, Done, Drover, environment, finish, insert, one

LONG_S = 100_000.0


def _piped(database: str, config: Path, words: str, data: bytes) -> "subprocess.CompletedProcess[bytes]":
    argv, variables = [*DROVER, *words.split()], environment(database, config)
    return subprocess.run(argv, input=data, capture_output=True, env=variables, check=False)


# submit


def test_submitted_job_is_a_row_with_the_given_columns(drover: Drover, active: psycopg.Connection) -> None:
    words = "--force --sql --key pk --host far --queue default --urgent --priority b --retries 2 --name noop.1"
    done = drover("submit", "noop", "select", "1", "as", "pk", *words.split())
    assert (done.status, done.err) == (0, "")
    row = active.execute(
        """select jq_args, jq_msq, jq_key, jq_host, jq_queue, jq_urgent, jq_priority, jq_retries, jq_name
             from drover.jobqueue where jq_pk = %s""",
        (int(done.out),),
    )
    assert one(row) == ("select 1 as pk", True, "pk", "far", "default", True, "b", 2, "noop.1")


def test_each_remove_option_adds_a_file_to_delete_after_success_r43(drover: Drover, active: psycopg.Connection) -> None:
    assert drover("submit", "noop", "x", "--delete", "/tmp/a b", "--delete", "c").status == 0
    assert one(active.execute("select jq_args, jq_delete from drover.jobqueue")) == ("x", ["/tmp/a b", "c"])
    refused = drover("submit", "noop", "x", "--delete", "")
    assert (refused.status, "none of them NULL or empty" in refused.err) == (2, True)


def test_a_job_is_submitted_as_manual_j39(drover: Drover, active: psycopg.Connection) -> None:
    assert drover("submit", "noop", "x", "--manual").status == 0
    assert one(active.execute("select jq_mode, jq_state::text from drover.jobqueue")) == ("manual", "held")


def test_runonpfile_makes_it_a_query_f160(drover: Drover, active: psycopg.Connection) -> None:
    assert drover("submit", "noop", "--runonpfile", "host", "select 1 as host").status == 0
    assert one(active.execute("select jq_msq, jq_runonpfile from drover.jobqueue")) == (True, "host")


@pytest.mark.parametrize("kind", ["nosuch", "Command", "COMMAND", "gone"])
def test_unserved_type_is_refused(drover: Drover, active: psycopg.Connection, kind: str) -> None:
    active.execute(
        """insert into drover.agent (agent_group, agent_type, agent_enabled, agent_present)
           values ('default', 'gone', true, false)"""
    )
    done = drover("submit", kind, "shutdown")
    assert (done.status, done.out) == (1, "")
    refusal = f"no scheduler serves type {kind} (served: noop, sha256)"
    assert done.err == f"drover: {refusal}; correct it, or queue it nevertheless with --force\n"
    assert one(active.execute("select count(*) from drover.jobqueue")) == (0,)


@pytest.mark.parametrize("asked", ["off", "other version=1"])
def test_disabled_type_is_refused_by_its_name(drover: Drover, active: psycopg.Connection, asked: str) -> None:
    active.execute(
        """insert into drover.agent (agent_group, agent_type, agent_enabled, agent_present, agent_attributes)
           values ('default', 'off', false, true, '{"agent": "other", "version": "1"}')"""
    )
    refusal = "agent type off is disabled; drover agent enable off, or queue it nevertheless with --force"
    assert drover("submit", asked, "x") == Done(1, "", f"drover: {refusal}\n")
    assert drover("submit", "--force", asked, "x").status == 0
    assert one(active.execute("select jq_type from drover.jobqueue")) == ("off",)


def test_a_name_that_needs_attributes_is_refused_without_them_f154(drover: Drover, active: psycopg.Connection) -> None:
    active.execute("update drover.agent set agent_attributes = '{\"agent\": \"any\"}' where agent_type = 'noop'")
    assert "noop answer to any if attributes follow, such as 'any name=value'; " in drover("submit", "any", "x").err


def test_type_with_attributes_is_queued_for_an_agent_that_has_them_f154(
    drover: Drover, active: psycopg.Connection
) -> None:
    active.execute("update drover.agent set agent_attributes = '{\"version\": \"2\"}' where agent_type = 'noop'")
    assert drover("submit", "noop version=2", "x").status == 0
    assert one(active.execute("select jq_type from drover.jobqueue")) == ("noop",)
    refused = drover("submit", "noop version=3", "x")
    assert (refused.status, refused.err) == (
        1,
        "drover: no agent type has the attributes of noop version=3: noop has version 2; drover agent prints those of "
        "each\n",
    )
    forced = drover("submit", "--force", "noop version=3", "x")
    assert forced.err.endswith("noop has version 2; drover agent prints the attributes of all types\n")
    assert "version=2" in drover("agent").out


@pytest.mark.parametrize("words", ["--queue nosuch", "--host nosuch"])
def test_unknown_queue_and_host_are_refused(drover: Drover, active: psycopg.Connection, words: str) -> None:
    what = words.removeprefix("--")
    assert drover("submit", "noop", "x", *words.split()) == Done(
        1, "", f"drover: there is no {what}; correct it, or queue it nevertheless with --force\n"
    )
    assert drover("submit", "noop", "x", *words.split(), "--force").status == 0
    active.execute("insert into drover.host (host_name, host_group) values ('alpha', 'default')")
    assert drover("submit", "noop", "x", "--queue", "default", "--host", "alpha").status == 0


def test_refusal_without_any_scheduler_says_how_to_start_one(drover: Drover, connection: psycopg.Connection) -> None:
    done = drover("submit", "noop", "x")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "drover: no scheduler serves type noop: none has used this database yet; start one with drover run,"
        " try again in a moment if one is just starting, or queue it nevertheless with --force\n"
    )


@pytest.mark.parametrize("words", ["submit cleanup x", "submit --force cleanup x", "setup --force cleanup.1"])
def test_clean_ups_cannot_be_queued_even_by_a_superuser_r43(
    database: str, config: Path, active: psycopg.Connection, words: str
) -> None:
    done = _piped(database, config, words, b"")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"drover: jobs of type cleanup are created by Drover alone")
    assert one(active.execute("select count(*) from drover.jobqueue")) == (0,)


def test_retries_out_of_range_are_refused_by_the_option(
    drover: Drover, active: psycopg.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        drover("submit", "noop", "x", "--retries", "2147483648")
    assert "--retries: must be a number from 0 to 2147483647 (got '2147483648')" in capsys.readouterr().err


@pytest.mark.slow
def test_job_numbers_are_printed_as_json_before_their_ends(
    database: str, config: Path, active: psycopg.Connection
) -> None:
    done = _piped(database, config, "submit --json noop -", b"a\nb\n")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"job": 1}, {"job": 2}]
    daemon = _finish_next(database, "done", 1, job=3)
    done = _piped(database, config, "submit --json --wait noop x", b"")
    daemon.join()
    first, end = map(json.loads, done.stdout.splitlines())
    assert (first, end["job"], end["state"]) == ({"job": 3}, 3, "done")


GARBAGE = ["", "select from where", "x" * 60_000, "\x01\x7f\u202e'\"\\$`", "a\nb"]


@pytest.mark.parametrize("args", GARBAGE)
def test_garbage_is_accepted_and_listed_f28(drover: Drover, active: psycopg.Connection, args: str) -> None:
    assert drover("submit", "--force", "--sql", "nosuch", args).status == 0
    assert one(active.execute("select jq_args, jq_state from drover.jobqueue")) == (args, "queued")
    assert len(drover("ls").out.splitlines()) == 2


@pytest.mark.parametrize("kind", ["Command", "COMMAND"])
def test_command_in_capitals_is_an_ordinary_type_f130(drover: Drover, active: psycopg.Connection, kind: str) -> None:
    job = drover("submit", "--force", kind, "shutdown").out.strip()
    assert drover("why", job).out == f"no agent type '{kind}' is configured in group default\n"


def test_command_is_a_row_f129(drover: Drover, connection: psycopg.Connection) -> None:
    job = drover("submit", "command", "shutdown").out.strip()
    row = connection.execute("select jq_type, jq_args, jq_queue from drover.jobqueue")
    assert one(row) == ("command", "shutdown", None)
    assert drover("why", job).out == "waits for an active scheduler\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--priority", "!!"), "a priority must be 1 to 16 letters and digits"),
        (("--key", "k"), "a key names a column of a query: give --sql, or jq_msq, too"),
        (
            ("--name", "other.1"),
            "a name must be TYPE.NONCE: the type, a dot, a word without dot or blank",
        ),
        (("a\udcff",), "not UTF-8"),
    ],
)
def test_row_that_the_database_refuses_is_a_mistake(
    drover: Drover, active: psycopg.Connection, words: tuple[str, ...], why: str
) -> None:
    done = drover("submit", "noop", *words)
    assert (done.status, done.out) == (2, "")
    assert why in done.err


def test_name_can_be_used_once(drover: Drover, active: psycopg.Connection) -> None:
    assert drover("submit", "noop", "--name", "noop.setup").status == 0
    again = drover("submit", "noop", "--name", "noop.setup")
    assert (again.status, again.err) == (
        2,
        "the database refuses it: a job of this name exists already; see drover why NAME\n",
    )
    assert one(active.execute("select count(*) from drover.jobqueue")) == (1,)


@pytest.mark.slow
def test_each_line_of_stdin_is_a_job(database: str, config: Path, active: psycopg.Connection) -> None:
    lines = [f"file {number}" for number in range(25_000)]
    done = _piped(database, config, "submit noop - --urgent", "\n".join(lines).encode())
    assert (done.returncode, done.stderr) == (0, b"")
    query = "select jq_args, jq_pk from drover.jobqueue where jq_urgent order by jq_pk"
    rows = active.execute(query).fetchall()
    assert [row[0] for row in rows] == lines
    assert [row[1] for row in rows] == [int(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_bad_line_of_stdin_queues_nothing(database: str, config: Path, active: psycopg.Connection) -> None:
    done = _piped(database, config, "submit noop -", b"good\n" * 25_000 + b"bad\xff\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"stdin:25001: is not UTF-8; nothing was queued\n"
    assert one(active.execute("select count(*) from drover.jobqueue")) == (0,)


def test_empty_stdin_queues_no_job(database: str, config: Path, active: psycopg.Connection) -> None:
    done = _piped(database, config, "submit noop -", b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# submit --wait


def _finish_next(database: str, state: str, bits: int, *, announced: bool = True, job: int = 1) -> Thread:
    """Start a thread that ends the next job that is queued, as a daemon would."""
    connection = psycopg.connect(database, autocommit=True)
    connection.execute("listen drover_queue")

    def act() -> None:
        with connection:
            next(connection.notifies())
            finish(connection, job, state, bits, "that\nis\x1b all")
            connection.execute(ANNOUNCE, (job if announced else 0, state))

    thread = Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("state", "bits", "status"),
    [("done", 1, 0), ("done", 5, 0), ("failed", 2, 1), ("failed", 6, 1), ("cancelled", 2, 1)],
)
def test_wait_prints_the_end_and_fails_if_the_job_did_f160(
    drover: Drover, database: str, active: psycopg.Connection, state: str, bits: int, status: int
) -> None:
    daemon = _finish_next(database, state, bits)
    done = drover("submit", "--wait", "noop", "x")
    daemon.join()
    (job,) = one(active.execute("select jq_pk from drover.jobqueue"))
    assert done == Done(status, f"{job}\n{job} noop {state} that\\nis\\x1b all\n", "")


def test_notification_wakes_a_waiting_command(
    database: str, active: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.cli.wait.POLL_S", LONG_S)  # no look of its own is in time
    jobs = [insert(active), insert(active)]
    finish(active, jobs[0])
    with psycopg.connect(database, autocommit=True) as connection:
        waiting = job_ends(Session(connection), jobs, limit_s=LONG_S)
        first = next(waiting)
        finish(active, jobs[1])
        active.execute(ANNOUNCE, (jobs[1], "done"))
        assert [first.job, *(end.job for end in waiting)] == jobs


@pytest.mark.slow
def test_end_without_a_notification_is_seen_by_polling(
    drover: Drover, database: str, active: psycopg.Connection
) -> None:
    daemon = _finish_next(database, "done", 1, announced=False)
    done = drover("submit", "--wait=2", "noop", "x")
    daemon.join()
    assert done.status == 0


def test_wait_for_an_unknown_name_fails_j57(drover: Drover, active: psycopg.Connection) -> None:
    done = drover("wait", "noop.nosuch")
    assert done == Done(1, "", "drover: no job noop.nosuch; drover ls --all lists all jobs\n")


@pytest.mark.slow
def test_wait_tells_of_a_job_that_is_blocked_once(drover: Drover, active: psycopg.Connection) -> None:
    drover("submit", "noop", "x")
    active.execute("update drover.jobqueue set jq_state = 'blocked', jq_endtext = 'exit status 75'")
    done = drover("wait", "--timeout", "1", "1")
    assert done.err.splitlines() == [
        "drover: job 1 is blocked: exit status 75; drover why 1 says until when, drover unblock 1 ends that",
        "drover: after 1 s, 1 of 1 jobs have not ended; see drover why",
    ]


@pytest.mark.parametrize("gone", ["group_owner = null", "group_lease_until = now() - interval '1 s'"])
def test_wait_says_at_once_that_no_scheduler_is_active(drover: Drover, active: psycopg.Connection, gone: str) -> None:
    active.execute(f"update drover.scheduler_group set {gone}".encode())
    done = drover("submit", "--wait=0", "noop", "x")
    assert done.status == 1
    assert done.err.splitlines() == [
        "drover: no scheduler is active for group default: the job waits until one is; start it with drover run,"
        " unless one is just starting",
        "drover: after 0 s, 1 of 1 jobs have not ended; see drover why",
    ]


def test_submit_to_a_queue_that_an_open_transaction_keeps_says_so(
    drover: Drover, active: psycopg.Connection, database: str
) -> None:
    active.execute(
        "insert into drover.queue (queue_name, queue_group, queue_max_length) values ('small', 'default', 9)"
    )
    active.execute("select drover.install_routes()")
    with psycopg.connect(database) as other:
        other.execute("insert into drover.jobqueue (jq_type, jq_queue) values ('noop', 'small')")
        done = drover("submit", "--queue", "small", "noop", "x")
    said = "the database refuses it: queue small: another transaction that inserts into it has not ended; Its length is"
    assert (done.status, done.out) == (2, "")
    assert said in done.err
