"""Everything of a daemon that travels to the program that is executed in its place: hold it, freeze it, write it down.

The core says what is under way among its jobs and agents, the drivers among their descriptors, the watch connection
with the database. Whose group it is stays as it was: to the database the new program is the old one, whose connections
were lost and made again, with the same owner and the same lease.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import attrs

from scheduler.daemon.watch_connection import Watch
from scheduler.drivers.loop import Loop
from scheduler.drivers.processes import Processes
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.config_reader import config_of
from scheduler.model.states import LeaseState
from scheduler.policy.core import Core
from scheduler.policy.reload import FIXED

VERSION: Final = 1
TABLES: Final = ("scheduler", "hosts", "agents", "queues", "conditions", "schedules")  # the database's has passwords


class Keeping(Protocol):
    """What a program that is executed in our place needs of KeptAgents."""

    @property
    def fds(self) -> list[int]: ...

    def snapshot(self) -> dict[str, Any]: ...


class DaemonState:
    """The parts of one daemon whose state travels; `kept_agents` leaves agents to the daemon that is started next."""

    def __init__(
        self, loop: Loop, core: Core, processes: Processes, watch: Watch, config: Callable[[], Config],
        kept_agents: Keeping | None, frozen_at: float | None,
    ) -> None:  # fmt: skip
        self._loop, self._core, self._processes, self._watch = loop, core, processes, watch
        self._config, self.kept_agents, self._frozen_at = config, kept_agents, frozen_at

    @property
    def is_frozen(self) -> bool:
        """Return whether nothing of any agent is read or written."""
        return self._frozen_at is not None

    @property
    def frozen_since(self) -> float:
        """Return since when, or now."""
        return self._loop.now if self._frozen_at is None else self._frozen_at

    @property
    def seconds_frozen(self) -> float:
        return self._loop.now - self.frozen_since

    @property
    def lease_until(self) -> float:
        """Return when the lease of the group ends, by the monotonic clock; minus infinity: it is not ours."""
        return self._watch.lease.until

    def renew_lease(self) -> None:
        """Have the lease renewed, if the group is ours, before the daemon is frozen."""
        self._watch.lease.renew(self._loop.now)

    def hold(self) -> None:
        """Begin nothing new."""
        self._core.hold(self._loop.now)

    def release(self) -> None:
        """Go on with everything: nothing was lost but time, which agents get back."""
        if self._frozen_at is not None:
            pause, self._frozen_at = self._loop.now - self._frozen_at, None
            self._core.resume(pause, self._loop.now)
            self._processes.thaw()
            self._watch.pause(False)
        self._core.release()

    def freeze(self) -> None:
        """Read and write nothing of any agent, and save all that is to be saved."""
        self._frozen_at = self._loop.now
        self._processes.freeze()
        self._core.save_output(self._loop.now)
        self._watch.pause(True)

    def unfinished_query(self) -> int | None:
        """Return a job whose rows have to be worked before another program can take over."""
        job = self._core.unfinished_query()
        return None if job is None else job.pk

    def obstacle(self) -> str:
        """Return what has to end before the state can be frozen; nothing if all has."""
        if self._watch.lease.state not in (LeaseState.SERVING, LeaseState.STANDBY):
            return f"the daemon is {self._watch.lease.shown}"
        if self._watch.connections.is_away:
            return "the database is away"
        return self._core.obstacle() or self._processes.obstacle()

    def unsaved(self) -> str:
        """Return what is to be saved yet, after `freeze`; nothing if the state can travel."""
        if self._core.has_unsaved:
            return "ends, logs or output wait to be saved"
        if self._core.has_work or not self._watch.is_written_down:
            return "a statement is under way"
        return self.obstacle()

    @property
    def fds(self) -> list[int]:
        """Return the descriptors that travel."""
        return self._processes.fds

    def document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "frozen_at": self.frozen_since,
            "config": _tables(self._config()),
            "core": self._core.document(self._loop.now),
            "processes": self._processes.snapshot(),
            "watch": self._watch.snapshot(),
            "fds": self.fds,
        }


def renumbered(document: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """Return what another process has left, with the numbers that descriptors have here; no process is our child."""
    processes = dict(document["processes"])
    processes["children"] = [_renumbered_child(each, numbers) for each in processes["children"]]
    for kind in ("ssh", "retired"):
        processes[kind] = [each | {"link": _renumbered_link(each["link"], numbers)} for each in processes[kind]]
    return {**document, "processes": processes, "fds": [numbers[fd] for fd in document["fds"]]}


def _renumbered_child(child: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    ends = {"ends": [numbers.get(fd, fd) for fd in child["ends"]], "is_child": False}  # a closed one has no number
    return {**child, **ends} | ({"pidfd": numbers[child["pidfd"]]} if "pidfd" in child else {})


def _renumbered_link(link: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    if link["process"] is None:
        return {**link}
    pid, *fds = link["process"]
    return {**link, "process": [pid, *[numbers[fd] for fd in fds]]}


def _tables(config: Config) -> dict[str, Any]:
    """Return a configuration as `config_of` reads it."""
    tables = attrs.asdict(
        config, value_serializer=lambda _, __, value: list(value) if isinstance(value, tuple) else value
    )
    return {name: tables[name] for name in TABLES}


def config_to_go_on(document: Mapping[str, Any], wanted: Config) -> Config:
    """Return the configuration that the old program had, but for what a start sets: then `wanted` is a reload.

    Errors: ConfigError, it is of another group.
    """
    before = config_of(document["config"])
    if before.scheduler.group != wanted.scheduler.group:
        raise ConfigError(f"scheduler.group: the daemon serves {before.scheduler.group}: start another one for this")
    started = {name: getattr(wanted.scheduler, name) for name in FIXED}
    return attrs.evolve(before, database=wanted.database, scheduler=attrs.evolve(before.scheduler, **started))
