"""Servers that stand for a Postgres in tests of connections: one that falls silent, one that relays; and a clock."""

import socket
from collections.abc import Callable
from pathlib import Path
from select import EPOLLIN

from scheduler.drivers.loop import Loop


class Clock:
    """Monotonic seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def turn_until(self, loop: Loop, is_so: Callable[[], object], step: float = 0.0) -> None:
        while not is_so():
            self.now += step
            loop.turn(loop.now + 0.002)


class MuteServer:
    """Greets like Postgres and never says anything again."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._client: socket.socket | None = None

    def __enter__(self) -> "MuteServer":
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()
        if self._client:
            self._client.close()

    def greet(self, loop: Loop) -> None:
        self._client, _ = self._listener.accept()
        loop.turn(loop.now)
        self._client.recv(1000)
        authenticated, key, ready = b"R\0\0\0\x08\0\0\0\0", b"K\0\0\0\x0c\0\0\0\1\0\0\0\1", b"Z\0\0\0\5I"
        self._client.sendall(authenticated + key + ready)
        loop.turn(loop.now)
        self._client.recv(1000)  # who it is, that is asked first
        column = b"pid\0" + b"\0" * 18, b"start\0" + b"\0" * 18
        rows = b"T" + _message(b"\0\2" + b"".join(column)) + b"D" + _message(b"\0\2\0\0\0\0011\0\0\0\0010")
        self._client.sendall(b"1\0\0\0\0042\0\0\0\4" + rows + b"C" + _message(b"SELECT 1\0") + ready)
        loop.turn(loop.now)
        self._client.recv(1000)  # what every connection sets
        self._client.sendall(b"1\0\0\0\0042\0\0\0\4" + b"C" + _message(b"SET\0") + ready)


def _message(body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4) + body


def relay(loop: Loop, server: socket.socket, path: str, ends: list[socket.socket]) -> None:
    """Pass everything on, both ways, until one side ends."""
    near, _ = server.accept()
    far = socket.socket(socket.AF_UNIX)
    far.connect(path)
    ends += near, far

    def copy(source: socket.socket, sink: socket.socket) -> None:
        if data := source.recv(65_536):
            return sink.sendall(data)
        for end in ends:
            loop.unregister(end.fileno())
            end.close()
        return ends.clear()

    loop.register(near.fileno(), EPOLLIN, lambda mask: copy(near, far))
    loop.register(far.fileno(), EPOLLIN, lambda mask: copy(far, near))
