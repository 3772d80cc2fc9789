"""`drover run -t`: start one agent of each type and wait for its first OK.

It uses the driver that the daemon uses, so that what is tested is what will run.
"""

import os
from typing import IO, Final

from scheduler.daemon import agent_folders
from scheduler.drivers.children import Children
from scheduler.drivers.spawning import Surroundings, fingerprint
from scheduler.loop import Loop
from scheduler.model.config import Config
from scheduler.model.events import Created, Event, ForceKill, Gone, NotCreated, Spawn
from scheduler.model.protocol import printable

LAST_WORDS: Final = 4096  # bytes of stderr kept


def test_agents(config: Config, out: IO[str]) -> int:
    """Test every enabled type, one line each; give how many failed."""
    types = [name for name, agent in config.agents.items() if agent.enabled]
    trial = _Trial(config)
    failures = {name: reason for name, reason in zip(types, map(trial.reason, types), strict=True) if reason}
    for name in types:
        print(f"{name}: {failures.get(name, 'ok')}", file=out)
    print(f"{len(failures)} of {len(types)} agent types failed", file=out)
    return len(failures)


class _Trial:
    """One agent at a time, in slot 0."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._loop = Loop()
        self._heard = b""
        self._complaint = b""
        self._events: list[Event] = []
        self._children = Children(
            self._loop, config, agent_folders(), self._hear, self._hear_err, self._ignore, self._events.append
        )

    def reason(self, name: str) -> str | None:
        """Give why an agent of this type cannot be used, or None."""
        agent = self._config.agents[name]
        host = (agent.hosts or tuple(self._config.hosts))[0]
        self._heard = self._complaint = b""
        self._events.clear()
        if agent.kind == "exec":
            around = Surroundings(os.environ, agent_folders())
            return (
                None if fingerprint(agent, around) else f"program {agent.command[0]!r} is not found or may not be run"
            )
        self._children.spawn(Spawn(0, 1, name, host))
        deadline = self._loop.now + self._config.scheduler.start_limit
        while not self._is_decided() and self._loop.now < deadline:
            self._loop.turn(deadline)
        verdict = self._verdict()
        self._end()
        return verdict

    def _is_decided(self) -> bool:
        return b"OK\n" in self._heard or any(isinstance(event, NotCreated | Gone) for event in self._events)

    def _verdict(self) -> str | None:
        for event in self._events:
            if isinstance(event, NotCreated):
                return event.reason
            if isinstance(event, Gone) and b"OK\n" not in self._heard:
                how = f"killed by {event.signal}" if event.signal else f"exit status {event.code}"
                return f"died before its first OK, {how}{self._last_words()}"
        return None if b"OK\n" in self._heard else f"no OK within {self._config.scheduler.start_limit:g} s"

    def _end(self) -> None:
        if not any(isinstance(event, Created) for event in self._events):
            return
        self._children.force_kill(ForceKill(0))
        while not any(isinstance(event, Gone) for event in self._events):
            self._loop.turn(self._loop.now + 1.0)

    def _hear(self, _slot: int, data: bytes, _now: float) -> bytes | None:
        self._heard += data
        return None

    def _hear_err(self, _slot: int, data: bytes, _now: float) -> None:
        self._complaint = (self._complaint + data)[-LAST_WORDS:]

    def _last_words(self) -> str:
        lines = printable(self._complaint).strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def _ignore(self, _slot: int, _stream: str, _data: bytes) -> None:
        pass
