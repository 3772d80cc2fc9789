"""Up to so many connections of one kind, opened when first needed, and whether they can be made.

An attempt to connect fails when the server refuses the log-in, when it cannot be reached, or when the session cannot
be set up; the reason names which. It is reported at each attempt that fails, and when all connections are up again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from scheduler.drivers.loop import Loop
from scheduler.drivers.postgres import Connection
from scheduler.drivers.postgres_connect import login_of
from scheduler.drivers.steps import Steps, Stop
from scheduler.model.events import ConnectionKind, ConnectionsChanged


class ConnectionPool:
    """Connections that are named `name N`, of a role that work of the kind `need` logs in as."""

    def __init__(
        self,
        loop: Loop,
        name: str,
        need: ConnectionKind,
        conninfo: str,
        count: int,
        settings: Sequence[str],
        report: Callable[[ConnectionsChanged], None],
        *,
        reconnect_max: float,
        on_down: Callable[[Connection, str], None],
    ) -> None:
        self.login, self.count, self.reconnect_max = login_of(conninfo), count, reconnect_max
        self.connections: list[Connection] = []
        self._loop, self._name, self._need, self._conninfo = loop, name, need, conninfo
        self._settings, self._report, self._on_down = settings, report, on_down
        self._opened = 0  # connections, ever
        self._has_reported = False  # that an attempt failed
        self._busy: set[Connection] = set()
        self._waiting: dict[Acquire, Callable[[Connection], None]] = {}

    def add(self) -> Connection:
        """Open one more connection."""
        self._opened += 1
        connection = Connection(
            self._loop,
            f"{self._name} {self._opened}",
            self._conninfo,
            settings=self._settings,
            on_up=self._up,
            on_down=lambda reason: self._down(connection, reason),
            reconnect_max=self.reconnect_max,
        )
        self.connections.append(connection)
        connection.open()
        return connection

    def drop(self, connection: Connection) -> None:
        """Close a connection for good."""
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
        connection: Connection | None = yield Acquire(self, deadline)
        if connection is None:
            raise TimeoutError
        return connection

    def release(self, connection: Connection) -> None:
        """Let the next one have a connection that was acquired."""
        self._busy.discard(connection)
        self._hand_out()

    def _hand_out(self) -> None:
        """Hand connections that are free to those that wait; open one more if too few are coming up."""
        while self._waiting and (connection := self._free()):
            self._busy.add(connection)
            next(iter(self._waiting.values()))(connection)
        coming = sum(not connection.is_up for connection in self.connections)
        if coming < len(self._waiting) and len(self.connections) < self.count:
            self.add()

    def _free(self) -> Connection | None:
        return next((each for each in self.connections if each.is_up and each not in self._busy), None)

    # ---- whether connections can be made

    def _up(self) -> None:
        self._report_if_reachable()
        self._hand_out()

    def _down(self, connection: Connection, reason: str) -> None:
        if connection.refusal is not None:
            self._report_refused(connection, connection.refusal)
        self._on_down(connection, reason)

    def _report_refused(self, connection: Connection, refusal: str) -> None:
        self._has_reported = True
        up = sum(each.is_up for each in self.connections)
        self._report(ConnectionsChanged(self._need, self.login, refusal, connection.retry_in, up))

    def _report_if_reachable(self) -> None:
        """Report that every connection is up that was refused, or else another that is refused still."""
        if not self._has_reported:
            return
        for connection in self.connections:
            if connection.refusal is not None:
                self._report_refused(connection, connection.refusal)
                return
        self._has_reported = False
        self._report(ConnectionsChanged(self._need, self.login, None))


@dataclass(frozen=True, eq=False)
class Acquire:
    """Wait for a free connection of a pool; resumed with it, or with None at the deadline."""

    pool: ConnectionPool
    deadline: float

    def begin(self, loop: Loop, resume: Callable[[Connection | None], None]) -> Stop:
        """Join the queue."""

        def stop() -> None:
            timer.cancel()
            self.pool._waiting.pop(self, None)

        def come(connection: Connection | None) -> None:
            timer.cancel()
            if self.pool._waiting.pop(self, None) is not None:  # else the pool was closed
                resume(connection)

        timer = loop.at(self.deadline, partial(come, None))
        self.pool._waiting[self] = come
        self.pool._hand_out()
        return stop
