"""A row that we hold, from claim to end. State, no decisions; `job.query` is None for a one-parameter job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.model.protocol import Item, Row, as_bytes
from scheduler.model.queue_requests import PLAIN, Claim, ItemFailure, Rules
from scheduler.model.states import NEVER, QueryState
from scheduler.policy import pool
from scheduler.policy.run_queue import Lane
from scheduler.policy.sql_job import JobQuery

VARIABLE: Final = b"DROVER_VAR_"  # before the name: else a job could set PATH, or what some library obeys
VARIABLES: Final = b"DROVER_VARIABLES"  # JSON


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
    pieces = 0  # of output, stored in this attempt
    done = 0  # as counted for the row, over all its slices
    failed = 0
    shown = 0  # what its row counts of items that are still worked
    busy = 0.0  # seconds of agents, in all attempts of a query
    nonfatal = False
    interrupted = False  # its query lost its connection: that costs an allowance
    failure: str | None = None  # why a one-parameter job failed
    logged: str | None = None  # why its agent died, if drover.log has that
    code: int | None = None
    signal: str | None = None
    result: object = None
    where: tuple[str, str, int] | None = None  # host, agent, pid that had it last
    verdict: Verdict | None = None

    def __init__(self, claim: Claim, pool: "Pool", now: float) -> None:
        self.pk, self.attempt, args, self.rank, request, rules = claim
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
    def letter(self) -> str:
        """The first character of its priority."""
        return chr(self.rank[1])

    @property
    def is_urgent(self) -> bool:
        """Say whether it may use a host's urgent slots."""
        return self.rank.startswith(b"0")

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
        self.environment = {VARIABLES: as_bytes(rules.variables_json), **given}

    # ---- what is noted of it

    def set_verdict(self, verdict: Verdict) -> None:
        self.verdict = verdict

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

    def mark(self) -> None:
        """Note that its row says running."""
        self.marked = True

    def show(self, counted: int = 0) -> None:
        """Note that its row says how far it is, with so many items counted that are still worked."""
        self.marked, self.shown = self.marked or self.started, counted

    # ---- its items

    def end_second_try(self, item: Item | None) -> None:
        """Note that a second try of an item is over."""
        if self.query is not None and item is not None:
            self.query.end_second_try(item)

    @property
    def is_fed(self) -> bool:
        """Say whether nothing of its query is left to hand out."""
        query = self.query
        if query is None or self.waiting or query.second_tries:
            return False
        return query.state is QueryState.EXHAUSTED

    def add_items(self, items: Sequence[Item], host: str | None) -> "Lane[Job] | None":
        """Let items wait for a host, or for any; return their lane if it was empty."""
        self.waiting += len(items)
        lane = self.lanes.get(host)
        if lane is not None:
            return lane if lane.add(items) else None
        lane = self.lanes[host] = Lane(self, self.rank, self.rules.submitter, host, items, is_single=self.query is None)
        return lane

    def put_back(self, item: Item, host: str | None) -> "Lane[Job] | None":
        """Let an item that was not worked wait again, before the others; return its lane if that was empty."""
        self.in_flight -= 1
        if self.query is None:
            self.started, self.deadline = False, NEVER  # its time limit begins anew
        lane = self.lanes.get(host)
        if lane is None:
            return self.add_items([item], host)
        self.waiting += 1
        return lane if lane.put_back(item) else None

    def take_lane(self, host: str | None) -> list[Item]:
        """Return the items that waited for a host, which are to wait elsewhere."""
        items = list(self.lanes.pop(host).items)
        self.waiting -= len(items)
        return items

    def assigned(self) -> bool:
        """Count an item that has left its lane for an agent; say whether it is the first."""
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
            self.query.progress.finish(item.number, item.key.decode("utf-8", "surrogateescape"))

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


Pool = pool.Pool[Job]
Prefetched = tuple[Job, Item, bool]  # a line that an agent has before it is done with another; may it run here only
SecondTry = pool.SecondTry[Job]
