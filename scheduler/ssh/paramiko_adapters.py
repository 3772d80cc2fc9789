"""What stands between paramiko's threads and our event loop: a queue of calls, an event, a socket, a transport.

paramiko runs one thread per connection, which reads and decrypts. It reaches our thread in one way only: it appends a
call to a queue, and the epoll of our loop wakes up once for all calls that were appended (`CallQueue`).
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from select import EPOLLIN, EPOLLOUT
from threading import Lock
from typing import Any, Final

import paramiko

from scheduler.drivers.loop import Loop

READ_BYTES: Final = 65_536
FULL_BYTES: Final = 65_536  # kept unsent: nothing more is taken from agents' pipes; heartbeats wait behind them
SO_RCVTIMEO: Final = struct.pack("ll", 5, 0)  # seconds after which paramiko checks whether its handshake takes too long

EXIT_SIGNAL: Final = "drover_exit_signal"  # attributes that `Transport` reads and writes on a paramiko.Channel
ON_EXIT: Final = "drover_on_exit"

BROKEN: Final = (OSError, EOFError, paramiko.SSHException)  # what paramiko raises when a connection is lost

Call = Callable[[], object]
HANDLERS: Final[dict[int, Callable[[Any, Any], None]]] = paramiko.Transport._channel_handler_table
CHANNEL_REQUEST: Final = paramiko.common.MSG_CHANNEL_REQUEST


class CallQueue:
    """Calls that other threads want our thread to make.

    Rests on the atomic append of a deque and on one order: `post` appends before it checks whether we are awake, and
    we say that we sleep again before we look what was appended.
    """

    def __init__(self, loop: Loop) -> None:
        self._calls: deque[Call] = deque()
        self._is_awake = False
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.register(self._fd, EPOLLIN, self._make_calls)

    def post(self, call: Call) -> None:
        """Have a call made soon by the thread of the loop; any thread may ask for it."""
        self._calls.append(call)
        self._wake()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            os.eventfd_write(self._fd, 1)

    def _make_calls(self, _mask: int) -> None:
        os.eventfd_read(self._fd)
        self._is_awake = False
        for _ in range(len(self._calls)):  # not those posted meanwhile, or a talkative agent would keep us here
            self._calls.popleft()()
        if self._calls:
            self._wake()


class BufferEvent:
    """Stands for the threading.Event of a paramiko buffer: any number of `set` before we run is one call."""

    def __init__(self, calls: CallQueue, call: Call) -> None:
        self._post, self._call, self._is_set = calls.post, call, False

    def set(self) -> None:
        """Have the call made; paramiko sets it before the data is there, but holds the buffer's lock until it is."""
        if not self._is_set:
            self._is_set = True
            self._post(self._run)

    def clear(self) -> None:
        """Do nothing: we read until nothing is left."""

    def _run(self) -> None:
        self._is_set = False
        self._call()


class ParamikoSocket:
    """A connected stream socket for one paramiko.Transport, which keeps what cannot be sent at once.

    On a plain socket paramiko's `send` blocks when the network does, so one stalled connection would hold up all agents
    of a host and the heartbeat that should notice it; and each packet is read in three pieces, with a poll before each.
    Callers of paramiko check `is_full` first, so what is kept stays bounded.
    """

    def __init__(self, sock: socket.socket, loop: Loop, calls: CallQueue, on_closed: Callable[[], object]) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, SO_RCVTIMEO)
        self._sock, self._loop, self._calls, self._on_closed = sock, loop, calls, on_closed
        self._read = memoryview(b"")
        self._unsent = bytearray()
        self._is_corked = self._is_waiting = self._is_broken = False
        self._lock = Lock()  # of what is unsent
        self._closed = False  # the name is paramiko's, which reads it

    # ---- called by paramiko, in its own thread or in ours

    def recv(self, count: int) -> bytes:
        """Return up to `count` bytes; b"" at the end. Errors: TimeoutError, now and then while nothing comes."""
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
        """Accept all of it. Errors: OSError if the connection is broken."""
        with self._lock:
            if self._is_broken:
                raise BrokenPipeError
            self._unsent += data
            self._flush()
        return len(data)

    def settimeout(self, _seconds: float | None) -> None:
        """Do nothing: a read ends when data comes, or at `shut_down`."""

    def close(self) -> None:
        """Close the socket; paramiko's thread does this last."""
        self.shut_down()
        if not self._closed:
            self._closed = True
            self._calls.post(self._unregister)

    # ---- called by the loop

    @property
    def is_full(self) -> bool:
        """Say whether paramiko should be given nothing more to send for now."""
        return len(self._unsent) > FULL_BYTES

    def cork(self) -> None:
        """Keep what is sent from now on, so that it leaves in one piece."""
        with self._lock:
            self._is_corked = True

    def uncork(self) -> None:
        """Send what was kept, as far as the socket takes it."""
        with self._lock:
            self._is_corked = False
            self._flush()

    def shut_down(self) -> None:
        """End the connection, from any thread; `on_closed` is called once paramiko's thread has seen it."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    # ---- private

    def _flush(self) -> None:
        """Send what may be sent; the lock is held."""
        if self._is_corked or self._is_waiting or not self._unsent:
            return
        try:
            sent = self._sock.send(self._unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:  # not raised to the sender: paramiko's thread reads of it too
            self._is_broken, sent = True, len(self._unsent)
            self.shut_down()
        del self._unsent[:sent]
        if self._unsent:
            self._is_waiting = True
            self._calls.post(self._await_writable)

    def _await_writable(self) -> None:
        if not self._closed:
            self._loop.register(self._sock.fileno(), EPOLLOUT, self._send_more)

    def _send_more(self, _mask: int) -> None:
        self._loop.unregister(self._sock.fileno())
        with self._lock:
            self._is_waiting = False
            self._flush()

    def _unregister(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()
            self._on_closed()


def _handle_channel_request(channel: Any, message: paramiko.Message) -> None:
    begin = message.packet.tell()
    kind, _ = message.get_text(), message.get_boolean()
    if kind == "exit-signal":
        setattr(channel, EXIT_SIGNAL, message.get_text())
    message.packet.seek(begin)
    HANDLERS[CHANNEL_REQUEST](channel, message)
    if kind in ("exit-signal", "exit-status") and (on_exit := getattr(channel, ON_EXIT, None)):
        on_exit()


class Transport(paramiko.Transport):  # type: ignore[misc]
    """A transport that calls back, in its thread, when a program has exited, and notes its exit signal."""

    _channel_handler_table: Final = {**HANDLERS, CHANNEL_REQUEST: _handle_channel_request}
