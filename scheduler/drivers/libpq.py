"""libpq without blocking: connecting, one statement at a time, cancelling, and connection strings.

Touches libpq through `psycopg.pq`; tests/drivers holds the contract of what is relied on there. Connecting does not
block except for the look-up of a host name; so `getent` does that, behind a pipe, and libpq is given addresses. A host
that comes from a service file is not seen here: give such a service its hostaddr.
"""

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from select import EPOLLIN, EPOLLOUT
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.drivers.loop import Loop, Steps, Task, Timer, Until, ready
from scheduler.drivers.statements import (
    Answer,
    Done,
    Failure,
    Query,
    Rows,
    Sink,
    explained,
    one_line,
    read_failure,
    read_rows,
)
from scheduler.errors import WorldError

CONNECT_LIMIT_S: Final = 15.0
CANCEL_GRACE_S: Final = 5.0  # between a cancel and the end of the connection
CANCEL_AGAIN_S: Final = 0.2
READ_BYTES: Final = 65_536
CHUNK_ROWS: Final = 50  # of a result that is read as it comes
RESOLVERS: Final = frozenset(("PATH", "LOCALDOMAIN", "RES_OPTIONS", "HOSTALIASES"))  # resolv.conf(5), hostname(7)
EVENTS: Final[dict[int, int]] = {pq.PollingStatus.READING: EPOLLIN, pq.PollingStatus.WRITING: EPOLLOUT}
HOST_NAME: Final = re.compile(r"(?!([0-9]+\.){3}[0-9]+$)[A-Za-z0-9_][A-Za-z0-9_.-]*")  # and no IPv4 address

# What the operator's connection string may override. A silent network is noticed within half a minute.
DEFAULTS: Final[dict[str, Any]] = {
    "client_encoding": "utf8",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

DISCARD: Final = "discard all"
STALE: Final = frozenset(("0A000", "26000"))  # the plan of a table that has changed; a statement that is gone
CANCELLED: Final = Failure("57014", "canceling statement due to user request")
NO_COPY: Final = "COPY from or to the client is not possible here"

_Status = pq.ExecStatus
_GOOD: Final = frozenset((_Status.TUPLES_OK, _Status.COMMAND_OK, _Status.EMPTY_QUERY))
_COPY: Final = frozenset((_Status.COPY_IN, _Status.COPY_OUT, _Status.COPY_BOTH))


class UnreachableError(WorldError):
    """An attempt to connect failed."""


def connect(name: str, conninfo: str, deadline: float, shift: int = 0) -> Steps[pq.abc.PGconn]:
    """Connect and return the connection. Errors: UnreachableError, which says why.

    `shift` is how many of several servers are passed over at first.
    """
    try:
        parameters = {**DEFAULTS, "fallback_application_name": f"drover {name}", **conninfo_to_dict(conninfo)}
        is_known = parameters.get("hostaddr") or os.environ.get("PGHOSTADDR")
        addresses: dict[str, list[str]] = {}
        for host in () if is_known else dict.fromkeys(filter(HOST_NAME.fullmatch, _hosts(parameters))):
            addresses[host] = yield from look_up(host, deadline)
        if not any(addresses.get(host, [""]) for host in _hosts(parameters)):
            raise UnreachableError(", ".join(f"host {host!r} has no address" for host in addresses))
        return (yield from _connect(rotated(with_addresses(parameters, addresses), shift), deadline))
    except TimeoutError as error:
        raise UnreachableError(f"no connection within {CONNECT_LIMIT_S:.0f} s") from error
    except psycopg.ProgrammingError as error:
        raise UnreachableError(f"connection string: {one_line(str(error))}") from error


def _connect(parameters: dict[str, Any], deadline: float) -> Steps[pq.abc.PGconn]:
    pg = pq.PGconn.connect_start(make_conninfo("", **parameters).encode())
    try:
        if pg.status == pq.ConnStatus.BAD:
            raise UnreachableError(explained(pg.get_error_message()))
        state: int = pq.PollingStatus.WRITING
        while state in EVENTS:
            # libpq may close the descriptor and open another one under the same number: `ready` forgets it each time
            yield from ready(pg.socket, EVENTS[state], deadline)
            state = pg.connect_poll()
        if state != pq.PollingStatus.OK:
            raise UnreachableError(explained(pg.get_error_message()))
    except BaseException:
        pg.finish()
        raise
    return pg


def cancel(pg: pq.abc.PGconn) -> Steps[None]:
    """Ask the server to cancel the running statement; the caller drops the connection if nothing comes of it."""
    request = pg.cancel_conn()
    try:
        request.start()
        state: int = pq.PollingStatus.WRITING
        while state in EVENTS:
            yield from ready(request.socket, EVENTS[state])  # at its end libpq has closed it
            state = request.poll()
    except psycopg.Error:
        return
    finally:
        request.finish()


def look_up(name: str, deadline: float, program: str = "getent") -> Steps[list[str]]:
    """Return the addresses of a host name, which a child process asks of the system's resolver.

    Where there is no such program, libpq looks the name up itself, and may block. Errors: TimeoutError.
    """
    none = subprocess.DEVNULL
    environment = {name: text for name, text in os.environ.items() if name in RESOLVERS}  # no password of ours
    try:
        words = [program, "ahosts", name]
        child = subprocess.Popen(words, 0, stdin=none, stdout=subprocess.PIPE, stderr=none, env=environment)
    except OSError:
        return [""]
    assert child.stdout is not None
    output, data = b"", b"begin"
    try:
        while data:
            yield from ready(child.stdout.fileno(), EPOLLIN, deadline)
            output += (data := os.read(child.stdout.fileno(), READ_BYTES))
    finally:
        child.stdout.close()
        child.kill()
        child.wait()
    # `getent ahosts` repeats an address for each socket type
    lines = (line.split() for line in output.decode("ascii", "replace").splitlines())
    return list(dict.fromkeys(address for address, *_ in filter(None, lines)))


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement to send; one that `is_named` is prepared once, `sink` takes rows before the answer."""

    query: Query
    params: list[bytes | None]
    done: Done
    is_named: bool = True
    limit: float | None = None  # seconds
    sink: Sink | None = None
    is_own: bool = False  # of the session, as its settings are


class Session:
    """A connection that was made, until it is closed; at most one statement is under way.

    `answered` is called with how long the statement took, `stopped` when a cancel request ends after its statement.
    After `lost` it is of no use, and to be closed. Errors: UnreachableError, no descriptor is left.
    """

    def __init__(
        self, loop: Loop, name: str, pg: pq.abc.PGconn, answered: Callable[[Statement, Answer, float], None],
        notified: Callable[[str], None], lost: Callable[[str], None], stopped: Callable[[], None],
    ) -> None:  # fmt: skip
        self.name, self.pg = name, pg
        self._answered, self._notified, self._lost, self._stopped = answered, notified, lost, stopped
        self.statement: Statement | None = None  # that is under way
        self.answer: Answer | None = None  # to it, as far as it was read
        self.preparing: bytes | None = None  # the name under which the server is preparing it
        self.prepared: dict[Query, bytes] = {}
        self.is_cancelling = False  # a request is under way
        self.is_pooled = False  # nothing is prepared, and nothing cancelled
        self._loop, self._is_closed, self._is_flushing = loop, False, False
        self._serial, self._sent_at = 0, 0.0
        self._sink: Sink | None = None
        self._canceller: Task[None] | None = None
        self._deadline: Timer | None = None
        self._drop: Timer | None = None
        pg.nonblocking = 1
        self._fd = _watchable(pg)
        loop.register(self._fd, EPOLLIN, self._ready)

    def identify(self, pid: int) -> None:
        """Note which server process serves us: a pooler if it is not the one that accepted us."""
        self.is_pooled = pid != self.pg.backend_pid

    def send(self, statement: Statement) -> None:
        """Send a statement; none is under way."""
        self.statement, self._sink, self._sent_at = statement, statement.sink, self._loop.now
        self.answer = self.preparing = None
        try:
            self._write(statement)
            self._flush()
        except psycopg.Error as error:
            return self._lose(_plain(error))
        if statement.limit is not None:  # the server works already
            self._deadline = self._loop.at(self._sent_at + max(statement.limit, 0.0), self.cancel)
        return None

    def cancel(self) -> None:
        """Ask the server to stop what runs; the connection is lost if it has not stopped within 5 s."""
        if self.statement is None or self._drop:
            return
        late = f"no answer within {CANCEL_GRACE_S:.0f} s of a cancel"
        seconds, why = (0.0, "dropped to stop a statement") if self.is_pooled else (CANCEL_GRACE_S, late)
        self._drop = self._loop.at(self._loop.now + seconds, partial(self._lose, why))
        if not self.is_pooled:
            self._canceller = Task(self._loop, self._cancel_until_ended(self.statement)).start()

    def close(self) -> None:
        """Disconnect; nothing is called any more."""
        self._is_closed, self.is_cancelling = True, False
        self._forget_timers()
        if self._canceller:
            self._canceller.stop()
        self._loop.unregister(self._fd)
        os.close(self._fd)
        self.pg.finish()

    def _write(self, statement: Statement) -> None:
        if not statement.is_named:
            self.pg.send_query_params(_text(statement), None)
        elif self.is_pooled:
            self.pg.send_query_params(_text(statement), statement.params)
        elif name := self.prepared.get(statement.query):
            self.pg.send_query_prepared(name, statement.params)
        else:
            self._serial += 1
            self.preparing = f"{statement.query.name}/{self._serial}".encode()
            self.pg.send_prepare(self.preparing, _text(statement))
            return
        if self._sink:
            self.pg.set_chunked_rows_mode(CHUNK_ROWS)

    def _flush(self) -> None:
        """Wait for room as long as something is unsent."""
        unsent = bool(self.pg.flush())
        if unsent != self._is_flushing:
            self._is_flushing = unsent
            self._loop.modify(self._fd, EPOLLIN | EPOLLOUT if unsent else EPOLLIN)

    def _ready(self, _mask: int) -> None:
        """Read what has come; an idle connection is "not busy" too, hence the check for a statement."""
        pg = self.pg
        channels: dict[str, None] = {}
        try:
            pg.consume_input()
            if self._is_flushing:
                self._flush()
            while not self._is_closed and self.statement and not pg.is_busy():
                result = pg.get_result()
                if result is None:
                    self._finish(self.statement)
                else:
                    self._read(self.statement, result)
            # libpq sees what came behind a result only after that: nothing may make us look again
            while not self._is_closed and (notice := pg.notifies()):
                channels[notice.relname.decode()] = None
        except psycopg.Error as error:
            return self._lose(_plain(error))
        for channel in channels:  # each once
            self._notified(channel)
        return None

    def _read(self, statement: Statement, result: pq.abc.PGresult) -> None:
        status = result.status
        if status == _Status.TUPLES_CHUNK:
            if self._sink and not self._sink(read_rows(result)):
                self._sink = None
                self.cancel()
        elif status in _GOOD:
            self.answer = read_rows(result)
        elif status in _COPY:  # neither direction of a COPY has an end that could be waited for here
            self.statement = None
            self._lost(NO_COPY)
            statement.done(Failure("0A000", NO_COPY))
        else:
            self.answer = read_failure(result)

    def _finish(self, statement: Statement) -> None:
        """Pass on the answer, or run what was prepared, under the same deadline."""
        answer = self.answer or Failure(None, "the server gave no answer")
        if self.pg.status == pq.ConnStatus.BAD:
            return self._lose("connection lost")
        if self.preparing and isinstance(answer, Rows):
            self.prepared[statement.query], self.preparing, self.answer = self.preparing, None, None
            if not self.is_cancelling:
                self._write(statement)
                return self._flush()
            answer = CANCELLED
        if isinstance(answer, Failure) and answer.sqlstate in STALE:
            self.prepared.pop(statement.query, None)
        if statement.query.sql == DISCARD:
            self.prepared.clear()
        self._forget_timers()
        self.statement = None
        return self._answered(statement, answer, self._loop.now - self._sent_at)

    def _lose(self, reason: str) -> None:
        """Report the loss; the server's last words say more than the end of file after them."""
        answer = self.answer if self.statement is not None else None
        self._lost(answer.message if isinstance(answer, Failure) else reason)

    def _cancel_until_ended(self, statement: Statement) -> Steps[None]:
        """Ask the server to cancel; a request that overtakes its statement is ignored there, so ask again."""
        while self._is_under_way(statement):
            self.is_cancelling = True
            yield from cancel(self.pg)
            self.is_cancelling = False
            if self._is_under_way(statement):
                yield Until(self._loop.now + CANCEL_AGAIN_S)
        if self.statement is None:
            self._forget_timers()
            self._stopped()

    def _is_under_way(self, statement: Statement) -> bool:
        return self.statement is statement

    def _forget_timers(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
        if self._drop and not self.is_cancelling:
            self._drop.cancel()
            self._drop = None


def _watchable(pg: pq.abc.PGconn) -> int:
    """Return a copy of the socket of a connection, which is open until we close it, as epoll(7) needs it.

    libpq closes its own when the connection breaks, and says so later. A process that is being started may have a copy
    then, so that the kernel would go on to report its events, and nobody could stop that. Errors: UnreachableError.
    """
    try:
        return os.dup(pg.socket)
    except OSError as error:
        pg.finish()
        raise UnreachableError(f"no descriptor is left: {error.strerror}") from error


def _text(statement: Statement) -> bytes:
    return statement.query.sql.encode("utf-8", "surrogateescape")


def _plain(error: psycopg.Error) -> str:
    """Return libpq's words without its guesses."""
    text = str(error).removeprefix("consuming input failed: ").removeprefix("flushing failed: ")
    return text.partition("This probably means")[0]


def with_addresses(parameters: dict[str, Any], addresses: dict[str, list[str]]) -> dict[str, Any]:
    """Return connection parameters with `hostaddr` for each looked-up host; a name with two addresses stands twice."""
    if not addresses:
        return parameters
    hosts = _hosts(parameters)
    ports = str(parameters.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    tries = [
        (host, address, port)
        for host, port in zip_longest(hosts, ports, fillvalue="")
        for address in addresses.get(host, [""])
    ]
    columns = zip(("host", "hostaddr", "port"), zip(*tries, strict=True), strict=True)
    lists = {key: ",".join(column) for key, column in columns}
    return parameters | {key: text for key, text in lists.items() if key == "host" or text.strip(",")}


def rotated(parameters: dict[str, Any], shift: int) -> dict[str, Any]:
    """Return them with the servers in another order, for libpq does not go on from one that accepts and is silent."""
    lists = {key: str(parameters[key]).split(",") for key in ("host", "hostaddr", "port") if parameters.get(key)}
    starts = {key: shift % len(values) for key, values in lists.items() if len(values) > 1}
    return parameters | {key: ",".join(lists[key][start:] + lists[key][:start]) for key, start in starts.items()}


def writable(conninfo: str) -> str:
    """Return a connection string for a server that can be written to, unless it says otherwise itself.

    So a daemon follows its primary to another server, and waits while there is none.
    """
    return make_conninfo("", **{"target_session_attrs": "read-write", **conninfo_to_dict(conninfo)})


def readable(conninfo: str) -> str:
    """Return it for a role that only reads: to libpq a server whose sessions begin read-only is never `read-write`."""
    wanted = _parsed(conninfo).get("target_session_attrs")
    return make_conninfo(conninfo, target_session_attrs="primary") if wanted == "read-write" else conninfo


def with_parameters(conninfo: str, **parameters: str) -> str:
    """Return a connection string with other parameters, such as `user`."""
    return make_conninfo(conninfo, **parameters)


def is_same_server(conninfo: str, other: str) -> bool:
    """Return whether two connection strings name one server."""
    ours, theirs = conninfo_to_dict(conninfo), conninfo_to_dict(other)
    return all(ours.get(key) == theirs.get(key) for key in ("service", "host", "hostaddr", "port"))


def login_of(conninfo: str) -> str:
    """Return the user that a connection string names; empty if it names none."""
    return str(_parsed(conninfo).get("user") or "")


def _parsed(conninfo: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(conninfo)
    except psycopg.Error:  # `connect` reports it
        return {}


def _hosts(parameters: dict[str, Any]) -> list[str]:
    return str(parameters.get("host") or os.environ.get("PGHOST", "")).split(",")
