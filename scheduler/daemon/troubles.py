"""Connections that cannot be made: logged when that begins, when the reason changes and when they are up again.

Each is tried again every few seconds, and a line for each try would bury all others. `drover status` shows them as
long as they fail. Statements that are refused are the matter of drivers/refusals.py.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

SAID: Final = 8  # reasons of one trouble that are not logged again: two that alternate are no news


@dataclass(slots=True)
class _Trouble:
    since: float
    reason: str
    said: deque[str] = field(default_factory=lambda: deque(maxlen=SAID))


class Troubles:
    """The connections of one daemon that fail, by name."""

    def __init__(self, say: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._found: dict[str, _Trouble] = {}

    def failed(self, what: str, reason: str, effect: str = "") -> None:
        """Note that it failed, and log it, with its effect, unless that was logged before."""
        trouble = self._found.setdefault(what, _Trouble(self._clock(), reason))
        trouble.reason = reason
        if reason not in trouble.said:
            trouble.said.append(reason)
            self._say("warning", f"{what}: {reason}{effect}")

    def over(self, what: str) -> bool:
        """Log that it is up again, and for how long it was not; False if it has not failed."""
        trouble = self._found.pop(what, None)
        if trouble is not None:
            self._say("info", f"{what}: up again after {self._clock() - trouble.since:.0f} s")
        return trouble is not None

    def shown(self) -> list[dict[str, Any]]:
        """Return what fails now: what, why, and for how many seconds."""
        now = self._clock()
        return [
            {"what": what, "reason": trouble.reason, "seconds": round(now - trouble.since, 1)}
            for what, trouble in self._found.items()
        ]
