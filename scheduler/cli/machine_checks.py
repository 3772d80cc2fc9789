"""Checks of this machine: programs, files and limits that a daemon needs, and whether the other hosts are reached.

Pure functions of numbers decide; the others ask the machine. Changes nothing: no file is created to test whether one
can be.
"""

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from scheduler.cli.embedded_database import embedded_directory
from scheduler.cli.output import FAIL, OK, WARN, Finding, Severity
from scheduler.drivers.executable_files import advice_for, find_program, is_run_by_sh, problem_of
from scheduler.drivers.home_directory import expanded
from scheduler.drivers.loop import Loop
from scheduler.drivers.process_spec import (
    Surroundings,
    directory_mistake,
    is_wrapped,
    prelude_mistakes,
    search_path,
    user_mistakes,
    users_of,
)
from scheduler.drivers.ssh_host import SshHost, ssh_hosts
from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.drivers.trusted_files import who_may_write
from scheduler.model.config import PRELUDE_WORDS, AgentType, Config
from scheduler.model.events_and_effects import Event, HostDown, HostUp
from scheduler.package_data import agent_folders

FILES_OF_AGENT: Final = 4  # three pipes and a pidfd
FILES_OF_DAEMON: Final = 64
KNOWN_HOSTS: Final = "~/.ssh/known_hosts /etc/ssh/ssh_known_hosts"  # unless a host names others
OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
GIB: Final = 2**30
# For a host to be reached, as long as the daemon waits, and for the start of the process that connects to it.
REACH_LIMIT_S: Final = SshSettings("").attempt_s + 5.0


# ---- what drover check looks at


def findings_of_configuration(config: Config) -> Iterator[Finding]:
    """Yield the findings about programs, queues and hosts that are configured."""
    yield from chain(_programs(config), _queues(config), _hosts(config))


def _programs(config: Config) -> Iterator[Finding]:
    """Yield whether programs can be started here; not those of other hosts."""
    for path, mistake in user_mistakes(config):
        yield WARN, f"{'.'.join(map(str, path))}: {mistake}; run by this user, drover run would refuse it"
    for name in config.agents:
        yield program_finding(config, name)


def program_finding(config: Config, name: str) -> Finding:
    """Return whether the program of an agent type can be started here; a disabled type may lack its own."""
    around, agent = Surroundings(os.environ, agent_folders()), config.agents[name]
    severity: Severity = FAIL if agent.enabled else WARN
    who, word = f"agent {name}: ", agent.command[0]
    if all(config.hosts[host].transport != "local" for host in config.hosts_of(name)):
        return OK, f"{who}runs on other hosts only, where drover agent-check looks for {word}"
    if agent.prelude:
        return _prelude_finding(agent, who, around, severity)
    if problem := directory_mistake(agent, word):
        return severity, who + problem
    found, text = _file_finding(agent, word, around, severity)
    return found, who + text


def _file_finding(agent: AgentType, word: str, around: Surroundings, severity: Severity) -> Finding:
    """Return whether a program can be started here, and its path or what is wrong."""
    path = search_path(agent, around)
    try:
        program = find_program(word, path, agent.cwd or None)
    except PermissionError as error:
        return severity, advice_for(error, path)
    except OSError:
        place = "there" if "/" in word else "in agents/ or on PATH"
        return severity, f"no program {word} is {place}; install it or correct its command"
    problem = problem_of(program, path)
    if problem and is_wrapped(agent, path) and is_run_by_sh(program):
        return WARN, f"{problem}; here sh runs it, since the type has a prelude, a user or limits, or is detached"
    return (severity, problem) if problem else (OK, program)


def _prelude_finding(agent: AgentType, who: str, around: Surroundings, severity: Severity) -> Finding:
    """Return whether a prelude can be read, and the program behind it started: a warning, for it may provide that."""
    is_there = os.path.isfile(agent.prelude) and os.access(agent.prelude, os.R_OK)
    missing = f"{agent.prelude} is not there or cannot be read; write it, or correct its prelude"
    if problem := next(prelude_mistakes(agent), "") if is_there else missing:
        return severity, who + problem
    word = agent.command[PRELUDE_WORDS]
    if "/" in word and (found := _file_finding(agent, word, around, WARN))[0] != OK:  # else it may be a function
        return WARN, f"{who}behind its prelude: {found[1]}"
    return OK, who + agent.prelude


def _queues(config: Config) -> Iterator[Finding]:
    """Yield the queues whose limit is beyond what all agents could work at once."""
    for name, queue in config.queues.items():
        agents = 0
        for host, limits in config.hosts.items():
            if limits.enabled and name in (limits.queues or [name]):
                slots = sum(a.slots for kind, a in config.agents.items() if a.enabled and host in config.hosts_of(kind))
                agents += slots if limits.max < 0 else min(slots, limits.max)
        if queue.concurrency is not None and queue.concurrency > agents:
            yield WARN, f"queue {name}: concurrency is {queue.concurrency}, but only {agents} agents can work for it"


def _hosts(config: Config) -> Iterator[Finding]:
    """Connect to all hosts that have to be connected to, at once."""
    loop, hosts = Loop(), ssh_hosts(config)
    findings: dict[str, Finding] = {}

    def handle(event: Event) -> None:
        if isinstance(event, HostUp):
            findings[event.host] = OK, f"host {event.host}: reached"
        elif isinstance(event, HostDown):
            findings.setdefault(event.host, (FAIL, f"host {event.host}: {event.reason}"))

    reached = [SshHost(loop, name, host, handle) for name, host in hosts.items()]
    deadline = loop.now + REACH_LIMIT_S
    while len(findings) < len(hosts) and loop.now < deadline:
        loop.turn(deadline)
    for host in reached:
        host.close()
    for name in hosts:
        yield findings.get(name, (FAIL, f"host {name}: no answer within {REACH_LIMIT_S:g} s"))


# ---- what drover doctor looks at too


def findings_of_machine(config: Config) -> Iterator[Finding]:
    """Yield the findings about files, then those about limits."""
    yield from _written_files(config)
    yield from _keys(config)
    yield from _ssh_files(config)
    yield from _programs_of_others(config)
    agents = agents_at_once(config)
    yield open_files(len(agents), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    if os.geteuid() != 0:  # no limit for root
        yield processes(len(agents), resource.getrlimit(resource.RLIMIT_NPROC)[0])
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield memory([agent.limits.memory for agent in agents], here)


def agents_at_once(config: Config) -> list[AgentType]:
    """Return the type of each agent that may run on this machine at once; on a full host those that take most."""
    agents: list[AgentType] = []
    for name, host in config.hosts.items():
        if host.enabled and host.transport == "local":
            types = [agent for kind, agent in config.agents.items() if agent.enabled and name in config.hosts_of(kind)]
            slots = sorted(chain(*([agent] * agent.slots for agent in types)), key=_memory_limit, reverse=True)
            agents += slots if host.max < 0 else slots[: host.max + host.urgent]
    return agents


def open_files(agents: int, limit: int) -> Finding:
    """Return whether a daemon may have the pipes of so many agents; it raises the soft limit to the hard one."""
    wanted = FILES_OF_DAEMON + FILES_OF_AGENT * agents
    if limit == resource.RLIM_INFINITY or wanted <= limit:
        return OK, f"open files: {wanted} for {agents} agents at once, within the limit"
    problem = f"{agents} agents at once need {wanted}, and the limit is {limit}"
    return FAIL, f"open files: {problem}; raise it (LimitNOFILE= of the unit, ulimit -Hn), or lower max of the hosts"


def processes(agents: int, limit: int) -> Finding:
    """Return whether the user may have so many processes, in which all others of the user are counted too."""
    if limit == resource.RLIM_INFINITY or agents < limit:
        return OK, f"processes: {agents} agents at once, within the limit"
    problem = f"{agents} agents at once, and the limit of this user is {limit}"
    return WARN, f"processes: {problem}; raise it (LimitNPROC= of the unit, ulimit -u), or lower max of the hosts"


def memory(limits: list[int | None], here: int) -> Finding:
    """Return whether the agents fit into memory if each takes what its `limits` permit; None: no limit."""
    known = sum(limit or 0 for limit in limits)
    unlimited = sum(limit is None for limit in limits)
    text = f"memory: {here / GIB:.1f} GiB; {len(limits)} agents at once"
    if unlimited < len(limits):
        text += f" may take {known / GIB:.1f} GiB by their limits"
    if unlimited:
        which = "none of them has" if unlimited == len(limits) else f"{unlimited} of them have"
        text += f", {which} {'a limit' if unlimited == len(limits) else 'none'}"
    return (OK, text) if known <= here else (WARN, f"{text}; lower limits.memory of the types, or max of the hosts")


def _memory_limit(agent: AgentType) -> int:
    return agent.limits.memory or 0


def _written_files(config: Config) -> Iterator[Finding]:
    """Yield whether what the daemon writes can be written."""
    settings = config.scheduler
    files = [("log_file", settings.log_file), ("ready_file", settings.ready_file)]
    for key, name in [*files, *(("log_also", name) for name in settings.log_also if name.startswith("/"))]:
        if name:
            file = Path(name)
            may = os.access(file, os.W_OK) if file.exists() else os.access(file.parent, os.W_OK | os.X_OK)
            advice = f"give this user {file if file.exists() else file.parent}, or name another in [scheduler] {key}"
            yield (OK, f"{key}: {file}") if may else (FAIL, f"{key}: {file} cannot be written; {advice}")
    folder = embedded_directory(config.database.url)
    if folder is not None and os.path.exists(folder):
        yield _private(f"database directory {folder}", folder, "700")


def _keys(config: Config) -> Iterator[Finding]:
    """Yield whether the SSH keys that are named are there, and belong to this user alone."""
    for name, host in config.hosts.items():
        if host.transport == "ssh" and host.identity not in ("", "agent"):
            key = Path(expanded(host.identity))
            if os.access(key, os.R_OK):
                what = f"host {name}: identity {key}"
                yield (OK, what) if key.suffix == ".pub" else _private(what, key, "600")  # an agent has the other half
            else:
                yield FAIL, f"host {name}: identity {key} cannot be read; correct [hosts.{name}] identity, or its owner"


def _private(what: str, path: Path, mode: str) -> Finding:
    is_open = path.stat().st_mode & OPEN_TO_OTHERS
    return (WARN, f"{what}: others may use it; chmod {mode} {path}") if is_open else (OK, what)


def _programs_of_others(config: Config) -> Iterator[Finding]:
    """Yield the programs and scripts that other users may replace: what they write there, the daemon runs."""
    around = Surroundings(os.environ, agent_folders())
    for name, agent in config.agents.items():
        for problem in dict.fromkeys(chain(*(who_may_write(file, users_of(agent)) for file in _files(agent, around)))):
            yield WARN, f"agent {name}: {problem}"


def _files(agent: AgentType, around: Surroundings) -> Iterator[str]:
    """Yield the program of a type, and each word of its command that names a file: it may be a script."""
    first, *words = agent.command[PRELUDE_WORDS if agent.prelude else 0 :]
    with suppress(OSError):  # on another host, or already reported as missing; behind a prelude it may be a function
        yield find_program(first, search_path(agent, around), agent.cwd or None)
    for word in words:
        file = os.path.join(agent.cwd, word)
        if "/" in word and os.path.isfile(file):
            yield file


def _ssh_files(config: Config) -> Iterator[Finding]:
    """Yield the files with keys of hosts that others may write to: whom they name there, the daemon trusts."""
    hosts = [host for host in config.hosts.values() if host.transport == "ssh"]
    files = [word for host in hosts for word in (host.known_hosts or KNOWN_HOSTS).split()]
    for file in dict.fromkeys(str(Path(expanded(word))) for word in files):
        if os.path.isfile(file):
            for problem in who_may_write(file, ()):
                yield WARN, f"known_hosts: {problem}"
