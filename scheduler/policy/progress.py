"""How far a keyed job has got: a watermark and the ranges done out of order beyond it.

Items are handed out in key order and numbered from 0, but end in any order. What is kept is the last key below which
all is done and, beyond it, the runs of items that are done: never more of them than there are items in hand, however
far the job runs ahead of a slow one. Keys are text as Postgres prints them; their order is the query's.
"""

from typing import Any


class Progress:
    """The books of one slice of a keyed job."""

    __slots__ = ("_by_end", "_by_start", "_next", "_old_beyond", "_watermark")

    def __init__(self, checkpoint: dict[str, Any] | None) -> None:
        self._next = 0  # the first number not yet done
        self._watermark: str | None = (checkpoint or {}).get("watermark")
        self._old_beyond: list[tuple[str, str]] = [(a, b) for a, b in (checkpoint or {}).get("beyond", ())]
        self._by_start: dict[int, tuple[int, str, str]] = {}  # first number -> last number, first key, last key
        self._by_end: dict[int, int] = {}  # last number -> first number

    @property
    def watermark(self) -> str | None:
        """Every key up to here is done; None while nothing is."""
        return self._watermark

    @property
    def beyond(self) -> list[tuple[str, str]]:
        """The ranges of keys done beyond the watermark, this slice's and those of the checkpoint it began from."""
        runs = [(first, last) for _, (_, first, last) in sorted(self._by_start.items())]
        return self._old_beyond + runs

    def finish(self, number: int, key: str) -> None:
        """Item `number` with this key is done, or has failed for good."""
        if number == self._next:
            self._advance(number, key)
            return
        first, last, first_key, last_key = number, number, key, key
        if (before := self._by_end.pop(number - 1, None)) is not None:
            _, first_key, _ = self._by_start.pop(before)
            first = before
        if (after := self._by_start.pop(number + 1, None)) is not None:
            last, _, last_key = after
            del self._by_end[last]
        self._by_start[first] = (last, first_key, last_key)
        self._by_end[last] = first

    def _advance(self, number: int, key: str) -> None:
        run = self._by_start.pop(number + 1, None)
        if run is None:
            self._next, self._watermark = number + 1, key
            return
        last, _, last_key = run
        del self._by_end[last]
        self._next, self._watermark = last + 1, last_key

    def checkpoint(self) -> dict[str, Any]:
        """Give what a later attempt needs: JSON of a few keys."""
        return {"watermark": self._watermark, "beyond": [list(run) for run in self.beyond]}
