"""The watch connection: the lease, wake-ups and everything slow, so that a lock on a job row cannot make a lease lapse.

Decisions about the lease are policy/lease.py's; here they are carried out, and the chores of a serving daemon: due
rows, the tables that others may change, the belt to lost wake-ups, what is shown of us. One statement at a time;
each chore has an instant, and none comes before the lease.
"""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Any, Final

import attrs

from scheduler.commands import Act as CommandAct
from scheduler.commands import Commands
from scheduler.drivers.postgres import Link
from scheduler.drivers.postgres_answers import Answer, Failure, Rows, Stat
from scheduler.drivers.sql import Query, to_json
from scheduler.drivers.system import Identity, is_gone
from scheduler.errors import ConfigError
from scheduler.model.config import Config, Queue, Scheduler
from scheduler.model.events import Disowned, Looked, Serve, Woken
from scheduler.model.jobs import Cells
from scheduler.policy import status
from scheduler.policy.core import Core
from scheduler.policy.lease import Act, Lease, Owner, Standing

NEVER: Final = float("inf")
LISTEN: Final = ("listen drover_queue", "listen drover_due", "listen drover_change", "listen drover_command")
LOCKED: Final = "55P03"  # SQLSTATE: somebody keeps what we wait for
LOCKED_S: Final = 1.0  # until the next look for a row that somebody keeps locked
STATUS_GAP_S: Final = 1.0  # between two shows of changes
DUE_GAP_S: Final = 0.2  # between two looks for due rows
SLOW_S: Final = 1.0  # a statement that took longer is worth a warning
OWN_AGE_S: Final = 10.0  # a row of ours that is this old and not in memory was lost on its way


def settings(timers: Scheduler) -> list[str]:
    """Give what the watch connection sets: it listens, and waits for no lock so long that the lease would lapse."""
    wait_s = (timers.lease - timers.lease_renewal) / 4
    return [*LISTEN, f"set lock_timeout = {max(1, round(wait_s * 1000))}", "set jit = off"]


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
        acts: Mapping[str, CommandAct],
        turns: Callable[[], dict[str, float]],
        noted: Callable[[], None],
    ) -> None:
        self._config = config
        self._core = core
        self._queries = queries
        self._identity = identity
        self._say = say
        self._new_owner = new_owner
        self._clock = clock
        self._stats = stats
        self._turns = turns
        self._noted = noted  # an answer has come, after which our standing may be another
        self._slowest: dict[str, float] = {}  # seconds of what was complained about
        self.lease = Lease(config.scheduler)
        self.owner = str(uuid.uuid4())
        self.mistakes: str | None = None  # a clash with another group: the operator's to mend
        self._began = 0.0
        self._due = dict.fromkeys(_CHORES, NEVER)
        self._is_busy = False
        self._commands = Commands(core, self._ask, self._read_commands_in, self._do_command, acts, clock)
        self.link: Link  # given by `attach`: the link needs our callbacks first
        self.worthwhile: Callable[[str], None]  # so is this: a wake-up led to something

    def attach(self, link: Link, now: float, worthwhile: Callable[[str], None]) -> None:
        """Take the connection to work on; it is not open yet."""
        self.link, self.worthwhile = link, worthwhile
        self._began = now

    # ---- what the connection tells

    def up(self, now: float) -> None:
        """The connection is there and listens."""
        self._is_busy = False
        self.lease.connected(now)
        if self.lease.standing is Standing.SERVING:
            self._all_due(now)

    def down(self) -> None:
        """The connection is lost: nothing can be asked, wake-ups are missed until it is back."""
        self._is_busy = False
        self.lease.disconnected()
        self._due = dict.fromkeys(self._due, NEVER)
        self._commands.cut_off()

    def notified(self, channel: str, now: float) -> None:
        """Somebody rang."""
        if channel == "drover_queue":
            self._core.handle(Woken(), now)
        elif channel == "drover_due":
            self._bring_forward("due", now)
        elif channel == "drover_change":
            self._bring_forward("look", now)
        elif channel == "drover_command" and self.lease.standing is not Standing.UNREGISTERED:
            self._due["commands"] = now

    def poll(self) -> None:
        """Look for all that others ring for, when nobody can be heard."""
        now = self._now()
        if self.lease.standing is not Standing.UNREGISTERED:
            self._due["commands"] = min(self._due["commands"], now)
        self._core.handle(Woken(), now)
        self._bring_forward("due", now)
        self._bring_forward("look", now)

    def show_now(self) -> None:
        """Show everything anew, if we serve."""
        self._bring_forward("all", self._now())

    def rescan_now(self) -> None:
        """Look for all that may have been missed, if we serve."""
        self._bring_forward("rescan", self._now())

    def _read_commands_in(self, seconds: float) -> None:
        self._due["commands"] = min(self._due["commands"], self._now() + seconds)

    def _do_command(self) -> None:
        self._due["command"] = self._now()

    def take(self, config: Config, now: float) -> None:
        """Go on with another configuration; it was announced."""
        self._config = config
        self._bring_forward("look", now)
        self._bring_forward("all", now)

    def look_due(self, now: float) -> None:
        """A row was given an instant to wait for."""
        self._bring_forward("due", now)

    def _bring_forward(self, chore: str, now: float) -> None:
        if self.lease.standing is Standing.SERVING:
            self._due[chore] = min(self._due[chore], now + (DUE_GAP_S if chore == "due" else 0.0))

    # ---- time

    def next_deadline(self, now: float) -> float:
        """Give the instant of the next statement."""
        if self._is_busy or not self.link.is_up:
            return NEVER
        self._note_changes(now)
        return min(self.lease.next_deadline(), *self._due.values())

    def _note_changes(self, now: float) -> None:
        """Changes are shown a moment later, many at once."""
        if self.lease.standing is Standing.SERVING and self._core.world.fleet.changed:
            self._due["status"] = min(self._due["status"], now + STATUS_GAP_S)

    def step(self, now: float) -> None:
        """Run the next statement, if it is time."""
        if self._is_busy or not self.link.is_up:
            return
        act = self.lease.step(now)
        if act is not None:
            _ACTS[act](self, now)
            return
        chore = min(self._due, key=self._due.__getitem__)  # the oldest, so that none starves beside another
        if self._due[chore] <= now:
            self._due[chore] = NEVER
            _CHORES[chore](self, now)

    def _ask(
        self,
        name: str,
        values: Mapping[str, object],
        done: Callable[[list[Cells]], object],
        refused: Callable[[], object] = lambda: None,
    ) -> None:
        """Run a query; a failure is said, and tried again with the next chance of its chore."""
        self._is_busy = True

        def answered(answer: Answer) -> None:
            self._is_busy = False
            if isinstance(answer, Rows):
                done(answer.rows)
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
        self._say("error", f"{name}: {failure.message}")
        now = self._now()
        if name in {act.value for act in Act}:
            self.lease.refused(now)
            if name == Act.TAKE.value and failure.sqlstate == LOCKED:
                self._ask("end_holder", {"lease": self._config.scheduler.lease}, lambda _: None)
        elif self.lease.standing is Standing.SERVING:
            self._due["rescan"] = min(self._due["rescan"], now + self._config.scheduler.rescan)
        else:
            self._read_commands_in(self._config.scheduler.rescan)

    def _now(self) -> float:
        return self._clock()

    # ---- the lease

    def _register(self, now: float) -> None:
        self.announce(self._config, self._registered)

    def announce(self, config: Config, done: Callable[[list[str]], None]) -> None:
        """Write down what a configuration names; `done` is told what clashes, and then nothing is written down."""

        def answered(rows: list[Cells]) -> None:
            done([f"{clash}: another group has it; rename it here" for clash in sorted(_text(row[0]) for row in rows)])

        values = {"config": _described(config, self._identity)}
        self._ask("register", values, answered, self._commands.refused)

    def _registered(self, clashes: list[str]) -> None:
        if clashes:
            self.mistakes = "\n".join(clashes)
            raise ConfigError(self.mistakes)
        self.lease.registered(self._now())
        self._read_commands_in(0.0)

    def _look(self, now: float) -> None:
        self._ask("look_at_owner", {}, self._looked)

    def _looked(self, rows: list[Cells]) -> None:
        if not rows:
            self.lease.connected(self._now())
            return
        owner, lapsed, host, pid, boot_id, pid_space, pid_start = rows[0]
        known = owner is not None and pid is not None
        dead = known and is_gone(
            Identity(_text(host), int(_text(pid)), _text(boot_id), _text(pid_space), int(_text(pid_start)))
        )
        if self.lease.owner.uuid is None and owner is not None and not dead:
            self._say(
                "info", f"standing by: group {self._config.scheduler.group} is served by {_text(host)}.{_text(pid)}"
            )
        self.lease.looked(Owner(None if owner is None else _text(owner), lapsed == b"t", dead), self._now())

    def _take(self, now: float) -> None:
        owner = self.lease.owner
        if owner.uuid is not None:
            why = "its process is gone" if owner.is_dead else "its lease has run out"
            self._say("warning", f"taking over group {self._config.scheduler.group} from {owner.uuid}: {why}")
        values = {
            "lease": self._config.scheduler.lease,
            "dead": owner.uuid if owner.is_dead else None,
            "patient": self.lease.is_patient,
        }
        self._ask("take_lease", values, lambda rows: self.lease.taken(bool(rows), self._now()))

    def _rescue(self, now: float) -> None:
        """Give back what former owners had; then, and only then, serve."""
        self.give_back_lost(0.0, self._rescued)

    def give_back_lost(self, age: float, done: Callable[[list[Cells]], None]) -> None:
        """Give back rows of other owners, and rows of ours at least `age` seconds old that are not in memory."""
        self._ask("rescue", {"live": self._core.live_rows(), "age": age}, done)

    def _rescued(self, rows: list[Cells]) -> None:
        now = self._now()
        self._settle_rescued(rows)
        self.lease.rescued(now)
        self._core.handle(Serve(self.lease.until), now)
        self._all_due(now)
        self._due["rescan"] = now + min(LOCKED_S, self._config.scheduler.rescan)  # for rows that were locked
        self._say("info", f"serving group {self._config.scheduler.group} as {self.owner}")

    def _settle_rescued(self, rows: list[Cells]) -> None:
        count, failed_parents, _ = rows[0]
        if count not in (None, b"0"):
            self._say("warning", f"rows given back that had no living owner: {_text(count)}")
            self._core.handle(Woken(), self._now())
        if failed_parents:
            self._core.settle([int(pk) for pk in failed_parents.split(b",")])

    def _renew(self, now: float) -> None:
        self._ask("renew_lease", {"lease": self._config.scheduler.lease}, self._renewed)

    def _renewed(self, rows: list[Cells]) -> None:
        now = self._now()
        self.lease.renewed(bool(rows), now)
        if rows:
            self._core.handle(Serve(self.lease.until), now)
            return
        self._say("warning", f"group {self._config.scheduler.group} has another owner: standing by")
        self._core.handle(Disowned(), now)
        self._due = dict.fromkeys(self._due, NEVER)
        self._commands.cut_off()
        self.owner = str(uuid.uuid4())
        self._new_owner(self.owner)

    def leave(self, done: Callable[[], None]) -> None:
        """An orderly end: the group has no owner any more. `done` is called in any case."""
        self.lease.leave()
        self._due = dict.fromkeys(self._due, NEVER)
        values: dict[str, object] = {"group": self._config.scheduler.group, "owner": self.owner}
        self.link.ask(self._queries["leave"], values, lambda _: done(), deadline=2.0)

    # ---- chores

    def _all_due(self, now: float) -> None:
        rescan = now + self._config.scheduler.rescan
        at_once = dict.fromkeys(("commands", "look", "due", "all"), now)
        self._due = dict.fromkeys(_CHORES, NEVER) | at_once | {"rescan": rescan}

    def _look_around(self, now: float) -> None:
        self._ask("look_around", {}, self._looked_around)

    def _looked_around(self, rows: list[Cells]) -> None:
        queues, hosts, types, placements = (json.loads(cell or b"[]") for cell in rows[0])
        self._core.handle(Looked(queues, hosts, types, placements), self._now())

    def _look_due(self, now: float) -> None:
        self._ask("due", {}, self._due_looked)

    def _due_looked(self, rows: list[Cells]) -> None:
        released, failed_parents, seconds = rows[0]
        now = self._now()
        if released not in (None, b"0"):
            self._core.handle(Woken(), now)
        if failed_parents:
            self._core.settle([int(pk) for pk in failed_parents.split(b",")])
        if seconds is not None:
            left, is_more = float(seconds), released not in (None, b"0")
            self._due["due"] = min(self._due["due"], now + (left if left > 0 else DUE_GAP_S if is_more else LOCKED_S))

    def _rescan(self, now: float) -> None:
        """The belt: dependencies that nobody settled, rows of ours that got lost, wake-ups that were missed."""
        self._due["rescan"] = now + self._config.scheduler.rescan
        self._ask("rescan", {}, lambda _: self.give_back_lost(OWN_AGE_S, self._rescanned))

    def _rescanned(self, rows: list[Cells]) -> None:
        self._settle_rescued(rows)
        self._core.handle(Woken(), self._now())
        self._bring_forward("look", self._now())
        self._bring_forward("due", self._now())
        self._ask("forget_dead", {"age": 2 * self._config.scheduler.lease}, lambda _: self._read_commands_in(0.0))

    def _show_all(self, now: float) -> None:
        self._due["all"] = now + self._config.scheduler.status_interval
        self._show([status.slot_row(slot, now) for slot in status.all_slots(self._core.world)], now)

    def _show_changes(self, now: float) -> None:
        slots = status.changed_slots(self._core.world)
        if slots or self._core.world.fleet.vacant:
            self._show([status.slot_row(slot, now) for slot in slots], now)

    def _show(self, rows: list[dict[str, Any]], now: float) -> None:
        age = now - self._began
        world, pid, standing = self._core.world, self._identity.pid, self.lease.standing.value
        rows.append(status.scheduler_row(world, pid, standing, age, self._statements(), self._turns()))
        agents = {"rows": to_json(status.agent_rows(self._core.world, now))}
        shown = {"rows": to_json(rows), "gone": self._core.world.fleet.vacant}
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


_ACTS: Final[dict[Act, Callable[[Watch, float], None]]] = {
    Act.REGISTER: Watch._register,
    Act.LOOK: Watch._look,
    Act.TAKE: Watch._take,
    Act.RESCUE: Watch._rescue,
    Act.RENEW: Watch._renew,
}
_CHORES: Final[dict[str, Callable[[Watch, float], None]]] = {
    "command": lambda watch, _now: watch._commands.do_next(),
    "commands": lambda watch, _now: watch._commands.read(),
    "look": Watch._look_around,
    "due": Watch._look_due,
    "rescan": Watch._rescan,
    "status": Watch._show_changes,
    "all": Watch._show_all,
}


def _described(config: Config, identity: Identity) -> dict[str, Any]:
    """Give what query `register` writes down of us and of our configuration."""
    queues = {config.scheduler.group: Queue()} | config.queues  # each group has a queue of its own name
    return {
        **asdict(identity),
        "version": metadata.version("drover-scheduler"),
        "lease": config.scheduler.lease,
        "hosts": [{"name": name} | attrs.asdict(host) for name, host in config.hosts.items()],
        "queues": [{"name": name} | attrs.asdict(queue) for name, queue in queues.items()],
        "agents": [
            {
                "type": name,
                "enabled": agent.enabled,
                "kind": agent.kind,
                "submitters": agent.submitters,
                "revision": " ".join(agent.command)[:200],
            }
            for name, agent in config.agents.items()
        ],
    }


def _text(cell: bytes | None) -> str:
    return (cell or b"").decode("utf-8", "backslashreplace")
