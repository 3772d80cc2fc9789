"""Fake hosts that keep detached jobs: their spools, commands that outlive daemons, and processes attached to them.

What drivers/keeper_scripts.py does with scripts on a host is here an object a spool: an entry is closed or has a
command; a start comes late or never, a later attempt ends an earlier one, and an attach script of an earlier turn
passes nothing on. Commands live in fake time, whatever becomes of daemons.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from scheduler.model.events_and_effects import Gone, Spawn
from tests.sim import start_invariants
from tests.sim.agents import read_item

if TYPE_CHECKING:
    from tests.sim.harness import Daemon
    from tests.sim.world import Sim

LATE_S: Final = 40.0  # that a start may be on its way, when much goes wrong
LONG_S: Final = 60.0  # that half of all commands may take
KEEPER_PIDS: Final = 1_000_000  # from here on
End = tuple[int | None, str | None]  # exit status and signal


@dataclass(slots=True, eq=False)
class Entry:
    """What a host keeps of an attempt: nothing but that it may not begin, a command that runs, or its end."""

    pk: int
    attempt: int
    host: str
    type: str
    is_closed: bool = False
    turn: int = 0
    pid: int = 0  # of its keeper
    is_alive: bool = False
    end: End | None = None
    is_deaf: bool = False  # to a hang-up
    attached: list["Attached"] = field(default_factory=list)


class Spools:
    """The spools of all hosts."""

    def __init__(self, sim: "Sim") -> None:
        self._sim = sim
        self.entries: dict[tuple[str, int], dict[int, Entry]] = {}  # by host and job, then by attempt
        self._keepers = 0

    @property
    def live(self) -> list[Entry]:
        """The entries whose commands run."""
        return [entry for entries in self.entries.values() for entry in entries.values() if entry.is_alive]

    def start(self, spawn: Spawn, pk: int, attempt: int) -> Entry:
        """Begin a command, unless that was forbidden meanwhile; or find it."""
        entries = self.entries.setdefault((spawn.host, pk), {})
        if attempt not in entries:
            is_late = any(other > attempt for other in entries)
            for other, entry in list(entries.items()):
                if other < attempt:
                    self._finish(entry)
                    del entries[other]
            entries[attempt] = Entry(pk, attempt, spawn.host, spawn.type, is_closed=is_late)
            if not is_late:
                self._begin(entries[attempt])
        return entries[attempt]

    def adopt(self, spawn: Spawn, pk: int, attempt: int) -> Entry:
        """Find an attempt; one that has not begun never does."""
        entries = self.entries.setdefault((spawn.host, pk), {})
        return entries.setdefault(attempt, Entry(pk, attempt, spawn.host, spawn.type, is_closed=True))

    def release(self, host: str, pk: int, attempt: int) -> None:
        """End what runs of an attempt, and keep nothing of it but that it may not begin."""
        entries = self.entries.setdefault((host, pk), {})
        if (entry := entries.pop(attempt, None)) is None or entry.is_closed:
            entries[attempt] = entry or Entry(pk, attempt, host, "", is_closed=True)
        else:
            self._finish(entry)

    def lose(self, host: str) -> None:
        """The host is started again, or its keepers are killed: commands are gone, and how they ended is not known."""
        for entry in self.live:
            if entry.host == host:
                self._sim.disrupt(entry.pk)
                self._over(entry, None)

    # ---- commands

    def _begin(self, entry: Entry) -> None:
        sim, nature = self._sim, self._sim.nature_of(entry.type)
        start_invariants.commands_are_alone(sim, entry)
        self._keepers += 1
        entry.is_alive, entry.pid = True, KEEPER_PIDS + self._keepers
        entry.is_deaf = sim.chance(nature.stubborn)
        pace = sim.rng.random() * (LONG_S if not sim.is_calm and sim.chance(0.5) else 2 * nature.pace)
        if not sim.chance(nature.deaf):
            sim.at(pace, self._come_to_its_end, entry)

    def _come_to_its_end(self, entry: Entry) -> None:
        if not entry.is_alive:
            return
        sim, nature = self._sim, self._sim.nature_of(entry.type)
        if 0 in sim.database.rows[entry.pk].poison or sim.chance(nature.crash):
            self._over(entry, (None, "SIGSEGV"))
        elif sim.chance(nature.fail):
            self._over(entry, (1, None))
        elif sim.chance(nature.blocked):
            self._over(entry, (75, None))
        else:
            sim.perform(entry.pk, 0)
            self._over(entry, (0, None))

    def hang_up(self, entry: Entry) -> None:
        """SIGHUP to a command."""
        if entry.is_alive and not entry.is_deaf:
            self._sim.disrupt(entry.pk)
            self._over(entry, (None, "SIGHUP"))

    def kill(self, entry: Entry, name: str = "SIGKILL") -> None:
        """SIGKILL to a command, or another signal that ends it."""
        if entry.is_alive:
            self._sim.disrupt(entry.pk)
            self._over(entry, (None, name))

    def _finish(self, entry: Entry) -> None:
        self.kill(entry)
        entry.attached.clear()

    def _over(self, entry: Entry, end: End | None) -> None:
        """Note the end of a command, which is lost without one; those that are attached to it see that soon."""
        entry.is_alive, entry.end = False, end
        for attached in entry.attached:
            self._sim.at(0.3 * self._sim.rng.random(), attached.see)


class Attached:
    """The process of a slot that is attached to a detached job, or is to start one; the harness takes it for any."""

    def __init__(self, daemon: "Daemon", spawn: Spawn, command: tuple[str, ...], pid: int) -> None:
        assert spawn.keeper is not None
        assert spawn.job is not None
        assert spawn.attempt is not None
        self._daemon, self._spawn, self._turn = daemon, spawn, spawn.keeper.turn
        self._key = spawn.job, spawn.attempt
        self._entry: Entry | None = None
        self.slot, self.host, self.pid, self.command = spawn.slot, spawn.host, pid, command
        self.alive = self.heard = True
        self.is_born = self.is_liar = self.is_at_work = False
        self.item: tuple[int, int] | None = None  # the command has it, not this process
        self.program, self.finished, self.took, self.begun_at = "", 0, 0.0, 0.0  # as a process of an agent has them
        self._is_let_go = False

    def is_of(self, name: str) -> bool:
        """Return whether this is a process of this type."""
        return self._spawn.type == name

    def begin(self) -> None:
        """Go to the host, which may take long; what is on its way may come even if this process is dead by then."""
        sim = self._daemon.sim
        slow = LATE_S if not sim.is_calm and sim.chance(0.1) else 0.3
        sim.at(slow * sim.rng.random(), self._arrive)
        if self._is_let_go:
            self.let_go()

    def _arrive(self) -> None:
        sim = self._daemon.sim
        if not self.alive and sim.chance(0.5):
            return
        assert self._spawn.keeper is not None
        come = sim.spools.start if self._spawn.keeper.verb == "start" else sim.spools.adopt
        self._entry = entry = come(self._spawn, *self._key)
        entry.turn = max(entry.turn, self._turn)
        if self.alive and sim.has("keepers") and not sim.is_calm and sim.chance(0.1):
            self._end(kept="could not keep", why="no space left")
            return
        if self.alive:
            entry.attached.append(self)
            if not entry.is_closed and self.heard:
                self._say_pid(entry.pid)
            self.see()

    def _say_pid(self, pid: int) -> None:
        sim = self._daemon.sim
        if not sim.has("keepers") or sim.chance(0.5):
            self._daemon.captured_line(self, b"%d\n" % pid)
            return
        for part in sim.rng.choice(((b"welcome\n",), (b"%d" % (pid // 10), b"%d\n" % (pid % 10)), (b"1", b"\n"))):
            self._daemon.captured_line(self, part)

    def see(self) -> None:
        """End as the command did, if it has."""
        entry = self._entry
        if not self.alive or entry is None or entry.is_alive:
            return
        if entry.is_closed:
            self._end(kept="not begun")
        elif entry.end is None:
            self._end(kept="interrupted")
        else:
            self._end(*entry.end)

    def _end(self, code: int | None = None, signal: str | None = None, kept: str = "", why: str = "") -> None:
        self.alive = False
        if self._entry is not None and self in self._entry.attached:
            self._entry.attached.remove(self)
        self._daemon.detached(self, Gone(self.slot, code, signal, keeper_said=kept, why=why))

    # ---- what the daemon does with it

    def _pass_on(self, act: Callable[[Entry], None]) -> None:
        """Send the command a signal, unless there is none yet, or another daemon has had it since."""
        if self.alive and self._entry is not None and self._entry.turn <= self._turn:
            act(self._entry)

    def hang_up(self) -> None:
        """The command is to hang up."""
        self._pass_on(self._daemon.sim.spools.hang_up)

    def kill(self) -> None:
        """The command is to be killed."""
        self._pass_on(self._daemon.sim.spools.kill)

    def die(self, code: int | None, signal: str | None) -> None:
        """The command gets a signal that ends it."""
        self._pass_on(lambda entry: self._daemon.sim.spools.kill(entry, signal or "SIGTERM"))

    def let_go(self) -> None:
        """It is killed itself, which says nothing of the command."""
        self._is_let_go = True
        if self.alive and self.is_born:
            self._end(kept="gone", why="killed")

    def vanish(self) -> None:
        """The way to it is lost, and it dies with that."""
        self.alive = self.heard = False

    def receive(self, data: bytes) -> None:
        """Nothing is sent to it but its input."""
        assert read_item(data) is not None
