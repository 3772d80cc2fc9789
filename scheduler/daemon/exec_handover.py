"""Replaces the running program by execve(2): the old one leaves its state in a memfd, and the new one begins with it.

A new program that cannot begin hands back: it executes the copy of the old one, which that has kept aside, with the
same memfd, and the old program goes on where it stopped. That is possible until the new program has read or written
anything of an agent; after that the state in the memfd is the past. This module imports nothing of ours, so that a
program whose other modules cannot be imported can hand back too. It touches the memfd, its own descriptors and
execve(2).
"""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

VARIABLE: Final = "DROVER_HANDOVER"  # in the environment of a program that is to go on: what is wanted, and the memfd
GO, TRY, BACK, LEFT = "go", "try", "back", "left"  # the last one: by a daemon before us, which has ended
SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
START_COPY: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from scheduler.cli.main import main; sys.exit(main())"
)
STDERR: Final = 2
LIMIT_S: Final = 30.0  # for a program that is not told how long it has

Document = dict[str, Any]


class NotUpError(Exception):
    """The new program does not come up."""


def write(document: Mapping[str, Any]) -> int:
    """Write a document into a new memfd that nothing can change any more. Errors: OSError, there is no room."""
    fd = os.memfd_create("drover-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = memoryview(json.dumps(document).encode())
        while left:
            left = left[os.write(fd, left) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def read(fd: int) -> Document:
    """Return the document in a memfd. Errors: OSError, ValueError."""
    document: Document = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    return document


def execute(argv: list[str], environment: Mapping[str, str], kind: str, fd: int, fds: Iterable[int]) -> None:
    """Execute a program with a memfd and with these descriptors; returns only by an error. Errors: OSError."""
    travelling = [fd, *fds]
    for each in travelling:
        os.set_inheritable(each, True)
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os.execve(sys.executable, argv, {**environment, VARIABLE: f"{kind} {fd}"})
    finally:
        for each in travelling:
            os.set_inheritable(each, False)


class Takeover:
    """The state that the program before us has left, and the deadline for going on with it."""

    def __init__(self, words: str, environment: Mapping[str, str], document: Document | None = None) -> None:
        """Read the state that `words` of the environment name, unless it is given. Errors: OSError, ValueError."""
        self.kind, number, *reason = words.split(" ", 2)
        self.environment = dict(environment)  # as it was given to us
        self.reason = " ".join(reason)  # why the old program goes on
        self.is_over = False  # we have come up
        self.began = time.monotonic()
        self._fd = int(number)
        os.set_inheritable(self._fd, False)
        self.document = document or read(self._fd)

    @property
    def is_trial(self) -> bool:
        """Return whether we are to read the state only, and to end."""
        return self.kind == TRY

    @property
    def is_back(self) -> bool:
        """Return whether a newer program has handed back to us: then none is left to hand back to."""
        return self.kind == BACK

    @property
    def is_left(self) -> bool:
        """Return whether a daemon before us has left this and ended: it was another process."""
        return self.kind == LEFT

    @property
    def is_last(self) -> bool:
        """Return whether no program is left to hand back to."""
        return self.is_back or self.is_left

    @property
    def told(self) -> str:
        """Return what has happened, in words."""
        return self.reason if self.is_last else "the new program goes on"

    @property
    def limit_s(self) -> float:
        """Return the seconds from the exec in which we have to come up."""
        return float(self.document.get("limit", LIMIT_S))

    def guard(self, call: Callable[[], int]) -> int:
        """Return what a call returns; if it fails before we are up, hand back to the program before us.

        The program that was handed back to has no deadline: there is none behind it, and its agents would be killed.
        """
        if self.is_trial or self.is_last:
            return call()
        self._set_alarm(self.limit_s)
        try:
            status = call()
        except BaseException as error:  # whatever it is: the agents are to live on
            if not self.is_over:
                self.hand_back(f"{type(error).__name__}: {error}")
            raise
        if not self.is_over:
            self.hand_back(f"it has ended with exit status {status}")
        return status

    def set_no_alarm(self) -> None:
        """Note that the loop runs, which has timers of its own."""
        self._set_alarm(0.0)

    def finish(self) -> None:
        """Note that we are up: from now on the state in the memfd is the past."""
        self.is_over = True
        os.close(self._fd)
        for fd in self.document.get("locks", ()):  # of the embedded database, which we have joined ourselves
            with suppress(OSError):
                os.close(fd)

    def hand_back(self, why: str) -> None:
        """Execute the copy of the program before us, if there is one; returns if that cannot be done either."""
        copy = self.document.get("program", {}).get("copy")
        text = " ".join(f"the new program does not come up: {why}".split())
        what = "the old one goes on" if copy else "there is no copy of the old one"
        os.write(STDERR, f"drover: {text}: {what}\n".encode("utf-8", "backslashreplace"))
        if not copy or self.is_back:
            return
        self._set_alarm(0.0)
        argv = [sys.executable, "-c", START_COPY, copy, *self.document["program"]["words"]]
        environment = {**self.environment, VARIABLE: f"{BACK} {self._fd} {text}"}
        for fd in (self._fd, *self.document["fds"]):
            with suppress(OSError):
                os.set_inheritable(fd, True)
        with suppress(OSError):
            os.execve(sys.executable, argv, environment)

    def _set_alarm(self, seconds: float) -> None:
        def expired(_number: int, _frame: object) -> NoReturn:
            raise NotUpError(f"nothing came of it in {seconds:g} s")

        signal.signal(signal.SIGALRM, expired if seconds else signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again, if an exception is lost, as in a finalizer
