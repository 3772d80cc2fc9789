"""Our ends of the pipes of agents: what they write is read and passed on, what they are sent waits until it fits.

What a line agent writes goes to `on_output`, whose answer is written straight back; that is the hot path. What it
writes to stderr goes to `on_errors`, and the output of a command to `on_capture`.

One that writes too much must not hold up the others. Each read is charged with the time that it takes us, about; one
that has used up its allowance is read from later: it blocks on its full pipe, and loses nothing.
"""

import os
from collections.abc import Callable
from select import EPOLLIN, EPOLLOUT

from scheduler.drivers.loop import Loop
from scheduler.model.events_and_effects import Clogged, Event, Unclogged

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
Marks = bytearray | memoryview  # a byte for each slot, which is cleared before anything is written to its agent


class Outputs:
    """Outputs of all agents: the callbacks that receive them, and the descriptors that are not read at present.

    `ended` is called with a slot when one of its two outputs has ended, and is closed.
    """

    def __init__(
        self, loop: Loop, on_output: OnOutput, on_errors: OnErrors, on_capture: OnCapture,
        report: Callable[[Event], None], ended: Callable[[int], None], marks: Marks | None = None,
    ) -> None:  # fmt: skip
        self.loop, self.report, self.ended = loop, report, ended
        self.marks = bytearray(1) if marks is None else marks
        self.on_output, self.on_errors, self.on_capture = on_output, on_errors, on_capture
        self._paused: dict[int, Reader] = {}

    def close(self, fd: int) -> int:
        """Close a descriptor that may be closed already; return what stands in its place."""
        if fd != CLOSED:
            self._paused.pop(fd, None)
            self.loop.unregister(fd)  # first: a child between fork and exec may hold it open
            os.close(fd)
        return CLOSED

    def freeze(self, fd: int) -> None:
        """Do not read or write until it is registered anew, whatever pauses end meanwhile."""
        if fd != CLOSED:
            self._paused.pop(fd, None)
            self.loop.unregister(fd)

    def pause(self, fd: int, excess_s: float) -> None:
        """Do not read for a while, longer the more descriptors are paused."""
        reader = self.loop.unregister(fd)
        if reader is None:
            return
        self._paused[fd] = reader
        pause = min(excess_s / SHARE * len(self._paused), LONGEST_PAUSE_S)

        def resume() -> None:  # unless it was closed since; its number may be another's now
            if self._paused.get(fd) is reader:
                self.resume(fd)

        self.loop.at(self.loop.now + pause, resume)

    def resume(self, fd: int) -> None:
        """Read again from a descriptor if it was paused."""
        reader = self._paused.pop(fd, None)
        if reader is not None:
            self.loop.register(fd, EPOLLIN, reader)


class Pipes:
    """Our ends of the pipes of one process."""

    __slots__ = (
        "_charged_at", "_chunk", "_debt", "_is_dead", "_is_line", "_loop", "_mark", "_marks", "_outputs", "_slot",
        "received", "sent", "stderr", "stdin", "stdout", "unsent",
    )  # fmt: skip

    def __init__(self, outputs: Outputs, slot: int, is_line: bool, ends: tuple[int, int, int]) -> None:
        self.stdin, self.stdout, self.stderr = ends
        self.unsent: bytes | memoryview = b""
        self._outputs, self._loop, self._slot, self._is_line = outputs, outputs.loop, slot, is_line
        self._marks = outputs.marks if slot < len(outputs.marks) else bytearray(1)
        self._mark = slot if slot < len(outputs.marks) else 0
        self._is_dead = False  # the process
        self._chunk = LINES_CHUNK if is_line else CHUNK  # bytes of the next read
        self._debt = 0.0  # seconds of our time that it took, less what it was allowed since
        self._charged_at = 0.0
        self.sent = self.received = 0  # bytes, since they were last taken

    def open(self, stdin: bytes) -> None:
        """Begin to read; give a command its input."""
        for fd, reader in self._readers():
            self._loop.register(fd, EPOLLIN, reader)
        if not self._is_line:
            self.write(stdin)
            if not self.unsent:
                self.close_stdin()

    @property
    def fds(self) -> list[int]:
        """Return the descriptors that are open."""
        return [fd for fd in (self.stdin, self.stdout, self.stderr) if fd != CLOSED]

    def freeze(self) -> None:
        """Read and write nothing until `thaw`: what the process writes waits in its pipes."""
        for fd in self.fds:
            self._outputs.freeze(fd)

    def thaw(self) -> None:
        """Read and write again."""
        for fd, reader in self._readers():
            if fd != CLOSED:
                self._loop.register(fd, EPOLLIN, reader)
        if self.unsent and self.stdin != CLOSED:
            self._loop.register(self.stdin, EPOLLOUT, self._write_rest)

    def send_later(self, unsent: bytes) -> None:
        """Have this to write yet, after `thaw`."""
        self.unsent = memoryview(unsent) if unsent else b""

    def close(self) -> None:
        """Close all; what is in them is lost."""
        self.close_stdin()
        self.stdout, self.stderr = self._outputs.close(self.stdout), self._outputs.close(self.stderr)

    def take_bytes(self) -> tuple[int, int]:
        """Return how many bytes were sent and received since the last call."""
        taken = self.sent, self.received
        self.sent = self.received = 0
        return taken

    def close_stdin(self) -> None:
        """Send nothing more: the agent may end."""
        self._marks[self._mark] = 0
        self.stdin, self.unsent = self._outputs.close(self.stdin), b""

    def read_without_pause(self) -> None:
        """Read at once, and without a pause from now on: the process is dead."""
        self._is_dead = True
        self._outputs.resume(self.stdout)
        self._outputs.resume(self.stderr)

    def read_rest(self) -> None:
        """Read what is buffered now."""
        for fd, reader in self._readers():
            if fd != CLOSED:
                reader(EPOLLIN)

    def _readers(self) -> tuple[tuple[int, Reader], tuple[int, Reader]]:
        outputs, capture = self._outputs, self._outputs.on_capture
        if self._is_line:
            out, err = self._reader(self.stdout, outputs.on_output), self._reader(self.stderr, outputs.on_errors)
        else:
            out = self._reader(self.stdout, lambda slot, data, now: capture(slot, "out", data, now))
            err = self._reader(self.stderr, lambda slot, data, now: capture(slot, "err", data, now))
        return (self.stdout, out), (self.stderr, err)

    def _reader(self, fd: int, pass_on: OnOutput | OnErrors) -> Reader:
        """Return the function that reads, passes on what it has read, and writes the answer: the hot path.

        What it needs is bound once, here. It does not refer to itself: only the garbage collector would free it then.
        """
        slot, is_line, loop = self._slot, self._is_line, self._loop
        read, write, charge = os.read, self.write, self._charge

        def reader(_mask: int) -> None:
            try:
                data = read(fd, self._chunk)
            except BlockingIOError:
                return
            if not data:
                self._end(fd)
                return
            self.received += len(data)
            answer = pass_on(slot, data, loop.now)
            if answer is not None:
                write(answer)
            if is_line and len(data) > FREE:
                charge(fd, data)

        return reader

    def _charge(self, fd: int, data: bytes) -> None:
        """Charge a line agent for a read; pause its output if it has used up its allowance."""
        now, lines = self._loop.now, data.count(b"\n")
        cost = max(lines - FREE, 0) * LINE_S + len(data) * BYTE_S
        self._debt = max(self._debt - (now - self._charged_at) * SHARE, 0.0) + cost
        self._charged_at = now
        excess = self._debt - BURST_S
        self._chunk = FLOOD_CHUNK if excess > 0 and lines > FREE else LINES_CHUNK
        if excess > 0 and not self._is_dead and fd in (self.stdout, self.stderr):
            self._outputs.pause(fd, excess)

    def _end(self, fd: int) -> None:
        if fd == self.stdout:
            self.stdout = self._outputs.close(fd)
        else:
            self.stderr = self._outputs.close(fd)
        self._outputs.ended(self._slot)

    def write(self, data: bytes) -> None:
        """Write what the pipe takes; the rest waits until it takes more."""
        if self.stdin == CLOSED:
            return
        if self.unsent:
            self.unsent = memoryview(b"".join((self.unsent, data)))
            return
        self._marks[self._mark] = 0
        try:
            sent = os.write(self.stdin, data)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            self._broken()
            return
        self.sent += sent
        if sent != len(data):
            self.unsent = memoryview(data)[sent:]
            self._loop.register(self.stdin, EPOLLOUT, self._write_rest)
            self._report_clogged()

    def _write_rest(self, _mask: int) -> None:
        try:
            sent = os.write(self.stdin, self.unsent)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close_stdin()
            return
        self.sent += sent
        self.unsent = self.unsent[sent:]
        if self.unsent:
            return
        if self._is_line:
            self._loop.unregister(self.stdin)
            self._outputs.report(Unclogged(self._slot))
        else:
            self.close_stdin()

    def _broken(self) -> None:
        self._report_clogged()
        self.close_stdin()

    def _report_clogged(self) -> None:
        """Report that a line agent does not read; a command is free not to."""
        if self._is_line:
            self._outputs.report(Clogged(self._slot))
