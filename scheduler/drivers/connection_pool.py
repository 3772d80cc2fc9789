"""Whether connections of one kind can be made: told when none can, at each attempt that fails, and when one can again.

Looks at the links of a driver that has several. An attempt fails when the server refuses the log-in, when it cannot be
reached, or when the session cannot be set up; which it is does not matter here, and the reason says it.
"""

from collections.abc import Callable

from scheduler.drivers.postgres import Connection
from scheduler.drivers.postgres_connect import login_of
from scheduler.model.events import ConnectionKind, ConnectionsChanged


class ConnectionHealth:
    """The links of one kind, and whether it was told that an attempt failed."""

    def __init__(self, need: ConnectionKind, conninfo: str, tell: Callable[[ConnectionsChanged], None]) -> None:
        self.links: list[Connection] = []
        self._need, self.login, self._tell = need, login_of(conninfo), tell
        self._is_told = False

    def failed(self, link: Connection) -> None:
        """Tell that an attempt to connect failed, and how many other links are up."""
        assert link.refusal is not None
        self._is_told = True
        up = sum(each.is_up for each in self.links)
        self._tell(ConnectionsChanged(self._need, self.login, link.refusal, link.retry_in, up))

    def succeeded(self) -> None:
        """Tell that every link that was refused is up, if it was told otherwise."""
        if self._is_told and all(each.refusal is None for each in self.links):
            self._is_told = False
            self._tell(ConnectionsChanged(self._need, self.login, None))
        elif self._is_told:
            self.failed(next(each for each in self.links if each.refusal is not None))
