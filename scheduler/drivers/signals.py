"""Signals as events of the loop.

Touches the signal handlers and the wake-up descriptor of this process: the C handler writes the number into a
pipe, the loop reads it. No Python of ours runs when a signal arrives. Refuses to know what a signal means.
"""

import os
import signal
from collections.abc import Callable
from select import EPOLLIN
from types import FrameType
from typing import Any

from scheduler.drivers.waiting import Loop

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
MOST = 4096  # signals read in one turn


class Signals:
    """Tells every signal of NUMBERS that arrived, in order; made and closed in the main thread."""

    def __init__(self, loop: Loop, on_signal: Callable[[int], None]) -> None:
        self._loop, self._on_signal = loop, on_signal
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        # the pipe comes first: a handler that is set before it would swallow a signal
        self._old_writer = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._old: dict[int, Any] = {number: signal.signal(number, _wake) for number in NUMBERS}
        loop.register(self._reader, EPOLLIN, self._read)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)  # a program before us may have kept some for us

    def close(self) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
        signal.set_wakeup_fd(self._old_writer)
        self._loop.unregister(self._reader)
        os.close(self._reader)
        os.close(self._writer)

    def _read(self, _mask: int) -> None:
        for number in os.read(self._reader, MOST):
            if number in self._old:
                self._on_signal(number)


def _wake(_number: int, _frame: FrameType | None) -> None:
    """Exist: without a handler in Python the C handler that writes to the pipe would not be there."""
