"""A server that speaks as much of the protocol of Postgres as it takes to say that it is version 12."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

VERSION: Final = b"12.22"
PORT: Final = 5432


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


GREETING: Final = b"".join((
    message(b"R", struct.pack("!i", 0)),  # the login is accepted
    message(b"S", b"server_version\0" + VERSION + b"\0"),
    message(b"S", b"server_encoding\0UTF8\0"),
    message(b"S", b"client_encoding\0UTF8\0"),
    message(b"S", b"standard_conforming_strings\0on\0"),
    message(b"K", struct.pack("!ii", 1, 1)),
    message(b"Z", b"I"),
))  # fmt: skip


@contextmanager
def old_server() -> Iterator[str]:
    """Yield the conninfo of such a server; what is asked of it stays without an answer."""
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(folder) / f".s.PGSQL.{PORT}"))
        listener.listen()
        Thread(target=_serve, args=(listener,), daemon=True).start()
        yield f"host={folder} port={PORT} dbname=q user=me"
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    with suppress(OSError):  # it was closed
        while True:
            connection, _ = listener.accept()
            Thread(target=_greet, args=(connection,), daemon=True).start()


def _greet(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        connection.recv(65_536)  # the start-up message
        connection.sendall(GREETING)
        while connection.recv(65_536):
            pass
