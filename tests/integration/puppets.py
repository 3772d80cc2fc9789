"""Agents for tests of the daemon that do what their line says, and pipes to meet them at.

A puppet takes its line for a shell script: so what an agent does stands in the job that the test inserts. Agents and
tests wait for each other at named pipes, each wait with an end.
"""

import json
import os
import select
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.integration.daemon import Daemon, Row, agent, python
from tests.patience import PATIENCE_S

LOCAL = "[hosts.local]\n"
# a line agent that sends its line as a statement to the database and fails with the answer
ASKING = python("""
print("OK")
for line in iter(input, ""):
    print("DB: " + line)
    answer = input()
    while (rest := input()) != "OK":
        answer += "; " + rest
    print("FAIL", answer)
    print("OK")
""")


def each(script: str) -> list[str]:
    """Return the argv of a line agent that runs a script for each line; a row's columns are variables of it."""
    return ["sh", "-c", f"echo OK; while IFS= read -r line; do {script}\necho OK; done"]


def puppet(name: str = "puppet", **keys: Any) -> str:
    """Return the table of an agent type that does what its line says."""
    return agent(name, each('eval "$line"'), **keys)


def rows(name: str, script: str, **keys: Any) -> str:
    """Return the table of an agent type that runs a script for each row, whose columns are its variables."""
    return agent(name, each(f'eval "$line"; {script}'), **keys)


def settings(**values: Any) -> str:
    """Return the scheduler's own table."""
    return "[scheduler]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


class Meeting:
    """Two named pipes: agents tell the test something, and wait until it lets them go on."""

    def __init__(self, folder: Path) -> None:
        self._ear_path, self._gate_path = folder / "ear", folder / "gate"
        self._ear, self._gate = _pipe(self._ear_path), _pipe(self._gate_path)
        self._heard = b""

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        os.close(self._ear)
        os.close(self._gate)

    def tell(self, text: str) -> str:
        """Return the shell command that tells `text`."""
        return f"echo {text} >{self._ear_path}"

    @property
    def wait(self) -> str:
        """Return the shell command that waits to be let go."""
        return f"read -r go <{self._gate_path}"

    def let_go(self, count: int = 1) -> None:
        """Let so many go on, those that come to wait later too."""
        os.write(self._gate, b"\n" * count)

    def hear(self) -> str:
        """Return the next thing told."""
        while b"\n" not in self._heard:
            assert _is_readable(self._ear), f"nobody told anything; so far {self._heard!r}"
            self._heard += os.read(self._ear, 65_536)
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def hear_all(self, count: int) -> list[str]:
        """Return the next `count` things told, sorted."""
        return sorted(self.hear() for _ in range(count))


def slots(daemon: Daemon, state: str, agent: str = "%", count: int = 1) -> list[Row]:
    """Return the slots shown in a state, once there are exactly `count` of them."""
    query = """
        select * from drover.scheduler_status
         where status_slot >= 0 and status_state_name = %s and status_agent like %s
         order by status_slot
    """

    def look() -> list[Row] | None:
        found = daemon.execute(query, state, agent)
        return found if len(found) == count else None

    found: list[Row] = daemon.until(look, what=f"{count} slots of {agent} are not {state}")
    return found


def said(daemon: Daemon, text: str, count: int = 1) -> str:
    """Return all that the daemon has said, once `text` is in it so often."""
    daemon.until(lambda: daemon.stderr().count(text) >= count, what=f"it did not say {text!r}")
    return daemon.stderr()


def moves(daemon: Daemon, slot: int) -> list[tuple[str, str]]:
    """Return the transitions of a slot that the daemon displayed."""
    lines = [line.split() for line in daemon.stderr().splitlines() if f" slot={slot} " in line and " -> " in line]
    return [(words[words.index("->") - 1], words[words.index("->") + 1]) for words in lines]


def _pipe(path: Path) -> int:
    """Make a named pipe and hold both its ends, so that nobody waits to open it."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(PATIENCE_S * 1000))
