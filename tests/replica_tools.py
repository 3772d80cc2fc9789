"""A streaming replica of a server, on this machine: its own directory, its own process, gone at the end."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.database import embedded
from tests.patience import LONG_PATIENCE_S

NAME: Final = "copy"  # what the primary knows it as
LOOK_S: Final = 0.01
NOW: Final = "select pg_current_wal_insert_lsn()::text"
HAS: Final = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
STREAMING: Final = "select from pg_stat_replication where application_name = %s and state = 'streaming'"
SYNCHRONOUS: Final = "select from pg_stat_replication where application_name = %s and sync_state = 'sync'"
WAITS_FOR: Final = ("alter system set synchronous_standby_names = '{}'", "select pg_reload_conf()")


@contextmanager
def replica(primary: str, source: Path | None = None) -> Iterator[str]:
    """Yield the conninfo of a replica that streams from `primary`, or through a socket that stands in `source`."""
    with TemporaryDirectory(prefix="drover-replica-") as folder:
        data = Path(folder) / "data"
        _back_up(_replication(primary, source), data)
        with embedded.join(Path(folder), durable=True) as conninfo:
            until(primary, STREAMING, NAME)
            yield conninfo


def wait_for_all(primary: str, replica: str) -> None:
    """Wait until the replica has all that was written so far."""
    with psycopg.connect(primary, autocommit=True) as connection:
        (position,) = connection.execute(NOW.encode()).fetchone() or ("",)
    until(replica, f"select where ({HAS})", position)


def synchronise(primary: str, names: str = NAME) -> None:
    """Let commits of the primary wait for the replica; with no names, not any more."""
    with psycopg.connect(primary, autocommit=True) as connection:
        for statement in WAITS_FOR:
            connection.execute(statement.format(names).encode())
    if names:
        until(primary, SYNCHRONOUS, NAME)


def until(conninfo: str, query: str, *values: Any) -> None:
    """Look until a query gives a row."""
    deadline = time.monotonic() + LONG_PATIENCE_S
    with psycopg.connect(conninfo, autocommit=True) as connection:
        while connection.execute(query.encode(), values).fetchone() is None:
            assert time.monotonic() < deadline, f"not within {LONG_PATIENCE_S:.0f} s: {query} {values}"
            time.sleep(LOOK_S)


def _replication(primary: str, source: Path | None) -> str:
    """Return the conninfo that the replica will use; its own name is part of it."""
    parts = {"host": str(source)} if source else {}
    return make_conninfo(primary, application_name=NAME, dbname=None, **parts)


def _back_up(source: str, data: Path) -> None:
    """Copy the cluster, and note in it where to stream from."""
    program = str(embedded.find_binaries() / "pg_basebackup")
    command = [program, "-d", source, "-D", str(data), "-R", "-X", "stream", "-c", "fast", "--no-sync"]
    subprocess.run(command, check=True, capture_output=True, timeout=LONG_PATIENCE_S)


def socket_of(conninfo: str) -> Path:
    """Return the path of a server's socket."""
    parts = conninfo_to_dict(conninfo)
    return Path(str(parts["host"])) / f".s.PGSQL.{parts.get('port', 5432)}"
