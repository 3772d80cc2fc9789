"""A Postgres connection that is kept up: statements queue up, answers come to callbacks, a lost session is replaced.

Knows no table and no meaning of any statement. What is to be done about statements cut off in flight is the caller's
business.

Theory. A connection is closed, connecting (a task, which may be waiting for its next attempt), or has a session. A
session runs one statement at a time: one of its own (settings after connecting, tidying up after use by another) or
else the first of the queue.

A pooler may answer in the server's place and take another server process for each transaction. It gives itself away by
the process number, which is its own invention. Then nothing is prepared, since the next statement may come to a
process that does not know it, or knows another by that name; nothing is set, since the next client of that process
would inherit it; nothing is cancelled, which kills some poolers (pgbouncer 1.18, when we leave before it is done): the
connection is dropped instead; and `old_backend` is none, since that process serves others.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from psycopg import pq

from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres_connect import CONNECT_LIMIT_S, UnreachableError, connect
from scheduler.drivers.postgres_session import CANCEL_GRACE_S, Session, Statement
from scheduler.drivers.sql import SETTING, Answer, Done, Failure, Query, Rows, Sink, Stat, encode, one_line
from scheduler.drivers.steps import Steps, Task, Until

FIRST_DELAY_S: Final = 0.1
STABLE_S: Final = 1.0  # a session that lived longer starts the back-off anew
DISCARD: Final = "discard all"
TIDY: Final = ("rollback", DISCARD)
STAY: Final = "set idle_session_timeout = 0"  # whatever role or database say: idle sessions are wanted
WHO: Final = "select pid, extract(epoch from backend_start) from pg_stat_get_activity(pg_backend_pid())"


class Backend(NamedTuple):
    """A server process; `start`, seconds by the server's clock as text, tells it from a later one of that number."""

    pid: int
    start: str


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
        self.losses = 0  # of sessions
        self.refusal: str | None = None  # why the last attempt to connect failed; None once it is up
        self.old_backend: Backend | None = None  # of the session that was lost last, unless it was a pooler's
        self.sent = 0  # statements, those of the sessions included
        self.stats: dict[str, Stat] = {}
        self._loop, self._conninfo, self._settings = loop, conninfo, settings
        self._on_up, self._on_down, self._on_notify = on_up, on_down, on_notify
        self._reconnect_max, self._chance = reconnect_max, chance
        self._delay = FIRST_DELAY_S
        self._failures = 0  # attempts since the last success
        self._retry_at = 0.0
        self._is_open = False
        self._connecting: Task[pq.abc.PGconn] | None = None
        self._session: Session | None = None
        self._backend: Backend | None = None
        self._up_since = 0.0
        self._own: deque[str] = deque()  # statements of the session, to be run before those of the queue
        self._queue: deque[Statement] = deque()

    # ---- state

    @property
    def is_idle(self) -> bool:
        """Whether it is up, and nothing is queued or under way."""
        session = self._session
        return self.is_up and session is not None and not (
            session.statement or self._queue or self._own or session.is_cancelling
        )  # fmt: skip

    @property
    def is_ready(self) -> bool:
        """Whether it is up, and what is asked now runs next, after statements of the session if there are any."""
        session = self._session
        if not self.is_up or session is None:
            return False
        is_used = session.statement and not session.statement.is_own and not self._own
        return not (self._queue or session.is_cancelling or is_used)

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler stands between us and the server."""
        return self._session is not None and self._session.is_pooled

    @property
    def retry_in(self) -> float:
        """Seconds until the next attempt to connect; 0 while one is under way."""
        return max(0.0, self._retry_at - self._loop.now)

    @property
    def in_transaction(self) -> bool:
        """Whether the last statement left a transaction open."""
        session = self._session
        if session is None or session.statement is not None:
            return False
        return session.pg.transaction_status != pq.TransactionStatus.IDLE

    # ---- commands

    def open(self) -> None:
        """Connect, and connect again whenever the session is lost, until closed."""
        if not self._is_open:
            self._is_open = True
            self._begin(self._connect())

    def close(self) -> None:
        """Disconnect; what was asked is answered as lost, `on_down` is not called."""
        self._is_open = False
        if self._connecting:
            self._connecting.stop()
        self._fail_all(self._disconnect(), "the connection was closed")

    def ask(
        self,
        query: Query,
        values: Mapping[str, object],
        done: Done,
        *,
        deadline: float | None = None,
        sink: Sink | None = None,
    ) -> None:
        """Run a named query when the connection is free, prepared once per session.

        `deadline` is seconds of running: then it is cancelled, and 5 s later the session is dropped. `sink` takes
        rows as they come, false for enough: the rest is cancelled; the answer has the last tag and no rows then.
        """
        params = [encode(values[name]) for name in query.names]
        self._queue.append(Statement(query, params, done, limit=deadline, sink=sink))
        self._send_next()

    def run(self, sql: str | bytes, done: Done, *, deadline: float | None = None, sink: Sink | None = None) -> None:
        """Run a text without parameters, unprepared; several statements in one text are refused by Postgres."""
        text = sql if isinstance(sql, str) else sql.decode("utf-8", "surrogateescape")
        self._queue.append(Statement(Query("", text), [], done, is_named=False, limit=deadline, sink=sink))
        self._send_next()

    def cancel(self) -> None:
        """Ask the server to stop what runs; drop the session if it has not stopped within 5 s."""
        session = self._session
        if session is not None and session.statement is not None and not session.statement.is_own:
            session.cancel()

    def reset(self) -> None:
        """Clear the session: transaction, cursors, settings, prepared statements, and what is queued for it."""
        if self._session is not None and self.is_up:  # else it is being set up
            self._own = deque((*TIDY, *self._set_up(self._session)))
        withdrawn, self._queue = self._queue, deque()
        for statement in withdrawn:
            statement.done(Failure(None, "withdrawn"))
        self._send_next()

    # ---- connecting

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

    def _back_off(self) -> None:
        """Set the next attempt; its delay doubles, and jitter keeps a crowd of daemons from coming back as one."""
        wait = self._delay * (0.5 + self._chance() / 2)
        self._delay = min(self._delay * 2, self._reconnect_max)
        self._retry_at = self._loop.now + wait

    def _connected(self, pg: pq.abc.PGconn) -> None:
        self._failures, self._backend = 0, None
        self._session = Session(self._loop, pg, self.name, self._answered, self._on_notify, self._lose, self._send_next)
        self._own = deque((WHO,))
        self._send_next()

    def _identified(self, session: Session, answer: Rows) -> None:
        """Note which server process serves us, and set up the session."""
        ((pid, start),) = answer.rows
        backend = Backend(int(pid or 0), (start or b"").decode())
        session.is_pooled = backend.pid != session.pg.backend_pid
        self._backend = None if session.is_pooled else backend
        self._own.extend(self._set_up(session))

    def _set_up(self, session: Session) -> list[str]:
        """Return what is to be run before anything else."""
        wanted = (STAY, *self._settings)
        own = [sql for sql in wanted if not (session.is_pooled and sql.startswith(("set ", SETTING)))]
        # A database of no encoding holds any bytes, and refuses to give those that are not UTF-8 as UTF-8.
        is_ascii = session.pg.parameter_status(b"server_encoding") == b"SQL_ASCII"
        return ["set client_encoding = 'SQL_ASCII'", *own] if is_ascii else own

    def _up(self) -> None:
        self.is_up, self._up_since, self.refusal = True, self._loop.now, None
        self._on_up()
        self._send_next()

    # ---- statements

    def _send_next(self) -> None:
        """Send the next statement, if the session is free."""
        session = self._session
        if session is None or session.statement or session.is_cancelling:
            return
        if self._own:
            self._send(session, self._own_statement(self._own.popleft()))
        elif not self.is_up:
            self._up()
        elif self._queue:
            self._send(session, self._queue.popleft())

    def _send(self, session: Session, statement: Statement) -> None:
        self.sent += 1
        session.send(statement)

    def _answered(self, statement: Statement, answer: Answer) -> None:
        if statement.is_named:
            self.stats.setdefault(statement.query.name, Stat()).add(self._loop.now - statement.sent_at)
        statement.done(answer)
        self._send_next()

    def _own_statement(self, sql: str) -> Statement:
        answered = partial(self._own_answered, sql)
        return Statement(Query("", sql), [], answered, is_named=False, limit=CANCEL_GRACE_S, is_own=True)

    def _own_answered(self, sql: str, answer: Answer) -> None:
        if isinstance(answer, Failure):
            if not answer.lost:
                self._lose(f"{sql}: {answer.message}")
            return
        assert self._session is not None
        if sql == DISCARD:
            self._session.forget_prepared()
        elif sql == WHO:
            self._identified(self._session, answer)

    # ---- losses

    def _lose(self, reason: str) -> None:
        """Answer all statements as lost, report the loss, and reconnect later."""
        was_up = self.is_up
        self.losses += 1
        self.old_backend = self._backend
        if was_up and self._loop.now - self._up_since >= STABLE_S:
            self._delay = FIRST_DELAY_S
        statement = self._disconnect()
        self._back_off()
        self._begin(self._reconnect())
        reason = one_line(reason)
        if was_up:
            self._fail_all(statement, reason)
        else:
            self.refusal = reason
        if self._is_open:
            self._on_down(reason)

    def _disconnect(self) -> Statement | None:
        """Close the session; return the statement that was under way."""
        session, self._session, self.is_up = self._session, None, False
        if session is None:
            return None
        session.close()
        return session.statement

    def _fail_all(self, current: Statement | None, reason: str) -> None:
        statements = [*filter(None, (current,)), *self._queue]
        self._queue.clear()
        for statement in statements:
            state = statement.answer.sqlstate if isinstance(statement.answer, Failure) else None
            statement.done(Failure(state, reason, lost=True))
