"""Takes over the agents that the daemon before left in the store of systemd (fd_store_handover.py), or kills them.

What was left at an orderly restart is a state as for an exec, and all descriptors of it, under other numbers: the
daemon goes on as after an exec (exec_handover.py). What a crash left are agents: those that had nothing in hand go on
in their slots, if the configuration and their program are what they were. All else in the control group is killed,
before anything of it is given out again: by us, for the warden of the daemon before us does nothing from the moment it
was asked. If it does not answer, nothing goes on.
"""

import math
import os
import socket
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from scheduler.daemon import cgroup_warden, exec_handover
from scheduler.daemon.cgroup_warden import LINE, Warden
from scheduler.daemon.exec_handover import LEFT, Takeover
from scheduler.daemon.fd_store_handover import (
    PAGE,
    STATE,
    AgentDescription,
    KeptAgents,
    SharedPage,
    log_why_not,
    read_description,
    start_digest,
)
from scheduler.daemon.handover_document import renumbered
from scheduler.daemon.log import log_line
from scheduler.drivers.fd_store import SETTLE_S, FdStore, Stored, inode_of, pop_stored
from scheduler.drivers.local_process import LocalProcess
from scheduler.drivers.os_calls import close_all, is_pidfd_of, is_readable, start_of
from scheduler.drivers.process_spec import Surroundings, fingerprint
from scheduler.drivers.service_manager import ServiceManager
from scheduler.model.config import Config
from scheduler.model.states import ST_FREE, ST_READY
from scheduler.policy.core import Core
from scheduler.policy.handover import READ

MOST_TRIES: Final = 3  # daemons that begin with the same state: it may be what they fail of
ENDS: Final = 3  # pipes of an agent
SHORT_LEASE_S: Final = 10.0  # a restart may take longer


class Inheritance:
    """The agents and the state that an earlier daemon left in the store, of which some continue."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Take over what was left, and kill what cannot go on. Errors: OSError, the warden cannot be started."""
        stored = pop_stored(environment)
        self.group = cgroup_warden.own_group(environment)
        self.takeover: Takeover | None = None
        self.survivors: dict[int, tuple[AgentDescription, Sequence[int]]] = {}  # by pid: an agent and its descriptors
        self.warden: Warden | None = None
        self.page: SharedPage | None = None
        self.names = list(dict.fromkeys(each.name for each in stored))
        self.why_not = ""  # nothing goes on of a state; for the log, which is not open yet
        if stored:
            self._begin(stored, environment)

    def _begin(self, stored: Sequence[Stored], environment: Mapping[str, str]) -> None:
        if self.group is None:
            close_all(each.fd for each in stored)
            return
        store = FdStore(environment.get("NOTIFY_SOCKET", ""))
        self.warden = _started_warden(self.group, store)  # first: from here on somebody watches us
        by_name: dict[str, list[int]] = {}
        for each in stored:
            by_name.setdefault(each.name, []).append(each.fd)
        with suppress(OSError, ValueError):
            self.page = SharedPage(by_name.pop(PAGE, [-1])[0])
        if self.page is not None and self.page.is_state_valid:
            self.warden.set_lease(_lease_until(by_name.get(STATE, ())))
        is_ours = self._dismiss_wardens(by_name, store)
        store.close()
        if not is_ours or self.page is None:
            self.why_not = "the warden of the daemon before does not answer: all that it left is killed"
        elif self.page.is_state_valid:
            self._take_state(by_name, self.page, environment)
        else:
            self._take_agents(by_name, self.page)
        used = {fd for _, fds in self.survivors.values() for fd in fds}
        if self.takeover is None:
            if not self.survivors:
                self.forget()
            close_all(fd for fds in by_name.values() for fd in fds if fd not in used)
            self._sweep()

    @staticmethod
    def _dismiss_wardens(by_name: dict[str, list[int]], store: FdStore) -> bool:
        """Ask the wardens of earlier daemons to kill nothing; return whether there is one, and all answer.

        There are two if a daemon died before it had the line of the warden before its own removed.
        """
        names = [name for name in by_name if name.startswith(LINE)]
        lines = [socket.socket(fileno=fd) for name in names for fd in by_name.pop(name)]
        answers = [cgroup_warden.dismiss(line) for line in lines]
        for line in lines:
            line.close()
        for name in names:
            store.remove(name, SETTLE_S)
        return bool(answers) and all(answers)

    def _take_state(self, by_name: dict[str, list[int]], page: SharedPage, environment: Mapping[str, str]) -> None:
        """Go on with a state, if it can be read and all of its descriptors are there."""
        states = by_name.get(STATE, [])
        if page.count_try() > MOST_TRIES:
            self.why_not = f"{MOST_TRIES} daemons have begun with the state that was left, and none has come up"
            return
        self.why_not = "the state that the daemon before has left is not there"
        if len(states) != 1:
            return
        document = exec_handover.read(states[0])
        if document["core"].get("version") not in READ:
            self.why_not = (
                f"the state that was left has version {document['core'].get('version')}, which is not known here"
            )
            return
        found = {inode_of(fd, name): fd for name, fds in by_name.items() for fd in fds}
        places = {int(fd): found.get(inode) for fd, inode in document["inodes"].items()}
        if None in places.values() or len({*document["fds"]} - places.keys()):
            self.why_not = "not all that the daemon before has left is there: is FileDescriptorStoreMax too small?"
            return
        here = {old: new for old, new in places.items() if new is not None}
        close_all(fd for fds in by_name.values() for fd in fds if fd not in (*here.values(), states[0]))
        self.why_not = ""
        words = f"{LEFT} {states[0]} the daemon was started anew"
        self.takeover = Takeover(words, environment, renumbered(document, here))

    def _take_agents(self, by_name: Mapping[str, list[int]], page: SharedPage) -> None:
        """Note the agents that live and had nothing in hand: they continue."""
        for name, fds in by_name.items():
            found = _agent_of(name, fds)
            if found is not None and found[0].slot < len(page.marks) and page.marks[found[0].slot]:
                self.survivors[found[0].pid] = found

    def _sweep(self) -> None:
        assert self.group is not None
        assert self.warden is not None
        ours, watcher = cgroup_warden.belongs_to(self.survivors), self.warden.pid
        cgroup_warden.sweep(self.group, lambda pid: pid == watcher or ours(pid))

    def forget(self) -> None:
        """Let no daemon after us go on with what was left: it has been killed, or works for us."""
        if self.page is not None:
            self.page.set_state_valid(False)
            self.page.clear()

    # ---- once the configuration is known

    def give_up(self, why: str) -> None:
        """Go on with nothing of what was left."""
        self.forget()
        log_line("error", f"{why}: all agents that were left are killed")
        if self.takeover is not None:
            close_all(self.takeover.document["fds"])
            self.takeover.finish()
            self.takeover = None
        self.survivors.clear()
        self._sweep()

    def document(self, config: Config, around: Surroundings, now: float) -> dict[str, Any] | None:
        """Return a state in which the agents that survived a crash are idle; None if there are none.

        Those that have no place any more are killed.
        """
        if not self.survivors:
            return None
        core = Core(config, now).document(now)
        children, seen = [], {}
        for pid, (left, fds) in list(self.survivors.items()):
            slot = _place_of(left, config, around, core["slots"])
            if slot is None:
                log_line("warning", f"agent {left.type} pid={pid} was left idle, and has no place any more: killed")
                _kill(pid, fds)
                del self.survivors[pid]
                continue
            core["slots"][slot] |= {
                "state": ST_READY, "pid": pid, "born": now, "since": now, "is_up": True, "serial": 1, "spawns": 1,
                "deadline": now + config.scheduler.max_idle, "prefetched": [],
            }  # fmt: skip
            children.append({
                "slot": slot, "type": left.type, "is_line": True, "pid": pid, "pidfd": fds[ENDS],
                "ends": list(fds[:ENDS]), "unsent": "", "is_child": False,
            })  # fmt: skip
            seen[left.type] = left.program
        told = ", ".join(f"{each['type']} pid={each['pid']}" for each in children)
        log_line("info", f"agents of the daemon before go on, which had nothing in hand: {told or 'none'}")
        return {
            "core": core, "frozen_at": now,
            "processes": {"children": children, "programs": {"seen": seen}, "ssh": [], "retired": []},
        }  # fmt: skip

    def kept_agents(
        self, config: Config, manager: ServiceManager | None, takeover: Takeover | None, reads_stdin: bool
    ) -> KeptAgents | None:
        """Return what leaves the agents of this daemon to the next one, if that is wanted and possible."""
        if self.why_not:
            log_line("error", self.why_not)
        handed = takeover.document.get("keeping") if takeover is not None else None
        if handed is not None:  # by the program that was executed before us
            self.warden, self.page = Warden.inherited(handed["warden"], handed["line"]), SharedPage(handed["page"])
            self.names = list(handed["names"])
        if not config.scheduler.keep_agents and self.warden is None:
            return None
        if (store := self._store(config, manager, reads_stdin)) is None:
            self.forget()
            return None
        assert self.group is not None
        if config.scheduler.lease < SHORT_LEASE_S:
            limit_s = config.scheduler.lease
            log_line("warning", f"keep_agents: a restart that takes longer than lease = {limit_s:g} s kills the agents")
        if self.warden is None:
            self.warden = _started_warden(self.group, store)
            if takeover is None:
                self._sweep()  # of a daemon that could leave nothing
        return KeptAgents(store, self.warden, self.group, self.page or SharedPage(), self.names)

    def _store(self, config: Config, manager: ServiceManager | None, reads_stdin: bool) -> FdStore | None:
        """Return the store of the service manager; None, and a line in the log, if there is none.

        One from which we got something is not asked whether it keeps anything: a slow answer would mean no.
        """
        if reads_stdin:
            log_why_not("the jobs come from standard input (-I)")
        elif manager is None or self.group is None:
            log_why_not("the daemon is not the main process of a unit of systemd")
        elif config.database.url.startswith("embedded"):
            log_why_not("the embedded database ends with the daemon")
        else:
            store = FdStore(manager.address)
            if self.names or store.is_enabled():
                return store
            store.close()
            log_why_not("the unit keeps no descriptors; see FileDescriptorStoreMax in keep-agents.conf")
        return None


def _started_warden(group: Path, store: FdStore) -> Warden:
    """Start a warden, which watches us once its lifeline was given to the store. Errors: OSError."""
    warden = Warden.started(group)
    store.keep(warden.name, [warden.line.fileno()], SETTLE_S)
    warden.watch()
    return warden


def _lease_until(states: Iterable[int]) -> float:
    """Return when the lease ends by the state that was left; minus infinity: it has none, or cannot be read."""
    for fd in states:
        with suppress(OSError, ValueError, LookupError, TypeError):
            return float(exec_handover.read(fd)["watch"]["lease"][0])
    return -math.inf


def _agent_of(name: str, fds: Iterable[int]) -> tuple[AgentDescription, Sequence[int]] | None:
    """Return an agent that lives, and its descriptors: stdin, stdout, stderr, pidfd; None if it does not."""
    with suppress(OSError):
        inodes = {inode_of(fd, name): fd for fd in fds}
        pidfd = inodes.pop(f"pidfd {name}", None)
        descriptions = [left for fd in inodes.values() if (left := read_description(_text_of(fd))) is not None]
        if pidfd is None or len(descriptions) != 1:
            return None
        left = descriptions[0]
        ends = [inodes.get(inode) for inode in left.ends]
        is_same = name == f"p{left.pid}" and is_pidfd_of(left.pid, pidfd) and start_of(left.pid) == left.start
        if is_same and not is_readable(pidfd) and len(ends) == ENDS and None not in ends:
            return left, [fd for fd in (*ends, pidfd) if fd is not None]
    return None


def _text_of(fd: int) -> bytes:
    """Return what is in a memfd; nothing if it is none."""
    with suppress(OSError):
        return os.pread(fd, os.fstat(fd).st_size, 0)
    return b""


def _place_of(
    left: AgentDescription, config: Config, around: Surroundings, slots: Sequence[Mapping[str, Any]]
) -> int | None:
    """Return the slot for an agent that goes on; None if it would be started otherwise now, or not at all."""
    agent = config.agents.get(left.type)
    if agent is None or left.host not in config.hosts or not agent.enabled or agent.canary:
        return None
    if start_digest(config, left.type, left.host) != left.made:
        return None
    if left.program is None or list(fingerprint(agent, around) or ()) != list(left.program):
        return None
    free = [
        number
        for number, slot in enumerate(slots)
        if slot["type"] == left.type and slot["host"] == left.host and slot["state"] == ST_FREE
    ]
    return left.slot if left.slot in free else next(iter(free), None)


def _kill(pid: int, fds: Sequence[int]) -> None:
    LocalProcess(pid, fds[ENDS], is_child=False).kill()
    close_all(fds)
