"""Wake-ups from the database: heard at once while they are few, and gathered when somebody floods us with them.

Anybody who may connect can NOTIFY, as often as he likes, and each wake-up would ask the database something. So a
channel may ring BURST times at once, and every `gap_s` seconds in the long run; what comes sooner waits and becomes
one. A look that found something to do was worth its wake-up, which does not count then: plain inserts are never held
up.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from scheduler.drivers.waiting import Loop, Timer

BURST: Final = 5


class Bell:
    """What stands between the notifications and those whom they wake."""

    def __init__(self, loop: Loop, wake: Callable[[str], None], gap_s: float) -> None:
        self._loop, self._wake = loop, wake
        self.gap_s = gap_s
        self._paid: dict[str, float] = {}  # until when a channel has used up its rings
        self._waiting: dict[str, Timer] = {}

    def ring(self, channel: str) -> None:
        """Somebody has notified a channel; its payload is nobody's business."""
        if channel in self._waiting:
            return
        now = self._loop.now
        early = self._paid.get(channel, now) - (BURST - 0.5) * self.gap_s
        if now >= early:
            self._pass_on(channel)
        else:
            self._waiting[channel] = self._loop.at(early, partial(self._pass_on, channel))

    def worthwhile(self, channel: str) -> None:
        """A wake-up of this channel led to something: it is not counted, and the one that waits is told now."""
        self._paid[channel] = self._paid.get(channel, 0.0) - self.gap_s
        if timer := self._waiting.get(channel):
            timer.cancel()
            self._pass_on(channel)

    def _pass_on(self, channel: str) -> None:
        self._waiting.pop(channel, None)
        self._paid[channel] = max(self._paid.get(channel, 0.0), self._loop.now) + self.gap_s
        self._wake(channel)
