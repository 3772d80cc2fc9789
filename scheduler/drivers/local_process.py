"""A process on this machine: started between three pipes, watched through a pidfd, signalled, reaped.

A process is reaped only after its output has ended: until then its pid and its process group are its own, even when it
is dead, and no signal can reach a stranger.
"""

import os
import resource
import select
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from scheduler.drivers.system import close_all
from scheduler.model.events import Gone

TRACED_S = 0.5  # between two checks of a process whose end a debugger holds
LAST_WAIT_MS = 1000  # for each process at the very end; SIGKILL takes far less


class NoPidfdError(OSError):
    """A process had begun and was killed at once, since no pidfd was left to watch it with."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """All that it takes to start a process; directory None is the scheduler's own."""

    argv: tuple[str, ...]
    directory: str | None
    environment: dict[bytes, bytes]
    files: tuple[int, int] | None = None  # limit of open files, soft and hard; None is the scheduler's own


@dataclass(frozen=True, slots=True)
class Started:
    """A process, and our ends of its pipes, which do not block."""

    popen: "subprocess.Popen[bytes]"
    pidfd: int
    stdin: int
    stdout: int
    stderr: int


class Process(Protocol):
    """What a slot has started, here or elsewhere."""

    pid: int
    grace_s: float  # for its output to end after its own end, beyond `exit_grace`

    def signal(self, number: int) -> None:
        """Send a signal to its group; harmless when it is gone."""

    def kill(self) -> None:
        """Kill it and its group."""

    def kill_group(self) -> None:
        """Kill what is left of its group; it is dead itself."""

    def reap(self) -> None:
        """Release it; it is of no use after that."""


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
        except PermissionError:  # it became another user's: we cannot signal it
            return

    def kill(self) -> None:
        """Kill it and its group."""
        self.signal(signal.SIGKILL)
        with suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)  # it may have left its group

    def kill_group(self) -> None:
        """Kill what is left of its group, unless its pid may be another process's by now."""
        if not self._was_reaped:
            self.signal(signal.SIGKILL)

    def reap(self) -> None:
        """Reap it."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        self._popen.returncode = 0  # else Popen would reap it too; Gone reports how it ended
        os.close(self.pidfd)

    def await_death(self) -> None:
        """Block until it is dead; at the very end."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.poll(LAST_WAIT_MS)

    def how_it_ended(self, slot: int) -> Gone | None:
        """Return how it ended, without reaping it; lost if it was reaped elsewhere, as when SIGCHLD is ignored.

        None while a debugger holds its end: its pidfd is readable, but its parent cannot wait for it yet.
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
        return Gone(slot, signal=signal_name(found.si_status))


def start(recipe: ProcessSpec) -> Started:
    """Start a process between three pipes. Errors: OSError, ValueError; then nothing of it is left."""
    ours, theirs = pipes()
    try:
        popen = _popen(recipe, theirs)
        pidfd = watch(popen)
    except (OSError, ValueError):
        close_all(ours)
        raise
    finally:
        close_all(theirs)
    for fd in ours:
        os.set_blocking(fd, False)
    _set_batch(popen.pid)
    if recipe.files is not None:
        with suppress(OSError):  # it has ended, or became another user's
            resource.prlimit(popen.pid, resource.RLIMIT_NOFILE, recipe.files)
    return Started(popen, pidfd, *ours)


def watch(popen: "subprocess.Popen[bytes]") -> int:
    """Return a pidfd of a child; without one it is killed. Errors: NoPidfdError."""
    try:
        return os.pidfd_open(popen.pid)
    except OSError as error:  # no descriptor left: a child that is not watched must not live
        popen.kill()
        popen.wait()
        raise NoPidfdError(error.errno, error.strerror) from error


def _popen(recipe: ProcessSpec, ends: tuple[int, int, int]) -> "subprocess.Popen[bytes]":
    stdin, stdout, stderr = ends
    return subprocess.Popen(
        recipe.argv,
        bufsize=0,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=recipe.directory,
        env=recipe.environment,
        process_group=0,
    )


def _set_batch(pid: int) -> None:
    """Keep an agent that receives a line from preempting us: that costs up to a third of the lines a second."""
    with suppress(OSError):
        if os.sched_getscheduler(pid) == os.SCHED_OTHER:
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))


def pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the ends of three new pipes, ours and theirs, each in the order of 0, 1, 2."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            made.append(os.pipe())  # noqa: PERF401  (those made before a failure are closed)
    except OSError:
        close_all(chain.from_iterable(made))
        raise
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = made
    return (to_stdin, from_stdout, from_stderr), (stdin, stdout, stderr)


def signal_name(number: int) -> str:
    """Return SIGTERM and the like."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"SIG{number}"
