"""What came of a statement, read from libpq's result: rows of raw cells, or why there are none; and its duration."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Final, NamedTuple

from psycopg import pq

from scheduler.model.jobs import Cells

NO_COPY: Final = "COPY from or to the client is not possible here"


class Rows(NamedTuple):
    """What a statement gave: raw cells, column names, and how many rows it affected by its command tag."""

    rows: list[Cells]
    names: tuple[bytes, ...] = ()
    tag: int = 0


class Failure(NamedTuple):
    """Why a statement gave nothing. `lost`: the connection went, and nobody knows whether it was done."""

    sqlstate: str | None
    message: str
    lost: bool = False
    position: int | None = None  # character of the statement, from 1

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
    """Give the raw cells; the hot loop of a claim, hence `map`."""
    get, columns = result.get_value, range(result.nfields)
    rows = [tuple(map(get, repeat(row), columns)) for row in range(result.ntuples)]
    names = tuple(result.fname(column) or b"" for column in columns)
    return Rows(rows, names, result.command_tuples or 0)


def read_failure(result: pq.abc.PGresult) -> Failure:
    """Give what the server says is wrong, and where."""
    field = pq.DiagnosticField
    state, position = result.error_field(field.SQLSTATE), result.error_field(field.STATEMENT_POSITION)
    message = (result.error_field(field.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    return Failure(
        state.decode() if state else None,
        one_line(message or result.get_error_message()),
        position=int(position) if position else None,
    )


def one_line(text: str) -> str:
    """Give text as one line."""
    return " ".join(text.split())
