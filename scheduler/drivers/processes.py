"""The processes of the slots, on this machine and on hosts over SSH, from their start to their end.

Decides nothing about slots: what agents write goes to callbacks (pipes.py), all else is reported as events. Refuses to
know the protocol. How a process of this machine is started, signalled and reaped is in local_process.py; one of another
host in ssh_host.py and ssh_supervisor.py.

A process has ended when it is dead *and* its output has ended; a grandchild may hold the pipes open, so the second has
a deadline (`exit_grace`). It is reaped only then: until then its pid and its process group are its own, even when it is
dead, and no signal can reach a stranger.
"""

import errno
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from select import EPOLLIN
from typing import Any, Final, NamedTuple

from scheduler.drivers.executable_files import SHORTAGES
from scheduler.drivers.keeper_scripts import carried, read_end
from scheduler.drivers.left_processes import LeftProcesses, kept_command, left_in_words
from scheduler.drivers.local_process import LocalProcess, restored, start
from scheduler.drivers.loop import Loop, Steps, Task, Timer, Until
from scheduler.drivers.os_calls import (
    TRACED_S,
    Ends,
    NoPidfdError,
    is_readable,
    keep_descriptors,
    open_more_files,
    signal_name,
)
from scheduler.drivers.pipes import CLOSED, Marks, OnCapture, OnErrors, OnOutput, Outputs, Pipes
from scheduler.drivers.process_spec import (
    NOT_FOUND,
    NOT_STARTED,
    Fingerprint,
    SpawnTemplates,
    Surroundings,
    prefix_of,
    reason,
    start_status,
)
from scheduler.drivers.program_files import ProgramFiles
from scheduler.drivers.ssh_host import RemoteProcess, SshHost, settings_of, ssh_hosts
from scheduler.errors import BugError
from scheduler.model.config import Config
from scheduler.model.counters import RECEIVED, SENT, Counted, add
from scheduler.model.events_and_effects import (
    Created,
    Event,
    ForceKill,
    Gone,
    HostMoved,
    Keeper,
    Kill,
    LetGo,
    NotCreated,
    Refused,
    Send,
    Signal,
    Spawn,
)

LAST_WAIT_S: Final = 1.0  # for each process at the very end; SIGKILL takes far less
DEATH_S: Final = 1.0  # likewise, for the group of a process that has ended

log = logging.getLogger(__name__)


class Child:
    """The process of a slot and its pipes; `over` is called with its end when it is dead and its output has ended."""

    def __init__(
        self, loop: Loop, slot: int, type: str, is_line: bool, process: LocalProcess | RemoteProcess, pipes: Pipes,
        exit_grace: Callable[[], float], over: Callable[[int, Event], None], report: Callable[[Event], None],
        keeper: Keeper | None = None,
    ) -> None:  # fmt: skip
        self.slot, self.type, self.process, self.pipes = slot, type, process, pipes
        self._is_attached = keeper is not None  # to a detached job
        self._is_told = keeper is not None and bool(keeper.told)  # to end, by its arguments
        self.end: Event | None = None  # Gone, or NotCreated of one that was to begin elsewhere
        self._loop, self._is_line, self._exit_grace, self._over, self._report = loop, is_line, exit_grace, over, report
        self.spawn: Spawn | None = None  # of a process that this program has started on this machine
        self._is_over = False
        self._grace: Timer | None = None  # for the end of its output, once it is dead
        self._mute: Timer | None = None  # for its death, once it has closed its stdout
        self._debugger: Task[Gone] | None = None  # that holds the end of a process of this machine
        if isinstance(process, LocalProcess):
            loop.register(process.pidfd, EPOLLIN, self._has_died)

    def hang_up(self) -> None:
        """Ask it to end: close its pipes, SIGHUP to its group. Only a command's output is read to its end."""
        if self._is_line:
            self.pipes.close()
        else:
            self.pipes.close_stdin()
        if not self._is_told:
            self.signal(signal.SIGHUP)
        self._end_if_over()

    def force_kill(self) -> None:
        """Kill it and its group at once; of a detached job the command."""
        if self._is_attached:
            self.process.signal(carried(signal.SIGKILL))
        else:
            self._kill()

    def signal(self, number: int) -> None:
        """Send a signal to its group; of a detached job to the command."""
        is_sent = self.process.signal(carried(number) if self._is_attached else number)
        if not is_sent and isinstance(self.process, LocalProcess) and self.end is None:
            why = f"its process {self.process.pid} runs as {self.process.owner} by now, and may not be signalled"
            self._report(Refused(self.slot, f"{signal_name(number)} is refused: {why}"))

    def died(self, end: Event) -> None:
        """Note that it is dead, or never was; what it wrote may still be in its pipes."""
        self.end = end
        if isinstance(end, NotCreated):
            self.pipes.close()
        self.pipes.read_without_pause()
        self._end_if_over()
        if not self._is_over:
            deadline = self._loop.now + self._exit_grace() + self.process.grace_s
            self._grace = self._loop.at(deadline, self._read_rest)

    def output_ended(self) -> None:
        """End a process that is dead; a line agent that lives on without stdout can finish nothing any more."""
        if self.pipes.stdout == CLOSED and self._is_line and self._mute is None:
            self._mute = self._loop.at(self._loop.now + self._exit_grace(), self._kill_mute)
        self._end_if_over()

    @property
    def is_left(self) -> bool:
        """Return whether we gave it up, since it may not be killed."""
        return isinstance(self.end, Gone) and self.end.left

    @property
    def is_line_agent(self) -> bool:
        """Return whether it works line by line, for more than one job."""
        return self._is_line and not self._is_attached

    @property
    def is_quiet(self) -> bool:
        """Return whether it lives, as far as we know, and is on no other host on which it was not started yet."""
        return self.end is None and self._debugger is None and self.process.pid > 0

    def freeze(self) -> None:
        """Neither read nor write, nor notice its end, until `thaw`."""
        self.pipes.freeze()
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None
        if isinstance(self.process, LocalProcess):
            self._loop.unregister(self.process.pidfd)

    def thaw(self) -> None:
        """Go on where `freeze` stopped."""
        if isinstance(self.process, LocalProcess):
            self._loop.register(self.process.pidfd, EPOLLIN, self._has_died)
        self.pipes.thaw()
        self.output_ended()

    def snapshot(self) -> dict[str, Any]:
        """Return what another program needs to go on with it: JSON, with the numbers of descriptors."""
        pipes, process = self.pipes, self.process
        ours = {"pidfd": process.pidfd} if isinstance(process, LocalProcess) else {"remote": process.id}
        return ours | {
            "slot": self.slot, "type": self.type, "is_line": self._is_line, "pid": process.pid,
            "is_child": not isinstance(process, LocalProcess) or process.is_child,
            "ends": [pipes.stdin, pipes.stdout, pipes.stderr], "unsent": bytes(pipes.unsent).decode("latin-1"),
        }  # fmt: skip

    def abandon(self) -> None:
        """Close its pipes and report nothing of it any more."""
        self._is_over = True
        self.pipes.close()
        if isinstance(self.process, LocalProcess):
            self._loop.unregister(self.process.pidfd)
        if self._debugger is not None:
            self._debugger.stop()

    def _has_died(self, _mask: int) -> None:
        """Note that a process of this machine is dead, as soon as its parent can know how."""
        assert isinstance(self.process, LocalProcess)
        self._loop.unregister(self.process.pidfd)  # it stays readable, and open for the reaping
        end = self.process.how_it_ended(self.slot)
        if end is not None:
            self.died(end)
            return
        log.warning("slot %d: process %d has ended, but a debugger holds it", self.slot, self.process.pid)
        self._debugger = Task(self._loop, self._await_debugger(self.process), self.died).start()

    def _await_debugger(self, process: LocalProcess) -> Steps[Gone]:
        """Wait until a debugger lets the parent of a dead process know how it ended."""
        end = None
        while end is None:
            yield Until(self._loop.now + TRACED_S)
            end = process.how_it_ended(self.slot)
        return end

    def _read_rest(self) -> None:
        """Read what is buffered, though another process still holds the pipes, and end it."""
        self.pipes.read_rest()
        self.pipes.close()
        self._end_if_over()

    def _kill_mute(self) -> None:
        if self.end is None and not self._is_over:
            log.warning("slot %d has closed its stdout and lives on: killed", self.slot)
            self._kill()

    def _kill(self) -> None:
        """Kill the process and its group; report Gone with `left` if the kernel refuses that."""
        if self.end is None and not self.process.kill() and isinstance(self.process, LocalProcess):
            self._loop.unregister(self.process.pidfd)
            self.end = Gone(self.slot, why=left_in_words(self.process), left=True)
            self._read_rest()

    def _end_if_over(self) -> None:
        """Reap it if it is dead and its output has ended, after killing what is left of its group."""
        if self.end is None or self._is_over or (self.pipes.stdout, self.pipes.stderr) != (CLOSED, CLOSED):
            return
        self._is_over = True
        if self._grace is not None:
            self._grace.cancel()
        self.pipes.close_stdin()
        if not self.is_left:
            self.process.kill_group()
            self.process.reap()
        self._over(self.slot, read_end(self.end) if self._is_attached else self.end)


class LineAgent(NamedTuple):
    """An agent that may be another daemon's after us; descriptors of stdin, stdout, stderr and its pidfd."""

    slot: int
    type: str
    pid: int
    fds: list[int]


class Processes:
    """All processes, by slot. `report` is called from within `spawn` and `kill` too, so it should only take a note."""

    def __init__(
        self, loop: Loop, config: Config, agents_path: Sequence[str], on_output: OnOutput, on_errors: OnErrors,
        on_capture: OnCapture, report: Callable[[Event], None], copies: str = "",
        snapshot: Mapping[str, Any] | None = None, marks: Marks | None = None,
    ) -> None:  # fmt: skip
        """Have no process yet; with `snapshot` those of a program that was executed before us, frozen.

        `copies` is where programs of types with canary agents are copied to, empty: nowhere. The byte of its slot in
        `marks` is cleared before anything is written to an agent.
        """
        self._config, self._loop, self._report = config, loop, report
        self._outputs = Outputs(loop, on_output, on_errors, on_capture, report, self._output_ended, marks)
        own = open_more_files()
        files = own if snapshot is None else tuple(snapshot.get("files") or own)  # before any program of ours raised it
        self._around = Surroundings(os.environ, tuple(agents_path), files)
        self._templates = SpawnTemplates(config, self._around)
        self._children: dict[int, Child] = {}
        self._counted: Counted = {}  # bytes of processes that are over
        self._programs = ProgramFiles(config, self._around, copies)
        self._ssh_hosts: dict[str, SshHost] = {}
        self._retired: list[SshHost] = []  # under settings of before, which some agents still use
        self._left = LeftProcesses(loop, () if snapshot is None else snapshot.get("left", ()))
        if snapshot is not None:
            self._restore(snapshot)
        keep_descriptors()
        for name, host in ssh_hosts(config).items():
            if name not in self._ssh_hosts:
                self._ssh_hosts[name] = SshHost(loop, name, host, self._host_reports)

    def spawn(self, spawn: Spawn) -> None:
        """Start the process of a slot; reports Created or NotCreated, later if that is on another host."""
        if spawn.slot in self._children:
            raise BugError(f"slot {spawn.slot} has a process already; its Gone must come before a Spawn")
        host, is_line = self._ssh_hosts.get(spawn.host), self._config.agents[spawn.type].kind == "line"
        try:
            process, ends = self._start(spawn) if host is None else self._start_over_ssh(host, spawn)
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            has_begun = isinstance(error, NoPidfdError)  # and its end could not have been noticed
            refusal = NotCreated(
                spawn.slot, reason(self._config, spawn, error), number == errno.E2BIG and spawn.argv is not None,
                lost=has_begun, is_machines_fault=number in SHORTAGES and not has_begun,
                is_busy=number == errno.ETXTBSY, code=start_status(error),
            )  # fmt: skip
            self._report(refusal)
            return
        child = self._add(spawn.slot, spawn.type, is_line, process, ends, spawn.keeper)
        if host is None:
            child.spawn = spawn
            self._started(spawn)

    def _add(
        self, slot: int, type: str, is_line: bool, process: LocalProcess | RemoteProcess, ends: Ends,
        keeper: Keeper | None = None,
    ) -> Child:  # fmt: skip
        pipes = Pipes(self._outputs, slot, is_line, ends)
        child = self._children[slot] = Child(
            self._loop, slot, type, is_line, process, pipes, self._exit_grace, self._over, self._report, keeper
        )
        return child

    def _exit_grace(self) -> float:
        return self._config.scheduler.exit_grace

    def begin(
        self, spawn: Spawn, started: Callable[[], None], died: Callable[[Event], None]
    ) -> tuple[LocalProcess | RemoteProcess, Ends]:
        """Start a process that is no slot's; one of another host calls back. Errors: OSError, ValueError."""
        if (host := self._ssh_hosts.get(spawn.host)) is None:
            return start(self._templates.spec(spawn), None)
        return host.start(spawn, self._config.agents[spawn.type], started, died)

    def send(self, send: Send) -> None:
        """Write to an agent; harmless when it is gone."""
        if child := self._children.get(send.slot):
            child.pipes.write(send.data)

    def kill(self, kill: Kill) -> None:
        """Ask a process to end; harmless when it is gone."""
        if child := self._children.get(kill.slot):
            child.hang_up()

    def force_kill(self, force: ForceKill) -> None:
        """Kill a process and its group at once; harmless when it is gone."""
        if child := self._children.get(force.slot):
            child.force_kill()

    def let_go(self, effect: LetGo) -> None:
        """Kill the process that is attached to a detached job, which goes on."""
        if child := self._children.get(effect.slot):
            child.process.kill()

    def signal(self, effect: Signal) -> None:
        """Send a signal to the process group of an agent; harmless when it is gone."""
        if child := self._children.get(effect.slot):
            child.signal(effect.number)

    def reload(self, config: Config) -> None:
        """Start processes by another configuration from now on; those of before live on, as hosts of theirs do."""
        self._config = config
        self._templates = SpawnTemplates(config, self._around)
        self._programs.reload(config)
        hosts = ssh_hosts(config)
        self._retired = [host for host in self._retired if not host.is_over]
        for name, host in list(self._ssh_hosts.items()):
            if name not in hosts or host.settings != settings_of(name, hosts[name]):
                self._retire(name)
            else:
                host.reread()
        for name in hosts.keys() - self._ssh_hosts.keys():
            self._ssh_hosts[name] = SshHost(self._loop, name, hosts[name], self._host_reports)

    def _retire(self, name: str) -> None:
        """Start nothing more over the connections of a host; its agents live on."""
        host = self._ssh_hosts.pop(name)
        self._retired.append(host)
        host.retire()

    def _host_reports(self, event: Event) -> None:
        """Report the event of a host over SSH; one that has moved is connected anew."""
        if isinstance(event, HostMoved):
            settings = self._ssh_hosts[event.host].settings
            self._retire(event.host)
            self._ssh_hosts[event.host] = SshHost(self._loop, event.host, settings, self._host_reports)
        self._report(event)

    def check_programs(self) -> None:
        """Report Replaced or ProgramFound for each type whose program file was replaced; looks at every file."""
        self._templates.forget()
        for event in self._programs.changes():
            self._report(event)

    def take_counted(self) -> Counted:
        """Return the bytes sent and received since the last call, for drover metrics."""
        for child in self._children.values():
            self._count_bytes(child)
        counted, self._counted = self._counted, {}
        return counted

    def troubles(self) -> list[dict[str, Any]]:
        """Return which processes are left, since we may not end them."""
        return self._left.troubles()

    # ---- another program that takes over

    @property
    def _every_host(self) -> list[SshHost]:
        return [*self._ssh_hosts.values(), *self._retired]

    def obstacle(self) -> str:
        """Return what is under way that cannot be handed over yet; nothing if all can."""
        for child in self._children.values():
            if not child.is_quiet:
                return f"slot {child.slot}, agent {child.type}: its process has ended, or is being started"
        return next((why for host in self._every_host if (why := host.obstacle())), "")

    def freeze(self) -> None:
        """Neither read nor write, nor notice an end, until `thaw`; agents go on, and block on full pipes at most."""
        for child in self._children.values():
            child.freeze()
        for host in self._every_host:
            host.freeze()

    def thaw(self) -> None:
        """Go on where `freeze` stopped."""
        for host in self._every_host:
            host.thaw()
        for child in list(self._children.values()):
            child.thaw()

    def snapshot(self) -> dict[str, Any]:
        """Return what another program needs to go on with all of them: JSON, with the numbers of descriptors."""
        return {
            "children": [child.snapshot() for child in self._children.values()],
            "files": self._around.files,
            "programs": self._programs.snapshot(),
            "left": self._left.snapshot(),
            "ssh": [host.snapshot() for host in self._ssh_hosts.values()],
            "retired": [host.snapshot() for host in self._retired],
        }

    @property
    def fds(self) -> list[int]:
        """Return the descriptors that `snapshot` names."""
        return [fd for _, fds in self.fds_by_owner() for fd in fds]

    def fds_by_owner(self) -> list[tuple[str, list[int]]]:
        """Return the descriptors that `snapshot` names by owner: `pPID` for a process of this machine, else `sSLOT`."""
        found = []
        for child in self._children.values():
            if isinstance(child.process, LocalProcess):
                found.append((f"p{child.process.pid}", [*child.pipes.fds, child.process.pidfd]))
            else:
                found.append((f"s{child.slot}", child.pipes.fds))
        return found + [(f"p{host.pid}", host.fds) for host in self._every_host if host.fds]

    def line_agents(self) -> list["LineAgent"]:
        """Return the line agents of this machine that live, and may be other daemons' after us."""
        found = []
        for child in self._children.values():
            process, pipes = child.process, child.pipes
            is_whole = child.is_quiet and CLOSED not in (pipes.stdin, pipes.stdout, pipes.stderr)
            if isinstance(process, LocalProcess) and child.is_line_agent and is_whole:
                found.append(LineAgent(child.slot, child.type, process.pid, [*pipes.fds, process.pidfd]))
        return found

    def program_of(self, name: str) -> "Fingerprint | None":
        """Return the program file of a type, as it was when an agent was started from it."""
        return self._programs.seen(name)

    def _restore(self, snapshot: Mapping[str, Any]) -> None:
        self._programs.restore(snapshot.get("programs", {}))
        self._ssh_hosts = {each["name"]: self._restored_host(each) for each in snapshot["ssh"]}
        self._retired = [self._restored_host(each) for each in snapshot["retired"]]
        remote = {process.slot: process for host in self._every_host for process in host.processes}
        for each in snapshot["children"]:
            process: LocalProcess | RemoteProcess
            slot, (stdin, stdout, stderr) = int(each["slot"]), each["ends"]
            process = restored(each) if "pidfd" in each else remote[slot]
            child = self._add(slot, each["type"], bool(each["is_line"]), process, (stdin, stdout, stderr))
            child.pipes.send_later(each["unsent"].encode("latin-1"))
            child.freeze()

    def _restored_host(self, snapshot: Mapping[str, Any]) -> SshHost:
        return SshHost.restored(self._loop, snapshot, self._host_reports, self._died)

    def _died(self, slot: int, end: Event) -> None:
        self._children[slot].died(end)

    def abandon_remote(self) -> None:
        """Give up all agents on other hosts: they are lost, and end by themselves where they cannot be reached."""
        for host in self._every_host:
            host.give_up()

    def close(self) -> None:
        """Kill everything at once and report nothing; at the very end."""
        for host in self._every_host:
            host.close()
        local = {each.process: each.type for each in self._children.values() if isinstance(each.process, LocalProcess)}
        for process in local:
            process.kill()
        for child in self._children.values():
            child.abandon()
        for process, type in local.items():
            if not is_readable(process.pidfd, LAST_WAIT_S):
                log.warning("agent %s: process %d of %s has not ended: it is left", type, process.pid, process.owner)
            process.reap()
        self._left.close()
        self._children.clear()

    def _start(self, spawn: Spawn) -> tuple[LocalProcess, Ends]:
        self._programs.watch(spawn.type)
        program = self._programs.copy_for(spawn) if spawn.program else ""
        try:
            return start(self._templates.spec(spawn, program), spawn.stdin)
        except (FileNotFoundError, PermissionError):  # it may be elsewhere by now
            self._templates.forget()
            return start(self._templates.spec(spawn, program), spawn.stdin)

    def _start_over_ssh(self, host: SshHost, spawn: Spawn) -> tuple[RemoteProcess, Ends]:
        died = partial(self._died, spawn.slot)
        return host.start(spawn, self._config.agents[spawn.type], lambda: self._started(spawn), died)

    def _started(self, spawn: Spawn) -> None:
        child = self._children[spawn.slot]
        self._report(Created(spawn.slot, child.process.pid))
        if child.pipes.stdout != CLOSED:  # else it was told to end before it began
            child.pipes.open(spawn.stdin or b"")

    def _output_ended(self, slot: int) -> None:
        if child := self._children.get(slot):
            child.output_ended()

    def _count_bytes(self, child: Child) -> None:
        for name, count in zip((SENT, RECEIVED), child.pipes.take_bytes(), strict=True):
            if count:
                add(self._counted, (name, child.type), count)

    def _over(self, slot: int, end: Event) -> None:
        child = self._children.pop(slot)
        self._count_bytes(child)
        if child.spawn is not None and isinstance(end, Gone):
            end = self._explained(child.spawn, end)
        if child.is_left and isinstance(child.process, LocalProcess):
            self._left.add(child.process, child.type)
        elif isinstance(child.process, LocalProcess) and child.process.has_group:
            self._loop.at(self._loop.now + DEATH_S, partial(self._left.add_group, child.process.pid, child.type))
        self._report(end)

    def _explained(self, spawn: Spawn, end: Gone) -> Gone:
        """Return an end with what kept the program from running, or which process of a detached job is left."""
        if end.code in (NOT_STARTED, NOT_FOUND):
            return replace(end, why=self._templates.why_not_run(spawn, end.code))
        agent = self._config.agents.get(spawn.type)
        if not end.left or spawn.keeper is None or agent is None or prefix_of(self._config, spawn.host):
            return end
        process = kept_command(spawn.keeper, agent.user, f"{spawn.job}.{spawn.attempt}")
        if process is None:
            return end
        self._left.add(process, spawn.type)
        return replace(end, why=left_in_words(process))
