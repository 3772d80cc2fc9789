"""The watch connection, the second one of a daemon: it receives notifications, takes the lease and runs slow tasks.

They are kept off the queue connection, whose statements must not wait for them. The lease is renewed by a third one
(lease_renewal.py), or here while that is not up.

Decisions about the lease are policy/group_lease.py's; here they are carried out, as steps (drivers/loop.py). One task
runs at a time, and the lease comes before the periodic tasks (periodic_tasks.py). A task whose statement is refused
ends: what it was for is tried again by the lease, or by the next rescan.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import attrs

from scheduler.daemon.acknowledgements import Acknowledgements
from scheduler.daemon.command_rows import DaemonControl, text_of
from scheduler.daemon.connections import Connections
from scheduler.daemon.detached_jobs import DetachedJobs
from scheduler.daemon.lease_renewal import LeaseRenewal, longest_wait
from scheduler.daemon.log import log_line
from scheduler.daemon.periodic_tasks import LOCKED_S, PeriodicTasks
from scheduler.daemon.schedule_starts import described
from scheduler.drivers.loop import Loop, Steps, Task
from scheduler.drivers.os_calls import Identity, identity, is_gone
from scheduler.drivers.process_spec import EXEC_DIRECTORY
from scheduler.drivers.statement_runner import LOCK_TIMEOUT, RefusedError, Statements, answer_to
from scheduler.drivers.statements import Query, to_json
from scheduler.errors import ConfigError
from scheduler.model.config import Condition, Config, Queue
from scheduler.model.counters import as_rows
from scheduler.model.events_and_effects import LeaseLost, Serve, Woken
from scheduler.model.host_filters import ranges_text
from scheduler.model.queue_requests import Cells
from scheduler.model.states import NEVER, LeaseState
from scheduler.model.verbs import EVERY, about
from scheduler.package_data import version
from scheduler.policy.core import Core
from scheduler.policy.group_lease import Lease, LeaseStatement, Owner

LEAVE_S: Final = 2.0  # for each of the last statements
CHANNELS: Final = (  # of notifications that make tasks due
    "drover_command", "drover_queue", "drover_due", "drover_recovery", "drover_delivery", "drover_change",
)  # fmt: skip


class Watch:
    """The watch connection of one daemon: its lease, its periodic tasks and the commands that it carries out."""

    def __init__(
        self, loop: Loop, config: Config, conninfo: str, core: Core, queries: Mapping[str, Query],
        daemon: DaemonControl, heirs_cgroup: Path | None = None,
    ) -> None:  # fmt: skip
        """Be ready to connect; `heirs_cgroup` is the control group of the daemons that go on with our agents."""
        self._loop, self._config, self._core, self._daemon = loop, config, core, daemon
        self._identity = identity()
        # Written behind the pid namespace: only daemons of the same control group know what became of our agents.
        self._pid_space_suffix = "" if heirs_cgroup is None else f" {heirs_cgroup}"
        self.owner = str(uuid.uuid4())
        self.lease = Lease(config.scheduler)
        self._is_busy = False
        self._is_paused = False  # another program is to take over: nothing but the lease
        self._is_written_down = False  # since that began all is written down
        self._takes_over: Callable[[], None] | None = None  # called when all is known that a program before us knew
        self._has_new_pid = False  # the program before us had another pid
        self._is_opening = False  # the group is ours; commands that waited for a daemon come before its first job
        schedinfo = f"{self._identity.host}.{self._identity.pid}"
        self.connections = Connections(loop, config, conninfo, core, queries, schedinfo, self, daemon.role_changed)
        each, limit_s = self.connections, config.scheduler.statement_limit
        self._statements = Statements(loop, each.watch, each.queries, each.refused, limit=limit_s)
        renewals = Statements(loop, each.lease, each.queries, each.refused, limit=2 * longest_wait(config.scheduler))
        self._renewal = LeaseRenewal(loop, self.lease, each.lease, renewals, self._renewal_values, self._renewed)
        detached = DetachedJobs(core, lambda: loop.now, self.ask, daemon.host_scripts, schedinfo)
        self.periodic = PeriodicTasks(
            loop, config.scheduler, core, self.lease, self.ask, self.connections, daemon, detached, self._is_gone
        )

    def reload(self, config: Config) -> None:
        """Apply another configuration, which was registered."""
        self._config = config
        self.connections.rate_limit.set_gap(config.scheduler.wake_interval)
        self.periodic.set_timers(config.scheduler)

    # ---- another program that takes over, or that was before us

    def pause(self, wanted: bool) -> None:
        """Begin no task but those of the lease, and write down what is in memory only; or go on."""
        self._is_paused, self._is_written_down = wanted, False

    @property
    def is_written_down(self) -> bool:
        """Return whether nothing is under way, and all is written down since the pause began."""
        return self._is_written_down and not self._is_busy

    def snapshot(self) -> dict[str, Any]:
        """Return what another program needs to go on with our group: JSON."""
        return {"owner": self.owner, "lease": self.lease.snapshot(), "backend": self.connections.queue.backend}

    def restore(self, snapshot: Mapping[str, Any], ready: Callable[[], None], *, has_new_pid: bool) -> None:
        """Continue with the group of a program before us; `ready` is called when agents may be given work again.

        `has_new_pid`: others know a process as the owner that has ended, and may take the group over at once.
        """
        self._has_new_pid = has_new_pid
        self.owner = snapshot["owner"]
        self.connections.take_over(self.owner, snapshot.get("backend"))
        self._takes_over = ready
        self.lease.restore(snapshot.get("lease"))

    def _steps_of_takeover(self) -> Steps[None] | None:
        """Return the next step: the lease is renewed, rows and memory are compared, then the tables are read."""
        if self._has_new_pid:
            return self._introduce()
        if statement := self._lease_statement():
            return self._lease_steps(statement)
        is_ours = self.lease.state is not LeaseState.SERVING or self.lease.is_renewed
        return self._take_over() if is_ours and self.connections.is_queue_ready else None

    def _introduce(self) -> Steps[None]:
        """Write down which process the owner is now, before anybody sees that the one before us is gone."""
        self._has_new_pid = False
        try:
            yield from self.register(self._config)
        except ConfigError as error:
            log_line("error", f"not registered: {error}")

    def _take_over(self) -> Steps[None]:
        is_serving = self.lease.state is LeaseState.SERVING
        if is_serving:
            yield from self.periodic.context.follow_tables()
        ready, self._takes_over = self._takes_over, None
        assert ready is not None
        if is_serving:
            self.periodic.all_due(LOCKED_S)
            self._core.handle(Serve(self.lease.until), self._loop.now)
        ready()
        yield from self._daemon.catch_up()

    # ---- what the connection reports

    def up(self) -> None:
        """Begin anew: the connection is up and listens."""
        self._is_busy = False
        self.lease.connected(self._loop.now)
        if self.lease.state is LeaseState.SERVING and self._takes_over is None:
            self.periodic.all_due()

    def down(self) -> None:
        """Stop all tasks: the connection is lost, and wake-ups are missed until it is back."""
        self._is_busy = False
        self.lease.disconnected()
        self.periodic.stop()

    def lease_down(self) -> None:
        """Renew the lease on the watch connection: the lease connection is lost."""
        self._renewal.lost()

    def notified(self, channel: str) -> None:
        """Make due what a notification is about."""
        if channel == "drover_queue":
            self._core.handle(Woken(), self._loop.now)
        elif channel == "drover_due":
            self.periodic.bring_forward("due")
        elif channel == "drover_recovery":
            self.periodic.bring_forward("recovery")
        elif channel == "drover_delivery":
            self.periodic.bring_forward("deliveries")
        elif channel == "drover_change":
            self.lease.owner_changed(self._loop.now)
            self.periodic.bring_forward("tables")
        elif channel == "drover_command":
            self.periodic.read_commands_in(0.0)

    def poll(self) -> None:
        """Make due all that notifications are about, when none arrives."""
        for channel in CHANNELS:
            self.notified(channel)

    def show_soon(self) -> None:
        """Write the status of the daemon as soon as possible."""
        self.periodic.bring_forward("all")

    def rescue_answered(self, rows: Sequence[Cells]) -> None:
        """Go on with what query `rescue` has answered on the other connection."""
        self.periodic.rescue_answered(rows)

    # ---- one task at a time

    def step(self) -> float:
        """Begin the next task, if it is time; return the instant of the one after it."""
        if self._takes_over is None:
            self._renewal.step()
        deadline = self._next_deadline()
        is_special = self._is_opening or self._is_paused or self._takes_over is not None
        if deadline > self._loop.now and not is_special:
            return deadline  # as in most turns of a busy daemon
        if self._is_free and (steps := self._next_steps()) is not None:
            self._is_busy = True
            Task(self._loop, self._carry_out(steps)).start()
        return self._next_deadline()

    @property
    def _is_free(self) -> bool:
        return not self._is_busy and self.connections.watch.is_up

    def _next_deadline(self) -> float:
        own = min(self.lease.next_deadline(), self.periodic.next_deadline()) if self._is_free else NEVER
        return own if self._takes_over is not None else min(own, self._renewal.next_deadline())

    def _next_steps(self) -> Steps[None] | None:
        if self._takes_over is not None:
            return self._steps_of_takeover()
        if self._is_paused:
            if statement := self._lease_statement():
                return self._lease_steps(statement)
            return None if self._is_written_down else self._write_down()
        if self._is_opening and self.periodic.commands.is_caught_up:
            self._is_opening = False
            return self._open()
        if statement := self._lease_statement():
            return self._lease_steps(statement)
        return self.periodic.next_steps()

    def _write_down(self) -> Steps[None]:
        """Write down what is in memory only; what is refused is tried until the other program is late."""
        yield from self.periodic.save_counts()
        self._is_written_down = self._is_paused

    def _lease_statement(self) -> LeaseStatement | None:
        return None if self._renewal.is_busy else self.lease.step(self._loop.now)

    def _carry_out(self, steps: Steps[None]) -> Steps[None]:
        try:
            yield from steps
        except RefusedError:
            self.periodic.refused()
        self._is_busy = False
        self._daemon.role_changed()

    def ask(self, query: str, /, **values: object) -> Steps[list[Cells]]:
        """Run a query, which gets our group and owner too; return its rows. Errors: RefusedError."""
        group = self._config.scheduler.group
        answer = yield from self._statements.ask(query, **{"group": group, "owner": self.owner, **values})
        rows = list(answer.rows)
        self.periodic.late.answered(query, rows)
        if query == "read_commands" and rows:
            self.connections.rate_limit.was_worthwhile("drover_command")
        return rows

    # ---- the lease

    def _lease_steps(self, statement: LeaseStatement) -> Steps[None]:
        try:
            yield from _LEASE_STEPS[statement](self)
        except RefusedError as error:
            self.lease.refused(self._loop.now)
            if statement is LeaseStatement.TAKE and error.failure.sqlstate == LOCK_TIMEOUT:
                yield from self.ask("end_holder", lease=self._config.scheduler.lease)

    def register(self, config: Config) -> Steps[None]:
        """Write down what a configuration names. Errors: ConfigError, another group has some of it; nothing is written.

        Only the database knows which group has a host or a queue.
        """
        rows = yield from self.ask("register", config=registration(config, self._identity, self._pid_space_suffix))
        if clashes := sorted(text_of(row[0]) for row in rows):
            other = ": another group has it; rename it here"
            raise ConfigError("\n".join(clash + other * (" belongs to group " in clash) for clash in clashes))
        yield from self.periodic.context.install_queue_filters()

    def _register(self) -> Steps[None]:
        yield from self.register(self._config)
        self.lease.registered(self._loop.now)
        self.periodic.read_commands_in(0.0)

    def _look_at_owner(self) -> Steps[None]:
        rows = yield from self.ask("read_owner")
        if not rows:
            self.lease.connected(self._loop.now)
            return
        owner, lapsed, host, pid, *process, taken = rows[0]
        is_dead = owner is not None and pid is not None and self._is_gone((host, pid, *process))
        if self.lease.owner.uuid is None and owner is not None and not is_dead:
            who = f"{text_of(host)}.{text_of(pid)}"
            log_line("info", f"standing by: group {self._config.scheduler.group} is served by {who}")
        uuid = None if owner is None else text_of(owner)
        self.lease.looked(Owner(uuid, lapsed == b"t", is_dead, text_of(taken)), self._loop.now)

    def _is_gone(self, process: Cells) -> bool:
        """Return whether the process of a daemon has ended: host, pid, boot id, pid namespace and start time."""
        host, pid, boot_id, pid_space, pid_start = map(text_of, process)
        space = pid_space.removesuffix(self._pid_space_suffix)
        return is_gone(Identity(host, int(pid), boot_id, space, int(pid_start)))

    def _take_lease(self) -> Steps[None]:
        """Take the group over, unless another daemon was faster, maybe its owner with a renewal."""
        owner = self.lease.owner
        rows = yield from self.ask(
            "take_lease",
            lease=self._config.scheduler.lease,
            dead=owner.uuid if owner.is_dead else None,
            patient=self.lease.has_waited_a_lease,
        )
        if rows and owner.uuid is not None:
            why = "its process is gone" if owner.is_dead else "its lease has run out"
            log_line("warning", f"taking over group {self._config.scheduler.group} from {owner.uuid}: {why}")
        self.lease.taken(text_of(rows[0][0]) if rows else None, self._loop.now)

    def _rescue(self) -> Steps[None]:
        """Give back what former owners had; then, and only then, serve: first the commands that waited."""
        yield from self.periodic.give_back_lost(0.0)
        self.periodic.detached.begin()
        yield from self.periodic.detached.adopt()
        self.lease.rescued(self._loop.now)
        self._is_opening = True
        self.periodic.commands.forget()  # some may have come while the group had no daemon
        self.periodic.all_due(LOCKED_S)  # rows may have been locked when the others were given back
        log_line("info", f"serving group {self._config.scheduler.group} as {self.owner}")

    def _open(self) -> Steps[None]:
        """Begin jobs.

        Commands that were given while no daemon ran are done by now, and what they changed is known: a job that was
        cancelled, or whose queue was paused, does not begin. A flood of them holds up the first job until the lease is
        renewed, and no longer.
        """
        yield from self.periodic.context.follow_tables()
        self._core.handle(Serve(self.lease.until), self._loop.now)

    def _renewal_values(self) -> dict[str, object]:
        timers = self._config.scheduler
        return {"group": timers.group, "owner": self.owner, "lease": timers.lease}

    def _renew_lease(self) -> Steps[None]:
        self._renewed((yield from self.ask("renew_lease", **self._renewal_values())))

    def _leave_group(self) -> Steps[None]:
        yield from self.ask("unregister", stays=True)
        self._renewed([])

    def _renewed(self, rows: list[Cells]) -> None:
        if self.lease.state is LeaseState.LEAVING:
            return  # the group was released while a renewal was under way
        now, was_stepping_down = self._loop.now, self.lease.state is LeaseState.STEPPING_DOWN
        self.lease.renewed(bool(rows), now)
        if rows and self._takes_over is not None:
            return
        if rows:
            self._core.handle(Serve(self.lease.until), now)
            return
        self._is_opening = False
        why = "is given up" if was_stepping_down else "has another owner"
        log_line("warning", f"group {self._config.scheduler.group} {why}: standing by")
        self._core.handle(LeaseLost(), now)
        self.periodic.stop()
        self.owner = str(uuid.uuid4())
        self.connections.set_owner(self.owner)

    def release_group(self, done: Callable[[], None]) -> None:
        """Release the group and call `done`, in any case; if we obey a command to shut down, when that has ended."""
        self.lease.leave()
        self.periodic.stop()
        Task(self._loop, self._leave(), lambda _: done()).start()

    def _leave(self) -> Steps[None]:
        """Unregister, then end the commands for every scheduler."""
        watch, queries = self.connections.watch, self.connections.queries
        if rows := as_rows(self.periodic.take_counted()):
            yield from answer_to(watch, queries["count"], {"rows": to_json(rows)}, limit_s=LEAVE_S)
        values = {"group": self._config.scheduler.group, "owner": self.owner, "stays": False}
        yield from answer_to(watch, queries["unregister"], values, limit_s=LEAVE_S)
        yield from self._answers.finish(lambda: self._loop.now, 2 * self._config.scheduler.lease)

    @property
    def _answers(self) -> Acknowledgements:
        return self.periodic.commands.acknowledgements

    @property
    def awaits_answers(self) -> bool:
        """Return whether we have released the group, and a command to shut down has not ended."""
        return self._answers.are_awaited


_LEASE_STEPS: Final[dict[LeaseStatement, Callable[[Watch], Steps[None]]]] = {
    LeaseStatement.REGISTER: Watch._register,
    LeaseStatement.LOOK: Watch._look_at_owner,
    LeaseStatement.TAKE: Watch._take_lease,
    LeaseStatement.RESCUE: Watch._rescue,
    LeaseStatement.RENEW: Watch._renew_lease,
    LeaseStatement.LEAVE: Watch._leave_group,
}


def registration(config: Config, identity: Identity, pid_space_suffix: str) -> dict[str, Any]:
    """Return what query `register` writes down of us and of our configuration."""
    queues = {config.scheduler.group: Queue()} | config.queues  # each group has a queue of its own name
    return {
        **asdict(identity),
        "pid_space": identity.pid_space + pid_space_suffix,
        "version": version(),
        "verbs": about(EVERY),
        "lease": config.scheduler.lease,
        "hosts": [
            {"name": name, "letters": ranges_text(host.priorities)} | attrs.asdict(host)
            for name, host in config.hosts.items()
        ],
        "queues": [
            {"name": name, "route": queue.route, "limits": queue.limits} | attrs.asdict(queue)
            for name, queue in queues.items()
        ],
        "agents": [
            {
                "type": name,
                "enabled": agent.enabled,
                "kind": agent.kind,
                "submitters": agent.submitters,
                "cwd": agent.cwd or (EXEC_DIRECTORY if agent.kind == "exec" else ""),
                "fair": agent.fair,
                "revision": " ".join(agent.command)[:200],
                "attributes": agent.attributes,
            }
            for name, agent in config.agents.items()
        ],
        "policies": _policies(config),
        "schedules": [described(name, schedule) for name, schedule in config.schedules.items()],
    }


def _policies(config: Config) -> list[dict[str, Any]]:
    """Return the policies for conditions, the one for all that none of them names last."""
    usual_wait = config.scheduler.blocked_delay
    named = [
        {"name": name, "condition": each.condition or name, "types": each.types, "rules": each.rules(usual_wait)}
        for name, each in config.conditions.items()
    ]
    return [*named, {"name": "", "condition": "*", "types": (), "rules": Condition().rules(usual_wait)}]
