"""The queries of jobs: each runs once, read-only, into a held cursor of its own, and its rows are fetched as asked.

Touches the expansion connections, which log in under a role of their own; one job each at a time, and nothing of one
job's session is left for the next. Knows no agents; how many rows are wanted, and when, is decided in
policy/dispatch.py.

A held cursor keeps no snapshot: its rows are materialised at commit, which statement_timeout does not bound, so the
deadline is ours. The declaration goes through the extended protocol, which takes one statement: a bare string may
hold `commit; update`.

How large rows are is known when they have come. So the first fetch is a small one, and one that brings far more than
it should ends the job while it is still on its way: nobody's rows fill our memory.

Behind a pooler only a transaction is sure to stay with one server process: there the cursor is not held, and lives in
a transaction that lasts until the job's rows are given out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final

from scheduler.drivers.connection_pool import ConnectionHealth
from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres import Connection
from scheduler.drivers.postgres_connect import readable
from scheduler.drivers.sql import THEIRS, Answer, Failure, Rows, setting
from scheduler.model.config import Config, Scheduler
from scheduler.model.events import ConnectionsChanged, Event, Fetched, NotExpanded, Opened, no_connection
from scheduler.model.expand import doubled_key
from scheduler.model.jobs import Cells

FETCH_LIMIT_S: Final = 60.0
FIRST_ROWS: Final = 50  # of a query, whose size nobody knows
TOO_MUCH: Final = 64  # times what one fetch should bring

SETTINGS: Final = (
    setting(THEIRS),
    "set default_transaction_read_only = on",
    "set idle_in_transaction_session_timeout = '60s'",
    "set client_connection_check_interval = '5s'",  # a query does not outlive a daemon that was killed
)
DECLARE: Final = "declare drover_rows scroll cursor with hold for "
PINNED: Final = "declare drover_rows scroll cursor for "
DECLARES: Final = (DECLARE, PINNED)
COUNTING: Final = ("move all in drover_rows", "move absolute 0 in drover_rows", "fetch 0 from drover_rows")
OPENING: Final = ("begin read only", DECLARE, "commit", *COUNTING)
POOLED_OPENING: Final = ("begin read only", "set local idle_in_transaction_session_timeout = 0", PINNED, *COUNTING)
MOVE_ALL, FETCH_NONE = 3, 5  # the places in OPENING that tell the total and the columns
WRAPPING: Final = "select * from ("  # what model.expand puts before the job's own text

# SQLSTATEs, or their first two characters, that are not the query's fault.
WORLD: Final = frozenset(("08", "40", "58", "53100", "53200", "53300", "55P03", "57P01", "57P02", "57P03", "57P05"))
UNBOUND: Final = "08P01"  # of class 08, and yet the query's fault: it has parameters, `$1`


@dataclass(slots=True)
class _Run:
    """A job with its connection."""

    job: int
    query: str
    link: Connection
    ends_at: float
    is_open: bool = False
    is_given: bool = False  # all of its rows: it wants its connection no more
    total: int = 0
    given: int = 0
    bytes: int = 0  # of the rows that were fetched


@dataclass(slots=True)
class _Fetch:
    """The rows of one fetch, up to what a query, and a fetch, may bring."""

    most: int
    problem: str
    rows: list[Cells] = field(default_factory=list)
    size: int = 0

    def take(self, rows: Rows) -> bool:
        """Add rows; false when they are too many bytes, which are forgotten."""
        cells = list(rows.rows)
        self.size += sum(map(len, filter(None, chain.from_iterable(cells))))
        if self.is_too_much:
            self.rows.clear()
            return False
        self.rows += cells
        return True

    @property
    def is_too_much(self) -> bool:
        """Whether it is more than allowed."""
        return self.size > self.most


class JobQueries:
    """Up to `count` connections, opened when first needed and kept."""

    def __init__(
        self,
        loop: Loop,
        conninfo: str,
        count: int,
        timers: Scheduler,
        tell: Callable[[Event], None],
        unconnected: Callable[[ConnectionsChanged], None],
    ) -> None:
        self.timers = timers
        self._loop, self._conninfo, self._count, self._tell = loop, readable(conninfo), count, tell
        self._reach = ConnectionHealth("queries", conninfo, unconnected)
        self._links = self._reach.links
        self._opened = 0  # connections, ever
        self._runs: dict[int, _Run] = {}

    @property
    def free(self) -> int:
        """How many more jobs can be expanded now."""
        return self._count - len(self._runs)

    def expand(self, job: int, query: str) -> None:
        """Run a query; told Opened, or NotExpanded, at once if its connection could not be made of late."""
        link = self._free_link()
        run = self._runs[job] = _Run(job, query, link, self._loop.now + self.timers.expansion_limit)
        if link.refusal is not None:
            self._not_connected(run, link.refusal)
        else:
            self._open(run, [])

    def fetch(self, job: int, count: int) -> None:
        """Fetch up to `count` more rows; told Fetched, with fewer at first, or NotExpanded."""
        if run := self._runs.get(job):
            count = count if run.given else min(count, FIRST_ROWS)
            fetch = self._bounded(run, count)
            then = partial(self._fetched, run, count, fetch)
            self._ask(run, f"fetch forward {count} from drover_rows", then, FETCH_LIMIT_S, fetch)

    def take(self, config: Config) -> None:
        """Use other limits from now on."""
        self.timers, self._count = config.scheduler, config.scheduler.expansions
        for link in [link for link in self._links if link.refusal is not None][
            : max(0, len(self._links) - self._count)
        ]:
            link.close()  # no run has it
            self._links.remove(link)
        self._reach.succeeded()

    def close(self, job: int) -> None:
        """Forget a job's rows, whatever it is doing; nothing more is told of it."""
        if run := self._runs.pop(job, None):
            run.link.cancel()
            run.link.reset()

    def shut(self) -> None:
        """Close every connection."""
        for job in list(self._runs):
            self.close(job)
        for link in self._links:
            link.close()

    # ---- connections

    def _free_link(self) -> Connection:
        """Give a connection that can take a job, a new one, or one coming or stopping.

        Where one was refused no new one is tried: one that is stopping then, or else the one that was refused.
        """
        taken = {run.link.name for run in self._runs.values()}
        rest = [link for link in self._links if link.name not in taken]
        ready = next((link for link in rest if link.is_ready), None)
        refused = next((link for link in rest if link.refusal is not None), None)
        found = ready or (refused and next((link for link in rest if link.is_up), refused))
        if found or len(self._links) >= self._count:
            return found or rest[0]
        self._opened += 1
        name = f"expansion {self._opened}"
        link = Connection(
            self._loop,
            name,
            self._conninfo,
            settings=SETTINGS,
            on_up=self._reach.succeeded,
            on_down=lambda reason: self._down(link, reason),
            reconnect_max=self.timers.reconnect_max,
        )
        self._links.append(link)
        link.open()
        return link

    def _down(self, link: Connection, reason: str) -> None:
        """A cursor is gone with its connection; a job whose connection cannot be made does not wait for it."""
        if link.refusal is not None:
            self._reach.failed(link)
        for run in [run for run in self._runs.values() if run.link is link]:
            if run.is_given:
                self.close(run.job)
            elif run.is_open:
                self._give_up(run, reason, again=True, interrupted=True)
            elif link.refusal is not None:
                self._not_connected(run, link.refusal)

    def _not_connected(self, run: _Run, reason: str) -> None:
        """The query has not begun: its job goes back until the next attempt to connect."""
        retry_in = run.link.retry_in
        self.close(run.job)
        self._tell(NotExpanded(run.job, no_connection(self._reach.login, reason), again=True, retry_in=retry_in))

    # ---- the steps of a query

    def _open(self, run: _Run, answers: list[Rows]) -> None:
        """Take the next step, or tell how it went."""
        opening = POOLED_OPENING if run.link.is_pooled else OPENING  # both begin alike: it is up after that
        if len(answers) < len(opening):
            sql = opening[len(answers)]
            sql = sql + run.query if sql in DECLARES else sql
            then = partial(self._stepped, run, answers)
            self._ask(run, sql, then, run.ends_at - self._loop.now)
            return
        run.is_open, run.total = True, answers[MOVE_ALL].tag
        if 0 < self.timers.msq_rows < run.total:
            reason = f"the query gives {run.total} rows, and msq_rows allows {self.timers.msq_rows}"
            self._give_up(run, reason, again=False)
            return
        self._tell(Opened(run.job, answers[FETCH_NONE].names, run.total))

    def _stepped(self, run: _Run, answers: list[Rows], answer: Rows) -> None:
        self._open(run, [*answers, answer])

    def _bounded(self, run: _Run, count: int) -> _Fetch:
        """A fetch that ends when the query has brought more than msq_bytes, or it alone far too much."""
        most, left = TOO_MUCH * self.timers.fetch_bytes, self.timers.msq_bytes - run.bytes
        if self.timers.msq_bytes and left < most:
            return _Fetch(left, f"the rows of the query have more bytes than msq_bytes allows, {self.timers.msq_bytes}")
        return _Fetch(most, f"{count} rows of the query have more than {most} bytes: select less, or lower fetch_rows")

    def _fetched(self, run: _Run, count: int, fetch: _Fetch, _answer: Rows) -> None:
        run.given += len(fetch.rows)
        run.bytes += fetch.size
        run.is_given = len(fetch.rows) < count or run.given >= run.total
        self._tell(Fetched(run.job, fetch.rows, not run.is_given))

    def _ask(
        self, run: _Run, sql: str, then: Callable[[Rows], None], limit: float, fetch: _Fetch | None = None
    ) -> None:
        def done(answer: Answer) -> None:
            if self._runs.get(run.job) is not run:
                return None  # closed meanwhile
            if fetch and fetch.is_too_much:
                return self._give_up(run, fetch.problem, again=False)
            if isinstance(answer, Failure):
                return self._failed(run, answer)
            return then(answer)

        run.link.run(sql, done, deadline=limit, sink=fetch.take if fetch else None)

    # ---- failures

    def _failed(self, run: _Run, failure: Failure) -> None:
        if self._loop.now >= run.ends_at:  # even if the connection had to be dropped: it would happen again
            limit = self.timers.expansion_limit
            return self._give_up(run, f"the query ran longer than {limit:g} s", again=False)
        state = failure.sqlstate or ""
        is_world = not WORLD.isdisjoint((state[:2], state)) and state != UNBOUND
        sentence = _sentence(failure, len(PINNED if run.link.is_pooled else DECLARE))
        return self._give_up(run, sentence, again=failure.lost or is_world, interrupted=failure.lost)

    def _give_up(self, run: _Run, reason: str, *, again: bool, interrupted: bool = False) -> None:
        self.close(run.job)
        self._tell(NotExpanded(run.job, reason, again, interrupted))


def _sentence(failure: Failure, before: int) -> str:
    """Say what is wrong, and where in the text of the job, which so many characters of ours come before."""
    if failure.sqlstate is None:
        return failure.message
    if (doubled := doubled_key(failure.message)) is not None:
        return doubled
    position = (failure.position or 0) - before - len(WRAPPING)
    place = f", at character {position}" if position > 0 else ""
    return f"{failure.message} (SQLSTATE {failure.sqlstate}{place})"
