"""A pgbouncer before a server, on this machine: its own directory, its own process, gone at the end."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.database.embedded_guardian import _privileges
from tests.needs import PGBOUNCER, need
from tests.patience import PATIENCE_S

PORT: Final = 6432
LOOK_S: Final = 0.01
ROLES: Final = ("drover_scheduler", "drover_msq", "drover_agentdb", "postgres")


@contextmanager
def pooler(server: str, mode: str, size: int = 20) -> Iterator[str]:
    """Yield the conninfo of the same database through a pooler that gives a connection per `mode`."""
    need("pgbouncer")
    with TemporaryDirectory(prefix="drover-pooler-") as folder:
        where = Path(folder)
        (where / "pgbouncer.ini").write_text(_settings(where, conninfo_to_dict(server), mode, size))
        (where / "users").write_text("".join(f'"{role}" ""\n' for role in ROLES))
        prefix, uid = _privileges()  # pgbouncer refuses to be root, as postgres does
        for path in (where, *where.iterdir()):
            os.chown(path, uid, -1)
        argv = [*prefix, str(PGBOUNCER), "-q", str(where / "pgbouncer.ini")]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            conninfo = make_conninfo(server, host=folder, port=PORT)
            _wait_for(make_conninfo(conninfo, user=ROLES[0]), where)
            yield conninfo
        finally:
            process.kill()
            process.wait()


def _settings(where: Path, server: dict[str, object], mode: str, size: int) -> str:
    return f"""
[databases]
* = host={server["host"]} port={server["port"]}
[pgbouncer]
unix_socket_dir = {where}
listen_addr =
listen_port = {PORT}
auth_type = trust
auth_file = {where / "users"}
pool_mode = {mode}
default_pool_size = {size}
logfile = {where / "log"}
"""


def _wait_for(conninfo: str, where: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not _answers(conninfo):
        log = where / "log"
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "the pooler has not even a log"
        time.sleep(LOOK_S)


def _answers(conninfo: str) -> bool:
    try:
        psycopg.connect(conninfo).close()
    except psycopg.OperationalError:
        return False
    return True
