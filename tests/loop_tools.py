"""For tests of drivers: turn the loop until something is so, with a deadline."""

import time
from collections.abc import Callable

from scheduler.drivers.loop import Loop
from tests.patience import PATIENCE_S, Deadline


def turn_until(loop: Loop, is_so: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Turn the loop until it is so; an AssertionError if it is not in time."""
    deadline = Deadline(within_s)
    while not is_so():
        assert deadline.left > 0, "it did not come to pass"
        loop.turn(time.monotonic() + deadline.left)
