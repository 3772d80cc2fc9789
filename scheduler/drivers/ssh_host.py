"""A host over SSH as `Processes` has it: its agents are started, signalled and lost; its link goes up and down.

Decides what an agent there inherits from here, which is nothing but what its type says. Refuses to know SSH.
"""

import logging
import os
import signal
from collections.abc import Callable

from scheduler.drivers.loop import Loop
from scheduler.drivers.spawn import EXEC_DIRECTORY, limits_of, own_of, passed_on
from scheduler.drivers.ssh_process import Ends, SshProcess
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
)  # fmt: skip

log = logging.getLogger(__name__)


class RemoteProcess:
    """An agent on another host; its pid is that host's, 0 until it has one."""

    def __init__(
        self, ssh: SshProcess, id: int, slot: int, on_start: Callable[[], None], on_end: Callable[[Event], None],
        orphan_s: float,
    ) -> None:  # fmt: skip
        self._ssh, self._id = ssh, id
        self.slot, self.on_start, self.on_end = slot, on_start, on_end
        self.pid = 0
        self.grace_s = 3 * orphan_s  # the SSH process ends the output in two of these
        self.ends: Ends

    def signal(self, number: int) -> None:
        """Send a signal to its group; harmless when it is gone."""
        self._ssh.signal(self._id, _name_of(number))

    def kill(self) -> None:
        """Kill it and its group."""
        self._ssh.signal(self._id, "KILL")

    def kill_group(self) -> None:
        """Do nothing: the SSH process has killed what was left of its group."""

    def reap(self) -> None:
        """Do nothing: the SSH process has forgotten it."""


class SshHost:
    """One host over SSH, reached as the configuration says."""

    def __init__(self, loop: Loop, name: str, host: Host, emit: Callable[[Event], None]) -> None:
        self.settings = settings_of(name, host)
        self._name, self._emit = name, emit
        self._last_id = 0
        self._processes: dict[int, RemoteProcess] = {}
        self._is_retired = False
        self._ssh = SshProcess(loop, self.settings, self._handle)

    def start(
        self, spawn: Spawn, agent: AgentType, on_start: Callable[[], None], on_end: Callable[[Event], None]
    ) -> RemoteProcess:
        """Start an agent; `on_start` and then `on_end` are called later, or `on_end` alone.

        Errors: OSError when we can open no more files.
        """
        self._last_id += 1
        id, orphan_s = self._last_id, self.settings.orphan_s
        process = self._processes[id] = RemoteProcess(self._ssh, id, spawn.slot, on_start, on_end, orphan_s)
        try:
            process.ends = self._ssh.start(start_request(id, spawn, agent))
        except OSError:
            self._forget(id)
            raise
        return process

    def retire(self) -> None:
        """Serve the agents that run, and then close; the host is not reported up or down any more."""
        self._is_retired = True
        self._close_if_over()

    @property
    def is_over(self) -> bool:
        """Whether it was retired and has no agents."""
        return self._is_retired and not self._processes

    def give_up(self) -> None:
        """Lose all agents of the host; they die by themselves where nothing reaches them."""
        self._ssh.kill()

    def close(self) -> None:
        """End at once, with all agents of the host."""
        self._ssh.close()

    def _handle(self, report: Report) -> None:
        match report:
            case Started(id, pid):
                if process := self._processes.get(id):
                    process.pid = pid
                    process.on_start()
            case NotStarted(id, why, is_items_fault, is_lost):
                reason = f"host {self._name}: {why}"
                self._end(id, lambda slot: NotCreated(slot, reason, is_items_fault, is_lost))
            case Ended(id, code, name):
                how = None if name is None else f"SIG{name or '?'}"
                self._end(id, lambda slot: Gone(slot, code=code if how is None else None, signal=how))
            case Lost(id, _):
                self._end(id, lambda slot: Gone(slot, lost=True))
            case LinkUp() if not self._is_retired:
                self._emit(HostUp(self._name))
            case LinkDown(why, retry_s) if not self._is_retired:
                self._emit(HostDown(self._name, why, retry_s))
            case Note(text):
                log.warning("host %s: %s", self._name, text)

    def _end(self, id: int, event: Callable[[int], Event]) -> None:
        process = self._processes.get(id)
        if process is not None:
            self._forget(id)
            process.on_end(event(process.slot))

    def _forget(self, id: int) -> None:
        del self._processes[id]
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self.is_over:
            self._ssh.finish()


def settings_of(name: str, host: Host) -> SshSettings:
    """Return how a host is reached."""
    return SshSettings(name, host.address, host.user, host.identity, host.known_hosts)


def ssh_hosts(config: Config) -> dict[str, Host]:
    """Return the hosts that are reached over SSH."""
    return {name: host for name, host in config.hosts.items() if host.transport == "ssh"}


def start_request(id: int, spawn: Spawn, agent: AgentType) -> Start:
    """Return the request for an agent: the words as they are, found on the host; limits by its prlimit(1)."""
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
