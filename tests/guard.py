"""Leave no process behind, however a run of the tests ends: SIGKILL of pytest or of an xdist worker included.

`begin` makes three processes of one. The first, which was started, becomes a guardian as a daemon has it
(scheduler/daemon/guardian.py): it passes signals on and ends as its child does. That child is the guard, which adopts
every process below it that loses its parent. The child of the guard goes on as pytest. When pytest has ended, or the
first process was killed, the guard kills all that is left. It waits for servers of embedded databases: without users
they stop by themselves and remove their files, which are in memory.
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from scheduler.daemon import guardian

PR_SET_PDEATHSIG = 1  # prctl(2)
SERVER = b"scheduler.database.embedded_guardian"
STOP_S = 20.0  # for servers to stop by themselves
LOOK_S = 0.05  # between two looks at processes that are not dead yet
PARENT_S = 1.0  # between two looks at the first process, should its death not have been announced


def begin() -> None:
    """Go on as the child of a guard, which is the child of the process that was started."""
    first = os.getpid()
    os.close(guardian.begin({}) or 0)
    guardian.adopt_orphans()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, guardian.AWAITED)
    pytest = os.fork()
    if not pytest:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    os.execve(sys.executable, [sys.executable, "-m", "tests.guard", str(first), str(pytest)], environment)


def main(first: int, pytest: int) -> int:
    """Wait for the end of pytest, end all that it left, and return its exit status as a shell would."""
    while (status := _reap(pytest)) is None:
        told = signal.sigtimedwait(guardian.AWAITED, PARENT_S)
        if os.getppid() != first:
            os.kill(pytest, signal.SIGKILL)
        elif told and told.si_signo in guardian.FORWARDED and told.si_code != guardian.SI_KERNEL:
            os.kill(pytest, told.si_signo)
    _kill_others_than_servers(time.monotonic() + STOP_S)
    guardian.end_family()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _kill_others_than_servers(deadline: float) -> None:
    while (left := _children()) and time.monotonic() < deadline:
        for child in left:
            if not _is_server(child):
                os.kill(child, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_S)
        _reap()


def _reap(wanted: int = 0) -> int | None:
    """Reap who is dead until it is the wanted process, whose status is returned."""
    with suppress(ChildProcessError):  # there are none
        while (dead := os.waitpid(-1, os.WNOHANG))[0]:
            if dead[0] == wanted:
                return dead[1]
    return None


def _children() -> list[int]:
    return [int(word) for word in Path("/proc/thread-self/children").read_text().split()]


def _is_server(pid: int) -> bool:
    return SERVER in Path(f"/proc/{pid}/cmdline").read_bytes()


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
