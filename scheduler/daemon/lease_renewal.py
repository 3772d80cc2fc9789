"""Renews the lease of the group on a connection of its own, beside all that the daemon does.

A statement of the watch connection may run as long as statement_limit, which is longer than many a lease. Nothing but
renewals is asked on the lease connection, and no lock that work holds keeps them waiting (query `renew_lease`). While
it is not up, for the login may have too few connections, the watch connection renews the lease between its tasks.
"""

from collections.abc import Callable
from typing import Final

from scheduler.drivers.loop import Loop, Steps, Task
from scheduler.drivers.postgres import Connection
from scheduler.drivers.statement_runner import RefusedError, Statements
from scheduler.model.config import Scheduler
from scheduler.model.queue_requests import Cells
from scheduler.model.states import NEVER, LeaseState
from scheduler.policy.group_lease import Lease

LOST: Final = "; the watch connection renews the lease"  # while the lease connection is not up


def longest_wait(timers: Scheduler) -> float:
    """Return for how many seconds a renewal may wait: another one, and one more, come before the lease is over."""
    return (timers.lease - timers.lease_renewal) / 4


class LeaseRenewal:
    """The renewals of one daemon while it serves; `renewed` is called with the rows of each answer."""

    def __init__(
        self, loop: Loop, lease: Lease, connection: Connection, statements: Statements,
        renewal: Callable[[], dict[str, object]], renewed: Callable[[list[Cells]], None],
    ) -> None:  # fmt: skip
        """`renewal` returns the parameters of a renewal, as they are now."""
        self._loop, self._lease, self._connection, self._statements = loop, lease, connection, statements
        self._renewal, self._renewed = renewal, renewed
        self.is_busy = False  # a renewal is under way

    def next_deadline(self) -> float:
        """Return the instant of the next renewal, if one can be asked for."""
        is_free = self._connection.is_up and not self.is_busy and self._lease.state is LeaseState.SERVING
        return self._lease.next_deadline() if is_free else NEVER

    def step(self) -> None:
        """Begin a renewal, if it is time."""
        if self.next_deadline() <= self._loop.now and self._lease.step(self._loop.now):
            self.is_busy = True
            Task(self._loop, self._renew()).start()

    def lost(self) -> None:
        """The connection is down: what was asked is asked again."""
        if self.is_busy:
            self.is_busy = False
            self._lease.refused(self._loop.now)

    def _renew(self) -> Steps[None]:
        try:
            rows = yield from self._statements.ask("renew_lease", **self._renewal())
        except RefusedError:
            self.lost()
            return
        self.is_busy = False
        self._renewed(list(rows.rows))
