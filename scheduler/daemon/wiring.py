"""The wiring: events of the drivers go to the core, its effects and requests go to the drivers; one thread, one loop.

Nothing is decided here but the order of a turn: effects are carried out until there are none, the queue connection
gets its next request, the watch connection its next statement, then the loop waits for whatever comes first.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from select import EPOLLIN
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2
from typing import Any, Final

from scheduler.daemon.crash_table import show_at_crash
from scheduler.daemon.embedded_server import EmbeddedServer, ServerState
from scheduler.daemon.exec_handover import NotUpError, Takeover
from scheduler.daemon.fd_store_handover import KeptAgents
from scheduler.daemon.handover_document import DaemonState
from scheduler.daemon.jobs_from_stdin import StdinJobs
from scheduler.daemon.log import LOG, TRACE, crash_fd, echo, log_line
from scheduler.daemon.upgrade import Program, Upgrade, hold_signals, remove_copy
from scheduler.daemon.watch_connection import Watch
from scheduler.drivers.agent_db_lines import AgentDb
from scheduler.drivers.host_scripts import HostScripts
from scheduler.drivers.libpq import is_same_server, with_parameters
from scheduler.drivers.loop import Loop, Steps, Watchdog
from scheduler.drivers.os_calls import LEAVE, Signals, collect_rarely
from scheduler.drivers.processes import Processes
from scheduler.drivers.program_files import copies_folder
from scheduler.drivers.query_cursors import JobQueries
from scheduler.drivers.service_manager import Notifier, ReadyFile, ServiceManager
from scheduler.drivers.statements import load
from scheduler.errors import ConfigError
from scheduler.model import events_and_effects as e
from scheduler.model.config import Config
from scheduler.model.counters import Counted
from scheduler.model.states import LeaseState
from scheduler.package_data import agent_folders, schema_dir, version
from scheduler.policy.core import Core
from scheduler.policy.reload import changes, within_reach

LAST_WORDS_S: Final = 5.0  # for the last statements of an orderly end
BUG: Final = "a bug of the scheduler; see its log"


class Daemon:
    """One supervisor process."""

    def __init__(
        self, config: Config, conninfo: str, *, reads_stdin: bool = False, manager: ServiceManager | None = None,
        has_guardian: bool = False, quits_if_served: bool = False, read: Callable[[], Config] | None = None,
        program: Program | None = None, locks: Sequence[int] = (), takeover: Takeover | None = None,
        kept_agents: KeptAgents | None = None, survivors: Mapping[str, Any] | None = None,
        read_server: Callable[[], ServerState | None] | None = None,
    ) -> None:  # fmt: skip
        """Be ready to `run`; with `takeover` as the daemon that has left this, whose program was executed before us.

        `survivors` is a state of agents that had nothing in hand when the daemon before us crashed.
        """
        self.config = config
        self._takeover = takeover
        self._quits_if_served = quits_if_served
        self._read = read or (lambda: config)  # the files anew. Errors: ConfigError
        self.loop = Loop(on_pause=self._resume)
        kept = survivors if takeover is None else takeover.document
        self.core = Core(config, self.loop.now) if kept is None else Core.restored(kept["core"], config, self.loop.now)
        self.core.report_ends(reads_stdin)
        self.core.log_routine(LOG.isEnabledFor(logging.DEBUG))
        self._over = False
        self._watchdog: Watchdog | None = None
        self.notifier = Notifier(self.loop, manager, self._status_line, main_pid=has_guardian)
        self._ready_file = ReadyFile(config.scheduler.ready_file, is_new=takeover is None)
        self.processes = Processes(
            self.loop, config, agent_folders(), self.core.agent_output, self.core.agent_stderr,
            self.core.exec_output, self._handle, copies_folder(os.environ), None if kept is None else kept["processes"],
            None if kept_agents is None else kept_agents.page.marks,
        )  # fmt: skip
        self.host_scripts = HostScripts(self.loop, self.processes)
        self._connect(config, conninfo, reads_stdin, kept_agents)
        self._server = read_server and EmbeddedServer(self.loop, read_server, self.watch.show_soon)
        self._drivers = self._driver_table()
        frozen_at = None if takeover is None else float(takeover.document["frozen_at"])
        self._daemon_state = DaemonState(
            self.loop, self.core, self.processes, self.watch, lambda: self.config, kept_agents, frozen_at
        )
        self._upgrade: Upgrade | None = None
        if program is not None and not reads_stdin:
            timers = config.scheduler
            self._upgrade = Upgrade(
                self.loop, self._daemon_state, program, self._prepare_exec, self._recover, follows=timers.reexec,
                limit_s=timers.reexec_limit, locks=locks, takeover=takeover,
            )  # fmt: skip
        if takeover is not None:
            self.watch.restore(takeover.document["watch"], self._come_up, has_new_pid=takeover.is_left)
        elif survivors is not None:
            self.processes.thaw()
        self._has_survivors = survivors is not None
        self._is_leaving = False
        self.has_left = False  # all agents, for the daemon that is started next
        self._kept_agents = kept_agents
        if kept_agents is not None:
            kept_agents.use(self.loop, self.core, self.processes, self._daemon_state, lambda: self.config)
            self.loop.register(kept_agents.warden.line.fileno(), EPOLLIN, self._warden_ended)
            if takeover is None or not takeover.is_left:
                kept_agents.came_up()

    def _connect(self, config: Config, conninfo: str, reads_stdin: bool, kept_agents: KeptAgents | None) -> None:
        """Create what uses the database; nothing is open yet."""
        queries = load((schema_dir() / "queries.sql").read_text())
        heirs_cgroup = None if kept_agents is None else kept_agents.group
        self.watch = Watch(self.loop, config, conninfo, self.core, queries, self, heirs_cgroup)
        self.connections = self.watch.connections
        self.stdin_jobs = StdinJobs(self.loop, self.connections.watch, queries, config) if reads_stdin else None
        changed = self.connections.reachability_changed
        msq_url = config.database.msq_url or with_parameters(conninfo, user="drover_msq")
        self.job_queries = JobQueries(self.loop, msq_url, config.scheduler, self._handle, changed)
        agentdb_url = config.database.agentdb_url or with_parameters(conninfo, user="drover_agentdb")
        is_with_queue = is_same_server(conninfo, config.database.agentdb_url or conninfo)
        self.agentdb = AgentDb(self.loop, agentdb_url, config, self._handle, changed, is_with_queue=is_with_queue)

    def _driver_table(self) -> dict[type, Callable[[Any], None]]:
        """Return what carries out each effect of the core."""
        return {
            e.Spawn: self.processes.spawn,
            e.Send: self.processes.send,
            e.Kill: self.processes.kill,
            e.ForceKill: self.processes.force_kill,
            e.LetGo: self.processes.let_go,
            e.FindDetached: lambda effect: self.watch.periodic.find_detached_in(effect.seconds),
            e.Signal: self.processes.signal,
            e.Expand: lambda effect: self.job_queries.expand(effect.job, effect.query),
            e.Fetch: lambda effect: self.job_queries.fetch(effect.job, effect.count),
            e.Keep: lambda effect: self.job_queries.keep(effect.job, effect.count),
            e.CloseQuery: lambda effect: self.job_queries.close_query(effect.job),
            e.RunStatement: self.agentdb.ask,
            e.LogMessage: lambda effect: log_line(effect.level, effect.text),
            e.Echo: lambda effect: echo(effect.text),
            **({} if self.stdin_jobs is None else {e.JobEnded: self.stdin_jobs.job_ended}),
            e.FindNextDue: lambda effect: self.watch.periodic.bring_forward("due"),
            e.RenewLease: lambda effect: self.watch.lease.renew(self.loop.now),
            e.ReleaseGroup: lambda effect: self._release_group(self.watch.owner),
            e.Exit: lambda effect: self._release_and_end(),
        }

    def _handle(self, event: e.Event) -> None:
        self.core.handle(event, self.loop.now)

    # ---- from start to end

    def run(self) -> int:
        """Serve until asked to end; return the exit status. Errors: ConfigError, another group has our hosts."""
        signals = Signals(self.loop, self.signalled)
        if self._takeover is not None:
            self._takeover.set_no_alarm()
            self.loop.at(self._takeover.began + self._takeover.limit_s, self._give_up)
        self._begin()
        try:
            self.connections.open()
            self.agentdb.open()
            self._check_programs()
            if self._server is not None:
                self._server.look()
            collect_rarely()
            while not self._over:
                self.turn()
        finally:
            if self._watchdog is not None:
                self._watchdog.close()
            if self._is_taking_over:  # we hand back: nothing of what the program before us left is to end
                hold_signals()
            signals.close()
            if self.has_left:
                self._close_connections()
            elif not self._is_taking_over:
                self.close()
        return 1 if self.stdin_jobs is not None and self.stdin_jobs.failed else 0

    def _begin(self) -> None:
        """Watch the loop, and log who serves what, and at a crash who had what in hand."""
        show_at_crash(crash_fd(), self.core.report.summary, echo)
        timers = self.config.scheduler
        self._watchdog = Watchdog(timers.hang_limit, crash_fd()) if timers.hang_limit else None
        self.loop.watch_with(
            self._watchdog, lambda s, where: log_line("error", f"the loop was held up for {s:.1f} s in {where}")
        )
        who = f"drover {version()} pid={os.getpid()} group={timers.group}"
        agents = " ".join(name for name, agent in self.config.agents.items() if agent.enabled)
        log_line("info", f"{who}: hosts {' '.join(self.config.hosts)}; agents {agents}")

    # What is left for a later step, by whom, and where it is picked up: in the same turn of the loop, or at the next
    # deadline of the core or of the watch connection.
    #
    #   left by                        what                                  picked up by
    #   an event of a driver           effects of the core                   _carry_out, at once
    #   an OK, a death, a new row      types to schedule (state.dirty)       core.take_effects -> core.schedule_dirty
    #   the end of a job, its log      rows to save (policy/outbox.py)       send_request -> core.next_request
    #   a notification                 a periodic task that is due           watch.step -> PeriodicTasks.next_steps
    #   a command that was read        the next command to carry out         watch.step -> Commands.carry_out_next
    #   a change of a slot or a host   what report.py has to show            PeriodicTasks.next_deadline

    def turn(self) -> None:
        """Carry out all effects of the core, then wait for the next event or deadline."""
        if self._daemon_state.is_frozen:
            self._turn_frozen()
            return
        loop, core = self.loop, self.core
        if core.has_effects:
            self._carry_out()
        self.connections.send_request()  # without effects it goes first: the database works while we schedule
        if core.has_work:
            self._carry_out()
            self.connections.send_request()
        watch_deadline = self.watch.step()
        if self.stdin_jobs is not None and self.stdin_jobs.has_just_ended():
            self.drain()
            return  # what the watch connection has to show is due at once
        if self._upgrade is not None:
            watch_deadline = min(watch_deadline, self._upgrade.step())
        if core.has_work or self._daemon_state.is_frozen:
            return
        deadline = core.next_deadline()
        loop.turn(min(deadline, watch_deadline))
        if loop.now >= deadline:
            core.tick(loop.now)
        elif core.end_if_over():
            self._carry_out()

    # ---- the program before us, and the next one

    @property
    def _is_taking_over(self) -> bool:
        """Return whether the program before us can still go on in our place."""
        return self._takeover is not None and not self._takeover.is_over

    def _turn_frozen(self) -> None:
        """Save all that there is, or connect: nothing of any agent is read or written."""
        if self.core.has_effects and not self._is_taking_over:
            self._carry_out()
        self.connections.send_request()
        deadline = self.watch.step()
        if self._upgrade is not None:
            deadline = min(deadline, self._upgrade.step())
        if self._daemon_state.is_frozen:
            self.loop.turn(deadline)

    def _come_up(self) -> None:
        """Go on with the agents of the program before us, which cannot go on any more."""
        takeover = self._takeover
        if takeover is None or takeover.is_over:
            return  # a signal, or the deadline of what was handed back to, came before the database's answer
        held_s = self.loop.now - self._daemon_state.frozen_since
        takeover.finish()
        if self._kept_agents is not None and takeover.is_left:
            self._kept_agents.came_up()  # before anything is read: what was left is the past from now on
        self._daemon_state.release()
        if (copy := takeover.document["program"].get("copy")) and not takeover.is_last:
            remove_copy(copy)
        log_line("info", f"{takeover.told}: {self.core.report.in_short()}; agents were not read for {held_s:.3f} s")
        self.role_changed()

    def _give_up(self) -> None:
        """Hand back, since we are not up in time; or, if there is nobody to hand back to, go on as we are."""
        if self._takeover is not None and self._takeover.is_last and self._is_taking_over:
            self._come_up()
        elif self._is_taking_over:
            away = next((each["reason"] for each in self.connections.log.failing()), "the database has not answered")
            raise NotUpError(f"not in {self._daemon_state.seconds_frozen:.0f} s: {away}")

    def _prepare_exec(self) -> None:
        """Let nothing of ours reach the next program but what travels."""
        if self._watchdog is not None:
            self._watchdog.set(0.0)
        self.notifier.reloading()

    def _recover(self) -> None:
        """Go on: no other program was executed."""
        self.role_changed()

    def reexec(self, command: int) -> tuple[bool, str] | None:
        """Execute the program that is there now; return what came of that, once it is known."""
        if self._upgrade is None:
            return False, "a daemon that reads jobs from its standard input (-I) is not executed anew"
        return self._upgrade.ask(command)

    def troubles(self) -> list[dict[str, Any]]:
        """Return what is wrong with the embedded server, what an upgrade waits for, and which processes are left."""
        parts = (self._server, self._upgrade, self.processes)
        return [each for part in parts if part is not None for each in part.troubles()]

    def _stay(self, why: str) -> None:
        """Do not let another program take over, nor hand back to one."""
        if self._is_leaving and self._kept_agents is not None:
            self._is_leaving = False
            self._kept_agents.stay()
            self._daemon_state.release()
        if self._is_taking_over:
            self._come_up()
        elif self._upgrade is not None:
            self._upgrade.drop(why)

    def _carry_out(self) -> None:
        core, is_traced = self.core, LOG.isEnabledFor(TRACE)
        while core.has_work:
            for effect in core.take_effects(self.loop.now):
                if is_traced:
                    log_line("trace", str(effect))
                try:
                    self._drivers[type(effect)](effect)
                except Exception:  # the one place: a bug in one effect must not stop the others
                    LOG.exception("bug: %s failed; please report this", effect)
                    # What the effect was about is given up: its state is not known any more.
                    if isinstance(effect, e.Spawn):
                        self._handle(e.NotCreated(effect.slot, BUG))
                    elif isinstance(effect, e.Expand | e.Fetch | e.Keep):
                        self._handle(e.NotExpanded(effect.job, BUG))

    def _check_programs(self) -> None:
        """Check periodically whether programs of agents, or ours, were replaced."""
        self.processes.check_programs()
        if self._upgrade is not None:
            self._upgrade.check()
        self.loop.at(self.loop.now + self.config.scheduler.status_interval, self._check_programs)

    # ---- the daemon that is started next

    def leave(self) -> None:
        """End, and leave all agents to the daemon that is started next; without a place for them stop."""
        if self._kept_agents is None or self.core.is_draining:
            self.stop()  # of what drains, nothing is left to anybody
        elif self._is_taking_over and self._takeover is not None and self._takeover.is_left:
            self._kept_agents.page.set_state_valid(True)  # still; and that we are not up is no failure
            self._left()  # what was left to us is there still, and nothing of it was read
        elif not (self.core.is_ending or self._is_leaving):
            self._stay("the daemon is started anew")
            self._is_leaving = True
            log_line("info", "leaving: agents go on, and wait for the daemon that is started next")
            self._kept_agents.leave(self._left, self._not_left)

    def _left(self) -> None:
        log_line("info", f"left: {self.core.report.in_short()}")
        self.has_left = self._over = True

    def _not_left(self, why: str) -> None:
        log_line("error", f"agents cannot be left: {why}")
        self.stop()

    def _close_connections(self) -> None:
        """Close every connection; agents and their pipes are for the next daemon."""
        self.notifier.stopping()
        if self._upgrade is not None:
            self._upgrade.close()
        self.host_scripts.close()
        self.connections.close()
        self.job_queries.close()
        self.agentdb.close()
        self._ready_file.remove()
        self.notifier.close()
        if self._kept_agents is not None:
            self._kept_agents.close()

    def _warden_ended(self, _mask: int) -> None:
        """End in order when the warden was killed: nobody would end the agents of a daemon that crashes."""
        assert self._kept_agents is not None
        self.loop.unregister(self._kept_agents.warden.line.fileno())
        log_line("error", "the warden has ended: stopping, since no process would end the agents of a killed daemon")
        self.stop()

    def close(self) -> None:
        """End every child and close every connection."""
        self.notifier.stopping()
        self.host_scripts.close()
        self.processes.close()
        if self.stdin_jobs is not None:
            self.stdin_jobs.close()
        if self._kept_agents is not None:
            self._kept_agents.remove_all()
        self._close_connections()

    # ---- what is shown

    def role_changed(self) -> None:
        """Act on what we are to our group now: tell the warden, quit, end survivors, and show it."""
        if self._kept_agents is not None:
            self._kept_agents.lease_changed()
        if self._is_taking_over:
            return
        if self._quits_if_served and self.watch.lease.is_served_elsewhere and not self.core.is_ending:
            log_line("info", "quitting, since another daemon serves the group (--quit-if-served)")
            self.stop()
        if self.watch.lease.has_role:
            self._end_survivors_of_others()
            self.notifier.ready()
            try:
                self._ready_file.show()
            except OSError as error:
                log_line("error", f"ready_file: {error.strerror}")
        self.notifier.update_status()

    def _end_survivors_of_others(self) -> None:
        """Kill the agents of a daemon before us if another one serves the group by now."""
        if self._has_survivors and self.watch.lease.state is not LeaseState.SERVING:
            self._handle(e.LeaseLost())
        self._has_survivors = False

    def _status_line(self) -> str:
        """Return one line for the service manager."""
        where = ", the database refuses statements" if self.core.report.refused else ""
        where = ", the database is away" if self.connections.is_away else where
        what = self.core.report.phase(self.watch.lease.shown)
        return f"{what}, group {self.config.scheduler.group}{where}: {self.core.report.in_short()}"

    def take_counted(self) -> Counted:
        """Return what was counted for drover metrics since the last call: each driver has counters of its own."""
        return self.core.report.take_counted() | self.connections.take_counted() | self.processes.take_counted()

    def _resume(self, pause: float) -> None:
        log_line("warning", f"the daemon did not run for {pause:.1f} s: time limits of agents are put off")
        self.core.resume(pause, self.loop.now)

    # ---- what an operator asks of it

    def signalled(self, number: int) -> None:
        """Obey a signal: end, or show what is in hand."""
        if self.watch.awaits_answers and number in (SIGINT, SIGTERM, SIGQUIT, LEAVE):
            self._end()
        elif number == SIGINT:
            self.drain()
        elif number in (SIGTERM, SIGQUIT):
            self.stop()
        elif number == LEAVE:
            self.leave()
        elif number in (SIGHUP, SIGUSR1, SIGUSR2):  # SIGHUP is no reload: that is a command
            report = self.core.report
            for line in report.queries() if number == SIGUSR2 else report.summary():
                echo(line)

    def reload(self) -> Steps[str]:
        """Read the configuration anew, go on with it and return what has changed.

        Errors: ConfigError, with all mistakes; then nothing changes.
        """
        wanted = self._read()
        config = within_reach(self.config, wanted)
        yield from self.watch.register(config)
        text = changes(self.config, wanted)
        self.notifier.reloading()
        self._carry_out()  # what was decided under the old one is carried out by it
        self.config = config
        self.processes.reload(config)
        self.job_queries.reload(config)
        self.agentdb.reload(config)
        if self.stdin_jobs is not None:
            self.stdin_jobs.reload(config)
        self._handle(e.Reloaded(config))
        self.processes.check_programs()
        self.watch.reload(config)
        self.role_changed()
        log_line("info", f"reload: {text}")
        return text

    def catch_up(self) -> Steps[None]:
        """Go on with the configuration that the files have now, after the program was replaced."""
        try:
            if within_reach(self.config, self._read()) == self.config:
                yield from self.watch.register(self.config)  # our version is another
            else:
                yield from self.reload()
        except ConfigError as error:
            log_line("error", f"the configuration of before is kept: {error}")

    def drain(self) -> None:
        """End when what is in hand is done; asked once more, give SQL jobs back too."""
        self._stay("the daemon is to end")
        is_first = not self.core.is_draining
        rest = "nothing new is begun" if is_first else "SQL jobs are given back too"
        log_line("info", f"draining: what is in hand is finished, {rest}")
        self._handle(e.Drain())
        self.watch.show_soon()
        self.notifier.update_status()

    def stop(self) -> None:
        """Kill all and end, in time even if the database saves nothing: the next daemon rescues the rows."""
        self._stay("the daemon is to end")
        log_line("info", "stopping: agents are killed, their rows given back")
        limit = self.config.scheduler.kill_grace + LAST_WORDS_S
        self.loop.at(self.loop.now + limit - LAST_WORDS_S / 2, self.processes.abandon_remote)
        self.loop.at(self.loop.now + limit, self._end_unsaved)
        self._handle(e.Stop())
        self.notifier.stopping()

    def _end_unsaved(self) -> None:
        if self.watch.awaits_answers:
            return  # all is saved
        if alive := self.core.report.alive():
            log_line("error", f"not dead in time: {alive}; the next scheduler of the group gives their jobs back")
        else:
            what = "the database has not taken all in time"
            log_line("error", f"{what}: the next scheduler of the group puts the rest right")
        self._end()

    def step_down(self) -> bool:
        """Let another daemon take the group over, and stand by; return False when we are ending anyway."""
        self._stay("another daemon is to take the group over")
        is_begun = self.core.step_down(self.loop.now)
        limit = self.config.scheduler.kill_grace + LAST_WORDS_S
        self.loop.at(self.loop.now + limit, partial(self._release_group, self.watch.owner))
        return is_begun

    def _release_group(self, owner: str) -> None:
        """Release the group: all is given back, or takes too long, and the next owner rescues the rest."""
        if self.core.is_stepping_down and self.watch.owner == owner:
            self.watch.lease.step_down(self.loop.now)

    def _release_and_end(self) -> None:
        """Release the group and end: all is saved and every child is dead."""
        self.loop.at(self.loop.now + LAST_WORDS_S, self._end_in_time)
        self.watch.release_group(self._end)

    def _end_in_time(self) -> None:
        """End though the database has not answered, but not while it does and another daemon is waited for."""
        if not self.watch.awaits_answers:
            self._end()

    def _end(self) -> None:
        if not self._over:
            log_line("info", "ended")
        self._over = True
