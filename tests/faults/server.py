"""A Postgres of a test's own, to be crashed: nobody starts it again but the test."""

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.database import embedded, migrate
from tests.patience import LONG_PATIENCE_S

AS_POSTGRES = ("runuser", "-u", "postgres", "--")
LIMIT_MS = 20_000
OPTIONS = "-c listen_addresses='' -c fsync=off -c shared_buffers=16MB -c max_wal_size=8MB -c min_wal_size=2MB -k {}"


class Server:
    """A cluster in a folder, and its server while that runs."""

    def __init__(self, folder: Path, prefix: Sequence[str] = (), primary: str = "") -> None:
        """Make the cluster: an empty one, or a copy that streams from a primary when it is started."""
        self.folder, self.data = folder, folder / "data"
        self._prefix = (*(AS_POSTGRES if os.geteuid() == 0 else ()), *prefix)
        self._binaries = embedded.find_binaries()
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        if primary:
            self._run("pg_basebackup", "-D", self.data, "-d", primary, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        else:
            self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C",
                      "--no-instructions", "--wal-segsize=1", "-N")  # fmt: skip
        self.conninfo = make_conninfo(host=str(folder), user="postgres", dbname="postgres")

    def start(self, more: str = "") -> None:
        """Start it, with more options, and wait until it takes connections."""
        options = f"{OPTIONS.format(self.folder)} {more}"
        self._run("pg_ctl", "-D", self.data, "-l", self.folder / "log", "-w", "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it; immediate is as good as a crash."""
        self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def is_running(self) -> bool:
        """Return whether there is a server."""
        return self._status("pg_ctl", "-D", self.data, "status") == 0

    def kill(self, pid: int) -> None:
        """kill -9 a backend, and wait until the server, which recovers then, has thrown everybody out."""
        with closing(psycopg.connect(self.conninfo)) as witness:
            os.kill(pid, signal.SIGKILL)
            poll = select.poll()
            poll.register(witness.fileno(), select.POLLIN)
            assert poll.poll(LIMIT_MS), "the server has not noticed the death of a backend"

    def _run(self, program: str, *words: str | Path) -> None:
        with open(os.devnull, "wb") as none:  # a pipe would be held open by the server
            command = [*self._prefix, str(self._binaries / program), *map(str, words)]
            subprocess.run(command, check=True, stdout=none, stderr=none, cwd="/", timeout=LONG_PATIENCE_S)

    def _status(self, program: str, *words: str | Path) -> int:
        command = [*self._prefix, str(self._binaries / program), *map(str, words)]
        return subprocess.run(command, check=False, capture_output=True, cwd="/", timeout=LONG_PATIENCE_S).returncode


@contextmanager
def server(folder: Path, prefix: Sequence[str] = ()) -> Iterator[Server]:
    """Run a server with the schema and its roles; it is stopped at the end."""
    folder.mkdir(exist_ok=True)
    made = Server(folder, prefix)
    made.start()
    try:
        migrate.update(made.conninfo)
        yield made
    finally:
        if made.is_running():
            made.stop()
