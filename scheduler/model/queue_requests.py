"""What the queue connection is to do next, one request at a time, and how requests are cut and joined.

Of requests about rows of ours `pks` are these rows, and `part` is the same about some of them, without claims.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scheduler.model.queue_rows import ClaimRequest, End, ItemFailure, LogRow, OutputRow, SaveRow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EndAndClaim:
    """End the plain successes and claim; `unread`: what the rows hold is read later, so that no claim fails of it."""

    ends: Sequence[End]
    wanted: Sequence[ClaimRequest]
    unread: bool = False

    @property
    def pks(self) -> list[int]:
        return [end.pk for end in self.ends]

    def part(self, pks: Container[int]) -> "EndAndClaim":
        return EndAndClaim([end for end in self.ends if end.pk in pks], ())


@dataclass(frozen=True, slots=True)
class Save:
    """Save other ends and progress, with the items that failed."""

    rows: Sequence[SaveRow]
    failures: Sequence[ItemFailure] = ()

    @property
    def pks(self) -> list[int]:
        return [row.pk for row in self.rows]

    def part(self, pks: Container[int]) -> "Save":
        return Save([row for row in self.rows if row.pk in pks], [each for each in self.failures if each.pk in pks])


@dataclass(frozen=True, slots=True)
class Mark:
    """Show rows as running."""

    rows: Sequence[tuple[int, int]]  # (pk, attempt)

    @property
    def pks(self) -> list[int]:
        return [pk for pk, _ in self.rows]

    def part(self, pks: Container[int]) -> "Mark":
        return Mark([row for row in self.rows if row[0] in pks])


@dataclass(frozen=True, slots=True)
class ReadContents:
    """Read what rows in hand hold that were claimed without it."""

    rows: Sequence[tuple[int, int]]  # (pk, attempt)


@dataclass(frozen=True, slots=True)
class FindLocked:
    """Find out, without waiting, which rows that a request is about another session has locked."""

    request: "RowRequest"


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle the dependencies on ended rows, of the first one those of children beyond a number."""

    parents: Sequence[int]
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class RecordInHand:
    """Say anew which rows are in hand, in place of what the claims have said one by one."""

    pks: Sequence[int]


@dataclass(frozen=True, slots=True)
class WriteLog:
    """Append to drover.log."""

    rows: Sequence[LogRow]


@dataclass(frozen=True, slots=True)
class WriteOutput:
    """Append to drover.output, and tell those who follow one of these jobs."""

    rows: Sequence[OutputRow]
    followed: Sequence[int] = ()


RowRequest = EndAndClaim | Save | Mark  # about rows that are ours
Request = EndAndClaim | Save | Mark | ReadContents | FindLocked | Settle | RecordInHand | WriteLog | WriteOutput


def about_rows(request: Request) -> RowRequest | None:
    """Return a request that is about rows of ours, also if it asks which of them are locked."""
    if isinstance(request, FindLocked):
        return request.request
    return request if isinstance(request, RowRequest) else None


def careful(request: Request) -> Request:
    """Return the question which rows of a request are locked; any other request as it is."""
    return FindLocked(request) if isinstance(request, RowRequest) and request.pks else request


def joined(one: Request, other: Request) -> Request | None:
    """Return two requests as one, if they are of one kind."""
    match one, other:
        case EndAndClaim(ends), EndAndClaim(more):
            return EndAndClaim([*ends, *more], ())
        case Save(rows, failures), Save(others, more):
            return Save([*rows, *others], [*failures, *more])
        case Mark(rows), Mark(others):
            return Mark([*rows, *others])
        case WriteLog(rows), WriteLog(others):
            return WriteLog([*rows, *others])
        case Settle(parents, 0), Settle(others, 0):
            return Settle(list(dict.fromkeys([*parents, *others])))
        case _:
            return None


def halves_of(request: Request) -> list[Request]:
    """Return the request as two of half the size; none when it holds one row."""
    match request:
        case EndAndClaim() | Save() | Mark():
            return [request.part(frozenset(pks)) for pks in _halves(request.pks)]
        case ReadContents(rows):
            return [ReadContents(part) for part in _halves(rows)]
        case WriteLog(rows):
            return [WriteLog(part) for part in _halves(rows)]
        case WriteOutput(rows, followed):
            return [WriteOutput(part, followed) for part in _halves(rows)]
        case Settle(parents, beyond):
            return [Settle(part, 0 if n else beyond) for n, part in enumerate(_halves(parents))]
        case RecordInHand() | FindLocked():
            return []


def _halves(rows: Sequence[T]) -> list[Sequence[T]]:
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]] if middle else []
