"""What a driver asks of the loop: it lies above the drivers and is handed to them, who see this much."""

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call at an instant, until it is cancelled."""

    def cancel(self) -> None:
        """Forget the call."""


class Loop(Protocol):
    """scheduler.drivers.loop.Loop, or another that keeps its promises."""

    now: float

    def register(self, fd: int, mask: int, callback: Callable[[int], None]) -> None:
        """Call back with the event mask when `fd` is ready."""

    def modify(self, fd: int, mask: int) -> None:
        """Wait for other events of a registered descriptor."""

    def unregister(self, fd: int) -> None:
        """Forget a descriptor, before it is closed."""

    def at(self, instant: float, call: Callable[[], None]) -> Timer:
        """Call once at `instant`, monotonic seconds."""
