"""Whether detached jobs may be kept where the configuration says: asked on each host, as the user of the agents there.

The script that starts such a job refuses a spool that others may read or replace; it is the one that is asked here.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Final

from scheduler.cli.machine_checks import REACH_LIMIT_S
from scheduler.cli.output import FAIL, OK, Finding
from scheduler.cli.output import printable as shown
from scheduler.daemon.detached_jobs import spool_of
from scheduler.drivers.host_scripts import HostScripts
from scheduler.drivers.keeper_scripts import check_words
from scheduler.drivers.loop import Loop
from scheduler.drivers.processes import Processes
from scheduler.model.config import Config
from scheduler.model.events_and_effects import Event, HostDown, HostUp
from scheduler.model.protocol import printable
from scheduler.package_data import agent_folders

LIMIT_S: Final = REACH_LIMIT_S + 5.0  # for a host to be reached and to answer


def findings_of_spools(config: Config) -> Iterator[Finding]:
    """Yield for each host with a detached type whether its spool can be used; a host that is not reached has none."""
    types = {host: name for name in reversed(detached_types(config)) for host in config.hosts_of(name)}
    if not types:
        return
    with closing(_Asker(config, types)) as asker:
        found = asker.answers()
    for host in types:
        if host in found:
            yield found[host]


def detached_types(config: Config) -> list[str]:
    """Return the types whose commands outlive the daemon."""
    return [name for name, agent in config.agents.items() if agent.detached]


class _Asker:
    """Runs the script on each host, once that is reached."""

    def __init__(self, config: Config, types: dict[str, str]) -> None:
        self._config, self._types, self._loop = config, types, Loop()
        self._found: dict[str, Finding] = {}
        self._over: set[str] = set()
        ignore = lambda *_: None  # noqa: E731
        self._processes = Processes(self._loop, config, agent_folders(), ignore, ignore, ignore, self._on_event)
        self._scripts = HostScripts(self._loop, self._processes)

    def answers(self) -> dict[str, Finding]:
        """Return what hosts say, of those that answer in time."""
        for host in self._types:
            if not self._config.hosts[host].is_remote:
                self._ask(host)
        deadline = self._loop.now + LIMIT_S
        while self._over < self._types.keys() and self._loop.now < deadline:
            self._loop.turn(deadline)
        return self._found

    def close(self) -> None:
        self._scripts.close()
        self._processes.close()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, HostUp) and event.host in self._types:
            self._ask(event.host)
        elif isinstance(event, HostDown):
            self._over.add(event.host)

    def _ask(self, host: str) -> None:
        words = check_words(spool_of(self._config, host))
        self._scripts.run(self._types[host], host, words, partial(self._answered, host))

    def _answered(self, host: str, code: int | None, printed: bytes) -> None:
        self._over.add(host)
        who = f"spool of host {host}: "
        if code == 0:
            self._found[host] = OK, who + spool_of(self._config, host)
            return
        why = shown(printable(printed.strip())) or "it cannot be looked at"
        as_root = "" if os.geteuid() else "; if the daemon is not root, run this as its user"
        self._found[host] = FAIL, f"{who}detached jobs cannot begin: {why}{as_root}"
