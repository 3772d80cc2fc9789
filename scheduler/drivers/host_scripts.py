"""Runs short scripts of our own on hosts, beside the slots: those that end keepers and clean spools.

A script has the environment of an agent type, no input, and a time limit; what it prints is returned.
"""

import signal
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from scheduler.drivers.local_process import LocalProcess
from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.pipes import Outputs, Pipes
from scheduler.drivers.processes import Child, Processes
from scheduler.model.events_and_effects import Event, Gone, Spawn

LIMIT_S: Final = 90.0
EXIT_GRACE_S: Final = 1.0
MOST_BYTES: Final = 1 << 20  # kept of what a script prints

Done = Callable[[int | None, bytes], None]  # exit status, None if it has none; what it printed


class HostScripts:
    """The scripts that run, by number."""

    def __init__(self, loop: Loop, processes: Processes) -> None:
        self._loop, self._processes = loop, processes
        self._last = 0
        self._children: dict[int, Child] = {}
        self._printed: dict[int, bytes] = defaultdict(bytes)
        self._done: dict[int, Done] = {}
        self._limits: dict[int, Timer] = {}
        self._outputs = Outputs(
            loop, lambda *_: None, lambda *_: None, self._keep, lambda _event: None, self._output_ended
        )

    def run(self, type: str, host: str, words: tuple[bytes, ...], done: Done) -> None:
        """Run a script, as the words of a command, on a host; `done` is called later, in any case."""
        number = self._last = self._last + 1
        spawn = Spawn(number, 0, type, host, words, b"")
        self._done[number] = done
        try:
            process, ends = self._processes.begin(
                spawn, lambda: self._children[number].pipes.open(b""), lambda end: self._children[number].died(end)
            )
        except (OSError, ValueError):
            self._loop.at(self._loop.now, lambda: self._over(number, Gone(number, lost=True)))
            return
        pipes = Pipes(self._outputs, number, False, ends)
        self._children[number] = Child(
            self._loop, number, type, False, process, pipes, lambda: EXIT_GRACE_S, self._over, lambda _event: None
        )
        self._limits[number] = self._loop.at(self._loop.now + LIMIT_S, lambda: self._kill(number))
        if isinstance(process, LocalProcess):
            pipes.open(b"")

    def close(self) -> None:
        """End them all and report nothing; at the very end."""
        for child in self._children.values():
            child.process.kill()
            child.abandon()
            if isinstance(child.process, LocalProcess):
                with suppress(OSError):
                    child.process.reap()
        self._children.clear()

    def _kill(self, number: int) -> None:
        if child := self._children.get(number):
            child.process.signal(signal.SIGKILL)

    def _keep(self, number: int, stream: str, data: bytes, _now: float) -> None:
        if stream == "out" and len(self._printed[number]) < MOST_BYTES:
            self._printed[number] += data

    def _output_ended(self, number: int) -> None:
        if child := self._children.get(number):
            child.output_ended()

    def _over(self, number: int, end: Event) -> None:
        self._children.pop(number, None)
        if (limit := self._limits.pop(number, None)) is not None:
            limit.cancel()
        code = end.code if isinstance(end, Gone) else None
        self._done.pop(number)(code, self._printed.pop(number, b""))
