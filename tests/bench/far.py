"""A synchronous replica that is far away: a server of our own, a real replica of it, and answers that come late.

The replica streams through a socket that passes everything on at once but what it answers, so a commit of the primary
takes that much longer, as it does over a long line; nothing else is slowed.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

from scheduler.database import embedded
from tests.bench.place import Place
from tests.replica_tools import replica, socket_of, synchronise

CHUNK: Final = 65_536
COMMITS: Final = 50  # to see what one takes
COMMIT: Final = b"insert into drover.log (log_type, log_message) values ('LOG', 'a commit')"
DURABLE: Final = b"set synchronous_commit = on"

Late = SimpleQueue[tuple[float, bytes]]


@dataclass(slots=True)
class Line:
    """How long an answer is on its way, in seconds."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Far:
    """A place whose commits may wait for a replica at the other end of a line."""

    place: Place
    line: Line

    def wait(self, delay_ms: float | None) -> None:
        """Let commits wait for answers so late, or for nobody; the replica streams all the same."""
        self.line.delay_s = (delay_ms or 0.0) / 1000
        synchronise(self.place.conninfo, *(() if delay_ms is not None else ("",)))

    def commit_ms(self) -> float:
        """Return what a commit takes."""
        with self.place.database() as database:
            database.execute(DURABLE)
            return median(_timed(lambda: database.execute(COMMIT)) for _ in range(COMMITS))


@contextmanager
def far(place: Place) -> Iterator[Far]:
    """Make a server as that of `place` is, with a replica."""
    with embedded.temporary(durable=True) as conninfo, _passing_on(socket_of(conninfo)) as (folder, line):
        near = replace(place, conninfo=conninfo)
        near.migrate()
        with replica(conninfo, folder):
            yield Far(near, line)


def _timed(act: Callable[[], object]) -> float:
    begun = time.monotonic()
    act()
    return (time.monotonic() - begun) * 1000


# ---- the line


@contextmanager
def _passing_on(server: Path) -> Iterator[tuple[Path, Line]]:
    """Yield a folder with a socket of the same name, and the line from there to the server's."""
    line = Line()
    with TemporaryDirectory(prefix="drover-line-") as folder, closing(socket.socket(socket.AF_UNIX)) as listener:
        path = Path(folder) / server.name
        listener.bind(str(path))
        listener.listen()
        owner = server.parent.stat()
        for each in (folder, path):  # the replica runs as the same account
            os.chown(each, owner.st_uid, owner.st_gid)
        Thread(target=_accept, args=(listener, server, line), daemon=True).start()
        try:
            yield Path(folder), line
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # to close it would leave a thread waiting


def _accept(listener: socket.socket, server: Path, line: Line) -> None:
    with suppress(OSError):  # shut at the end
        while True:
            client, _ = listener.accept()
            Thread(target=_serve, args=(client, server, line), daemon=True).start()


def _serve(client: socket.socket, server: Path, line: Line) -> None:
    late: Late = SimpleQueue()
    with client, socket.socket(socket.AF_UNIX) as upstream:
        upstream.connect(str(server))
        back = [Thread(target=_hold, args=(client, late, line)), Thread(target=_release, args=(late, upstream))]
        for thread in back:
            thread.start()
        _pass(upstream, client)
        for thread in back:
            thread.join()


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    _end(sink)


def _hold(source: socket.socket, late: Late, line: Line) -> None:
    """Note when each answer is to arrive."""
    with suppress(OSError):
        while data := source.recv(CHUNK):
            late.put((time.monotonic() + line.delay_s, data))
    late.put((0.0, b""))


def _release(late: Late, sink: socket.socket) -> None:
    with suppress(OSError):
        while (answer := late.get())[1]:
            time.sleep(max(0.0, answer[0] - time.monotonic()))
            sink.sendall(answer[1])
    _end(sink)


def _end(sink: socket.socket) -> None:
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
