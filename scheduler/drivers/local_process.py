"""A process of this machine: how it is started between three pipes, signalled, and reaped.

Decides nothing about slots, and reads no pipe: processes.py does. It is reaped at the very end, so that until then its
pid and its group are its own.
"""

import os
import select
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from scheduler.drivers.os_calls import (
    Ends,
    close_all,
    is_group,
    is_pidfd_of,
    is_readable,
    is_removed,
    let_others_open,
    owner_of,
    pidfd_of,
    pipes,
    signal_name,
    spawn,
)
from scheduler.drivers.pipes import CLOSED
from scheduler.drivers.process_spec import ProcessSpec
from scheduler.errors import BugError
from scheduler.model.events_and_effects import Gone

CHANGE_DIRECTORY: Final = ("/bin/sh", "-c", 'cd -- "$0" && exec "$@"')
NOT_KNOWN: Final = "how is not known, since a daemon before this one started it"


class LocalProcess:
    """A child of ours; or of a daemon before us: that has another parent, and how it ends is not known."""

    def __init__(self, pid: int, pidfd: int, *, is_child: bool = True) -> None:
        self.pid, self.pidfd, self.is_child = pid, pidfd, is_child
        self.grace_s = 0.0  # for its output to end after its own end, beyond `exit_grace`
        self._was_reaped = False

    def signal(self, number: int) -> bool:
        """Send a signal to its group while it is not reaped, or to it alone if it left its group.

        Return False if it is another user's by now, so that we may not signal it. That one member of the group may be
        signalled says nothing of the others.
        """
        if not self.is_child and is_readable(self.pidfd):  # its parent has reaped it
            return True
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return self._signal_alone(number)
        return self._signal_alone(0)

    def kill(self) -> bool:
        """Kill it and its group; return False if it lives on, since it is another user's by now."""
        self.signal(signal.SIGKILL)
        return self._signal_alone(signal.SIGKILL) or is_readable(self.pidfd)  # it may have left its group

    def _signal_alone(self, number: int) -> bool:
        """Send it a signal, 0: none; return whether we may."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except PermissionError:
            return False
        except ProcessLookupError:
            pass
        return True

    @property
    def owner(self) -> str:
        """Return the user that it runs as, in words."""
        return owner_of(self.pid)

    def kill_group(self) -> None:
        """Kill what is left of its group, unless its pid may be another process's by now."""
        if self.is_child and not self._was_reaped:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    @property
    def has_group(self) -> bool:
        """Return whether something is left of its group, after it was killed and its leader reaped."""
        return self.is_child and not self._was_reaped and is_group(self.pid)

    def reap(self) -> None:
        """Reap it; it is of no use after that."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        os.close(self.pidfd)

    def how_it_ended(self, slot: int) -> Gone | None:
        """Return how it ended, without reaping it; lost if it was reaped elsewhere, as when SIGCHLD is ignored.

        None while a debugger holds its end: its pidfd is readable, but its parent cannot wait for it yet.
        """
        if not self.is_child:
            return Gone(slot, why=NOT_KNOWN)
        try:
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._was_reaped = True
            return Gone(slot, lost=True)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return Gone(slot, code=found.si_status)
        return Gone(slot, signal=signal_name(found.si_status))


def restored(snapshot: Mapping[str, Any]) -> LocalProcess:
    """Return the process of a child in the state of a program before us. Errors: BugError, its pid is another's."""
    pid, pidfd = int(snapshot["pid"]), int(snapshot["pidfd"])
    if not is_pidfd_of(pid, pidfd):
        raise BugError(f"the state of the program before names process {pid}, and its descriptor is of another")
    return LocalProcess(pid, pidfd, is_child=snapshot.get("is_child", True))


def start(spec: ProcessSpec, stdin: bytes | None) -> tuple[LocalProcess, Ends]:
    """Start a process between three pipes, and return our ends. Errors: OSError, ValueError; then nothing is left.

    A short `stdin` is written before the process begins, which may end without reading it; then its pipe is closed.
    """
    ours, theirs = pipes()
    if spec.is_of_other_user:
        let_others_open(theirs)
    try:
        try:
            if stdin is not None and len(stdin) <= select.PIPE_BUF:  # an empty pipe takes so much
                os.write(ours[0], stdin)
                os.close(ours[0])
                ours = (CLOSED, *ours[1:])
            pid = _spawn(spec, theirs)
        finally:
            for fd in theirs:
                os.close(fd)  # so that there is a descriptor for the pidfd
        process = LocalProcess(pid, pidfd_of(pid))
    except (OSError, ValueError):
        close_all(ours)
        raise
    for fd in ours:
        if fd != CLOSED:
            os.set_blocking(fd, False)
    with suppress(OSError):  # it has ended, or became another user's
        # an agent that receives a line must not preempt us: that costs up to a third of the lines a second
        if os.sched_getscheduler(process.pid) == os.SCHED_OTHER:
            os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
    return process, ours


def _spawn(spec: ProcessSpec, ends: Ends) -> int:
    """Return the pid of a new process that has these ends. Errors: OSError, ValueError.

    posix_spawn(3) knows no directory: the process begins in ours, which is the other one for that moment. If nobody may
    go back to ours, a shell changes the directory. In ours, if it was removed, many programs would not begin.
    """
    directory = spec.directory or ("/" if is_removed() else None)
    if directory is None:
        return spawn(spec.argv, spec.environment, ends, spec.files)
    try:
        home = os.open(".", os.O_PATH)
    except (FileNotFoundError, PermissionError):
        os.stat(directory)
        return spawn((*CHANGE_DIRECTORY, directory, *spec.argv), spec.environment, ends, spec.files)
    try:
        os.chdir(directory)
        return spawn(spec.argv, spec.environment, ends, spec.files)
    finally:
        os.fchdir(home)
        os.close(home)
