"""Logins at the database, and the sessions that requests share.

A visitor, who has not signed in, sees what drover_readonly may see: states, but neither the data of jobs nor the output
of agents. Every session is read-only but for the moment in which it inserts a command.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import ConnStatus, TransactionStatus

from scheduler.cli.database_session import MASKED, NOTHING, Session, open_session, translated_errors
from scheduler.drivers.statements import STANDARD, setting
from scheduler.errors import DroverError, WorldError
from scheduler.web import role_logins

APPLICATION: Final = "drover web"
MOST_SESSIONS: Final = 4  # of one login
WAIT_S: Final = 10.0  # for a free session
IDLE_S: Final = 60.0  # then a session is closed
PROOF_S: Final = 10.0  # so long the database need not be asked again whether it lets this login in
STATEMENT_LIMIT_MS: Final = 10_000
TOO_LONG: Final = (  # no setting of the server changes that
    f"a statement of a page may take {STATEMENT_LIMIT_MS // 1000} s: choose fewer jobs, by type, queue or age, "
    "or ask by a command: drover ls, drover status"
)
CONNECT_LIMIT_S: Final = 10
REFUSED: Final = ("authentication failed", "does not exist", "not permitted to log in")  # words of the server
Result = TypeVar("Result")


class LoginRefusedError(Exception):
    """The database does not let this login in any more; no form catches this as an answer to a command."""


class _Kept(NamedTuple):
    """A session that no request uses."""

    session: Session
    close: ExitStack
    since: float


class Login:
    """A login at the database, whose few sessions are opened when they are needed and closed when they idle."""

    def __init__(self, conninfo: str, *, is_visitor: bool, role: str = "") -> None:
        """`role` is that of a person who gave it and its password; each session is checked to be that one's."""
        self.conninfo = make_conninfo(conninfo, fallback_application_name=APPLICATION, connect_timeout=CONNECT_LIMIT_S)
        self.is_visitor, self.role = is_visitor, role
        self._kept: list[_Kept] = []
        self._proven = -inf
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MOST_SESSIONS)
        self._computed: dict[str, tuple[float, Any]] = {}
        self._computing: dict[str, threading.Lock] = {}

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Yield a session of the pool. Errors: DroverError, as of every command; WorldError if all are busy."""
        if not self._places.acquire(timeout=WAIT_S):
            raise WorldError("the database answers too slowly: all sessions of the dashboard are busy")
        try:
            with translated_errors("sign in as a role that has the right", TOO_LONG):
                self._prove()
                session, close = self._taken() or self._opened()
                try:
                    yield session
                finally:
                    self._put_back(session, close)
        finally:
            self._places.release()

    def _prove(self) -> None:
        """Log in anew now and then: an open session outlives its password, and the right of its role to log in."""
        if monotonic() - self._proven < PROOF_S:
            return
        try:
            with psycopg.connect(self.conninfo) as connection:
                self._check(connection)
        except (psycopg.Error, DroverError) as error:
            self.close_idle(0.0)
            if isinstance(error, psycopg.Error) and any(words in str(error) for words in REFUSED):
                raise LoginRefusedError("the database does not let this role in any more: sign in again") from error
            raise
        self._proven = monotonic()

    def _check(self, connection: psycopg.Connection) -> None:
        """Check that the connection is that of the person who gave role and password."""
        if self.role:
            role_logins.check(connection, self.conninfo, self.role)

    def cached(self, key: str, seconds: float, compute: Callable[[], Result]) -> Result:
        """Return a value that is at most so old, for all requests of this login: one computes it, the others wait."""
        with self._lock:
            lock = self._computing.setdefault(key, threading.Lock())
        with lock:
            at, value = self._computed.get(key, (-seconds, None))
            if monotonic() - at >= seconds:
                value = compute()
                self._computed[key] = monotonic(), value
            result: Result = value
        return result

    def close_idle(self, older_s: float = IDLE_S) -> None:
        """Close the sessions that were not used for so long."""
        limit = monotonic() - older_s
        with self._lock:
            old = [kept for kept in self._kept if kept.since <= limit]
            self._kept = [kept for kept in self._kept if kept.since > limit]
        for kept in old:
            kept.close.close()

    def _put_back(self, session: Session, close: ExitStack) -> None:
        if session.connection.info.transaction_status != TransactionStatus.IDLE:
            close.close()
            return
        with self._lock:
            self._kept.append(_Kept(session, close, monotonic()))

    def _taken(self) -> tuple[Session, ExitStack] | None:
        while True:
            with self._lock:
                if not self._kept:
                    return None
                kept = self._kept.pop()
            if _is_open(kept.session.connection):
                return kept.session, kept.close
            kept.close.close()

    def _opened(self) -> tuple[Session, ExitStack]:
        close = ExitStack()
        try:
            session = close.enter_context(open_session(self.conninfo))
            self._check(session.connection)
            session.connection.execute(setting(STANDARD))
            session.run("limit_session", limit_ms=str(STATEMENT_LIMIT_MS))
            if self.is_visitor:
                session.run("be_visitor")
        except BaseException:
            close.close()
            raise
        return session, close


@contextmanager
def writing(session: Session) -> Iterator[None]:
    """Run a transaction that may write."""
    with session.connection.transaction():
        session.connection.execute("set transaction read write")
        yield


def shows_states_only(session: Session) -> bool:
    """Return whether the role sees no data of jobs, so that visitors may see all that it sees."""
    return session.access["jobqueue"] in (MASKED, NOTHING)


def _is_open(connection: psycopg.Connection) -> bool:
    """Return whether the connection is open; this reads what the server has sent since the last use."""
    try:
        connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return False
    return connection.pgconn.status == ConnStatus.OK
