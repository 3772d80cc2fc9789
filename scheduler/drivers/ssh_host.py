"""One host over SSH: its agents are started, signalled and lost; its link goes up and down. Nothing here knows SSH.

`SshHost` is what `Processes` uses; what it asks for is done by the SSH process of the host (ssh_supervisor.py).
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from signal import SIGKILL
from typing import Any

from scheduler.drivers import ssh_protocol as ssh
from scheduler.drivers.keeper_scripts import words_of
from scheduler.drivers.loop import Loop
from scheduler.drivers.os_calls import Ends, signal_name
from scheduler.drivers.process_spec import (
    EXEC_DIRECTORY,
    NOT_FOUND,
    NOT_STARTED,
    limited,
    own_environment,
    passed_environment,
)  # fmt: skip
from scheduler.drivers.ssh_supervisor import SshProcess
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.events_and_effects import Event, Gone, HostDown, HostMoved, HostUp, NotCreated, Spawn

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class RemoteProcess:
    """An agent on another host; its pid is that host's, 0 until it has one."""

    host_process: "SshProcess"
    id: int
    slot: int
    grace_s: float
    on_start: Callable[[], None]
    on_end: Callable[[Event], None]
    pid: int = 0

    def started(self, pid: int) -> None:
        self.pid = pid
        self.on_start()

    def signal(self, number: int) -> bool:
        """Send a signal to its group and return True; a refusal by the host comes later, as a report."""
        self.host_process.signal(self.id, signal_name(number).removeprefix("SIG"))
        return True

    def kill(self) -> bool:
        return self.signal(SIGKILL)

    def kill_group(self) -> None:
        """Do nothing: the SSH process has killed what was left of its group."""

    def reap(self) -> None:
        """Do nothing: the SSH process has forgotten it."""


class SshHost:
    """One host over SSH, reached as the configuration says."""

    def __init__(
        self, loop: Loop, name: str, host: Host | ssh.SshSettings, emit: Callable[[Event], None],
        link: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Reach a host; with `link` go on with the SSH process of a program that was executed before us."""
        self.settings = host if isinstance(host, ssh.SshSettings) else settings_of(name, host)
        self._name, self._emit = name, emit
        self._last_id = 0
        self._processes: dict[int, RemoteProcess] = {}
        self._is_retired = False
        self._ssh = SshProcess(loop, self.settings, self._handle, snapshot=link)

    # ---- another program that takes over

    @classmethod
    def restored(
        cls,
        loop: Loop,
        snapshot: Mapping[str, Any],
        emit: Callable[[Event], None],
        on_end: Callable[[int, Event], None],
    ) -> "SshHost":
        """Return the host of a snapshot, frozen; `on_end` gets slot and end of each agent."""
        known = {each.name for each in fields(ssh.SshSettings)}
        settings = ssh.SshSettings(**{name: value for name, value in snapshot["settings"].items() if name in known})
        host = cls(loop, snapshot["name"], settings, emit, snapshot["link"])
        host._restore(snapshot, on_end)
        return host

    def _restore(self, snapshot: Mapping[str, Any], on_end: Callable[[int, Event], None]) -> None:
        self._last_id, self._is_retired = int(snapshot["last_id"]), bool(snapshot["is_retired"])
        for id, slot, grace_s, pid in snapshot["processes"]:
            ended = partial(on_end, slot)
            self._processes[id] = RemoteProcess(self._ssh, id, slot, grace_s, lambda: None, ended, pid)

    @property
    def processes(self) -> list[RemoteProcess]:
        """Return the agents whose end was not reported."""
        return list(self._processes.values())

    @property
    def fds(self) -> list[int]:
        """Return the descriptors that `snapshot` names."""
        return self._ssh.fds

    @property
    def pid(self) -> int | None:
        """Return the pid of its SSH process, if it has one."""
        return self._ssh.pid

    def obstacle(self) -> str:
        """Return what is under way that cannot be handed over yet; nothing if all can."""
        return f"host {self._name}: {why}" if (why := self._ssh.obstacle()) else ""

    def freeze(self) -> None:
        """Send and receive nothing until `thaw`."""
        self._ssh.freeze()

    def thaw(self) -> None:
        """Go on where `freeze` stopped."""
        self._ssh.thaw()

    def snapshot(self) -> dict[str, Any]:
        """Return what another program needs to go on with it: JSON, with the numbers of descriptors."""
        return {
            "name": self._name, "settings": asdict(self.settings), "last_id": self._last_id,
            "is_retired": self._is_retired, "link": self._ssh.snapshot(),
            "processes": [[each.id, each.slot, each.grace_s, each.pid] for each in self._processes.values()],
        }  # fmt: skip

    def start(
        self, spawn: Spawn, agent: AgentType, on_start: Callable[[], None], on_end: Callable[[Event], None]
    ) -> tuple[RemoteProcess, Ends]:
        """Start an agent; `on_start` and then `on_end` are called later, or `on_end` alone.

        Its program is found on the host, and its limits are set by the prlimit(1) there. The caller closes our ends of
        its pipes. Errors: OSError when we can open no more files.
        """
        id = self._last_id = self._last_id + 1
        words = spawn.argv if spawn.argv is not None else tuple(map(os.fsencode, agent.command))
        words = limited(agent, words)
        if spawn.keeper is not None:
            words = words_of(spawn.keeper, spawn.job or 0, spawn.attempt or 0, words)
        passed = passed_environment(agent, spawn, os.environ)
        environment = {os.fsencode(name): os.fsencode(text) for name, text in passed.items()} | own_environment(spawn)
        directory = agent.cwd or (EXEC_DIRECTORY if agent.kind == "exec" else "")
        ends = self._ssh.start(ssh.Start(id, tuple(words), environment, os.fsencode(directory)))
        grace_s = 3 * self.settings.orphan_s  # the SSH process ends the output in two of these
        process = self._processes[id] = RemoteProcess(self._ssh, id, spawn.slot, grace_s, on_start, on_end)
        return process, ends

    def reread(self) -> None:
        """Read OpenSSH's configuration again; HostMoved is reported if the host is reached otherwise now."""
        self._ssh.reread()

    def retire(self) -> None:
        """Serve the agents that run, and then close; the host is not reported up or down any more."""
        self._is_retired = True
        if self.is_over:
            self._ssh.finish()

    @property
    def is_over(self) -> bool:
        """Return whether it was retired and has no agents."""
        return self._is_retired and not self._processes

    def give_up(self) -> None:
        """Lose all agents of the host; they die by themselves where nothing reaches them."""
        self._ssh.kill()

    def close(self) -> None:
        self._ssh.close()

    def _handle(self, report: ssh.Report) -> None:
        match report:
            case ssh.Started(id, pid):
                if process := self._processes.get(id):
                    process.started(pid)
            case ssh.NotStarted(id, why, is_items_fault, is_lost):
                reason = f"host {self._name}: {why}"
                status = NOT_FOUND if why.endswith(ssh.NOT_FOUND) else NOT_STARTED
                self._end(id, lambda slot: NotCreated(slot, reason, is_items_fault, is_lost, code=status))
            case ssh.Ended(id, code, name):
                how = None if name is None else f"SIG{name or '?'}"
                self._end(id, lambda slot: Gone(slot, code=code if how is None else None, signal=how))
            case ssh.Lost(id, why):
                self._end(id, lambda slot: Gone(slot, lost=True, why=why))
            case ssh.Left(id, pid):
                left = f"its process {pid} on host {self._name} runs as another user and could not be ended: it is left"
                self._end(id, lambda slot: Gone(slot, why=left, left=True))
            case ssh.LinkUp() if not self._is_retired:
                self._emit(HostUp(self._name))
            case ssh.LinkDown(why, retry_s) if not self._is_retired:
                self._emit(HostDown(self._name, why, retry_s))
            case ssh.Moved(to) if not self._is_retired:
                self._emit(HostMoved(self._name, to))
            case ssh.Note(text):
                log.warning("host %s: %s", self._name, text)

    def _end(self, id: int, event: Callable[[int], Event]) -> None:
        if process := self._processes.pop(id, None):
            if self.is_over:
                self._ssh.finish()
            process.on_end(event(process.slot))


def settings_of(name: str, host: Host) -> ssh.SshSettings:
    return ssh.SshSettings(name, host.address, host.user, host.identity, host.known_hosts)


def ssh_hosts(config: Config) -> dict[str, Host]:
    return {name: host for name, host in config.hosts.items() if host.is_remote}
