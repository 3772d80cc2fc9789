"""Requests to the queue cut and joined: halves of one that failed, one of several that wait for locks."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
from scheduler.model.jobs import End, ItemFailure, SaveRow
from scheduler.model.states import BIT_FAILURE, FAILED

T = TypeVar("T")


def about_rows(request: Request) -> RowRequest | None:
    """Return a request that is about rows of ours, also if it asks which of them are locked."""
    if isinstance(request, FindLocked):
        return request.request
    return request if isinstance(request, EndAndClaim | Save | Mark) else None


def careful(request: Request) -> Request:
    """Return the question which rows of a request are locked; any other request as it is."""
    return FindLocked(request) if isinstance(request, EndAndClaim | Save | Mark) and request.pks else request


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


def weight_of(failures: Iterable[ItemFailure]) -> int:
    """Return the characters that failed items are counted for."""
    return sum(len(failure.line) + len(failure.reason) for failure in failures)


def without(all_ends: list[End], some: Sequence[End]) -> list[End]:
    """Return the ends but for some."""
    sent = {end.pk for end in some}
    return [end for end in all_ends if end.pk not in sent]


def without_data(row: SaveRow, reason: str) -> SaveRow:
    """Return a row, refused with its data, without them."""
    if row.outcome is None:
        return replace(row, text=reason, result=None, checkpoint=None)
    return SaveRow(
        pk=row.pk, attempt=row.attempt, state=FAILED, bits=BIT_FAILURE, text=reason, outcome="failed",
        processed=row.processed, failed=row.failed, host=row.host, agent=row.agent, pid=row.pid,
    )  # fmt: skip
