"""Ways to cut daemons off from their database: a socket path that a test opens and shuts, and killed backends."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from socket import AF_UNIX, socket

import psycopg
from psycopg.conninfo import make_conninfo

from tests.replica_tools import socket_of

SLOW = (
    "[scheduler]\nreconnect_max = 0.2\nlease = 30\nlease_renewal = 10\n"  # so that a long absence is not past the lease
)
OURS = "usename like 'drover_%%' and application_name like 'drover %%' and datname = current_database()"
CUT = f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where {OURS}"

LASTING = "[scheduler]\nlease = 30\nlease_renewal = 0.3\n"  # where no lease is to run out
QUICK = "[scheduler]\nlease = 1.5\nlease_renewal = 0.3\nreconnect_max = 0.2\n"  # where a lease runs out


class Door:
    """A path to the socket of a server; shutting it prevents connections and ends those that are open."""

    def __init__(self, folder: Path, database: str) -> None:
        self._server = socket_of(database)
        self._path = folder / self._server.name
        self._database = database
        self.conninfo = make_conninfo(database, host=str(folder))

    def open(self) -> None:
        self._path.symlink_to(self._server)

    def shut(self) -> None:
        self._path.unlink()
        cut(self._database)

    @contextmanager
    def bricked_up(self) -> Iterator[Callable[[], Counter[str]]]:
        """Close every new connection without an answer, and count the attempts of each daemon connection."""
        self.shut()
        knocks: Counter[str] = Counter()

        def count() -> Counter[str]:
            while select([listener], [], [], 0)[0]:
                with listener.accept()[0] as guest:
                    name = re.search(rb"drover (\w+)", guest.recv(4096))
                knocks[name[1].decode() if name else "?"] += 1
            return knocks

        with socket(AF_UNIX) as listener:
            listener.bind(str(self._path))
            listener.listen(100)
            yield count
        self._path.unlink()


def cut(database: str, condition: str = "true") -> None:
    """End the connections of daemons."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"{CUT} and {condition}".encode().replace(b"%%", b"%"))


def execute(conninfo: str, statement: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(statement.encode())
