"""One pass over what is long over, piece by piece: how far it has come, and how much it has removed.

A pass is a row of statements with pauses between them, on the watch connection: the lease, other commands and the
queue go on beside it. One that was cut off begins again from the start, which repeats no more than a look.
"""

from typing import Final

from scheduler.model.jobs import Cells

PIECE: Final = 1000  # rows looked at by one statement, which takes tens of milliseconds
PAUSE_S: Final = 0.05  # between two of them
STAGES: Final = ("jobs", "groups", "log")  # as drover.flush has them


class Pass:
    """One pass over all that ended more than so many days before a command came, or before now (None)."""

    def __init__(self, days: int, *, failed_too: bool, command: int | None) -> None:
        self.days, self._failed_too, self._command = days, failed_too, command
        self._stage: str | None = STAGES[0]
        self._place = 0
        self.removed = dict.fromkeys(STAGES, 0)

    @property
    def is_over(self) -> bool:
        """Say whether all was looked at."""
        return self._stage is None

    def values(self) -> dict[str, object]:
        """Give the parameters of query `flush` for the next piece."""
        return {
            "command": self._command, "days": self.days, "failed": self._failed_too, "most": PIECE,
            "stage": self._stage, "place": self._place,
        }  # fmt: skip

    def take(self, cells: Cells) -> None:
        """Note its answer."""
        count, stage, place = cells
        self.removed[self._stage or ""] += int(count or 0)
        self._stage = None if stage is None else stage.decode()
        self._place = int(place or 0)

    def __str__(self) -> str:
        """Give the end of a pass in words."""
        jobs, groups, lines = self.removed.values()
        return f"removed {jobs} jobs, {groups} job groups, {lines} log lines about no job"
