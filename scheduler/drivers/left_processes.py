"""Processes that we could not end, as they became another user's: shown as long as they live, reaped when they end.

An agent becomes that by a setuid program such as sudo(8), under a daemon that is not root. Its slot and its job have
ended for us; it is for root or that user to end it.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from select import EPOLLIN
from typing import Any, NamedTuple

from scheduler.drivers.home_directory import expanded
from scheduler.drivers.local_process import LocalProcess
from scheduler.drivers.loop import Loop
from scheduler.drivers.os_calls import is_group, members, start_of
from scheduler.model.events_and_effects import Keeper

log = logging.getLogger(__name__)


class Left(NamedTuple):
    """A process, the type of its agent, since when it is left, and its time of start."""

    process: LocalProcess
    type: str
    since: float
    start: int


def left_in_words(process: LocalProcess) -> str:
    """Return what is said of a process that could not be ended."""
    return f"its process {process.pid} runs as {process.owner} and could not be ended: it is left"


def kept_command(keeper: Keeper, user: str, entry: str) -> LocalProcess | None:
    """Return the command of a detached job on this machine as the spool names it; None if it has ended."""
    spool = f"~{user}{keeper.spool[1:]}" if keeper.spool.startswith("~/") else keeper.spool
    with suppress(OSError, ValueError):
        link = os.readlink(os.path.join(expanded(spool), keeper.site, entry, "pid"))
        pid, start = map(int, link.split()[:2])
        pidfd = os.pidfd_open(pid)
        if start_of(pid) == start:
            return LocalProcess(pid, pidfd, is_child=False)
        os.close(pidfd)
    return None


class LeftProcesses:
    """The processes that are left, by pid."""

    def __init__(self, loop: Loop, snapshot: Iterable[Sequence[Any]] = ()) -> None:
        """Watch nothing yet; with a snapshot those of a program that was executed before us."""
        self._loop = loop
        self._left: dict[int, Left] = {}
        for pid, type, since, start in snapshot:
            with suppress(OSError):  # it has ended, and this is of another parent's
                if start_of(pid) == start:
                    self._watch(Left(LocalProcess(pid, os.pidfd_open(pid)), type, since, start))

    def add(self, process: LocalProcess, type: str) -> None:
        """Watch a process that could not be ended."""
        start = 0
        with suppress(OSError):
            start = start_of(process.pid)
        self._watch(Left(process, type, self._loop.now, start))

    def add_group(self, group: int, type: str) -> None:
        """Watch the processes of a group that were killed with its leader, and have not ended; and log them."""
        for pid in members(group) if is_group(group) else ():  # mostly all are dead by now; to look at each is slow
            with suppress(OSError):  # it has ended
                process = LocalProcess(pid, os.pidfd_open(pid), is_child=False)
                log.warning("agent %s: %s", type, left_in_words(process))
                self.add(process, type)

    def troubles(self) -> list[dict[str, Any]]:
        """Return which are left, and for how many seconds, as `drover status` shows it."""
        return [
            {"what": f"agent {left.type}", "left": pid, "reason": left_in_words(left.process),
             "seconds": round(self._loop.now - left.since, 1)}
            for pid, left in self._left.items()
        ]  # fmt: skip

    def snapshot(self) -> list[Sequence[Any]]:
        """Return what another program needs to go on with them: JSON; they are its children too."""
        return [[pid, left.type, left.since, left.start] for pid, left in self._left.items()]

    def close(self) -> None:
        """Watch none any more, and log those that live on."""
        for left in list(self._left.values()):
            log.warning("agent %s: %s", left.type, left_in_words(left.process))
            self._forget(left)

    def _watch(self, left: Left) -> None:
        self._left[left.process.pid] = left
        self._loop.register(left.process.pidfd, EPOLLIN, partial(self._ended, left))

    def _ended(self, left: Left, _mask: int) -> None:
        log.info("agent %s: process %d, which was left, has ended", left.type, left.process.pid)
        self._forget(left)

    def _forget(self, left: Left) -> None:
        del self._left[left.process.pid]
        self._loop.unregister(left.process.pidfd)
        left.process.reap()
