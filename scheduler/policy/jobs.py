"""A job in hand, and the query of one that is a multi-SQL-query: plain state, no decisions.

`job.expansion` is None for a one-parameter job. "Still fetching" and "no more rows" are two fields: with one, a job
ends before its last rows have come.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from scheduler.model.expand import Item, Row, as_bytes
from scheduler.model.jobs import PLAIN, Claim, ItemFailure, Rules
from scheduler.model.states import NEVER
from scheduler.policy.progress import Progress

if TYPE_CHECKING:
    from scheduler.policy.pools import Pool
    from scheduler.policy.turns import Lane

FIRST_BATCH: Final = 16  # rows whose size is not known yet
VARIABLE: Final = b"DROVER_VAR_"  # before the name: else a job could set PATH, or what some library obeys
VARIABLES: Final = b"DROVER_VARIABLES"  # JSON
IN_PROGRESS: Final = "in progress"
TRIED_ALONE: Final = "tried alone"  # query `rescue` fails a running job of which the row says so


class Verdict:
    """How a job is to end before its work is done: state, text, and whether it costs a failure."""

    __slots__ = ("delay", "kills", "state", "text")

    def __init__(self, state: str, text: str, delay: float | None = None) -> None:
        self.state = state
        self.text = text
        self.delay = delay  # seconds until it may run again, for queued
        self.kills = False  # the agents that work on it are not let finish


class Expansion:
    """The query of a job in hand: its cursor, its rows on their way, its items' failures."""

    __slots__ = (
        "again", "batch", "failures", "fetched", "fetching", "is_raw", "key_at", "losses", "low", "make_line",
        "more", "opened", "opened_at", "opening", "place_at", "progress", "said", "spared", "succeeded", "total",
        "waiting",
    )  # fmt: skip

    def __init__(self, rules: Rules) -> None:
        self.opening = False  # asked for
        self.opened = False  # its columns are known
        self.opened_at = 0.0
        self.said = IN_PROGRESS  # what the row tells of it
        self.fetching = False
        self.more = True
        self.make_line: Callable[[Row], bytes] | None = None
        self.is_raw = False  # its lines may hold newlines, which no line agent can read
        self.key_at: int | None = None  # column numbers
        self.place_at: int | None = None
        self.total = 0
        self.fetched = 0
        self.waiting = 0  # items in lanes
        self.batch = FIRST_BATCH  # rows to ask for next
        self.low = 0  # ask for more when no more than these wait
        self.again: list[Item] = []  # items whose second try, alone in a fresh process, is due or under way
        self.losses = 0  # of hosts, each with an item that was tried again
        self.spared: set[int] = set()  # of `again`, the items whose first try was lost with its host: it was none
        self.succeeded = 0  # items of this slice
        self.failures: list[ItemFailure] = []  # not yet saved
        self.progress = Progress(rules.checkpoint) if rules.key else None

    @property
    def is_fed(self) -> bool:
        """Say whether nothing is left to hand out."""
        return self.opened and not (self.more or self.fetching or self.waiting or self.again)


class Job:
    """A row that we hold, from claim to end. Most of it is never set on most jobs: the defaults are the class's."""

    deadline = NEVER
    expansion: Expansion | None = None
    names: tuple[bytes, ...] = ()  # of its variables, or the columns of its query: placeholders of an exec agent
    row: Row = ()  # the values of its variables
    environment: Mapping[bytes, bytes] | None = None  # of an exec agent
    in_flight = 0
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
        self.pk, self.attempt, args, self.rank, want, rules = claim
        self.queue = want.queue
        self.host = want.host or None
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

    def read(self, args: bytes, rules: Rules) -> None:
        """Take what the row holds."""
        self.args, self.rules = args, rules
        self.expansion = Expansion(rules) if rules.msq else None
        self.done, self.failed = rules.itemsprocessed, rules.itemsfailed
        if rules.variables is not None:
            self._take(rules.variables)

    def _take(self, variables: dict[str, str | None]) -> None:
        size = 2 * len(self.rules.variables_json)
        self.pool.row_bytes = max(self.pool.row_bytes, size)  # so many of its rows are not claimed at once
        values = {as_bytes(name): None if text is None else as_bytes(text) for name, text in variables.items()}
        if self.expansion is None:
            self.names, self.row = tuple(values), tuple(values.values())
        given = {VARIABLE + name: value for name, value in values.items() if value is not None}
        self.environment = {VARIABLES: as_bytes(self.rules.variables_json), **given}
