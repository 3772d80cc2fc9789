"""A file for rows of a query that agents do not need yet: they go in by batches and come out in the same order.

It has no name, so that it is gone with the process, however that ends. Its directory is that of TMPDIR, or /var/tmp:
/tmp may be memory. Batches that it cannot take are kept in memory, and so are those behind them: the order stays.
"""

import marshal
import os
from collections import deque
from tempfile import mkstemp
from typing import Final

from scheduler.model.queue_requests import Cells

DIRECTORY: Final = "/var/tmp"
VARIABLE: Final = "TMPDIR"
NO_FILE: Final = -1


class RowFile:
    """Batches of rows in a file, which the first one makes. Errors of `add` and `take`: OSError."""

    def __init__(self) -> None:
        self._fd = NO_FILE
        self._end = 0
        self._batches: deque[tuple[int, int]] = deque()  # where each begins, and its bytes
        self._unwritten: deque[list[Cells]] = deque()  # behind those in the file

    def add(self, rows: list[Cells]) -> int:
        """Add a batch, and return how many bytes it has in the file."""
        if self._unwritten:
            self._unwritten.append(rows)
            return 0
        if self._fd == NO_FILE:
            self._fd = _file_without_name()
        data = memoryview(marshal.dumps(rows))
        at, size = self._end, len(data)
        while data:
            written = os.pwrite(self._fd, data, at)
            at, data = at + written, data[written:]
        self._batches.append((self._end, size))
        self._end = at
        return size

    def hold(self, rows: list[Cells]) -> None:
        """Keep a batch in memory that could not be written."""
        self._unwritten.append(rows)

    @property
    def has_rows(self) -> bool:
        return bool(self._batches or self._unwritten)

    def take(self) -> list[Cells]:
        """Return the next batch, which is gone from here then."""
        if not self._batches:
            return self._unwritten.popleft()
        begin, size = self._batches.popleft()
        data = os.pread(self._fd, size, begin)
        rows: list[Cells] = marshal.loads(data)
        return rows

    def close(self) -> None:
        if self._fd != NO_FILE:
            os.close(self._fd)


def _file_without_name() -> int:
    fd, path = mkstemp(dir=os.environ.get(VARIABLE) or DIRECTORY, prefix="drover-rows-")
    os.unlink(path)
    return fd
