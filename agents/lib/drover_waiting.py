"""Do what may block, such as a look-up or a query, and still end at once when the scheduler wants it.

The work is done by a thread, as some calls cannot be given a time limit, but a thread can be left behind.
"""

from __future__ import annotations

import os
import signal
import time
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

import drover_agent

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S = 0.05  # how often the end of our input is looked for
HEARTBEAT_S = 5.0

Result = TypeVar("Result")


def within(seconds: float, work: Callable[[], Result], give_up: Callable[[], None] = lambda: None) -> Result:
    """Return what `work` returns. Raises what it raises, and TimeoutError; says Heartbeat meanwhile.

    `give_up` is called when the time is over, at the end of our input and at SIGHUP: it must not take long. With the
    last two the process ends.
    """
    results: list[Result] = []
    errors: list[Exception] = []

    def go() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = Thread(target=go, daemon=True)
    before = signal.signal(signal.SIGHUP, lambda *_: _hang_up(give_up))
    try:
        thread.start()
        _watch(thread, seconds, give_up)
    finally:
        signal.signal(signal.SIGHUP, before)
    if errors:
        raise errors[0]
    if not results:
        give_up()
        raise TimeoutError(f"not done within {seconds:g} s")
    return results[0]


def _watch(thread: Thread, seconds: float, give_up: Callable[[], None]) -> None:
    """Wait for the end of the thread or of its time."""
    now = time.monotonic()
    deadline, beat_at = now + seconds, now + HEARTBEAT_S
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(LOOK_S)
        if drover_agent.is_stdin_closed():
            give_up()
            os._exit(0)  # not sys.exit, which would wait for nothing but could raise in the thread
        if time.monotonic() >= beat_at:
            drover_agent.heartbeat()
            beat_at += HEARTBEAT_S


def _hang_up(give_up: Callable[[], None]) -> None:
    """End as SIGHUP ends a process that does not catch it."""
    give_up()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGHUP)
