"""Agents on a host over SSH as `Children` has them: started through the bridge of the host, and what became of them.

Decides what an agent there inherits from here, which is nothing but what its type says. Refuses to know SSH.
"""

import logging
import os
import signal
from collections.abc import Callable

from scheduler.drivers.loop import Loop
from scheduler.drivers.spawn import EXEC_DIRECTORY, limits_of, own_of, passed_on
from scheduler.drivers.ssh_host import Ends, SshProcess
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.events import Event, Gone, HostDown, HostUp, NotCreated, Spawn
from scheduler.model.ssh_protocol import (
    Ended,
    LinkDown,
    LinkUp,
    Lost,
    Note,
    NotStarted,
    Report,
    SshSettings,
    Start,
    Started,
)

log = logging.getLogger(__name__)


class RemoteProcess:
    """An agent on another host; its pid is that host's, 0 until it has one."""

    def __init__(self, host: "SshHost", id: int, slot: int, begun: Callable[[], None], over: Callable[[Event], None]):
        self._host, self._id = host, id
        self.slot, self.begun, self.over = slot, begun, over
        self.pid = 0
        self.grace_s = 3 * host.settings.orphan_s  # the bridge ends the output in two of these
        self.ends: Ends

    def signal(self, number: int) -> None:
        """Send a signal to its group; harmless when it is gone."""
        self._host.bridge.signal(self._id, _name_of(number))

    def kill(self) -> None:
        """Kill it and its group."""
        self._host.bridge.signal(self._id, "KILL")

    def strike_rest(self) -> None:
        """The bridge has."""

    def bury(self) -> None:
        """The bridge has forgotten it."""


class SshHost:
    """One host over SSH, by the way that the configuration gives."""

    def __init__(self, loop: Loop, name: str, host: Host, tell: Callable[[Event], None]) -> None:
        self.settings = settings_of(name, host)
        self._name, self._tell = name, tell
        self._last_id = 0
        self._processes: dict[int, RemoteProcess] = {}
        self._is_retired = False
        self.bridge = SshProcess(loop, self.settings, self._take)

    def start(
        self, spawn: Spawn, agent: AgentType, begun: Callable[[], None], over: Callable[[Event], None]
    ) -> RemoteProcess:
        """Start an agent; `begun` and then `over` are called later, or `over` alone.

        Errors: OSError when we can open no more files.
        """
        self._last_id += 1
        process = self._processes[self._last_id] = RemoteProcess(self, self._last_id, spawn.slot, begun, over)
        try:
            process.ends = self.bridge.start(order(self._last_id, spawn, agent))
        except OSError:
            self._forget(self._last_id)
            raise
        return process

    def retire(self) -> None:
        """Serve those that run, and then end."""
        self._is_retired = True
        self._end_if_over()

    @property
    def is_over(self) -> bool:
        """Whether it was retired and serves nobody."""
        return self._is_retired and not self._processes

    def close(self) -> None:
        """End at once, and all agents of the host."""
        self.bridge.close()

    def _take(self, report: Report) -> None:
        match report:
            case Started(id, pid):
                if process := self._processes.get(id):
                    process.pid = pid
                    process.begun()
            case NotStarted(id, why, is_items_fault, is_lost):
                told = f"host {self._name}: {why}"
                self._over(id, lambda slot: NotCreated(slot, told, is_items_fault, is_lost))
            case Ended(id, code, name):
                how = None if name is None else f"SIG{name or '?'}"
                self._over(id, lambda slot: Gone(slot, code=code if how is None else None, signal=how))
            case Lost(id, why):
                self._over(id, lambda slot: Gone(slot, lost=True))
            case LinkUp():
                self._tell_unless_retired(HostUp(self._name))
            case LinkDown(why, retry_s):
                self._tell_unless_retired(HostDown(self._name, why, retry_s))
            case Note(text):
                log.warning("host %s: %s", self._name, text)

    def _over(self, id: int, event: Callable[[int], Event]) -> None:
        process = self._processes.get(id)
        if process is not None:
            self._forget(id)
            process.over(event(process.slot))

    def _forget(self, id: int) -> None:
        del self._processes[id]
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.is_over:
            self.bridge.end()

    def _tell_unless_retired(self, event: Event) -> None:
        if not self._is_retired:
            self._tell(event)


def settings_of(name: str, host: Host) -> SshSettings:
    """Give how a host is reached."""
    return SshSettings(name, host.address, host.user, host.identity, host.known_hosts)


def ssh_hosts(config: Config) -> dict[str, Host]:
    """Give the hosts that have a bridge."""
    return {name: host for name, host in config.hosts.items() if host.transport == "ssh"}


def order(id: int, spawn: Spawn, agent: AgentType) -> Start:
    """Give what the bridge is asked for: the words as they are, found on the host; limits by its prlimit(1)."""
    words = spawn.argv if spawn.argv is not None else tuple(map(os.fsencode, agent.command))
    limits = limits_of(agent.limits)
    limiter = tuple(map(os.fsencode, ("prlimit", *limits, "--"))) if limits else ()
    environment = {os.fsencode(name): os.fsencode(text) for name, text in passed_on(agent, spawn, os.environ).items()}
    directory = agent.cwd or (EXEC_DIRECTORY if agent.kind == "exec" else "")
    return Start(id, (*limiter, *words), environment | own_of(spawn), os.fsencode(directory))


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:  # most real-time signals have no name
        return str(number)
