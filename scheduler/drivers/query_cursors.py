"""The queries of jobs: each runs once, read-only, into a held cursor of its own, and its rows are fetched as asked.

One job at a time has a connection, which logs in under a role of its own, and nothing of its session is left for the
next. A held cursor keeps no snapshot: its rows are materialised at commit, which statement_timeout does not bound, so
the deadline is ours. The declaration goes through the extended protocol, which takes one statement: a bare string may
hold `commit; update`. How large rows are is known when they have come. So the first fetch is a small one, and one that
brings far more than it should ends the job while it is still on its way: the rows of no job fill our memory.

Rows that agents do not need yet can go to a file, so that another query can have the connection (row_file.py).

Behind a pooler only a transaction is sure to stay with one server process: there the cursor is not held, and lives in
a transaction that lasts until all rows of the job are fetched.
"""

from collections.abc import Callable
from enum import Enum
from itertools import chain
from typing import Final

from scheduler.drivers.libpq import readable
from scheduler.drivers.loop import Loop, Steps, Task
from scheduler.drivers.postgres import Connection, ConnectionPool
from scheduler.drivers.row_file import RowFile
from scheduler.drivers.statement_runner import answer_to
from scheduler.drivers.statements import THEIRS, Answer, Failure, Rows, setting
from scheduler.model.config import Config, Scheduler
from scheduler.model.events_and_effects import (
    ConnectionsChanged,
    Event,
    Fetched,
    Kept,
    NotExpanded,
    Opened,
    no_connection,
)
from scheduler.model.queue_requests import Cells
from scheduler.model.sql_text import doubled_key, in_terms_of_job
from scheduler.model.states import IGNORE, Machine

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

# SQLSTATEs, or their first two characters, that are not the query's fault.
WORLD: Final = frozenset(("08", "40", "58", "53100", "53200", "53300", "55P03", "57P01", "57P02", "57P03", "57P05"))
NO_NUMBER: Final = "22P02"  # which a text that is cast to a number is
UNBOUND: Final = "08P01"  # of class 08, and yet the query's fault: it has parameters, `$1`


class CursorState(Enum):
    """How far the cursor of a job has got, and until when."""

    OPENING = "expansion_limit"
    OPEN = "the core closes it; the limit of each fetch is 60 s"
    READ = "the core closes it: its rows are all fetched, and it needs its connection no more"
    KEPT = "the core closes it: its rows are all in its file, and it has no connection"
    REFUSED = "at once: it is closed, and the job given back until the next attempt to connect"
    CUT_OFF = "at once: it is closed, and the job given back"
    CLOSED = "nothing: the core has all its rows"


class CursorEvent(Enum):
    """The events of a cursor."""

    OPENED = "its query ran"
    FETCHED = "rows have come, and there are more"
    FETCHED_LAST = "rows have come, and there are no more"
    KEPT = "the last rows have come into its file"
    LOST = "its connection was lost, which is made again; a statement under way has been answered as lost"
    NOT_CONNECTED = "an attempt to make its connection has failed"


_CURSOR_ROWS: Final = {
    "OPENING": {"OPENED": "OPEN", "LOST": IGNORE, "NOT_CONNECTED": "REFUSED"},
    "OPEN": {"FETCHED": "OPEN", "FETCHED_LAST": "READ", "KEPT": "KEPT", "LOST NOT_CONNECTED": "CUT_OFF"},
    "READ": {"FETCHED_LAST": "READ", "LOST NOT_CONNECTED": "CLOSED"},
    "KEPT": {"FETCHED": "KEPT", "FETCHED_LAST": "KEPT"},
    "REFUSED": {},
    "CUT_OFF": {},
    "CLOSED": {},
}
CURSOR: Final = Machine("the cursor of a job", CursorState, CursorEvent, _CURSOR_ROWS)


class _QueryError(Exception):
    """A query failed; the fields are those of NotExpanded."""

    def __init__(self, reason: str, *, again: bool = False, interrupted: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.again, self.interrupted = reason, again, interrupted


class Cursor:
    """The query of one job on its connection, and its rows."""

    def __init__(self, loop: Loop, job: int, connection: Connection, limit_s: float) -> None:
        self.job, self.connection, self.state = job, connection, CursorState.OPENING
        self.given = 0  # rows
        self._loop, self._limit_s, self._ends_at = loop, limit_s, loop.now + limit_s
        self._total = self._bytes = 0  # rows of the query; bytes of the rows that were fetched
        self._is_read = False  # no rows are left on the server
        self._file: RowFile | None = None
        self._task: Task[None] | None = None

    @property
    def has_connection(self) -> bool:
        return self.state is not CursorState.KEPT

    def fire(self, event: CursorEvent) -> CursorState | None:
        """Move the cursor and return its state; None if the event is ignored. Errors: BugError, it is impossible."""
        state = CURSOR.after(self.state, event)
        self.state = state or self.state
        return state

    def start(self, steps: Steps[None]) -> None:
        """Run steps until they end, or until `stop`."""
        self._task = Task(self._loop, steps)
        self._task.start()

    def stop(self) -> None:
        """Stop what it is doing, and clear its session for another job."""
        if self._task is not None:
            self._task.stop()
        if self._file is not None:
            self._file.close()
        if self.has_connection:
            self.connection.cancel()
            self.connection.reset()

    def open(self, query: str, most_rows: int) -> Steps[Opened]:
        """Run the query; `most_rows` 0 is without limit. Errors: _QueryError."""
        yield from self._run("begin read only")  # the connection is up after that, and knows of poolers
        if self.connection.is_pooled:
            yield from self._run("set local idle_in_transaction_session_timeout = 0")
            yield from self._run(PINNED + query)
        else:
            yield from self._run(DECLARE + query)
            yield from self._run("commit")
        self._total = (yield from self._run("move all in drover_rows")).tag
        yield from self._run("move absolute 0 in drover_rows")
        names = (yield from self._run("fetch 0 from drover_rows")).names
        self.fire(CursorEvent.OPENED)
        if 0 < most_rows < self._total:
            raise _QueryError(f"the query gives {self._total} rows, and msq_rows allows {most_rows}")
        return Opened(self.job, names, self._total)

    def fetch(self, count: int, most_bytes: int, fetch_bytes: int) -> Steps[Fetched]:
        """Return the next rows of its file, or fetch some. Errors: _QueryError."""
        if self._file is not None and self._file.has_rows:
            rows = self._next_of_file(self._file)
        else:
            rows = yield from self._rows(count, most_bytes, fetch_bytes)
        is_last = self._is_read and not (self._file is not None and self._file.has_rows)
        self.fire(CursorEvent.FETCHED_LAST if is_last else CursorEvent.FETCHED)
        return Fetched(self.job, rows, not is_last)

    def keep(self, count: int, most_bytes: int, fetch_bytes: int) -> Steps[Kept]:
        """Fetch rows into its file; with the last one leave the connection. Errors: _QueryError."""
        rows = yield from self._rows(count, most_bytes, fetch_bytes)
        size, problem = self._add_to_file(rows)
        if self._is_read:
            self.fire(CursorEvent.KEPT)
            self.connection.reset()
        return Kept(self.job, len(rows), size, not self._is_read, problem)

    def _add_to_file(self, rows: list[Cells]) -> tuple[int, str]:
        """Add rows; return their bytes, and why they are in memory instead."""
        self._file = self._file or RowFile()
        try:
            return self._file.add(rows), ""
        except OSError as error:
            self._file.hold(rows)
            return 0, str(error)

    def _next_of_file(self, file: RowFile) -> list[Cells]:
        try:
            return file.take()
        except (OSError, EOFError, ValueError) as error:
            raise _QueryError(f"the file for the rows of its query: {error}", again=True) from error

    def _rows(self, count: int, most_bytes: int, fetch_bytes: int) -> Steps[list[Cells]]:
        """Fetch rows, unless the query brings more than `most_bytes`, or they alone far too much. Errors: _QueryError.

        `most_bytes` 0 is without limit.
        """
        most, left = TOO_MUCH * fetch_bytes, most_bytes - self._bytes
        problem = f"{count} rows of the query have more than {most} bytes: select less, or lower fetch_rows"
        if most_bytes and left < most:
            most, problem = left, f"the rows of the query have more bytes than msq_bytes allows, {most_bytes}"
        rows: list[Cells] = []
        size = 0

        def add(chunk: Rows) -> bool:
            nonlocal size
            cells = list(chunk.rows)
            size += sum(map(len, filter(None, chain.from_iterable(cells))))
            rows.extend(cells if size <= most else ())
            return size <= most

        sql = f"fetch forward {count} from drover_rows"
        answer = yield from answer_to(self.connection, sql, limit_s=FETCH_LIMIT_S, sink=add)
        if size > most:
            raise _QueryError(problem)
        self._rows_of(answer, sql)
        self.given += len(rows)
        self._bytes += size
        self._is_read = len(rows) < count or self.given >= self._total
        return rows

    def _run(self, sql: str) -> Steps[Rows]:
        answer = yield from answer_to(self.connection, sql, limit_s=self._ends_at - self._loop.now)
        return self._rows_of(answer, sql)

    def _rows_of(self, answer: Answer, sql: str) -> Rows:
        if isinstance(answer, Rows):
            return answer
        if self._loop.now >= self._ends_at:  # even if the connection had to be dropped: it would happen again
            raise _QueryError(f"the query ran longer than {self._limit_s:g} s")
        state = answer.sqlstate or ""
        is_world = not WORLD.isdisjoint((state[:2], state)) and state != UNBOUND
        sentence = _sentence(answer, sql.removeprefix(PINNED if self.connection.is_pooled else DECLARE), len(sql))
        raise _QueryError(sentence, again=answer.lost or is_world, interrupted=answer.lost)


class JobQueries:
    """Up to `expansions` queries at once, each on a connection of its own."""

    def __init__(
        self, loop: Loop, conninfo: str, settings: Scheduler, report: Callable[[Event], None],
        connections_changed: Callable[[ConnectionsChanged], None],
    ) -> None:  # fmt: skip
        self._loop, self._settings, self._report = loop, settings, report
        self._pool = ConnectionPool(
            loop, "expansion", "queries", readable(conninfo), settings.expansions, SETTINGS, connections_changed,
            reconnect_max=settings.reconnect_max, on_down=self._down,
        )  # fmt: skip
        self._cursors: dict[int, Cursor] = {}  # by job

    def expand(self, job: int, query: str) -> None:
        """Run a query; reports Opened, or NotExpanded, at once if its connection could not be made of late."""
        connection = self._free_connection()
        cursor = self._cursors[job] = Cursor(self._loop, job, connection, self._settings.expansion_limit)
        if connection.refusal is not None:
            self._disconnected(cursor, connection.refusal)
        else:
            cursor.start(self._report_result(cursor, cursor.open(query, self._settings.msq_rows)))

    def fetch(self, job: int, count: int) -> None:
        """Fetch up to `count` more rows; reports Fetched, with fewer at first, or NotExpanded."""
        if cursor := self._cursors.get(job):
            count = count if cursor.given else min(count, FIRST_ROWS)
            steps = cursor.fetch(count, self._settings.msq_bytes, self._settings.fetch_bytes)
            cursor.start(self._report_result(cursor, steps))

    def keep(self, job: int, count: int) -> None:
        """Fetch up to `count` more rows into the file of a job; reports Kept, or NotExpanded."""
        if cursor := self._cursors.get(job):
            steps = cursor.keep(count, self._settings.msq_bytes, self._settings.fetch_bytes)
            cursor.start(self._report_result(cursor, steps))

    def close_query(self, job: int) -> None:
        """Forget a job's rows, whatever it is doing; nothing more is reported of it."""
        if cursor := self._cursors.pop(job, None):
            cursor.stop()

    def reload(self, config: Config) -> None:
        """Use other limits from now on."""
        self._settings = config.scheduler
        self._pool.resize(self._settings.expansions)
        refused = [connection for connection in self._pool.connections if connection.refusal is not None]
        for connection in refused[: max(0, len(self._pool.connections) - self._pool.count)]:
            self._pool.drop(connection)  # no cursor has it

    def close(self) -> None:
        for job in list(self._cursors):
            self.close_query(job)
        self._pool.close()

    def _free_connection(self) -> Connection:
        """Return a connection that can take a job, a new one, or one coming or stopping.

        Where one was refused no new one is tried: one that is stopping then, or else the one that was refused.
        """
        taken = [cursor.connection for cursor in self._cursors.values() if cursor.has_connection]
        rest = [connection for connection in self._pool.connections if connection not in taken]
        ready = next((connection for connection in rest if connection.is_ready), None)
        refused = next((connection for connection in rest if connection.refusal is not None), None)
        found = ready or (refused and next((connection for connection in rest if connection.is_up), refused))
        if found or len(self._pool.connections) >= self._pool.count:
            return found or rest[0]
        return self._pool.add()

    def _report_result(self, cursor: Cursor, steps: Steps[Opened] | Steps[Fetched] | Steps[Kept]) -> Steps[None]:
        event: Event
        try:
            event = yield from steps
        except _QueryError as error:
            self.close_query(cursor.job)
            event = NotExpanded(cursor.job, error.reason, error.again, error.interrupted)
        self._report(event)

    def _down(self, connection: Connection, reason: str) -> None:
        cursors = [each for each in self._cursors.values() if each.connection is connection and each.has_connection]
        for cursor in cursors:
            self._disconnected(cursor, connection.refusal or reason)

    def _disconnected(self, cursor: Cursor, reason: str) -> None:
        """Close a cursor whose rows are gone with its connection, or whose connection cannot be made; report it."""
        connection = cursor.connection
        event = CursorEvent.LOST if connection.refusal is None else CursorEvent.NOT_CONNECTED
        retry_in = connection.retry_in
        state = cursor.fire(event)
        if state is not None:
            self.close_query(cursor.job)
        if state is CursorState.REFUSED:
            reason = no_connection(self._pool.login, reason)
            self._report(NotExpanded(cursor.job, reason, again=True, retry_in=retry_in))
        elif state is CursorState.CUT_OFF:
            self._report(NotExpanded(cursor.job, reason, again=True, interrupted=True))


def _sentence(failure: Failure, query: str, length: int) -> str:
    """Return what is wrong, and where in the text of the job; the statement, which has this length, ends with it."""
    if failure.sqlstate is None:
        return failure.message
    if failure.sqlstate == NO_NUMBER and (doubled := doubled_key(failure.message)) is not None:
        return doubled
    position = (failure.position or 0) - (length - len(query))
    return in_terms_of_job(failure.message, failure.sqlstate, position, query)
