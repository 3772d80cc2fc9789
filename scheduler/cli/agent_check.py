"""`drover agent-check` and `drover run -t`: start each agent on each of its hosts, and compare its programs there.

They use the driver that the daemon uses, so that what is tested is what will run, and need no database. Programs are
inspected on their host, by its shell: only the host can say what a command names there.
"""

import os
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import IO, Final

from scheduler.cli.check import FAIL, OK, WARN, Finding, print_findings
from scheduler.drivers.loop import Loop
from scheduler.drivers.processes import Processes
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.events import Created, Event, ForceKill, Gone, Kill, NotCreated, Send, Spawn
from scheduler.model.protocol import printable
from scheduler.package_data import agent_folders

STDERR_BYTES: Final = 4096  # kept, the last
STDOUT_BYTES: Final = 65_536  # kept, the first
REAP_LIMIT_S: Final = 5.0  # for the end of a killed agent to be reported
READY: Final = b"OK\n"
SHELL: Final = (b"sh", b"-s", b"--")
INSPECT: Final = b"""\
program=$(command -v -- "$1") || { echo "$1: not found" >&2; exit 127; }
shift
for file in "$program" "$@"; do [ ! -f "$file" ] || echo "$(cksum <"$file") $file"; done
[ -f "$program" ] || echo "$program"
exit 0
"""

Programs = tuple[str, ...]  # the files that a command names, each as cksum(1) has it


def test_agents(config: Config, out: IO[str]) -> int:
    """Test every enabled type, a line for each host that it has; return how many failed."""
    failed = tested = 0
    with closing(Prober(config)) as prober:
        for name in (name for name, agent in config.agents.items() if agent.enabled):
            for host, reason in prober.start(name).items():
                print(f"{name} on {host}: {reason or 'ok'}", file=out, flush=True)
                tested += 1
                failed += reason is not None
    print(f"{failed} of {tested} agents failed", file=out)
    return failed


def check_agents(options: Namespace, config: Config) -> int:
    """Print what was found, for each type and what it is on its hosts; 1 if one cannot be started somewhere."""
    refuse_root(options)
    if unknown := [name for name in options.types if name not in config.agents]:
        raise ConfigError(f"drover agent-check: the configuration has no agent type {', '.join(unknown)}")
    names = options.types or [name for name, agent in config.agents.items() if agent.enabled]
    with closing(Prober(config)) as prober:
        return print_findings(finding for name in names for finding in _findings(prober, name))


def refuse_root(options: Namespace) -> None:
    """Raise ConfigError for the user root: agents run as the user who starts them."""
    if os.geteuid() == 0 and not options.allow_root and os.environ.get("DROVER_ALLOW_ROOT") != "1":
        raise ConfigError(
            f"drover {options.command}: refuses to run as root: agents would be root too; "
            "use a user of its own, or --allow-root"
        )


def _findings(prober: "Prober", name: str) -> Iterator[Finding]:
    programs = prober.inspect(name)
    reasons = {host: reason for host, reason in prober.start(name).items() if reason}
    for host, reason in reasons.items():
        yield FAIL, f"agent {name} on {host}: {reason}"
    yield from _versions(name, {host: found for host, found in programs.items() if host not in reasons})


def _versions(name: str, programs: Mapping[str, Programs | str]) -> Iterator[Finding]:
    """Yield a finding for each version; paths may differ from host to host, only contents count."""
    hosts_of: dict[Programs, list[str]] = defaultdict(list)
    for host, found in programs.items():
        if isinstance(found, str):
            yield WARN, f"agent {name} on {host}: starts, but its program cannot be looked at: {found}"
        else:  # by check sum and size of each file, without its path
            hosts_of[tuple(" ".join(line.split()[:2]) for line in found)].append(host)
    for hosts in hosts_of.values():
        severity, others = (OK, "") if len(hosts_of) == 1 else (WARN, ", another version than elsewhere")
        yield severity, f"agent {name} on {', '.join(hosts)}: {'; '.join(programs[hosts[0]])}{others}"


@dataclass(slots=True)
class Probe:
    """One process that is started to see whether it can be: its output, and how it ended."""

    host: str
    stdin: bytes  # sent once it is started
    out: bytes = b""
    err: bytes = b""
    is_started: bool = False
    is_late: bool = False  # it was ended by us, without an end or enough output of its own
    end: NotCreated | Gone | None = None


class Prober:
    """Starts the agents of a type on all their hosts at once, and ends them."""

    def __init__(self, config: Config) -> None:
        self._config, self._loop = config, Loop()
        self._slots = count()
        self._probes: dict[int, Probe] = {}
        self._processes = Processes(
            self._loop, config, agent_folders(), self._on_stdout, self._on_stderr, self._on_capture, self._on_event
        )
        self.close = self._processes.close

    def start(self, name: str) -> dict[str, str | None]:
        """Return for each enabled host why an agent of a type cannot be used there, or None; no command is run."""
        if self._config.agents[name].kind == "exec":
            return {host: found if isinstance(found, str) else None for host, found in self.inspect(name).items()}
        probes = self._run(name, None, lambda probe: READY in probe.out)
        return {probe.host: None if READY in probe.out else self._failure(probe, "OK") for probe in probes}

    def inspect(self, name: str) -> dict[str, Programs | str]:
        """Return for each enabled host what the command of a type names there, or why that cannot be said."""
        command = map(os.fsencode, self._config.agents[name].command)
        probes = self._run(name, (*SHELL, *command), lambda _probe: False)
        return {
            probe.host: tuple(printable(probe.out).splitlines()) or self._failure(probe, "answer") for probe in probes
        }

    def _run(self, name: str, argv: tuple[bytes, ...] | None, is_enough: Callable[[Probe], bool]) -> list[Probe]:
        """Start a process of a type on each host, and end it when its output is enough; `argv`: a shell to inspect."""
        limits, script = self._config.scheduler, b"" if argv is None else INSPECT
        later = script if self._config.agents[name].kind == "line" else b""  # a command gets it with its start
        hosts = (host for host in self._config.hosts_of(name) if self._config.hosts[host].enabled)
        probes = self._probes = {next(self._slots): Probe(host, later) for host in hosts}
        for slot, probe in probes.items():
            self._processes.spawn(Spawn(slot, 1, name, probe.host, argv, script))
        self._wait(limits.start_limit, is_enough)
        for slot, probe in probes.items():
            probe.is_late = probe.end is None and not is_enough(probe)
            self._processes.kill(Kill(slot))
        self._wait(limits.kill_grace, lambda _probe: False)
        for slot in probes:
            self._processes.force_kill(ForceKill(slot))
        self._wait(REAP_LIMIT_S, lambda _probe: False)
        return list(probes.values())

    def _wait(self, limit_s: float, is_enough: Callable[[Probe], bool]) -> None:
        """Wait until each has ended or its output is enough."""
        deadline = self._loop.now + limit_s
        while self._loop.now < deadline:
            for slot, probe in self._probes.items():
                if probe.is_started and probe.stdin:
                    self._processes.send(Send(slot, probe.stdin))
                    probe.stdin = b""
            if all(probe.end or is_enough(probe) for probe in self._probes.values()):
                return
            self._loop.turn(deadline)

    def _on_event(self, event: Event) -> None:
        match event:
            case Created(slot=slot) if slot in self._probes:
                self._probes[slot].is_started = True
            case NotCreated(slot=slot) | Gone(slot=slot) if slot in self._probes:
                self._probes[slot].end = event

    def _on_stdout(self, slot: int, data: bytes, _now: float) -> bytes | None:
        self._probes[slot].out = (self._probes[slot].out + data)[:STDOUT_BYTES]
        return None

    def _on_stderr(self, slot: int, data: bytes, _now: float) -> None:
        self._probes[slot].err = (self._probes[slot].err + data)[-STDERR_BYTES:]

    def _on_capture(self, slot: int, stream: str, data: bytes, now: float) -> None:
        (self._on_stdout if stream == "out" else self._on_stderr)(slot, data, now)

    def _failure(self, probe: Probe, what: str) -> str:
        """Return why there was no OK, or no answer."""
        if probe.is_late:
            return f"no {what} within {self._config.scheduler.start_limit:g} s"
        lines = printable(probe.err).strip().splitlines()
        last_line = f": {lines[-1]}" if lines else ""
        match probe.end:
            case NotCreated(reason=reason):
                return reason
            case Gone(lost=True):
                return f"the way to it was lost before its first {what}"
            case Gone(code=127) if lines:  # of a shell, env(1) or the like: they say what does not exist
                return lines[-1]
            case Gone(signal=str(name)):
                return f"died before its first {what}, killed by {name}{last_line}"
            case Gone(code=code):
                return f"died before its first {what}, exit status {code}{last_line}"
        return f"it said no {what} and cannot be killed"
