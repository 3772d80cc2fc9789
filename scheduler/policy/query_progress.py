"""The query of a job in hand: its cursor, its rows on their way, and its progress by key.

Progress of a job with a key is a watermark and the ranges done out of order beyond it. Items are assigned in key order
and numbered from 0, but end in any order. What is kept is the last key below which all is done and, beyond it, the
runs of items that are done: never more of them than there are items in hand, however far the job runs ahead of a slow
item. Keys are text as Postgres prints them; their order is the query's.

A job that was retried has keys `again`, of items that failed before. They come in the same order, below the watermark
or in a range: each is taken off the list at its end, and moves neither.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import repeat
from typing import Any, Final

from scheduler.model.protocol import Item, Row
from scheduler.model.queue_requests import ItemFailure, Rules
from scheduler.model.states import QUERY, QueryEvent, QueryState
from scheduler.policy.handover_values import Snapshot, bytes_of, fields_of, item_of, item_snapshot, set_fields, text_of

FIRST_BATCH: Final = 16  # rows whose size is not known yet
ROW_BYTES: Final = 16  # that a row takes in a file beside its line
IN_PROGRESS: Final = "in progress"
_RUN: Final = (QueryState.OPEN, QueryState.FETCHING, QueryState.KEEPING, QueryState.EXHAUSTED)
_PLAIN_FIELDS: Final = ("batch", "fetched", "line_bytes", "losses", "low", "opened_at", "shown", "total")


class KeyProgress:
    """How far one slice of a keyed job has got."""

    __slots__ = ("_again", "_by_end", "_by_start", "_coming", "_next", "_old_beyond", "watermark")

    def __init__(self, checkpoint: Snapshot | None) -> None:
        kept = checkpoint or {}
        self.watermark: str | None = kept.get("watermark")  # every key up to here is done; None while nothing is
        self._old_beyond: list[tuple[str, str]] = [(a, b) for a, b in kept.get("beyond", ())]
        self._again: set[str] = set(kept.get("again", ()))
        self._coming = set(self._again)  # of these, the ones that were not fetched yet
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

    @property
    def coming(self) -> list[str]:
        """The keys of `again` that were not fetched yet."""
        return sorted(self._coming)

    def came(self, keys: Iterable[bytes | None]) -> None:
        """Note that rows with these keys were fetched."""
        if self._coming:
            self._coming.difference_update([as_key(key) for key in keys if key is not None])

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

    def snapshot(self) -> dict[str, Any]:
        """Return all of it, for `restored`."""
        return {
            "watermark": self.watermark, "beyond": [list(run) for run in self._old_beyond], "again": self.again,
            "coming": self.coming, "next": self._next,
            "runs": [[first, *run] for first, run in sorted(self._by_start.items())],
        }  # fmt: skip

    @classmethod
    def restored(cls, snapshot: Snapshot) -> "KeyProgress":
        """Return the progress of a snapshot, which has the keys of a checkpoint too."""
        progress = cls(snapshot)
        progress._restore(snapshot)
        return progress

    def _restore(self, snapshot: Snapshot) -> None:
        self._next, self._coming = int(snapshot.get("next", 0)), set(snapshot.get("coming", ()))
        for first, last, first_key, last_key in snapshot.get("runs", ()):
            self._by_start[first] = (last, first_key, last_key)
            self._by_end[last] = first

    def checkpoint(self) -> dict[str, Any]:
        """Return what a later attempt needs: JSON of a few keys."""
        kept: dict[str, Any] = {"watermark": self.watermark, "beyond": [list(run) for run in self.beyond]}
        return kept | {"again": self.again} if self._again else kept


def _one_of(key: str | None, other: str | None) -> str | None:
    return other if key is None else key


def as_key(cell: bytes) -> str:
    """Return a key as text."""
    return cell.decode("utf-8", "surrogateescape")


class JobQuery:
    """The query of a job in hand: its cursor, its rows on their way, its items' failures."""

    __slots__ = (
        "batch", "failures", "fetched", "is_raw", "kept", "key_at", "last_key", "line_bytes", "losses", "low",
        "make_line", "needs_bytes", "opened_at", "place_at", "progress", "second_tries", "shown", "spared", "state",
        "stays", "total",
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
        self.last_key: bytes | None = None  # of the rows that were fetched
        self.line_bytes = 0.0  # of a line, on the average
        self.batch = FIRST_BATCH  # rows to ask for next
        self.low = 0  # ask for more when no more than these wait
        self.kept = 0  # rows in its file, to be fetched from there
        self.stays = False  # its file takes no more rows
        self.needs_bytes = 0.0  # of its rows, if it was closed because they would have had no room in a file
        self.second_tries: list[Item] = []  # items whose second try, alone in a fresh process, is due or under way
        self.losses = 0  # of hosts, each with an item that was tried again
        self.spared: set[int] = set()  # of `second_tries`, items whose first try was lost with its host: it was none
        self.failures: list[ItemFailure] = []  # not yet saved
        self.progress = KeyProgress(rules.checkpoint) if rules.key else None

    def fire(self, event: QueryEvent) -> None:
        """Move the query. Errors: BugError when the event is impossible."""
        self.state = QUERY.after(self.state, event) or self.state

    def opened(self, total: int, now: float) -> None:
        """Note that it ran, and how many rows it has, beside those that were fetched before it was run again."""
        self.fire(QueryEvent.OPENED if total else QueryEvent.OPENED_EMPTY)
        if not self.fetched:
            self.opened_at = now
        self.total = self.fetched + total

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
        self.kept = max(0, self.kept - len(rows))
        keys = repeat(None) if self.key_at is None else [row[self.key_at] for row in rows]
        if rows and self.key_at is not None:
            self.last_key = rows[-1][self.key_at]
            if self.progress is not None:
                self.progress.came(keys)
        kept = rows if keep_rows else repeat(())
        return list(map(Item._make, zip(map(self.make_line, rows), numbers, keys, kept, strict=False)))

    def size_batch(self, items: Sequence[Item], most: int, most_bytes: int) -> None:
        """Ask next for as many rows as `most_bytes` hold, and for more when half of them are gone."""
        if items:
            average = sum([len(item.line) for item in items]) / len(items)
            self.batch, self.line_bytes = max(1, min(most, int(most_bytes / average))), average
            self.low = self.batch // 2

    def keep(self, rows: int, *, stays: bool) -> None:
        """Count rows that went to its file; if it stays no more are to."""
        self.fire(QueryEvent.KEPT)
        self.kept += rows
        self.stays = stays

    def begin_anew(self) -> None:
        """Close the query, none of whose rows an agent has had yet; it is run again from its first row later."""
        self.needs_bytes = self.total * (self.line_bytes + ROW_BYTES)
        self.fire(QueryEvent.CLOSED)
        self.total = self.fetched = self.kept = 0
        self.stays = False

    @property
    def bytes_left(self) -> float:
        """Return what the rows take in a file that neither were fetched nor are in one."""
        return (self.total - self.fetched - self.kept) * (self.line_bytes + ROW_BYTES)

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

    def snapshot(self) -> dict[str, Any]:
        """Return what another program needs to go on with it."""
        return fields_of(self, _PLAIN_FIELDS) | {
            "is_over": self.state is QueryState.EXHAUSTED,
            "last_key": text_of(self.last_key),
            "progress": None if self.progress is None else self.progress.snapshot(),
            "second_tries": [item_snapshot(item) for item in self.second_tries],
            "spared": sorted(self.spared),
            "failures": [asdict(failure) for failure in self.failures],
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Continue as the query of a snapshot; unless all its rows were fetched it is run again, for the others."""
        set_fields(self, _PLAIN_FIELDS, snapshot)
        self.state = QueryState.EXHAUSTED if snapshot["is_over"] else QueryState.WAITING
        self.last_key = bytes_of(snapshot.get("last_key"))
        if (progress := snapshot.get("progress")) is not None:
            self.progress = KeyProgress.restored(progress)
        self.second_tries = [item_of(each) for each in snapshot.get("second_tries", ())]
        self.spared = set(snapshot.get("spared", ()))
        self.failures = [ItemFailure(**failure) for failure in snapshot.get("failures", ())]

    @property
    def left(self) -> tuple[str | None, list[tuple[str, str]], list[str]]:
        """Return what its query is to leave out, as `cursor_query` takes it: what is done, and what was fetched."""
        progress = self.progress
        if progress is None:
            return None, [], []
        if self.last_key is None:
            return progress.watermark, progress.beyond, progress.again
        return as_key(self.last_key), progress.beyond, progress.coming

    @property
    def has_connection(self) -> bool:
        """Return whether a connection was asked for, and was not given back before all rows were fetched."""
        return self.state is not QueryState.WAITING

    @property
    def has_run(self) -> bool:
        """Return whether its columns and the number of its rows are known."""
        return self.fetched > 0 or self.state in _RUN
