"""Going on as another program: a daemon whose own files were replaced drains, and executes what is there now.

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

from scheduler.drivers.local_process import watch
from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.system import SIGNALS
from scheduler.package_data import PACKAGE, schema_dir

TRIAL_S: Final = 30.0  # for the import of the new program

Mark = frozenset[tuple[str, int, int]]


def files() -> Mark:
    """Give each file of the program: path, time of its last change in nanoseconds, size."""
    paths = [*PACKAGE.rglob("*.py"), *schema_dir().rglob("*.sql")]
    return frozenset((str(path), found.st_mtime_ns, found.st_size) for path in paths if (found := _look(path)))


def _look(path: os.PathLike[str]) -> os.stat_result | None:
    with suppress(FileNotFoundError):  # it has gone since the directory was read
        return os.stat(path)
    return None


class Upgrade:
    """Notices that the program was replaced; calls `go` once, when the new one can be imported."""

    def __init__(self, loop: Loop, say: Callable[[str, str], None], go: Callable[[], object]) -> None:
        self._loop, self._say, self._go = loop, say, go
        self._running = self._seen = self._tried = files()
        self._trial: subprocess.Popen[bytes] | None = None
        self._limit: Timer | None = None

    def look(self) -> None:
        """Look at the files; one that is new is tried at the next look, for this may be half of a replacement."""
        with suppress(OSError):  # too many open files, most likely; the next look may find it better
            before, self._seen = self._seen, files()
            if self._trial is None and self._seen == before and self._seen not in (self._running, self._tried):
                self._try()

    def _try(self) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; import scheduler.cli.run"
        trial = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        pidfd = watch(trial)
        self._trial, self._tried = trial, self._seen
        self._limit = self._loop.at(self._loop.now + TRIAL_S, trial.kill)
        self._loop.register(pidfd, EPOLLIN, lambda _mask: self._tried_out(trial, pidfd))

    def _tried_out(self, trial: "subprocess.Popen[bytes]", pidfd: int) -> None:
        self._loop.unregister(pidfd)
        os.close(pidfd)
        self._trial = None
        if self._limit is not None:
            self._limit.cancel()
        if trial.wait() == 0:
            self._say("info", "the program was replaced: draining, to go on as the new one")
            self._go()
        else:
            self._say("error", "the program was replaced, and the new one cannot be imported: going on as the old one")


def hold_signals() -> None:
    """Keep what comes from now on for the program that is executed next; its Signals lets it come."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def go_on(environment: Mapping[str, str]) -> None:
    """Execute the program that is there now; never returns. Errors: OSError."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, sys.orig_argv, environment)
