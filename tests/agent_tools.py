"""For tests of agents: their modules, an escaper written from SPEC 2 alone, and a process to talk with.

Every wait has a deadline; what does not come by then is an AssertionError that says what came instead.
"""

import contextlib
import importlib.util
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, TracebackType
from unittest.mock import patch

from tests.patience import PATIENCE_S

AGENTS = Path(__file__).parents[1] / "agents"
LIBRARY = AGENTS / "lib"
AT_ONCE_S = PATIENCE_S / 2  # F83, F111: what they would do else takes minutes

_SHORT = {b"\n": rb"\n", b"\r": rb"\r", b"\t": rb"\t"}


def module(path: str) -> ModuleType:
    """Return a module of agents/, which is no package, by its path there."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, AGENTS / path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    with patch.object(sys, "path", [str((AGENTS / path).parent), str(LIBRARY), *sys.path]):  # for the modules beside it
        spec.loader.exec_module(loaded)
    return loaded


def escape(value: bytes) -> bytes:
    """One value as SPEC 2 writes it between its quotes."""
    backslashed = re.sub(rb"[\"\\'$`]", rb"\\\g<0>", value)
    return re.sub(rb"[\x00-\x1f\x7f]", lambda m: _SHORT.get(m[0], b"\\x%02x" % m[0][0]), backslashed)


def record(columns: dict[str, bytes | None]) -> bytes:
    """One row as a line without its newline; NULL (None) is left out."""
    present = ((name, value) for name, value in columns.items() if value is not None)
    return b" ".join(b'%s="%s"' % (name.encode(), escape(value)) for name, value in present)


class Agent:
    """An agent's process, leader of its own group, between two pipes."""

    def __init__(self, argv: list[str | Path], **environment: str) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.process = subprocess.Popen(
            [os.fspath(word) for word in argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
            env={"PATH": path, "PYTHONUNBUFFERED": "1", **environment},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self._said = b""

    def __enter__(self) -> "Agent":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.hang_up()
        with contextlib.suppress(ProcessLookupError):  # what an agent leaves in its group goes too
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self._out.close()

    def hear(self) -> bytes:
        """Return the next line it says, without the newline; empty at the end of its output."""
        while b"\n" not in self._said:
            assert _is_ready(self._out.fileno(), PATIENCE_S), f"no line; so far {self._said[:200]!r}"
            data = os.read(self._out.fileno(), 65536)
            if not data:
                return b""
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return line

    def hear_to(self, last: bytes) -> list[bytes]:
        """Return all lines up to `last`, which is left out."""
        lines: list[bytes] = []
        while (line := self.hear()) != last:
            assert line, f"the end of output before {last!r}; so far {lines}"
            lines.append(line)
        return lines

    def say(self, line: bytes) -> None:
        self._in.write(line + b"\n")

    def work(self, line: bytes) -> list[bytes]:
        """Return what it prints about one item, up to the OK that ends it."""
        self.say(line)
        return self.hear_to(b"OK")

    def hang_up(self) -> None:
        self._in.close()

    def end(self, within_s: float = AT_ONCE_S) -> int:
        """Return its exit status, once it has exited by itself."""
        return self.process.wait(within_s)


def bundled(name: str, *options: str, **environment: str) -> Agent:
    """Return a bundled agent that has said its first OK."""
    agent = Agent([AGENTS / name / f"drover-agent-{name}", *options], **environment)
    assert agent.hear() == b"OK"
    return agent


def cmdline(pid: int) -> bytes:
    """Return the arguments of a process; none if it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def watch(pid: int) -> int:
    """Return a pidfd of a living process; the caller closes it."""
    return os.pidfd_open(pid)


def is_gone(pidfd: int) -> bool:
    """Return whether the process of `pidfd` ends in good time."""
    return _is_ready(pidfd, PATIENCE_S)


def _is_ready(fd: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))
