"""How long tests wait for what has to happen, in one place; DROVER_TEST_PATIENCE multiplies it on a slow machine.

It bounds how long a failing test takes, and says nothing of how long anything may take. A busy machine is waited for
longer, as its load is to its processors: a constant counts with the load of the moment at which the tests began, and a
Deadline with that of the moment at which it would be over.
"""

import os
import time

MOST_SLOWNESS = 8.0


def slowness() -> float:
    """Return how many times longer something takes than on an idle machine: processes that run for each processor."""
    return min(MOST_SLOWNESS, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


IDLE_PATIENCE_S = 20.0 * float(os.environ.get("DROVER_TEST_PATIENCE", "1"))
PATIENCE_S = IDLE_PATIENCE_S * slowness()
LONG_PATIENCE_S = 3 * PATIENCE_S  # for servers to start, and for many things one after the other


class Deadline:
    """The end of a wait: so many seconds after now, and later if the machine is busier then than at the beginning."""

    def __init__(self, seconds: float = PATIENCE_S) -> None:
        self.seconds = seconds
        self._began = time.monotonic()

    @property
    def left(self) -> float:
        """Return the seconds until it is over, negative if it is."""
        return self._began + self.seconds * max(1.0, slowness() * IDLE_PATIENCE_S / PATIENCE_S) - time.monotonic()
