"""How long the items of an agent take, and how many lines it may have ahead therefore, where its type's window is auto.

An agent that answers within microseconds waits longer for its next line than it works. With lines ahead one read, one
write and one wake-up serve many items. But what was sent cannot be given to another agent, so no more is sent than is
worked in AHEAD_S at the pace of the last items, and nothing to an agent whose items take longer than FAST_S. The more
agents a type has the longer both are, up to MOST_CROWD times: an item takes long then because the others have the
processors and the scheduler, and lines ahead spare these.

That says nothing of an item that is much slower than those before. So nothing is sent ahead to any agent of a type
while one of them works on an item for longer than SLOW_S, nor for REST_S after that was seen: at most once in that time
do items of this type wait behind such a one. An agent of which nothing is known counts as slow.
"""

from typing import Final

from scheduler.model.config import MOST_LINES
from scheduler.model.states import NEVER

AHEAD_S: Final = 0.005  # of work that an agent has ahead, about
FAST_S: Final = 0.002  # an item
FEW: Final = 16  # agents; with n times as many these times are n times as long
MOST_CROWD: Final = 25.0
SLOW_S: Final = 0.1
REST_S: Final = 60.0
LOOK_S: Final = 0.01  # between two looks for an agent that is slow: a crowd is long to look through
PROVEN: Final = 3  # looks, and up to twice as many


class Pace:
    """How long the last items of a process took: the longest time of the last PROVEN looks and of some before."""

    __slots__ = ("_at", "_before", "_items", "_lately", "_looks", "seconds")

    def __init__(self) -> None:
        self.seconds = self._before = SLOW_S  # an item
        self._lately, self._looks = 0.0, 0  # of the last few looks the longest time, and how many they are
        self._items, self._at = 0, 0.0  # finished at the last look that found one, and when the next one began

    def look(self, items: int, begun: float, now: float) -> None:
        """Measure the items since the last look: the process has finished so many, and one has `begun` after them."""
        done = items - self._items
        if not done:
            self._at = max(self._at, begun)  # it was idle
        seconds = (now - self._at) / (done or 1)
        if seconds > self._lately:
            self._lately = seconds
            if seconds > self.seconds:
                self.seconds = seconds
        if done:
            self._items, self._at = items, now
            self._looks += 1
            if self._looks == PROVEN:
                self.seconds = max(self._before, self._lately)
                self._before, self._lately, self._looks = self._lately, 0.0, 0

    def stay(self) -> None:
        """Send nothing ahead to this process any more."""
        self.seconds, self._looks = NEVER, PROVEN  # no look counts any more

    def lines(self, agents: int) -> int:
        """Return how many lines may be ahead of it at most, as one of so many agents of its type."""
        crowd = min(max(1.0, agents / FEW), MOST_CROWD)
        if self.seconds > FAST_S * crowd:
            return 0
        return int(min(MOST_LINES - 1, AHEAD_S * crowd / max(self.seconds, AHEAD_S / MOST_LINES)))
