"""A relay before Postgres that swallows an answer: the server has done what it was asked, and nobody hears of it.

It also cuts all connections, holds up what they carry, and leads new ones to another server.
"""

import select
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

CHUNK = 65_536
READY = b"Z\x00\x00\x00\x05"  # ReadyForQuery: whatever was asked is done, and committed


class Proxy:
    """Listens on a port of this machine; `swallow` names what the client says whose answer is lost."""

    def __init__(self, target: Path) -> None:
        self.target = target  # of new connections
        self._clients: set[socket.socket] = set()
        self._thaw = 0.0
        self._wanted: bytes | None = None
        self._lock = threading.Lock()
        self.swallowed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def swallow(self, words: bytes) -> None:
        """Lose the answer to the next message that has these bytes in it, and the connection with it."""
        with self._lock:
            self._wanted = words

    def cut(self) -> None:
        """Lose all connections."""
        with self._lock:
            for client in self._clients:
                with suppress(OSError):  # closed by now
                    client.shutdown(socket.SHUT_RDWR)

    def freeze(self, seconds: float) -> None:
        """Pass nothing on for so long."""
        self._thaw = time.monotonic() + seconds

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(str(self.target))
            with self._lock:
                self._clients.add(client)
            try:
                self._pass_on(client, server)
            finally:
                with self._lock:
                    self._clients.remove(client)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        is_deaf = False
        while True:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(CHUNK)
                if not data:
                    return
                time.sleep(max(0.0, self._thaw - time.monotonic()))
                if ready is client:
                    is_deaf = is_deaf or self._is_wanted(data)
                    server.sendall(data)
                elif not is_deaf:
                    client.sendall(data)
                elif READY in data:
                    self.swallowed += 1
                    return

    def _is_wanted(self, data: bytes) -> bool:
        with self._lock:
            found = self._wanted is not None and self._wanted in data
            if found:
                self._wanted = None
            return found
