"""Requests to the queue as things to be cut and joined: halves of one that failed, one of some that wait for locks."""

from collections.abc import Sequence
from typing import TypeVar

from scheduler.model.events import (
    EndAndClaim,
    FindLocked,
    Mark,
    ReadContents,
    RecordInHand,
    Request,
    RowRequest,
    Save,
    Settle,
    WriteLog,
    WriteOutput,
)

T = TypeVar("T")


def about_rows(request: Request) -> RowRequest | None:
    """Give what a request is that is about rows of ours, or asks which of them are locked."""
    if isinstance(request, FindLocked):
        return request.request
    return request if isinstance(request, EndAndClaim | Save | Mark) else None


def careful(request: Request) -> Request:
    """Before a request that is about rows: which of them are locked? Any other goes as it is."""
    return FindLocked(request) if isinstance(request, EndAndClaim | Save | Mark) and request.pks else request


def joined(one: Request, other: Request) -> Request | None:
    """Give two requests as one, if they are of one kind."""
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
    """Give the request as two of half the size; none when it holds one row."""
    match request:
        case EndAndClaim() | Save() | Mark() | ReadContents():
            return [request.part(frozenset(pks)) for pks in _parts(request.pks)]
        case WriteLog(rows):
            return [WriteLog(part) for part in _parts(rows)]
        case WriteOutput(rows, followed):
            return [WriteOutput(part, followed) for part in _parts(rows)]
        case Settle(parents, beyond):
            return [Settle(part, 0 if n else beyond) for n, part in enumerate(_parts(parents))]
        case RecordInHand() | FindLocked():
            return []


def _parts(rows: Sequence[T]) -> list[Sequence[T]]:
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]] if middle else []
