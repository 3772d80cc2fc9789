"""The wiring: events of the drivers go to the core, its commands and requests go to the drivers; one thread, one loop.

Nothing is decided here but the order of a turn: commands are carried out until there are none, the queue connection
gets its next request, the watch connection its next statement, then the loop waits for whatever comes first.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from scheduler.daemon.connections import ConnectionLog, Reconcile
from scheduler.daemon.daemon_commands import DaemonCommands
from scheduler.daemon.log import LOG, TRACE, crash_fd
from scheduler.daemon.log import echo as _echo
from scheduler.daemon.log import say as _say
from scheduler.daemon.stdin_jobs import StdinJobs, served
from scheduler.daemon.upgrade import Upgrade, hold_signals
from scheduler.daemon.wakeups import ListenProbe, NotifyRateLimit
from scheduler.daemon.watch import LISTEN, Watch
from scheduler.daemon.watch import settings as watch_settings
from scheduler.drivers.agentdb import AgentDb
from scheduler.drivers.loop import Loop, Watchdog
from scheduler.drivers.postgres import Connection
from scheduler.drivers.postgres_connect import writable
from scheduler.drivers.processes import Processes
from scheduler.drivers.queries import JobQueries
from scheduler.drivers.queue import QueueConnection
from scheduler.drivers.queue import settings as queue_settings
from scheduler.drivers.service_manager import Manager, Notifier, ReadyFile
from scheduler.drivers.sql import Stat, load
from scheduler.drivers.statements import RefusedStatements
from scheduler.drivers.system import Signals, identity, resident_mb
from scheduler.model import events as e
from scheduler.model.config import Config
from scheduler.package_data import agents_dir, schema_dir
from scheduler.policy.core import Core

QUEUE, WATCH = "queue connection", "watch connection"
CONNECTIONS: Final[dict[e.ConnectionKind, str]] = {
    "queries": "expansion connection",
    "statements": "agent-database connection",
}
WAITS: Final[dict[e.ConnectionKind, str]] = {
    "queries": "SQL jobs wait", "statements": "jobs of types with db = statements or sql wait"
}  # fmt: skip
LAST_WORDS_S: Final = 5.0  # for the last statements of an orderly end

# Nothing that somebody else put into another schema is taken for what we mean.
SAFE_PATH: Final = "set search_path = pg_catalog, pg_temp"

# The statements of queue and watch touch few rows of tables that may be huge, and their plans are kept: one made while
# a table was empty, or full of dead rows, must hold when it is full of others. So rows are found by index, one by one.
PLANS: Final = (
    "set jit = off",
    *(f"set enable_{way} = off" for way in ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin")),
)


class Daemon:
    """One supervisor process."""

    def __init__(
        self,
        config: Config,
        conninfo: str,
        *,
        reads_stdin: bool = False,
        manager: Manager | None = None,
        has_guardian: bool = False,
        read: Callable[[], Config] | None = None,
    ) -> None:
        self.config = config
        self._commands = DaemonCommands(self, read or (lambda: config))
        self.loop = Loop()
        self.loop.on_pause = self._resume
        self.troubles = ConnectionLog(_say, lambda: self.loop.now)
        self.notifier = Notifier(self.loop, manager, self._standing, main_pid=has_guardian)
        self._ready_file = ReadyFile(config.scheduler.ready_file)
        self.core = Core(config, self.loop.now)
        self._identity = identity()
        self._queries = load((schema_dir() / "queries.sql").read_text())
        self._over = False
        self.is_superseded = False  # the program was replaced: it is to be executed when this one has ended
        self._upgrade = (
            Upgrade(self.loop, _say, self._supersede) if config.scheduler.reexec and not reads_stdin else None
        )
        self._is_queue_ready = False
        timers = config.scheduler
        self.refusals = RefusedStatements(_say, self._refused)
        self.watch = Watch(
            config, self.core, self._queries, self._identity, _say, self._become, lambda: self.loop.now, self._stats,
            self._commands.acts(), self._vitals, self.note, self.refusals,
        )  # fmt: skip
        self.processes = Processes(
            self.loop,
            config,
            agent_folders(),
            self.core.agent_output,
            self.core.agent_stderr,
            self.core.command_output,
            self._tell,
        )
        self.notify_rate_limit = NotifyRateLimit(
            self.loop, lambda channel: self.watch.notified(channel, self.loop.now), timers.wake_interval
        )
        queue_plans = (*queue_settings(timers.lock_limit), *PLANS)
        self.queue_link = self._link("queue", conninfo, self._queue_up, self._queue_down, queue_plans)
        self.listen_probe = ListenProbe(
            self.loop, self._queries["probe_listen"], _say, self.watch.poll, self.refusals,
            every=timers.rescan, poll_interval=timers.poll_interval,
        )  # fmt: skip
        watch_words = (*watch_settings(timers), *PLANS, f"listen {self.listen_probe.channel}")
        self.watch_link = self._link("watch", conninfo, self._watch_up, self._watch_down, watch_words, self._notified)
        self._reconcile = Reconcile(
            self.loop, self.queue_link, self._queries, self.core, timers.group, self._tell, self.refusals
        )
        self.watch.attach(self.watch_link, self.notify_rate_limit.worthwhile)
        self.listen_probe.attach(self.queue_link, self.watch_link, LISTEN)
        self.refusals.attach(self.queue_link, self.watch_link)
        self.courier = self._courier()
        database = config.database
        self.expansions = JobQueries(
            self.loop,
            database.msq_url or make_conninfo(conninfo, user="drover_msq"),
            timers.expansions,
            timers,
            self._tell,
            self._unconnected,
        )
        self.agentdb = AgentDb(
            self.loop, database.agentdb_url or make_conninfo(conninfo, user="drover_agentdb"),
            timers.agentdb_connections, config.agents, timers.statement_limit, self._tell, self._unconnected,
            with_queue=_is_same_server(conninfo, database.agentdb_url), reconnect_max=timers.reconnect_max,
        )  # fmt: skip
        self.stdin_jobs = (
            StdinJobs(self.loop, self.watch_link, self._queries, served(config), _say) if reads_stdin else None
        )
        self.core.report_ends(reads_stdin)
        self.core.log_routine(LOG.isEnabledFor(logging.DEBUG))
        self._acts = self._command_table()

    def _command_table(self) -> dict[type, Callable[[Any], None]]:
        """Say who carries out which command of the core."""
        return {
            e.Spawn: self.processes.spawn,
            e.Send: self.processes.send,
            e.Kill: self.processes.kill,
            e.ForceKill: self.processes.force_kill,
            e.Signal: self.processes.signal,
            e.Expand: lambda c: self.expansions.expand(c.job, c.query),
            e.Fetch: lambda c: self.expansions.fetch(c.job, c.count),
            e.CloseQuery: lambda c: self.expansions.close_query(c.job),
            e.RunStatement: self.agentdb.ask,
            e.LogMessage: lambda c: _say(c.level, c.text),
            e.Echo: lambda c: _echo(c.text),
            e.JobEnded: self._told,
            e.FindNextDue: lambda c: self.watch.maintenance.bring_forward("due"),
            e.RenewLease: lambda c: self.watch.lease.renew(self.loop.now),
            e.ReleaseGroup: lambda c: self._give_up(self.watch.owner),
            e.Exit: lambda c: self._leave(),
        }

    # ---- a life

    def run(self) -> int:
        """Serve until told to end; give the exit status. Raises ConfigError when another group has our hosts."""
        signals = Signals(self.loop, self._commands.signalled)
        alarm = self._watch_loop()
        _say("info", self._introduction())
        try:
            self.queue_link.open()
            self.watch_link.open()
            self.agentdb.open()
            self._check_programs()
            while not self._over:
                self.turn()
        finally:
            if alarm is not None:
                alarm.close()
            if self.is_superseded:
                hold_signals()
            signals.close()
            self.close()
        return 1 if self.stdin_jobs is not None and self.stdin_jobs.failed else 0

    def _introduction(self) -> str:
        config = self.config
        hosts, agents = " ".join(config.hosts), " ".join(n for n, agent in config.agents.items() if agent.enabled)
        who = f"drover {metadata.version('drover-scheduler')} pid={self._identity.pid}"
        return f"{who} group={config.scheduler.group}: hosts {hosts}; agents {agents}"

    def _watch_loop(self) -> Watchdog | None:
        """Let a hang be seen while it lasts."""
        limit = self.config.scheduler.hang_limit
        alarm = Watchdog(limit, crash_fd()) if limit else None
        self.loop.watch_with(alarm, self._say_hung)
        return alarm

    def turn(self) -> None:
        """Carry out what is to be done, then wait for what comes next."""
        loop, core = self.loop, self.core
        self._request()  # first: the database works while we do
        if core.has_work:
            self._carry_out()
            self._request()
        self.watch.step(loop.now)
        if self.stdin_jobs is not None and self.stdin_jobs.is_over:
            self.stdin_jobs = self.stdin_jobs.end()
            self.drain()
        if core.has_work:
            return
        deadline = core.next_deadline()
        loop.turn(min(deadline, self.watch.next_deadline(loop.now)))
        if loop.now >= deadline:
            core.tick(loop.now)
        elif core.is_over():
            self._carry_out()

    def close(self) -> None:
        """Leave nothing behind: no child, no connection."""
        if self.is_superseded:
            self.notifier.reloading()
        else:
            self.notifier.stopping()
        self.processes.close()
        for link in (self.queue_link, self.watch_link):
            link.close()
        if self.stdin_jobs is not None:
            self.stdin_jobs.close()
        self.expansions.close()
        self.agentdb.close()
        self._ready_file.remove()
        self.notifier.close()

    def _carry_out(self) -> None:
        core, is_traced = self.core, LOG.isEnabledFor(TRACE)
        while core.has_work:
            for command in core.drain_commands():
                if is_traced:
                    _say("trace", str(command))
                try:
                    self._acts[type(command)](command)
                except Exception:  # the one place: a bug in one command must not take the others with it
                    LOG.exception("bug: %s failed; please report this", command)
                    self._quarantine(command)

    def _check_programs(self) -> None:
        """Notice agents whose program was replaced, again and again."""
        self.processes.check_programs()
        if self._upgrade is not None:
            self._upgrade.look()
        self.loop.at(self.loop.now + self.config.scheduler.status_interval, self._check_programs)

    def _quarantine(self, command: e.Command) -> None:
        """What the command was about cannot be trusted any more."""
        if isinstance(command, e.Spawn):
            self._tell(e.NotCreated(command.slot, "a bug of the scheduler; see its log"))
        elif isinstance(command, e.Expand | e.Fetch):
            self._tell(e.NotExpanded(command.job, "a bug of the scheduler; see its log"))

    def _request(self) -> None:
        if self._is_queue_ready and self.queue_link.is_idle:
            request = self.core.next_request(self.loop.now)
            if request is not None:
                self.courier.send(request)

    def _tell(self, event: e.Event) -> None:
        self.core.handle(event, self.loop.now)

    # ---- connections

    def _link(
        self,
        name: str,
        conninfo: str,
        up: Callable[[], None],
        down: Callable[[str], None],
        settings: Sequence[str],
        notified: Callable[[str], None] = lambda channel: None,
    ) -> Connection:
        return Connection(
            self.loop, name, make_conninfo(writable(conninfo), application_name=f"drover {name}"),
            settings=(SAFE_PATH, *settings), on_up=up, on_down=down, on_notify=notified,
            reconnect_max=self.config.scheduler.reconnect_max,
        )  # fmt: skip

    def _courier(self) -> QueueConnection:
        schedinfo = f"{self._identity.host}.{self._identity.pid}"
        return QueueConnection(
            self.loop,
            self.queue_link,
            self._queries,
            self.watch.owner,
            self.config.scheduler.group,
            schedinfo,
            self._answered,
            self.refusals,
        )

    def _answered(self, event: e.Event) -> None:
        """What the queue connection was asked is answered; a claim that finds something was worth looking."""
        self._tell(event)
        if isinstance(event, e.EndedAndClaimed) and event.found:
            self.notify_rate_limit.worthwhile("drover_queue")

    def _refused(self, text: str | None) -> None:
        """Other statements are refused than before: show it."""
        self.core.report.show_refused(text)
        self.watch.maintenance.bring_forward("all")
        self.notifier.update_status()

    def _become(self, owner: str) -> None:
        """We were disowned: what is done from now on is done under another name."""
        self.courier = self._courier()

    def _queue_up(self) -> None:
        """After a loss the old backend must be gone and our rows compared with memory before anything is asked."""
        if not self.troubles.over(QUEUE):
            _say("info", f"{QUEUE}: up")
        if not self.queue_link.losses:
            self._is_queue_ready = True
        else:
            self._reconcile.begin(self.watch.owner, self._queue_ready)

    def _queue_ready(self) -> None:
        self._is_queue_ready = True

    def _queue_down(self, reason: str) -> None:
        self._is_queue_ready = False
        self.refusals.clear()
        self.troubles.failed(QUEUE, reason)
        self.watch.maintenance.bring_forward("all")
        self.note()

    def _watch_up(self) -> None:
        self.troubles.over(WATCH)
        self.watch.up(self.loop.now)
        self.listen_probe.up()

    def _notified(self, channel: str) -> None:
        if not self.listen_probe.heard(channel):
            self.notify_rate_limit.ring(channel)

    def _watch_down(self, reason: str) -> None:
        self.watch.down()
        self.refusals.clear()
        self.troubles.failed(WATCH, reason)
        self.note()

    def _unconnected(self, event: e.ConnectionsChanged) -> None:
        """A connection that some work needs cannot be made, or can again: say so, and begin none of it, or begin it."""
        what = f"{CONNECTIONS[event.need]}{event.login and f' as {event.login}'}"
        if event.reason is None:
            self.troubles.over(what)
        else:
            self.troubles.failed(what, event.reason, effect=f"; {WAITS[event.need]}; see drover check")
        self._tell(event)
        self.watch.maintenance.bring_forward("all")

    def _stats(self) -> dict[str, Stat]:
        """Give what was asked of the database, by statement."""
        return self.queue_link.stats | self.watch_link.stats

    def _vitals(self) -> dict[str, Any]:
        """Give the longest time that the loop kept everybody waiting, how often it was long, our memory, what fails."""
        longest = round(self.loop.longest_turn * 1000, 1)
        vitals = {"longest_turn_ms": longest, "slow_turns": self.loop.slow_turns, "memory_mb": resident_mb()}
        return vitals | {"troubles": self.troubles.shown()}

    # ---- how it goes, for whoever started us

    def note(self) -> None:
        """Our standing may be another."""
        if self.watch.lease.is_settled:
            self._show_ready()
        self.notifier.update_status()

    def _show_ready(self) -> None:
        self.notifier.ready()
        try:
            self._ready_file.show()
        except OSError as error:
            _say("error", f"ready_file: {error.strerror}")

    def _standing(self) -> str:
        """Give one line for people."""
        is_away = not self.watch_link.is_up or (self.queue_link.losses and not self.queue_link.is_up)
        where = ", the database refuses statements" if self.core.report.refused else ""
        where = ", the database is away" if is_away else where
        what = self.core.report.phase(self.watch.lease.shown)
        return f"{what}, group {self.config.scheduler.group}{where}: {self.core.report.in_short()}"

    def _resume(self, pause: float) -> None:
        _say(
            "warning", f"nothing was heard for {pause:.1f} s, the daemon did not run: time limits of agents are put off"
        )
        self.core.resume(pause, self.loop.now)

    def _say_hung(self, seconds: float, where: str) -> None:
        _say("error", f"the loop was held up for {seconds:.1f} s in {where}")

    # ---- signals and endings

    def stop(self) -> None:
        """End, in time even if the database takes nothing: the next daemon finds the rows and their owner dead."""
        self.is_superseded = False
        _say("info", "stopping: agents are killed, their rows given back")
        limit = self.config.scheduler.kill_grace + LAST_WORDS_S
        self.loop.at(self.loop.now + limit - LAST_WORDS_S / 2, self.processes.abandon_remote)
        self.loop.at(self.loop.now + limit, self._end_unsaved)
        self._tell(e.Stop())
        self.notifier.stopping()

    def _end_unsaved(self) -> None:
        _say("error", "the database has not taken all in time: the next scheduler of the group puts the rest right")
        self._end()

    def drain(self) -> None:
        """End when what is in hand is done; asked once more, SQL jobs are given back too."""
        self.is_superseded = False
        is_first = not self.core.is_draining
        rest = "nothing new is begun" if is_first else "SQL jobs are given back too"
        _say("info", f"draining: what is in hand is finished, {rest}")
        self._tell(e.Drain())
        self.watch.maintenance.bring_forward("all")
        self.notifier.update_status()

    def _supersede(self) -> None:
        """End in order, then go on as the program that is there now, unless we are told to end by then."""
        if not self.core.is_ending:
            self.drain()
            self.is_superseded = True

    def step_down(self) -> bool:
        """Let another daemon have the group, and stand by; False when we are ending anyway."""
        is_begun = self.core.step_down(self.loop.now)
        limit = self.config.scheduler.kill_grace + LAST_WORDS_S
        self.loop.at(self.loop.now + limit, partial(self._give_up, self.watch.owner))
        return is_begun

    def _give_up(self, owner: str) -> None:
        """All is given back, or it takes too long: then the next scheduler of the group puts the rest right."""
        if self.core.is_stepping_down and self.watch.owner == owner:
            self.watch.lease.step_down(self.loop.now)

    def take(self, config: Config) -> None:
        """Go on with another configuration; what was decided under the old one is done by the old one."""
        self._carry_out()
        self.config = config
        self.processes.reload(config)
        self.expansions.reload(config)
        self.agentdb.reload(config)
        if self.stdin_jobs is not None:
            self.stdin_jobs.take(config)
        self._tell(e.Reloaded(config))
        self.watch.take(config)
        self.notify_rate_limit.gap_s = config.scheduler.wake_interval

    def _leave(self) -> None:
        """All is saved and every child is dead: give up the group and end."""
        self.loop.at(self.loop.now + LAST_WORDS_S, self._end)
        self.watch.leave(self._end)

    def _end(self) -> None:
        if not self._over:
            _say("info", "ended")
        self._over = True

    def _told(self, told: e.JobEnded) -> None:
        if self.stdin_jobs is not None:
            self.stdin_jobs.told(told)


def _is_same_server(queue: str, other: str) -> bool:
    """Whether another connection string names the server of the queue; an empty one does."""
    ours, theirs = (conninfo_to_dict(text) for text in (queue, other or queue))
    return all(ours.get(key) == theirs.get(key) for key in ("service", "host", "hostaddr", "port"))


def agent_folders() -> list[str]:
    """Where bundled agents and the Python that has their libraries are found, whatever PATH says."""
    folders = [str(folder) for folder in sorted(agents_dir().iterdir()) if folder.is_dir()]
    return [*folders, str(Path(sys.executable).parent)]
