"""How far a long wait is, in one line on standard error, with the rate and the time left; nothing unless a terminal."""

import sys
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

EVERY_S: Final = 0.2  # between two drawings, at least
SILENT_S: Final = 0.5  # shorter waits show nothing
ERASE: Final = "\r\x1b[K"


class Progress:
    """A line that is drawn over itself, while `done` of `total` grows; it is erased at the end."""

    def __init__(self, total: int, what: str, clock: Callable[[], float] = monotonic) -> None:
        self._total, self._what, self._clock = total, what, clock
        self._began = self._drawn = clock()
        self._is_drawn = False
        self.done = 0  # before those that `show` is told of
        self._is_terminal = sys.stderr.isatty()

    def show(self, more: int) -> None:
        """Draw the line, with so many more than `done`; not if it was just drawn, or the wait is short so far."""
        now = self._clock()
        if not self._is_terminal or now - self._began < SILENT_S or now - self._drawn < EVERY_S:
            return
        self._drawn, self._is_drawn = now, True
        sys.stderr.write(ERASE + line(self.done + more, self._total, self._what, now - self._began))
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line, so that something else can be printed."""
        if self._is_drawn:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
            self._is_drawn = False


def line(done: int, total: int, what: str, passed_s: float) -> str:
    """Return `412 of 1,000 jobs, 55/s, 11 s left`; without rate and time as long as nothing is done."""
    head = f"{done:,} of {total:,} {what}"
    rate = done / passed_s if passed_s > 0 else inf
    if not done or done >= total or rate == inf:
        return f"{head}, {span(passed_s)}"
    return f"{head}, {rate:,.0f}/s, {span((total - done) / rate)} left" if rate >= 1 else (
        f"{head}, {rate * 60:,.1f} a minute, {span((total - done) / rate)} left"
    )  # fmt: skip


def span(seconds: float) -> str:
    """Return a length of time with its two greatest units: `40 s`, `3 min 20 s`, `5 h 2 min`, `2 d 4 h`."""
    whole = round(seconds)
    for unit, name, below, lesser in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {lesser}" if rest else "")
    return f"{whole} s"
