"""The watch connection: the lease, wake-ups and everything slow, so that a lock on a job row cannot make a lease lapse.

Decisions about the lease are policy/lease.py's; here they are carried out. One statement at a time, and none of the
chores (maintenance.py) comes before the lease.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib import metadata
from typing import Any, Final

import attrs

from scheduler.daemon.commands import Act
from scheduler.daemon.maintenance import Maintenance
from scheduler.drivers.postgres import Connection
from scheduler.drivers.spawn import EXEC_DIRECTORY
from scheduler.drivers.sql import OURS, Answer, Failure, Query, Rows, Stat, setting
from scheduler.drivers.statements import RefusedStatements
from scheduler.drivers.system import Identity, is_gone
from scheduler.errors import ConfigError
from scheduler.model.config import Config, Queue, Scheduler
from scheduler.model.events import LeaseLost, Serve, Woken
from scheduler.model.jobs import Cells
from scheduler.model.states import LeaseState
from scheduler.policy.core import Core
from scheduler.policy.lease import Lease, LeaseStatement, Owner

NEVER: Final = float("inf")
LISTEN: Final = ("listen drover_queue", "listen drover_due", "listen drover_change", "listen drover_command")
LOCKED: Final = "55P03"  # SQLSTATE: somebody keeps what we wait for


def settings(timers: Scheduler) -> list[str]:
    """Give what the watch connection sets: it listens, and waits for no lock so long that the lease would lapse."""
    wait_s = (timers.lease - timers.lease_renewal) / 4
    return [*LISTEN, setting(OURS), f"set lock_timeout = {max(1, round(wait_s * 1000))}", "set jit = off"]


class Watch:
    """What runs on the watch connection of one daemon."""

    def __init__(
        self,
        config: Config,
        core: Core,
        queries: dict[str, Query],
        identity: Identity,
        say: Callable[[str, str], None],
        new_owner: Callable[[str], None],
        clock: Callable[[], float],
        stats: Callable[[], dict[str, Stat]],
        acts: Mapping[str, Act],
        vitals: Callable[[], dict[str, Any]],
        noted: Callable[[], None],
        refusals: RefusedStatements,
    ) -> None:
        self._config = config
        self._core = core
        self._queries = queries
        self._identity = identity
        self._say = say
        self._new_owner = new_owner
        self._clock = clock
        self._refusals = refusals
        self._noted = noted  # an answer has come, after which our standing may be another
        self.lease = Lease(config.scheduler)
        self.owner = str(uuid.uuid4())
        self.mistakes: str | None = None  # a clash with another group: the operator's to mend
        self._is_busy = False
        self._is_opening = False  # the group is ours; commands that waited for a daemon come before its first job
        self.maintenance = Maintenance(
            config.scheduler, core, self.lease, identity.pid, self._ask, say, clock, stats, vitals, acts
        )
        self.link: Connection  # given by `attach`: the link needs our callbacks first
        self.worthwhile: Callable[[str], None]  # so is this: a wake-up led to something

    def attach(self, link: Connection, worthwhile: Callable[[str], None]) -> None:
        """Take the connection to work on; it is not open yet."""
        self.link, self.worthwhile = link, worthwhile

    # ---- what the connection tells

    def up(self, now: float) -> None:
        """The connection is there and listens."""
        self._is_busy = False
        self.lease.connected(now)
        if self.lease.state is LeaseState.SERVING:
            self.maintenance.all_due()

    def down(self) -> None:
        """The connection is lost: nothing can be asked, wake-ups are missed until it is back."""
        self._is_busy = False
        self.lease.disconnected()
        self.maintenance.cut_off()

    def notified(self, channel: str, now: float) -> None:
        """Somebody rang."""
        if channel == "drover_queue":
            self._core.handle(Woken(), now)
        elif channel == "drover_due":
            self.maintenance.bring_forward("due")
        elif channel == "drover_change":
            self.lease.owner_changed(now)
            self.maintenance.bring_forward("look")
        elif channel == "drover_command":
            self.maintenance.read_commands_in(0.0)

    def poll(self) -> None:
        """Look for all that others ring for, when nobody can be heard."""
        self.maintenance.read_commands_in(0.0)
        self._core.handle(Woken(), self._clock())
        self.maintenance.bring_forward("due")
        self.notified("drover_change", self._clock())

    def take(self, config: Config) -> None:
        """Go on with another configuration; it was announced."""
        self._config = config
        self.maintenance.take(config.scheduler)

    # ---- time

    def next_deadline(self, now: float) -> float:
        """Give the instant of the next statement."""
        if self._is_busy or not self.link.is_up:
            return NEVER
        return min(self.lease.next_deadline(), self.maintenance.next_deadline(now))

    def step(self, now: float) -> None:
        """Run the next statement, if it is time."""
        if self._is_busy or not self.link.is_up:
            return
        if self._is_opening and self.maintenance.commands.is_caught_up:
            self._is_opening = False
            self.maintenance.look_around(self._give_out_work)
            return
        statement = self.lease.step(now)
        if statement is not None:
            _STATEMENTS[statement](self, now)
        else:
            self.maintenance.step(now)

    def _ask(
        self,
        name: str,
        values: Mapping[str, object],
        done: Callable[[list[Cells]], object],
        refused: Callable[[], object] = lambda: None,
    ) -> None:
        """Run a query; a failure is logged, and the query tried again with the next chance of its chore."""
        self._is_busy = True

        def answered(answer: Answer) -> None:
            self._is_busy = False
            if isinstance(answer, Rows):
                self._refusals.accepted(name)
                done(list(answer.rows))
            elif not answer.lost:
                self._failed(name, answer)
                refused()
            if name == "read_commands" and isinstance(answer, Rows) and answer.rows:
                self.worthwhile("drover_command")
            self._noted()

        ours: dict[str, object] = {"group": self._config.scheduler.group, "owner": self.owner}
        self.link.ask(
            self._queries[name], {**ours, **values}, answered, deadline=self._config.scheduler.statement_limit
        )

    def _failed(self, name: str, failure: Failure) -> None:
        """The statement was refused: ask anew later, from the beginning when it was the lease's."""
        if failure.sqlstate == LOCKED:
            self._say("error", f"{name}: {failure.message}")
        else:
            self._refusals.refused(name, failure)
        if name not in {statement.value for statement in LeaseStatement}:
            self.maintenance.refused()
            return
        self.lease.refused(self._clock())
        if name == LeaseStatement.TAKE.value and failure.sqlstate == LOCKED:
            self._ask("end_holder", {"lease": self._config.scheduler.lease}, lambda _: None)

    # ---- the lease

    def _register(self, now: float) -> None:
        self.announce(self._config, self._registered)

    def announce(self, config: Config, done: Callable[[list[str]], None]) -> None:
        """Write down what a configuration names; `done` is told what clashes, and then nothing is written down."""

        def answered(rows: list[Cells]) -> None:
            done([f"{clash}: another group has it; rename it here" for clash in sorted(_text(row[0]) for row in rows)])

        values = {"config": _described(config, self._identity)}
        self._ask("register", values, answered, self.maintenance.commands.refused)

    def _registered(self, clashes: list[str]) -> None:
        if clashes:
            self.mistakes = "\n".join(clashes)
            raise ConfigError(self.mistakes)
        self.lease.registered(self._clock())
        self.maintenance.read_commands_in(0.0)

    def _look(self, now: float) -> None:
        self._ask("read_owner", {}, self._looked)

    def _looked(self, rows: list[Cells]) -> None:
        if not rows:
            self.lease.connected(self._clock())
            return
        owner, lapsed, host, pid, boot_id, pid_space, pid_start, taken = rows[0]
        known = owner is not None and pid is not None
        dead = known and is_gone(
            Identity(_text(host), int(_text(pid)), _text(boot_id), _text(pid_space), int(_text(pid_start)))
        )
        if self.lease.owner.uuid is None and owner is not None and not dead:
            self._say(
                "info", f"standing by: group {self._config.scheduler.group} is served by {_text(host)}.{_text(pid)}"
            )
        uuid = None if owner is None else _text(owner)
        self.lease.looked(Owner(uuid, lapsed == b"t", dead, _text(taken)), self._clock())

    def _take(self, now: float) -> None:
        owner = self.lease.owner
        values = {
            "lease": self._config.scheduler.lease,
            "dead": owner.uuid if owner.is_dead else None,
            "patient": self.lease.has_waited_a_lease,
        }
        self._ask("take_lease", values, partial(self._taken, owner))

    def _taken(self, owner: Owner, rows: list[Cells]) -> None:
        """The group is ours, and was this one's, or somebody was faster, maybe its owner with a renewal."""
        if rows and owner.uuid is not None:
            why = "its process is gone" if owner.is_dead else "its lease has run out"
            self._say("warning", f"taking over group {self._config.scheduler.group} from {owner.uuid}: {why}")
        self.lease.taken(_text(rows[0][0]) if rows else None, self._clock())

    def _rescue(self, now: float) -> None:
        """Give back what former owners had; then, and only then, serve: first the commands that waited."""
        self.maintenance.give_back_lost(0.0, self._rescued)

    def _rescued(self, rows: list[Cells]) -> None:
        now = self._clock()
        self.maintenance.settle_rescued(rows)
        self.lease.rescued(now)
        self._is_opening = True
        self.maintenance.commands.begin()
        self.maintenance.all_due()
        self.maintenance.rescan_for_locked()
        self._say("info", f"serving group {self._config.scheduler.group} as {self.owner}")

    def _give_out_work(self) -> None:
        """Let jobs begin while the lease lasts.

        Commands that were given while no daemon ran are done by now, and what they changed is known: a job that was
        cancelled, or whose queue was paused, does not begin. A flood of them holds up the first job until the lease is
        renewed, and no longer.
        """
        self._core.handle(Serve(self.lease.until), self._clock())

    def _renew(self, now: float) -> None:
        self._ask("renew_lease", {"lease": self._config.scheduler.lease}, self._renewed)

    def _leave(self, now: float) -> None:
        self._ask("unregister", {}, lambda _: self._renewed([]))

    def _renewed(self, rows: list[Cells]) -> None:
        now, was_stepping_down = self._clock(), self.lease.state is LeaseState.STEPPING_DOWN
        self.lease.renewed(bool(rows), now)
        if rows:
            self._give_out_work()
            return
        self._is_opening = False
        why = "is given up" if was_stepping_down else "has another owner"
        self._say("warning", f"group {self._config.scheduler.group} {why}: standing by")
        self._core.handle(LeaseLost(), now)
        self.maintenance.cut_off()
        self.owner = str(uuid.uuid4())
        self._new_owner(self.owner)

    def leave(self, done: Callable[[], None]) -> None:
        """An orderly end: the group has no owner any more. `done` is called in any case."""
        self.lease.leave()
        self.maintenance.drop()
        values: dict[str, object] = {"group": self._config.scheduler.group, "owner": self.owner}
        self.link.ask(self._queries["unregister"], values, lambda _: done(), deadline=2.0)


_STATEMENTS: Final[dict[LeaseStatement, Callable[[Watch, float], None]]] = {
    LeaseStatement.REGISTER: Watch._register,
    LeaseStatement.LOOK: Watch._look,
    LeaseStatement.TAKE: Watch._take,
    LeaseStatement.RESCUE: Watch._rescue,
    LeaseStatement.RENEW: Watch._renew,
    LeaseStatement.LEAVE: Watch._leave,
}


def _described(config: Config, identity: Identity) -> dict[str, Any]:
    """Give what query `register` writes down of us and of our configuration."""
    queues = {config.scheduler.group: Queue()} | config.queues  # each group has a queue of its own name
    return {
        **asdict(identity),
        "version": metadata.version("drover-scheduler"),
        "lease": config.scheduler.lease,
        "hosts": [
            {"name": name, "letters": "".join(sorted(host.letters)) if host.priorities else None} | attrs.asdict(host)
            for name, host in config.hosts.items()
        ],
        "queues": [{"name": name} | attrs.asdict(queue) for name, queue in queues.items()],
        "agents": [
            {
                "type": name,
                "enabled": agent.enabled,
                "kind": agent.kind,
                "submitters": agent.submitters,
                "cwd": agent.cwd or (EXEC_DIRECTORY if agent.kind == "exec" else ""),
                "fair": agent.fair,
                "revision": " ".join(agent.command)[:200],
            }
            for name, agent in config.agents.items()
        ],
    }


def _text(cell: bytes | None) -> str:
    return (cell or b"").decode("utf-8", "backslashreplace")
