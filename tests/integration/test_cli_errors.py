"""How commands end when the configuration, the database or a right is missing."""

import os
import socket
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests import warm
from tests.cli_tools import DROVER, Done, Drover, environment, finish, insert, run_as, write_log

SSL_REQUEST: Final = bytes.fromhex("00000008 04d2162f")


def test_every_mistake_of_the_configuration_is_reported_with_its_line(drover: Drover, config: Path) -> None:
    config.write_text("[hosts.a]\nmax = 0\n[agents.b]\ncommand = 7\n")
    done = drover("ls")
    assert (done.status, done.out) == (2, "")
    assert [line.split(": ")[:2] for line in done.err.splitlines()] == [
        [f"{config}:2", "hosts.a.max"],
        [f"{config}:4", "agents.b.command"],
        ["drover ls", "needs only the database"],
    ]


REFUSE = """
create function public.say_no() returns trigger language plpgsql as
$$ begin raise exception 'no' using errcode = 'STATE'; end $$;
create trigger say_no before insert on drover.jobqueue for each row execute function public.say_no()
"""


@pytest.mark.parametrize("command", ["status", "ls", "init", "check"])
def test_missing_database_exits_with_3(drover: Drover, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", "host=/nonexistent dbname=x")
    done = drover(command)
    assert done.status == 3
    assert [line for line in (done.out + done.err).splitlines() if "not reachable" in line]


def test_missing_schema_exits_with_3(drover: Drover, empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", empty_database)
    done = drover("ls")
    assert (done.status, len(done.err.splitlines())) == (3, 1)
    assert "run drover init" in done.err


@pytest.mark.parametrize("command", ["why", "log", "out"])
def test_missing_job_exits_with_1(drover: Drover, connection: psycopg.Connection, command: str) -> None:
    done = drover(command, "4711")
    assert (done.status, done.out, done.err) == (1, "", "drover: no job 4711; drover ls --all lists all jobs\n")


@pytest.mark.parametrize("words", ["submit --force noop x", "setup --force noop.1", "log", "out 1", "wait --json 1"])
def test_role_without_rights_gets_an_error_that_says_so(
    database_with_roles: str, config: Path, active_for_roles: psycopg.Connection, words: str
) -> None:
    insert(active_for_roles)
    done = run_as(database_with_roles, config, "readonly", words)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("permission denied for ")
    assert done.err.endswith(": connect as a role that has the right; see drover-jobqueue(7)\n")


def test_role_without_rights_on_the_queue_gets_an_error_that_says_so(database_with_roles: str, config: Path) -> None:
    refused = "permission denied for schema drover: connect as a role that has the right; see drover-jobqueue(7)\n"
    assert run_as(database_with_roles, config, "msq", "ls").err.endswith(refused)


def test_where_the_database_is_named_no_configuration_is_read(
    drover: Drover, active: psycopg.Connection, config: Path
) -> None:
    config.write_text("nonsense")
    assert drover("submit", "noop", "x") == Done(0, "1\n", "")
    assert [drover(*words.split()).status for words in ("ls", "why 1", "queue", "status default")] == [0] * 4
    told = drover("status")
    assert (told.status, told.out) == (2, "")
    assert told.err.splitlines()[-1].startswith("drover status: needs only database and group: ")
    assert [drover(command).status for command in ("check", "agent-check")] == [2] * 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("DateStyle", "SQL, DMY"),
        ("DateStyle", "German"),
        ("DateStyle", "Postgres, MDY"),
        ("IntervalStyle", "iso_8601"),
        ("IntervalStyle", "postgres_verbose"),
        ("IntervalStyle", "sql_standard"),
        ("bytea_output", "escape"),
        ("search_path", "nowhere"),
        ("TimeZone", "Asia/Kathmandu"),
    ],
)
def test_commands_work_whatever_the_database_sets_for_its_sessions(
    drover: Drover, active: psycopg.Connection, setting: str, value: str
) -> None:
    job = insert(active)
    finish(active, job, "failed", 2, "no")
    write_log(active, job, "said")
    _set_for_sessions(active, setting, value)
    words = ("status", "status --json", "ls --all --json", f"why {job}", f"log {job}", "log --json", f"out {job}")
    told = [drover(*each.split()) for each in words]
    assert [(each.status, each.err) for each in told] == [(0, "")] * len(words)


@pytest.mark.parametrize(
    ("command", "table"),
    [("ls", "jobqueue"), ("status", "scheduler_group"), *((each, "migration") for each in ("ls", "init", "check"))],
)
def test_a_statement_timeout_is_not_reported_as_a_missing_database(
    drover: Drover, active: psycopg.Connection, command: str, table: str
) -> None:
    _set_for_sessions(active, "statement_timeout", "0.5s")
    with active.transaction():
        active.execute(sql.SQL("lock table drover.{}").format(sql.Identifier(table)))
        done = drover(command)
    reason = "a statement was cancelled: canceling statement due to statement timeout"
    advice = "try again, or raise statement_timeout of the role or the database"
    told = f"{reason}; {advice}\n" if command != "check" else "WARN not looked for: database: time limit: "
    assert (done.status, (done.out + done.err).count(told)) == (3, 1)
    assert "not reachable" not in done.out + done.err


@pytest.mark.parametrize(
    ("login", "told"),
    [
        ("dbname=nosuch", 'the log-in: database "nosuch" does not exist; create it, or correct [database] url'),
        ("user=nosuch", 'the log-in: role "nosuch" does not exist; run drover init --roles by a login that may'),
        ("options='-c search_path=a,,b'", "the log-in: invalid value for parameter"),
    ],
)
def test_a_server_that_answers_a_log_in_is_not_called_unreachable(
    drover: Drover, database: str, monkeypatch: pytest.MonkeyPatch, login: str, told: str
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", f"{database} {login}")
    done = drover("status")
    assert (done.status, done.out) == (3, "")
    assert f"database refuses {told}" in done.err
    assert "not reachable" not in done.err


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("58P01", "the database refuses it: no (SQLSTATE 58P01); look into the log of the server"),
        ("55000", "the database refuses it: no (SQLSTATE 55000); look into the log of the server"),
        ("53100", "the database refuses it: no (SQLSTATE 53100); look into the log of the server"),
        ("57P01", "database not reachable: no"),
    ],
)
def test_an_answer_with_an_error_is_not_called_unreachable(
    drover: Drover, connection: psycopg.Connection, state: str, told: str
) -> None:
    connection.execute(REFUSE.replace("STATE", state).encode())
    done = drover("submit", "--force", "noop", "x")
    assert done.status == 3
    assert told in done.err


def _set_for_sessions(connection: psycopg.Connection, setting: str, value: str) -> None:
    """Set it for those who connect to this database from now on."""
    names = map(sql.Identifier, (connection.info.dbname, setting))
    connection.execute(sql.SQL("alter database {} set {} = {}").format(*names, sql.Literal(value)))


@pytest.mark.parametrize("words", ["ls --all", "status", "show 1", "why 1", "why --all", "log 1", "items 1", "queue"])
def test_a_lock_on_a_job_delays_nobody_who_reads_t23(
    drover: Drover, active: psycopg.Connection, database: str, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    insert(active)
    monkeypatch.setenv("DROVER_DATABASE_URL", make_conninfo(database, options="-c lock_timeout=1ms"))
    with psycopg.connect(database) as other:
        other.execute("select from drover.jobqueue for update")
        assert drover(*words.split()).status == 0


@pytest.mark.parametrize("words", ["status", "submit noop x", "init", "check"])
def test_nothing_is_sent_to_a_server_without_the_tls_that_is_required_c53(config: Path, words: str) -> None:
    with closing(WithoutTls()) as server:
        database = f"postgresql://drover_operator:secret@127.0.0.1:{server.port}/drover?sslmode=require"
        done = warm.run([*DROVER, *words.split()], env=environment(database, config))
        assert (done.returncode, "server does not support SSL" in done.stdout + done.stderr) == (3, True), done
        assert set(server.got) == {SSL_REQUEST}


class WithoutTls:
    """A server that answers a client that asks for TLS as Postgres does without it, and keeps what clients send."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                with client:
                    while data := client.recv(65_536):
                        self.got.append(data)
                        client.sendall(b"N")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def test_version_needs_no_configuration(drover: Drover, config: Path) -> None:
    config.unlink()
    done = drover("version")
    assert (done.status, done.out.split()[0]) == (0, "drover")


@pytest.mark.slow
def test_closed_standard_output_causes_no_traceback(
    database: str, config: Path, connection: psycopg.Connection
) -> None:
    connection.execute("insert into drover.jobqueue (jq_type) select 'noop' from generate_series(1, 5000)")
    reader, writer = os.pipe()
    os.close(reader)
    argv, variables = [*DROVER, "ls", "-n", "0"], environment(database, config)
    done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, env=variables, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_database_that_is_read_only_is_not_called_a_replica(drover: Drover, connection: psycopg.Connection) -> None:
    connection.execute(f"alter database {connection.info.dbname} set default_transaction_read_only = on".encode())
    done = drover("check")
    assert (
        "a scheduler must write: default_transaction_read_only is on: reset it for the database or the role" in done.out
    )
    (told,) = (line for line in done.out.splitlines() if " log-in queue " in line)
    assert told.endswith("if this is a replica, else reset default_transaction_read_only")
    done = drover("submit", "--force", "noop", "x")
    assert done.status == 2
    assert "if this is a replica, else look at default_transaction_read_only" in done.err
