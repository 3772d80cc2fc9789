"""The service manager that started us, and what is sent to it over its socket: sd_notify(3), without its library.

If the manager does not receive, nothing is lost but the status line; READY is sent until it is received.
"""

import os
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.os_calls import unix_address

GAP_S = 1.0  # between two status lines, and two attempts to send READY


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """Where a service manager listens, and how often it expects a sign of life; `watchdog_s` 0.0 is never."""

    address: str  # the path of a socket, or @ and a name that is no path
    watchdog_s: float = 0.0


def pop_manager(environment: MutableMapping[str, str]) -> ServiceManager | None:
    """Remove the manager from the environment and return it: a server that we start would send READY for us."""
    address = environment.pop("NOTIFY_SOCKET", "")
    pid, microseconds = environment.pop("WATCHDOG_PID", ""), environment.pop("WATCHDOG_USEC", "")
    if address[:1] not in ("/", "@"):
        return None
    is_ours = pid in ("", str(os.getpid())) and microseconds.isdecimal()
    return ServiceManager(address, int(microseconds) / 1e6 if is_ours else 0.0)


class Notifier:
    """Sends a service manager that we are ready, alive, reloading or stopping, and a status line."""

    def __init__(
        self, loop: Loop, manager: ServiceManager | None, status: Callable[[], str], *, main_pid: bool
    ) -> None:
        self._loop, self._status = loop, status
        self._ready = f"MAINPID={os.getpid()}\nREADY=1" if main_pid else "READY=1"
        self._is_ready = self._is_received = self._is_scheduled = self._is_over = False
        self._retry = Timer(lambda: None)  # of READY
        self._line = ""
        self._sent_at = -GAP_S
        self._socket: socket.socket | None = None
        if manager is not None:
            self._address = unix_address(manager.address)
            self._beat_s = manager.watchdog_s / 2
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            if self._beat_s:
                self._beat()

    def ready(self) -> None:
        """Send READY, once, and again after `reloading`."""
        if not self._is_ready and not self._is_over:
            self._is_ready = True
            self._send_ready()

    def update_status(self) -> None:
        """Send the status line soon if it has changed, at most one a second."""
        if self._socket is not None and not self._is_scheduled and not self._is_over:
            self._is_scheduled = True
            self._loop.at(self._sent_at + GAP_S, self._send_status)

    def reloading(self) -> None:
        """Send that the configuration is read again, until `ready`; nothing before the first `ready`."""
        if self._is_ready and not self._is_over:
            self._is_ready = self._is_received = False
            self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Send that we end now; not for a drain, which may last, while a manager waits for an end only so long."""
        if not self._is_over:
            self._is_over = True
            self._send(f"STOPPING=1\nSTATUS={self._status()}")

    def close(self) -> None:
        self._is_over = True
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send_ready(self) -> None:
        if self._is_ready and not self._is_received and not self._is_over:
            self._is_received = self._send(f"{self._ready}\nSTATUS={self._status()}")
            self._retry.cancel()
            if not self._is_received:
                self._retry = self._loop.at(self._loop.now + GAP_S, self._send_ready)

    def _send_status(self) -> None:
        self._is_scheduled = False
        line = self._status()
        if line == self._line or self._is_over:
            return
        self._sent_at = self._loop.now
        if self._send(f"STATUS={line}"):
            self._line = line
        else:
            self.update_status()

    def _beat(self) -> None:
        """Send a sign of life from a timer, which is called only while the loop turns: that is what it is to show."""
        self._send("WATCHDOG=1")
        self._loop.at(self._loop.now + self._beat_s, self._beat)

    def _send(self, text: str) -> bool:
        """Send a message; false if the manager did not receive it: its queue is full, or it is being restarted."""
        if self._socket is not None:
            try:
                self._socket.sendto(text.encode("utf-8", "backslashreplace"), self._address)
            except OSError:
                return False
        return True


class ReadyFile:
    """A file that exists while we are ready, for sites without a service manager; path "" is none."""

    def __init__(self, path: str, *, is_new: bool = True) -> None:
        self._path = Path(path) if path else None
        if is_new:
            self.remove()  # one that a killed daemon has left

    def show(self) -> None:
        """Create it, with our pid in it; it is complete as soon as it exists. Errors: OSError."""
        if self._path is not None and not self._path.exists():
            new = self._path.with_name(f".{self._path.name}.new")
            new.write_text(f"{os.getpid()}\n")
            new.rename(self._path)

    def remove(self) -> None:
        """Remove it; harmless when it does not exist."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
