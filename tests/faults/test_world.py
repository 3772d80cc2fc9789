"""Faults of the world: the database, its disk, the network before it, the disk of the log, the clock."""

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import LiteralString

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.faults.proxy import Proxy
from tests.faults.server import Server, server
from tests.faults.settings import FULL
from tests.faults.site import ENDED, Site, Tally
from tests.integration.daemon import Daemon
from tests.needs import FAKETIME, need
from tests.replica_tools import replica, synchronise, until, wait_for_all

pytestmark = pytest.mark.slow

MINE = "datname = current_database() and application_name like 'drover %'"
BACKENDS = f"select pid from pg_stat_activity where {MINE} order by pid"
SLOW = """
create function faults.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.02); return new; end $$;
create trigger faults_slow before update on drover.jobqueue for each row execute function faults.slow();
"""
OWNERS = "select count(distinct owner) from faults.ownership"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that other users may enter."""
    with TemporaryDirectory(prefix="drover-faults-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def own(open_folder: Path) -> Iterator[Server]:
    """Yield a server to be crashed."""
    need("postgres account")
    with server(open_folder / "pg") as made:
        yield made


@pytest.fixture
def small(open_folder: Path) -> Iterator[Path]:
    """Yield a disk of 96 MB."""
    with disk(open_folder / "disk", "96m") as folder:
        yield folder


@pytest.fixture
def full(tmp_path: Path, site: Site) -> Iterator[Path]:
    """Yield a disk without a free byte, a file `ballast` on it; it goes after the site, whose daemons write to it."""
    with disk(tmp_path / "disk", "64k") as folder:
        fill(folder / "ballast")
        yield folder
        site.close()


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """Make a file system in memory that is soon full."""
    need("mount")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(ballast: Path) -> None:
    """Leave no byte of the disk."""
    with ballast.open("wb", buffering=0) as file:
        while file.fileno():
            try:
                file.write(b"x" * 4096)
            except OSError:
                return


# ---- the server


@pytest.mark.fault("Postgres: immediate restart")
def test_a_server_that_crashes_repeatedly_loses_no_job_t72(own: Server, tmp_path: Path, tally: Tally) -> None:
    with Site(own.conninfo, tmp_path, tally) as site:
        site.serving()
        for _ in range(10 if FULL else 3):
            site.submit(plain=50)
            own.stop("immediate")
            own.start()
            site.reconnect()
        assert site.settle() == []


@pytest.mark.fault("Postgres: kill -9 backend")
def test_killed_backends_lose_no_job(own: Server, tmp_path: Path, tally: Tally) -> None:
    with Site(own.conninfo, tmp_path, tally) as site:
        site.serving()
        for number in range(10 if FULL else 3):
            site.submit(plain=50)
            own.kill(random.Random(number).choice(site.until(lambda: site.rows(BACKENDS), "no connection"))[0])
            site.reconnect()
        assert site.settle() == []


@pytest.mark.fault("Postgres: pg_terminate_backend")
def test_cut_connections_lose_no_job(site: Site) -> None:
    site.serving()
    for number in range(200 if FULL else 30):
        site.submit(plain=3)
        chosen = random.Random(number).choice(site.until(lambda: site.rows(BACKENDS), "no connection"))
        site.value("select pg_terminate_backend(%s)", chosen[0])
    assert site.settle() == []


@pytest.mark.fault("connection cut at commit: a proxy swallows the answer")
@pytest.mark.parametrize("name", ["end_and_claim", "save", "mark", "settle", "rescue", "take_lease", "renew_lease"])
def test_a_lost_answer_loses_and_repeats_no_job(site: Site, name: str) -> None:
    parts = conninfo_to_dict(site.database)
    with Proxy(Path(str(parts["host"])) / f".s.PGSQL.{parts['port']}") as proxy:
        through = make_conninfo(site.database, host="127.0.0.1", port=proxy.port)
        if name == "take_lease":
            proxy.swallow(b"take_lease/")
        daemon = site.start(conninfo=through)
        for _ in range(3):
            site.submit()
            proxy.swallow(f"{name}/".encode())
            wanted = proxy.swallowed + 1
            if name == "take_lease":
                break
            site.until(lambda: _came(site, proxy, wanted), f"no {name} was sent")  # noqa: B023
        assert site.settle() == []
        assert proxy.swallowed
        daemon.stop()


def _came(site: Site, proxy: Proxy, wanted: int) -> bool:
    if site.value("select not exists (select from drover.jobqueue where jq_endtime is null)"):
        site.submit()
    return proxy.swallowed >= wanted


@pytest.mark.fault("slow query: a trigger that sleeps")
def test_a_slow_database_does_not_block_the_loop(site: Site, tally: Tally) -> None:
    daemon = site.serving()
    site.rows(SLOW)
    site.submit(plain=30)
    assert site.settle(patience=100.0) == []
    assert site.value(OWNERS) == 1
    daemon.stop()
    assert site.longest_gap_ms() < 1000.0


@pytest.mark.fault("database disk full")
def test_a_database_without_space_is_waited_for(small: Path, tmp_path: Path, tally: Tally) -> None:
    need("postgres account")
    with ExitStack() as stack:
        own = stack.enter_context(server(small / "pg"))
        site = stack.enter_context(Site(own.conninfo, tmp_path, tally))
        daemon = site.serving()
        site.submit()
        assert site.settle() == []
        fill(small / "ballast")
        _write_until_it_fails(own)
        assert daemon.process.poll() is None
        (small / "ballast").unlink()
        if not own.is_running():
            own.start()
        site.reconnect()
        site.submit(plain=30)
        assert site.settle() == []
        daemon.stop()


def _write_until_it_fails(own: Server) -> None:
    with pytest.raises(psycopg.Error):  # noqa: PT012
        while own.conninfo:
            with psycopg.connect(own.conninfo) as connection:
                connection.execute("insert into drover.jobqueue (jq_type, jq_args) select 'exec', 'late' || n"
                                   " from generate_series(1, 2000) n")  # fmt: skip


# ---- another server takes over


@pytest.mark.fault("failover to a synchronous replica")
def test_a_synchronous_replica_that_takes_over_has_lost_nothing(own: Server, tmp_path: Path, tally: Tally) -> None:
    with replica(own.conninfo) as copy, Site(own.conninfo, tmp_path, tally) as site:
        synchronise(own.conninfo)
        serve_either(site, own.conninfo, copy)
        site.submit(plain=100)
        own.stop("immediate")
        order(copy, "alter system set synchronous_standby_names = ''", "select pg_promote()")
        site.reconnect()
        site.submit(plain=50)
        assert site.settle() == []


@pytest.mark.fault("failover to an asynchronous replica that lags behind")
def test_an_asynchronous_replica_loses_only_what_it_had_not_received(own: Server, tmp_path: Path, tally: Tally) -> None:
    kept, lost, later = 50, 20, 30
    with replica(own.conninfo) as copy, Site(own.conninfo, tmp_path, tally) as site:
        serve_either(site, own.conninfo, copy)
        site.queue(kept)
        site.until(lambda: site.value(ENDED), "not all are done before")
        reader = make_conninfo(copy, dbname="postgres")
        wait_for_all(own.conninfo, reader)
        order(copy, "alter system set primary_conninfo = ''", "select pg_reload_conf()")
        until(reader, "select where not exists (select from pg_stat_wal_receiver)")
        site.queue(lost)
        site.until(lambda: site.value(ENDED), "not all are done that will be lost")
        own.stop("immediate")
        order(copy, "select pg_promote()")
        site.reconnect()
        site.queue(later)
        assert site.unsettled(patience=60.0) == []
        assert site.value("select count(*) from drover.jobqueue where jq_state = 'done'") == kept + later
    tally.runs += 1
    tally.notes.append(f"{lost} of {kept + lost + later} jobs are lost: those that the replica had not got")


def serve_either(site: Site, primary: str, copy: str) -> None:
    """Let a daemon, and the site itself, follow the server that can be written to."""
    places = [conninfo_to_dict(each)["host"] for each in (primary, copy)]
    site.database = make_conninfo(
        site.database, host=",".join(places), port="5432,5432", target_session_attrs="read-write"
    )
    site.reconnect()
    site.serving(conninfo=site.database)


def order(server: str, *statements: LiteralString) -> None:
    """Run these on a server, one by one."""
    with psycopg.connect(make_conninfo(server, dbname="postgres"), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


# ---- the log's disk


@pytest.mark.fault("ENOSPC on the log")
def test_a_full_disk_under_the_log_delays_no_job(site: Site, full: Path) -> None:
    daemon = site.serving(log=full / "log")
    site.submit(plain=50)
    assert site.settle() == []
    (full / "ballast").unlink()
    daemon.stop()
    assert "ended" in (full / "log").read_text()


# ---- the clock


@pytest.mark.fault("clock jump")
@pytest.mark.parametrize("jump", ["+1h", "-1h", "+400d"])
def test_a_jump_of_the_clock_kills_no_agent_and_loses_no_lease(site: Site, tmp_path: Path, jump: str) -> None:
    need("libfaketime")
    told = tmp_path / "clock"
    told.write_text("+0")
    fake = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(told), "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}  # fmt: skip
    daemon = site.serving(environment=fake)
    site.submit(plain=20)
    assert site.settle() == []
    agents = set(daemon.agent_pids())
    told.write_text(jump)
    site.submit(plain=20)
    assert site.settle() == []
    time.sleep(1.5)  # longer than the lease
    assert site.value(OWNERS) == 1
    assert agents & set(daemon.agent_pids())
    assert _year(daemon) != _year_now(daemon) or jump != "+400d"
    daemon.stop()


def _year(daemon: Daemon) -> str:
    """Return the year of the last line of the log, by the daemon's clock."""
    return daemon.stderr().rstrip().rpartition("\n")[2][:4]


def _year_now(daemon: Daemon) -> str:
    return time.strftime("%Y", time.localtime(os.stat(daemon.folder).st_ctime))
