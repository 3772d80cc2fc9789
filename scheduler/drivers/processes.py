"""The processes of the slots, here and on other hosts: their pipes, their lives and their deaths.

Touches processes and their pipes, through the loop. Decides nothing about slots: what agents say goes to `hear`,
whose answer goes straight back; all else is told as events. Refuses to know the protocol.

A process is gone when it is dead *and* its output has ended; a grandchild may hold the pipes open, so the second has
a deadline (`exit_grace`). What is particular to a process of this machine or of another is in process.py and
ssh_agents.py.
"""

import errno
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from select import EPOLLIN, EPOLLOUT

from scheduler.drivers.local_process import TRACED_S, LocalProcess, NoPidfdError, Process, Started, start
from scheduler.drivers.loop import Loop, Timer
from scheduler.drivers.spawn import (
    SHORTAGES,
    SpawnTemplates,
    Surroundings,
    fingerprint,
    reason,
)
from scheduler.drivers.ssh_agents import SshHost, settings_of, ssh_hosts
from scheduler.drivers.system import open_more_files
from scheduler.errors import BugError
from scheduler.model.config import Config, Host
from scheduler.model.events import (
    Clogged,
    Created,
    Event,
    ForceKill,
    Kill,
    NotCreated,
    Replaced,
    Send,
    Signal,
    Spawn,
    Unclogged,
)

CHUNK = 65_536  # bytes of a command's output read in one turn: a full pipe
TALK = 4096  # of a line agent: each line costs, and one that babbles must not hold up the others
LITTLE = 512  # of one that babbles
FEW = 16  # bytes of one read that are not weighed, and lines
LINE_S, BYTE_S = 1e-5, 1e-8  # what a line that is logged costs us, about, and a byte of it
SHARE = 0.1  # of our time that those who babble may take, all together
BURST_S = 0.05  # of it that each may take at once
LONGEST_PAUSE_S = 1.0
CLOSED = -1  # in place of a descriptor

Hear = Callable[[int, bytes, float], bytes | None]
HearError = Callable[[int, bytes, float], None]
Captured = Callable[[int, str, bytes, float], None]
Tell = Callable[[Event], None]
Ear = Callable[[int], None]

log = logging.getLogger(__name__)


class Child:
    """One process: our ends of its pipes, what is still to be written, how it ended."""

    __slots__ = (
        "debt", "end", "grace", "is_line", "most", "process", "slot", "stderr", "stdin", "stdout", "unsent",
        "weighed_at",
    )  # fmt: skip

    def __init__(self, slot: int, is_line: bool) -> None:
        self.slot, self.is_line = slot, is_line
        self.process: Process
        self.stdin = self.stdout = self.stderr = CLOSED
        self.unsent: bytes | memoryview = b""
        self.end: Event | None = None  # Gone, or NotCreated of one that was to begin elsewhere
        self.grace: Timer | None = None
        self.most = TALK if is_line else CHUNK  # bytes of the next read
        self.debt = 0.0  # seconds of our time that it took, less what it was allowed since
        self.weighed_at = 0.0


class Processes:
    """All processes, by slot.

    `tell` is called from within `spawn` and `kill` too, so it should only note what it is told.
    """

    def __init__(
        self,
        loop: Loop,
        config: Config,
        agents_path: Sequence[str],
        hear: Hear,
        hear_err: HearError,
        captured: Captured,
        tell: Tell,
    ) -> None:
        self._config = config
        self._loop, self._tell = loop, tell
        self._hear, self._hear_err, self._captured = hear, hear_err, captured
        self._around = Surroundings(os.environ, tuple(agents_path), open_more_files())
        self._recipes = SpawnTemplates(config, self._around)
        self._children: dict[int, Child] = {}
        self._paused: dict[int, Ear] = {}  # descriptors that are not read at present
        self._programs: dict[str, tuple[str, int, int, int] | None] = {}
        self._ssh_hosts = {name: SshHost(loop, name, host, tell) for name, host in ssh_hosts(config).items()}
        self._retired: list[SshHost] = []  # ways to hosts that some agents still go

    def spawn(self, spawn: Spawn) -> None:
        """Start the process of a slot; tells Created or NotCreated, later if that is on another host."""
        if spawn.slot in self._children:
            raise BugError(f"slot {spawn.slot} has a process already; its Gone must come before a Spawn")
        if (host := self._ssh_hosts.get(spawn.host)) is not None:
            self._spawn_over_ssh(host, spawn)
        else:
            self._spawn_here(spawn)

    def _spawn_here(self, spawn: Spawn) -> None:
        agent = self._config.agents[spawn.type]
        if spawn.type not in self._programs:
            self._programs[spawn.type] = fingerprint(agent, self._around)
        try:
            started = self._start(spawn)
        except (OSError, ValueError) as error:
            self._tell(self._not_created(spawn, error))
            return
        self._adopt(Child(spawn.slot, agent.kind == "line"), started, spawn.stdin or b"")

    def _spawn_over_ssh(self, host: SshHost, spawn: Spawn) -> None:
        agent = self._config.agents[spawn.type]
        child = self._children[spawn.slot] = Child(spawn.slot, agent.kind == "line")
        try:
            process = host.start(
                spawn, agent, lambda: self._begin(child, spawn.stdin or b""), lambda end: self._over(child, end)
            )
        except OSError as error:
            del self._children[spawn.slot]
            self._tell(self._not_created(spawn, error))
            return
        child.process = process
        child.stdin, child.stdout, child.stderr = process.ends.stdin, process.ends.stdout, process.ends.stderr

    def send(self, send: Send) -> None:
        """Write to an agent; harmless when it is gone."""
        if child := self._children.get(send.slot):
            self._write(child, send.data)

    def kill(self, kill: Kill) -> None:
        """Ask a process to die: close its pipes, hang-up to its group. Only a command is heard to the end."""
        if child := self._children.get(kill.slot):
            if child.is_line:
                self._hush(child)
            else:
                self._close_stdin(child)
            child.process.signal(signal.SIGHUP)
            self._bury_if_over(child)

    def force_kill(self, force: ForceKill) -> None:
        """Kill a process and its group at once; harmless when it is gone."""
        if child := self._children.get(force.slot):
            child.process.kill()

    def signal(self, order: Signal) -> None:
        """Send a signal to the process group of an agent; harmless when it is gone."""
        if child := self._children.get(order.slot):
            child.process.signal(order.number)

    def take(self, config: Config) -> None:
        """Start processes by another configuration from now on; those of before live on."""
        old, self._config = self._config, config
        self._recipes = SpawnTemplates(config, self._around)
        same = [name for name in self._programs if config.agents.get(name) == old.agents[name]]
        self._programs = {name: self._programs[name] for name in same}
        self._set_ssh_hosts(ssh_hosts(config))

    def _set_ssh_hosts(self, hosts: Mapping[str, Host]) -> None:
        """Go another way to hosts where it has changed; agents that came the old way live on."""
        self._retired = [host for host in self._retired if not host.is_over]
        for name, host in list(self._ssh_hosts.items()):
            if name not in hosts or host.settings != settings_of(name, hosts[name]):
                del self._ssh_hosts[name]
                self._retired.append(host)
                host.retire()
        for name in hosts.keys() - self._ssh_hosts.keys():
            self._ssh_hosts[name] = SshHost(self._loop, name, hosts[name], self._tell)

    def check_programs(self) -> None:
        """Tell Replaced of each type whose program file is another one now; looks at every file."""
        self._recipes.forget()
        for name, old in self._programs.items():
            agent = self._config.agents.get(name)
            new = fingerprint(agent, self._around) if agent else None
            if new is not None and new != old:  # None may be half of a replacement: look again later
                self._programs[name] = new
                self._tell(Replaced(name))

    def pids(self) -> dict[int, int]:
        """Give the pid of each slot that has a process here."""
        here = {slot: child.process for slot, child in self._children.items()}
        return {slot: process.pid for slot, process in here.items() if isinstance(process, LocalProcess)}

    def let_go(self) -> None:
        """Give up all agents on other hosts: they are lost, and die by themselves where nobody can reach them."""
        for host in (*self._ssh_hosts.values(), *self._retired):
            host.bridge.break_down()

    def close(self) -> None:
        """Kill everything at once and tell nobody; at the very end."""
        for host in (*self._ssh_hosts.values(), *self._retired):
            host.close()
        here = [child.process for child in self._children.values() if isinstance(child.process, LocalProcess)]
        for process in here:
            process.kill()
        for child in self._children.values():
            self._hush(child)
        for process in here:
            process.await_death()
            self._loop.unregister(process.pidfd)
            process.bury()
        self._children.clear()

    # The life of a child: started, adopted, dead, buried.

    def _not_created(self, spawn: Spawn, error: OSError | ValueError) -> NotCreated:
        """Say whose fault it is; the process of which nobody could learn the end had begun."""
        number = error.errno if isinstance(error, OSError) else None
        has_begun = isinstance(error, NoPidfdError)
        return NotCreated(
            spawn.slot,
            reason(self._config, spawn, error),
            is_items_fault=number == errno.E2BIG and spawn.argv is not None,
            lost=has_begun,
            is_machines_fault=number in SHORTAGES and not has_begun,
        )

    def _start(self, spawn: Spawn) -> Started:
        try:
            return start(self._recipes.give(spawn))
        except (FileNotFoundError, PermissionError):  # it may be elsewhere by now
            self._recipes.forget()
            return start(self._recipes.give(spawn))

    def _adopt(self, child: Child, started: Started, stdin: bytes) -> None:
        self._children[child.slot] = child
        process = child.process = LocalProcess(started)
        child.stdin, child.stdout, child.stderr = started.stdin, started.stdout, started.stderr
        self._loop.register(process.pidfd, EPOLLIN, lambda _mask: self._died(child, process))
        self._begin(child, stdin)

    def _begin(self, child: Child, stdin: bytes) -> None:
        """It runs; one that we have closed the pipes of meanwhile is about to die."""
        self._tell(Created(child.slot, child.process.pid))
        if child.stdout == CLOSED:
            return
        ear, error_ear = self._ears(child)
        self._loop.register(child.stdout, EPOLLIN, ear)
        self._loop.register(child.stderr, EPOLLIN, error_ear)
        if child.is_line:
            return
        self._write(child, stdin)
        if not child.unsent:
            self._close_stdin(child)

    def _died(self, child: Child, process: LocalProcess) -> None:
        self._loop.unregister(process.pidfd)  # it stays readable, and open for the reaping
        if not self._is_over(child, process):
            log.warning("slot %d: process %d has ended, but a debugger holds it", child.slot, process.pid)
            self._loop.at(self._loop.now + TRACED_S, lambda: self._look_for_end(child, process))

    def _look_for_end(self, child: Child, process: LocalProcess) -> None:
        if self._children.get(child.slot) is child and not self._is_over(child, process):
            self._loop.at(self._loop.now + TRACED_S, lambda: self._look_for_end(child, process))

    def _is_over(self, child: Child, process: LocalProcess) -> bool:
        """Settle the end of a process, if it can be learnt by now."""
        end = process.how_it_ended(child.slot)
        if end is not None:
            self._over(child, end)
        return end is not None

    def _over(self, child: Child, end: Event) -> None:
        """It is dead, or never was; what it said may still be in its pipes."""
        child.end = end
        if isinstance(end, NotCreated):
            self._hush(child)
        for fd in (child.stdout, child.stderr):
            self._hear_again(fd, self._paused.get(fd))
        self._bury_if_over(child)
        if child.slot in self._children:
            deadline = self._loop.now + self._config.scheduler.exit_grace + child.process.grace_s
            child.grace = self._loop.at(deadline, lambda: self._hear_last_words(child))

    def _hear_last_words(self, child: Child) -> None:
        """Read what is buffered, though somebody else still holds the pipes, and bury."""
        for fd, ear in zip((child.stdout, child.stderr), self._ears(child), strict=True):
            if fd != CLOSED:
                ear(EPOLLIN)
        self._hush(child)
        self._bury_if_over(child)

    def _bury_if_over(self, child: Child) -> None:
        """Reap a child that is dead and said its last, kill what is left of its group, tell Gone."""
        is_heard = child.stdout == child.stderr == CLOSED
        if child.end is None or not is_heard or self._children.get(child.slot) is not child:
            return
        if child.grace is not None:
            child.grace.cancel()
        child.process.strike_rest()
        self._hush(child)
        child.process.bury()
        del self._children[child.slot]
        self._tell(child.end)

    # What it says.

    def _ears(self, child: Child) -> tuple[Ear, Ear]:
        slot, captured, hear_err, loop = child.slot, self._captured, self._hear_err, self._loop
        if child.is_line:
            error_ear = self._ear(child, child.stderr, lambda data: hear_err(slot, data, loop.now))
            return self._line_ear(child), error_ear
        return (
            self._ear(child, child.stdout, lambda data: captured(slot, "out", data, loop.now)),
            self._ear(child, child.stderr, lambda data: captured(slot, "err", data, loop.now)),
        )

    def _line_ear(self, child: Child) -> Ear:
        """Give the hot path: read, hear, write the answer; everything is bound once, here."""
        slot, fd, hear, write, loop, read = child.slot, child.stdout, self._hear, self._write, self._loop, os.read
        weigh = self._weigh

        def ear(_mask: int) -> None:
            try:
                data = read(fd, child.most)
            except BlockingIOError:
                return
            if not data:
                self._end(child, fd)
                return
            answer = hear(slot, data, loop.now)
            if answer is not None:
                write(child, answer)
            if len(data) > FEW:
                weigh(child, fd, data, ear)

        return ear

    def _ear(self, child: Child, fd: int, take: Callable[[bytes], None]) -> Ear:
        def ear(_mask: int) -> None:
            try:
                data = os.read(fd, child.most)
            except BlockingIOError:
                return
            if not data:
                self._end(child, fd)
                return
            take(data)
            if child.is_line:
                self._weigh(child, fd, data, ear)

        return ear

    def _weigh(self, child: Child, fd: int, data: bytes, ear: Ear) -> None:
        """Charge a line agent for what it said; if that is too much it is heard later: it waits, and loses nothing."""
        now, lines = self._loop.now, data.count(b"\n")
        cost = max(lines - FEW, 0) * LINE_S + len(data) * BYTE_S
        child.debt = max(child.debt - (now - child.weighed_at) * SHARE, 0.0) + cost
        child.weighed_at = now
        excess = child.debt - BURST_S
        child.most = LITTLE if excess > 0 and lines > FEW else TALK
        if excess <= 0 or child.end is not None or fd not in (child.stdout, child.stderr):
            return
        self._loop.unregister(fd)
        self._paused[fd] = ear
        pause = min(excess / SHARE * len(self._paused), LONGEST_PAUSE_S)
        self._loop.at(now + pause, lambda: self._hear_again(fd, ear))

    def _hear_again(self, fd: int, ear: Ear | None) -> None:
        """Read again from a descriptor that was paused, unless it was closed since; its number may be another's now."""
        if ear is not None and self._paused.get(fd) is ear:
            del self._paused[fd]
            self._loop.register(fd, EPOLLIN, ear)

    def _end(self, child: Child, fd: int) -> None:
        """Close an output that has ended; a line agent that lives on without stdout can finish nothing any more."""
        if fd == child.stdout:
            child.stdout = self._shut(fd)
            if child.is_line:
                deadline = self._loop.now + self._config.scheduler.exit_grace
                self._loop.at(deadline, lambda: self._end_mute(child))
        else:
            child.stderr = self._shut(fd)
        self._bury_if_over(child)

    def _end_mute(self, child: Child) -> None:
        if child.end is None and self._children.get(child.slot) is child:
            log.warning("slot %d has closed its stdout and lives on: killed", child.slot)
            child.process.kill()

    # What it is told.

    def _write(self, child: Child, data: bytes) -> None:
        """Write what the pipe takes; the rest waits until it takes more."""
        if child.stdin == CLOSED:
            return
        if child.unsent:
            child.unsent = memoryview(b"".join((child.unsent, data)))
            return
        try:
            sent = os.write(child.stdin, data)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            self._clog(child)
            self._close_stdin(child)
            return
        if sent != len(data):
            child.unsent = memoryview(data)[sent:]
            self._loop.register(child.stdin, EPOLLOUT, lambda _mask: self._drain(child))
            self._clog(child)

    def _drain(self, child: Child) -> None:
        try:
            sent = os.write(child.stdin, child.unsent)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._close_stdin(child)
            return
        child.unsent = child.unsent[sent:]
        if not child.unsent:
            self._unclog(child)

    def _clog(self, child: Child) -> None:
        """Tell that a line agent does not read; a command is free not to."""
        if child.is_line:
            self._tell(Clogged(child.slot))

    def _unclog(self, child: Child) -> None:
        if child.is_line:
            self._loop.unregister(child.stdin)
            self._tell(Unclogged(child.slot))
        else:
            self._close_stdin(child)

    def _close_stdin(self, child: Child) -> None:
        child.stdin, child.unsent = self._shut(child.stdin), b""

    def _hush(self, child: Child) -> None:
        self._close_stdin(child)
        child.stdout, child.stderr = self._shut(child.stdout), self._shut(child.stderr)

    def _shut(self, fd: int) -> int:
        """Close a descriptor that may be closed already; give what stands in its place."""
        if fd != CLOSED:
            self._paused.pop(fd, None)
            self._loop.unregister(fd)  # first: a child between fork and exec may hold it open
            os.close(fd)
        return CLOSED
