"""The periodic tasks of a serving daemon: commands, due rows, schedules, shared tables, the rescan, the status...

Each task has the instant at which it is due, and the one that is due longest comes first, so that none starves beside
another. They share the watch connection with the lease, which goes before them (watch_connection.py).
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import process_time
from typing import Any, Final

from scheduler.daemon.command_actions import ACTIONS, PAUSE_S, FlushPass
from scheduler.daemon.command_rows import Ask, Commands, Context, DaemonControl, text_of
from scheduler.daemon.condition_checks import PIECE, check_next
from scheduler.daemon.connections import Connections
from scheduler.daemon.detached_jobs import AGAIN_S, DetachedJobs
from scheduler.daemon.event_deliveries import go_on as go_on_with_deliveries
from scheduler.daemon.late_finds import LateFinds
from scheduler.daemon.log import log_line
from scheduler.daemon.put_off_jobs import PutOffJobs
from scheduler.daemon.schedule_starts import start_due
from scheduler.daemon.statement_figures import StatementFigures
from scheduler.daemon.upkeep import GAP_S, Upkeep
from scheduler.drivers.loop import ConnectionLostError, Loop, Steps
from scheduler.drivers.os_calls import resident_mb
from scheduler.drivers.statement_runner import RefusedError
from scheduler.drivers.statements import to_json
from scheduler.model.config import Scheduler
from scheduler.model.counters import Counted, add, as_rows
from scheduler.model.events_and_effects import Woken
from scheduler.model.queue_requests import Cells
from scheduler.model.states import NEVER, LeaseState
from scheduler.policy.core import Core
from scheduler.policy.group_lease import Lease
from scheduler.policy.unstartable_jobs import StartFailure

LOCKED_S: Final = 1.0  # until a row that is locked is tried again
STARTS_S: Final = 5.0  # between two looks for jobs that cannot start
STATUS_GAP_S: Final = 1.0  # between two statements that show changes
DUE_GAP_S: Final = 0.2  # between two statements for due rows
GATHERED: Final = ("due", "recovery", "deliveries")  # tasks that wait for more of their kind
OWN_AGE_S: Final = 10.0  # a row of ours that is this old and not in memory was lost on its way
COUNT_GAP_S: Final = 5.0  # between two statements for drover metrics, while there is something to count
FOLDED: Final = 10_000  # rows of what was counted that are folded at once
SUSPECTS: Final = 2000  # rows that one step of the walk looks at for drover.impossible: some 30 ms of the server
SUSPECTS_GAP_S: Final = 2.0  # between two steps of a walk
SUSPECTS_PAUSE_S: Final = 60.0  # between two walks
ADDED_UP: Final = 50_000  # changes of jobs at a time
RECOUNTED: Final = 4  # zones of jobs at a time, if the counts may be wrong
DAY_S: Final = 86_400.0  # from one pass over what is long over to the next


class PeriodicTasks:
    """The tasks of a daemon, and when each is due. `ask` runs a query on the watch connection."""

    def __init__(
        self, loop: Loop, timers: Scheduler, core: Core, lease: Lease, ask: Ask, connections: Connections,
        daemon: DaemonControl, detached: DetachedJobs, is_gone: Callable[[Cells], bool],
    ) -> None:  # fmt: skip
        self._uncounted: Counted = {}  # for drover metrics and stats, not in the database yet
        self._loop, self._timers, self._core, self._lease = loop, timers, core, lease
        self._ask, self._connections, self.detached = ask, connections, detached
        self._figures = StatementFigures(connections.stats)
        self.late = LateFinds(lambda: loop.now, lambda: self._timers)
        self._recovers = False  # the next rescan is the first one after a loss
        self._flush: FlushPass | None = None  # under way
        self._upkeep = Upkeep()
        self._recent_turn = 0.0  # seconds of the longest one between the last two shows of everything
        self._knows_conditions = False  # of those that the owner of the group before us left
        self._cleared: set[str] = set()  # conditions that are over, which the database does not know yet
        self._began = loop.now
        rescan, go_on = partial(self.bring_forward, "rescan"), partial(self._due_in, "next command", 0.0)
        schedules_in = partial(self._due_in, "schedules")
        self.context = Context(core, lambda: loop.now, ask, rescan, schedules_in, daemon, is_gone)
        self._put_off = PutOffJobs(self.context, partial(self._due_in, "put off"))
        self.commands = Commands(self.context, ACTIONS, self.read_commands_in, go_on)
        self._tasks: dict[str, Callable[[], Steps[None]]] = {
            "next command": self.commands.carry_out_next,
            "read commands": self.commands.read,
            "tables": self._follow_tables,
            "due": self._release_due,
            "put off": self._put_off.free,
            "recovery": self._check_conditions,
            "starts": self._stop_unstartable,
            "schedules": self._start_schedules,
            "deliveries": self._go_on_with_deliveries,
            "suspects": self._find_suspects,
            "upkeep": self._keep_up,
            "rescan": self._rescan,
            "late": self._count_late,
            "rescue": self.give_back_lost,
            "detached": self._find_detached,
            "flush": self._remove_old,
            "status": self._show_changes,
            "hosts": self._show_hosts,
            "rates": self._show_starts,
            "count": self._count,
            "fold": self._fold,
            "all": self._show_all,
        }
        self._due = dict.fromkeys(self._tasks, NEVER)

    def set_timers(self, timers: Scheduler) -> None:
        """Apply another configuration; what is removed by age begins anew if another age is wanted."""
        if timers.days_kept != self._timers.days_kept:
            self._flush = None
        self._timers = timers
        for task in ("tables", "all", "flush", "starts"):
            self.bring_forward(task)

    # ---- when each is due

    @property
    def _is_serving(self) -> bool:
        return self._lease.state is LeaseState.SERVING

    def all_due(self, rescan_s: float = inf) -> None:
        """Make all tasks due: we serve, and know nothing. The first rescan comes after so many seconds at most."""
        now = self._loop.now
        at_once = dict.fromkeys(
            ("read commands", "tables", "due", "recovery", "starts", "deliveries", "all", "flush", "detached"), now
        )
        later = {
            "rescan": now + min(rescan_s, self._timers.rescan),
            "rescue": now + OWN_AGE_S,
            "suspects": now + SUSPECTS_GAP_S,
        }
        self._due = dict.fromkeys(self._tasks, NEVER) | at_once | later
        self._recovers, self._knows_conditions = True, False
        self._core.report.show_hosts_again()

    def stop(self) -> None:
        """Make no task due and forget the commands that were read: the connection or the group is lost, or we end."""
        self._due = dict.fromkeys(self._tasks, NEVER)
        self.commands.forget()
        self.late.forget()

    def bring_forward(self, task: str) -> None:
        """Make a task due now, if we serve."""
        if self._is_serving:
            self.late.told(task)
            self._due_in(task, DUE_GAP_S if task in GATHERED else 0.0)

    def read_commands_in(self, seconds: float) -> None:
        """Read commands after so many seconds at most; daemons that stand by do so too."""
        if seconds == 0.0:
            self.late.told("read commands")
        if self._lease.state is not LeaseState.UNREGISTERED:
            self._due_in("read commands", seconds)

    def _due_in(self, task: str, seconds: float) -> None:
        self._due[task] = min(self._due[task], self._loop.now + seconds)

    def find_detached_in(self, seconds: float) -> None:
        """Adopt detached jobs that were in hand, and release what hosts keep, after so many seconds at most."""
        if self._is_serving:
            self._due_in("detached", seconds)

    def refused(self) -> None:
        """Leave what a refused statement was for to the next rescan."""
        if self._is_serving:
            self._due_in("rescan", self._timers.rescan)
        else:
            self.read_commands_in(self._timers.rescan)

    def next_deadline(self) -> float:
        """Return the instant of the next task; changes are shown a moment later, many at once."""
        if self._is_serving:
            if self._core.report.has_slot_changes:
                self._due_in("status", STATUS_GAP_S)
            if self._core.state.quotas.has_room:
                self.bring_forward("recovery")
            if self._core.report.has_rate_changes:
                self._due_in("rates", STATUS_GAP_S)
            if self._core.report.has_host_changes and self._due["hosts"] == NEVER:
                self._due["hosts"] = self._loop.now
            if self.detached.has_news:
                self._due_in("detached", DUE_GAP_S)
        return min(self._due.values())

    def next_steps(self) -> Steps[None] | None:
        """Return the task that is due longest, if one is."""
        task = min(self._due, key=self._due.__getitem__)
        if self._due[task] > self._loop.now:
            return None
        self._due[task] = NEVER
        return self._tasks[task]()

    # ---- the tasks

    def _follow_tables(self) -> Steps[None]:
        self._put_off.changed((yield from self.context.follow_tables()))

    def _release_due(self) -> Steps[None]:
        released, failed_parents, seconds = (yield from self._ask("due"))[0]
        is_more = released not in (None, b"0")
        if is_more:
            self._core.handle(Woken(), self._loop.now)
        self.context.settle_listed(failed_parents)
        if seconds is not None:
            left = float(seconds)
            self._due_in("due", left if left > 0 else DUE_GAP_S if is_more else LOCKED_S)

    def _check_conditions(self) -> Steps[None]:
        if not self._knows_conditions:
            rows = yield from self._ask("read_start_conditions")
            self._core.know_start_conditions(text_of(name) for (name,) in rows)
            self._knows_conditions = True
            self._due_in("starts", 0.0)
        yield from self._check_cleared()
        if (seconds := (yield from check_next(self.context))) is not None:
            self._due_in("recovery", max(DUE_GAP_S, seconds))

    def _stop_unstartable(self) -> Steps[None]:
        """Block or fail waiting jobs that cannot start, where their type says so; and let go those that can again."""
        if not self._core.has_start_policies:
            return
        self._due_in("starts", min(STARTS_S, self._timers.rescan))
        for each in self._core.start_failures(self._loop.now):
            yield from self._stop_jobs(each)
        if (yield from self._check_cleared()):
            self.bring_forward("recovery")

    def _check_cleared(self) -> Steps[bool]:
        """Have the conditions checked now that are over, and those whose statement failed; return whether some are."""
        self._cleared.update(self._core.cleared_conditions())
        if not self._cleared:
            return False
        yield from self._ask("check_now", names=sorted(self._cleared))
        self._cleared.clear()
        return True

    def _stop_jobs(self, each: StartFailure) -> Steps[None]:
        values = {"type": each.type, "host": each.host, "state": each.state, "text": each.text}
        for count, parents in (yield from self._ask("stop_unstartable", most=PIECE, **values)):
            log_line("warning", f"{text_of(count)} jobs that wait are {each.state}: {each.text}")
            self.context.settle_listed(parents)
            self._due_in("starts", DUE_GAP_S)  # there may be more

    def _start_schedules(self) -> Steps[None]:
        seconds = yield from start_due(self._ask)
        if seconds is not None:
            self._due_in("schedules", seconds)

    def _go_on_with_deliveries(self) -> Steps[None]:
        seconds = yield from go_on_with_deliveries(self._ask)
        if seconds is not None:
            self._due_in("deliveries", max(DUE_GAP_S, seconds))

    def _keep_up(self) -> Steps[None]:
        if (yield from self._upkeep.go_on(self.context)):
            self._due_in("upkeep", GAP_S)

    def _find_suspects(self) -> Steps[None]:
        """Make a step of the walk that finds what cannot be; many rows take many steps, so that none is dear."""
        self._due["suspects"] = self._loop.now + SUSPECTS_PAUSE_S
        if [row[0] for row in (yield from self._ask("find_suspects", most=SUSPECTS))] == [b"f"]:
            self._due["suspects"] = self._loop.now + SUSPECTS_GAP_S

    def _rescan(self) -> Steps[None]:
        """Find what was missed: dependencies that are not settled, queues, rows of ours that got lost, wake-ups."""
        self._due["rescan"] = self._loop.now + self._timers.rescan
        recovers, self._recovers = self._recovers, False
        self._upkeep.begin(recovers=recovers)
        yield from self.give_back_lost(OWN_AGE_S, recovers=recovers)
        if not recovers:
            self.late.begin(self._due)
            if not self.commands.is_caught_up:  # those that follow are read without the rescan too
                self.late.told("read commands")
            self._due_in("late", 2 * self.late.moment_s)
        self._core.handle(Woken(by_rescan=not recovers), self._loop.now)
        for task in ("detached", "tables", "due", "recovery", "deliveries", "upkeep", "fold", "read commands"):
            self._due_in(task, DUE_GAP_S if task in GATHERED else 0.0)
        yield from self._ask("remove_dead", age=2 * self._timers.lease)

    def _count_late(self) -> Steps[None]:
        """Count what the last rescan found, if nothing has told of it meanwhile."""
        yield from ()  # asks nothing
        self._core.found_late(self.late.take(), self.late.until)

    def give_back_lost(self, age: float = OWN_AGE_S, *, recovers: bool = True) -> Steps[None]:
        """Give back rows of other owners, and rows of ours at least `age` seconds old that are not in memory."""
        rows = yield from self._ask("rescue", live=self._core.live_rows(), age=age)
        self.rescue_answered(rows, LOCKED_S)
        if not recovers and (count := int(rows[0][0] or 0)):
            self._core.state.found_late("rows in hand", count)

    def rescue_answered(self, rows: Sequence[Cells], again_s: float = OWN_AGE_S) -> None:
        """Go on with the answer of query `rescue`: claim what was given back, and try again what was locked.

        Rows of ours that were claimed right before a connection was lost can be told from new ones when they are old.
        """
        count, failed_parents, is_left, _ = rows[0]
        if is_left == b"t" and self._is_serving:  # locked
            self._due["rescue"] = self._loop.now + again_s
        if count not in (None, b"0"):
            log_line("warning", f"rows given back that nobody had in hand: {text_of(count)}")
            self._core.handle(Woken(), self._loop.now)
        self.context.settle_listed(failed_parents)

    def _find_detached(self) -> Steps[None]:
        """Adopt detached jobs that are not in hand, and have hosts remove what they keep of others."""
        yield from self.detached.adopt()
        if (yield from self.detached.release()):
            self._due_in("detached", AGAIN_S)

    def _remove_old(self) -> Steps[None]:
        """Remove a piece of what is older than it is to be kept: all of it once a day."""
        if not (days := self._timers.days_kept):
            return
        self._flush = self._flush or FlushPass(days, command=None)
        try:
            yield from self._flush.remove_piece(self._ask)
        except RefusedError:
            self._due["flush"] = self._loop.now + self._timers.rescan
            raise
        self._due["flush"] = self._loop.now + PAUSE_S
        if self._flush.is_over:
            level = "warning" if self._flush.is_refused else "info"
            log_line(level, f"{self._flush.age}: {self._flush}")
            self._flush = None
            self._due["flush"] = self._loop.now + DAY_S

    # ---- the status

    def _show_all(self) -> Steps[None]:
        self._due["all"] = self._loop.now + self._timers.status_interval
        self._recent_turn = self._loop.take_recent_turn()
        self.bring_forward("count")
        yield from self._show(self._core.report.all_slots(self._loop.now), self._core.report.vacant)

    def _show_changes(self) -> Steps[None]:
        rows, gone = self._core.report.take_changed_slots(self._loop.now)
        if rows or gone:
            yield from self._show(rows, gone)

    def _show(self, rows: list[dict[str, Any]], gone: list[int]) -> Steps[None]:
        """Show these slots, which of them are gone, the agent types, and what the daemon is and has done."""
        report, loop = self._core.report, self._loop
        vitals = {
            "longest_turn_ms": round(loop.longest_turn * 1000, 1),
            "recent_turn_ms": round(self._recent_turn * 1000, 1),
            "slow_turns": loop.slow_turns,
            "cpu_s": round(process_time(), 3),
            "memory_mb": resident_mb(),
            "troubles": self._connections.log.failing() + self.context.daemon.troubles(),
        }
        run_s = loop.now - self._began
        rows.append(report.scheduler_row(os.getpid(), self._lease.shown, run_s, self._figures.shown(), vitals))
        agents = to_json(report.agent_rows(loop.now))
        yield from self._ask("show_status", rows=to_json(rows), gone=gone)
        yield from self._ask("show_agents", rows=agents)

    def _show_starts(self) -> Steps[None]:
        """Write down what was started of queues with a rate limit, for the daemon that serves the group after us."""
        if not (rows := self._core.report.take_changed_rates(self._loop.now)):
            return
        try:
            yield from self._ask("show_starts", rows=to_json(rows))
        except (RefusedError, ConnectionLostError):
            self._core.report.show_rates_again({row["queue"] for row in rows})
            raise

    def _count(self) -> Steps[None]:
        """Add what was counted to the counters of the database; soon again if there was something.

        What a lost connection was about is counted again: it may be counted twice.
        """
        counted = self.take_counted()
        try:
            yield from self._ask("count", rows=to_json(as_rows(counted)))
        except (RefusedError, ConnectionLostError):
            self._uncounted = counted
            raise
        if counted:
            self._due_in("count", min(COUNT_GAP_S, self._timers.status_interval))
        added_up, zones_left = (yield from self._ask("add_up_changes", most=ADDED_UP, zones=RECOUNTED))[0]
        if added_up == str(ADDED_UP).encode() or zones_left != b"0":
            self._due_in("count", STATUS_GAP_S)

    def _fold(self) -> Steps[None]:
        """Fold what was counted in minutes, hours and days that are over."""
        ((folded,),) = yield from self._ask("fold_tally", most=FOLDED)
        if int(folded or 0) >= FOLDED:
            self._due_in("fold", DUE_GAP_S)

    def save_counts(self) -> Steps[None]:
        """Write down what is in memory only, since another program takes over."""
        if self._is_serving:
            yield from self._show_starts()
            yield from self._count()

    def take_counted(self) -> Counted:
        """Return what was counted since the last call, and what could not be saved then."""
        counted, self._uncounted = self._uncounted, {}
        for key, value in self.context.daemon.take_counted().items():
            add(counted, key, value)
        return counted

    def _show_hosts(self) -> Steps[None]:
        self._due_in("starts", 0.0)
        try:
            yield from self._ask("show_hosts", rows=to_json(self._core.report.take_changed_hosts(self._loop.now)))
        except RefusedError:
            self._core.report.show_hosts_again()
            self._due["hosts"] = self._loop.now + STATUS_GAP_S
            raise
