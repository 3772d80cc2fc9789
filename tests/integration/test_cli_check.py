"""drover check, on a real database."""

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.cli_tools import CONFIG, Drover, finish
from tests.integration.ssh_tools import table
from tests.needs import need
from tests.role_tools import grant_roles
from tests.ssh.sshd import serving

STATEMENTS = """
db = "statements"
[agents.noop.statements]
good = "update site.pfile set size = :size where pfile_pk = :pk"
wrong = "update site.pfile set nosuch = :size"
secret = "select * from site.secret where pk = :pk"
"""
SITE = """
create schema site;
create table site.pfile (pfile_pk int, size bigint);
create table site.secret (pk int);
grant usage on schema site to drover_agentdb;
grant select, update on site.pfile to drover_agentdb
"""


def test_check_prepares_every_statement_as_the_role_that_runs_it(
    drover: Drover, config: Path, database_with_roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", database_with_roles)
    config.write_text(CONFIG + STATEMENTS)
    config.chmod(0o600)  # one is called secret
    with psycopg.connect(database_with_roles) as connection:
        connection.execute(SITE)
    done = drover("check")
    assert done.status == 1
    assert [line[:4] for line in done.out.splitlines()] == ["ok  "] * 10 + ["FAIL"] * 2
    assert 'agents.noop.statements.wrong: column "nosuch" of relation "pfile" does not exist' in done.out
    assert "agents.noop.statements.secret: permission denied for table secret" in done.out


def test_check_of_a_good_installation_finds_no_fault(
    drover: Drover, database_with_roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", database_with_roles)
    done = drover("check")
    assert (done.status, {line.split()[0] for line in done.out.splitlines()}) == (0, {"ok"})


def test_check_warns_if_every_role_may_create_in_schema_public(
    drover: Drover, database_with_roles: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", database_with_roles)
    with psycopg.connect(database_with_roles, autocommit=True) as connection:
        connection.execute("grant create on schema public to public")
    grant_roles(database_with_roles)
    (warning,) = [line for line in drover("check").out.splitlines() if "schema public" in line]
    assert warning.startswith("WARN schema public: every role may create tables and functions there")


def test_check_warns_of_unserved_and_failed_clean_ups(drover: Drover, active: psycopg.Connection) -> None:
    query = (
        "insert into drover.jobqueue (jq_type, jq_name) select 'cleanup', 'cleanup.' || n from generate_series(1, 3) n"
    )
    active.execute(query)
    finish(active, 3, "failed", 2)
    done = drover("check")
    why = (
        "clean-ups: no agent can do 2 that wait, such as job 1: no agent type 'cleanup' is configured in group default"
    )
    vain = "clean-ups: 1 have failed; drover ls -S failed -t cleanup, and drover retry"
    assert (done.status, [line for line in done.out.splitlines() if "clean-ups" in line]) == (
        0,
        [f"WARN {why}", f"WARN {vain}"],
    )
    active.execute("insert into drover.agent (agent_group, agent_type) values ('default', 'cleanup')")
    assert [line for line in drover("check").out.splitlines() if "clean-ups" in line] == [f"WARN {vain}"]


def test_check_says_what_it_could_not_look_for_and_does_not_fail(
    drover: Drover, active: psycopg.Connection, database: str
) -> None:
    with psycopg.connect(database) as holder:
        holder.execute("lock table drover.jobqueue")
        done = drover("check")
    found = [line for line in done.out.splitlines() if "clean-ups" in line]
    assert done.status == 0
    reason = "lock: canceling statement due to lock timeout"
    advice = "next: try again; if it stays, end the session that pg_locks names"
    assert found == [
        f"WARN not looked for: clean-ups that no agent can do: {reason}; {advice}",
        f"WARN not looked for: clean-ups that have failed: {reason}; {advice}",
    ]


def test_check_that_may_not_look_at_the_database_for_long_enough_is_3_without_a_failure(
    drover: Drover, active: psycopg.Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=100ms")
    with psycopg.connect(database) as holder:
        holder.execute("lock table drover.migration")
        done = drover("check")
    assert done.status == 3
    assert "WARN not looked for: database: lock: canceling statement due to lock timeout; next: " in done.out
    assert "FAIL" not in done.out


def test_check_fails_for_a_missing_program_unless_it_is_switched_off(
    drover: Drover, config: Path, connection: psycopg.Connection
) -> None:
    config.write_text(
        CONFIG
        + """
[agents.lost]
command = ["no-such-program"]
[agents.idle]
command = ["no-such-program"]
enabled = false
[agents.far]
command = ["no-such-program"]
hosts = ["remote"]
[hosts.remote]
transport = "ssh"
address = "remote"
"""
    )
    done = drover("check")
    assert done.status == 1
    told = dict(line.split(": ")[0].split(" agent ")[::-1] for line in done.out.splitlines() if " agent " in line)
    assert {name: severity.strip() for name, severity in told.items()} == {
        "noop": "ok",
        "lost": "FAIL",
        "idle": "WARN",
        "far": "ok",
    }


def test_check_warns_of_a_queue_that_may_have_more_jobs_than_agents(
    drover: Drover, config: Path, connection: psycopg.Connection
) -> None:
    hosts = '[hosts.local]\nmax = 3\n[hosts.other]\nqueues = ["wide"]\n'
    agents = '[agents.cat]\ncommand = ["cat"]\nslots = 5\n'
    config.write_text(f"{hosts}{agents}[queues.fits]\nconcurrency = 3\n[queues.wide]\nconcurrency = 9\n")
    told = [line for line in drover("check").out.splitlines() if line.startswith("WARN queue ")]
    assert told == ["WARN queue wide: concurrency is 9, but only 8 agents can work for it"]


@pytest.mark.parametrize(("word", "place"), [("/no/such", "there"), ("no-such", "in agents/ or on PATH")])
def test_check_says_where_a_missing_program_was_looked_for(
    drover: Drover, config: Path, connection: psycopg.Connection, word: str, place: str
) -> None:
    config.write_text(f'{CONFIG}[agents.lost]\ncommand = ["{word}"]\n')
    assert f"FAIL agent lost: no program {word} is {place}; install it or correct" in drover("check").out


@pytest.mark.usefixtures("connection")
def test_directory_of_a_type_that_is_not_there_fails_the_check(drover: Drover, config: Path, tmp_path: Path) -> None:
    config.write_text(f'{CONFIG}[agents.lost]\ncommand = ["true"]\ncwd = "{tmp_path}/no"\n')
    assert f": its cwd {tmp_path}/no is not there; create it, or correct cwd" in drover("check").out


def test_missing_role_is_reported_with_who_may_create_it(drover: Drover, connection: psycopg.Connection) -> None:
    conninfo = make_conninfo(connection.info.dsn, user="drover_nobody")
    assert "; run drover init --roles by a login that may create roles" in drover("ls", "-d", conninfo).err


@pytest.mark.parametrize(
    ("mode", "head", "complaint"),
    [
        (0o644, "#!/bin/sh", "is not executable; chmod +x "),
        (0o755, "#!/no/such/interpreter -x", "its interpreter /no/such/interpreter is not there or not executable"),
        (0o755, "#!/usr/bin/env -S A=b no-such-python -u", "its interpreter no-such-python is not on PATH"),
        (0o755, "#! ", "its first line names no interpreter"),
        (0o755, "#!/bin/sh\r", "its lines end in CR LF, so that the interpreter of its first line is not found"),
        (0o755, "#!/usr/bin/env python3\r", "its lines end in CR LF"),
        (0o755, "\ufeff#!/bin/sh", "it begins with a byte order mark, before #!; save it"),
        (0o755, "echo OK", "it is no program of this machine; a script needs a first line with its interpreter"),
    ],
)
def test_check_says_why_an_existing_program_cannot_start(
    drover: Drover, config: Path, connection: psycopg.Connection, tmp_path: Path, mode: int, head: str, complaint: str
) -> None:
    program = tmp_path / "agent"
    program.write_text(f"{head}\n")
    program.chmod(mode)
    config.write_text(f'{CONFIG}[agents.mine]\ncommand = ["{program}"]\n')
    done = drover("check")
    (told,) = (line for line in done.out.splitlines() if "agent mine" in line)
    assert told.startswith("FAIL agent mine: ")
    assert complaint in told
    assert str(program) in told


@pytest.mark.parametrize("head", ["#!/bin/sh", "#!/usr/bin/env sh", "#! /usr/bin/env -S sh -u", "\x7fELF"])
def test_check_accepts_a_program_whose_interpreter_exists(
    drover: Drover, config: Path, connection: psycopg.Connection, tmp_path: Path, head: str
) -> None:
    (tmp_path / "agent").write_text(f"{head}\n")
    (tmp_path / "agent").chmod(0o755)
    config.write_text(f'{CONFIG}[agents.mine]\ncommand = ["{tmp_path / "agent"}"]\n')
    assert f"ok   agent mine: {tmp_path / 'agent'}\n" in drover("check").out


DETACHED = """
[agents.long]
command = ["sh", "-c", "{args}"]
kind = "exec"
detached = true
"""


@pytest.mark.parametrize("word", ["check", "doctor"])
def test_spool_that_others_may_replace_is_a_failure(
    drover: Drover, config: Path, database_with_roles: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", database_with_roles)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    local = f'[hosts.local]\nspool = "{tmp_path}/open/spool"\n'
    config.write_text(CONFIG.replace("[hosts.local]\n", local) + DETACHED)
    done = drover(word)
    assert done.status == 1
    (line,) = [line for line in done.out.splitlines() if "spool of host local" in line]
    assert line.startswith("FAIL")
    assert f"{tmp_path}/open/ must belong to root or user" in line
    assert not (tmp_path / "open" / "spool").exists()


@pytest.mark.slow
def test_spool_of_a_host_over_ssh_is_looked_at_there(
    drover: Drover, config: Path, database_with_roles: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("sshd")
    monkeypatch.setenv("DROVER_DATABASE_URL", database_with_roles)
    spool = tmp_path / "spool"
    spool.mkdir(mode=0o755)
    with serving(tmp_path) as server:
        config.write_text(CONFIG + DETACHED + 'hosts = ["beta"]\n' + table("beta", server) + f'spool = "{spool}"\n')
        before = drover("check").out
        spool.chmod(0o700)
        after = drover("check").out
    assert f"FAIL spool of host beta: detached jobs cannot begin: the spool {spool} must be ours" in before
    assert f"ok   spool of host beta: {spool}" in after


@pytest.mark.parametrize("kind", ["line", "exec"])
def test_check_names_a_cwd_that_is_not_there(
    drover: Drover, config: Path, connection: psycopg.Connection, kind: str
) -> None:
    config.write_text(f'{CONFIG}[agents.lost]\ncommand = ["true"]\nkind = "{kind}"\ncwd = "/no/such"\n')
    told = "FAIL agent lost: its cwd /no/such is not there; create it, or correct cwd\n"
    assert told in drover("check").out
