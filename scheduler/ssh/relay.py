"""Bytes between a channel and the descriptors of its agent, both ways.

Nothing is read that cannot be passed on: a pipe that is full shuts the window of the channel, so the agent is held up
and nobody else; a shut window, or a connection that takes no more, leaves the bytes in the supervisor's pipe, so the
supervisor sees EAGAIN. In hand are at most one piece of each and what the window allows.

Everything happens in the thread of the loop but this: what an agent says goes from paramiko's thread straight into the
pipe while that takes it, as a change of threads for each line costs half of all lines a second. paramiko cannot say
that a window has opened, so while one is shut it is looked at again and again.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from select import EPOLLIN, EPOLLOUT
from threading import Lock

import paramiko
from paramiko.buffered_pipe import BufferedPipe

from scheduler.drivers.loop import Loop
from scheduler.ssh.mailbox import BufferEvent, CallQueue
from scheduler.ssh.paramiko_adapters import ParamikoSocket

PIECE = 65_536  # a full pipe
LOOK_S = 0.01  # between two looks at windows that are shut
WINDOW_BYTES = 262_144  # of what an agent says and nobody has read yet
CLOSED = -1

BROKEN = (OSError, EOFError, paramiko.SSHException)  # what paramiko raises when a connection is no more


class Relay:
    """All streams of a bridge."""

    def __init__(self, loop: Loop, calls: CallQueue) -> None:
        self.loop, self.calls = loop, calls
        self._corked: list[ParamikoSocket] = []
        self._shut: dict[Stream, None] = {}  # those that hold what their channel does not take

    def cork(self, wire: ParamikoSocket) -> None:
        """Let what is sent in this turn leave at its end, in one piece."""
        if not wire.is_corked:
            wire.cork()
            self._corked.append(wire)

    def end_turn(self) -> None:
        """Send what was said in this turn; the loop's owner calls it after each."""
        while self._corked:
            self._corked.pop().uncork()

    def look_again(self, stream: "Stream") -> None:
        """Try again soon to send what a stream holds."""
        if not self._shut:
            self.loop.at(self.loop.now + LOOK_S, self._look)
        self._shut[stream] = None

    def _look(self) -> None:
        streams, self._shut = self._shut, {}
        for stream in streams:
            stream.push()


class Stream:
    """One channel between descriptors, which it closes; `over` is called once the channel has closed and is drained."""

    __slots__ = ("_channel", "_is_listening", "_outputs", "_over", "_relay", "_stdin", "_unsent", "_wire")

    def __init__(
        self,
        relay: Relay,
        wire: ParamikoSocket,
        channel: paramiko.Channel,
        stdin: int,
        outputs: tuple[int, ...],
        over: Callable[[], object],
    ) -> None:
        self._relay, self._wire, self._channel, self._over = relay, wire, channel, over
        self._stdin, self._unsent, self._is_listening = stdin, b"", False
        os.set_blocking(stdin, False)
        receivers = (channel.recv, channel.recv_stderr)
        pairs = zip(receivers, outputs, strict=False)
        self._outputs = [Output(self, relay, channel.transport, recv, fd) for recv, fd in pairs]

    def begin(self) -> None:
        """Relay from now on; what the other side says may be in paramiko's buffers already."""
        self._channel.settimeout(0.0)
        for buffer, output in zip(
            (self._channel.in_buffer, self._channel.in_stderr_buffer), self._outputs, strict=False
        ):
            buffer.set_event(output.bell)
        self._listen()

    def begin_direct(self, greeting: bytes) -> None:
        """Relay from now on, without a change of threads; the other side says nothing before it has the greeting."""
        self._channel.settimeout(0.0)
        self._channel.in_buffer, self._channel.in_stderr_buffer = (Direct(output) for output in self._outputs)
        if self._channel.eof_received or self._channel.closed:  # which the buffers before these were told
            for output in self._outputs:
                output.bell.set()
        self._relay.cork(self._wire)
        with suppress(*BROKEN):  # then it ends at once
            self._channel.sendall(greeting)
        self._listen()

    def tell_if_over(self) -> None:
        """Call `over` if nothing will come any more; an output asks for it."""
        if self._channel.closed and all(output.is_closed for output in self._outputs):
            self._end_input()
            over, self._over = self._over, lambda: None
            over()

    def push(self) -> None:
        """Send what is in hand; whoever holds up says so by a shut window, a full wire or new keys being made."""
        if self._stdin == CLOSED:
            return
        self._relay.cork(self._wire)
        try:
            while self._unsent and not self._wire.is_full and self._channel.transport.clear_to_send.is_set():
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except TimeoutError:
            pass
        except BROKEN:
            self._end_input()
            return
        if self._unsent:
            self._deafen()
            self._relay.look_again(self)
        else:
            self._listen()

    def _hear(self, _mask: int) -> None:
        try:
            data = os.read(self._stdin, PIECE)
        except BlockingIOError:
            return
        except OSError:  # a socket that was reset
            data = b""
        if data:
            self._unsent = data
            self.push()
            return
        self._relay.cork(self._wire)
        with suppress(*BROKEN):
            self._channel.shutdown_write()
        self._end_input()

    def _listen(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            self._relay.loop.register(self._stdin, EPOLLIN, self._hear)

    def _deafen(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._relay.loop.unregister(self._stdin)

    def _end_input(self) -> None:
        if self._stdin == CLOSED:
            return
        self._deafen()
        os.close(self._stdin)
        self._stdin, self._unsent = CLOSED, b""


class Output:
    """One output of an agent on its way into a pipe. Who takes from the channel and writes holds the lock."""

    __slots__ = ("_fd", "_held", "_is_unread", "_lock", "_recv", "_relay", "_stream", "_transport", "_waits", "bell")

    def __init__(
        self, stream: Stream, relay: Relay, transport: paramiko.Transport, recv: Callable[[int], bytes], fd: int
    ) -> None:
        self._stream, self._relay, self._transport, self._recv, self._fd = stream, relay, transport, recv, fd
        self._held = memoryview(b"")
        self._is_unread = False  # the pipe was closed at its other end
        self._waits = False  # for the pipe to take what is held
        self._lock = Lock()
        self.bell = BufferEvent(relay.calls, self.pull)
        os.set_blocking(fd, False)

    @property
    def is_closed(self) -> bool:
        """Whether all was passed on, the end too."""
        return self._fd == CLOSED

    def pass_on(self) -> None:
        """Pass on what has come, in paramiko's thread; all that is not simple is left to the loop."""
        if not self._transport.clear_to_send.is_set():  # new keys are made; to open a window would wait for them, here
            self.bell.set()
            return
        with self._lock:
            is_simple = not self._held and self._fd != CLOSED and self._move() is not None and not self._held
        if not is_simple:
            self.bell.set()

    def pull(self) -> None:
        """Pass on what has come, and its end; in the loop."""
        if self._waits or self._fd == CLOSED:
            self._stream.tell_if_over()
            return
        with self._lock:
            moved = None if self._held else self._move()
        if self._held:
            self._waits = True
            self._relay.loop.register(self._fd, EPOLLOUT, self._write_more)
        elif moved:
            self.bell.set()
        elif moved is None:
            self._close()

    def _move(self) -> int | None:
        """Take a piece and write it; its length, or None at the end. What the pipe does not take is held."""
        try:
            data = self._recv(PIECE)
        except TimeoutError:
            return 0
        except BROKEN:
            return None
        self._held = memoryview(data)
        self._write()
        return len(data) or None

    def _write(self) -> None:
        """Write what is held; if nobody reads it any more it is dropped."""
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
            self._waits = False
            self._relay.loop.unregister(self._fd)
            self.pull()

    def _close(self) -> None:
        with self._lock:
            os.close(self._fd)
            self._fd = CLOSED
        self._stream.tell_if_over()


class Direct(BufferedPipe):  # type: ignore[misc]
    """A buffer of a channel that passes on what it gets at once."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._outlet = output

    def feed(self, data: bytes) -> None:
        """Take what has come; in paramiko's thread."""
        super().feed(data)
        self._outlet.pass_on()

    def close(self) -> None:
        """Take the end."""
        super().close()
        self._outlet.bell.set()
