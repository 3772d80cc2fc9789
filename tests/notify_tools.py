"""A service manager for tests: a datagram socket that hears what sd_notify would say."""

import select
import socket
from types import TracebackType

from tests.patience import PATIENCE_S


class Ear:
    """Hears datagrams, and gives what each said: a list of its lines."""

    def __init__(self, address: str) -> None:
        self.address = address  # as NOTIFY_SOCKET has it
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def __enter__(self) -> "Ear":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._socket.close()

    def heard(self) -> list[list[str]]:
        """Return all that has come so far and was not given yet."""
        told = []
        while self._is_readable(0.0):
            told.append(self._socket.recv(65_536).decode().split("\n"))
        return told

    def until(self, line: str) -> list[str]:
        """Wait for a datagram that has a line that begins so; all lines up to it, of it too."""
        told: list[str] = []
        while not any(one.startswith(line) for one in told):
            assert self._is_readable(PATIENCE_S), f"nobody said {line!r}; so far {told}"
            told += self._socket.recv(65_536).decode().split("\n")
        return told

    def assert_silent(self, seconds: float) -> None:
        """Fail if a datagram arrives within so many seconds."""
        assert not self._is_readable(seconds), self.heard()

    def _is_readable(self, within_s: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(within_s * 1000))
