"""For tests of the SSH process: one host as the supervisor has it, all reports and all output."""

import os
from collections import defaultdict
from collections.abc import Callable
from select import EPOLLIN, EPOLLOUT
from typing import Any

from scheduler.drivers.loop import Loop
from scheduler.drivers.os_calls import Ends
from scheduler.drivers.ssh_protocol import Ended, Left, Lost, NotStarted, Report, SshSettings, Start, Started
from scheduler.drivers.ssh_supervisor import SshProcess
from tests.loop_tools import turn_until


class Host:
    """The supervisor's side of an SSH process; reads the output of agents unless `is_heard` is false."""

    def __init__(self, settings: SshSettings) -> None:
        self.loop = Loop()
        self.reports: list[Report] = []
        self.said: dict[int, bytes] = defaultdict(bytes)
        self.errors: dict[int, bytes] = defaultdict(bytes)
        self.fed: dict[int, int] = {}
        self.open: set[tuple[int, str]] = set()
        self.answer: Callable[[int, bytes], None] = lambda _id, _data: None
        self.ends: dict[int, Ends] = {}
        self._fds: set[int] = set()
        self.process = SshProcess(self.loop, settings, self.reports.append)

    def start(self, *argv: str | bytes, id: int = 0, is_heard: bool = True, **keys: Any) -> Ends:
        """Start an agent and read its output."""
        words = tuple(word.encode() if isinstance(word, str) else word for word in argv)
        ends = self.ends[id] = self.process.start(Start(id, words, **keys))
        self._fds |= set(ends)
        if is_heard:
            self.hear(id)
        return ends

    def sh(self, script: str, id: int = 0, **keys: Any) -> Ends:
        return self.start("sh", "-c", script, id=id, **keys)

    def hear(self, id: int) -> None:
        """Read what it says from now on."""
        for fd, name, store in (
            (self.ends[id][1], "out", self.said),
            (self.ends[id][2], "err", self.errors),
        ):
            self.open.add((id, name))
            self.loop.register(fd, EPOLLIN, self._ear(id, fd, name, store))

    def up(self, id: int = 0, script: str = "echo up; exec cat") -> int:
        """Start an agent and wait until it has said up; its pid on the host."""
        self.sh(script, id=id)
        self.until(lambda: b"up\n" in self.said[id] or self.is_read(id))
        assert b"up\n" in self.said[id], (self.reports, self.errors[id])
        return self.pid(id)

    def pid(self, id: int = 0) -> int:
        (pid,) = [report.pid for report in self.reports if isinstance(report, Started) and report.id == id]
        return pid

    def write(self, id: int, data: bytes) -> int:
        """Write what the pipe takes; how much that was."""
        try:
            return os.write(self.ends[id][0], data)
        except BlockingIOError:
            return 0

    def feed(self, id: int, data: bytes) -> None:
        """Write as the pipe takes it; `fed` tells how much that was."""
        fd = self.ends[id][0]
        self.fed[id] = 0

        def go_on(_mask: int) -> None:
            try:
                self.fed[id] += self.write(id, data[self.fed[id] :])
            except BrokenPipeError:
                self.loop.unregister(fd)
            if self.fed[id] == len(data):
                self.loop.unregister(fd)

        self.loop.register(fd, EPOLLOUT, go_on)

    def close_stdin(self, id: int = 0) -> None:
        self._close(self.ends[id][0])

    def over(self, id: int = 0) -> list[Report]:
        """Return what was reported of the end of an agent; empty while it runs."""
        kinds = (NotStarted, Ended, Lost, Left)
        return [report for report in self.reports if isinstance(report, kinds) and report.id == id]

    def is_read(self, id: int = 0) -> bool:
        """Return whether the end of an agent is reported, and all of its output is read: these come by other pipes."""
        return bool(self.over(id)) and not {(id, "out"), (id, "err")} & self.open

    def end(self, id: int = 0) -> Report:
        """Return how an agent ended, once that is reported and its output is read."""
        self.until(lambda: self.is_read(id))
        (report,) = self.over(id)
        return report

    def await_report(self, kind: type[Any], count: int = 1) -> Any:
        """Return the nth report of a kind, once it has come."""
        self.until(lambda: len(self.all(kind)) >= count)
        return self.all(kind)[count - 1]

    def all(self, kind: type[Any]) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]

    def until(self, is_so: Callable[[], object], within_s: float = 30.0) -> None:
        turn_until(self.loop, is_so, within_s)

    def close(self) -> None:
        """End the process and forget everything."""
        self.process.close()
        for fd in list(self._fds):
            self._close(fd)
        self.loop.close()

    def _close(self, fd: int) -> None:
        if fd in self._fds:
            self._fds.discard(fd)
            self.loop.unregister(fd)
            os.close(fd)

    def _ear(self, id: int, fd: int, name: str, store: dict[int, bytes]) -> Callable[[int], None]:
        def ear(_mask: int) -> None:
            data = os.read(fd, 65_536)
            if data:
                store[id] += data
                if name == "out":
                    self.answer(id, data)
            else:
                self.open.discard((id, name))
                self._close(fd)

        return ear
