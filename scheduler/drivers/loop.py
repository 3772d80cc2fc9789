"""The event loop, its watchdog, and tasks: generators that say what they wait for.

`now` is the monotonic clock, read right after the wait. An exception of a callback leaves `turn`; events that were not
handled yet come again, since epoll is level-triggered.

A routine that has to wait is straight-line code, which a task resumes when what it waits for has come. Between two
steps everything else runs, so state that others change is read again after a `yield`.

    def greet(loop: Loop, fd: int) -> Steps[bytes]:
        yield from ready(fd, EPOLLIN, loop.now + 5.0)  # TimeoutError after 5 s
        yield Until(loop.now + 1.0)
        return os.read(fd, 100)

    Task(loop, greet(loop, fd), print).start()
"""

import faulthandler
import select
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from types import CodeType, FrameType
from typing import Any, Generic, Protocol, TypeVar

DAY_S = 86_400.0  # epoll takes no longer waits than 24 days; one idle turn a day costs nothing
FEW_TIMERS = 100  # so many may be cancelled ones
SLOW_S = 0.1  # a turn that took longer is counted
PAUSE_S = 0.5  # a turn or a wait that lasted so much longer than it should: the process did not run
TURN = ".turn"  # of the loop, or of the daemon: the calls below it are reported

T = TypeVar("T")
Stop = Callable[[], object]


class Timer:
    """A call at an instant, until it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Drop the call; harmless when it was made already."""
        self.call = None

    def fire(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call()


class Watchdog:
    """Expires once, `limit` seconds after it was set last; made and closed in the main thread.

    It runs on SIGALRM and the timer of the process, without a thread. The loop sets it about ten times in its length,
    and stops it before a wait that may last longer, so that it expires only if a turn does not end, and costs a busy
    loop one call a second. Then the C handler of faulthandler(3py) writes the stack at once, even inside a call that
    does not come back; Python's own notes the place, as soon as Python runs again.
    """

    def __init__(self, limit: float, fd: int) -> None:
        self.limit = limit
        self._place: str | None = None
        self._old = signal.signal(signal.SIGALRM, self._expired)
        faulthandler.register(signal.SIGALRM, fd, all_threads=False, chain=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

    def set(self, seconds: float) -> None:
        """Expire so many seconds from now; 0 is never, for a wait is no hang."""
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def pop_place(self) -> str | None:
        """Return where the process was when it expired, once."""
        where, self._place = self._place, None
        return where

    def close(self) -> None:
        """Restore the handlers of before."""
        self.set(0.0)
        faulthandler.unregister(signal.SIGALRM)
        signal.signal(signal.SIGALRM, self._old)

    def _expired(self, _number: int, frame: FrameType | None) -> None:
        """Note the calls that led to a frame, from the loop on, and its line."""
        calls: list[CodeType] = []
        line = 0 if frame is None else frame.f_lineno
        while frame is not None and not frame.f_code.co_qualname.endswith(TURN):
            calls.append(frame.f_code)
            frame = frame.f_back
        path = " > ".join(code.co_qualname for code in reversed(calls))
        self._place = f"{path} ({calls[0].co_filename}:{line})" if calls else "the turn itself"


class Loop:
    """Descriptors and timers with their callbacks. Instants are monotonic seconds.

    A process that is stopped, or frozen with its container, wakes up with all its timers due and everything unread that
    was written meanwhile; epoll.poll of Python even returns nothing then, since its wait was interrupted and its time
    is over. So after a pause the descriptors are polled again, `on_pause` is called with its length, and only then are
    events handled and timers called.
    """

    __slots__ = (
        "_armed", "_callbacks", "_clock", "_epoll", "_restart_at", "_safe_until", "_say_hung", "_stale", "_sweep_at",
        "_timers", "_watchdog", "longest_turn", "now", "on_pause", "recent_turn", "slow_turns",
    )  # fmt: skip

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, on_pause: Callable[[float], None] = lambda seconds: None
    ) -> None:
        self.now = clock()
        self._clock = clock
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._stale: set[int] = set()  # unregistered in this turn: events fetched before are not theirs
        self._timers: list[tuple[float, int, Timer]] = []
        self._armed = 0
        self._sweep_at = FEW_TIMERS  # so many timers; then how many of them are cancelled is looked at
        self.longest_turn = 0.0  # seconds between two waits
        self.recent_turn = 0.0  # the longest since `take_recent_turn`
        self.slow_turns = 0
        self.on_pause = on_pause  # called before the events of that turn
        self._watchdog: Watchdog | None = None
        self._safe_until = self._restart_at = inf

    def watch_with(self, watchdog: Watchdog | None, say_hung: Callable[[float, str], None]) -> None:
        """Measure from now on; `say_hung` is called with how long a turn hung, and where."""
        self._watchdog, self._say_hung = watchdog, say_hung
        self.now = self._clock()
        self._restart_watchdog(self.now)

    def register(self, fd: int, mask: int, callback: Callable[[int], None]) -> None:
        """Call back with the event mask when `fd` is ready; EPOLLERR and EPOLLHUP come unasked."""
        self._epoll.register(fd, mask)
        self._callbacks[fd] = callback

    def modify(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def unregister(self, fd: int) -> Callable[[int], None] | None:
        """Stop waiting for a descriptor, at once and before it is closed; return the callback if it was registered."""
        callback = self._callbacks.pop(fd, None)
        if callback is not None:
            self._stale.add(fd)
            self._epoll.unregister(fd)
        return callback

    def at(self, instant: float, call: Callable[[], None]) -> Timer:
        """Call once at `instant`; one in the past is now, so that no timer can hold back an older one."""
        if len(self._timers) >= self._sweep_at:
            self._sweep()
        self._armed += 1
        timer = Timer(call)
        heappush(self._timers, (max(instant, self.now), self._armed, timer))
        return timer

    def _sweep(self) -> None:
        """Forget cancelled timers; that of a statement would else be kept until the time limit of the statement."""
        self._timers[:] = [armed for armed in self._timers if armed[2].call is not None]
        heapify(self._timers)
        self._sweep_at = max(2 * len(self._timers), FEW_TIMERS)

    def turn(self, until: float) -> None:
        """Wait for an event, a timer or `until`, whichever is first, and call the callbacks that are due."""
        before, left = self.now, self._clock()
        took = left - before
        if took > self.recent_turn:
            self.recent_turn = took
            self.longest_turn = max(took, self.longest_turn)
        if took > SLOW_S:
            self.slow_turns += 1
            if self._watchdog is not None and (where := self._watchdog.pop_place()) is not None:
                self._say_hung(took, where)
        wait_s = self._wait_s(until, left)
        if self._watchdog is not None and left + wait_s > self._safe_until:
            self._watchdog.set(0.0)
            self._safe_until, self._restart_at = inf, -inf
        events = self._epoll.poll(wait_s)
        self.now = now = self._clock()
        if now >= self._restart_at:
            self._restart_watchdog(now)
        is_late = now - left - wait_s > PAUSE_S
        if took > PAUSE_S or is_late:
            self.on_pause(now - before if is_late else took)  # a planned wait is no pause
            events = self._epoll.poll(0, max(len(self._callbacks), 1))  # all that is ready by now
        callbacks, stale, timers = self._callbacks, self._stale, self._timers
        if stale:
            stale.clear()
        for fd, mask in events:
            if stale and fd in stale:
                continue
            callbacks[fd](mask)
        last = self._armed
        while timers and timers[0][0] <= now and timers[0][1] <= last:  # those that they arm wait for the next turn
            heappop(timers)[2].fire()

    def take_recent_turn(self) -> float:
        """Return the seconds of the longest turn since the last call."""
        recent, self.recent_turn = self.recent_turn, 0.0
        return recent

    def close(self) -> None:
        """Drop all callbacks; the descriptors stay open."""
        self._callbacks.clear()
        self._timers.clear()
        self._epoll.close()

    def _restart_watchdog(self, now: float) -> None:
        if self._watchdog is None:
            return
        limit = self._watchdog.limit
        self._watchdog.set(limit)
        if self._watchdog.pop_place() is not None:  # and no turn was slow
            self._say_hung(now - self._restart_at + 0.1 * limit, "a wait: the process was stopped")
        self._safe_until, self._restart_at = now + 0.9 * limit, now + 0.1 * limit

    def _wait_s(self, until: float, now: float) -> float:
        """Return how many seconds to wait; never negative, which means for ever to epoll."""
        timers = self._timers
        while timers and timers[0][2].call is None:
            heappop(timers)
        if timers and timers[0][0] < until:
            until = timers[0][0]
        return min(max(until - now, 0.0), DAY_S)


class Wait(Protocol):
    """Something that steps can wait for."""

    def begin(self, loop: Loop, resume: Callable[[Any], None]) -> Stop:
        """Call `resume` once with what has come, at once or later; return what ends the wait before that."""


Steps = Generator[Wait, Any, T]


class ConnectionLostError(Exception):
    """The connection that steps work on was lost. It ends their task without a result; `on_up` may begin anew."""


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for an instant."""

    instant: float

    def begin(self, loop: Loop, resume: Callable[[Any], None]) -> Stop:
        return loop.at(self.instant, partial(resume, None)).cancel


@dataclass(frozen=True, slots=True)
class Ready:
    """Wait for events of a descriptor, or a deadline; resumed with the event mask, 0 at the deadline."""

    fd: int
    mask: int
    deadline: float = inf

    def begin(self, loop: Loop, resume: Callable[[Any], None]) -> Stop:
        """Register the descriptor; it is unregistered before `resume`, which may close it."""

        def stop() -> None:
            if timer is not None:
                timer.cancel()
            loop.unregister(self.fd)

        def come(mask: int) -> None:
            stop()
            resume(mask)

        loop.register(self.fd, self.mask, come)
        timer = loop.at(self.deadline, partial(come, 0)) if self.deadline < inf else None
        return stop


@dataclass(frozen=True, slots=True)
class Callback:
    """Wait until a function calls what it is given, once. It may return what ends the wait before that."""

    function: Callable[[Callable[[Any], None]], Stop | None]

    def begin(self, loop: Loop, resume: Callable[[Any], None]) -> Stop:
        return self.function(resume) or (lambda: None)


def ready(fd: int, mask: int, deadline: float = inf) -> Steps[int]:
    """Wait until a descriptor is ready and return its event mask. Errors: TimeoutError, at the deadline."""
    events: int = yield Ready(fd, mask, deadline)
    if not events:
        raise TimeoutError
    return events


class Task(Generic[T]):
    """Steps under way. `done` is called with what they return, but not when they are stopped or lose a connection."""

    __slots__ = ("_done", "_is_running", "_is_stopped", "_loop", "_steps", "_stop_wait", "_wait")

    def __init__(self, loop: Loop, steps: Steps[T], done: Callable[[T], object] = lambda result: None) -> None:
        self._loop, self._steps, self._done = loop, steps, done
        self._wait: Wait | None = None
        self._stop_wait: Stop = lambda: None
        self._is_running = self._is_stopped = False

    def start(self) -> "Task[T]":
        """Run up to the first wait."""
        self._resume(None, None)
        return self

    def stop(self) -> None:
        """End it: its `finally` is run, `done` is not called; harmless when it has ended. The steps may call it."""
        self._is_stopped, self._wait = True, None
        self._stop_wait()
        if not self._is_running:
            self._steps.close()

    def _resume(self, waited_for: Wait | None, value: Any) -> None:
        """Go on with what has come, unless it is not waited for any more, up to the next wait."""
        if self._wait is not waited_for:
            return
        self._wait, self._is_running, self._stop_wait = None, True, lambda: None
        try:
            wait = self._steps.send(value)
        except StopIteration as end:
            if not self._is_stopped:
                self._done(end.value)
            return
        except ConnectionLostError:
            return
        finally:
            self._is_running = False
        if self._is_stopped:
            self._steps.close()
            return
        self._wait = wait
        stop = wait.begin(self._loop, partial(self._resume, wait))
        if self._wait is wait:  # else it has come at once
            self._stop_wait = stop
