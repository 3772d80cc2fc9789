"""Fake agents: one object a process, each of some character; they live in fake time and speak through the daemon.

A process keeps its own books of what it was told, so that a line too many is seen here, by the one who gets it.
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scheduler.model.config import AgentType
from scheduler.model.events_and_effects import Spawn
from tests.sim import voices
from tests.sim.broken import Broken

if TYPE_CHECKING:
    from tests.sim.harness import Daemon

_ITEM: Final = re.compile(rb'(?:one|exec):(\d+)|pk="(\d+)" n="(\d+)"')
_NOISE: Final = (
    b"LOG all is well\n", b"ERROR odd\n", b"ECHO hello\n", b"OKAY\n", b"garbage \xff\x00\n", b"\n", b"Heartbeat\n",
    b"WARNING hm\n", b"FATAL not really\n", b"Success\n", b"LOG unstorable\n", b"RESULT {\n", b"ItemsProcessed x\n",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Character:
    """What agents of one type tend to do: chances between 0 and 1, lengths in seconds."""

    name: str
    pace: float = 0.05  # an item, about
    startup: float = 0.1
    stillborn: float = 0.0  # not created at all
    crash_at_start: float = 0.0
    crash: float = 0.0  # at an item
    deaf: float = 0.0  # never answers an item
    mute: float = 0.0  # never says its first OK
    babble: float = 0.0
    double: float = 0.0  # OK OK
    unasked: float = 0.0  # OK while idle
    fail: float = 0.0
    blocked: float = 0.0
    counts: float = 0.0  # ItemsProcessed
    endless: float = 0.0  # a line without end
    stubborn: float = 0.0  # survives Kill, and some ForceKills
    pieces: float = 0.1  # its lines come in pieces
    eager: float = 0.0  # does not wait for Created to be told before it speaks
    dies_after: float = 0.0  # says OK and dies at once
    lapse: float = 0.0  # works long on an item


CHARACTERS: Final = (
    Character("polite", pieces=0.0),
    Character("polite", pace=0.002, pieces=0.02),
    Character("quick", pace=0.0002, startup=0.02, pieces=0.0, counts=0.1),
    Character("hasty", pace=0.0003, startup=0.02, pieces=0.0, lapse=0.02, crash=0.003),
    Character("slow", pace=15.0, startup=5.0),
    Character("deaf", deaf=0.05, mute=0.05, pace=0.5),
    Character("babbling", babble=0.5, pieces=0.5),
    Character("crashing", crash=0.1, crash_at_start=0.1, dies_after=0.03),
    Character("doomed", crash_at_start=0.9, startup=0.5),
    Character("stillborn", stillborn=0.5),
    Character("unkillable", stubborn=0.8, deaf=0.05, pace=0.3),
    Character("doubling", double=0.1, unasked=0.02, endless=0.02),
    Character("failing", fail=0.2, blocked=0.03, counts=0.2, babble=0.2),
    Character("mixed", crash=0.02, crash_at_start=0.05, deaf=0.01, babble=0.1, double=0.01, fail=0.05, stubborn=0.2),
)
CALM: Final = Character("calm", pieces=0.0)
WORSE: Final = Character("worse", crash=0.2, crash_at_start=0.2, fail=0.2, pace=0.5)


class Process:
    """One process of an agent."""

    __slots__ = (
        "_daemon",
        "_kind",
        "_rng",
        "_type",
        "alive",
        "begun_at",
        "exec_line",
        "finished",
        "has_failed",
        "heard",
        "host",
        "is_born",
        "is_halfway",
        "is_liar",
        "item",
        "pid",
        "pipe",
        "program",
        "queue",
        "ready",
        "slot",
        "spoils",
        "took",
        "toughness",
    )

    def __init__(self, daemon: "Daemon", spawn: Spawn, kind: AgentType, pid: int) -> None:
        self._daemon, self._kind, self._rng = daemon, kind, daemon.sim.rng
        self._type, self.host, self.program = spawn.type, spawn.host, spawn.program
        self.slot, self.pid = spawn.slot, pid
        self.alive = True
        self.heard = True  # the daemon still reads what we print
        self.ready = False  # has said OK, and has had no line since
        self.item: tuple[int, int] | None = None
        self.queue: deque[tuple[int, int]] = deque()  # lines that came ahead, not begun
        self.exec_line = spawn.stdin
        self.is_born = False  # and the daemon knows it
        self.is_liar = False
        self.is_halfway = False  # through a line
        self.pipe: bytes | None = None  # what it was sent and does not read
        self.begun_at = 0.0  # its item
        self.finished, self.took = 0, 0.0  # items, and the seconds of the last one
        self.has_failed = False  # the item in hand, it said
        self.spoils = False  # the item in hand will not be done, though OK ends it
        nature = self.nature
        self.toughness = self._rng.randrange(1, 4) if self._rng.random() < nature.stubborn else 0

    @property
    def nature(self) -> Character:
        """Return its behaviour now: every agent becomes polite when the faults stop."""
        return self._daemon.sim.nature_of(self._type, self.program)

    # ---- its life

    def begin(self) -> None:
        """It runs: an exec agent has its item, a line agent says OK after a while."""
        nature, chance = self.nature, self._rng.random
        if self._kind.kind == "exec":
            assert self.exec_line is not None
            self.receive(self.exec_line)
        elif chance() < nature.crash_at_start:
            self._later(nature.startup * chance(), self.die, 1, None)
        elif chance() >= nature.mute:
            words = voices.starting(self._rng) if self._talks else b""
            if words:
                self._later(0.0, self._speak, words, False)
                self._later(0.0, self._finish_line)
            self._say(nature.startup * chance(), b"OK\n")

    def _finish_line(self) -> None:
        self.is_halfway = False

    @property
    def _talks(self) -> bool:
        return self._daemon.sim.has("voices") and not self._daemon.sim.is_calm

    @property
    def sends_statements(self) -> bool:
        """Return whether agents of its type may send DB: lines."""
        return self._kind.db != "off"

    def say_error(self, text: bytes) -> None:
        """Print on stderr."""
        if self.heard and self.alive:
            self._daemon.heard_error(self, text)

    def is_of(self, name: str) -> bool:
        """Return whether this is an agent of this type."""
        return self._type == name

    @property
    def is_at_work(self) -> bool:
        """Return whether it works on an item, and the daemon knows nothing else."""
        return self.alive and self.heard and self.is_born and self.item is not None and not self.is_liar

    @property
    def command(self) -> tuple[str, ...]:
        """Return the command that it was started as."""
        return self._kind.command

    def receive(self, data: bytes) -> None:
        """Lines have come to its stdin."""
        is_exec = self._kind.kind == "exec"
        for line in (data.splitlines(keepends=True) if not is_exec else [data]) if self.alive else ():
            if (item := read_item(line, is_exec=is_exec)) is None:
                raise Broken("lines_are_whole", f"slot {self.slot} got {data!r}")
            self._take(item)

    def _take(self, item: tuple[int, int]) -> None:
        if self.item is None and not self.queue:
            if self._kind.kind == "line" and not self.ready:
                raise Broken("only_ready_agents_get_lines", f"slot {self.slot} got {item} before its OK")
            self._begin(item)
            return
        now = self._daemon.config.agents.get(self._type, self._kind)
        if (self.item is not None) + len(self.queue) >= max(now.most_lines, self._kind.most_lines) and not self.is_liar:
            has = f"{self.item} and {len(self.queue)} ahead"
            raise Broken("only_ready_agents_get_lines", f"slot {self.slot} has {has} and got {item}")
        self.queue.append(item)

    def _begin(self, item: tuple[int, int]) -> None:
        self.item, self.ready = item, False
        self.begun_at = self._daemon.sim.now
        self._work()

    def _work(self) -> None:
        sim, nature, chance = self._daemon.sim, self.nature, self._rng.random
        assert self.item is not None
        pk, number = self.item
        pace = nature.pace * chance() * 2
        if nature.lapse and chance() < nature.lapse:
            pace += chance()
        if number in sim.database.rows[pk].poison or chance() < nature.crash:
            if self._talks and self._kind.kind == "line" and (last := voices.dying(self._rng)):
                self._later(pace, self._speak, last, False)
            self._later(pace, self.die, *((None, "SIGSEGV") if chance() < 0.5 else (3, None)))
        elif chance() < nature.deaf:
            return
        elif self._kind.kind == "exec":
            self._later(pace, self._exit)
        else:
            self._finish(nature, pace)

    def _finish(self, nature: Character, pace: float) -> None:
        chance, words = self._rng.random, b""
        while chance() < nature.babble:
            words += self._rng.choice(_NOISE)
        verdict = chance()
        self.spoils = verdict < nature.fail + nature.blocked
        self.has_failed = verdict < nature.fail
        if verdict < nature.fail:
            words += b"FAIL! never\n" if self._talks and chance() < 0.3 else b"FAIL cannot\n"
        elif self.spoils:
            words += b"BLOCKED tape away\n"
        if chance() < nature.counts:
            words += b"ItemsProcessed %d\n" % self._rng.randrange(4)
        if self._talks:
            words += voices.about_item(self, self._rng)
        if chance() < nature.endless:
            words += b"x" * 5000
        twice = chance() < nature.double
        together = twice and chance() < 0.5
        self._say(pace, words + (b"OK\nOK\n" if together else b"OK\n"))
        if twice and not together:
            self._later(pace, self._lie)
        if self._talks and chance() < 0.2:
            self._later(pace + chance(), self._speak, b"LOG idle\n", self.is_halfway)
        if chance() < nature.dies_after:
            self._later(pace, self.die, 0, None)
        if chance() < nature.unasked:
            self._later(pace + 5 * chance(), self._lie)

    def _exit(self) -> None:
        nature, chance = self.nature, self._rng.random
        if chance() < nature.fail:
            self.die(1, None)
        elif chance() < nature.blocked:
            self.die(75, None)
        else:
            if chance() < 0.3:
                self._daemon.captured(self, self._rng.choice(("out", "err")), b"text " * self._rng.randrange(300))
            self._do()
            self.die(0, None)

    def hang_up(self) -> None:
        """Its pipes are closed and it was sent a hang-up."""
        self.heard = False
        if self.toughness == 0:
            self._later(0.01 * self._rng.random(), self.die, None, "SIGHUP")

    def kill(self) -> None:
        """It was killed; in an uninterruptible wait that takes a while."""
        self.heard = False
        self.toughness -= 1
        if self.toughness <= 0 or self._daemon.sim.is_calm:
            self._later(0.01 * self._rng.random(), self.die, None, "SIGKILL")

    def die(self, code: int | None, signal: str | None) -> None:
        """It ends; the daemon hears of it when its output is read."""
        if self.alive:
            self.alive = False
            if self.item is not None:
                self._daemon.sim.disrupt(self.item[0])
            self._daemon.ended(self, code, signal)

    def vanish(self) -> None:
        """The way to it is lost, and it dies with that."""
        self.alive = self.heard = False

    # ---- its voice

    def _say(self, delay: float, text: bytes) -> None:
        """Speak, whole or in pieces."""
        if self._rng.random() < self.nature.pieces and len(text) > 1 and not text.endswith(b"OK\nOK\n"):
            cut = self._rng.randrange(1, len(text) - 1)  # `OK` at the end of output would count as said
            self._later(delay, self._speak, text[:cut], False)
            self._later(delay + 0.01 * self._rng.random(), self._speak, text[cut:], True)
        else:
            self._later(delay, self._speak, text, True)

    def lie(self) -> None:
        """Say OK to nothing."""
        if self.alive and self.heard:
            self._lie()

    def _lie(self) -> None:
        """Say OK to nothing, or to an item that is not done; from then on every OK is an item ahead."""
        self.is_liar = True
        self._speak(b"OK\n", True)

    def _speak(self, text: bytes, is_ok: bool) -> None:
        """Print; `is_ok` when this ends with the OK for the item in hand."""
        if not self.heard or (self.is_halfway and text == b"OK\n"):
            return
        self.is_halfway = not is_ok
        if self.queue and text.endswith(b"OK\nOK\n"):
            self.is_liar = True  # the second is for the next line
        if self.is_liar:
            self._daemon.lied(self)
        item = self.item
        if is_ok:
            self._do()
            self.ready = True
        self._daemon.heard(self, text, item if is_ok else None)
        if is_ok and self.queue and self.item is None and self.alive and self.heard:
            self._begin(self.queue.popleft())

    def _do(self) -> None:
        if self.item is not None:
            self.finished += 1
            self.took = self._daemon.sim.now - self.begun_at
        if self.item is not None and not self.spoils:
            self._daemon.sim.perform(*self.item)
        self.item, self.spoils = None, False

    def _later(self, delay: float, call: Callable[..., None], *args: object) -> None:
        self._daemon.sim.at(delay, self._if_alive, call, args)

    def _if_alive(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.alive:
            call(*args)


def read_item(line: bytes, *, is_exec: bool = False) -> tuple[int, int] | None:
    """Return (job, item) of a line; a one-parameter job has item 0. None if it is no line.

    The parameter of a command may have newlines in it.
    """
    if is_exec:
        line = line.rstrip(b"\n").replace(b"\n", b" ") + b"\n"
    found = _ITEM.match(line)
    if found is None or not line.endswith(b"\n") or line.count(b"\n") != 1:
        return None
    return (int(found[1]), 0) if found[1] else (int(found[2]), int(found[3]))
