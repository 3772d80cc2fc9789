"""A row that we hold, from claim to end, and its query if it has one: cursor, rows on their way, progress.

State, no decisions; `job.query` is None for a one-parameter job.

Progress of a job with a key is a watermark and the ranges done out of order beyond it. Items are assigned in key order
and numbered from 0, but end in any order. What is kept is the last key below which all is done and, beyond it, the
runs of items that are done: never more of them than there are items in hand, however far the job runs ahead of a slow
item. Keys are text as Postgres prints them; their order is the query's.

A job that was retried has keys `again`, of items that failed before. They come in the same order, below the watermark
or in a range: each is taken off the list at its end, and moves neither.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from scheduler.model.protocol import Item, Row, as_bytes
from scheduler.model.queue_requests import PLAIN, Claim, ItemFailure, MarkRow, Rules
from scheduler.model.states import NEVER, QUERY, RUNNING, QueryEvent, QueryState
from scheduler.model.trace_context import PARENT, trace_environment, trace_id
from scheduler.policy import capacity
from scheduler.policy.run_queue import Lane

FIRST_BATCH: Final = 16  # rows whose size is not known yet
IN_PROGRESS: Final = "in progress"
TRIED_ALONE: Final = "tried alone"  # query `rescue` fails a running job of which the row says so
VARIABLE: Final = b"DROVER_VAR_"  # before the name: else a job could set PATH, or what some library obeys
VARIABLES: Final = b"DROVER_VARIABLES"  # JSON
# What a job and its query have that is JSON as it is, for a program that takes over (policy/handover.py).
JOB_KEPT: Final = (
    "deadline", "succeeded", "started", "marked", "is_recorded", "pieces", "done", "failed", "shown", "busy",
    "nonfatal", "interrupted", "failure", "logged", "code", "signal", "result",
)  # fmt: skip
QUERY_KEPT: Final = ("batch", "fetched", "line_bytes", "losses", "low", "opened_at", "shown", "total")


class KeyProgress:
    """How far one slice of a keyed job has got."""

    __slots__ = ("_again", "_by_end", "_by_start", "_coming", "_next", "_old_beyond", "watermark")

    def __init__(self, checkpoint: dict[str, Any] | None) -> None:
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

    def kept(self) -> dict[str, Any]:
        """Return all of it, for `go_on`: JSON."""
        runs = [[first, *run] for first, run in sorted(self._by_start.items())]
        kept = {"watermark": self.watermark, "beyond": [list(run) for run in self._old_beyond], "again": self.again}
        return {**kept, "coming": self.coming, "next": self._next, "runs": runs}

    def go_on(self, kept: Mapping[str, Any]) -> None:
        """Go on where the progress was that has kept this; it began from that checkpoint."""
        self._next, self._coming = int(kept.get("next", 0)), set(kept.get("coming", ()))
        for first, last, first_key, last_key in kept.get("runs", ()):
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
        "batch", "failures", "fetched", "is_raw", "key_at", "last_key", "line_bytes", "losses", "low", "make_line",
        "opened_at", "place_at", "progress", "second_tries", "shown", "spared", "state", "total",
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

    def go_on(self, kept: Mapping[str, Any], is_over: bool) -> None:
        """Go on as the query that has kept this; unless all its rows were fetched it is run again, for the others."""
        for name in QUERY_KEPT:
            if name in kept:
                setattr(self, name, kept[name])
        self.state = QueryState.EXHAUSTED if is_over else QueryState.WAITING

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
        """Return whether a connection is asked for, or has it."""
        return self.state is not QueryState.WAITING

    @property
    def has_run(self) -> bool:
        """Return whether its columns and the number of its rows are known."""
        return self.state in (QueryState.OPEN, QueryState.FETCHING, QueryState.EXHAUSTED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a job is to end before its work is done: state, text, and whether it costs a failure."""

    state: str
    text: str
    delay: float | None = None  # seconds until it may run again, for queued
    kills: bool = False  # the agents that work on it are not let finish


class Job:
    """A row that we hold, from claim to end. Most of it is never set on most jobs: the defaults are the class's."""

    deadline = NEVER
    query: JobQuery | None = None
    names: tuple[bytes, ...] = ()  # of its variables, or the columns of its query: placeholders of an exec agent
    row: Row = ()  # the values of its variables
    environment: Mapping[bytes, bytes] | None = None  # of an exec agent
    waiting = 0  # items in lanes
    in_flight = 0  # items that agents have
    succeeded = 0  # items of this slice
    started = False  # something was given to an agent
    marked = False  # the row says running
    is_recorded = True  # only a record in drover.in_hand says that it is in hand, its row does not
    pieces = 0  # of output, stored in this attempt
    done = 0  # as counted for the row, over all its slices
    failed = 0
    shown = 0  # what its row counts of items that are still worked
    busy = 0.0  # seconds of agents, in all attempts of a query
    nonfatal = False
    trace = ""  # for log lines: the trace that it belongs to, behind a blank
    interrupted = False  # its query lost its connection: that costs an allowance
    failure: str | None = None  # why a one-parameter job failed
    logged: str | None = None  # why its agent died, if drover.log has that
    code: int | None = None
    signal: str | None = None
    result: object = None
    where: tuple[str, str, int] | None = None  # host, agent, pid that had it last
    verdict: Verdict | None = None
    quotas: tuple[str, ...] = ()  # that count it, by key

    def __init__(self, claim: Claim, pool: "Pool", now: float) -> None:
        self.pk, self.attempt, args, self.rank, request, rules, is_marked = claim
        if is_marked:
            self.is_recorded = False
        self.queue = request.queue
        self.host = request.host or None
        self.pool = pool
        self.since = now  # of the claim
        self.lanes: dict[str | None, Lane[Job]] = {}
        self.args, self.rules = args, rules
        if rules is not PLAIN:
            self.busy = rules.busy
            if not rules.unread:
                self.read(args, rules)

    @property
    def priority(self) -> str:
        """Its priority."""
        return self.rank[1:].decode()

    def attribute(self, name: str) -> str:
        """Return the value of an attribute that a rate limit is by; empty if the job has none."""
        if name == "submitter":
            return self.rules.submitter
        if name == "host":
            return self.host or ""
        if name == "type":
            return self.pool.name
        return (self.rules.variables or {}).get(name.removeprefix("data.")) or ""

    @property
    def is_urgent(self) -> bool:
        """Return whether it may use a host's urgent slots."""
        return self.rank.startswith(b"0")

    @property
    def waits_for_connection(self) -> bool:
        """Return whether its query has no expansion connection yet."""
        return self.query is not None and self.query.state is QueryState.WAITING

    def read(self, args: bytes, rules: Rules) -> None:
        """Set what the row holds."""
        self.args, self.rules = args, rules
        self.query = JobQuery(rules) if rules.msq else None
        self.done, self.failed = rules.itemsprocessed, rules.itemsfailed
        if rules.variables is None:
            return
        self.pool.expect_row_bytes(2 * len(rules.variables_json))
        values = {as_bytes(name): None if text is None else as_bytes(text) for name, text in rules.variables.items()}
        if self.query is None:
            self.names, self.row = tuple(values), tuple(values.values())
        given = {VARIABLE + name: value for name, value in values.items() if value is not None}
        trace = {as_bytes(name): as_bytes(value) for name, value in trace_environment(rules.variables).items()}
        self.environment = {VARIABLES: as_bytes(rules.variables_json), **given, **trace}
        if trace:
            self.trace = f" trace={trace_id(rules.variables[PARENT])}"

    def go_on(self, kept: Mapping[str, Any], where: tuple[str, str, int] | None) -> None:
        """Go on as the job that has kept this."""
        for name in JOB_KEPT:
            if name in kept:
                setattr(self, name, kept[name])
        self.where = where

    # ---- what is noted of it

    def set_verdict(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def set_quotas(self, keys: Iterable[str]) -> None:
        """Note which quotas count it."""
        self.quotas = tuple(keys)

    def interrupt(self) -> None:
        """Note that a connection or a host was lost under it."""
        self.interrupted = True

    def fail(self, reason: str, counted: int | None) -> None:
        """Note why a one-parameter job fails, and how many items its agent has counted."""
        self.failure, self.done = reason, counted or 0

    def agent_died(self, seconds: float, counted: int | None) -> None:
        """Count the time of an agent, and of a one-parameter job the items that it has counted."""
        self.busy += seconds
        if self.query is None:
            self.done = counted or 0

    def exited(self, code: int | None, signal: str | None) -> None:
        """Note how the process of a one-parameter job ended."""
        if self.query is None:
            self.code, self.signal = code, signal

    def set_logged(self, why: str) -> None:
        self.logged = why

    def set_nonfatal(self) -> None:
        self.nonfatal = True

    def set_result(self, value: object) -> None:
        self.result = value

    def set_deadline(self, deadline: float) -> None:
        self.deadline = deadline

    def set_columns(self, names: tuple[bytes, ...]) -> None:
        self.names = names

    def next_piece(self) -> int:
        """Return the number of the next piece of output in this attempt."""
        self.pieces += 1
        return self.pieces

    def mark(self, state: str, now: float, where: tuple[str, str, int] | None = None) -> MarkRow:
        """Note that its row says claimed or running, and where, and return what is to be written."""
        self.is_recorded, self.marked = False, self.marked or state == RUNNING
        self.where = where or self.where
        host, _, pid = where or (None, None, None)
        return MarkRow(self.pk, self.attempt, state, int((now - self.since) * 1e6), host, pid)

    def adopt(self, where: tuple[str, str, int]) -> None:
        """Note that it runs: its row says so, and where."""
        self.is_recorded, self.marked, self.started, self.where = False, True, True, where
        self.in_flight = 1

    def show(self, counted: int = 0) -> None:
        """Note that its row says how far it is, with so many items counted that are still worked."""
        self.is_recorded, self.marked, self.shown = False, self.marked or self.started, counted

    # ---- its items

    def end_second_try(self, item: Item | None) -> None:
        """Note that a second try of an item is over."""
        if self.query is not None and item is not None:
            self.query.end_second_try(item)

    @property
    def is_fed(self) -> bool:
        """Return whether nothing of its query is left to hand out."""
        query = self.query
        if query is None or self.waiting or query.second_tries:
            return False
        return query.state is QueryState.EXHAUSTED

    def add_items(self, items: Sequence[Item], host: str | None) -> "Lane[Job] | None":
        """Enqueue items for a host, or for any; return their lane if it was empty."""
        self.waiting += len(items)
        lane = self.lanes.get(host)
        if lane is not None:
            return lane if lane.add(items) else None
        lane = self.lanes[host] = Lane(self, self.rank, self.rules.submitter, host, items, is_single=self.query is None)
        return lane

    def put_back(self, item: Item, host: str | None) -> "Lane[Job] | None":
        """Put an item that was not worked back at the front; return its lane if that was empty."""
        self.in_flight -= 1
        if self.query is None:
            self.started, self.deadline, self.where = False, NEVER, None  # its time limit begins anew
        lane = self.lanes.get(host)
        if lane is None:
            return self.add_items([item], host)
        self.waiting += 1
        return lane if lane.put_back(item) else None

    def waiting_for(self, host: str) -> int:
        """Return how many items wait that agents of this host may take."""
        if len(self.lanes) == 1 and None in self.lanes:
            return self.waiting
        return sum([len(lane.items) for at, lane in self.lanes.items() if at in (None, host)])

    def take_lane(self, host: str | None) -> list[Item]:
        """Return the items that waited for a host, which are to wait elsewhere."""
        items = list(self.lanes.pop(host).items)
        self.waiting -= len(items)
        return items

    def assigned(self) -> bool:
        """Count an item that has left its lane for an agent; return whether it is the first."""
        self.waiting -= 1
        self.in_flight += 1
        is_first, self.started = not self.started, True
        return is_first

    def assigned_again(self) -> None:
        """Count an item that an agent gets for its second try."""
        self.in_flight += 1

    def returned(self) -> None:
        """Count an item that an agent had and that is not to be worked, or to be tried again."""
        self.in_flight -= 1

    def item_ended(self, where: tuple[str, str, int], seconds: float) -> None:
        """Count an item that is not done and that its agent has no more, and the agent's time."""
        self.in_flight -= 1
        self.where = where
        self.busy += seconds

    def item_succeeded(
        self, item: Item | None, counted: int | None, where: tuple[str, str, int], seconds: float
    ) -> None:
        """Count an item that is done, and the agent's time."""
        self.in_flight -= 1
        self.where = where
        self.busy += seconds
        self.done += 1 if counted is None else counted
        self.succeeded += 1
        if self.query is None:
            self.lanes.clear()  # see forget_lanes
        elif self.query.progress is not None and item is not None and item.key is not None:
            self.query.progress.finish(item.number, as_key(item.key))

    def item_failed(self, query: JobQuery, item: Item, failure: ItemFailure, counted: int | None = None) -> None:
        """Record an item of its query that has failed for good."""
        self.failed += 1
        self.done += counted or 0
        query.item_failed(item, failure)

    def drop_items(self) -> None:
        """Let none of its items wait any longer."""
        for host, lane in self.lanes.items():
            self.pool.queues.of(self, host).drop(lane)
            lane.clear()
        self.waiting = 0
        if self.query is not None:
            self.query.stop()
            self.pool.drop_second_tries(self)

    def forget_lanes(self) -> None:
        """Break a ring that only the garbage collector would break: lanes name their job."""
        self.lanes.clear()


Pool = capacity.Pool[Job]
Prefetched = tuple[Job, Item, bool]  # a line that an agent has before it is done with another; may it run here only
SecondTry = capacity.SecondTry[Job]
