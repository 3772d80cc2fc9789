"""What a service manager is told of us, over the socket it gave us: sd_notify(3), without its library.

Touches one datagram socket, the variables that name it, and the ready file. Refuses to know what a daemon does: it is
handed what to say. A manager that does not listen costs nothing but the line, and READY is said until it is taken.
"""

import os
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.drivers.loop import Loop, Timer

GAP_S = 1.0  # between two lines of status, and two tries to be heard


@dataclass(frozen=True, slots=True)
class Manager:
    """Where a service manager listens, and how often it wants to hear of us; `watchdog_s` 0.0 is never."""

    address: str  # the path of a socket, or @ and a name that is no path
    watchdog_s: float = 0.0


def take_manager(environment: MutableMapping[str, str]) -> Manager | None:
    """Give who started us, and take it out of the environment: a server that we start would say READY for us."""
    address = environment.pop("NOTIFY_SOCKET", "")
    pid, microseconds = environment.pop("WATCHDOG_PID", ""), environment.pop("WATCHDOG_USEC", "")
    if address[:1] not in ("/", "@"):
        return None
    is_meant = pid in ("", str(os.getpid())) and microseconds.isdecimal()
    return Manager(address, int(microseconds) / 1e6 if is_meant else 0.0)


class Notifier:
    """Tells a service manager that we are ready, alive, reloading or stopping, and in one line how it goes."""

    def __init__(self, loop: Loop, manager: Manager | None, status: Callable[[], str], *, main_pid: bool) -> None:
        self._loop, self._status = loop, status
        self._address = _coded(manager.address) if manager is not None else b""
        self._beat_s = manager.watchdog_s / 2 if manager is not None else 0.0
        self._ready = f"MAINPID={os.getpid()}\nREADY=1" if main_pid else "READY=1"
        self._is_ready = self._is_heard = self._is_looking = self._is_over = False
        self._retry: Timer | None = None  # of READY
        self._told = ""
        self._told_at = -GAP_S
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) if manager else None
        if self._beat_s:
            self._beat()

    def ready(self) -> None:
        """We do what we are here for; said once, whatever becomes of us after, and again after `reloading`."""
        if not self._is_ready and not self._is_over:
            self._is_ready = True
            self._say_ready()

    def note(self) -> None:
        """Things may have changed: tell the line of status, if it is another, and at most one a second."""
        if self._socket is not None and not self._is_looking and not self._is_over:
            self._is_looking = True
            self._loop.at(self._told_at + GAP_S, self._look)

    def reloading(self) -> None:
        """The configuration is read again; `ready` ends it. Nothing is said before the first `ready`."""
        if not self._is_ready or self._is_over:
            return
        self._is_ready = self._is_heard = False
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """We end now: not for a drain, which may last, while a manager waits so long and no longer for an end."""
        if not self._is_over:
            self._is_over = True
            self._send(f"STOPPING=1\nSTATUS={self._status()}")

    def close(self) -> None:
        """Be silent from now on."""
        self._is_over = True
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say_ready(self) -> None:
        if not self._is_ready or self._is_heard or self._is_over:
            return
        self._is_heard = self._send(f"{self._ready}\nSTATUS={self._status()}")
        if not self._is_heard:
            if self._retry is not None:
                self._retry.cancel()
            self._retry = self._loop.at(self._loop.now + GAP_S, self._say_ready)

    def _look(self) -> None:
        self._is_looking = False
        line = self._status()
        if line == self._told or self._is_over:
            return
        self._told_at = self._loop.now
        if self._send(f"STATUS={line}"):
            self._told = line
        else:
            self.note()

    def _beat(self) -> None:
        """A timer of the loop rings only while the loop turns: that is what the manager wants to know."""
        self._send("WATCHDOG=1")
        self._loop.at(self._loop.now + self._beat_s, self._beat)

    def _send(self, text: str) -> bool:
        """Say whether it was taken, or nobody is there to take it."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(text.encode("utf-8", "backslashreplace"), self._address)
        except OSError:  # its queue is full, or it is being started anew
            return False
        return True


class ReadyFile:
    """A file that is there while we are ready, for whoever has no service manager; path "" is none."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self.remove()  # a daemon that was killed has left its own

    def show(self) -> None:
        """Make it, with our pid in it. Errors: OSError."""
        if self._path is not None and not self._path.exists():
            self._path.write_text(f"{os.getpid()}\n")

    def remove(self) -> None:
        """Remove it; harmless when it is not there."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()


def _coded(address: str) -> bytes:
    """A name that is no path begins with a NUL, written as @ (unix(7))."""
    coded = os.fsencode(address)
    return b"\0" + coded[1:] if coded.startswith(b"@") else coded
