"""The processes of the slots, on this machine and on hosts over SSH, from their start to their end.

Decides nothing about slots: what agents write goes to callbacks (pipes.py), all else is reported as events. Refuses to
know the protocol.

A process has ended when it is dead *and* its output has ended; a grandchild may hold the pipes open, so the second has
a deadline (`exit_grace`). What is particular to a process of this machine or of another is in local_process.py and
ssh_host.py.
"""

import errno
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from select import EPOLLIN

from scheduler.drivers.local_process import TRACED_S, LocalProcess, NoPidfdError, Started, start
from scheduler.drivers.loop import Loop
from scheduler.drivers.pipes import CLOSED, Child, OnCapture, OnErrors, OnOutput, Pipes
from scheduler.drivers.spawn import SHORTAGES, SpawnTemplates, Surroundings, fingerprint, reason
from scheduler.drivers.ssh_host import SshHost, settings_of, ssh_hosts
from scheduler.drivers.steps import Steps, Task, Until, ready
from scheduler.drivers.system import open_more_files
from scheduler.errors import BugError
from scheduler.model.config import Config, Host
from scheduler.model.events import Created, Event, ForceKill, Kill, NotCreated, Replaced, Send, Signal, Spawn

log = logging.getLogger(__name__)


class Processes:
    """All processes, by slot. `report` is called from within `spawn` and `kill` too, so it should only take a note."""

    def __init__(
        self,
        loop: Loop,
        config: Config,
        agents_path: Sequence[str],
        on_output: OnOutput,
        on_errors: OnErrors,
        on_capture: OnCapture,
        report: Callable[[Event], None],
    ) -> None:
        self._config, self._loop, self._report = config, loop, report
        self._pipes = Pipes(loop, on_output, on_errors, on_capture, report, self._output_ended)
        self._around = Surroundings(os.environ, tuple(agents_path), open_more_files())
        self._templates = SpawnTemplates(config, self._around)
        self._children: dict[int, Child] = {}
        self._programs: dict[str, tuple[str, int, int, int] | None] = {}
        self._ssh_hosts = {name: SshHost(loop, name, host, report) for name, host in ssh_hosts(config).items()}
        self._retired: list[SshHost] = []  # under settings of before, which some agents still use

    def spawn(self, spawn: Spawn) -> None:
        """Start the process of a slot; reports Created or NotCreated, later if that is on another host."""
        if spawn.slot in self._children:
            raise BugError(f"slot {spawn.slot} has a process already; its Gone must come before a Spawn")
        if (host := self._ssh_hosts.get(spawn.host)) is not None:
            self._spawn_over_ssh(host, spawn)
        else:
            self._spawn_here(spawn)

    def send(self, send: Send) -> None:
        """Write to an agent; harmless when it is gone."""
        if child := self._children.get(send.slot):
            self._pipes.write(child, send.data)

    def kill(self, kill: Kill) -> None:
        """Ask a process to end: close its pipes, SIGHUP to its group. Only a command's output is read to its end."""
        if child := self._children.get(kill.slot):
            if child.is_line:
                self._pipes.close(child)
            else:
                self._pipes.close_stdin(child)
            child.process.signal(signal.SIGHUP)
            self._end_if_over(child)

    def force_kill(self, force: ForceKill) -> None:
        """Kill a process and its group at once; harmless when it is gone."""
        if child := self._children.get(force.slot):
            child.process.kill()

    def signal(self, command: Signal) -> None:
        """Send a signal to the process group of an agent; harmless when it is gone."""
        if child := self._children.get(command.slot):
            child.process.signal(command.number)

    def reload(self, config: Config) -> None:
        """Start processes by another configuration from now on; those of before live on."""
        old, self._config = self._config, config
        self._templates = SpawnTemplates(config, self._around)
        same = [name for name in self._programs if config.agents.get(name) == old.agents[name]]
        self._programs = {name: self._programs[name] for name in same}
        self._set_ssh_hosts(ssh_hosts(config))

    def _set_ssh_hosts(self, hosts: Mapping[str, Host]) -> None:
        """Replace hosts whose settings have changed; agents that were started under the old ones live on."""
        self._retired = [host for host in self._retired if not host.is_over]
        for name, host in list(self._ssh_hosts.items()):
            if name not in hosts or host.settings != settings_of(name, hosts[name]):
                del self._ssh_hosts[name]
                self._retired.append(host)
                host.retire()
        for name in hosts.keys() - self._ssh_hosts.keys():
            self._ssh_hosts[name] = SshHost(self._loop, name, hosts[name], self._report)

    def check_programs(self) -> None:
        """Report Replaced for each type whose program file was replaced; looks at every file."""
        self._templates.forget()
        for name, old in self._programs.items():
            agent = self._config.agents.get(name)
            new = fingerprint(agent, self._around) if agent else None
            if new is not None and new != old:  # None may be half of a replacement: look again later
                self._programs[name] = new
                self._report(Replaced(name))

    def abandon_remote(self) -> None:
        """Give up all agents on other hosts: they are lost, and end by themselves where they cannot be reached."""
        for host in (*self._ssh_hosts.values(), *self._retired):
            host.give_up()

    def close(self) -> None:
        """Kill everything at once and report nothing; at the very end."""
        for host in (*self._ssh_hosts.values(), *self._retired):
            host.close()
        local = [child.process for child in self._children.values() if isinstance(child.process, LocalProcess)]
        for process in local:
            process.kill()
        for child in self._children.values():
            self._pipes.close(child)
            if child.awaiting_end is not None:
                child.awaiting_end.stop()
        for process in local:
            process.await_death()
            process.reap()
        self._children.clear()

    def _spawn_here(self, spawn: Spawn) -> None:
        agent = self._config.agents[spawn.type]
        if spawn.type not in self._programs:
            self._programs[spawn.type] = fingerprint(agent, self._around)
        try:
            started = self._start(spawn)
        except (OSError, ValueError) as error:
            self._report(self._not_created(spawn, error))
            return
        child = self._children[spawn.slot] = Child(spawn.slot, agent.kind == "line")
        process = child.process = LocalProcess(started)
        child.stdin, child.stdout, child.stderr = started.stdin, started.stdout, started.stderr
        child.awaiting_end = Task(self._loop, self._await_end(child, process)).start()
        self._started(child, spawn.stdin or b"")

    def _spawn_over_ssh(self, host: SshHost, spawn: Spawn) -> None:
        agent = self._config.agents[spawn.type]
        child = self._children[spawn.slot] = Child(spawn.slot, agent.kind == "line")
        try:
            process = child.process = host.start(
                spawn, agent, lambda: self._started(child, spawn.stdin or b""), lambda end: self._ended(child, end)
            )
        except OSError as error:
            del self._children[spawn.slot]
            self._report(self._not_created(spawn, error))
            return
        child.stdin, child.stdout, child.stderr = process.ends.stdin, process.ends.stdout, process.ends.stderr

    def _start(self, spawn: Spawn) -> Started:
        try:
            return start(self._templates.spec(spawn))
        except (FileNotFoundError, PermissionError):  # it may be elsewhere by now
            self._templates.forget()
            return start(self._templates.spec(spawn))

    def _not_created(self, spawn: Spawn, error: OSError | ValueError) -> NotCreated:
        """Return whose fault it is; a process whose end could not have been noticed had begun."""
        number = error.errno if isinstance(error, OSError) else None
        has_begun = isinstance(error, NoPidfdError)
        return NotCreated(
            spawn.slot,
            reason(self._config, spawn, error),
            is_items_fault=number == errno.E2BIG and spawn.argv is not None,
            lost=has_begun,
            is_machines_fault=number in SHORTAGES and not has_begun,
        )

    def _started(self, child: Child, stdin: bytes) -> None:
        self._report(Created(child.slot, child.process.pid))
        if child.stdout != CLOSED:  # else it was told to end before it began
            self._pipes.open(child, stdin)

    def _await_end(self, child: Child, process: LocalProcess) -> Steps[None]:
        """Wait until a process is dead, and until its parent can know how, which a debugger may put off."""
        yield from ready(process.pidfd, EPOLLIN)  # it stays readable, and open for the reaping
        end = process.how_it_ended(child.slot)
        if end is None:
            log.warning("slot %d: process %d has ended, but a debugger holds it", child.slot, process.pid)
        while end is None:
            yield Until(self._loop.now + TRACED_S)
            end = process.how_it_ended(child.slot)
        self._ended(child, end)

    def _ended(self, child: Child, end: Event) -> None:
        """Note that it is dead, or never was; what it wrote may still be in its pipes."""
        child.end = end
        if isinstance(end, NotCreated):
            self._pipes.close(child)
        self._pipes.resume(child)
        self._end_if_over(child)
        if child.slot in self._children:
            deadline = self._loop.now + self._config.scheduler.exit_grace + child.process.grace_s
            child.grace = self._loop.at(deadline, lambda: self._read_rest(child))

    def _read_rest(self, child: Child) -> None:
        """Read what is buffered, though another process still holds the pipes, and end it."""
        self._pipes.read_rest(child)
        self._pipes.close(child)
        self._end_if_over(child)

    def _output_ended(self, child: Child) -> None:
        """End a process that is dead; a line agent that lives on without stdout can finish nothing any more."""
        if child.stdout == CLOSED and child.is_line and child.mute is None:
            child.mute = self._loop.at(
                self._loop.now + self._config.scheduler.exit_grace, lambda: self._kill_mute(child)
            )
        self._end_if_over(child)

    def _kill_mute(self, child: Child) -> None:
        if child.end is None and self._children.get(child.slot) is child:
            log.warning("slot %d has closed its stdout and lives on: killed", child.slot)
            child.process.kill()

    def _end_if_over(self, child: Child) -> None:
        """Reap a child that is dead and whose output has ended, kill what is left of its group, report Gone."""
        is_read = child.stdout == child.stderr == CLOSED
        if child.end is None or not is_read or self._children.get(child.slot) is not child:
            return
        if child.grace is not None:
            child.grace.cancel()
        child.process.kill_group()
        self._pipes.close(child)
        child.process.reap()
        del self._children[child.slot]
        self._report(child.end)
