"""A process of an agent as those see it who hold its pipes: it can be signalled, and it ends.

On this machine a process is known by its pidfd, and reaped only when it is buried: until then its pid is its own and
so is its group, however dead it is, and signals cannot reach a stranger.
"""

import os
import select
import signal
from contextlib import suppress
from typing import Protocol

from scheduler.drivers.spawning import Started
from scheduler.model.events import Gone

TRACED_S = 0.5  # from one look to the next at a process whose end a debugger holds
LAST_WAIT_MS = 1000  # for each process at the very end; SIGKILL takes far less


class Process(Protocol):
    """What a slot has started, here or elsewhere."""

    pid: int
    grace_s: float  # for its output to end after its own end, beyond `exit_grace`

    def signal(self, number: int) -> None:
        """Send a signal to its group; harmless when it is gone."""

    def kill(self) -> None:
        """Kill it and its group."""

    def strike_rest(self) -> None:
        """Kill what is left of its group; it is dead itself."""

    def bury(self) -> None:
        """Forget it; nothing is asked of it any more."""


class LocalProcess:
    """A child of ours."""

    __slots__ = ("_popen", "_was_reaped", "grace_s", "pid", "pidfd")

    def __init__(self, started: Started) -> None:
        self._popen, self.pidfd = started.popen, started.pidfd
        self.pid = started.popen.pid
        self.grace_s = 0.0
        self._was_reaped = False

    def signal(self, number: int) -> None:
        """Send a signal to its group while it is not reaped, or to it alone if it left its group."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            with suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, number)
        except PermissionError:  # it became another user: nothing we can do reaches it
            return

    def kill(self) -> None:
        """Kill it and its group."""
        self.signal(signal.SIGKILL)
        with suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)  # it may have left its group

    def strike_rest(self) -> None:
        """Kill what is left of its group, unless its pid may be somebody else's by now."""
        if not self._was_reaped:
            self.signal(signal.SIGKILL)

    def bury(self) -> None:
        """Reap it."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        self._popen.returncode = 0  # else Popen would reap it too; how it ended is told in Gone
        os.close(self.pidfd)

    def await_death(self) -> None:
        """Wait for its end, at the very end."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.poll(LAST_WAIT_MS)

    def how_it_ended(self, slot: int) -> Gone | None:
        """Look without reaping; lost if somebody else has reaped it, as when SIGCHLD is ignored.

        None while a debugger holds its end: its pidfd is readable, but its parent is told once the debugger has let go.
        """
        try:
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._was_reaped = True
            return Gone(slot, lost=True)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return Gone(slot, code=found.si_status)
        return Gone(slot, signal=_signal_name(found.si_status))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"SIG{number}"
