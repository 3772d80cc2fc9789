"""Runs one command for the shell agent: output to LOG lines, heartbeats, an end when our input ends.

The command stays in our process group, so that one signal to the group, from the scheduler or from us, ends
all of it. What it leaves in the background lives until the agent ends. Linux only (pidfd).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import drover_agent

if TYPE_CHECKING:
    from template import Command

GRACE_S = 0.3  # from the end of our input to the kill; the protocol gives us a second in all
READ_BYTES = 65536
LOG_LINES = 200  # of one item; the number of those left out is logged at the end
LOG_LINE_BYTES = 8192
_HUNG_UP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)


def run(command: Command, heartbeat_s: float) -> int:
    """Run it to its end, in /bin/sh; its return code as subprocess has it, negative for a signal.

    Errors: OSError or ValueError if it cannot be started. Does not return if our stdin closes meanwhile.
    """
    argv = ["/bin/sh", "-c", command.script, "drover-agent-shell", *command.values]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            return _Watch(process, heartbeat_s).until_exit()
        finally:
            if process.poll() is None:  # the protocol is broken off: nothing of ours may live on
                end_group()


def hang_up() -> None:
    """Ask whatever commands have left behind to end, as the end of a terminal does; we live on."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.killpg(0, signal.SIGHUP)


def end_group() -> None:
    """Kill the command, all its children, and us."""
    os.killpg(0, signal.SIGKILL)


class _Watch:
    """The sources of events while a command runs: output, exit, the end of our input, the next heartbeat."""

    def __init__(self, process: subprocess.Popen[bytes], heartbeat_s: float) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._heartbeat_s = heartbeat_s
        self._beat_at = time.monotonic() + heartbeat_s
        self._kill_at = float("inf")
        self._outputs = {process.stdout.fileno(): _Output(""), process.stderr.fileno(): _Output("stderr: ")}
        self._poll = select.poll()

    def until_exit(self) -> int:
        with os.fdopen(os.pidfd_open(self._process.pid), "rb", 0) as exit_file:
            self._poll.register(exit_file, select.POLLIN)
            self._poll.register(0, _HUNG_UP)
            for fd in self._outputs:
                os.set_blocking(fd, False)
                self._poll.register(fd, select.POLLIN)
            while self._process.poll() is None:
                self._turn()
        for fd, output in self._outputs.items():
            output.add(_read(fd) or b"")
            output.end()
        return self._process.returncode

    def _turn(self) -> None:
        wait_s = min(self._beat_at, self._kill_at) - time.monotonic()
        for fd, _ in self._poll.poll(max(0.0, wait_s) * 1000):
            self._serve(fd)
        now = time.monotonic()
        if now >= self._kill_at:
            end_group()
        if now >= self._beat_at:
            drover_agent.heartbeat()
            self._beat_at = now + self._heartbeat_s

    def _serve(self, fd: int) -> None:
        if fd == 0:  # stays readable after the end of input: look away, or we spin
            self._poll.unregister(fd)
            self._kill_at, self._beat_at = time.monotonic() + GRACE_S, float("inf")
        elif fd in self._outputs:
            data = _read(fd)
            if data is None:
                self._poll.unregister(fd)
            else:
                self._outputs[fd].add(data)


class _Output:
    """One stream of a command, as LOG lines: the first LOG_LINES, none longer than LOG_LINE_BYTES."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._rest = b""
        self._lines = 0

    def add(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._log(line)
        if len(self._rest) > LOG_LINE_BYTES:
            self._log(self._rest)
            self._rest = b""

    def end(self) -> None:
        if self._rest:
            self._log(self._rest)
        if self._lines > LOG_LINES:
            drover_agent.log(f"{self._prefix}({self._lines - LOG_LINES} more lines left out)")

    def _log(self, line: bytes) -> None:
        for start in range(0, max(len(line), 1), LOG_LINE_BYTES):
            self._lines += 1
            if self._lines <= LOG_LINES:
                text = line[start : start + LOG_LINE_BYTES].decode("utf-8", "surrogateescape")
                drover_agent.log(self._prefix + text)


def _read(fd: int) -> bytes | None:
    """Return what can be read: empty if nothing now, None at the end of the stream."""
    try:
        return os.read(fd, READ_BYTES) or None
    except BlockingIOError:
        return b""
