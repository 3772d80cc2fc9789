"""The queries of jobs: each runs once, read-only, into a held cursor of its own, and its rows are fetched as asked.

Touches the expansion connections, which log in under a role of their own; one job each at a time, and nothing of one
job's session is left for the next. Knows no agents; how many rows are wanted, and when, is decided in
policy/dispatch.py.

A held cursor keeps no snapshot: its rows are materialised at commit, which statement_timeout does not bound, so the
deadline is ours. The declaration goes through the extended protocol, which takes one statement: a bare string may
hold `commit; update`.

How large rows are is known when they have come. So the first fetch is a small one, and one that brings far more than
it should ends the job while it is still on its way: the rows of no job fill our memory.

Behind a pooler only a transaction is sure to stay with one server process: there the cursor is not held, and lives in
a transaction that lasts until all rows of the job are fetched.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from scheduler.drivers.connection_pool import ConnectionPool
from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres import Connection
from scheduler.drivers.postgres_connect import readable
from scheduler.drivers.sql import THEIRS, Failure, Rows, setting
from scheduler.drivers.statements import answer_to
from scheduler.drivers.steps import Steps, Task
from scheduler.model.config import Config, Scheduler
from scheduler.model.events import ConnectionsChanged, Event, Fetched, NotExpanded, Opened, no_connection
from scheduler.model.expand import doubled_key
from scheduler.model.jobs import Cells

FETCH_LIMIT_S: Final = 60.0
FIRST_ROWS: Final = 50  # of a query, whose size is not known
TOO_MUCH: Final = 64  # times what one fetch should bring

SETTINGS: Final = (
    setting(THEIRS),
    "set default_transaction_read_only = on",
    "set idle_in_transaction_session_timeout = '60s'",
    "set client_connection_check_interval = '5s'",  # a query does not outlive a daemon that was killed
)
DECLARE: Final = "declare drover_rows scroll cursor with hold for "
PINNED: Final = "declare drover_rows scroll cursor for "
WRAPPING: Final = "select * from ("  # what model.expand puts before the job's own text

# SQLSTATEs, or their first two characters, that are not the query's fault.
WORLD: Final = frozenset(("08", "40", "58", "53100", "53200", "53300", "55P03", "57P01", "57P02", "57P03", "57P05"))
UNBOUND: Final = "08P01"  # of class 08, and yet the query's fault: it has parameters, `$1`


@dataclass(slots=True)
class _Run:
    """A job with its connection."""

    job: int
    query: str
    connection: Connection
    ends_at: float
    task: Task[None] | None = None
    is_open: bool = False
    is_fetched: bool = False  # all of its rows: it needs its connection no more
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

    def add(self, rows: Rows) -> bool:
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


class _QueryError(Exception):
    """A query failed; the fields are those of NotExpanded."""

    def __init__(self, reason: str, *, again: bool = False, interrupted: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.again, self.interrupted = reason, again, interrupted


class JobQueries:
    """Up to `expansions` queries at once, each on a connection of its own."""

    def __init__(
        self,
        loop: Loop,
        conninfo: str,
        settings: Scheduler,
        report: Callable[[Event], None],
        connections_changed: Callable[[ConnectionsChanged], None],
    ) -> None:
        self._settings = settings
        self._loop, self._report = loop, report
        self._pool = ConnectionPool(
            loop, "expansion", "queries", readable(conninfo), settings.expansions, SETTINGS, connections_changed,
            reconnect_max=settings.reconnect_max, on_down=self._down,
        )  # fmt: skip
        self._runs: dict[int, _Run] = {}

    def expand(self, job: int, query: str) -> None:
        """Run a query; reports Opened, or NotExpanded, at once if its connection could not be made of late."""
        connection = self._free_connection()
        run = self._runs[job] = _Run(job, query, connection, self._loop.now + self._settings.expansion_limit)
        if connection.refusal is not None:
            self._not_connected(run, connection.refusal)
        else:
            self._start(run, self._open(run))

    def fetch(self, job: int, count: int) -> None:
        """Fetch up to `count` more rows; reports Fetched, with fewer at first, or NotExpanded."""
        if run := self._runs.get(job):
            self._start(run, self._fetch(run, count if run.given else min(count, FIRST_ROWS)))

    def close_query(self, job: int) -> None:
        """Forget a job's rows, whatever it is doing; nothing more is reported of it."""
        if run := self._runs.pop(job, None):
            if run.task is not None:
                run.task.stop()
            run.connection.cancel()
            run.connection.reset()

    def reload(self, config: Config) -> None:
        """Use other limits from now on."""
        self._settings, self._pool.count = config.scheduler, config.scheduler.expansions
        self._pool.reconnect_max = config.scheduler.reconnect_max
        refused = [connection for connection in self._pool.connections if connection.refusal is not None]
        for connection in refused[: max(0, len(self._pool.connections) - self._pool.count)]:
            self._pool.drop(connection)  # no run has it

    def close(self) -> None:
        """Close every connection."""
        for job in list(self._runs):
            self.close_query(job)
        self._pool.close()

    # ---- connections

    def _free_connection(self) -> Connection:
        """Return a connection that can take a job, a new one, or one coming or stopping.

        Where one was refused no new one is tried: one that is stopping then, or else the one that was refused.
        """
        taken = [run.connection for run in self._runs.values()]
        rest = [connection for connection in self._pool.connections if connection not in taken]
        ready = next((connection for connection in rest if connection.is_ready), None)
        refused = next((connection for connection in rest if connection.refusal is not None), None)
        found = ready or (refused and next((connection for connection in rest if connection.is_up), refused))
        if found or len(self._pool.connections) >= self._pool.count:
            return found or rest[0]
        return self._pool.add()

    def _down(self, connection: Connection, reason: str) -> None:
        """Report runs whose cursor is gone with its connection, and those whose connection cannot be made."""
        for run in [run for run in self._runs.values() if run.connection is connection]:
            if run.is_fetched:
                self.close_query(run.job)
            elif run.is_open:
                self._give_up(run, _QueryError(reason, again=True, interrupted=True))
            elif connection.refusal is not None:
                self._not_connected(run, connection.refusal)

    def _not_connected(self, run: _Run, reason: str) -> None:
        """Give the job back until the next attempt to connect; its query has not begun."""
        retry_in = run.connection.retry_in
        self.close_query(run.job)
        self._report(NotExpanded(run.job, no_connection(self._pool.login, reason), again=True, retry_in=retry_in))

    # ---- the steps of a query

    def _start(self, run: _Run, steps: Steps[None]) -> None:
        run.task = Task(self._loop, self._or_give_up(run, steps))
        run.task.start()

    def _or_give_up(self, run: _Run, steps: Steps[None]) -> Steps[None]:
        try:
            yield from steps
        except _QueryError as error:
            self._give_up(run, error)

    def _open(self, run: _Run) -> Steps[None]:
        yield from self._run(run, "begin read only")  # the connection is up after that, and knows of poolers
        if run.connection.is_pooled:
            yield from self._run(run, "set local idle_in_transaction_session_timeout = 0")
            yield from self._run(run, PINNED + run.query)
        else:
            yield from self._run(run, DECLARE + run.query)
            yield from self._run(run, "commit")
        run.total = (yield from self._run(run, "move all in drover_rows")).tag
        yield from self._run(run, "move absolute 0 in drover_rows")
        names = (yield from self._run(run, "fetch 0 from drover_rows")).names
        run.is_open = True
        if 0 < self._settings.msq_rows < run.total:
            raise _QueryError(f"the query gives {run.total} rows, and msq_rows allows {self._settings.msq_rows}")
        self._report(Opened(run.job, names, run.total))

    def _fetch(self, run: _Run, count: int) -> Steps[None]:
        fetch = self._bounded(run, count)
        yield from self._run(run, f"fetch forward {count} from drover_rows", FETCH_LIMIT_S, fetch)
        run.given += len(fetch.rows)
        run.bytes += fetch.size
        run.is_fetched = len(fetch.rows) < count or run.given >= run.total
        self._report(Fetched(run.job, fetch.rows, not run.is_fetched))

    def _bounded(self, run: _Run, count: int) -> _Fetch:
        """Return a fetch that ends when the query has brought more than msq_bytes, or it alone far too much."""
        most, left = TOO_MUCH * self._settings.fetch_bytes, self._settings.msq_bytes - run.bytes
        if self._settings.msq_bytes and left < most:
            allowed = self._settings.msq_bytes
            return _Fetch(left, f"the rows of the query have more bytes than msq_bytes allows, {allowed}")
        return _Fetch(most, f"{count} rows of the query have more than {most} bytes: select less, or lower fetch_rows")

    def _run(self, run: _Run, sql: str, limit: float | None = None, fetch: _Fetch | None = None) -> Steps[Rows]:
        """Run one statement of a query and return its rows. Errors: _QueryError."""
        limit = run.ends_at - self._loop.now if limit is None else limit
        sink = fetch.add if fetch else None
        answer = yield from answer_to(run.connection, sql, deadline=limit, sink=sink)
        if fetch and fetch.is_too_much:
            raise _QueryError(fetch.problem)
        if isinstance(answer, Failure):
            raise self._error(run, answer)
        return answer

    # ---- failures

    def _error(self, run: _Run, failure: Failure) -> _QueryError:
        if self._loop.now >= run.ends_at:  # even if the connection had to be dropped: it would happen again
            return _QueryError(f"the query ran longer than {self._settings.expansion_limit:g} s")
        state = failure.sqlstate or ""
        is_world = not WORLD.isdisjoint((state[:2], state)) and state != UNBOUND
        sentence = _sentence(failure, len(PINNED if run.connection.is_pooled else DECLARE))
        return _QueryError(sentence, again=failure.lost or is_world, interrupted=failure.lost)

    def _give_up(self, run: _Run, error: _QueryError) -> None:
        self.close_query(run.job)
        self._report(NotExpanded(run.job, error.reason, error.again, error.interrupted))


def _sentence(failure: Failure, before: int) -> str:
    """Return what is wrong, and where in the text of the job, which begins after `before` characters of ours."""
    if failure.sqlstate is None:
        return failure.message
    if (doubled := doubled_key(failure.message)) is not None:
        return doubled
    position = (failure.position or 0) - before - len(WRAPPING)
    place = f", at character {position}" if position > 0 else ""
    return f"{failure.message} (SQLSTATE {failure.sqlstate}{place})"
