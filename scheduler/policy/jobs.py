"""A job in hand, and the query of one that is a multi-SQL-query: plain state, no decisions.

`job.expansion` is None for a one-parameter job. "Still fetching" and "no more rows" are two fields: with one, a job
ends before its last rows have come.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from scheduler.model.expand import Item, Row
from scheduler.model.jobs import Claim, ItemFailure, Rules
from scheduler.policy.progress import Progress

if TYPE_CHECKING:
    from scheduler.policy.pools import Pool
    from scheduler.policy.turns import Lane

NEVER: Final = float("inf")
FIRST_BATCH: Final = 16  # rows whose size is not known yet


class Verdict:
    """How a job is to end before its work is done: state, text, and whether it costs a failure."""

    __slots__ = ("delay", "state", "text")

    def __init__(self, state: str, text: str, delay: float | None = None) -> None:
        self.state = state
        self.text = text
        self.delay = delay  # seconds until it may run again, for queued


class Expansion:
    """The query of a job in hand: its cursor, its rows on their way, its items' failures."""

    __slots__ = (
        "again", "batch", "failures", "fetched", "fetching", "key_at", "last_key", "low", "make_line", "more",
        "names", "opened", "opening", "place_at", "progress", "succeeded", "total", "waiting",
    )  # fmt: skip

    def __init__(self, rules: Rules) -> None:
        self.opening = False  # asked for
        self.opened = False  # its columns are known
        self.fetching = False
        self.more = True
        self.names: tuple[bytes, ...] = ()
        self.make_line: Callable[[Row], bytes] | None = None
        self.key_at: int | None = None  # column numbers
        self.place_at: int | None = None
        self.last_key: bytes | None = None
        self.total = 0
        self.fetched = 0
        self.waiting = 0  # items in lanes
        self.batch = FIRST_BATCH  # rows to ask for next
        self.low = 0  # ask for more when no more than these wait
        self.again: list[Item] = []  # items whose second try, alone in a fresh process, is due or under way
        self.succeeded = 0  # items of this slice
        self.failures: list[ItemFailure] = []  # not yet saved
        self.progress = Progress(rules.checkpoint) if rules.key else None

    @property
    def is_fed(self) -> bool:
        """Say whether nothing is left to hand out."""
        return self.opened and not (self.more or self.fetching or self.waiting or self.again)


class Job:
    """A row that we hold, from claim to end."""

    __slots__ = (
        "args", "attempt", "busy", "code", "deadline", "done", "expansion", "failed", "failure", "host",
        "in_flight", "interrupted", "lanes", "marked", "nonfatal", "pk", "pool", "queue", "rank", "result",
        "rules", "signal", "since", "started", "verdict", "where",
    )  # fmt: skip

    def __init__(self, claim: Claim, pool: "Pool", now: float) -> None:
        self.pk = claim.pk
        self.attempt = claim.attempt
        self.args = claim.args
        self.rank = claim.rank
        self.queue = claim.want.queue
        self.host = claim.want.host or None
        self.rules = claim.rules
        self.pool = pool
        self.since = now  # of the claim
        self.deadline = NEVER
        self.expansion = Expansion(claim.rules) if claim.rules.msq else None
        self.lanes: dict[str | None, Lane] = {}
        self.in_flight = 0
        self.started = False  # something was given to an agent
        self.marked = False  # the row says running
        self.done = claim.rules.itemsprocessed  # as counted for the row, over all its slices
        self.failed = claim.rules.itemsfailed
        self.busy = 0.0  # seconds of agents
        self.nonfatal = False
        self.interrupted = False  # its query lost its connection: that costs an allowance
        self.failure: str | None = None  # why a one-parameter job failed
        self.code: int | None = None
        self.signal: str | None = None
        self.result: object = None
        self.where: tuple[str, str, int] | None = None  # host, agent, pid that had it last
        self.verdict: Verdict | None = None
