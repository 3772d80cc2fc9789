"""One session with Postgres on the loop: a statement is sent, its results are read as they come.

Touches libpq through `psycopg.pq`; tests/drivers holds the contract of what is relied on there. At most one statement
is under way. A cancel request counts as one: while it lasts nothing new is sent, so that it cannot hit the wrong
statement.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from select import EPOLLIN, EPOLLOUT
from typing import Final

import psycopg
from psycopg import pq

from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.postgres_connect import cancel
from scheduler.drivers.sql import Answer, Done, Failure, Query, Rows, Sink, read_failure, read_rows
from scheduler.drivers.steps import Steps, Task, Until

CANCEL_GRACE_S: Final = 5.0  # between a cancel and the end of the connection
CANCEL_AGAIN_S: Final = 0.2
CHUNK_ROWS: Final = 50  # of a result that is read as it comes
STALE: Final = frozenset(("0A000", "26000"))  # the plan of a table that has changed; a statement that is gone
CANCELLED: Final = Failure("57014", "canceling statement due to user request")
NO_COPY: Final = "COPY from or to the client is not possible here"

_Status = pq.ExecStatus
_GOOD: Final = frozenset((_Status.TUPLES_OK, _Status.COMMAND_OK, _Status.EMPTY_QUERY))
_COPY: Final = frozenset((_Status.COPY_IN, _Status.COPY_OUT, _Status.COPY_BOTH))


@dataclass(slots=True)
class Statement:
    """A statement on its way; one that `is_named` is prepared once, `sink` takes rows before the answer."""

    query: Query
    params: list[bytes | None]
    done: Done
    is_named: bool = True
    limit: float | None = None  # seconds
    sink: Sink | None = None
    is_own: bool = False  # of the session, as its settings are
    preparing: bytes | None = None  # the name under which the server is preparing it
    sent_at: float = 0.0
    answer: Answer | None = None


class Session:
    """A connection that was made, until it is closed. After `lost` it is of no use, and to be closed."""

    def __init__(
        self,
        loop: Loop,
        pg: pq.abc.PGconn,
        name: str,
        answered: Callable[[Statement, Answer], None],
        notified: Callable[[str], None],
        lost: Callable[[str], None],
        stopped: Callable[[], None],
    ) -> None:
        self.name, self.pg = name, pg
        self.statement: Statement | None = None  # that is under way
        self.is_cancelling = False  # a request is under way; `stopped` is called when it ends after its statement
        self.is_pooled = False  # nothing is prepared, and nothing cancelled
        self._loop, self._fd, self._is_closed = loop, pg.socket, False
        self._answered, self._notified, self._lost, self._stopped = answered, notified, lost, stopped
        self._prepared: dict[Query, bytes] = {}
        self._serial = 0
        self._is_flushing = False
        self._canceller: Task[None] | None = None
        self._deadline: Timer | None = None
        self._drop: Timer | None = None
        pg.nonblocking = 1
        loop.register(self._fd, EPOLLIN, self._ready)

    def send(self, statement: Statement) -> None:
        """Send a statement; none is under way."""
        self.statement = statement
        statement.sent_at = self._loop.now
        if statement.limit is not None:
            self._deadline = self._loop.at(statement.sent_at + max(statement.limit, 0.0), self.cancel)
        try:
            self._write(statement)
            self._flush()
        except psycopg.Error as error:
            self._lose(_plain(error))

    def cancel(self) -> None:
        """Ask the server to stop what runs; the connection is lost if it has not stopped within 5 s."""
        if self.statement is None or self._drop:
            return
        if self.is_pooled:
            self._drop = self._loop.at(self._loop.now, partial(self._drop_now, "dropped to stop a statement"))
            return
        late = f"no answer within {CANCEL_GRACE_S:.0f} s of a cancel"
        self._drop = self._loop.at(self._loop.now + CANCEL_GRACE_S, partial(self._drop_now, late))
        self._canceller = Task(self._loop, self._cancel_until_ended(self.statement)).start()

    def forget_prepared(self) -> None:
        """Note that the server has discarded all prepared statements."""
        self._prepared.clear()

    def close(self) -> None:
        """Disconnect; nothing is called any more."""
        self._is_closed, self.is_cancelling = True, False
        for timer in filter(None, (self._deadline, self._drop)):
            timer.cancel()
        if self._canceller:
            self._canceller.stop()
        with suppress(OSError):  # libpq has closed it already if the connection broke
            self._loop.unregister(self._fd)
        self.pg.finish()

    # ---- sending

    def _write(self, statement: Statement) -> None:
        sql = statement.query.sql.encode("utf-8", "surrogateescape")
        if not statement.is_named:
            self.pg.send_query_params(sql, None)
        elif self.is_pooled:
            self.pg.send_query_params(sql, statement.params)
        elif name := self._prepared.get(statement.query):
            self.pg.send_query_prepared(name, statement.params)
        else:
            self._serial += 1
            statement.preparing = f"{statement.query.name}/{self._serial}".encode()
            self.pg.send_prepare(statement.preparing, sql)
            return
        if statement.sink:
            self.pg.set_chunked_rows_mode(CHUNK_ROWS)

    def _flush(self) -> None:
        """Wait for room as long as something is unsent."""
        unsent = bool(self.pg.flush())
        if unsent != self._is_flushing:
            self._is_flushing = unsent
            self._loop.modify(self._fd, EPOLLIN | EPOLLOUT if unsent else EPOLLIN)

    # ---- receiving

    def _ready(self, _mask: int) -> None:
        pg = self.pg
        try:
            pg.consume_input()
            if self._is_flushing:
                self._flush()
            channels = _channels(pg)
            self._read_results(pg)
        except psycopg.Error as error:
            return self._lose(_plain(error))
        for channel in channels:
            self._notified(channel)
        return None

    def _read_results(self, pg: pq.abc.PGconn) -> None:
        """Read what has come; an idle connection is "not busy" too, hence the check for a statement."""
        while not self._is_closed and self.statement and not pg.is_busy():
            result = pg.get_result()
            if result is None:
                self._finish(self.statement)
            else:
                self._read(self.statement, result)

    def _read(self, statement: Statement, result: pq.abc.PGresult) -> None:
        status = result.status
        if status == _Status.TUPLES_CHUNK:
            if statement.sink and not statement.sink(read_rows(result)):
                statement.sink = None
                self.cancel()
        elif status in _GOOD:
            statement.answer = read_rows(result)
        elif status in _COPY:
            self._refuse_copy(statement)
        else:
            statement.answer = read_failure(result)

    def _refuse_copy(self, statement: Statement) -> None:
        """Neither direction of a COPY has an end that could be waited for here: drop the connection."""
        self.statement = None
        self._lost(NO_COPY)
        statement.done(Failure("0A000", NO_COPY))

    def _finish(self, statement: Statement) -> None:
        answer = statement.answer or Failure(None, "the server gave no answer")
        if self.pg.status == pq.ConnStatus.BAD:
            return self._lose("connection lost")
        if statement.preparing and isinstance(answer, Rows):
            return self._run_prepared(statement, statement.preparing)
        if isinstance(answer, Failure) and answer.sqlstate in STALE:
            self._prepared.pop(statement.query, None)
        self._forget_timers()
        self.statement = None
        return self._answered(statement, answer)

    def _run_prepared(self, statement: Statement, name: bytes) -> None:
        """Run a statement that was prepared, under the same deadline."""
        self._prepared[statement.query] = name
        statement.preparing = statement.answer = None
        if not self.is_cancelling:
            self._write(statement)
            return self._flush()
        statement.answer = CANCELLED
        return self._finish(statement)

    def _lose(self, reason: str) -> None:
        """Report the loss; the server's last words say more than the end of file after them."""
        answer = self.statement and self.statement.answer
        self._lost(answer.message if isinstance(answer, Failure) else reason)

    # ---- stopping

    def _cancel_until_ended(self, statement: Statement) -> Steps[None]:
        """Ask the server to cancel; a request that overtakes its statement is ignored there, so ask again."""
        while self.statement is statement:
            self.is_cancelling = True
            yield from cancel(self.pg)
            self.is_cancelling = False
            if self.statement is not None:
                yield Until(self._loop.now + CANCEL_AGAIN_S)
        if self.statement is None:
            self._forget_timers()
            self._stopped()

    def _forget_timers(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
        if self._drop and not self.is_cancelling:
            self._drop.cancel()
            self._drop = None

    def _drop_now(self, why: str) -> None:
        self._drop = None
        self._lose(why)


def _channels(pg: pq.abc.PGconn) -> list[str]:
    """Return the channels that were notified since the last call, each once."""
    found: dict[str, None] = {}
    while notice := pg.notifies():
        found[notice.relname.decode()] = None
    return list(found)


def _plain(error: psycopg.Error) -> str:
    """Return libpq's words without its guesses."""
    text = str(error).removeprefix("consuming input failed: ").removeprefix("flushing failed: ")
    return text.partition("This probably means")[0]
