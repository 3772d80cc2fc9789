"""What came of a statement, read from libpq's result: rows of raw cells, or why there are none; and its duration."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final, NamedTuple, overload

from psycopg import pq

from scheduler.model.jobs import Cells

NOTIFY_FULL: Final = "too many notifications in the NOTIFY queue"
NO_COPY: Final = "COPY from or to the client is not possible here"


class Table(Sequence[Cells]):
    """The rows of a result, each read when it is asked for, so that what is pressing can be read first."""

    __slots__ = ("_columns", "_count", "_get")

    def __init__(self, result: pq.abc.PGresult) -> None:
        self._get, self._count, self._columns = result.get_value, result.ntuples, range(result.nfields)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Cells: ...
    @overload
    def __getitem__(self, at: slice) -> list[Cells]: ...
    def __getitem__(self, at: int | slice) -> Cells | list[Cells]:
        if isinstance(at, slice):
            return list(map(self._read, range(self._count)[at]))
        return self._read(range(self._count)[at])

    def __iter__(self) -> Iterator[Cells]:
        return map(self._read, range(self._count))

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Table) else other)

    def column(self, at: int) -> list[bytes | None]:
        """Give the cells of one column."""
        return list(map(self._get, range(self._count), repeat(at)))

    def _read(self, row: int) -> Cells:
        return tuple(map(self._get, repeat(row), self._columns))


class Rows(NamedTuple):
    """What a statement gave: raw cells, column names, and how many rows it affected by its command tag."""

    rows: Table
    names: tuple[bytes, ...] = ()
    tag: int = 0


class Failure(NamedTuple):
    """Why a statement gave nothing. `lost`: the connection went, and nobody knows whether it was done."""

    sqlstate: str | None
    message: str
    lost: bool = False
    position: int | None = None  # character of the statement, from 1
    source: str | None = None  # file of the server that says so

    @property
    def is_of_notify(self) -> bool:
        """Say whether the NOTIFY queue is full: 54000 is also what is too large, and words may be translated."""
        return self.sqlstate == "54000" and (self.source == "async.c" or self.message == NOTIFY_FULL)

    @property
    def sentence(self) -> str:
        """The server's message with its SQLSTATE, or ours without."""
        return f"{self.message} ({self.sqlstate})" if self.sqlstate else self.message


Answer = Rows | Failure
Done = Callable[[Answer], None]
Sink = Callable[[Rows], bool]


@dataclass(slots=True)
class Stat:
    """How often a named statement ran, and how long it took; seconds."""

    count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one run."""
        self.count += 1
        self.total_s += seconds
        self.max_s = max(self.max_s, seconds)

    def merge(self, other: "Stat") -> None:
        """Count the runs of another connection too."""
        self.count += other.count
        self.total_s += other.total_s
        self.max_s = max(self.max_s, other.max_s)


def read_rows(result: pq.abc.PGresult) -> Rows:
    """Give what a result says."""
    names = tuple(result.fname(column) or b"" for column in range(result.nfields))
    return Rows(Table(result), names, result.command_tuples or 0)


def read_failure(result: pq.abc.PGresult) -> Failure:
    """Give what the server says is wrong, and where."""
    field = pq.DiagnosticField
    state, position = result.error_field(field.SQLSTATE), result.error_field(field.STATEMENT_POSITION)
    message = (result.error_field(field.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    source = result.error_field(field.SOURCE_FILE)
    return Failure(
        state.decode() if state else None,
        one_line(message or result.get_error_message()),
        position=int(position) if position else None,
        source=source.decode() if source else None,
    )


def one_line(text: str) -> str:
    """Give text as one line."""
    return " ".join(text.split())
