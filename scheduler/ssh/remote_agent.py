"""The life of one remote agent: a session is opened, the shim tells its pid, a warden guards it, it runs, it ends.

It is told of at most three times: that it was not started; or that it was, and then how it ended or that it was lost.
What it said may still be on its way through the pipes by then, and ends with them. What is left of its process group
after that is killed; who fled from the group may hold the pipes, so that has a deadline.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import paramiko

from scheduler.drivers.loop import Timer
from scheduler.model.ssh_protocol import Ended, Lost, Note, NotStarted, Report, SshSettings, Started
from scheduler.ssh.connect import EXIT_SIGNAL, ON_EXIT
from scheduler.ssh.control_session import ControlSession
from scheduler.ssh.mailbox import BufferEvent
from scheduler.ssh.paramiko_adapters import ParamikoSocket
from scheduler.ssh.relay import BROKEN, Relay, Stream
from scheduler.ssh.remote_scripts import GO, MARK, NOISE_BYTES

LAST_WORDS: Final = 300  # of what a shim said that did not start
LOOKS: Final = 5  # at what is left of a group that was killed, one a second


class RemoteAgent:
    """One remote agent. Its room on its connection is free again when `left` is called."""

    def __init__(
        self,
        id: int,
        command: bytes,
        fds: tuple[int, ...],
        relay: Relay,
        settings: SshSettings,
        tell: Callable[[Report], None],
        left: Callable[["RemoteAgent"], None],
    ) -> None:
        self.id, self.command, self._fds = id, command, fds
        self._relay, self._settings, self._tell, self._left = relay, settings, tell, left
        self.guard: ControlSession | None = None
        self.channel: paramiko.Channel | None = None
        self.is_told = False  # that it was not started, has ended or is lost
        self._pid = 0
        self._is_running = False
        self._is_drained = False  # its channel has ended
        self._has_killed = False  # we asked for it
        self._is_asking = False  # its guard, whether that killed it
        self._said = {"out": b"", "err": b""}
        self._wire: ParamikoSocket
        self._deadline: Timer | None = None

    # ---- its beginning

    def opened(self, channel: paramiko.Channel, wire: ParamikoSocket, guard: ControlSession, is_near: bool) -> None:
        """Go on: the shim is being started. A guard that is near gets what is said before the agent does."""
        self.channel = channel
        if self.is_told:
            self._abandon()
            return
        self._wire, self.guard = wire, guard
        channel.settimeout(0.0)
        bell = BufferEvent(self._relay.calls, lambda: self._await_mark(is_near))
        channel.in_buffer.set_event(bell)
        channel.in_stderr_buffer.set_event(bell)
        bell.set()

    def refuse(self, why: str, *, is_lost: bool = True) -> None:
        """Tell that it was not started, unless that was told; nobody is opening a session for it any more."""
        self._give_up(why, is_lost=is_lost)
        self._left(self)

    def signal(self, name: str) -> None:
        """Send a signal to its group; one that has not begun never will."""
        if self._is_running and self.guard is not None:
            self._has_killed |= name == "KILL"
            self.guard.signal(self._pid, name, lambda _answer: None)
        elif not self._is_running and not self.is_told:
            self._give_up("it was killed before it had started")
            self._abandon()

    def lose(self, why: str) -> None:
        """Its connection or its guard is gone, so it is dead or will be."""
        if self.channel is None:
            return  # the thread that opens a session for it will see
        if self._is_running:
            self._exited()  # it may have ended just before that
            self.guard = None
            self._tell_end(Lost(self.id, why))
            with suppress(*BROKEN):
                self.channel.close()
        elif not self.is_told:
            self._give_up(why, is_lost=True)
            self._abandon()

    def _await_mark(self, is_near: bool) -> None:
        assert self.channel is not None
        if self._is_running or self.is_told or self._pid:
            return
        ended = self.channel.closed or self.channel.eof_received
        for name, recv in (("out", self.channel.recv), ("err", self.channel.recv_stderr)):
            with suppress(*BROKEN):  # a TimeoutError: nothing there
                self._said[name] += recv(NOISE_BYTES)
        mark = MARK.search(self._said["out"])
        if mark is not None:
            self._pid = int(mark[1])
            self._be_guarded(is_near)
        elif ended or len(self._said["out"] + self._said["err"]) > NOISE_BYTES:
            self._give_up(self._why_not())
            self._abandon()

    def _be_guarded(self, is_near: bool) -> None:
        assert self.guard is not None
        if is_near:
            self.guard.guard(self._pid, lambda _answer: None)
            self._go()
        else:
            self.guard.guard(self._pid, lambda _answer: self._go())

    def _go(self) -> None:
        if self.is_told or self.channel is None:
            return
        self._is_running = True
        self._tell(Started(self.id, self._pid))
        setattr(self.channel, ON_EXIT, BufferEvent(self._relay.calls, self._exited).set)
        fds, self._fds = self._fds, ()
        Stream(self._relay, self._wire, self.channel, fds[0], fds[1:], self._over).begin_direct(GO)

    def _why_not(self) -> str:
        text = (self._said["err"] or self._said["out"])[-LAST_WORDS:].decode("ascii", "backslashreplace").strip()
        return text or "its host ended the session without a word"

    def _give_up(self, why: str, *, is_lost: bool = False) -> None:
        if not self.is_told:
            self.is_told = True
            self._tell(NotStarted(self.id, why, is_lost=is_lost))
        for fd in self._fds:
            os.close(fd)
        self._fds = ()

    def _abandon(self) -> None:
        """Close the session of a shim, if there is one: it ends with its input."""
        if self.channel is not None:
            with suppress(*BROKEN):
                self.channel.close()
        self._left(self)

    # ---- its end

    def _exited(self) -> None:
        """Tell how it ended, if the host has said so, and wait for its output to end.

        One that was killed, but not by us, may have been killed by its guard: if so it is lost. The guard is asked,
        who does not answer any more then.
        """
        assert self.channel is not None
        signal = getattr(self.channel, EXIT_SIGNAL, None)
        if self.is_told or self._is_asking or (signal is None and self.channel.exit_status < 0):
            return
        report = Ended(self.id, None if signal is not None else self.channel.exit_status, signal)
        if signal == "KILL" and not self._has_killed and self.guard is not None:
            self._is_asking = True
            self.guard.signal(self._pid, "0", lambda _answer: self._tell_end(report))  # if not, it was the guard's end
            return
        self._tell_end(report)

    def _tell_end(self, report: Report) -> None:
        if self.is_told:
            return
        self.is_told = True
        self._tell(report)
        if self._is_drained:
            self._finish()
        else:
            self._deadline = self._relay.loop.at(self._relay.loop.now + self._settings.orphan_s, self._end_orphans)

    def _end_orphans(self) -> None:
        """Kill what is left of the group; if that does not end the output, end it."""
        if self.guard is not None:
            self.guard.signal(self._pid, "KILL", lambda _answer: None)
        self._deadline = self._relay.loop.at(self._relay.loop.now + self._settings.orphan_s, self._cut_off)

    def _cut_off(self) -> None:
        assert self.channel is not None
        with suppress(*BROKEN):
            self.channel.close()

    def _over(self) -> None:
        """Take the end of its channel: all that it said has been passed on."""
        assert self.channel is not None
        self._exited()
        self._is_drained = True
        if self.is_told:
            self._finish()
        elif self.channel.eof_received and not self._is_asking:
            self._tell_end(Lost(self.id, "its host did not say how it ended"))
        # else its connection or its guard is gone, and `lose` comes; or its guard is asked

    def _finish(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self.guard is not None:
            self.guard.end(self._pid, lambda answer: self._look(answer, LOOKS))
        self._left(self)

    def _look(self, answer: str, looks: int) -> None:
        """Look again at a group that was killed: it takes a moment to die, and zombies count as alive."""
        if answer == "gone":
            return
        if not looks:
            self._tell(Note(f"something is left of process group {self._pid} though it was killed"))
            return
        self._relay.loop.at(self._relay.loop.now + 1.0, lambda: self._strike(looks - 1))

    def _strike(self, looks: int) -> None:
        if self.guard is not None:
            self.guard.signal(self._pid, "0", lambda answer: self._look(answer, looks))
