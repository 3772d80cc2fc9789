"""The descriptors that a service manager keeps for the process that it starts next: FDSTORE of sd_notify(3).

What is given to it stays open until it is removed by its name, or the service has ended for good; the next main process
of the service gets all of it (sd_listen_fds(3)), and the manager keeps it nevertheless. A descriptor is told from
others by its inode; pidfds share one, so that each has the pid in its name. Refuses to know what they are for.
"""

import array
import os
import select
import socket
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from scheduler.drivers.os_calls import unix_address

FIRST_FD: Final = 3  # that a service manager passes
SETTLE_S: Final = 5.0  # for a manager to have read what was sent
PROBE: Final = "probe"


@dataclass(frozen=True, slots=True)
class Stored:
    """A descriptor that was kept for us, and the name that it was given under."""

    name: str
    fd: int


def pop_stored(environment: MutableMapping[str, str]) -> list[Stored]:
    """Remove what a service manager says of descriptors from the environment, and return those that are ours."""
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    found = []
    for number in range(int(count)):
        with suppress(OSError):  # it is not open
            os.set_inheritable(FIRST_FD + number, False)
            found.append(Stored(names[number] if number < len(names) else "", FIRST_FD + number))
    return found


def inode_of(fd: int, name: str) -> str:
    """Return what a descriptor has in common with its copies in other processes only. Errors: OSError, not open."""
    if "pidfd" in os.readlink(f"/proc/self/fd/{fd}"):
        return f"pidfd {name}"
    stat = os.fstat(fd)
    return f"{stat.st_dev}:{stat.st_ino}"


class FdStore:
    """What the service manager that listens at an address keeps for the next process."""

    def __init__(self, address: str) -> None:
        self._address = unix_address(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def keep(self, name: str, fds: Sequence[int], wait_s: float = 0.0) -> bool:
        """Let descriptors be kept under a name; false if the manager does not take them in time."""
        return self._send(f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}", fds, wait_s)

    def remove(self, name: str, wait_s: float = 0.0) -> bool:
        """Let everything of a name be closed; false if the manager does not take that in time."""
        return self._send(f"FDSTOREREMOVE=1\nFDNAME={name}", (), wait_s)

    def settle(self) -> bool:
        """Wait until all that was sent has been read; false if that takes too long."""
        reader, writer = os.pipe()
        try:
            is_sent = self._send("BARRIER=1", [writer], SETTLE_S)
            os.close(writer)
            return is_sent and _is_closed(reader, SETTLE_S)  # the manager closes it when its turn has come
        finally:
            os.close(reader)

    def is_enabled(self) -> bool:
        """Return whether the manager keeps anything: by default it keeps nothing, and does not say so."""
        reader, writer = os.pipe()
        try:
            is_sent = self.keep(PROBE, [writer], SETTLE_S)
            os.close(writer)
            return is_sent and self.settle() and not _is_closed(reader, 0.0)
        finally:
            os.close(reader)
            self.remove(PROBE)

    def close(self) -> None:
        """Say nothing more; what is kept stays so."""
        self._socket.close()

    def _send(self, text: str, fds: Sequence[int], wait_s: float) -> bool:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._socket.settimeout(wait_s)
        try:
            self._socket.sendmsg([text.encode()], passed, 0, self._address)
        except OSError:
            return False
        return True


def _is_closed(reader: int, within_s: float) -> bool:
    """Return whether nobody can write into a pipe any more, after some time at most."""
    poll = select.poll()
    poll.register(reader, 0)
    return bool(poll.poll(within_s * 1000))
