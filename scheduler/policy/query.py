"""The query of a multi-SQL-query in hand: its cursor, its rows on their way, and how far it has got.

Progress of a job with a key is a watermark and the ranges done out of order beyond it. Items are assigned in key order
and numbered from 0, but end in any order. What is kept is the last key below which all is done and, beyond it, the
runs of items that are done: never more of them than there are items in hand, however far the job runs ahead of a slow
item. Keys are text as Postgres prints them; their order is the query's.

A job that was retried has keys `again`, of items that failed before. They come in the same order, below the watermark
or in a range: each is taken off the list at its end, and moves neither.
"""

from collections.abc import Callable
from typing import Any, Final

from scheduler.model.expand import Item, Row
from scheduler.model.jobs import ItemFailure, Rules
from scheduler.model.states import QUERY, QueryEvent, QueryState

FIRST_BATCH: Final = 16  # rows whose size is not known yet
IN_PROGRESS: Final = "in progress"
TRIED_ALONE: Final = "tried alone"  # query `rescue` fails a running job of which the row says so


class KeyProgress:
    """How far one slice of a keyed job has got."""

    __slots__ = ("_again", "_by_end", "_by_start", "_next", "_old_beyond", "_watermark")

    def __init__(self, checkpoint: dict[str, Any] | None) -> None:
        self._next = 0  # the first number not yet done
        self._watermark: str | None = (checkpoint or {}).get("watermark")
        self._old_beyond: list[tuple[str, str]] = [(a, b) for a, b in (checkpoint or {}).get("beyond", ())]
        self._again: set[str] = set((checkpoint or {}).get("again", ()))
        self._by_start: dict[
            int, tuple[int, str | None, str | None]
        ] = {}  # first number -> last one, first and last key
        self._by_end: dict[int, int] = {}  # last number -> first number

    @property
    def watermark(self) -> str | None:
        """Every key up to here is done; None while nothing is."""
        return self._watermark

    @property
    def beyond(self) -> list[tuple[str, str]]:
        """The ranges of keys done beyond the watermark, this slice's and those of the checkpoint it began from."""
        runs = [run for _, (_, *run) in sorted(self._by_start.items())]
        return self._old_beyond + [(first, last) for first, last in runs if first is not None and last is not None]

    @property
    def again(self) -> list[str]:
        """The keys below the watermark, or in a range, that are to be done once more."""
        return sorted(self._again)

    def finish(self, number: int, key: str) -> None:
        """Note that item `number` with this key is done, or has failed for good."""
        if key in self._again:
            self._again.remove(key)
            self._end(number, None)
        else:
            self._end(number, key)

    def _end(self, number: int, key: str | None) -> None:
        if number == self._next:
            self._advance(number, key)
            return
        first, last, first_key, last_key = number, number, key, key
        if (before := self._by_end.pop(number - 1, None)) is not None:
            _, its_first, its_last = self._by_start.pop(before)
            first, first_key, last_key = before, _one_of(its_first, first_key), _one_of(last_key, its_last)
        if (after := self._by_start.pop(number + 1, None)) is not None:
            last, its_first, its_last = after
            first_key, last_key = _one_of(first_key, its_first), _one_of(its_last, last_key)
            del self._by_end[last]
        self._by_start[first] = (last, first_key, last_key)
        self._by_end[last] = first

    def _advance(self, number: int, key: str | None) -> None:
        last, last_key = number, key
        if (run := self._by_start.pop(number + 1, None)) is not None:
            last, _, its_last = run
            last_key = _one_of(its_last, key)
            del self._by_end[last]
        self._next, self._watermark = last + 1, _one_of(last_key, self._watermark)

    def checkpoint(self) -> dict[str, Any]:
        """Return what a later attempt needs: JSON of a few keys."""
        kept: dict[str, Any] = {"watermark": self._watermark, "beyond": [list(run) for run in self.beyond]}
        return kept | {"again": self.again} if self._again else kept


def _one_of(key: str | None, other: str | None) -> str | None:
    return other if key is None else key


class Query:
    """The query of a job in hand: its cursor, its rows on their way, its items' failures."""

    __slots__ = (
        "batch", "failures", "fetched", "is_raw", "key_at", "losses", "low", "make_line", "opened_at", "place_at",
        "progress", "second_tries", "shown", "spared", "state", "total",
    )  # fmt: skip

    def __init__(self, rules: Rules) -> None:
        self.state = QueryState.WAITING
        self.opened_at = 0.0
        self.shown = IN_PROGRESS  # what the row says of it
        self.make_line: Callable[[Row], bytes] | None = None
        self.is_raw = False  # its lines may hold newlines, which no line agent can read
        self.key_at: int | None = None  # column numbers
        self.place_at: int | None = None
        self.total = 0
        self.fetched = 0
        self.batch = FIRST_BATCH  # rows to ask for next
        self.low = 0  # ask for more when no more than these wait
        self.second_tries: list[Item] = []  # items whose second try, alone in a fresh process, is due or under way
        self.losses = 0  # of hosts, each with an item that was tried again
        self.spared: set[int] = set()  # of `second_tries`, items whose first try was lost with its host: it was none
        self.failures: list[ItemFailure] = []  # not yet saved
        self.progress = KeyProgress(rules.checkpoint) if rules.key else None

    def fire(self, event: QueryEvent) -> None:
        """Move the query. Errors: BugError when the event is impossible."""
        self.state = QUERY.after(self.state, event) or self.state

    def has_opened(self, total: int, now: float) -> None:
        """Note that it ran, and how many rows it has."""
        self.fire(QueryEvent.OPENED if total else QueryEvent.OPENED_EMPTY)
        self.total, self.opened_at = total, now

    def set_format(self, make_line: Callable[[Row], bytes], *, is_raw: bool) -> None:
        """Set how a row becomes a line."""
        self.make_line, self.is_raw = make_line, is_raw

    def set_columns(self, key_at: int | None, place_at: int | None) -> None:
        """Set which columns are the key and the value that places a row."""
        self.key_at, self.place_at = key_at, place_at

    def count_rows(self, rows: int) -> None:
        """Count rows that were fetched."""
        self.fetched += rows

    def set_batch(self, rows: int) -> None:
        """Ask next for so many rows, and for more when half of them are gone."""
        self.batch, self.low = rows, rows // 2

    def end_second_try(self, item: Item) -> None:
        """Note that a second try of an item is over."""
        if item in self.second_tries:
            self.second_tries.remove(item)
            if item not in self.second_tries:
                self.spared.discard(item.number)

    def stop(self) -> None:
        """Assign nothing more of it."""
        self.fire(QueryEvent.DROPPED)
        self.second_tries = []

    def count_loss(self, is_second_try: bool) -> int:
        """Count a host that was lost with an item on its second try; return how many were."""
        self.losses += is_second_try
        return self.losses

    def take_failures(self) -> list[ItemFailure]:
        """Return the failed items that are to be saved now."""
        failures, self.failures = self.failures, []
        return failures

    @property
    def has_connection(self) -> bool:
        """Say whether a connection is asked for, or has it."""
        return self.state is not QueryState.WAITING

    @property
    def has_run(self) -> bool:
        """Say whether its columns and the number of its rows are known."""
        return self.state in (QueryState.OPEN, QueryState.FETCHING, QueryState.EXHAUSTED)
