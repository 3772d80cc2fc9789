"""How other threads settings ours: they leave a call, and our epoll wakes up once for all that were left.

Refuses to know what is called. Rests on the atomic append of a deque and on one order: who posts first appends and
then looks whether we are awake; we first say that we sleep again and then take what is there.
"""

import os
from collections import deque
from collections.abc import Callable
from select import EPOLLIN

from scheduler.drivers.loop import Loop

Call = Callable[[], object]


class CallQueue:
    """Calls to be made by the thread of the loop."""

    def __init__(self, loop: Loop) -> None:
        self._calls: deque[Call] = deque()
        self._is_awake = False
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.register(self._fd, EPOLLIN, self._make_calls)

    def post(self, call: Call) -> None:
        """Have a call made soon; any thread may ask for it."""
        self._calls.append(call)
        if not self._is_awake:
            self._is_awake = True
            os.eventfd_write(self._fd, 1)

    def _make_calls(self, _mask: int) -> None:
        os.eventfd_read(self._fd)
        self._is_awake = False
        for _ in range(len(self._calls)):  # those posted meanwhile wait, or one that babbles would keep us here
            self._calls.popleft()()
        if self._calls and not self._is_awake:
            self._is_awake = True
            os.eventfd_write(self._fd, 1)


class BufferEvent:
    """Stands for the Event of a paramiko buffer, set at each arrival: many rings before we come are one call."""

    __slots__ = ("_call", "_has_rung", "_post")

    def __init__(self, calls: CallQueue, call: Call) -> None:
        self._post, self._call, self._has_rung = calls.post, call, False

    def set(self) -> None:
        """Ring; paramiko calls it before the data is there, but holds the buffer's lock until it is."""
        if not self._has_rung:
            self._has_rung = True
            self._post(self._answer)

    def clear(self) -> None:
        """Do nothing: we read until nothing is left."""

    def _answer(self) -> None:
        self._has_rung = False
        self._call()
