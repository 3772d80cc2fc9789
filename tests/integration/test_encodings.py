"""Databases in other encodings than UTF8: SQL_ASCII, which holds any bytes, and those that `drover init` refuses."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.database import migrate
from scheduler.errors import ConfigError
from tests.cli_tools import ACTIVE, CONFIG, DROVER, OWNER, environment

# Texts that front-ends, agents and operators write, each with a byte that is not UTF-8.
FILL = rf"""
insert into drover.job (job_name) values (E'group \351');
insert into drover.queue (queue_name, queue_group) values (E'queue\351', 'default');
insert into drover.jobqueue (jq_type, jq_args, jq_name, jq_job_fk, jq_queue, jq_unique_key)
  values (E'type\351', E'args \351', E'type\351.1', 1, E'queue\351', E'key\351');
insert into drover.jobqueue (jq_type, jq_args) values ('noop', E'ended \351');
insert into drover.jobqueue (jq_type, jq_args, jq_host) values ('noop', '', E'host\351');
update drover.jobqueue set jq_state = 'claimed', jq_attempt = 1, jq_owner = '{OWNER}', jq_starttime = now()
 where jq_pk = 2;
update drover.jobqueue set jq_state = 'failed', jq_owner = null, jq_endtime = now(), jq_end_bits = 2,
                           jq_endtext = E'failed \351', jq_result = to_json(E'\351'::text)::jsonb where jq_pk = 2;
insert into drover.log (log_jq_fk, log_type, log_message) values (2, 'LOG', E'said \351');
insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data)
  values (2, 1, 1, 'out', E'out \351');
insert into drover.item_failure (item_jq_fk, item_attempt, item_line, item_reason)
  values (2, 1, E'line \351', E'reason \351');
insert into drover.scheduler_status (status_scheduler, status_slot, status_state, status_state_name, status_since,
                                     status_host, status_agent, status_parameter)
  values ('{OWNER}', 0, 6, 'ST_RUNNING', now(), 'alpha', E'type\351', E'parameter \351');
"""
PRINTING = {
    "ls --all": r"args \xe9",
    "ls --all --json": r"args \udce9",
    "log 2": r"said \xe9",
    "log --json": r"said \udce9",
    "why 1": r"no agent type 'type\xe9'",
    "wait --json 2": r"failed \udce9",
    "wait 2": r"failed \xe9",
    "status": r"type\xe9",
    "status --json": r"type\udce9",
    "exit 2": "",
    "resubmit 2": "",
}


@contextmanager
def encoded(server: str, encoding: str) -> Iterator[str]:
    """Yield the conninfo of a new database in this encoding."""
    name = f"test_encoding_{encoding.lower()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            f"create database {name} template template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'".encode()
        )
        try:
            yield make_conninfo(server, dbname=name)
        finally:
            connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture(scope="module")
def any_bytes(postgres: str) -> Iterator[str]:
    with encoded(postgres, "SQL_ASCII") as conninfo:
        migrate.update(conninfo)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(ACTIVE.encode())
            connection.execute(FILL.encode())
        yield conninfo


def _run(conninfo: str, tmp_path: Path, words: str) -> "subprocess.CompletedProcess[bytes]":
    (tmp_path / "drover.toml").write_text(CONFIG)
    variables = environment(conninfo, tmp_path / "drover.toml") | {"PYTHONUTF8": "1"}
    return subprocess.run([*DROVER, *words.split()], capture_output=True, env=variables, check=False)


@pytest.mark.parametrize("words", PRINTING)
def test_commands_print_bytes_that_are_not_utf_8(any_bytes: str, tmp_path: Path, words: str) -> None:
    done = _run(any_bytes, tmp_path, words)
    assert (done.returncode in (0, 1), done.stderr) == (True, b"")
    assert PRINTING[words] in done.stdout.decode("ascii" if "json" in words else "utf-8")


def test_check_works_in_a_database_without_an_encoding(any_bytes: str, tmp_path: Path) -> None:
    done = _run(any_bytes, tmp_path, "check")
    assert (done.returncode, done.stderr, b"ok   roles" in done.stdout) == (0, b"", True)


def test_output_is_printed_byte_by_byte(any_bytes: str, tmp_path: Path) -> None:
    assert _run(any_bytes, tmp_path, "out 2").stdout == b"out \xe9"


def test_submit_writes_utf_8_into_a_database_without_an_encoding(any_bytes: str, tmp_path: Path) -> None:
    done = _run(any_bytes, tmp_path, "submit --force unserved é")
    assert done.returncode == 0
    with psycopg.connect(any_bytes) as connection:
        query = "select jq_args::bytea from drover.jobqueue where jq_pk = %s"
        assert connection.execute(query, (int(done.stdout),)).fetchone() == ("é".encode(),)


def test_init_refuses_an_encoding_with_undefined_bytes(postgres: str) -> None:
    with encoded(postgres, "WIN1252") as conninfo, pytest.raises(ConfigError, match=r"is WIN1252, .* encoding 'UTF8'"):
        migrate.apply(conninfo)


@pytest.mark.slow
def test_check_warns_of_the_encoding_of_an_existing_database(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with encoded(postgres, "WIN1252") as conninfo:
        with monkeypatch.context() as before:
            before.setattr(migrate, "ENCODINGS", ("WIN1252",))
            migrate.apply(conninfo)
        assert migrate.apply(conninfo) == []
        done = _run(conninfo, tmp_path, "check")
    assert b"WARN the encoding of the database is WIN1252" in done.stdout
