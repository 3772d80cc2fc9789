"""One turn: wait for descriptors, timers or an instant, then call whoever asked for it.

Touches epoll and the monotonic clock, and reads the clock once a turn, right after the wait. Refuses to know
what the descriptors are and what the calls do: an exception of theirs leaves `turn`, and what was not yet called
comes again in the next turn, since epoll is level-triggered.
"""

import select
import time
from collections.abc import Callable
from heapq import heappop, heappush

DAY_S = 86_400.0  # epoll takes no longer waits than 24 days; one idle turn a day costs nothing


class Timer:
    """A call at an instant, until it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget the call; harmless when it was made already."""
        self.call = None


class Loop:
    """Descriptors and timers, and who is to be called for them. Instants are monotonic seconds."""

    __slots__ = ("_armed", "_callbacks", "_clock", "_epoll", "_stale", "_timers", "now")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock()
        self._clock = clock
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._stale: set[int] = set()  # unregistered in this turn: events fetched before are not theirs
        self._timers: list[tuple[float, int, Timer]] = []
        self._armed = 0

    def register(self, fd: int, mask: int, callback: Callable[[int], None]) -> None:
        """Call back with the event mask when `fd` is ready; EPOLLERR and EPOLLHUP come unasked."""
        self._epoll.register(fd, mask)
        self._callbacks[fd] = callback

    def modify(self, fd: int, mask: int) -> None:
        """Wait for other events of a registered descriptor."""
        self._epoll.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        """Forget a descriptor, at once and before it is closed; harmless when it is not registered."""
        if self._callbacks.pop(fd, None) is not None:
            self._stale.add(fd)
            self._epoll.unregister(fd)

    def at(self, instant: float, call: Callable[[], None]) -> Timer:
        """Call once at `instant`; one in the past is now, so that no timer can hold back an older one."""
        self._armed += 1
        timer = Timer(call)
        heappush(self._timers, (max(instant, self.now), self._armed, timer))
        return timer

    def turn(self, until: float) -> None:
        """Wait for an event, a timer or `until`, whichever is first, and make the calls that are due."""
        events = self._epoll.poll(self._patience(until))
        self.now = now = self._clock()
        callbacks, stale, timers = self._callbacks, self._stale, self._timers
        if stale:
            stale.clear()
        for fd, mask in events:
            if stale and fd in stale:
                continue
            callbacks[fd](mask)
        if timers and timers[0][0] <= now:
            self._ring(now)

    def close(self) -> None:
        """Forget everything; the descriptors stay open."""
        self._callbacks.clear()
        self._timers.clear()
        self._epoll.close()

    def _patience(self, until: float) -> float:
        """Seconds to wait, never negative: to epoll that means for ever.

        Counted from the clock of the last turn, so late by at most what its calls took.
        """
        timers = self._timers
        while timers and timers[0][2].call is None:
            heappop(timers)
        if timers and timers[0][0] < until:
            until = timers[0][0]
        return min(max(until - self.now, 0.0), DAY_S)

    def _ring(self, now: float) -> None:
        """Make the calls that are due; those armed by these calls wait for the next turn."""
        timers, last = self._timers, self._armed
        while timers and timers[0][0] <= now and timers[0][1] <= last:
            timer = heappop(timers)[2]
            if timer.call is not None:
                call, timer.call = timer.call, None
                call()
