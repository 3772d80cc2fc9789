"""One agent between pipes, without a daemon, and what it says of an item: for `agent-check PROGRAM` and `agent run`.

It is started as the daemon would start it. Reads and writes without blocking on either, so that an agent that does not
read, or does not stop to print, is seen as what it is. `DB:` lines are answered here, as no database is there. What
follows from a mistake is the caller's to say.
"""

import json
import os
import re
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from scheduler.cli.output import clipped, warn
from scheduler.drivers.executable_files import advice_for, is_run_by_sh, problem_of
from scheduler.drivers.os_calls import close_all, let_others_open, owner_of, pipes, reset_signals
from scheduler.drivers.process_spec import (
    ProcessSpec,
    SpawnTemplates,
    Surroundings,
    search_path,
)
from scheduler.drivers.system_files import require_system_files
from scheduler.errors import ConfigError
from scheduler.model import protocol
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.events_and_effects import Spawn
from scheduler.model.wrong_answers import why_no_keyword
from scheduler.package_data import agent_folders, agents_dir

HERE: Final = "local"
READ_BYTES: Final = 65536
STDERR_BYTES: Final = 4096  # kept, the last
OUTPUT_LIMIT: Final = protocol.LINE_LIMIT  # bytes that wait to be looked at: beyond, we read no more
SLICE_S: Final = 0.02  # how often an exit is looked for

KEPT: Final = 20  # of the lines about an item, the last
SHOWN: Final = 60  # characters of a line in a report
NO_ROWS: Final = b"OK\n"  # the answer to a DB line
DEATH_S: Final = 1.0  # for the exit of a process whose output has ended

Outcome = Literal["done", "failed", "failed for good", "blocked", "silent", "died"]
ENDS: Final[dict[bytes, Outcome]] = {
    protocol.FAIL: "failed", protocol.FAIL_FOR_GOOD: "failed for good", protocol.BLOCKED: "blocked",
}  # fmt: skip


def config_of(name: str, command: Sequence[str]) -> Config:
    """Return a configuration with this agent type alone, on this machine."""
    return Config(agents={name: AgentType(command=tuple(command))}, hosts={HERE: Host()})


def process_spec(config: Config, name: str, argv: tuple[bytes, ...] | None = None) -> ProcessSpec:
    """Return what the daemon would start an agent of a type with here. Errors: ConfigError, what is wrong with it."""
    require_system_files(f"agent {name}")
    agent, around = config.agents[name], Surroundings(os.environ, agent_folders())
    local = [host for host in config.hosts_of(name) if config.hosts[host].transport == "local"]
    word = agent.command[0]
    try:
        spec = SpawnTemplates(config, around).spec(Spawn(1, 1, name, local[0] if local else HERE, argv))
    except PermissionError as error:
        raise ConfigError(advice_for(error, search_path(agent, around))) from None
    except OSError:
        place = "look at its name and at the directory you are in" if "/" in word else "it is not on PATH"
        raise ConfigError(f"there is no program {word}; {place}") from None
    program = next((each for each in spec.argv if os.path.basename(each) == os.path.basename(word)), spec.argv[0])
    problem = problem_of(program, search_path(agent, around))
    if problem and not (program != spec.argv[0] and is_run_by_sh(program)):
        raise ConfigError(problem)
    return spec


def is_bundled(word: str) -> bool:
    """Return whether this is the name of a program that comes with Drover."""
    return "/" not in word and any((folder / word).is_file() for folder in agents_dir().iterdir())


class AgentProcess:
    """A process that leads its own group. Errors: ConfigError if the system does not start it."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.stderr = b""
        self._lines: deque[bytes] = deque()
        self._rest, self._unsent = bytearray(), bytearray()
        self._waiting = 0  # bytes of the lines that were not read yet
        ours, theirs = pipes()
        if spec.is_of_other_user:
            let_others_open(theirs)
        stdin, stdout, stderr = theirs
        try:
            self._process = subprocess.Popen(
                spec.argv, stdin=stdin, stdout=stdout, stderr=stderr,
                process_group=0, cwd=spec.directory, env=spec.environment,
                preexec_fn=reset_signals,
            )  # fmt: skip
        except OSError as error:
            close_all(ours)
            advice = advice_for(error, spec.environment[b"PATH"].decode(errors="surrogateescape")) or "look at the file"
            raise ConfigError(f"cannot start {spec.argv[0]}: {error.strerror}; {advice}") from None
        finally:
            close_all(theirs)
        self._in = os.fdopen(ours[0], "wb", 0)
        self._out, self._err = os.fdopen(ours[1], "rb", 0), os.fdopen(ours[2], "rb", 0)
        self._open = {self._out.fileno(), self._err.fileno()}
        for file in (self._in, self._out, self._err):
            os.set_blocking(file.fileno(), False)

    def __enter__(self) -> "AgentProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.kill()

    @property
    def is_over(self) -> bool:
        """Return whether its output has ended, and all lines of it were returned."""
        return self._out.fileno() not in self._open and not self._lines

    @property
    def rest(self) -> bytes:
        """Return its output after the last line end."""
        return bytes(self._rest)

    @property
    def has_unread(self) -> bool:
        """Return whether bytes that were sent are still unread: the pipe is full."""
        return bool(self._unsent)

    def send(self, data: bytes) -> None:
        """Write as many bytes as the pipe takes; the rest is written while we wait for lines."""
        self._unsent += data
        self._turn(0)

    def line(self, limit_s: float) -> bytes | None:
        """Return the next line without its newline; None if there is none within the limit, or ever (is_over)."""
        deadline = time.monotonic() + limit_s
        while not self._lines:
            left = deadline - time.monotonic()
            if left <= 0 or self._out.fileno() not in self._open or len(self._rest) > protocol.LINE_LIMIT:
                return None
            self._turn(left)
        line = self._lines.popleft()
        self._waiting -= len(line)
        return line

    def lines(self, limit_s: float) -> Iterator[bytes]:
        """Yield all lines that come within the limit, and those that had come when it ended."""
        deadline = time.monotonic() + limit_s
        while (line := self.line(deadline - time.monotonic())) is not None:
            yield line

    def close_input(self) -> None:
        """End its input, as the daemon does when it wants it to exit."""
        self._unsent.clear()
        with suppress(BrokenPipeError):
            self._in.close()

    def hang_up(self) -> None:
        """Send SIGHUP to its process group."""
        with suppress(ProcessLookupError, PermissionError):  # another user's by now
            os.killpg(self._process.pid, signal.SIGHUP)

    def status_within(self, limit_s: float) -> int | None:
        """Return how it ended, as subprocess has it; None if it has not within the limit."""
        deadline = time.monotonic() + limit_s
        while self._process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._turn(min(left, SLICE_S))
        self._turn(0)
        return self._process.returncode

    def kill(self) -> None:
        """End it, and all that it has left in its process group; leave no pipe open."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            pid = self._process.pid
            warn(f"its process {pid} runs as {owner_of(pid)} and could not be ended: it is left")
        for file in (self._in, self._out, self._err):
            with suppress(BrokenPipeError):
                file.close()
        self._open.clear()

    def end_in_words(self, limit_s: float) -> str:
        """Return how it ended, with the last line of its standard error."""
        status = self.status_within(limit_s)
        while self._err.fileno() in self._open and status is not None:
            before = len(self._open)
            self._turn(SLICE_S)
            if len(self._open) == before:  # a child that it has left holds it open
                break
        lines = protocol.printable(self.stderr).strip().splitlines()
        return f"{status_in_words(status)}{f': {lines[-1]}' if lines else ''}"

    def _turn(self, limit_s: float) -> None:
        """Read and write what is possible now; wait for that at most so long."""
        poll = select.poll()
        for fd in self._open:
            if fd != self._out.fileno() or self._waiting < OUTPUT_LIMIT:
                poll.register(fd, select.POLLIN)
        if self._unsent and not self._in.closed:
            poll.register(self._in.fileno(), select.POLLOUT)
        for fd, _ in poll.poll(limit_s * 1000):
            if fd in self._open:
                self._read(fd)
            else:
                self._write()

    def _read(self, fd: int) -> None:
        data = os.read(fd, READ_BYTES)
        if not data:
            self._open.discard(fd)
        elif fd == self._out.fileno():
            *lines, rest = (self._rest + data).split(b"\n")
            self._lines.extend(map(bytes, lines))
            self._rest = rest
            self._waiting += sum(map(len, lines))
        else:
            self.stderr = (self.stderr + data)[-STDERR_BYTES:]

    def _write(self) -> None:
        try:
            del self._unsent[: os.write(self._in.fileno(), self._unsent)]
        except BrokenPipeError:
            self._unsent.clear()


def status_in_words(status: int | None) -> str:
    """Return the end of a process in words."""
    if status is None:
        return "closed its standard output and did not exit"
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def type_name(program: str) -> str:
    """Return the name that an agent type would have for a program."""
    return Path(program).stem.removeprefix("drover-agent-") or "agent"


# ---- what it says of one item


@dataclass
class Talk:
    """One item: what was said, how it ended, and what is wrong with what was said."""

    outcome: Outcome = "silent"
    reason: str = ""  # of FAIL or BLOCKED, or how the agent ended
    seconds: float = 0.0
    said: list[bytes] = field(default_factory=list)
    statements: list[bytes] = field(default_factory=list)  # DB lines
    mistakes: list[str] = field(default_factory=list)
    at_ok: Outcome = "done"  # the outcome, if OK comes now

    @property
    def last_words(self) -> str:
        """Return the last line that was said, as a report shows it."""
        return shown(self.said[-1]) if self.said else ""

    def hear(self, line: bytes) -> None:
        """Note a line about the item; of FAIL and BLOCKED the first counts."""
        keyword, text = protocol.parse(line)
        self.said = [*self.said[1 - KEPT :], line]
        if len(self.mistakes) < KEPT:
            self.mistakes += mistakes(line)
        if keyword == protocol.DB:
            self.statements.append(text)
        elif keyword in ENDS and self.at_ok == "done":
            self.at_ok, self.reason = ENDS[keyword], shown(text)

    def finish(self, seconds: float) -> None:
        """Note that OK has come."""
        self.outcome, self.seconds = self.at_ok, seconds

    def end_without_ok(self, agent: AgentProcess) -> None:
        """Note why no OK came: the line is too long, or the agent has ended; else it is silent."""
        if len(agent.rest) > protocol.LINE_LIMIT:
            self.mistakes.append(f"a line over {protocol.LINE_LIMIT} bytes: print less, or in several lines")
        elif agent.is_over:
            self.outcome, self.reason = "died", agent.end_in_words(DEATH_S)


def talk(
    agent: AgentProcess,
    line: bytes,
    limit_s: float,
    heard: Callable[[bytes], None] = lambda line: None,
    answer: bytes = NO_ROWS,
    most_s: float = inf,
) -> Talk:
    """Send an item, with its newline, and gather what is said up to the OK that ends it.

    The limit is for each line, `most_s` for all of them. `heard` gets each line as it comes, `answer` is what a DB line
    is answered with.
    """
    told, began = Talk(), time.monotonic()
    agent.send(line)
    while (said := agent.line(limit_s)) is not None:
        keyword = protocol.parse(said)[0]
        if keyword == protocol.OK:
            told.finish(time.monotonic() - began)
            return told
        heard(said)
        told.hear(said)
        if keyword == protocol.DB:
            agent.send(answer)
        if time.monotonic() - began > most_s:
            break
    told.end_without_ok(agent)
    return told


def mistakes(line: bytes) -> Iterator[str]:
    """Yield what is wrong with a line of an agent, and how to mend it."""
    if len(line) > protocol.LINE_LIMIT:
        yield f"a line of {len(line)} bytes: at most {protocol.LINE_LIMIT} are read; the agent is killed for it"
    keyword, text = protocol.parse(line)
    if keyword == protocol.DEBUG:
        yield from filter(None, [why_no_keyword(line)])
    elif keyword == protocol.RESULT and not _is_json(text):
        yield f"it said: {shown(line)}: what follows RESULT is not JSON, and is not stored"
    elif keyword == protocol.ITEMS and not re.fullmatch(rb"\d+", text):
        yield f"it said: {shown(line)}: what follows ItemsProcessed is no number"
    elif keyword == protocol.BLOCKED and not text:
        yield "it said BLOCKED without a condition: BLOCKED condition text"
    elif keyword == protocol.DB and (found := protocol.parse_statement(text)) and not _is_json(found[1]):
        yield f'it said: {shown(line)}: what follows the name is not JSON, as in DB: save {{"id":7}}'


def shown(line: bytes) -> str:
    """Return a line as a report shows it: cut, and without control bytes."""
    return clipped(protocol.printable(line), SHOWN)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
