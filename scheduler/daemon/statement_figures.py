"""Prepares the figures of each named statement for the status, and warns of slow statements."""

from collections.abc import Callable, Mapping
from typing import Final

from scheduler.daemon.log import log_line
from scheduler.drivers.statements import Stat

SLOW_S: Final = 1.0  # a statement that took longer is worth a warning


class StatementFigures:
    """The statements of a daemon; `stats` returns what was counted of each since it started."""

    def __init__(self, stats: Callable[[], Mapping[str, Stat]]) -> None:
        self._stats = stats
        self._slowest: dict[str, float] = {}  # seconds of statements that a warning was about

    def shown(self) -> dict[str, dict[str, float]]:
        """Return count, mean and maximum of every named statement; warn of one that was slower than ever before."""
        shown = {}
        for name, stat in self._stats().items():
            mean_ms, max_ms = stat.total_s / max(stat.count, 1) * 1000, stat.max_s * 1000
            total_s = round(stat.total_s, 6)
            shown[name] = {
                "count": stat.count,
                "total_s": total_s,
                "mean_ms": round(mean_ms, 3),
                "max_ms": round(max_ms, 3),
            }
            if stat.max_s > max(self._slowest.get(name, 0.0), SLOW_S):
                self._slowest[name] = stat.max_s
                log_line("warning", f"slow statement {name}: {max_ms:.0f} ms")
        return shown
