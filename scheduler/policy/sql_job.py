"""The query of a multi-SQL-query in hand: its cursor, its rows on their way, and how far it has got.

Progress of a job with a key is a watermark and the ranges done out of order beyond it. Items are assigned in key order
and numbered from 0, but end in any order. What is kept is the last key below which all is done and, beyond it, the
runs of items that are done: never more of them than there are items in hand, however far the job runs ahead of a slow
item. Keys are text as Postgres prints them; their order is the query's.

A job that was retried has keys `again`, of items that failed before. They come in the same order, below the watermark
or in a range: each is taken off the list at its end, and moves neither.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final

from scheduler.model.protocol import Item, Row
from scheduler.model.queue_requests import ItemFailure, Rules
from scheduler.model.states import QUERY, QueryEvent, QueryState

FIRST_BATCH: Final = 16  # rows whose size is not known yet
IN_PROGRESS: Final = "in progress"
TRIED_ALONE: Final = "tried alone"  # query `rescue` fails a running job of which the row says so


class KeyProgress:
    """How far one slice of a keyed job has got."""

    __slots__ = ("_again", "_by_end", "_by_start", "_next", "_old_beyond", "watermark")

    def __init__(self, checkpoint: dict[str, Any] | None) -> None:
        kept = checkpoint or {}
        self.watermark: str | None = kept.get("watermark")  # every key up to here is done; None while nothing is
        self._old_beyond: list[tuple[str, str]] = [(a, b) for a, b in kept.get("beyond", ())]
        self._again: set[str] = set(kept.get("again", ()))
        self._next = 0  # the first number not yet done
        self._by_start: dict[int, tuple[int, str | None, str | None]] = {}  # -> last number, first and last key
        self._by_end: dict[int, int] = {}  # last number -> first number

    @property
    def beyond(self) -> list[tuple[str, str]]:
        """The ranges of keys done beyond the watermark, this slice's and those of the checkpoint it began from."""
        runs = [run for _, (_, *run) in sorted(self._by_start.items())]
        return self._old_beyond + [(first, last) for first, last in runs if first is not None and last is not None]

    @property
    def again(self) -> list[str]:
        """The keys below the watermark, or in a range, that are to be done once more."""
        return sorted(self._again)

    def finish(self, number: int, key: str | None) -> None:
        """Note that item `number` with this key is done, or has failed for good."""
        if key in self._again:
            self._again.remove(key)
            key = None  # which moves neither the watermark nor a range
        first, last, first_key, last_key = number, number, key, key
        if (before := self._by_end.pop(number - 1, None)) is not None:
            _, its_first, its_last = self._by_start.pop(before)
            first, first_key, last_key = before, _one_of(its_first, first_key), _one_of(last_key, its_last)
        if (after := self._by_start.pop(number + 1, None)) is not None:
            last, its_first, its_last = after
            first_key, last_key = _one_of(first_key, its_first), _one_of(its_last, last_key)
            del self._by_end[last]
        if first == self._next:
            self._next, self.watermark = last + 1, _one_of(last_key, self.watermark)
        else:
            self._by_start[first] = (last, first_key, last_key)
            self._by_end[last] = first

    def checkpoint(self) -> dict[str, Any]:
        """Return what a later attempt needs: JSON of a few keys."""
        kept: dict[str, Any] = {"watermark": self.watermark, "beyond": [list(run) for run in self.beyond]}
        return kept | {"again": self.again} if self._again else kept


def _one_of(key: str | None, other: str | None) -> str | None:
    return other if key is None else key


class JobQuery:
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

    def opened(self, total: int, now: float) -> None:
        """Note that it ran, and how many rows it has."""
        self.fire(QueryEvent.OPENED if total else QueryEvent.OPENED_EMPTY)
        self.total, self.opened_at = total, now

    def read_as(
        self, make_line: Callable[[Row], bytes], key_at: int | None, place_at: int | None, *, is_raw: bool
    ) -> None:
        """Set how a row becomes a line, and which columns are its key and the value that places it."""
        self.make_line, self.key_at, self.place_at, self.is_raw = make_line, key_at, place_at, is_raw

    def items_of(self, rows: Sequence[Row], *, keep_rows: bool) -> list[Item]:
        """Return the items of rows that were fetched, and count them."""
        assert self.make_line is not None
        numbers = range(self.fetched, self.fetched + len(rows))
        self.fetched += len(rows)
        keys = repeat(None) if self.key_at is None else [row[self.key_at] for row in rows]
        kept = rows if keep_rows else repeat(())
        return list(map(Item._make, zip(map(self.make_line, rows), numbers, keys, kept, strict=False)))

    def size_batch(self, items: Sequence[Item], most: int, most_bytes: int) -> None:
        """Ask next for as many rows as `most_bytes` hold, and for more when half of them are gone."""
        if items:
            average = sum([len(item.line) for item in items]) / len(items)
            self.batch = max(1, min(most, int(most_bytes / average)))
            self.low = self.batch // 2

    def item_failed(self, item: Item, failure: ItemFailure) -> None:
        """Keep the failure of an item until it is saved."""
        self.failures.append(failure)
        if self.progress is not None and failure.key is not None:
            self.progress.finish(item.number, failure.key)

    def try_again(self, item: Item, *, spared: bool) -> None:
        """Let an item have a second try; if it is spared its first one was lost with its host: it was none."""
        self.second_tries.append(item)
        if spared:
            self.spared.add(item.number)
        else:
            self.spared.discard(item.number)

    def end_second_try(self, item: Item) -> None:
        """Note that a second try of an item is over."""
        if item in self.second_tries:
            self.second_tries.remove(item)
            if item not in self.second_tries:
                self.spared.discard(item.number)

    def count_loss(self, is_second_try: bool) -> int:
        """Count a host that was lost with an item on its second try; return how many were."""
        self.losses += is_second_try
        return self.losses

    def stop(self) -> None:
        """Assign nothing more of it."""
        self.fire(QueryEvent.DROPPED)
        self.second_tries = []

    def show(self, phase: str) -> bool:
        """Note what its row says of it; return whether that is new."""
        is_new, self.shown = phase != self.shown, phase
        return is_new

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
