"""A fake cursor: the rows of a job's query, cut down by its checkpoint as Postgres would read it.

The query's text is what the core wrote, so that a wrong watermark shows; only the job's own SQL is a stand-in.
"""

import re
from typing import TYPE_CHECKING, Final

from scheduler.model.events_and_effects import Fetched, Kept, NotExpanded, Opened
from scheduler.model.protocol import Row
from tests.sim import mishaps
from tests.sim.broken import Broken
from tests.sim.rows import Row as JobRow

if TYPE_CHECKING:
    from tests.sim.world import Sim

_ABOVE: Final = re.compile(r"q\.\"n\" > E'(\d+)'")
_BETWEEN: Final = re.compile(r"q\.\"n\" not between E'(\d+)' and E'(\d+)'")


class Cursor:
    """The cursor of one attempt."""

    def __init__(self, sim: "Sim", row: JobRow, query: str) -> None:
        self.job = row.pk
        self._sim, self._row = sim, row
        self._position = 0  # of the next row that the core gets
        self._kept = 0  # rows before this position are in the file, or have left it
        self._numbers = _numbers(row, query)
        self._is_open = False

    def delay(self) -> float:
        """Seconds until it answers."""
        return self._sim.query_delay()

    def opened(self) -> Opened | NotExpanded:
        """The query has run, or has not."""
        if self._row.broken:
            return NotExpanded(self.job, "syntax error at or near everything")
        if (missing := self._sim.daemon.missing.get("queries")) is not None and missing.up < len(
            self._sim.daemon.cursors
        ):
            return NotExpanded(self.job, missing.reason, retry_in=missing.until - self._sim.now)
        if self._sim.query_is_lost():
            return self._lost()
        self._is_open = True
        return Opened(self.job, mishaps.names_of(self._row), len(self._numbers))

    def fetched(self, count: int) -> Fetched | NotExpanded:
        """Some more rows."""
        if not self._is_open:
            raise Broken("cursors_match_expanding", f"job {self.job}: a fetch before the cursor is open")
        if self._position >= self._kept and self._sim.query_is_lost():
            return self._lost()
        if self._position < self._kept:
            count = min(count, self._kept - self._position)  # from the file
        numbers = self._numbers[self._position : self._position + count]
        self._position += len(numbers)
        rows: list[Row] = [(b"%d" % self.job, b"%05d" % number, self._sim.place_of(number)) for number in numbers]
        rows = mishaps.made_odd(self._row, rows)
        return Fetched(self.job, rows, self._position < len(self._numbers))

    def _lost(self) -> NotExpanded:
        """Say that the connection is lost; where the server says why, that is an interruption."""
        is_told = self._sim.has("refusals") and self._sim.chance(0.5)
        return NotExpanded(self.job, "the connection was lost", again=True, interrupted=is_told)

    def kept(self, count: int) -> Kept | NotExpanded:
        """Some more rows into the file, which has room unless its disk is full."""
        if self._sim.has("refusals") and not self._sim.is_calm and self._sim.chance(0.2):
            return Kept(self.job, 0, 0, max(self._kept, self._position) < len(self._numbers), "no space left")
        if self._sim.query_is_lost():
            return self._lost()
        begin = max(self._kept, self._position)
        self._kept = min(begin + count, len(self._numbers))
        size = sum(len(b"%d %05d" % (self.job, number)) + 16 for number in self._numbers[begin : self._kept])
        return Kept(self.job, self._kept - begin, size, self._kept < len(self._numbers))


def _numbers(row: JobRow, query: str) -> list[int]:
    """Return the items of a query: of a repeating one some not done yet, of a keyed one those after its checkpoint."""
    numbers = [n for n in range(row.items) if not (row.repeat and n in row.done)]
    numbers = numbers[: row.slice or None] if row.repeat else numbers
    if row.key is None:
        return numbers
    above = max((int(found[1]) for found in _ABOVE.finditer(query)), default=-1)
    ranges = [(int(found[1]), int(found[2])) for found in _BETWEEN.finditer(query)]
    return [n for n in numbers if n > above and not any(a <= n <= b for a, b in ranges)]
