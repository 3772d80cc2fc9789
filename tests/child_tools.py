"""For tests of children: a family of real processes, and all that they say and that is told of them."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scheduler.drivers.local_process import LocalProcess
from scheduler.drivers.loop import Loop
from scheduler.drivers.processes import Processes
from scheduler.model.config import AgentType, Config
from scheduler.model.events_and_effects import Event, Gone, Spawn
from tests.loop_tools import turn_until

PYTHON = (sys.executable, "-S", "-E", "-c")
LONG_S = 600.0


def sh(script: str, **keys: Any) -> AgentType:
    """Return a line agent that is a shell script."""
    return AgentType(command=("sh", "-c", script), **keys)


def python(script: str, *arguments: str) -> AgentType:
    """Return a line agent that is a Python program."""
    return AgentType(command=(*PYTHON, script, *arguments))


def command(**keys: Any) -> AgentType:
    """Return a command: its words come with each Spawn."""
    return AgentType(command=("unused",), kind="exec", **keys)


class Family:
    """Processes, and all that they say and that is told of them."""

    def __init__(
        self, loop: Loop, config: Config, folders: Sequence[str], copies: str = "", kept: dict[str, Any] | None = None
    ) -> None:  # fmt: skip
        self.loop, self._given = loop, (config, folders, copies)
        self.events: list[Event] = []
        self.said: dict[int, bytes] = defaultdict(bytes)
        self.errors: dict[int, bytes] = defaultdict(bytes)
        self.captured: dict[tuple[int, str], bytes] = defaultdict(bytes)
        self.largest = 0
        self.reads = 0
        self.answer: Callable[[int, bytes], bytes | None] = lambda _slot, _data: None
        ears = (self._hear, self._hear_err, self._capture)
        self.processes = Processes(loop, config, folders, *ears, self.events.append, copies, kept)

    def hand_over(self) -> "Family":
        """Go on as another program would: with what is written down of the processes, and nothing else."""
        self.processes.freeze()
        kept = json.loads(json.dumps(self.processes.snapshot()))
        self.processes._children.clear()
        heir = Family(self.loop, *self._given, kept)
        self.processes = heir.processes  # which is closed at the end
        return heir

    def spawn(self, slot: int = 0, type: str = "line", **keys: Any) -> int:
        """Start one; its pid, 0 if it was not created."""
        self.processes.spawn(Spawn(slot, 1, type, "here", **keys))
        return self.pids().get(slot, 0)

    def pids(self) -> dict[int, int]:
        """Return the pid of each slot that has a process on this machine."""
        here = {slot: child.process for slot, child in self.processes._children.items()}
        return {slot: process.pid for slot, process in here.items() if isinstance(process, LocalProcess)}

    def run(self, *argv: bytes, slot: int = 0, stdin: bytes | None = None) -> None:
        self.spawn(slot, "exec", argv=argv, stdin=stdin, job=17, attempt=3)

    def up(self, slot: int = 0, **keys: Any) -> int:
        """Start one and wait until it has said up; its pid."""
        pid = self.spawn(slot, **keys)
        self.until(lambda: self.said[slot].startswith(b"up"))
        return pid

    def until(self, is_so: Callable[[], object]) -> None:
        turn_until(self.loop, is_so)

    def end(self, slot: int = 0) -> Gone:
        """Return how the process of a slot ended, once that is told."""
        self.until(lambda: self.all(Gone, slot))
        (gone,) = [event for event in self.events if isinstance(event, Gone) and event.slot == slot]
        return gone

    def all(self, kind: type[Any], slot: int = 0) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind) and event.slot == slot]

    def _hear(self, slot: int, data: bytes, _now: float) -> bytes | None:
        assert not self.all(Gone, slot), "it speaks though it is gone"
        self.said[slot] += data
        self.largest = max(self.largest, len(data))
        self.reads += 1
        return self.answer(slot, data)

    def _hear_err(self, slot: int, data: bytes, _now: float) -> None:
        self.errors[slot] += data

    def _capture(self, slot: int, stream: str, data: bytes, _now: float) -> None:
        self.captured[slot, stream] += data


Make = Callable[..., Family]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def program(path: Path, script: str) -> None:
    """Put a script there, in place of one that may be there."""
    new = path.with_name("new")
    new.write_text(f"#!/bin/sh\n{script}\n")
    new.chmod(0o700)
    new.replace(path)
