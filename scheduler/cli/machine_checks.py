"""What this machine lets a daemon do: which files it may use, and whether limits leave room for all of its agents.

Pure functions of numbers decide; the others ask the machine. Changes nothing, no file is created to try it.
"""

import os
import resource
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from scheduler.cli.findings import FAIL, OK, WARN, Finding
from scheduler.database.embedded import default_directory
from scheduler.drivers.process_spec import Surroundings, find_program, search_path
from scheduler.model.config import AgentType, Config
from scheduler.package_data import agent_folders

FILES_OF_AGENT: Final = 4  # three pipes and a pidfd
FILES_OF_DAEMON: Final = 64
WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH
OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
GIB: Final = 2**30


def findings_of_machine(config: Config) -> Iterator[Finding]:
    """Yield the findings about files, then those about limits."""
    yield from _written_files(config)
    yield from _keys(config)
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
    text = f"memory: {here / GIB:.1f} GiB; {len(limits)} agents at once may take {known / GIB:.1f} GiB by their limits"
    if unlimited := sum(limit is None for limit in limits):
        text += f", {unlimited} of them have none"
    return (OK, text) if known <= here else (WARN, f"{text}; lower limits.memory of the types, or max of the hosts")


def _memory_limit(agent: AgentType) -> int:
    return agent.limits.memory or 0


def _written_files(config: Config) -> Iterator[Finding]:
    """Yield whether what the daemon writes can be written."""
    for key in ("log_file", "ready_file"):
        if name := getattr(config.scheduler, key):
            file = Path(name)
            may = os.access(file, os.W_OK) if file.exists() else os.access(file.parent, os.W_OK | os.X_OK)
            advice = f"give this user {file if file.exists() else file.parent}, or name another in [scheduler] {key}"
            yield (OK, f"{key}: {file}") if may else (FAIL, f"{key}: {file} cannot be written; {advice}")
    if config.database.url == "embedded" and (folder := default_directory(os.environ)).exists():
        yield _private(f"database directory {folder}", folder, "700")


def _keys(config: Config) -> Iterator[Finding]:
    """Yield whether the SSH keys that are named are there, and belong to this user alone."""
    for name, host in config.hosts.items():
        if host.transport == "ssh" and host.identity not in ("", "agent"):
            key = Path(host.identity).expanduser()
            if os.access(key, os.R_OK):
                yield _private(f"host {name}: identity {key}", key, "600")
            else:
                yield FAIL, f"host {name}: identity {key} cannot be read; correct [hosts.{name}] identity, or its owner"


def _private(what: str, path: Path, mode: str) -> Finding:
    is_open = path.stat().st_mode & OPEN_TO_OTHERS
    return (WARN, f"{what}: others may use it; chmod {mode} {path}") if is_open else (OK, what)


def _programs_of_others(config: Config) -> Iterator[Finding]:
    """Yield the programs that other users may replace: what they write there, the daemon runs."""
    around = Surroundings(os.environ, agent_folders())
    for name, agent in config.agents.items():
        try:
            program = Path(find_program(agent.command[0], search_path(agent, around), agent.cwd or None))
        except OSError:
            continue  # on another host, or told of with what is missing
        for path in (program, program.parent):
            mode = path.stat().st_mode
            if mode & WRITABLE and not mode & stat.S_ISVTX:
                yield WARN, f"agent {name}: others may write to {path}; chmod go-w {path}"
