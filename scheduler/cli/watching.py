"""`--watch`: the same drawn again when something has happened, until Ctrl-C.

Woken by what is announced: ends, arrivals, changes of settings. What nobody announces, as a job that is claimed, shows
at the next drawing, a few seconds later at most.
"""

import sys
import time
from collections.abc import Callable
from typing import NoReturn

import psycopg

from scheduler.cli.database import listen

REDRAW_S = 0.5  # between two drawings, at least
LOOK_S = 5.0  # and at most
CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def redrawn(connection: psycopg.Connection, draw: Callable[[], object], look_s: float = LOOK_S) -> NoReturn:
    """Draw for ever: over the last drawing on a terminal, below it after an empty line elsewhere."""
    listen(connection, "drover_event", "drover_queue", "drover_change")
    is_terminal = sys.stdout.isatty()
    while True:
        drawn_at = time.monotonic()
        sys.stdout.write(CLEAR if is_terminal else "")
        draw()
        sys.stdout.write("" if is_terminal else "\n")
        sys.stdout.flush()
        _sleep(connection, drawn_at + REDRAW_S, look_s)


def _sleep(connection: psycopg.Connection, not_before: float, look_s: float) -> None:
    """Until something is announced; what comes while it is too early for a drawing is one reason for the next."""
    for _ in connection.notifies(timeout=look_s, stop_after=1):
        pass
    for _ in connection.notifies(timeout=max(not_before - time.monotonic(), 0.0)):
        pass
