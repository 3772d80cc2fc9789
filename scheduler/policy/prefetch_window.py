"""Measures how long an agent takes for an item, and decides how many lines may be sent to it ahead of its answers.

This is for types whose `window` is "auto".

An agent that answers within microseconds waits longer for its next line than it works. With lines ahead one read, one
write and one wake-up serve many items. But what was sent cannot be given to another agent, so no more is sent than is
worked in AHEAD_S at the pace of the agent's last items or of its type on the average, whichever is slower, and nothing
where an item takes longer than FAST_S. The more agents a type has the longer both are, up to MOST_CROWD times: an item
takes long then because the others have the processors and the scheduler, and lines ahead spare these.

That says nothing of an item that is much slower than those before. So nothing is sent ahead to any agent of a type
while one of them works on an item for longer than SLOW_S, nor for REST_S after that was seen: at most once in that time
do items of this type wait behind such a one. An agent that has finished nothing counts as slow.
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
WEIGHT: Final = 0.125  # of a look in the mean of its type


class MeanPace:
    """How long the items of a type take on the average, the last ones most; nothing is known at first."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = SLOW_S


class Pace:
    """How long the items of a process took when it was last looked at, and its part in the mean of its type."""

    __slots__ = ("_at", "_items", "_mean", "_stays", "seconds")

    def __init__(self, mean: MeanPace) -> None:
        self.seconds = NEVER  # an item
        self._mean, self._stays = mean, False
        self._items, self._at = 0, 0.0  # finished at the last look that found one, and when the next one began

    def look(self, items: int, begun: float, now: float) -> None:
        """Measure the items since the last look: the process has finished so many, and one has `begun` after them."""
        if self._stays:
            return
        done = items - self._items
        if not done:
            self._at = max(self._at, begun)  # it was idle
            if now - self._at > self.seconds:
                self.seconds = now - self._at
            return
        self.seconds = seconds = (now - self._at) / done
        self._items, self._at = items, now
        mean = self._mean.seconds  # which is changed here: a call for each look would cost more
        self._mean.seconds = mean + ((seconds if seconds < SLOW_S else SLOW_S) - mean) * WEIGHT

    def stay(self) -> None:
        """Send nothing ahead to this process any more."""
        self.seconds, self._stays = NEVER, True

    @property
    def stays(self) -> bool:
        """Return whether nothing is sent ahead to this process any more."""
        return self._stays

    def lines(self, agents: int) -> int:
        """Return how many lines may be ahead of it at most, as one of so many agents of its type."""
        crowd = min(max(1.0, agents / FEW), MOST_CROWD)
        seconds = max(self.seconds, self._mean.seconds, AHEAD_S / MOST_LINES)
        return int(min(MOST_LINES - 1, AHEAD_S * crowd / seconds)) if seconds <= FAST_S * crowd else 0
