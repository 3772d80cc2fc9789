"""Leaves the agents of this daemon to the one that systemd starts after it, in the store of file descriptors.

At an orderly restart all is left: nothing new is begun, nothing is read any more, what waits is saved, and the state is
written as for an exec (upgrade.py). A crash leaves no time for that. So once a second the agents of this machine that
work line by line are given to the store, and those that ended are taken out; and a shared page says which of them have
nothing in hand. That is memory that is in the store too: each write to an agent clears the mark of its slot
(drivers/pipes.py), before the line is written, and only a look at the slots sets it. So a mark that is set is true,
whenever the daemon dies. An agent without a mark may have anything in hand.

The next daemon reads it: fd_store_recovery.py.
"""

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scheduler.daemon import exec_handover
from scheduler.daemon.cgroup_warden import LINE, Warden
from scheduler.daemon.handover_document import DaemonState
from scheduler.daemon.log import log_line
from scheduler.drivers.fd_store import SETTLE_S, FdStore, inode_of
from scheduler.drivers.loop import Loop, Steps, Task, Until
from scheduler.drivers.os_calls import start_of
from scheduler.drivers.processes import Processes
from scheduler.model.config import Config
from scheduler.package_data import version
from scheduler.policy.core import Core
from scheduler.policy.reload import REACHED_BY, STARTED_WITH

PAGE, STATE = "page", "state"  # names in the store; that of the lifeline has the warden, those of processes are below
LOOK_S: Final = 1.0
HOLD_S, FREEZE_S = 10.0, 5.0  # for what is under way to end, and to be saved: less than TimeoutStopSec of the unit
HOLD_LOOK_S, FREEZE_LOOK_S = 0.005, 0.001
PAGE_BYTES: Final = 65_536
IS_STATE_VALID, TRIES = 0, 1  # bytes of the page; the marks of slots are behind them
FIRST_MARK: Final = 2


class SharedPage:
    """A page of memory that outlives the daemon in the store."""

    def __init__(self, fd: int | None = None) -> None:
        """Open one that a daemon before us has left, or a new one. Errors: OSError, ValueError."""
        if fd is None:
            fd = os.memfd_create("drover-page")
            os.ftruncate(fd, PAGE_BYTES)
        os.set_inheritable(fd, False)
        self.fd = fd
        self._memory = mmap.mmap(fd, PAGE_BYTES)
        self.marks = memoryview(self._memory)[FIRST_MARK:]

    @property
    def is_state_valid(self) -> bool:
        """Return whether the state in the store is that of the daemon at its end."""
        return bool(self._memory[IS_STATE_VALID])

    def set_state_valid(self, is_valid: bool) -> None:
        self._memory[IS_STATE_VALID], self._memory[TRIES] = int(is_valid), 0

    def count_try(self) -> int:
        """Return how many daemons have begun with this state, us too."""
        self._memory[TRIES] = min(self._memory[TRIES] + 1, 255)
        return self._memory[TRIES]

    def clear(self) -> None:
        """Say that every agent may have something in hand."""
        self.marks[:] = bytes(len(self.marks))


@dataclass(frozen=True, slots=True)
class AgentDescription:
    """What is stored beside the descriptors of an agent, for a daemon that knows nothing of it."""

    slot: int
    type: str
    host: str
    pid: int
    start: int  # of the process, in clock ticks since boot
    ends: Sequence[str]  # inodes of stdin, stdout, stderr
    made: str  # of what it was started with
    program: Sequence[Any] | None  # the file it was started from

    def write(self) -> int:
        """Return a memfd with it. Errors: OSError."""
        text = {name: getattr(self, name) for name in AgentDescription.__slots__}
        return exec_handover.write(text)


def start_digest(config: Config, type: str, host: str) -> str:
    """Return a digest of all of a configuration and of our environment that an agent is started with."""
    agent, place = config.agents[type], config.hosts[host]
    words = [repr(getattr(agent, name)) for name in sorted({*STARTED_WITH, "kind"})]
    words += [repr(getattr(place, name)) for name in sorted(REACHED_BY)]
    words += [repr(os.environ.get(name)) for name in agent.pass_env]
    return hashlib.sha256("\0".join([*words, str(os.geteuid())]).encode()).hexdigest()


class KeptAgents:
    """Gives the agents of a daemon to the store, and takes them out."""

    def __init__(
        self, store: FdStore, warden: Warden, group: Path, page: SharedPage, names: Sequence[str] = ()
    ) -> None:
        """Begin with a store that has things of these names, of a daemon before us; `group` is our control group."""
        self._store, self.warden, self.group, self.page = store, warden, group, page
        self._stored: dict[str, int] = dict.fromkeys(names, 0)  # slot by name
        self._leaving: Task[str] | None = None
        self._open()

    def _open(self) -> None:
        """Have the lifelines of wardens before ours removed, and store ours and the page."""
        for name in [name for name in self._stored if name == PAGE or name.startswith(LINE)]:
            if name not in (PAGE, self.warden.name):
                self._store.remove(name, SETTLE_S)
            del self._stored[name]
        self._keep_own()

    def _keep_own(self) -> None:
        """Store the lifeline and the page, if they are not there: a store that was full has not taken them."""
        self._store.keep(self.warden.name, [self.warden.line.fileno()], SETTLE_S)
        self._store.keep(PAGE, [self.page.fd], SETTLE_S)

    def use(
        self, loop: Loop, core: Core, processes: Processes, state: DaemonState, config: Callable[[], Config]
    ) -> None:
        """Set whose agents are kept; before anything else is called."""
        self._loop, self._core, self._processes, self._daemon, self._config = loop, core, processes, state, config
        self.lease_changed()

    # ---- while all is well

    def lease_changed(self) -> None:
        """Tell the warden the end of the lease, before anything is begun under it, or that nothing is left of one."""
        if self._daemon.lease_until == -math.inf and not self._processes.fds_by_owner():
            self.warden.forget_lease()
        self.warden.set_lease(self._daemon.lease_until)

    def look(self) -> None:
        """Give agents that are up to the store, take out those that ended, and mark those that have nothing in hand."""
        self.lease_changed()
        self._exchange()
        for slot in self._core.idle_slots():
            if slot < len(self.page.marks):
                self.page.marks[slot] = 1
        self._loop.at(self._loop.now + LOOK_S, self.look)

    def _exchange(self) -> None:
        wanted = {f"p{each.pid}": each for each in self._processes.line_agents()}
        for name in [name for name in self._stored if name not in wanted]:
            if self._store.remove(name):
                del self._stored[name]
        up = self._core.slots_that_came_up()
        for name, each in wanted.items():
            if name not in self._stored and each.slot in up and self._put(name, each.slot, each.type, each.fds):
                self._stored[name] = each.slot

    def _put(self, name: str, slot: int, type: str, fds: Sequence[int]) -> bool:
        try:
            description = self._description(name, slot, type, fds).write()
        except (OSError, KeyError):  # no descriptor is left, it has ended, or its type is gone: at the next look
            return False
        try:
            return self._store.keep(name, [*fds, description])
        finally:
            os.close(description)

    def _description(self, name: str, slot: int, type: str, fds: Sequence[int]) -> AgentDescription:
        pid, config, host = int(name[1:]), self._config(), self._core.host_of(slot)
        return AgentDescription(
            slot, type, host, pid, start_of(pid), [inode_of(fd, name) for fd in fds[:3]],
            start_digest(config, type, host), self._processes.program_of(type),
        )  # fmt: skip

    def came_up(self) -> None:
        """Note that this daemon has continued with what was left: the stored state is not valid any more."""
        self.page.set_state_valid(False)
        self.page.clear()
        for name in list(self._stored):
            if self._store.remove(name, SETTLE_S):
                del self._stored[name]
        self.look()

    # ---- the end

    def leave(self, left: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Leave all to the next daemon and call `left`; or call `failed` with the reason, and all goes on."""
        self._leaving = Task(self._loop, self._leave(), lambda why: failed(why) if why else left()).start()

    def stay(self) -> None:
        """Leave nothing, if that was begun."""
        if self._leaving is not None:
            self._leaving.stop()

    def _leave(self) -> Steps[str]:
        daemon, loop = self._daemon, self._loop
        daemon.hold()
        self._core.give_back_unmovable(loop.now)
        late = loop.now + HOLD_S
        while why := daemon.obstacle():
            if loop.now >= late:
                return f"{why}, after {HOLD_S:g} s"
            yield Until(loop.now + HOLD_LOOK_S)
        daemon.renew_lease()  # so that the next daemon has all of it to come up
        daemon.freeze()
        late = loop.now + FREEZE_S
        while why := daemon.unsaved():
            if loop.now >= late:
                return f"{why}, after {FREEZE_S:g} s"
            yield Until(loop.now + FREEZE_LOOK_S)
        return self._push()

    def _push(self) -> str:
        """Write the state and all descriptors to the store; return the error in words, or an empty string."""
        document = self._daemon.document()
        try:
            inodes: dict[str, str] = {}
            for name, fds in self._processes.fds_by_owner():
                inodes |= {str(fd): inode_of(fd, name) for fd in fds}
                if not self._store.keep(name, fds, SETTLE_S):
                    return "the service manager does not take the descriptors"
                self._stored.setdefault(name, 0)
            given = {"version": version(), "argv": [], "words": [], "package": "", "schema": ""}
            fd = exec_handover.write(document | {"inodes": inodes, "program": given})
        except OSError as error:
            return f"the state is not written: {error.strerror}"
        self._keep_own()
        self._store.remove(STATE, SETTLE_S)
        is_kept = self._store.keep(STATE, [fd], SETTLE_S) and self._store.settle()
        os.close(fd)
        if not is_kept:
            return "the service manager does not take the state"
        self._stored.setdefault(STATE, 0)
        self.page.set_state_valid(True)
        return ""

    def snapshot(self) -> dict[str, Any]:
        """Return what a program that is executed in our place needs to go on: JSON, with the numbers of `fds`."""
        line, page = self.fds
        return {"warden": self.warden.pid, "line": line, "page": page, "names": [*self._stored, self.warden.name, PAGE]}

    @property
    def fds(self) -> list[int]:
        """Return the descriptors of the lifeline and the page."""
        return [self.warden.line.fileno(), self.page.fd]

    def remove_all(self) -> None:
        """Leave nothing to the next daemon: this one ends for good."""
        for name in (*self._stored, self.warden.name, PAGE):
            self._store.remove(name)

    def close(self) -> None:
        """Let the warden end what is left when we have ended, unless the store has its lifeline."""
        self.warden.close()
        self._store.close()


def read_description(text: bytes) -> AgentDescription | None:
    """Return the description that a daemon before us has written; None if it is none."""
    try:
        kept: Mapping[str, Any] = json.loads(text)
        return AgentDescription(**{name: kept[name] for name in AgentDescription.__slots__})
    except (ValueError, KeyError, TypeError):
        return None


def log_why_not(why: str) -> None:
    log_line("error", f"keep_agents: {why}: at a restart agents are killed")
