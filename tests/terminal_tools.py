"""Commands on a terminal of a test's own: a pty of so many lines and columns, keys that are typed, what is shown."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests import warm
from tests.patience import LONG_PATIENCE_S

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """What a program has shown so far, and its keyboard."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.raw = ""

    @property
    def text(self) -> str:
        """Return what was shown, without colours and movements."""
        return CONTROL.sub("", self.raw)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until(self, shown: str, since: int = 0) -> None:
        """Read until this is shown; `since` leaves out the first characters of `raw`. Errors: AssertionError."""
        deadline = time.monotonic() + LONG_PATIENCE_S
        while shown not in CONTROL.sub("", self.raw[since:]):
            assert self._read(deadline), f"ended without {shown!r}: {self.text}"

    def read_all(self) -> str:
        """Read until the program ends; return all text."""
        deadline = time.monotonic() + LONG_PATIENCE_S
        while self._read(deadline):
            pass
        return self.text

    def _read(self, deadline: float) -> bool:
        """Read once; return False at the end. Errors: AssertionError if nothing comes in time."""
        assert select.select([self._fd], [], [], max(deadline - time.monotonic(), 0))[0], f"no end: {self.text}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # EIO: no program has the other side any more
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)


@contextmanager
def on_terminal(
    argv: Sequence[str], environment: Mapping[str, str], lines: int = 24, columns: int = 80
) -> Iterator[tuple[Terminal, "warm.Process"]]:
    """Start a program whose three streams are a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    variables = {name: text for name, text in environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = warm.begin(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=variables | {"TERM": "xterm-256color"})
    os.close(theirs)
    try:
        yield Terminal(ours), process  # type: ignore[misc]
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def shown_on_terminal(
    argv: Sequence[str], environment: Mapping[str, str], lines: int = 24, columns: int = 80
) -> tuple[int, str]:
    """Run a program to its end; return its exit status and what it showed, without colours."""
    with on_terminal(argv, environment, lines, columns) as (terminal, process):
        text = terminal.read_all()
        return process.wait(), text
