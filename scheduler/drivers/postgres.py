"""One Postgres connection that never blocks: statements queue up, answers come to callbacks, a lost one is made again.

Touches libpq through `psycopg.pq`; tests/drivers holds the contract of what is relied on there. Knows no table and
no meaning of any statement. What is to be done about statements cut off in flight is the caller's business.

Theory. A connection is closed, being made (a task, which may be waiting for the next attempt), or there. On it runs at
most one statement at a time: one of the session's own (settings after connecting, tidying after another's session) or
else the first of the queue. While a cancel request is under way nothing new is sent, so that it cannot hit the wrong
statement.

A pooler may answer in the server's place and take another server process for each transaction. It gives itself away by
the process number, which is its own invention. Then nothing is prepared, since the next statement may come to a
process that does not know it, or knows another by that name; nothing is set, since the next client of that process
would inherit it; nothing is cancelled, which kills some poolers (pgbouncer 1.18, when we leave before it is done): the
connection is dropped instead; and `old_backend` is none, since that process serves others.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from select import EPOLLIN, EPOLLOUT
from typing import Final, NamedTuple

import psycopg
from psycopg import pq

from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.postgres_connect import CONNECT_LIMIT_S, UnreachableError, cancel, connect
from scheduler.drivers.sql import (
    NO_COPY,
    SETTING,
    Answer,
    Done,
    Failure,
    Query,
    Rows,
    Sink,
    Stat,
    encode,
    one_line,
    read_failure,
    read_rows,
)
from scheduler.drivers.steps import Steps, Task, Until

CANCEL_GRACE_S: Final = 5.0  # between a cancel and the end of the connection
CANCEL_AGAIN_S: Final = 0.2
FIRST_DELAY_S: Final = 0.1
STABLE_S: Final = 1.0  # a connection that lived longer starts the back-off anew
CHUNK_ROWS: Final = 50  # what is refused for its size is held so far
DISCARD: Final = "discard all"
TIDY: Final = ("rollback", DISCARD)
STAY: Final = "set idle_session_timeout = 0"  # whatever role or database say: how long nothing is asked is our business
WHO: Final = "select pid, extract(epoch from backend_start) from pg_stat_get_activity(pg_backend_pid())"
STALE: Final = frozenset(("0A000", "26000"))  # the plan of a table that has changed; a statement that is gone

_Status = pq.ExecStatus
_GOOD: Final = frozenset((_Status.TUPLES_OK, _Status.COMMAND_OK, _Status.EMPTY_QUERY))
_COPY: Final = frozenset((_Status.COPY_IN, _Status.COPY_OUT, _Status.COPY_BOTH))


class Backend(NamedTuple):
    """A server process; `start`, seconds by the server's clock as text, tells it from a later one of that number."""

    pid: int
    start: str


@dataclass(slots=True)
class _Statement:
    """A statement on its way; `is_named` ones are prepared once, `sink` takes rows before the answer."""

    query: Query
    params: list[bytes | None]
    done: Done
    is_named: bool = True
    limit: float | None = None
    sink: Sink | None = None
    is_own: bool = False  # of the session
    preparing: bytes | None = None  # the name under which the server is preparing it
    sent_at: float = 0.0
    answer: Answer | None = None


class Connection:
    """A connection by name, kept up until closed."""

    def __init__(
        self,
        loop: Loop,
        name: str,
        conninfo: str,
        *,
        settings: Sequence[str] = (),
        on_up: Callable[[], None] = lambda: None,
        on_down: Callable[[str], None] = lambda reason: None,
        on_notify: Callable[[str], None] = lambda channel: None,
        reconnect_max: float = 30.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.is_up = False
        self.is_pooled = False  # a pooler stands between us and the server
        self.losses = 0  # of connections
        self.refusal: str | None = None  # why the last attempt to connect failed; None once it is up
        self.old_backend: Backend | None = None  # of the one that was lost last, unless it was a pooler's
        self.sent = 0  # statements, chores included
        self.stats: dict[str, Stat] = {}
        self._loop, self._conninfo, self._settings = loop, conninfo, settings
        self._on_up, self._on_down, self._on_notify = on_up, on_down, on_notify
        self._reconnect_max, self._chance = reconnect_max, chance
        self._delay = FIRST_DELAY_S
        self._failures = 0  # attempts since the last success
        self._is_open = False
        self._connecting: Task[pq.abc.PGconn] | None = None
        self._retry_at = 0.0
        self._queue: deque[_Statement] = deque()
        self._own: deque[str] = deque()
        self._current: _Statement | None = None
        self._pg: pq.abc.PGconn | None = None
        self._fd = -1
        self._backend: Backend | None = None
        self._up_since = 0.0
        self._is_flushing = False
        self._prepared: dict[Query, bytes] = {}
        self._serial = 0
        self._canceller: Task[None] | None = None
        self._is_cancelling = False  # a request is under way
        self._deadline: Timer | None = None
        self._drop: Timer | None = None

    # ---- what callers do

    @property
    def is_idle(self) -> bool:
        """Up, and nothing is queued or under way."""
        busy = self._current or self._queue or self._own or self._is_cancelling
        return self.is_up and not busy

    @property
    def is_ready(self) -> bool:
        """Up, and what is asked now runs next, after the chores if there are any."""
        stopping = self._is_cancelling or (self._current and not self._own)
        return self.is_up and not (self._queue or stopping)

    @property
    def retry_in(self) -> float:
        """Seconds until the next attempt to connect; 0 while one is under way."""
        return max(0.0, self._retry_at - self._loop.now)

    @property
    def in_transaction(self) -> bool:
        """The last statement left a transaction open."""
        idle = pq.TransactionStatus.IDLE
        return self._pg is not None and self._current is None and self._pg.transaction_status != idle

    def open(self) -> None:
        """Connect, and connect again whenever the connection is lost, until closed."""
        if not self._is_open:
            self._is_open = True
            self._begin(self._connect())

    def close(self) -> None:
        """Disconnect; what was asked is answered as lost, `on_down` is not called."""
        self._is_open = False
        if self._connecting:
            self._connecting.stop()
        self._disconnect()
        self._fail_all("the connection was closed")

    def ask(
        self,
        query: Query,
        values: Mapping[str, object],
        done: Done,
        *,
        deadline: float | None = None,
        sink: Sink | None = None,
    ) -> None:
        """Run a named query when the connection is free, prepared once per connection.

        `deadline` is seconds of running: then it is cancelled, and 5 s later the connection is dropped. `sink` takes
        rows as they come, false for enough: the rest is cancelled; the answer has the last tag and no rows then.
        """
        params = [encode(values[name]) for name in query.names]
        self._enqueue(_Statement(query, params, done, limit=deadline, sink=sink))

    def run(self, sql: str | bytes, done: Done, *, deadline: float | None = None, sink: Sink | None = None) -> None:
        """Run a text without parameters, unprepared; several statements in one text are refused by Postgres."""
        text = sql if isinstance(sql, str) else sql.decode("utf-8", "surrogateescape")
        self._enqueue(_Statement(Query("", text), [], done, is_named=False, limit=deadline, sink=sink))

    def cancel(self) -> None:
        """Ask the server to stop what runs; drop the connection if it has not stopped within 5 s."""
        if self._current and not self._current.is_own:
            self._cancel_current()

    def reset(self) -> None:
        """Forget the session: transaction, cursors, settings, prepared statements, and what is queued for it."""
        self._own = deque((*TIDY, *self._session()))
        withdrawn, self._queue = self._queue, deque()
        for asked in withdrawn:
            asked.done(Failure(None, "withdrawn"))
        self._pump()

    # ---- up and down

    def _begin(self, steps: Steps[pq.abc.PGconn]) -> None:
        self._connecting = Task(self._loop, steps, self._connected)
        self._connecting.start()

    def _connect(self) -> Steps[pq.abc.PGconn]:
        """Try to connect until it succeeds."""
        while True:
            try:
                limit = self._loop.now + CONNECT_LIMIT_S
                return (yield from connect(self.name, self._conninfo, limit, shift=self._failures))
            except UnreachableError as error:
                self._failures += 1
                self.refusal = one_line(str(error))
            self._back_off()
            self._on_down(self.refusal)
            yield Until(self._retry_at)

    def _reconnect(self) -> Steps[pq.abc.PGconn]:
        yield Until(self._retry_at)
        return (yield from self._connect())

    def _connected(self, pg: pq.abc.PGconn) -> None:
        self._failures = 0
        pg.nonblocking = 1
        self._pg, self._fd, self._backend = pg, pg.socket, None
        self._loop.register(self._fd, EPOLLIN, self._ready)
        self._prepared.clear()
        self._own = deque((WHO,))
        self._pump()

    def _session(self) -> tuple[str, ...]:
        """Give what is to be run before anything else."""
        own = [each for each in (STAY, *self._settings) if not (self.is_pooled and each.startswith(("set ", SETTING)))]
        return (*self._encoding(), *own)

    def _encoding(self) -> tuple[str, ...]:
        """A database of no encoding holds any bytes, and refuses to give those that are not UTF-8 as UTF-8."""
        is_any = self._pg is not None and self._pg.parameter_status(b"server_encoding") == b"SQL_ASCII"
        return ("set client_encoding = 'SQL_ASCII'",) if is_any else ()

    def _back_off(self) -> None:
        """Set the next attempt; its delay doubles, and jitter keeps a crowd of daemons from coming back as one."""
        wait = self._delay * (0.5 + self._chance() / 2)
        self._delay = min(self._delay * 2, self._reconnect_max)
        self._retry_at = self._loop.now + wait

    def _rise(self) -> None:
        self.is_up, self._up_since, self.refusal = True, self._loop.now, None
        self._on_up()
        self._pump()

    def _lose(self, reason: str) -> None:
        """The connection is gone: say so to all who asked, then to the owner, and come back later."""
        was_up = self.is_up
        self.losses += 1
        self.old_backend = self._backend
        if was_up and self._loop.now - self._up_since >= STABLE_S:
            self._delay = FIRST_DELAY_S
        if self._current and isinstance(self._current.answer, Failure):
            reason = self._current.answer.message  # the server's last words say more than the end of file after them
        self._disconnect()
        self._back_off()
        self._begin(self._reconnect())
        reason = one_line(reason)
        if was_up:
            self._fail_all(reason)
        else:
            self.refusal = reason
        self._current = None  # a chore, whose failure is told by on_down
        if self._is_open:
            self._on_down(reason)

    def _disconnect(self) -> None:
        self.is_up = self._is_flushing = False
        for timer in filter(None, (self._deadline, self._drop)):
            timer.cancel()
        self._deadline = self._drop = None
        if self._canceller:
            self._canceller.stop()
        self._canceller, self._is_cancelling = None, False
        pg, self._pg = self._pg, None
        if pg is not None:
            with suppress(OSError):  # libpq has closed it already if the connection broke
                self._loop.unregister(self._fd)
            pg.finish()

    def _fail_all(self, reason: str) -> None:
        asked = [*filter(None, (self._current,)), *self._queue]
        self._current = None
        self._queue.clear()
        for each in asked:
            each.done(Failure(_sqlstate_of(each.answer), reason, lost=True))

    # ---- sending

    def _enqueue(self, asked: _Statement) -> None:
        self._queue.append(asked)
        self._pump()

    def _pump(self) -> None:
        """Send the next thing, if the connection is free."""
        if self._pg is None or self._current or self._is_cancelling:
            return
        if self._own:
            self._send(self._own_statement(self._own[0]))
        elif not self.is_up:
            self._rise()
        elif self._queue:
            self._send(self._queue.popleft())

    def _own_statement(self, sql: str) -> _Statement:
        return _Statement(Query("", sql), [], self._own_done, is_named=False, limit=CANCEL_GRACE_S, is_own=True)

    def _own_done(self, answer: Answer) -> None:
        if isinstance(answer, Failure):
            if not answer.lost:
                self._lose(f"{self._own[0]}: {answer.message}")
            return
        chore = self._own.popleft()
        if chore == DISCARD:
            self._prepared.clear()
        elif chore == WHO:
            self._meet(answer)

    def _meet(self, answer: Rows) -> None:
        """Note who serves us."""
        assert self._pg is not None
        ((pid, start),) = answer.rows
        served = Backend(int(pid or 0), (start or b"").decode())
        self.is_pooled = served.pid != self._pg.backend_pid
        self._backend = None if self.is_pooled else served
        self._own.extend(self._session())

    def _send(self, asked: _Statement) -> None:
        self._current = asked
        self.sent += 1
        asked.sent_at = self._loop.now
        if asked.limit is not None:
            self._deadline = self._loop.at(asked.sent_at + max(asked.limit, 0.0), self._cancel_current)
        try:
            self._write(asked)
            self._flush()
        except psycopg.Error as error:
            self._lose(_plain(error))

    def _write(self, asked: _Statement) -> None:
        assert self._pg is not None
        sql = asked.query.sql.encode("utf-8", "surrogateescape")
        if not asked.is_named:
            self._pg.send_query_params(sql, None)
        elif self.is_pooled:
            self._pg.send_query_params(sql, asked.params)
        elif name := self._prepared.get(asked.query):
            self._pg.send_query_prepared(name, asked.params)
        else:
            self._serial += 1
            asked.preparing = f"{asked.query.name}/{self._serial}".encode()
            self._pg.send_prepare(asked.preparing, sql)
            return
        if asked.sink:
            self._pg.set_chunked_rows_mode(CHUNK_ROWS)

    def _flush(self) -> None:
        """Wait for room as long as something is unsent."""
        assert self._pg is not None
        unsent = bool(self._pg.flush())
        if unsent != self._is_flushing:
            self._is_flushing = unsent
            self._loop.modify(self._fd, EPOLLIN | EPOLLOUT if unsent else EPOLLIN)

    # ---- receiving

    def _ready(self, _mask: int) -> None:
        pg = self._pg
        assert pg is not None
        try:
            pg.consume_input()
            if self._is_flushing:
                self._flush()
            channels = _channels(pg)
            self._take_results(pg)
        except psycopg.Error as error:
            return self._lose(_plain(error))
        for channel in channels:
            self._on_notify(channel)
        return None

    def _take_results(self, pg: pq.abc.PGconn) -> None:
        """Take what has come; an idle connection is "not busy" too, hence the look at `current`."""
        while pg is self._pg and self._current and not pg.is_busy():
            result = pg.get_result()
            if result is None:
                self._finish(self._current)
            else:
                self._take(self._current, result)

    def _take(self, asked: _Statement, result: pq.abc.PGresult) -> None:
        status = result.status
        if status == _Status.TUPLES_CHUNK:
            if asked.sink and not asked.sink(read_rows(result)):
                asked.sink = None
                self.cancel()
        elif status in _GOOD:
            asked.answer = read_rows(result)
        elif status in _COPY:
            self._refuse_copy(asked)
        else:
            asked.answer = read_failure(result)

    def _refuse_copy(self, asked: _Statement) -> None:
        """Neither direction of a COPY has an end that could be waited for here: drop the connection."""
        self._current = None
        self._lose(NO_COPY)
        asked.done(Failure("0A000", NO_COPY))

    def _finish(self, asked: _Statement) -> None:
        assert self._pg is not None
        answer = asked.answer or Failure(None, "the server gave no answer")
        if self._pg.status == pq.ConnStatus.BAD:
            return self._lose(answer.message if isinstance(answer, Failure) else "connection lost")
        if asked.preparing and isinstance(answer, Rows):
            return self._go_on(asked, asked.preparing)
        self._forget_timers()
        self._current = None
        self._note(asked, answer)
        asked.done(answer)
        return self._pump()

    def _go_on(self, asked: _Statement, name: bytes) -> None:
        """It is prepared: now run it, under the same deadline."""
        self._prepared[asked.query] = name
        asked.preparing = asked.answer = None
        if not self._is_cancelling:
            self._write(asked)
            return self._flush()
        asked.answer = Failure("57014", "canceling statement due to user request")
        return self._finish(asked)

    def _note(self, asked: _Statement, answer: Answer) -> None:
        if not asked.is_named:
            return
        self.stats.setdefault(asked.query.name, Stat()).add(self._loop.now - asked.sent_at)
        if isinstance(answer, Failure) and answer.sqlstate in STALE:
            self._prepared.pop(asked.query, None)

    # ---- stopping

    def _cancel_current(self) -> None:
        if self._pg is None or self._current is None or self._drop:
            return
        if self.is_pooled:
            self._drop = self._loop.at(self._loop.now, partial(self._drop_now, "dropped to stop a statement"))
            return
        late = f"no answer within {CANCEL_GRACE_S:.0f} s of a cancel"
        self._drop = self._loop.at(self._loop.now + CANCEL_GRACE_S, partial(self._drop_now, late))
        self._canceller = Task(self._loop, self._cancel_until_ended(self._current)).start()

    def _cancel_until_ended(self, asked: _Statement) -> Steps[None]:
        """Ask the server to cancel; one that overtakes its statement is ignored there, so ask again."""
        while self._pg is not None and self._current is asked:
            self._is_cancelling = True
            yield from cancel(self._pg)
            self._is_cancelling = False
            self._cancelled()
            yield Until(self._loop.now + CANCEL_AGAIN_S)

    def _cancelled(self) -> None:
        if self._current is None:
            self._forget_timers()
            self._pump()

    def _forget_timers(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
        if self._drop and not self._is_cancelling:
            self._drop.cancel()
            self._drop = None

    def _drop_now(self, why: str) -> None:
        self._drop = None
        if self._pg is not None:
            self._lose(why)


def _channels(pg: pq.abc.PGconn) -> list[str]:
    """Give the channels notified since the last look, each once."""
    found: dict[str, None] = {}
    while notice := pg.notifies():
        found[notice.relname.decode()] = None
    return list(found)


def _plain(error: psycopg.Error) -> str:
    """Give libpq's words without its guesses."""
    text = str(error).removeprefix("consuming input failed: ").removeprefix("flushing failed: ")
    return text.partition("This probably means")[0]


def _sqlstate_of(answer: Answer | None) -> str | None:
    return answer.sqlstate if isinstance(answer, Failure) else None
