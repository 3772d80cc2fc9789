"""drover init, and the embedded database that commands start."""

import os
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

from scheduler.database import migrate
from scheduler.database.embedded import join
from scheduler.database.embedded_place import default_directory
from scheduler.package_data import schema_dir
from tests.cli_tools import ANNOUNCE, DROVER, Done, Drover, finish
from tests.needs import need


def test_init_twice_does_nothing_the_second_time(
    drover: Drover, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", empty_database)
    with psycopg.connect(empty_database) as connection:
        server = migrate.server(connection)
    assert drover("init").out.startswith(f"{server}\napplied 0001_create_drover.sql\n")
    assert drover("init") == Done(0, f"{server}\nnothing to do\n", "")
    assert drover("init", "--roles") == Done(0, f"{server}\nnothing to do\napplied roles\n", "")


@pytest.mark.usefixtures("migrated_with_roles")
def test_init_that_extends_a_schema_with_grants_says_that_grants_must_follow(
    drover: Drover, empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", empty_database)
    (first := tmp_path / "first").mkdir()
    shutil.copy(schema_dir() / "migrations" / "0001_create_drover.sql", first)
    migrate.apply(empty_database, first)
    with psycopg.connect(empty_database) as connection:
        connection.execute("grant usage on schema drover to drover_scheduler")
    _, *added, advice = drover("init").out.splitlines()
    assert added[0] == "applied 0002_harden_queue.sql"
    assert advice == "the roles have no rights yet on the new tables and functions; run drover init --roles"


def test_init_changes_no_tables_of_the_site_t105(
    drover: Drover, empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", empty_database)
    query = """
        select relname, relkind, relnatts, relacl, relowner, relhastriggers,
               (select array_agg(j) from public.jobqueue j)
          from pg_class where relnamespace = 'public'::regnamespace
    """
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("create table public.jobqueue (x int primary key, y text)")
        connection.execute("insert into public.jobqueue values (1, 'theirs')")
        before = connection.execute(query).fetchall()
        assert drover("init", "--roles").status == 0
        assert connection.execute(query).fetchall() == before


@pytest.mark.parametrize("columns", ["", "number int"])
def test_schema_of_another_program_is_refused_and_left_as_it_is_t105(
    drover: Drover, empty_database: str, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("DROVER_DATABASE_URL", empty_database)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(f"create schema drover; create table drover.migration ({columns})".encode())
        for words in (("init", "--roles"), ("status",), ("ls",)):
            done = drover(*words)
            assert done.status == 2
            assert "belongs to another program: it has migration; nothing was changed: use another" in done.err
        rows = connection.execute("select relname from pg_class where relnamespace = 'drover'::regnamespace")
        assert rows.fetchall() == [("migration",)]


@pytest.mark.slow
def test_two_commands_share_the_embedded_database_and_the_last_one_stops_it(tmp_path: Path, config: Path) -> None:
    need("postgres")
    need("setpriv")
    variables = {name: value for name, value in os.environ.items() if name != "DROVER_DATABASE_URL"}
    variables |= {"STATE_DIRECTORY": str(tmp_path), "DROVER_CONFIG": str(config)}
    subprocess.run([*DROVER, "init"], env=variables, capture_output=True, check=True)
    waiting = [*DROVER, "submit", "--force", "--wait", "noop", "x"]
    with subprocess.Popen(waiting, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables) as first:
        assert first.stdout
        job = int(first.stdout.readline())
        second = subprocess.run([*DROVER, "why", str(job)], capture_output=True, text=True, env=variables, check=False)
        with (
            join(default_directory(variables), durable=True) as conninfo,
            psycopg.connect(conninfo, autocommit=True) as connection,
        ):
            finish(connection, job)
            connection.execute(ANNOUNCE, (job, "done"))
        assert first.stdout.read() == f"{job} noop done fine\n"
    assert (second.stdout, first.returncode) == ("no agent type 'noop' is configured in group default\n", 0)
    assert not (tmp_path / "pg/data/postmaster.pid").exists()
