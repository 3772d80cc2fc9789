"""`drover agent-check` and `drover run -t`: start each agent on each of its hosts, and compare its programs there.

They use the driver that the daemon uses, so that what is tested is what will run, and need no database. Programs are
inspected on their host, by its shell: only the host can say what a command names there.
"""

import os
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import IO, Final

from scheduler.cli.check import FAIL, FAILED, OK, WARN, Finding, print_finding
from scheduler.drivers.loop import Loop
from scheduler.drivers.processes import Processes
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.events import Created, Event, ForceKill, Gone, Kill, NotCreated, Send, Spawn
from scheduler.model.protocol import printable
from scheduler.package_data import agent_folders

LAST_WORDS: Final = 4096  # bytes of stderr kept
OUTPUT: Final = 65_536  # bytes of stdout kept, from the beginning
PATIENCE_S: Final = 5.0  # for an agent that was killed to be told of
SHELL: Final = (b"sh", b"-s", b"--")
LOOK_SCRIPT: Final = b"""\
program=$(command -v -- "$1") || { echo "$1: not found" >&2; exit 127; }
shift
for file in "$program" "$@"; do [ ! -f "$file" ] || echo "$(cksum <"$file") $file"; done
[ -f "$program" ] || echo "$program"
exit 0
"""

Programs = tuple[str, ...]  # the files that a command names, each as cksum(1) has it


@dataclass(slots=True)
class Try:
    """One process: what it has said, and how it ended."""

    host: str
    script: bytes  # that it is told once it is there
    out: bytes = b""
    err: bytes = b""
    is_made: bool = False
    is_late: bool = False  # it was ended without having ended or said enough
    end: NotCreated | Gone | None = None


def test_agents(config: Config, out: IO[str]) -> int:
    """Test every enabled type, a line for each host that it has; give how many failed."""
    failed = tested = 0
    with Trial(config) as trial:
        for name in (name for name, agent in config.agents.items() if agent.enabled):
            for host, reason in trial.start(name).items():
                print(f"{name} on {host}: {reason or 'ok'}", file=out, flush=True)
                tested += 1
                failed += reason is not None
    print(f"{failed} of {tested} agents failed", file=out)
    return failed


class Trial:
    """Agents that are started to see whether they can be, on all their hosts at once, and ended."""

    def __init__(self, config: Config) -> None:
        self._config, self._loop = config, Loop()
        self._slots = count()
        self._tries: dict[int, Try] = {}
        self._processes = Processes(
            self._loop, config, agent_folders(), self._hear, self._hear_err, self._captured, self._tell
        )

    def __enter__(self) -> "Trial":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._processes.close()

    def start(self, name: str) -> dict[str, str | None]:
        """Give for each enabled host of a type why an agent cannot be used there, or None; a command is not run."""
        if self._config.agents[name].kind == "exec":
            return {host: found if isinstance(found, str) else None for host, found in self.look(name).items()}
        tries = self._run(name, None, lambda each: b"OK\n" in each.out)
        return {each.host: None if b"OK\n" in each.out else self._why_not(each, "OK") for each in tries}

    def look(self, name: str) -> dict[str, Programs | str]:
        """Give for each enabled host of a type what its command names there, or why nobody can say."""
        command = map(os.fsencode, self._config.agents[name].command)
        tries = self._run(name, (*SHELL, *command), lambda _each: False)
        return {each.host: _program_lines(each) or self._why_not(each, "answer") for each in tries}

    # ---- one process on each host

    def _run(self, name: str, argv: tuple[bytes, ...] | None, is_enough: Callable[[Try], bool]) -> list[Try]:
        """Start a process of a type on each host, and end it when it has said enough; `argv` is a shell that looks."""
        limits, script = self._config.scheduler, b"" if argv is None else LOOK_SCRIPT
        later = script if self._config.agents[name].kind == "line" else b""  # a command gets it with its start
        tries = self._tries = {next(self._slots): Try(host, later) for host in self._hosts(name)}
        for slot, each in tries.items():
            self._processes.spawn(Spawn(slot, 1, name, each.host, argv, script))
        self._wait(limits.start_limit, is_enough)
        for each in tries.values():
            each.is_late = each.end is None and not is_enough(each)
        for end, patience_s in ((self._hang_up, limits.kill_grace), (self._kill, PATIENCE_S)):
            for slot in tries:
                end(slot)
            self._wait(patience_s, lambda _each: False)
        return list(tries.values())

    def _hosts(self, name: str) -> list[str]:
        return [host for host in self._config.hosts_of(name) if self._config.hosts[host].enabled]

    def _wait(self, patience_s: float, is_enough: Callable[[Try], bool]) -> None:
        """Wait until each has ended or said enough."""
        deadline = self._loop.now + patience_s
        while self._loop.now < deadline:
            for slot, each in self._tries.items():
                if each.is_made and each.script:
                    self._processes.send(Send(slot, each.script))
                    each.script = b""
            if all(each.end or is_enough(each) for each in self._tries.values()):
                return
            self._loop.turn(deadline)

    def _hang_up(self, slot: int) -> None:
        self._processes.kill(Kill(slot))

    def _kill(self, slot: int) -> None:
        self._processes.force_kill(ForceKill(slot))

    # ---- what it says and how it ends

    def _tell(self, event: Event) -> None:
        if isinstance(event, Created | NotCreated | Gone) and (each := self._tries.get(event.slot)):
            if isinstance(event, Created):
                each.is_made = True
            else:
                each.end = event

    def _hear(self, slot: int, data: bytes, _now: float) -> bytes | None:
        self._tries[slot].out = (self._tries[slot].out + data)[:OUTPUT]
        return None

    def _hear_err(self, slot: int, data: bytes, _now: float) -> None:
        self._tries[slot].err = (self._tries[slot].err + data)[-LAST_WORDS:]

    def _captured(self, slot: int, stream: str, data: bytes, now: float) -> None:
        if stream == "out":
            self._hear(slot, data, now)
        else:
            self._hear_err(slot, data, now)

    def _why_not(self, each: Try, what: str) -> str:
        if each.is_late:
            return f"no {what} within {self._config.scheduler.start_limit:g} s"
        lines = printable(each.err).strip().splitlines()
        words = f": {lines[-1]}" if lines else ""
        match each.end:
            case NotCreated(reason=reason):
                return reason
            case Gone(lost=True):
                return f"the way to it was lost before its first {what}"
            case Gone(code=127) if lines:  # of a shell, env(1) or the like: they say what is not there
                return lines[-1]
            case Gone(signal=str(name)):
                return f"died before its first {what}, killed by {name}{words}"
            case Gone(code=code):
                return f"died before its first {what}, exit status {code}{words}"
        return f"it said no {what} and cannot be killed"


def _program_lines(each: Try) -> Programs:
    return tuple(printable(each.out).splitlines())


def check_agents(options: Namespace, config: Config) -> int:
    """Print what was found, for each type and what it is on its hosts; 1 if one cannot be started somewhere."""
    refuse_root(options)
    names = _asked_for(options.types, config)
    with Trial(config) as trial:
        found = [print_finding(finding) for name in names for finding in _findings(trial, name)]
    return FAILED if any(severity == FAIL for severity, _ in found) else 0


def refuse_root(options: Namespace) -> None:
    """Agents run as whoever starts them. Errors: ConfigError."""
    if os.geteuid() == 0 and not options.allow_root and os.environ.get("DROVER_ALLOW_ROOT") != "1":
        raise ConfigError(
            f"drover {options.command}: refuses to run as root: agents would be root too; "
            "use a user of its own, or --allow-root"
        )


def _asked_for(types: list[str], config: Config) -> list[str]:
    if unknown := [name for name in types if name not in config.agents]:
        raise ConfigError(f"drover agent-check: the configuration has no agent type {', '.join(unknown)}")
    return types or [name for name, agent in config.agents.items() if agent.enabled]


def _findings(trial: Trial, name: str) -> Iterator[Finding]:
    looks = trial.look(name)
    reasons = {host: reason for host, reason in trial.start(name).items() if reason}
    for host, reason in reasons.items():
        yield FAIL, f"agent {name} on {host}: {reason}"
    yield from _versions(name, {host: look for host, look in looks.items() if host not in reasons})


def _versions(name: str, looks: Mapping[str, Programs | str]) -> Iterator[Finding]:
    """Give a finding for each version there is; paths may differ from host to host, contents are what counts."""
    hosts_of: dict[Programs, list[str]] = defaultdict(list)
    for host, look in looks.items():
        if isinstance(look, str):
            yield WARN, f"agent {name} on {host}: starts, but its program cannot be looked at: {look}"
        else:
            hosts_of[_sums(look)].append(host)
    for hosts in hosts_of.values():
        severity, others = (OK, "") if len(hosts_of) == 1 else (WARN, ", another version than elsewhere")
        yield severity, f"agent {name} on {', '.join(hosts)}: {'; '.join(looks[hosts[0]])}{others}"


def _sums(programs: Programs) -> Programs:
    """Give check sum and size of each file, without its path."""
    return tuple(" ".join(line.split()[:2]) for line in programs)
