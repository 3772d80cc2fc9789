"""A server whose files are replaced while it runs: a daemon goes on with its jobs, and commands name what is wrong."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from scheduler.database.embedded import join, temporary
from tests.cli_tools import DROVER
from tests.integration.conftest import Launch
from tests.integration.daemon import RUN
from tests.integration.puppets import LOCAL, puppet, said
from tests.needs import need
from tests.patience import LONG_PATIENCE_S
from tests.postgres_copy import copy_binaries, plpgsql, replace_file, upgrade_to_unloadable

ROOT = Path(__file__).parents[2]
TEXT = '[database]\nurl = "embedded:{}"\n[scheduler]\nreconnect_max = 0.5\nrescan = 1\n'
NAMED = (
    "the files of the PostgreSQL server were replaced or removed while it runs, as by an upgrade: restart the server"
)
PRELOAD = sql.SQL("alter database {} set session_preload_libraries = {}")
END_QUEUE = """
select pg_terminate_backend(pid) from pg_stat_activity
 where application_name = 'drover queue' and datname = current_database()
"""
UNLOADABLE = "could not load library"
JOBS = 300


class Site:
    """An embedded server from a copy of binaries, a configuration that names it, and the log of its daemon."""

    def __init__(self, folder: Path, binaries: Path, conninfo: str) -> None:
        self.folder, self.binaries, self.conninfo = folder, binaries, conninfo
        self.log = folder / "log"
        self.file = folder / "drover.toml"
        self.file.write_text(TEXT.format(folder / "pg") + LOCAL + puppet())
        self.environment = {name: text for name, text in os.environ.items() if name != "DROVER_DATABASE_URL"}

    def run(self) -> "subprocess.Popen[bytes]":
        """Start a daemon."""
        with self.log.open("wb") as errors:
            argv = [*RUN, "-c", str(self.file)]
            return subprocess.Popen(argv, cwd=ROOT, stderr=errors, env=self.environment)

    def drover(self, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a command and return what it said."""
        argv = [*DROVER, "-c", str(self.file), *words]
        return subprocess.run(
            argv, cwd=ROOT, capture_output=True, text=True, check=False, env=self.environment | environment
        )

    def said(self, text: str) -> None:
        """Wait until the daemon has logged this."""
        deadline = time.monotonic() + 2 * LONG_PATIENCE_S  # for a trial of binaries, too
        while text not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def keep_from_restart(self) -> None:
        """Have no binaries take over: what stands in the place of the trial is in its way."""
        (self.folder / "pg/trial").touch()

    def let_restart(self) -> None:
        """Have binaries take over again, and replace the library by one that can be loaded."""
        (self.folder / "pg/trial").unlink()
        good = plpgsql(self.binaries).read_bytes().replace(b"SPI_connect_exu\0", b"SPI_connect_ext\0")
        replace_file(plpgsql(self.binaries), good)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    need("postgres")
    need("setpriv")
    binaries = copy_binaries(tmp_path / "copy")
    with join(tmp_path / "pg", durable=False, binaries=binaries) as conninfo:
        yield Site(tmp_path, binaries, conninfo)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_daemon_goes_on_with_its_jobs_when_the_files_of_its_server_are_replaced(site: Site) -> None:
    done = site.folder / "done"
    with site.run() as daemon:
        try:
            site.said("serving group")
            _insert(site, range(JOBS), f"sleep 0.05; echo %s >>{done}")
            upgrade_to_unloadable(site.binaries)
            site.said("its files were replaced or removed while it runs")
            site.said("embedded database: started again as PostgreSQL ")
            _insert(site, range(JOBS, JOBS + 1), f"echo %s >>{done}")
            _wait_for_end(site)
        finally:
            daemon.terminate()
            assert daemon.wait(LONG_PATIENCE_S) == 0
    with psycopg.connect(site.conninfo) as connection:
        states = connection.execute("select jq_state::text, count(*) from drover.jobqueue group by 1").fetchall()
    assert states == [("done", JOBS + 1)]
    assert sorted(map(int, done.read_text().split())) == [*range(JOBS + 1)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_commands_and_log_name_a_server_whose_files_were_replaced_until_others_take_over(site: Site) -> None:
    site.keep_from_restart()
    with site.run() as daemon:
        try:
            site.said("serving group")
            assert "warning: server files" not in site.drover("health").stdout
            assert "embedded server: PostgreSQL " in site.drover("check").stdout
            upgrade_to_unloadable(site.binaries)
            submitted = site.drover("submit", "--force", "puppet", "true")
            site.said("its files were replaced or removed while it runs")
            site.said("cannot take over: ")
            health, status = site.drover("health"), site.drover("status", "--json")
            check, doctor = site.drover("check"), site.drover("doctor", "--allow-root")
            site.let_restart()
            site.said("embedded database: started again as PostgreSQL ")
            assert site.drover("submit", "--force", "--wait", "puppet", "true").returncode == 0
        finally:
            daemon.terminate()
            assert daemon.wait(LONG_PATIENCE_S) == 0
    assert (submitted.returncode, "not reachable" in submitted.stderr) == (3, False)
    assert f"database not usable: {UNLOADABLE}" in submitted.stderr
    assert NAMED in submitted.stderr
    assert health.returncode == 2
    assert "critical: database: new sessions: could not load library" in health.stdout
    assert "warning: server files: embedded database" in health.stdout
    found = {each["warning"] for each in json.loads(status.stdout)["warnings"]}
    assert found >= {"database", "server files"}
    for told in (check, doctor):
        assert told.returncode == 3
        assert "its files were replaced or removed while it runs" in told.stdout
        assert UNLOADABLE in told.stdout


@pytest.mark.slow
def test_own_server_whose_files_were_replaced_is_named_as_that(site: Site) -> None:
    with temporary(binaries=site.binaries) as conninfo:
        (Path(str(conninfo_to_dict(conninfo)["host"])).parent / "trial").touch()
        assert site.drover("init", "--roles", DROVER_DATABASE_URL=conninfo).returncode == 0
        upgrade_to_unloadable(site.binaries)
        told = {
            words: site.drover(*words, DROVER_DATABASE_URL=conninfo)
            for words in (("submit", "--force", "puppet", "true"), ("health",), ("check",))
        }
    for words, done in told.items():
        assert NAMED in done.stdout + done.stderr, words
        assert "not reachable" not in done.stdout + done.stderr


# ---- a log-in


@pytest.fixture
def refusing(database: str) -> str:
    """Return a database into which no session is let, since a library that it loads first is not there."""
    with psycopg.connect(database, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(PRELOAD.format(name, "nosuch"))
    return database


def test_log_in_refused_for_a_missing_library_is_named_as_that(refusing: str, tmp_path: Path) -> None:
    (tmp_path / "drover.toml").write_text(LOCAL + puppet())
    environment = os.environ | {"DROVER_DATABASE_URL": refusing, "DROVER_CONFIG": str(tmp_path / "drover.toml")}
    for words in (["ls"], ["check"]):
        done = subprocess.run([*DROVER, *words], cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 3
        assert 'could not access file "nosuch"' in done.stdout + done.stderr
        assert NAMED in done.stdout + done.stderr
        assert "check [database] url" not in done.stdout + done.stderr


def test_daemon_that_cannot_log_in_for_a_missing_library_says_so(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet())
    with psycopg.connect(daemon.database, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(PRELOAD.format(name, "nosuch"))
        try:
            daemon.execute(END_QUEUE)
            told = said(daemon, NAMED)
        finally:
            connection.execute(PRELOAD.format(name, ""))
    assert f'could not access file "nosuch": No such file or directory; {NAMED}' in told


def _insert(site: Site, numbers: range, words: str) -> None:
    """Queue a job for each of these numbers; `words` has a place for it."""
    query = "insert into drover.jobqueue (jq_type, jq_args) select 'puppet', unnest(%s::text[])"
    with psycopg.connect(site.conninfo) as connection:
        connection.execute(query, ([words % number for number in numbers],))


def _wait_for_end(site: Site) -> None:
    deadline = time.monotonic() + 2 * LONG_PATIENCE_S
    query = "select count(*) from drover.jobqueue where jq_state not in ('done', 'failed')"
    while True:
        with psycopg.connect(site.conninfo) as connection:
            if connection.execute(query).fetchone() == (0,):
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)
