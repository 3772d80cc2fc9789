"""The border between paramiko's threads and our event loop, and the copying of bytes between a channel and pipes.

paramiko runs one thread per connection, which reads and decrypts. It reaches our thread in one way only: it appends a
call to a queue, and the epoll of our loop wakes up once for all calls that were appended (`CallQueue`).

Bytes are copied between an SSH channel and the pipes of its agent, both ways (`Stream`), and nothing is read that
cannot be passed on. A full pipe shuts the window of the channel, so that agent is held up and no other; a shut window,
or a connection that takes no more, leaves the bytes in the supervisor's pipe, so the supervisor sees EAGAIN. In memory
is at most one piece for each direction and what the window allows. All runs in the thread of the loop, but for one
shortcut: output goes from paramiko's thread straight into the pipe while that takes it, as a change of threads halves
the lines per second.
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from select import EPOLLIN, EPOLLOUT
from threading import Lock
from typing import Final

import paramiko
from paramiko.buffered_pipe import BufferedPipe

from scheduler.drivers.loop import Loop

READ_BYTES: Final = 65_536
FULL_BYTES: Final = 65_536  # kept unsent: nothing more is taken from agents' pipes; heartbeats wait behind them
PIECE_BYTES: Final = 65_536  # a full pipe
RETRY_S: Final = 0.01  # between two tries to send into windows that are shut: paramiko does not say that one has opened
WINDOW_BYTES: Final = 262_144  # of an agent's output that was not read yet
CLOSED: Final = -1
SO_RCVTIMEO: Final = struct.pack("ll", 5, 0)  # seconds after which paramiko checks whether its handshake takes too long

BROKEN: Final = (OSError, EOFError, paramiko.SSHException)  # what paramiko raises when a connection is lost

Call = Callable[[], object]


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
        """Return whether paramiko should be given nothing more to send for now."""
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


# ---- streams between a channel and pipes


class Relay:
    """State that all streams of the process share."""

    def __init__(self, loop: Loop, calls: CallQueue) -> None:
        self.loop, self.calls = loop, calls
        self._corked: set[ParamikoSocket] = set()

    def cork(self, sock: ParamikoSocket) -> None:
        """Have what is sent in this iteration of the loop leave at its end, in one piece."""
        if sock not in self._corked:
            self._corked.add(sock)
            sock.cork()

    def uncork_all(self) -> None:
        """Send what was kept back; to be called after each iteration of the loop."""
        while self._corked:
            self._corked.pop().uncork()


class Stream:
    """One channel between descriptors, which it closes; `on_end` is called once the channel is closed and drained."""

    def __init__(
        self, relay: Relay, sock: ParamikoSocket, channel: paramiko.Channel, stdin: int, outputs: tuple[int, ...],
        on_end: Callable[[], object],
    ) -> None:  # fmt: skip
        self._relay, self._sock, self._channel, self._on_end = relay, sock, channel, on_end
        self._stdin, self._unsent, self._is_reading = stdin, b"", False
        os.set_blocking(stdin, False)
        receivers = zip((channel.recv, channel.recv_stderr), outputs, strict=False)
        self._outputs = [Output(self, relay, recv, fd) for recv, fd in receivers]

    def begin(self) -> None:
        """Copy from now on; the first output may be in paramiko's buffers already."""
        self._channel.settimeout(0.0)
        buffers = (self._channel.in_buffer, self._channel.in_stderr_buffer)
        for buffer, output in zip(buffers, self._outputs, strict=False):
            buffer.set_event(output.event)
        self._read_input()

    def begin_direct(self, greeting: bytes) -> None:
        """Copy from now on, without a change of threads; the other side sends nothing before it has the greeting."""
        self._channel.settimeout(0.0)
        self._channel.in_buffer, self._channel.in_stderr_buffer = map(DirectBuffer, self._outputs)
        if self._channel.eof_received or self._channel.closed:  # which only the former buffers were told
            for output in self._outputs:
                output.event.set()
        self._relay.cork(self._sock)
        with suppress(*BROKEN):  # then it ends at once
            self._channel.sendall(greeting)
        self._read_input()

    def end_if_drained(self) -> None:
        """Call `on_end` if the channel is closed and all its output was passed on."""
        if self._channel.closed and all(output.is_closed for output in self._outputs):
            self._end_input()
            on_end, self._on_end = self._on_end, lambda: None
            on_end()

    def _send_unsent(self) -> None:
        """Send what is in memory, unless the window is shut, the socket is full, or new keys are being exchanged."""
        if self._stdin == CLOSED:
            return
        self._relay.cork(self._sock)
        try:
            while self._unsent and not self._sock.is_full and self._channel.transport.clear_to_send.is_set():
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except TimeoutError:
            pass
        except BROKEN:
            self._end_input()
            return
        if self._unsent:
            self._pause_input()
            self._relay.loop.at(self._relay.loop.now + RETRY_S, self._send_unsent)
        else:
            self._read_input()

    def _input_ready(self, _mask: int) -> None:
        try:
            self._unsent = os.read(self._stdin, PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a socket that was reset
            self._unsent = b""
        if self._unsent:
            self._send_unsent()
            return
        self._relay.cork(self._sock)
        with suppress(*BROKEN):
            self._channel.shutdown_write()
        self._end_input()

    def _read_input(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._relay.loop.register(self._stdin, EPOLLIN, self._input_ready)

    def _pause_input(self) -> None:
        self._is_reading = False
        self._relay.loop.unregister(self._stdin)

    def _end_input(self) -> None:
        if self._stdin != CLOSED:
            self._pause_input()
            os.close(self._stdin)
            self._stdin, self._unsent = CLOSED, b""


class Output:
    """One output of an agent on its way into a pipe. Whichever thread reads the channel and writes holds the lock."""

    def __init__(self, stream: Stream, relay: Relay, recv: Callable[[int], bytes], fd: int) -> None:
        self._stream, self._relay, self._recv, self._fd = stream, relay, recv, fd
        self._held = memoryview(b"")  # read from the channel, and not taken by the pipe
        self._is_unread = False  # the pipe was closed at its other end
        self._is_waiting = False  # for the pipe to take what is held
        self._lock = Lock()
        self.event = BufferEvent(relay.calls, self._forward)
        os.set_blocking(fd, False)

    @property
    def is_closed(self) -> bool:
        """Return whether all was passed on, the end too."""
        return self._fd == CLOSED

    def forward_directly(self) -> None:
        """Pass on what has come, in paramiko's thread; whatever is not simple is left to the loop."""
        with self._lock:
            is_simple = not self._held and not self.is_closed and self._copy_piece() is not None and not self._held
        if not is_simple:
            self.event.set()

    def _forward(self) -> None:
        """Pass on what has come, and its end; in the loop."""
        if not self._is_waiting and not self.is_closed:
            with self._lock:
                copied = None if self._held else self._copy_piece()
                if copied is None and not self._held:
                    os.close(self._fd)
                    self._fd = CLOSED
            if self._held:
                self._is_waiting = True
                self._relay.loop.register(self._fd, EPOLLOUT, self._write_more)
            elif copied:
                self.event.set()
        self._stream.end_if_drained()

    def _copy_piece(self) -> int | None:
        """Return the length of the piece that was read and written, or None at the end; the rest of it is held."""
        try:
            data = self._recv(PIECE_BYTES)
        except TimeoutError:
            return 0
        except BROKEN:
            return None
        self._held = memoryview(data)
        self._write()
        return len(data) or None

    def _write(self) -> None:
        """Write what is held; drop it if the pipe has no reader any more."""
        try:
            sent = len(self._held) if self._is_unread else os.write(self._fd, self._held)
        except BlockingIOError:
            return
        except OSError:
            sent, self._is_unread = len(self._held), True
        self._held = self._held[sent:]

    def _write_more(self, _mask: int) -> None:
        with self._lock:
            self._write()
        if not self._held:
            self._is_waiting = False
            self._relay.loop.unregister(self._fd)
            self._forward()


class DirectBuffer(BufferedPipe):  # type: ignore[misc]
    """A buffer of a channel that passes on at once what it gets; paramiko's thread calls it."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def feed(self, data: bytes) -> None:
        super().feed(data)
        self._output.forward_directly()

    def close(self) -> None:
        super().close()
        self._output.event.set()
