"""Steps: generators that say what they wait for, and tasks, which resume them on the loop when that has come.

A routine that has to wait is written as straight-line code:

    def greet(loop: Loop, fd: int) -> Steps[bytes]:
        yield from ready(fd, EPOLLIN, loop.now + 5.0)  # TimeoutError after 5 s
        yield Until(loop.now + 1.0)
        return os.read(fd, 100)

    Task(loop, greet(loop, fd), print).start()

`ready` waits for a descriptor and `Until` for an instant. What else can be waited for brings a `Wait` of its own: the
answer to a statement is in statements.py. Steps call each other by `yield from`, get what they wait for as its value,
and clean up in `finally`, which is run too when the task is stopped.

No threads, no nested loops: between two steps everything else runs, so state that others change is read again after a
`yield`.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from scheduler.drivers.loop import Loop

T = TypeVar("T")
Stop = Callable[[], object]


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
        """Arm a timer."""
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
        """Call the function."""
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
        self._resume(None)
        return self

    def stop(self) -> None:
        """End it: neither the steps go on nor `done` is called; harmless when it has ended. The steps may call it."""
        self._is_stopped, self._wait = True, None
        self._stop_wait()
        if not self._is_running:
            self._steps.close()

    def _resume(self, value: Any) -> None:
        """Run up to the next wait."""
        self._is_running, self._stop_wait = True, lambda: None
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
        stop = wait.begin(self._loop, partial(self._come, wait))
        if self._wait is wait:  # else it has come at once
            self._stop_wait = stop

    def _come(self, wait: Wait, value: Any) -> None:
        """Go on with what has come, unless it is not waited for any more."""
        if self._wait is wait:
            self._wait = None
            self._resume(value)
