"""The chores of a serving daemon: commands, due rows, tables that others may change, what was lost, what is shown.

Each chore has an instant, and the one that waits longest comes first, so that none starves beside another. They share
the watch connection with the lease, which goes before them (watch.py).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from scheduler.daemon.command_rows import PAUSE_S, Pass
from scheduler.daemon.commands import Act, Commands
from scheduler.daemon.table_commands import looked
from scheduler.drivers.sql import Stat, to_json
from scheduler.model.config import Scheduler
from scheduler.model.events import Woken
from scheduler.model.jobs import Cells
from scheduler.model.states import LeaseState
from scheduler.policy.core import Core
from scheduler.policy.lease import Lease

NEVER: Final = float("inf")
LOCKED_S: Final = 1.0  # until the next look for a row that somebody keeps locked
STATUS_GAP_S: Final = 1.0  # between two shows of changes
DUE_GAP_S: Final = 0.2  # between two looks for due rows
SLOW_S: Final = 1.0  # a statement that took longer is worth a warning
OWN_AGE_S: Final = 10.0  # a row of ours that is this old and not in memory was lost on its way
DAY_S: Final = 86_400.0  # from one pass over what is long over to the next


class Ask(Protocol):
    """Run a named query on the watch connection; a failure is said, and `refused` is called."""

    def __call__(
        self,
        name: str,
        values: Mapping[str, object],
        done: Callable[[list[Cells]], object],
        refused: Callable[[], object] = ...,
    ) -> None: ...


class Maintenance:
    """What a daemon does from time to time, and when each is due."""

    def __init__(
        self,
        timers: Scheduler,
        core: Core,
        lease: Lease,
        pid: int,
        ask: Ask,
        say: Callable[[str, str], None],
        clock: Callable[[], float],
        stats: Callable[[], dict[str, Stat]],
        vitals: Callable[[], dict[str, Any]],
        acts: Mapping[str, Act],
    ) -> None:
        self._timers = timers
        self._core = core
        self._lease = lease
        self._pid = pid
        self._ask = ask
        self._say = say
        self._clock = clock
        self._stats = stats
        self._vitals = vitals
        self._slowest: dict[str, float] = {}  # seconds of what was complained about
        self._pass: Pass | None = None  # over what is long over
        self._began = clock()
        self._due = dict.fromkeys(_TASKS, NEVER)
        self.commands = Commands(core, ask, self.read_commands_in, self._do_command, acts, clock)

    def take(self, timers: Scheduler) -> None:
        """Go on with another configuration."""
        self._timers = timers
        for chore in ("look", "all", "flush"):
            self.bring_forward(chore)

    # ---- when

    def all_due(self) -> None:
        """We serve, and know nothing."""
        now = self._clock()
        at_once = dict.fromkeys(("commands", "look", "due", "all", "flush"), now)
        self._due = dict.fromkeys(_TASKS, NEVER) | at_once | {"rescan": now + self._timers.rescan}
        self._core.report.show_hosts_again()

    def rescan_for_locked(self) -> None:
        """Rows that were locked when the others were given back are looked for again soon."""
        self._due["rescan"] = self._clock() + min(LOCKED_S, self._timers.rescan)

    def drop(self) -> None:
        """Nothing can be asked, or it is not for us to ask: no chore is due."""
        self._due = dict.fromkeys(_TASKS, NEVER)

    def cut_off(self) -> None:
        """The connection or the group is lost."""
        self.drop()
        self.commands.cut_off()

    def bring_forward(self, chore: str) -> None:
        """Do a chore now, if we serve."""
        if self._lease.state is LeaseState.SERVING:
            at = self._clock() + (DUE_GAP_S if chore == "due" else 0.0)
            self._due[chore] = min(self._due[chore], at)

    def read_commands_in(self, seconds: float) -> None:
        """Read commands, which those who stand by do too."""
        if self._lease.state is not LeaseState.UNREGISTERED:
            self._due["commands"] = min(self._due["commands"], self._clock() + seconds)

    def _do_command(self) -> None:
        self._due["command"] = self._clock()

    def refused(self) -> None:
        """A statement was refused: what it was for is looked at again by the belt."""
        if self._lease.state is LeaseState.SERVING:
            self._due["rescan"] = min(self._due["rescan"], self._clock() + self._timers.rescan)
        else:
            self.read_commands_in(self._timers.rescan)

    def next_deadline(self, now: float) -> float:
        """Give the instant of the next chore; changes are shown a moment later, many at once."""
        if self._lease.state is LeaseState.SERVING and self._core.report.has_slot_changes:
            self._due["status"] = min(self._due["status"], now + STATUS_GAP_S)
        if (
            self._lease.state is LeaseState.SERVING
            and self._core.report.has_host_changes
            and self._due["hosts"] == NEVER
        ):
            self._due["hosts"] = now
        return min(self._due.values())

    def step(self, now: float) -> None:
        """Begin the oldest chore, if one is due."""
        chore = min(self._due, key=self._due.__getitem__)
        if self._due[chore] <= now:
            self._due[chore] = NEVER
            _TASKS[chore](self, now)

    # ---- what

    def look_around(self, done: Callable[[], object] = lambda: None) -> None:
        """Read what others may change of queues, hosts and types, then call `done`."""

        def answered(rows: list[Cells]) -> None:
            self._core.handle(looked(rows), self._clock())
            done()

        self._ask("read_shared_settings", {}, answered)

    def _look_due(self, now: float) -> None:
        self._ask("due", {}, self._due_looked)

    def _due_looked(self, rows: list[Cells]) -> None:
        released, failed_parents, seconds = rows[0]
        now = self._clock()
        if released not in (None, b"0"):
            self._core.handle(Woken(), now)
        self._settle(failed_parents)
        if seconds is not None:
            left, is_more = float(seconds), released not in (None, b"0")
            self._due["due"] = min(self._due["due"], now + (left if left > 0 else DUE_GAP_S if is_more else LOCKED_S))

    def _rescan(self, now: float) -> None:
        """The belt: dependencies that nobody settled, rows of ours that got lost, wake-ups that were missed."""
        self._due["rescan"] = now + self._timers.rescan
        self._ask("rescan", {}, self._unsettled_found)

    def _unsettled_found(self, rows: list[Cells]) -> None:
        self._settle(rows[0][0])
        self.give_back_lost(OWN_AGE_S, self._rescanned)

    def _rescanned(self, rows: list[Cells]) -> None:
        self.settle_rescued(rows)
        self._core.handle(Woken(), self._clock())
        self.bring_forward("look")
        self.bring_forward("due")
        self._ask("remove_dead", {"age": 2 * self._timers.lease}, lambda _: self.read_commands_in(0.0))

    def give_back_lost(self, age: float, done: Callable[[list[Cells]], None]) -> None:
        """Give back rows of other owners, and rows of ours at least `age` seconds old that are not in memory."""
        self._ask("rescue", {"live": self._core.live_rows(), "age": age}, done)

    def settle_rescued(self, rows: list[Cells]) -> None:
        """Say what was given back; parents that failed are settled, and what is locked is looked for again."""
        count, failed_parents, is_left, _ = rows[0]
        if is_left == b"t":
            self._due["rescue"] = self._clock() + LOCKED_S
        if count not in (None, b"0"):
            self._say("warning", f"rows given back that had no living owner: {_text(count)}")
            self._core.handle(Woken(), self._clock())
        self._settle(failed_parents)

    def _settle(self, parents: bytes | None) -> None:
        if parents:
            self._core.settle([int(pk) for pk in parents.split(b",")])

    def _flush(self, now: float) -> None:
        """Remove a piece of what is older than it is to be kept: all of it once a day."""
        if self._timers.retention:
            each = self._pass or Pass(self._timers.retention, failed_too=False, command=None)
            self._pass = each
            self._ask("flush", each.values(), lambda rows: self._flushed(each, rows), self._flush_later)

    def _flushed(self, each: Pass, rows: list[Cells]) -> None:
        each.take(rows[0])
        if each.is_over:
            self._pass = None
            self._say("info", f"older than {each.days} days: {each}")
        self._due["flush"] = self._clock() + (DAY_S if each.is_over else PAUSE_S)

    def _flush_later(self) -> None:
        self._due["flush"] = self._clock() + self._timers.rescan

    def _show_all(self, now: float) -> None:
        self._due["all"] = now + self._timers.status_interval
        self._show(self._core.report.all_slots(now), now)

    def _show_hosts(self, now: float) -> None:
        rows = {"rows": to_json(self._core.report.take_changed_hosts(now))}
        self._ask("show_hosts", rows, lambda _: None, self._show_hosts_later)

    def _show_hosts_later(self) -> None:
        self._core.report.show_hosts_again()
        self._due["hosts"] = self._clock() + STATUS_GAP_S

    def _show_changes(self, now: float) -> None:
        rows = self._core.report.take_changed_slots(now)
        if rows or self._core.report.vacant:
            self._show(rows, now)

    def _show(self, rows: list[dict[str, Any]], now: float) -> None:
        age = now - self._began
        report = self._core.report
        rows.append(report.scheduler_row(self._pid, self._lease.shown, age, self._statements(), self._vitals()))
        agents = {"rows": to_json(report.agent_rows(now))}
        shown = {"rows": to_json(rows), "gone": report.vacant}
        self._ask("show_status", shown, lambda _: self._ask("show_agents", agents, lambda _: None))

    def _statements(self) -> dict[str, dict[str, float]]:
        """Give count, mean and maximum of every named statement, and say which was slower than ever before."""
        told = {}
        for name, stat in self._stats().items():
            mean_ms, max_ms = stat.total_s / max(stat.count, 1) * 1000, stat.max_s * 1000
            told[name] = {"count": stat.count, "mean_ms": round(mean_ms, 3), "max_ms": round(max_ms, 3)}
            if stat.max_s > max(self._slowest.get(name, 0.0), SLOW_S):
                self._slowest[name] = stat.max_s
                self._say("warning", f"slow statement {name}: {max_ms:.0f} ms")
        return told


_TASKS: Final[dict[str, Callable[[Maintenance, float], None]]] = {
    "command": lambda chores, _now: chores.commands.do_next(),
    "commands": lambda chores, _now: chores.commands.read(),
    "look": lambda chores, _now: chores.look_around(),
    "due": Maintenance._look_due,
    "rescan": Maintenance._rescan,
    "rescue": lambda chores, _now: chores.give_back_lost(OWN_AGE_S, chores.settle_rescued),
    "flush": Maintenance._flush,
    "status": Maintenance._show_changes,
    "hosts": Maintenance._show_hosts,
    "all": Maintenance._show_all,
}


def _text(cell: bytes | None) -> str:
    return (cell or b"").decode("utf-8", "backslashreplace")
