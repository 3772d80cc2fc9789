"""`drover agent-check` and `drover run -t`: start each agent on each of its hosts, and compare its programs there.

They use the driver that the daemon uses, so that what is tested is what will run, and need no database. Programs are
inspected on their host, by its shell: only the host can say what a command names there.
"""

import os
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from typing import Final

from scheduler.cli.agent_kit import check_program, is_program, unknown_type
from scheduler.cli.output import FAIL, OK, WARN, Finding, print_findings
from scheduler.drivers.loop import Loop
from scheduler.drivers.processes import Processes
from scheduler.errors import ConfigError
from scheduler.model import protocol
from scheduler.model.config import Config
from scheduler.model.events_and_effects import Created, Event, ForceKill, Gone, Kill, NotCreated, Send, Spawn
from scheduler.model.wrong_answers import why_no_ok
from scheduler.package_data import agent_folders

STDERR_BYTES: Final = 4096  # kept, the last
STDOUT_BYTES: Final = 65_536  # kept, the first
REAP_LIMIT_S: Final = 5.0  # for the end of a killed agent to be reported
SHELL: Final = (b"sh", b"-s", b"--")
INSPECT: Final = b"""\
program=$(command -v -- "$1") || { echo "$1: not found" >&2; exit 127; }
shift
for file in "$program" "$@"; do [ ! -f "$file" ] || echo "$(cksum <"$file") $file"; done
[ -f "$program" ] || echo "$program"
exit 0
"""

# What is said of a program that a host does not have: by our scripts, a shell, env(1) or the like.
LACKS: Final = re.compile("not found$|No such file or directory$")

Enough = Callable[[bytes], bool]
Programs = tuple[str, ...]  # the files that a command names, each as cksum(1) has it


def test_agents(config: Config) -> int:
    """Test every enabled type, a line for each host that it has; return how many failed."""
    failed = tested = 0
    with closing(Prober(config)) as prober:
        for name, reasons in prober.start([name for name, agent in config.agents.items() if agent.enabled]).items():
            for host, reason in reasons.items():
                print(f"{name} on {host}: {reason or 'ok'}", flush=True)
                tested += 1
                failed += reason is not None
    print(f"{failed} of {tested} agents failed")
    return failed


def check_agents(options: Namespace, config: Config) -> int:
    """Print what was found, for each type and what it is on its hosts, or about a program; 1 if something is wrong."""
    if options.args and is_program(options.args[0], config):
        return check_program(options)
    if unknown := [name for name in options.args if name not in config.agents]:
        raise ConfigError(unknown_type(options.command, unknown, config))
    if options.items:
        raise ConfigError("drover agent-check: --item is for a program with its path; drover agent run TYPE LINE")
    refuse_root(options)
    names = options.args or [name for name, agent in config.agents.items() if agent.enabled]
    with closing(Prober(config)) as prober:
        return print_findings(_findings(prober, names))


def refuse_root(options: Namespace) -> None:
    """Raise ConfigError for the user root: agents run as the user who starts them."""
    if os.geteuid() == 0 and not options.allow_root and os.environ.get("DROVER_ALLOW_ROOT") != "1":
        raise ConfigError(
            f"drover {options.command}: refuses to run as root: agents would be root too; "
            "use a user of its own, or --allow-root"
        )


def _findings(prober: "Prober", names: Sequence[str]) -> Iterator[Finding]:
    """Yield for each type the hosts where it does not start, then each version of its program."""
    programs, started = prober.inspect(names), prober.start(names)
    for name in names:
        reasons = {host: reason for host, reason in started[name].items() if reason}
        for host, reason in reasons.items():
            yield FAIL, f"agent {name} on {host}: {reason}"
        there = {host: found for host, found in programs[name].items() if host not in reasons}
        yield from _versions(name, there)


def _versions(name: str, programs: Mapping[str, Programs | str]) -> Iterator[Finding]:
    """Yield the hosts that have each version of a program; paths may differ, not contents."""
    hosts_of: dict[Programs, list[str]] = defaultdict(list)
    for host, found in programs.items():
        if isinstance(found, str):
            yield WARN, f"agent {name} on {host}: starts, but its program cannot be inspected: {found}"
        else:  # by check sum and size of each file, without its path
            hosts_of[tuple(" ".join(line.split()[:2]) for line in found)].append(host)
    for hosts in hosts_of.values():
        severity, others = (OK, "") if len(hosts_of) == 1 else (WARN, ", another version than elsewhere")
        yield severity, f"agent {name} on {', '.join(hosts)}: {'; '.join(programs[hosts[0]])}{others}"


def hosts_without_programs(config: Config, started: Mapping[str, Mapping[str, str | None]]) -> dict[str, list[str]]:
    """Return the types whose program a host lacks and another has, by host; `started` is as Prober.start returns it."""
    found: dict[str, list[str]] = {host: [] for host in config.hosts}
    for name, reasons in started.items():
        has_it = None in reasons.values()
        for host, reason in reasons.items():
            if has_it and reason and LACKS.search(reason):
                found[host].append(name)
    return {host: names for host, names in found.items() if names}


def what_to_do(host: str, names: Sequence[str], started: Mapping[str, Mapping[str, str | None]]) -> str:
    """Return in a sentence which programs a host lacks, and which settings keep their types from it."""
    there = sorted(re.escape(name) for name, reasons in started.items() if reasons.get(host, "") is None)
    pattern = f"^{there[0]}$" if len(there) == 1 else f"^({'|'.join(there)})$"
    having = [{each for each, reason in started[name].items() if reason is None} for name in names]
    hosts = sorted(set.intersection(*having) or set.union(*having))
    given = ", ".join(f'"{each}"' for each in hosts)
    types = f'give it types = "{pattern}", or ' if there else "give "
    words = f"{names[0]}, which others have" if len(names) == 1 else ", ".join(names)
    which = "no program of" if len(names) == 1 else "none of"
    to_whom = "to this type" if len(names) == 1 else "to those types"
    return f"host {host} has {which} {words}: {types}hosts = [{given}] {to_whom}"


class Prober:
    """Starts agents of all types on all their hosts at once, and ends them; each process has a slot of its own."""

    def __init__(self, config: Config) -> None:
        self._config, self._loop, self._slots = config, Loop(), count()
        self._scripts: dict[int, bytes] = {}  # for the standard input of what is being started, by slot
        self._out: dict[int, bytes] = defaultdict(bytes)
        self._err: dict[int, bytes] = defaultdict(bytes)
        self._ends: dict[int, NotCreated | Gone] = {}
        self._late: set[int] = set()  # did not end by themselves in time
        self._processes = Processes(
            self._loop, config, agent_folders(), self._on_stdout, self._on_stderr, self._on_capture, self._on_event
        )
        self.close = self._processes.close

    def start(self, names: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """Return for each type and enabled host why an agent cannot be used there, or None; no command is run."""
        lines = {name: None for name in names if self._config.agents[name].kind == "line"}
        results = self._run(lines, "OK", _is_ready)
        inspected = self.inspect([name for name in names if name not in lines])
        return {
            name: {host: None if _is_ready(out) else why for host, (out, why) in results[name].items()}
            if name in results
            else {host: found if isinstance(found, str) else None for host, found in inspected[name].items()}
            for name in names
        }

    def inspect(self, names: Sequence[str]) -> dict[str, dict[str, Programs | str]]:
        """Return for each type and enabled host what its command names there, or why that cannot be said."""
        argvs = {name: (*SHELL, *map(os.fsencode, self._config.agents[name].command)) for name in names}
        return {
            name: {host: tuple(protocol.printable(out).splitlines()) or why for host, (out, why) in results.items()}
            for name, results in self._run(argvs, "answer", None).items()
        }

    def _run(
        self, argvs: Mapping[str, tuple[bytes, ...] | None], what: str, enough: Enough | None
    ) -> dict[str, dict[str, tuple[bytes, str]]]:
        """Start a process of each type on each of its hosts, and end it when its output is enough.

        An argv is a shell to inspect with. Return the output, and why that is not what was wanted, by type and host.
        """
        slots = {
            next(self._slots): (name, host)
            for name in argvs
            for host in self._config.hosts_of(name)
            if self._config.hosts[host].enabled
        }
        for slot, (name, host) in slots.items():
            script = b"" if argvs[name] is None else INSPECT
            if self._config.agents[name].kind == "line":  # a command gets it with its start
                self._scripts[slot] = script
            self._processes.spawn(Spawn(slot, 1, name, host, argvs[name], script))
        self._end(slots, enough)
        found: dict[str, dict[str, tuple[bytes, str]]] = {name: {} for name in argvs}
        for slot, (name, host) in slots.items():
            found[name][host] = self._out[slot], self._failure(slot, what)
        return found

    def _end(self, slots: Collection[int], enough: Enough | None) -> None:
        """Wait for what is wanted, and end what has not ended by itself."""
        limits = self._config.scheduler
        self._wait(slots, limits.start_limit, enough)
        self._late |= {slot for slot in slots if slot not in self._ends}
        for slot in slots:
            self._processes.kill(Kill(slot))
        self._wait(slots, limits.kill_grace)
        for slot in slots:
            self._processes.force_kill(ForceKill(slot))
        self._wait(slots, REAP_LIMIT_S)

    def _wait(self, slots: Collection[int], limit_s: float, enough: Enough | None = None) -> None:
        """Wait until each has ended, or its output has what is enough."""
        deadline = self._loop.now + limit_s
        while self._loop.now < deadline:
            if all(slot in self._ends or (enough is not None and enough(self._out[slot])) for slot in slots):
                return
            self._loop.turn(deadline)

    def _on_event(self, event: Event) -> None:
        match event:
            case Created(slot=slot) if script := self._scripts.get(slot):  # not at once: perhaps we are within spawn
                self._loop.at(self._loop.now, partial(self._processes.send, Send(slot, script)))
            case NotCreated(slot=slot) | Gone(slot=slot):
                self._ends[slot] = event

    def _on_stdout(self, slot: int, data: bytes, _now: float) -> None:
        self._out[slot] = (self._out[slot] + data)[:STDOUT_BYTES]

    def _on_stderr(self, slot: int, data: bytes, _now: float) -> None:
        self._err[slot] = (self._err[slot] + data)[-STDERR_BYTES:]

    def _on_capture(self, slot: int, stream: str, data: bytes, now: float) -> None:
        (self._on_stdout if stream == "out" else self._on_stderr)(slot, data, now)

    def _failure(self, slot: int, what: str) -> str:
        if slot in self._late:
            hint = f"; {_why_not_ready(self._out[slot])}" if what == "OK" else ""
            return f"no {what} within {self._config.scheduler.start_limit:g} s{hint}"
        lines = protocol.printable(self._err[slot]).strip().splitlines()
        last_line = f": {lines[-1]}" if lines else ""
        match self._ends.get(slot):
            case NotCreated(reason=reason):
                return reason
            case Gone(lost=True):
                return f"the connection to its host was lost before its first {what}"
            case Gone(code=127) if lines:  # of a shell, env(1) or the like: they say what does not exist
                return lines[-1]
            case Gone(signal=str(name)):
                return f"died before its first {what}, killed by {name}{last_line}"
            case Gone(code=code):
                return f"died before its first {what}, exit status {code}{last_line}"
        return f"sent no {what}, and did not end when it was killed"


def _is_ready(output: bytes) -> bool:
    """Return whether an agent has said OK, on a line of its own."""
    return any(protocol.parse(line)[0] == protocol.OK for line in output.split(b"\n")[:-1])


def _why_not_ready(output: bytes) -> str:
    """Return what an agent has said last in place of OK."""
    *lines, rest = output.split(b"\n")
    return why_no_ok(lines[-1]) if lines and not rest else why_no_ok(rest, is_whole=False)
