"""Replacing the program of a running daemon: when its own files have changed it drains, and executes the new ones.

Touches the files of the package, and one child that tries whether they can be imported at all. It is the same process
before and after, with the same arguments and environment, so a service manager and the guardian see no end. Signals
that come in between are kept for the new program.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from select import EPOLLIN
from typing import Final

from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Loop, Steps, Task, ready
from scheduler.drivers.system import SIGNALS, pidfd_of
from scheduler.package_data import PACKAGE, schema_dir

TRIAL_S: Final = 30.0  # for the import of the new program

Mark = frozenset[tuple[str, int, int]]


def files() -> Mark:
    """Return each file of the program: path, time of its last change in nanoseconds, size."""
    found = []
    for path in (*PACKAGE.rglob("*.py"), *schema_dir().rglob("*.sql")):
        with suppress(FileNotFoundError):  # it has gone since the directory was read
            stat = path.stat()
            found.append((str(path), stat.st_mtime_ns, stat.st_size))
    return frozenset(found)


class Upgrade:
    """Notices that the program was replaced; calls `go` once, when the new one can be imported."""

    def __init__(self, loop: Loop, go: Callable[[], object]) -> None:
        self._loop, self._go = loop, go
        self._running = self._last = self._tried = files()
        self._is_trying = False

    def check(self) -> None:
        """Compare the files; new ones are tried when they are the same at the next check: a replacement takes time."""
        with suppress(OSError):  # too many open files, most likely; the next check may find it better
            before, self._last = self._last, files()
            if not self._is_trying and self._last == before and self._last not in (self._running, self._tried):
                Task(self._loop, self._try()).start()

    def _try(self) -> Steps[None]:
        """Import the new program in a child, and go on as it if that is possible."""
        code = f"import sys; sys.path[:] = {sys.path!r}; import scheduler.cli.run"
        trial = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        pidfd = pidfd_of(trial)
        self._tried, self._is_trying = self._last, True
        try:
            yield from ready(pidfd, EPOLLIN, self._loop.now + TRIAL_S)
        except TimeoutError:
            trial.kill()
            yield from ready(pidfd, EPOLLIN)
        os.close(pidfd)
        self._is_trying = False
        if trial.wait() == 0:
            log_line("info", "the program was replaced: draining, to go on as the new one")
            self._go()
        else:
            log_line("error", "the program was replaced, and the new one cannot be imported: going on as the old one")


def hold_signals() -> None:
    """Block signals: they stay pending for the program that is executed next, whose Signals unblocks them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def execute_anew(environment: Mapping[str, str]) -> None:
    """Execute the program that is there now; never returns. Errors: OSError."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, sys.orig_argv, environment)
