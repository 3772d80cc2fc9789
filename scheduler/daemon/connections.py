"""The queue, watch and lease connections of a daemon: what is set on them, and what is done when one is up or lost.

While a connection fails it is tried again every few seconds, and a line for each try would bury all others: it is
logged when that begins, when the reason changes and when it is over (ConnectionLog). `drover status` shows it as long
as it lasts. Statements that are refused are the matter of drivers/statement_runner.py.

After the queue connection was lost its old server process is ended, and rows and memory are compared (`_reconcile`).
Nothing is claimed before. A row of ours that is not in memory, whose claim was cut off, is given back. A row in memory
that is not ours in the database is let go: a server that took over from another may not have the claim, and
the daemon that has the row now works on it.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol
from uuid import uuid4

from scheduler.daemon.lease_renewal import LOST, longest_wait
from scheduler.daemon.log import log_line
from scheduler.daemon.wakeups import LISTEN_TO_QUEUE, ListenProbe, NotifyRateLimit
from scheduler.drivers.libpq import with_parameters, writable
from scheduler.drivers.loop import Loop, Steps, Task
from scheduler.drivers.postgres import Connection
from scheduler.drivers.queue import QueueConnection
from scheduler.drivers.queue import settings as queue_settings
from scheduler.drivers.statement_runner import RefusedStatements, Statements, answer_to
from scheduler.drivers.statements import OURS, Failure, Query, Stat, setting
from scheduler.model import events_and_effects as e
from scheduler.model.config import Config, Scheduler
from scheduler.model.counters import Counted
from scheduler.model.queue_requests import Cells
from scheduler.policy.core import Core

QUEUE, WATCH, LEASE = "queue connection", "watch connection", "lease connection"
NEEDED: Final[dict[e.ConnectionKind, tuple[str, str]]] = {  # and what waits without it
    "queries": ("expansion connection", "SQL jobs wait"),
    "statements": ("agent-database connection", "jobs of types with db = statements or sql wait"),
}
LISTEN: Final = (
    "listen drover_due", "listen drover_change", "listen drover_command", "listen drover_recovery",
    "listen drover_delivery",
)  # fmt: skip
KNOWN_REASONS: Final = 8  # of one failure, which are not logged again: two that alternate are no news

# A function or type of another schema must not hide the one of that name that a statement means.
SAFE_PATH: Final = "set search_path = pg_catalog, pg_temp"

# The statements of queue and watch touch few rows of tables that may be huge, and their plans are kept: one made while
# a table was empty, or full of dead rows, must hold when it is full of others. So rows are found by index, one by one.
PLANS: Final = (
    "set jit = off",
    *(f"set enable_{node} = off" for node in ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin")),
)


def watch_settings(timers: Scheduler) -> list[str]:
    """Return what the watch connection sets: it listens, and waits for no lock so long that the lease would lapse."""
    return [*LISTEN, *lease_settings(timers)]


def lease_settings(timers: Scheduler) -> list[str]:
    """Return what the lease connection sets."""
    return [setting(OURS), f"set lock_timeout = {max(1, round(longest_wait(timers) * 1000))}", "set jit = off"]


class WatchTasks(Protocol):
    """The periodic tasks and the lease, as the connections call them (watch_connection.py)."""

    owner: str  # our uuid, of now

    def up(self) -> None: ...
    def down(self) -> None: ...
    def lease_down(self) -> None: ...
    def notified(self, channel: str) -> None: ...
    def poll(self) -> None: ...
    def show_soon(self) -> None: ...
    def rescue_answered(self, rows: Sequence[Cells]) -> None: ...


class Connections:
    """The queue, watch and lease connections; `changed` is called when one is lost or refuses statements."""

    def __init__(
        self, loop: Loop, config: Config, conninfo: str, core: Core, queries: Mapping[str, Query], schedinfo: str,
        tasks: WatchTasks, changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._loop, self._core, self.queries, self._schedinfo = loop, core, queries, schedinfo
        self._tasks, self._changed = tasks, changed
        self._timers = config.scheduler
        self.log = ConnectionLog(log_line, lambda: loop.now)
        self.refused = RefusedStatements(log_line, self._refused)
        self.rate_limit = NotifyRateLimit(loop, tasks.notified, self._timers.wake_interval)
        self.is_queue_ready = False
        self._took_over = False  # from a program before us, whose connections are lost
        self._reconciling: Task[None] | None = None
        self._create(writable(conninfo), f"listen drover_probe_{uuid4().hex}")
        self.set_owner(tasks.owner)

    def _create(self, conninfo: str, probe: str) -> None:
        """Create the connections, and the probe that `watch` listens for; nothing is open yet."""
        timers = self._timers
        connect = partial(Connection, self._loop, reconnect_max=timers.reconnect_max)
        self.queue = connect(
            "queue", with_parameters(conninfo, application_name="drover queue"),
            settings=(SAFE_PATH, *queue_settings(timers.lock_limit), *PLANS, LISTEN_TO_QUEUE),
            on_up=self._queue_up, on_down=self._queue_down, on_notify=self.rate_limit.notified,  # not of a probe
        )  # fmt: skip
        self.watch = connect(
            "watch", with_parameters(conninfo, application_name="drover watch"),
            settings=(SAFE_PATH, *watch_settings(timers), probe, *PLANS),
            on_up=self._watch_up, on_down=self._watch_down, on_notify=self._notified,
        )  # fmt: skip
        self.lease = connect(
            "lease", with_parameters(conninfo, application_name="drover lease"),
            settings=(SAFE_PATH, *lease_settings(timers), *PLANS), on_up=self._lease_up, on_down=self._lease_down,
        )  # fmt: skip
        self._probe = ListenProbe(
            self._loop, self.queries["probe_listen"], self.queue, self.watch, [*LISTEN, probe], self.refused,
            self._tasks.poll, log_line, every=timers.rescan, poll_interval=timers.poll_interval,
        )  # fmt: skip
        self.refused.attach(self.queue, self.watch, notify_is_full=self._probe.start)

    def open(self) -> None:
        """Connect, and connect again whenever a connection is lost; the lease connection comes last."""
        self.queue.open()
        self.watch.open()

    def close(self) -> None:
        for connection in self._all:
            connection.close()

    @property
    def _all(self) -> tuple[Connection, ...]:
        return self.queue, self.watch, self.lease

    def set_owner(self, owner: str) -> None:
        """Work under this uuid from now on: another one after the group was lost."""
        self._requests = QueueConnection(
            self._loop, self.queue, self.queries, owner, self._timers.group, self._schedinfo, self._answered,
            self.refused,
        )  # fmt: skip

    def take_over(self, owner: str, backend: Sequence[Any] | None) -> None:
        """Continue the work of a program before us, whose connections are lost; `backend` was its server process."""
        self._took_over = True
        self.set_owner(owner)
        if backend is not None:
            self.queue.add_old_backend(int(backend[0]), str(backend[1]))

    def send_request(self) -> None:
        """Send the core's next request, if the queue connection is free for it."""
        if self.is_queue_ready and self.queue.is_idle:
            request = self._core.next_request(self._loop.now)
            if request is not None:
                self._requests.send(request)

    def stats(self) -> dict[str, Stat]:
        """Return what was asked of the database, by statement."""
        total: dict[str, Stat] = {}
        for connection in self._all:
            total |= {name: total.get(name, Stat()) + stat for name, stat in connection.stats.items()}
        return total

    def take_counted(self) -> Counted:
        """Return what was counted for drover metrics since the last call."""
        return self._requests.take_counted()

    @property
    def is_away(self) -> bool:
        """Return whether the database cannot be reached, or not again."""
        return not self.watch.is_up or (self.queue.losses > 0 and not self.queue.is_up)

    def reachability_changed(self, event: e.ConnectionsChanged) -> None:
        """Log that a connection that some work needs cannot be made, or can again; begin none of it, or begin it."""
        name, waiting = NEEDED[event.need]
        what = f"{name}{event.login and f' as {event.login}'}"
        if event.reason is None:
            self.log.recovered(what)
        else:
            self.log.failed(what, event.reason, effect=f"; {waiting}; see drover check")
        self._core.handle(event, self._loop.now)
        self._tasks.show_soon()

    # ---- up and down

    def _open_lease(self) -> None:
        """Open the lease connection, once the other two are up: the login may have too few for three."""
        if self.queue.is_up and self.watch.is_up:
            self.lease.open()

    def _leave_lease(self, refusal: str | None) -> None:
        """Close the lease connection if another one cannot be made: it may get the place."""
        if refusal is not None:
            self.lease.close()
            self._tasks.lease_down()

    def _queue_up(self) -> None:
        self._open_lease()
        if not self.log.recovered(QUEUE):
            log_line("info", f"{QUEUE}: up")
        if self.queue.losses or self._took_over:
            self._reconciling = Task(self._loop, self._reconcile(self._tasks.owner)).start()
        else:
            self.is_queue_ready = True
            if not self.queue.is_pooled:
                self._requests.prepare()

    def _queue_down(self, reason: str) -> None:
        self.is_queue_ready = False
        if self._reconciling:
            self._reconciling.stop()
        self.refused.clear()
        self.log.failed(QUEUE, reason)
        self._leave_lease(self.queue.refusal)
        self._tasks.show_soon()
        self._changed()

    def _watch_up(self) -> None:
        self.log.recovered(WATCH)
        self._tasks.up()
        self._probe.start()
        self._open_lease()

    def _watch_down(self, reason: str) -> None:
        self._tasks.down()
        self.refused.clear()
        self.log.failed(WATCH, reason)
        self._leave_lease(self.watch.refusal)
        self._changed()

    def _lease_up(self) -> None:
        self.log.recovered(LEASE)

    def _lease_down(self, reason: str) -> None:
        self._tasks.lease_down()
        self.log.failed(LEASE, reason, effect=LOST)

    def _notified(self, channel: str) -> None:
        if not self._probe.arrived(channel):
            self.rate_limit.notified(channel)

    def _answered(self, event: e.Event) -> None:
        """Report the answer to a request; a claim that finds something was worth its wake-up.

        Its rows follow: the next request is sent before they are read, unless they are few.
        """
        self._core.handle(event, self._loop.now)
        if isinstance(event, e.EndedAndClaimed) and event.found:
            self.rate_limit.was_worthwhile("drover_queue")
            if not event.claims:
                self.send_request()

    def _refused(self, text: str | None) -> None:
        """Show that other statements are refused than before."""
        self._core.report.show_refused(text)
        self._tasks.show_soon()
        self._changed()

    def _reconcile(self, owner: str) -> Steps[None]:
        """Make rows and memory agree; then requests are sent again."""
        while backends := self.queue.old_backends:
            answer = yield from answer_to(self.queue, self.queries["end_backend"], backends[0]._asdict())
            if isinstance(answer, Failure) and answer.lost:
                return
            backends.popleft()
        statements = Statements(self._loop, self.queue, self.queries, self.refused)
        ours = {"group": self._timers.group, "owner": owner}
        rows = self._core.in_hand()
        pks, attempts = [pk for pk, _ in rows], [attempt for _, attempt in rows]
        not_ours = yield from statements.insist("find_lost", **ours, pks=pks, attempts=attempts)
        strayed = {int(pk or 0) for (pk,) in not_ours.rows}
        if strayed:
            self._core.handle(e.RowsLost(tuple(row for row in rows if row[0] in strayed)), self._loop.now)
        given_back = yield from statements.insist("rescue", **ours, live=self._core.live_rows(), age=0.0)
        self._tasks.rescue_answered(list(given_back.rows))
        self.is_queue_ready = True
        self._core.handle(e.Woken(), self._loop.now)


class ConnectionLog:
    """The connections of one daemon that fail, by name."""

    def __init__(self, log: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._since: dict[str, float] = {}
        self._reasons: dict[str, deque[str]] = {}  # that were logged, the last one last

    def failed(self, name: str, reason: str, effect: str = "") -> None:
        """Note that it failed, and log it, with its effect, unless that was logged before."""
        self._since.setdefault(name, self._clock())
        reasons = self._reasons.setdefault(name, deque(maxlen=KNOWN_REASONS))
        if reason not in reasons:
            self._log("warning", f"{name}: {reason}{effect}")
        else:
            reasons.remove(reason)
        reasons.append(reason)

    def recovered(self, name: str) -> bool:
        """Log that it is up again, and for how long it was not; return False if it has not failed."""
        if name not in self._since:
            return False
        del self._reasons[name]
        self._log("info", f"{name}: up again after {self._clock() - self._since.pop(name):.0f} s")
        return True

    def failing(self) -> list[dict[str, Any]]:
        """Return what fails now: what, why, and for how many seconds."""
        now = self._clock()
        return [
            {"what": name, "reason": self._reasons[name][-1], "seconds": round(now - since, 1)}
            for name, since in self._since.items()
        ]
