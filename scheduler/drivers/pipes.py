"""Our ends of the pipes of agents: what they write is read and passed on, what they are sent waits until it fits.

What a line agent writes goes to `on_output`, whose answer is written straight back; that is the hot path. What it
writes to stderr goes to `on_errors`, and the output of a command to `on_capture`.

One that writes too much must not hold up the others. Each read is charged with the time that it takes us, about; one
that has used up its allowance is read from later: it blocks on its full pipe, and loses nothing.
"""

import os
from collections.abc import Callable
from select import EPOLLIN, EPOLLOUT

from scheduler.drivers.local_process import Process
from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.steps import Task
from scheduler.model.events import Clogged, Event, Unclogged

CHUNK = 65_536  # bytes of a command's output read in one turn: a full pipe
LINES_CHUNK = 4096  # bytes of a line agent's output read in one turn, since each line costs
FLOOD_CHUNK = 512  # the same, of one that writes too much
FREE = 16  # bytes of one read that are not charged, and lines
LINE_S, BYTE_S = 1e-5, 1e-8  # what a line that is logged costs us, about, and a byte of it
SHARE = 0.1  # of our time for all those that write too much
BURST_S = 0.05  # of our time that each may use at once
LONGEST_PAUSE_S = 1.0
CLOSED = -1  # in place of a descriptor

OnOutput = Callable[[int, bytes, float], bytes | None]  # slot, data, now -> what to write back
OnErrors = Callable[[int, bytes, float], None]
OnCapture = Callable[[int, str, bytes, float], None]
Reader = Callable[[int], None]


class Child:
    """One process: our ends of its pipes, what is still to be written, how it ended."""

    __slots__ = (
        "awaiting_end", "charged_at", "chunk", "debt", "end", "grace", "is_line", "mute", "process", "slot", "stderr",
        "stdin", "stdout", "unsent",
    )  # fmt: skip

    def __init__(self, slot: int, is_line: bool) -> None:
        self.slot, self.is_line = slot, is_line
        self.process: Process
        self.awaiting_end: Task[None] | None = None  # of a process of this machine
        self.stdin = self.stdout = self.stderr = CLOSED
        self.unsent: bytes | memoryview = b""
        self.end: Event | None = None  # Gone, or NotCreated of one that was to begin elsewhere
        self.grace: Timer | None = None  # for the end of its output, once it is dead
        self.mute: Timer | None = None  # for its death, once it has closed its stdout
        self.chunk = LINES_CHUNK if is_line else CHUNK  # bytes of the next read
        self.debt = 0.0  # seconds of our time that it took, less what it was allowed since
        self.charged_at = 0.0


class Pipes:
    """The pipes of all children; `ended` is called when one of their outputs has ended, and is closed."""

    def __init__(
        self,
        loop: Loop,
        on_output: OnOutput,
        on_errors: OnErrors,
        on_capture: OnCapture,
        report: Callable[[Event], None],
        ended: Callable[[Child], None],
    ) -> None:
        self._loop, self._report, self._ended = loop, report, ended
        self._on_output, self._on_errors, self._on_capture = on_output, on_errors, on_capture
        self._paused: dict[int, Reader] = {}  # descriptors that are not read at present

    def open(self, child: Child, stdin: bytes) -> None:
        """Begin to read; give a command its input."""
        for fd, reader in self._readers(child):
            self._loop.register(fd, EPOLLIN, reader)
        if not child.is_line:
            self.write(child, stdin)
            if not child.unsent:
                self.close_stdin(child)

    def close(self, child: Child) -> None:
        """Close all pipes of a child; what is in them is lost."""
        self.close_stdin(child)
        child.stdout, child.stderr = self._close(child.stdout), self._close(child.stderr)

    def close_stdin(self, child: Child) -> None:
        """Send nothing more."""
        child.stdin, child.unsent = self._close(child.stdin), b""

    def _close(self, fd: int) -> int:
        """Close a descriptor that may be closed already; return what stands in its place."""
        if fd != CLOSED:
            self._paused.pop(fd, None)
            self._loop.unregister(fd)  # first: a child between fork and exec may hold it open
            os.close(fd)
        return CLOSED

    def read_rest(self, child: Child) -> None:
        """Read what is buffered now."""
        for fd, reader in self._readers(child):
            if fd != CLOSED:
                reader(EPOLLIN)

    def resume(self, child: Child) -> None:
        """Read at once from one that was paused: it is dead."""
        for fd in (child.stdout, child.stderr):
            self._resume(fd, self._paused.get(fd))

    def _readers(self, child: Child) -> tuple[tuple[int, Reader], tuple[int, Reader]]:
        slot, loop, capture, on_errors = child.slot, self._loop, self._on_capture, self._on_errors
        stdout, stderr = child.stdout, child.stderr
        if child.is_line:
            errors = self._reader(child, stderr, lambda data: on_errors(slot, data, loop.now))
            return (stdout, self._line_reader(child)), (stderr, errors)
        return (
            (stdout, self._reader(child, stdout, lambda data: capture(slot, "out", data, loop.now))),
            (stderr, self._reader(child, stderr, lambda data: capture(slot, "err", data, loop.now))),
        )

    def _line_reader(self, child: Child) -> Reader:
        """Return the hot path: read, pass on, write the answer; everything is bound once, here."""
        slot, fd, on_output, write, loop = child.slot, child.stdout, self._on_output, self.write, self._loop
        read, charge = os.read, self._charge

        def reader(_mask: int) -> None:
            try:
                data = read(fd, child.chunk)
            except BlockingIOError:
                return
            if not data:
                self._end(child, fd)
                return
            answer = on_output(slot, data, loop.now)
            if answer is not None:
                write(child, answer)
            if len(data) > FREE:
                charge(child, fd, data, reader)

        return reader

    def _reader(self, child: Child, fd: int, pass_on: Callable[[bytes], None]) -> Reader:
        def reader(_mask: int) -> None:
            try:
                data = os.read(fd, child.chunk)
            except BlockingIOError:
                return
            if not data:
                self._end(child, fd)
                return
            pass_on(data)
            if child.is_line:
                self._charge(child, fd, data, reader)

        return reader

    def _charge(self, child: Child, fd: int, data: bytes, reader: Reader) -> None:
        """Charge a line agent for a read; pause its output if it has used up its allowance."""
        now, lines = self._loop.now, data.count(b"\n")
        cost = max(lines - FREE, 0) * LINE_S + len(data) * BYTE_S
        child.debt = max(child.debt - (now - child.charged_at) * SHARE, 0.0) + cost
        child.charged_at = now
        excess = child.debt - BURST_S
        child.chunk = FLOOD_CHUNK if excess > 0 and lines > FREE else LINES_CHUNK
        if excess <= 0 or child.end is not None or fd not in (child.stdout, child.stderr):
            return
        self._loop.unregister(fd)
        self._paused[fd] = reader
        pause = min(excess / SHARE * len(self._paused), LONGEST_PAUSE_S)
        self._loop.at(now + pause, lambda: self._resume(fd, reader))

    def _resume(self, fd: int, reader: Reader | None) -> None:
        """Read again from a descriptor that was paused, unless it was closed since; its number may be another's now."""
        if reader is not None and self._paused.get(fd) is reader:
            del self._paused[fd]
            self._loop.register(fd, EPOLLIN, reader)

    def _end(self, child: Child, fd: int) -> None:
        if fd == child.stdout:
            child.stdout = self._close(fd)
        else:
            child.stderr = self._close(fd)
        self._ended(child)

    def write(self, child: Child, data: bytes) -> None:
        """Write what the pipe takes; the rest waits until it takes more."""
        if child.stdin == CLOSED:
            return
        if child.unsent:
            child.unsent = memoryview(b"".join((child.unsent, data)))
            return
        try:
            sent = os.write(child.stdin, data)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            self._broken(child)
            return
        if sent != len(data):
            child.unsent = memoryview(data)[sent:]
            self._loop.register(child.stdin, EPOLLOUT, lambda _mask: self._write_rest(child))
            self._report_clogged(child)

    def _write_rest(self, child: Child) -> None:
        try:
            sent = os.write(child.stdin, child.unsent)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close_stdin(child)
            return
        child.unsent = child.unsent[sent:]
        if child.unsent:
            return
        if child.is_line:
            self._loop.unregister(child.stdin)
            self._report(Unclogged(child.slot))
        else:
            self.close_stdin(child)

    def _broken(self, child: Child) -> None:
        self._report_clogged(child)
        self.close_stdin(child)

    def _report_clogged(self, child: Child) -> None:
        """Report that a line agent does not read; a command is free not to."""
        if child.is_line:
            self._report(Clogged(child.slot))
