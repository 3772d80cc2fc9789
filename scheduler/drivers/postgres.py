"""A Postgres connection that is kept up: statements queue up, answers come to callbacks, a lost session is replaced.

A connection is closed, connecting (a task, which may be waiting for its next attempt), or has a session. A session runs
one statement at a time: one of its own (settings after connecting, tidying up after use by another) or else the first
of the queue. What is to be done about statements cut off in flight is the caller's business.

A pooler may answer in the server's place and take another server process for each transaction. It gives itself away by
the process number, which is its own invention. Then nothing is prepared, since the next statement may come to a
process that does not know it, or knows another by that name; nothing is set, since the next client of that process
would inherit it; nothing is cancelled, which kills some poolers (pgbouncer 1.18, when we leave before it is done): the
connection is dropped instead; and `old_backends` is empty, since that process serves others.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from psycopg import pq

from scheduler.drivers import libpq
from scheduler.drivers.libpq import Session, Statement, connect
from scheduler.drivers.loop import Callback, Loop, Steps, Stop, Task, Timer, Until
from scheduler.drivers.statements import SETTING, Answer, Done, Failure, Query, Sink, Stat, encode, one_line
from scheduler.model.events_and_effects import ConnectionKind, ConnectionsChanged

FIRST_DELAY_S: Final = 0.1
OLD_BACKENDS: Final = 8  # kept of each connection
STABLE_S: Final = 1.0  # a session that lived longer starts the back-off anew
TIDY: Final = ("rollback", libpq.DISCARD)
STAY: Final = "set idle_session_timeout = 0"  # whatever role or database say: idle sessions are wanted
WHO: Final = "select pid, extract(epoch from backend_start) from pg_stat_get_activity(pg_backend_pid())"


class Backend(NamedTuple):
    """A server process; `start`, seconds by the server's clock as text, tells it from a later one of that number."""

    pid: int
    start: str


class Connection:
    """A connection by name, kept up until closed."""

    def __init__(
        self, loop: Loop, name: str, conninfo: str, *, settings: Sequence[str] = (),
        on_up: Callable[[], None] = lambda: None, on_down: Callable[[str], None] = lambda reason: None,
        on_notify: Callable[[str], None] = lambda channel: None, reconnect_max: float = 30.0,
        chance: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        self.name = name
        self.is_up = False
        self.losses = 0  # of sessions
        self.refusal: str | None = None  # why the last attempt to connect failed; None once it is up
        # The server processes of the last lost sessions, without those of a pooler. Whoever ends one removes it here.
        self.old_backends: deque[Backend] = deque(maxlen=OLD_BACKENDS)
        self.sent = 0  # statements, those of the sessions included
        self.stats: dict[str, Stat] = defaultdict(Stat)
        self._loop, self._conninfo, self._settings = loop, conninfo, settings
        self._on_up, self._on_down, self._on_notify = on_up, on_down, on_notify
        self._reconnect_max, self._chance, self._delay = reconnect_max, chance, FIRST_DELAY_S
        self._failures = 0  # attempts since the last success
        self._retry_at = self._up_since = 0.0
        self._is_open = False
        self._connecting: Task[Session] | None = None
        self._session: Session | None = None
        self._backend: Backend | None = None
        self._own: deque[str] = deque()  # statements of the session, to be run before those of the queue
        self._queue: deque[Statement] = deque()

    @property
    def is_idle(self) -> bool:
        """Return whether it is up, and nothing is queued or under way."""
        session = self._session
        return self.is_up and session is not None and not (
            session.statement or self._queue or self._own or session.is_cancelling
        )  # fmt: skip

    @property
    def is_ready(self) -> bool:
        """Return whether the next statement that is asked would be the first to run, after those of the session.

        That is so too while the statement of another job is being cleared away.
        """
        session = self._session
        if not self.is_up or session is None:
            return False
        is_used = session.statement and not session.statement.is_own and not self._own
        return not (self._queue or session.is_cancelling or is_used)

    @property
    def backend(self) -> Backend | None:
        """The server process of this session, unless it is a pooler's."""
        return self._backend

    def add_old_backend(self, pid: int, start: str) -> None:
        """Note the server process of a connection that a program before us had."""
        self.old_backends.append(Backend(pid, start))

    @property
    def is_pooled(self) -> bool:
        """Return whether a pooler stands between us and the server."""
        return self._session is not None and self._session.is_pooled

    @property
    def retry_in(self) -> float:
        """Seconds until the next attempt to connect; 0 while one is under way."""
        return max(0.0, self._retry_at - self._loop.now)

    @property
    def in_transaction(self) -> bool:
        """Return whether the last statement left a transaction open."""
        session = self._session
        if session is None or session.statement is not None:
            return False
        return session.pg.transaction_status != pq.TransactionStatus.IDLE

    def open(self) -> None:
        """Connect, and connect again whenever the session is lost, until closed."""
        if not self._is_open:
            self._is_open = True
            self._connecting = Task(self._loop, self._connect(), self._connected).start()

    def close(self) -> None:
        """Disconnect; what was asked is answered as lost, `on_down` is not called."""
        self._is_open = False
        if self._connecting:
            self._connecting.stop()
        self._fail_all(self._disconnect(), "the connection was closed")

    def ask(
        self, query: Query, values: Mapping[str, object], done: Done, *, limit_s: float | None = None,
        sink: Sink | None = None,
    ) -> None:  # fmt: skip
        """Run a named query when the connection is free, prepared once per session.

        `limit_s` is seconds of running: then it is cancelled, and 5 s later the session is dropped. `sink` takes
        rows as they come, false for enough: the rest is cancelled; the answer has the last tag and no rows then.
        """
        params = [encode(values[name]) for name in query.names]
        self._queue.append(Statement(query, params, done, limit=limit_s, sink=sink))
        self._send_next()

    def run(self, sql: str | bytes, done: Done, *, limit_s: float | None = None, sink: Sink | None = None) -> None:
        """Run a text without parameters, unprepared; several statements in one text are refused by Postgres."""
        text = sql if isinstance(sql, str) else sql.decode("utf-8", "surrogateescape")
        self._queue.append(Statement(Query("", text), [], done, is_named=False, limit=limit_s, sink=sink))
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

    def _connect(self) -> Steps[Session]:
        """Try to connect until it succeeds, from the instant of the next attempt on."""
        while True:
            if self.retry_in:
                yield Until(self._retry_at)
            try:
                deadline = self._loop.now + libpq.CONNECT_LIMIT_S
                pg = yield from connect(self.name, self._conninfo, deadline, shift=self._failures)
                return Session(
                    self._loop, self.name, pg, answered=self._answered, notified=self._on_notify, lost=self._lose,
                    stopped=self._send_next,
                )  # fmt: skip
            except libpq.UnreachableError as error:
                self._failures += 1
                self.refusal = one_line(str(error))
            self._back_off()
            self._on_down(self.refusal)

    def _back_off(self) -> None:
        """Set the next attempt; its delay doubles, and jitter keeps a crowd of daemons from coming back as one."""
        wait = self._delay * (0.5 + self._chance() / 2)
        self._delay = min(self._delay * 2, self._reconnect_max)
        self._retry_at = self._loop.now + wait

    def _connected(self, session: Session) -> None:
        self._failures, self._backend = 0, None
        self._own = deque((WHO,))
        self._session = session
        self._send_next()

    def _set_up(self, session: Session) -> list[str]:
        """Return what is to be run before anything else."""
        wanted = (STAY, *self._settings)
        own = [sql for sql in wanted if not (session.is_pooled and sql.startswith(("set ", SETTING)))]
        # A database of no encoding holds any bytes, and refuses to give those that are not UTF-8 as UTF-8.
        is_ascii = session.pg.parameter_status(b"server_encoding") == b"SQL_ASCII"
        return ["set client_encoding = 'SQL_ASCII'", *own] if is_ascii else own

    def _send_next(self) -> None:
        """Send the next statement, if the session is free; it is up when none of its own is left."""
        session = self._session
        if session is None or session.statement or session.is_cancelling:
            return
        if self._own:
            sql = self._own.popleft()
            done = partial(self._own_answered, session, sql)
            statement = Statement(Query("", sql), [], done, is_named=False, limit=libpq.CANCEL_GRACE_S, is_own=True)
        elif not self.is_up:
            self._come_up()
            return
        elif self._queue:
            statement = self._queue.popleft()
        else:
            return
        self.sent += 1
        session.send(statement)

    def _come_up(self) -> None:
        """Declare the session up: its own statements have run."""
        self.is_up, self._up_since, self.refusal = True, self._loop.now, None
        self._on_up()
        self._send_next()

    def _own_answered(self, session: Session, sql: str, answer: Answer) -> None:
        if isinstance(answer, Failure):
            if not answer.lost:
                self._lose(f"{sql}: {answer.message}")
        elif sql == WHO:
            ((pid, start),) = answer.rows
            session.identify(int(pid or 0))
            self._backend = None if session.is_pooled else Backend(int(pid or 0), (start or b"").decode())
            self._own.extend(self._set_up(session))

    def _answered(self, statement: Statement, answer: Answer, seconds: float) -> None:
        """Pass on the answer to a statement, which took so long, and send the next one."""
        if statement.is_named:
            self.stats[statement.query.name].add(seconds)
        statement.done(answer)
        self._send_next()

    def _lose(self, reason: str) -> None:
        """Report the loss and reconnect later; statements are answered as lost, but wait on if it was not up yet."""
        was_up = self.is_up
        self.losses += 1
        if self._backend is not None:  # else it was a pooler's, or is not known yet
            self.old_backends.append(self._backend)
            self._backend = None
        if was_up and self._loop.now - self._up_since >= STABLE_S:
            self._delay = FIRST_DELAY_S
        session = self._disconnect()
        self._back_off()
        self._connecting = Task(self._loop, self._connect(), self._connected).start()
        reason = one_line(reason)
        if was_up:
            self._fail_all(session, reason)
        else:
            self.refusal = reason
        if self._is_open:
            self._on_down(reason)

    def _disconnect(self) -> Session | None:
        session, self._session, self.is_up = self._session, None, False
        if session is not None:
            session.close()
        return session

    def _fail_all(self, session: Session | None, reason: str) -> None:
        """Answer as lost what was under way, with the server's SQLSTATE if it had one, and what was queued."""
        queued, self._queue = self._queue, deque()
        if session is not None and session.statement is not None:
            state = session.answer.sqlstate if isinstance(session.answer, Failure) else None
            session.statement.done(Failure(state, reason, lost=True))
        for statement in queued:
            statement.done(Failure(None, reason, lost=True))


class ConnectionPool:
    """Up to `count` connections `name 1`, `name 2`..., opened when first needed, for work of the kind `need`.

    An attempt to connect fails when the server refuses the log-in, when it cannot be reached, or when the session
    cannot be set up; the reason names which. Each that fails is reported, and when all connections are up again.
    """

    def __init__(
        self, loop: Loop, name: str, need: ConnectionKind, conninfo: str, count: int, settings: Sequence[str],
        report: Callable[[ConnectionsChanged], None], *, reconnect_max: float,
        on_down: Callable[[Connection, str], None],
    ) -> None:  # fmt: skip
        self.login, self.count, self._reconnect_max = libpq.login_of(conninfo), count, reconnect_max
        self.connections: list[Connection] = []
        self._loop, self._name, self._need, self._conninfo = loop, name, need, conninfo
        self._settings, self._report, self._on_down = settings, report, on_down
        self._opened = 0  # connections, ever
        self._has_reported = False  # that an attempt failed
        self._busy: set[Connection] = set()
        self._waiting: dict[Timer, Callable[[Connection | None], None]] = {}

    def resize(self, count: int) -> None:
        """Open up to so many connections from now on; connections that are open stay."""
        self.count = count

    def add(self) -> Connection:
        self._opened += 1
        connection = Connection(
            self._loop, f"{self._name} {self._opened}", self._conninfo, settings=self._settings, on_up=self._up,
            on_down=lambda reason: self._down(connection, reason), reconnect_max=self._reconnect_max,
        )  # fmt: skip
        self.connections.append(connection)
        connection.open()
        return connection

    def drop(self, connection: Connection) -> None:
        connection.close()
        self.connections.remove(connection)
        self._report_if_reachable()

    def close(self) -> None:
        """Close every connection: statements under way are answered as lost, those that wait not at all."""
        self._waiting.clear()
        for connection in self.connections:
            connection.close()

    def acquire(self, deadline: float) -> Steps[Connection]:
        """Wait for a connection that is up and free, first come, first served. Errors: TimeoutError."""
        connection: Connection | None = yield Callback(partial(self._enqueue, deadline))
        if connection is None:
            raise TimeoutError
        return connection

    def release(self, connection: Connection) -> None:
        """Let the next one have a connection that was acquired."""
        self._busy.discard(connection)
        self._hand_out()

    def _enqueue(self, deadline: float, resume: Callable[[Connection | None], None]) -> Stop:
        def leave() -> object:
            timer.cancel()
            return self._waiting.pop(timer, None)

        def expire() -> None:
            if leave() is not None:  # else the pool was closed
                resume(None)

        timer = self._loop.at(deadline, expire)
        self._waiting[timer] = resume
        self._hand_out()
        return leave

    def _hand_out(self) -> None:
        """Hand connections that are free to those that wait; open one more if too few are coming up."""
        while self._waiting:
            connection = next((each for each in self.connections if each.is_up and each not in self._busy), None)
            if connection is None:
                break
            timer = next(iter(self._waiting))
            timer.cancel()
            self._busy.add(connection)
            self._waiting.pop(timer)(connection)
        coming = sum(not connection.is_up for connection in self.connections)
        if coming < len(self._waiting) and len(self.connections) < self.count:
            self.add()

    def _up(self) -> None:
        self._report_if_reachable()
        self._hand_out()

    def _down(self, connection: Connection, reason: str) -> None:
        if connection.refusal is not None:
            self._report_refused(connection)
        self._on_down(connection, reason)

    def _report_refused(self, connection: Connection) -> None:
        self._has_reported = True
        up = sum(each.is_up for each in self.connections)
        self._report(ConnectionsChanged(self._need, self.login, connection.refusal, connection.retry_in, up))

    def _report_if_reachable(self) -> None:
        """Report that no attempt to connect fails any more, or one that still does; if a failure was reported."""
        refused = next((each for each in self.connections if each.refusal is not None), None)
        if self._has_reported and refused is not None:
            self._report_refused(refused)
        elif self._has_reported:
            self._has_reported = False
            self._report(ConnectionsChanged(self._need, self.login, None))
