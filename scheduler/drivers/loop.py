"""The event loop: wait for descriptors, timers or an instant, then call their callbacks.

Touches epoll and the monotonic clock, which is read right after the wait, for all who use `now`, and right before the
next, to know how long the turn lasted. Refuses to know what the descriptors are and what the callbacks do: an exception
of theirs leaves `turn`, and events that were not handled yet come again in the next turn, since epoll is
level-triggered.

During a turn a watchdog runs, on SIGALRM and the timer of the process, without a thread. It is restarted about ten
times in its length and stopped before a wait that may last longer, so that it expires only if a turn does not end, and
costs a busy loop one call a second. When it expires, the C handler of faulthandler(3py) writes the stack at once, even
inside a call that does not come back; then Python's own notes the place, as soon as Python runs again.

A process that is stopped, or frozen with its container, wakes up with all its timers due and everything unread that was
written meanwhile; epoll.poll of Python even returns nothing then, since its wait was interrupted and its time is over.
So after a pause the descriptors are polled again, `on_pause` is called with its length, and only then are events
handled and timers called.
"""

import faulthandler
import select
import signal
import time
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from types import CodeType, FrameType

DAY_S = 86_400.0  # epoll takes no longer waits than 24 days; one idle turn a day costs nothing
SLOW_S = 0.1  # a turn that took longer is counted
PAUSE_S = 0.5  # a turn or a wait that lasted so much longer than it should: the process did not run
TURN = ".turn"  # of the loop, or of the daemon: the calls below it are reported


class Timer:
    """A call at an instant, until it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Drop the call; harmless when it was made already."""
        self.call = None


class Watchdog:
    """Expires once, `limit` seconds after it was restarted last; made and closed in the main thread."""

    def __init__(self, limit: float, fd: int) -> None:
        self.limit = limit
        self._place: str | None = None
        self._old = signal.signal(signal.SIGALRM, self._expired)
        faulthandler.register(signal.SIGALRM, fd, all_threads=False, chain=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

    def restart(self) -> None:
        """Expire `limit` seconds from now."""
        signal.setitimer(signal.ITIMER_REAL, self.limit)

    def stop(self) -> None:
        """Do not expire: a wait is no hang."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def pop_place(self) -> str | None:
        """Return where the process was when it expired, once."""
        where, self._place = self._place, None
        return where

    def close(self) -> None:
        """Restore the handlers of before."""
        self.stop()
        faulthandler.unregister(signal.SIGALRM)
        signal.signal(signal.SIGALRM, self._old)

    def _expired(self, _number: int, frame: FrameType | None) -> None:
        self._place = place(frame)


class Loop:
    """Descriptors and timers with their callbacks. Instants are monotonic seconds."""

    __slots__ = (
        "_armed", "_callbacks", "_clock", "_epoll", "_restart_at", "_safe_until", "_say_hung", "_stale", "_timers",
        "_watchdog", "longest_turn", "now", "on_pause", "slow_turns",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock()
        self._clock = clock
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._stale: set[int] = set()  # unregistered in this turn: events fetched before are not theirs
        self._timers: list[tuple[float, int, Timer]] = []
        self._armed = 0
        self.longest_turn = 0.0  # seconds between two waits
        self.slow_turns = 0
        self.on_pause: Callable[[float], None] = lambda seconds: None  # called before the events of that turn
        self._watchdog: Watchdog | None = None
        self._safe_until = self._restart_at = inf

    def watch_with(self, watchdog: Watchdog | None, say_hung: Callable[[float, str], None]) -> None:
        """Measure from now on; `say_hung` is called with how long a turn hung, and where."""
        self._watchdog, self._say_hung = watchdog, say_hung
        self.now = self._clock()
        if watchdog is not None:
            self._restart_watchdog(self.now)

    def register(self, fd: int, mask: int, callback: Callable[[int], None]) -> None:
        """Call back with the event mask when `fd` is ready; EPOLLERR and EPOLLHUP come unasked."""
        self._epoll.register(fd, mask)
        self._callbacks[fd] = callback

    def modify(self, fd: int, mask: int) -> None:
        """Wait for other events of a registered descriptor."""
        self._epoll.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        """Stop waiting for a descriptor, at once and before it is closed; harmless when it is not registered."""
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
        """Wait for an event, a timer or `until`, whichever is first, and call the callbacks that are due."""
        before, left = self.now, self._clock()
        took = left - before
        if took > self.longest_turn:
            self.longest_turn = took
        if took > SLOW_S:
            self._was_slow(took)
        wait_s = self._wait_s(until, left)
        if left + wait_s > self._safe_until:
            self._stop_watchdog()
        events = self._epoll.poll(wait_s)
        self.now = now = self._clock()
        if now >= self._restart_at:
            self._restart_watchdog(now)
        if took > PAUSE_S or now - left - wait_s > PAUSE_S:
            events = self._poll_after_pause(now - before)
        callbacks, stale, timers = self._callbacks, self._stale, self._timers
        if stale:
            stale.clear()
        for fd, mask in events:
            if stale and fd in stale:
                continue
            callbacks[fd](mask)
        if timers and timers[0][0] <= now:
            self._call_timers(now)

    def close(self) -> None:
        """Drop all callbacks; the descriptors stay open."""
        self._callbacks.clear()
        self._timers.clear()
        self._epoll.close()

    def _poll_after_pause(self, seconds: float) -> list[tuple[int, int]]:
        """Return all that is ready by now, and not only as many events as epoll returns by default."""
        self.on_pause(seconds)
        return self._epoll.poll(0, max(len(self._callbacks), 1))

    def _was_slow(self, took: float) -> None:
        self.slow_turns += 1
        where = self._watchdog.pop_place() if self._watchdog is not None else None
        if where is not None:
            self._say_hung(took, where)

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        self._safe_until, self._restart_at = inf, -inf

    def _restart_watchdog(self, now: float) -> None:
        watchdog = self._watchdog
        if watchdog is not None:
            watchdog.restart()
            if watchdog.pop_place() is not None:  # and no turn was slow
                self._say_hung(now - self._restart_at + 0.1 * watchdog.limit, "a wait: the process was stopped")
            self._safe_until = now + 0.9 * watchdog.limit
            self._restart_at = now + 0.1 * watchdog.limit

    def _wait_s(self, until: float, now: float) -> float:
        """Return how many seconds to wait; never negative, which means for ever to epoll."""
        timers = self._timers
        while timers and timers[0][2].call is None:
            heappop(timers)
        if timers and timers[0][0] < until:
            until = timers[0][0]
        return min(max(until - now, 0.0), DAY_S)

    def _call_timers(self, now: float) -> None:
        """Call the timers that are due; those that they arm wait for the next turn."""
        timers, last = self._timers, self._armed
        while timers and timers[0][0] <= now and timers[0][1] <= last:
            timer = heappop(timers)[2]
            if timer.call is not None:
                call, timer.call = timer.call, None
                call()


def place(frame: FrameType | None) -> str:
    """Return the calls that led to a frame, from the loop on, and its line."""
    calls: list[CodeType] = []
    line = 0 if frame is None else frame.f_lineno
    while frame is not None and not frame.f_code.co_qualname.endswith(TURN):
        calls.append(frame.f_code)
        frame = frame.f_back
    if not calls:
        return "the turn itself"
    path = " > ".join(code.co_qualname for code in reversed(calls))
    return f"{path} ({calls[0].co_filename}:{line})"
