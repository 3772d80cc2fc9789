"""A row that we hold, from claim to end. State, no decisions; its query, if it has one, is in query_progress.py."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from scheduler.model.protocol import Item, Row, as_bytes
from scheduler.model.queue_requests import PLAIN, Claim, ClaimRequest, ItemFailure, MarkRow, Rules
from scheduler.model.states import NEVER, RUNNING, QueryState
from scheduler.model.trace_context import PARENT, trace_environment, trace_id
from scheduler.policy import agent_pool as pools
from scheduler.policy.handover_values import BYTES, Snapshot, set_fields, text_of
from scheduler.policy.query_progress import JobQuery, as_key
from scheduler.policy.run_queue import Lane

TRIED_ALONE: Final = "tried alone"  # query `rescue` fails a running job of which the row says so
VARIABLE: Final = b"DROVER_VAR_"  # before the name: else a job could set PATH, or what some library obeys
VARIABLES: Final = b"DROVER_VARIABLES"  # JSON
PLAIN_FIELDS: Final = (  # of a snapshot, as they are
    "deadline", "succeeded", "started", "marked", "is_recorded", "pieces", "done", "failed", "shown", "busy",
    "nonfatal", "interrupted", "failure", "fails_for_good", "has_ended_agent", "last_words", "logged", "code", "signal",
    "result",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a job is to end before its work is done; completion.py has the kinds, and the state that each leads to."""

    kind: str
    text: str
    delay: float | None = None  # seconds until it may run again, if it goes back to the queue
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
    fails_for_good = False  # its agent said FAIL!
    has_ended_agent = False  # a line agent died of it, or was killed for it
    last_words = ""  # at the end of that: the last line of its agent on stderr
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
        """Return whether its query is to have an expansion connection and has none."""
        return self.query is not None and self.query.state is QueryState.WAITING and self.verdict is None

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

    def snapshot(self) -> dict[str, Any]:
        """Return what another program needs to go on with it, but for its lanes; of a new job nothing but its row."""
        values = {name: value for name in PLAIN_FIELDS if (value := getattr(self, name)) != getattr(Job, name, None)}
        rules = {each.name: getattr(self.rules, each.name) for each in fields(Rules)}
        verdict = self.verdict
        return values | {
            "is_recorded": self.is_recorded, "pk": self.pk, "attempt": self.attempt, "args": text_of(self.args),
            "rank": text_of(self.rank), "type": self.pool.name, "queue": self.queue, "host": self.host,
            "since": self.since, "where": self.where and list(self.where),
            "rules": {name: value for name, value in rules.items() if value != getattr(PLAIN, name)},
            "verdict": None if verdict is None else [verdict.kind, verdict.text, verdict.delay, verdict.kills],
            "query": self.query and self.query.snapshot() | {"names": [text_of(name) for name in self.names]},
        }  # fmt: skip

    @classmethod
    def restored(cls, snapshot: Snapshot, pool: "Pool") -> "Job":
        """Return the job of a snapshot."""
        known = {each.name for each in fields(Rules)}
        rules = Rules(**{name: value for name, value in snapshot.get("rules", {}).items() if name in known})
        request = ClaimRequest(pool.name, snapshot["queue"], snapshot.get("host") or "", False, 1)
        args, rank = snapshot["args"].encode(BYTES), snapshot["rank"].encode(BYTES)
        rules = PLAIN if rules == PLAIN else rules
        job = cls(Claim(snapshot["pk"], snapshot["attempt"], args, rank, request, rules), pool, snapshot["since"])
        job._restore(snapshot)
        return job

    def _restore(self, snapshot: Snapshot) -> None:
        set_fields(self, PLAIN_FIELDS, snapshot)
        if (where := snapshot.get("where")) is not None:
            self.where = where[0], where[1], where[2]
        if (verdict := snapshot.get("verdict")) is not None:
            self.verdict = Verdict(*verdict)
        if self.query is not None:
            self.query.restore(snapshot["query"])
            self.names = tuple(name.encode(BYTES) for name in snapshot["query"].get("names", ()))

    # ---- what is noted of it

    def set_verdict(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def set_quotas(self, keys: Iterable[str]) -> None:
        self.quotas = tuple(keys)

    def interrupt(self) -> None:
        """Note that a connection or a host was lost under it."""
        self.interrupted = True

    def fail(self, reason: str, counted: int | None, *, for_good: bool = False) -> None:
        """Note why a one-parameter job fails, and how many items its agent has counted."""
        self.failure, self.done, self.fails_for_good = reason, counted or 0, for_good

    def agent_died(self, seconds: float, counted: int | None) -> None:
        """Count the time of an agent, and of a one-parameter job the items that it has counted."""
        self.busy += seconds
        self.has_ended_agent = not self.pool.is_exec
        if self.query is None:
            self.done = counted or 0

    def exited(self, code: int | None, signal: str | None) -> None:
        """Note how the process of a one-parameter job ended."""
        if self.query is None:
            self.code, self.signal = code, signal

    def set_last_words(self, words: str) -> None:
        self.last_words = words

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
        self._clear_lanes()
        if self.query is not None:
            self.query.stop()
            self.pool.drop_second_tries(self)

    def begin_anew(self, query: JobQuery) -> None:
        """Drop the rows of its query, of which none was handed out: it is run again."""
        self._clear_lanes()
        query.begin_anew()

    def _clear_lanes(self) -> None:
        for host, lane in self.lanes.items():
            self.pool.queues.of(self, host).drop(lane)
            lane.clear()
        self.waiting = 0

    def forget_lanes(self) -> None:
        """Break a ring that only the garbage collector would break: lanes name their job."""
        self.lanes.clear()


Pool = pools.Pool[Job]
Prefetched = tuple[Job, Item, bool]  # a line that an agent has before it is done with another; may it run here only
SecondTry = pools.SecondTry[Job]
