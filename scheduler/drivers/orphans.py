"""Processes of agents that a daemon has left behind on this machine, as it was killed together with its guardian.

A daemon puts a word into the environment of all that it starts, which says which processes it and its guardian are. The
next daemon that starts here reads the environments of the processes that it may read, and ends those for which both are
gone. Without that a command would run on while its job is begun again. Detached jobs outlive a daemon, and are left.
"""

import logging
import os
import signal
from collections.abc import MutableMapping
from contextlib import suppress
from select import POLLIN, poll
from time import monotonic
from typing import Final

from scheduler.drivers.os_calls import Identity, identity, is_gone, start_of

VARIABLE: Final = "DROVER_DAEMON"
KEPT: Final = b"DROVER_KEEPER="  # in the environment of what belongs to a detached job
HANG_UP_S: Final = 1.0  # from SIGHUP to SIGKILL, as the guardian waits
SEARCHES: Final = 5  # what is killed may have started another meanwhile

log = logging.getLogger(__name__)


def end_orphans() -> None:
    """End the processes of dead daemons: SIGHUP, and SIGKILL after a second; and log each."""
    for search in range(SEARCHES):
        found = _orphans()
        if not found:
            return
        for pid, command in found.items() if search == 0 else ():
            log.warning("process %d was left by a daemon that was killed, and is ended: %s", pid, command)
        _end([*found])


def mark(environment: MutableMapping[str, str]) -> None:
    """Put our word into an environment, from where agents get it; our parent is the guardian."""
    us, guardian = identity(), os.getppid()
    numbers = (us.pid, us.pid_start, guardian, start_of(guardian))
    environment[VARIABLE] = " ".join((*map(str, numbers), us.boot_id, us.pid_space))


def _orphans() -> dict[int, str]:
    """Return the processes whose daemon is gone, by pid, with their commands; never us and those above us."""
    ours, found = _above_us(), {}
    for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
        with suppress(OSError, ValueError):  # it has ended, is another user's, or has a word that is not ours
            if pid not in ours and _is_orphan(pid):
                found[pid] = _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return found


def _is_orphan(pid: int) -> bool:
    variables = _read(pid, "environ").split(b"\0")
    words = [each.partition(b"=")[2] for each in variables if each.startswith(VARIABLE.encode() + b"=")]
    if not words or any(each.startswith(KEPT) for each in variables):
        return False
    return all(map(is_gone, _named(words[0].decode(errors="replace"))))


def _named(word: str) -> tuple[Identity, Identity]:
    """Return the daemon and the guardian that a word says. Errors: ValueError, it is no word of ours."""
    pid, start, guardian, its_start, boot, space = word.split(" ")
    return (
        Identity("", int(pid), boot, space, int(start)), Identity("", int(guardian), boot, space, int(its_start)),
    )  # fmt: skip


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


def _above_us() -> set[int]:
    pid, found = os.getpid(), set[int]()
    while pid > 0 and pid not in found:
        found.add(pid)
        pid = int(_read(pid, "stat").rpartition(b")")[2].split()[1])
    return found


def _end(pids: list[int]) -> None:
    """Send SIGHUP to processes, wait a second at most for their ends, and kill those that remain."""
    left: dict[int, int] = {}  # pidfd: pid
    ended = poll()
    for pid in pids:
        with suppress(OSError, ValueError):
            start = start_of(pid)
            pidfd = os.pidfd_open(pid)
            if start_of(pid) == start and _is_orphan(pid):
                left[pidfd] = pid
                ended.register(pidfd, POLLIN)
            else:
                os.close(pidfd)
    for number in (signal.SIGHUP, signal.SIGKILL):
        for pidfd in left:
            with suppress(OSError):
                signal.pidfd_send_signal(pidfd, number)
        deadline = monotonic() + HANG_UP_S
        while left and (wait_ms := (deadline - monotonic()) * 1000) > 0:
            for pidfd, _ in ended.poll(wait_ms):
                ended.unregister(pidfd)
                del left[pidfd]
                os.close(pidfd)
    for pidfd in left:
        os.close(pidfd)
