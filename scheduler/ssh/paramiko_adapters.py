"""A socket for paramiko: to send never blocks, and reads come from a large buffer of ours.

On a socket of its own paramiko's `send` blocks when the network does, so one stalled connection would hold up all
agents of a host and the beat that should notice it; and it reads each packet in three small pieces, each with a poll
before it, and wakes up ten times a second for nothing. What cannot be sent at once is kept here and sent when the
socket takes it; whoever feeds paramiko looks at `is_full` first, so what is kept stays bounded.

While a turn of our loop lasts a wire can be corked, so that all lines of that turn leave in one piece.
"""

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from select import EPOLLOUT
from threading import Lock

from scheduler.drivers.loop import Loop
from scheduler.ssh.mailbox import CallQueue

READ_BYTES = 65_536
FULL_BYTES = 65_536  # kept unsent: nothing more is taken from agents' pipes; beats wait behind them
LOOK_S = 5  # how long a read may take before paramiko looks whether its handshake takes too long

SO_RCVTIMEO = struct.pack("ll", LOOK_S, 0)


class ParamikoSocket:
    """A connected stream socket, for one paramiko.Transport."""

    def __init__(self, sock: socket.socket, loop: Loop, calls: CallQueue, closed: Callable[[], object]) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SO_RCVTIMEO)
        self._sock, self._loop, self._calls, self._say_closed = sock, loop, calls, closed
        self._read = memoryview(b"")
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_corked = self._waits = self._is_broken = False
        self._lock = Lock()
        self._closed = False  # paramiko looks at it

    # ---- what paramiko calls, in its own thread or in ours

    def recv(self, count: int) -> bytes:
        """Give up to `count` bytes; b"" at the end; errors: TimeoutError, now and then while nothing comes."""
        if not self._read:
            try:
                self._read = memoryview(self._sock.recv(READ_BYTES))
            except BlockingIOError:
                raise TimeoutError from None
            except TimeoutError as error:  # TCP gave up; to paramiko this type would mean: ask again
                raise ConnectionError(*error.args) from error
        data, self._read = self._read[:count], self._read[count:]
        return bytes(data)

    def send(self, data: bytes) -> int:
        """Take all of it; errors: OSError if the connection is broken."""
        with self._lock:
            if self._is_broken:
                raise BrokenPipeError
            self._unsent.append(data)
            self._unsent_bytes += len(data)
            if not self._is_corked and not self._waits:
                self._flush()
        return len(data)

    def settimeout(self, _seconds: float | None) -> None:
        """Do nothing: a read ends when something comes, or when we hang up."""

    def close(self) -> None:
        """End the connection; whoever reads from it is told so. Paramiko's thread does this last."""
        self.hang_up()
        if not self._closed:
            self._closed = True
            self._calls.post(self._forget)

    # ---- what the loop calls

    @property
    def is_full(self) -> bool:
        """Whether paramiko should be given nothing more to send for now."""
        return self._unsent_bytes > FULL_BYTES

    @property
    def is_corked(self) -> bool:
        """Whether what is sent is kept until `uncork`."""
        return self._is_corked

    def cork(self) -> None:
        """Keep what is sent from now on."""
        with self._lock:
            self._is_corked = True

    def uncork(self) -> None:
        """Send what was kept, as far as the socket takes it."""
        with self._lock:
            self._is_corked = False
            if not self._waits:
                self._flush()

    def hang_up(self) -> None:
        """End the connection, from any thread; `closed` is called once paramiko's thread has seen it."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    # ---- inside

    def _flush(self) -> None:
        """Send; the lock is held. A failure is not told to who happens to send: paramiko's thread reads of it too."""
        if not self._unsent:
            return
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        try:
            sent = self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._is_broken, sent = True, len(data)
            self.hang_up()
        self._unsent = [data[sent:]] if sent < len(data) else []
        self._unsent_bytes = len(data) - sent
        if self._unsent:
            self._waits = True
            self._calls.post(self._wait)

    def _wait(self) -> None:
        if not self._closed:
            self._loop.register(self._sock.fileno(), EPOLLOUT, self._go_on)

    def _go_on(self, _mask: int) -> None:
        self._loop.unregister(self._sock.fileno())
        with self._lock:
            self._waits = False
            self._flush()

    def _forget(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()
            self._say_closed()
