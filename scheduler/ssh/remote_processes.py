"""The agents of a host: how each begins, ends and is lost.

An agent begins as the shim: sh prints its pid, and reads a script that waits for a line before it becomes the agent. By
then the control session (control_session.py) guards that pid, so no agent runs unguarded. The reports are NotStarted;
or Started, and then Ended, Lost or Left. Its last output may come later. What remains of its process group is killed
after that, and then what has left the group.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import paramiko

from scheduler.drivers.loop import Callback, Steps, Task, Until
from scheduler.drivers.os_calls import close_all
from scheduler.drivers.ssh_protocol import Ended, Left, Lost, Note, NotStarted, Report, SshSettings, Started
from scheduler.errors import WorldError, reason
from scheduler.ssh.connection_troubles import who
from scheduler.ssh.control_session import Answer, ControlSession
from scheduler.ssh.login_output import MOST_BYTES, LoginOutput, endless, printed_and_waits
from scheduler.ssh.paramiko_io import (
    BROKEN,
    PIECE_BYTES,
    RETRY_S,
    WINDOW_BYTES,
    BufferEvent,
    ParamikoSocket,
    Relay,
    Stream,
)
from scheduler.ssh.remote_scripts import RemotePid, RemoteScript, is_ready, read_reply
from scheduler.ssh.transport import EXIT_SIGNAL, ON_EXIT

NOISE_BYTES: Final = 8192  # of the standard error of a shim
MESSAGE_BYTES: Final = 300  # of the output of a shim that failed
CHECKS: Final = 6  # whether a group that was killed is gone, one a second
GO: Final = b"\n"

Found = TypeVar("Found")


class RemoteAgent:
    """One remote agent. Its place on its connection is free again when `release` is called."""

    def __init__(
        self, id: int, script: RemoteScript, fds: tuple[int, ...], relay: Relay, settings: SshSettings,
        report: Callable[[Report], None], release: Callable[["RemoteAgent"], None],
    ) -> None:  # fmt: skip
        self.id, self._script, self._fds = id, script, fds
        self._relay, self._loop, self._settings = relay, relay.loop, settings
        self._report, self._release = report, release
        self.control: ControlSession | None = None
        self._channel: paramiko.Channel | None = None  # since the host has opened a session
        self.is_over = False  # NotStarted, Ended, Lost or Left was reported
        self._pid = 0
        self._is_running = False
        self._is_drained = False  # its channel has ended, and all output was passed on
        self._was_killed = False  # by a request of the supervisor
        self._is_left = False  # it may not be killed
        self._why_lost = ""
        self._resume: Callable[[Any], None] = lambda _value: None
        self._change = Callback(self._await_change)  # steps wait for it until `_notify` is called
        self._task: Task[None] | None = None

    # ---- called by the connection pool, and for requests of the supervisor

    def open_session(self, transport: paramiko.Transport, limit_s: float) -> None:
        """Open a session and start the shim; blocks. Errors: one of BROKEN, or WorldError once it has a session."""
        self._channel = transport.open_session(WINDOW_BYTES, timeout=limit_s)  # it can be closed from now on
        try:
            self._channel.exec_command(self._script.command)
        except BROKEN as error:
            raise WorldError(f"the host runs no command: {reason(error)}") from error

    def session_opened(self, sock: ParamikoSocket, control: ControlSession) -> None:
        """Go on: the shim starts."""
        if self.is_over:
            self._abandon()
            return
        self.control = control
        self._task = Task(self._loop, self._life(sock, control)).start()

    def refuse(self, why: str) -> None:
        """Report that it was not started, unless it is over; no session is being opened for it any more."""
        self._not_started(why, is_lost=True)
        self._release(self)

    def signal(self, name: str) -> None:
        """Send a signal to its process group; an agent that does not run yet never will."""
        if self._is_running and self.control is not None:
            self._was_killed |= name == "KILL"
            answer = self.control.signal(self._pid, name, lambda: self._signalled(name, answer))
        elif not self._is_running and not self.is_over:
            self._not_started("it was killed before it had started")
            self._abandon()

    def lose(self, why: str, guard: ControlSession | None = None) -> None:
        """Note that its connection or control session is gone; a guard that is still there kills what runs."""
        if self._channel is None:
            return  # the thread that opens a session for it will see
        if self._is_running:
            self._why_lost, self.control = why, guard
            self._notify()
            self._close_channel()
        elif not self.is_over:
            self._not_started(why, is_lost=True)
            self._abandon()

    def _signalled(self, name: str, answer: Answer) -> None:
        if answer.text != "refused" or self.is_over:
            return
        if name == "KILL":
            self._is_left = True
            self._notify()
        else:
            self._report(Note(f"SIG{name} is refused: process {self._pid} runs as another user by now"))

    # ---- its life

    def _life(self, sock: ParamikoSocket, control: ControlSession) -> Steps[None]:
        channel: paramiko.Channel = self._channel
        event = BufferEvent(self._relay.calls, self._notify)
        channel.settimeout(0.0)
        channel.in_buffer.set_event(event)
        channel.in_stderr_buffer.set_event(event)
        setattr(channel, ON_EXIT, event.set)
        process = yield from self._read(LoginOutput(self._script.word, read_reply), channel, control)
        if process is None:
            return
        pid = self._pid = process.pid
        added = control.add(process, self._notify)
        yield from self._send_script(sock, channel)
        if not (yield from self._read(LoginOutput(self._script.word, is_ready), channel, control)):
            return
        if not (yield from self._is_guarded(process, added, control)):
            return
        self._is_running = True
        self._report(Started(self.id, pid))
        fds, self._fds = self._fds, ()
        Stream(self._relay, sock, channel, fds[0], fds[1:], self._drained).begin_direct(GO)
        end = yield from self._await_end(channel, pid)
        self.is_over = True
        self._report(end)
        if isinstance(end, Left):
            self._close_channel()
        yield from self._await_output(pid)
        yield from self._end_group(pid)

    def _send_script(self, sock: ParamikoSocket, channel: paramiko.Channel) -> Steps[None]:
        """Send the script and the arguments, as far and as soon as the window allows."""
        unsent = memoryview(self._script.line)
        with suppress(*BROKEN):  # which `_read` sees
            while unsent:
                self._relay.cork(sock)
                try:
                    while unsent and not sock.is_full and channel.transport.clear_to_send.is_set():
                        unsent = unsent[channel.send(unsent) :]
                except TimeoutError:
                    pass
                if unsent:
                    yield Until(self._loop.now + RETRY_S)

    def _read(
        self, output: LoginOutput[Found], channel: paramiko.Channel, control: ControlSession
    ) -> Steps[Found | None]:
        """Return what is found in the output of the shim; None after NotStarted was reported."""
        err = b""
        deadline = self._loop.now + self._settings.answer_s
        timer = self._loop.at(deadline, self._notify)
        try:
            while True:
                has_ended = channel.closed or channel.eof_received
                err = (err + _received(channel.recv_stderr))[-NOISE_BYTES:]
                try:
                    found = output.add(_received(channel.recv))
                except WorldError as error:
                    control.fail(str(error))
                    return None
                if found is not None:
                    return found
                if has_ended:
                    self._shim_ended(err or output.beginning)
                    return None
                if output.is_too_much:
                    control.fail(endless(output, self._settings))
                    return None
                if output.count and self._loop.now >= deadline:
                    control.fail(printed_and_waits(output, self._settings.answer_s, self._settings))
                    return None
                yield self._change
        finally:
            timer.cancel()

    def _is_guarded(self, process: RemotePid, added: Answer, control: ControlSession) -> Steps[bool]:
        """Return whether the control session guards the shim; False after NotStarted was reported."""
        while not added.text:
            yield self._change
        if self.is_over:  # the request has failed, and with it the connection
            return False
        if added.text == "gone":
            text = f"there is no process {process.pid}, which it said it was: its address must lead to one machine"
            self._shim_ended(text.encode())
            return False
        if added.text != "added":
            control.fail(
                f"process {process.pid}, which a session was said to be, is another: its address must lead to one "
                f"machine, and login scripts of {who(self._settings)} must not change our output"
            )
            return False
        return True

    def _shim_ended(self, text: bytes) -> None:
        """Report that it was not started, and what its host said."""
        said = text[-MESSAGE_BYTES:].decode("ascii", "backslashreplace").strip()
        self._not_started(said or "its host ended the session without a word")
        self._abandon()

    def _await_end(self, channel: paramiko.Channel, pid: int) -> Steps[Ended | Left | Lost]:
        """Return how it ended once the host has reported that, or that it is lost, or left.

        An agent killed, but not by us, may have been killed by its control session when the lease ran out: then it is
        lost. So that session is asked; it does not answer if it was.
        """
        while not hasattr(channel, EXIT_SIGNAL) and channel.exit_status < 0:
            if self._why_lost:
                return Lost(self.id, self._why_lost)
            if self._is_left:
                return Left(self.id, pid)
            if self._is_drained and channel.eof_received:  # without that its connection is gone, and `lose` is called
                return Lost(self.id, "its host did not say how it ended")
            yield self._change
        signal: str | None = getattr(channel, EXIT_SIGNAL, None)
        end = Ended(self.id, channel.exit_status if signal is None else None, signal)
        if signal != "KILL" or self._was_killed:
            return end
        if self.control is not None:
            answer = self.control.signal(pid, "0", self._notify)
            while not answer.text and not self._why_lost:
                yield self._change
            if answer.text:
                return end
        return Lost(self.id, self._why_lost)

    def _await_output(self, pid: int) -> Steps[None]:
        """Wait until all output was passed on; at a deadline kill what holds the pipes, at the next cut it off."""
        yield from self._await_drained()
        if not self._is_drained and self.control is not None:
            self.control.signal(pid, "KILL")
        yield from self._await_drained()
        if not self._is_drained:
            self._close_channel()
        while not self._is_drained:
            yield self._change

    def _await_drained(self) -> Steps[None]:
        """Wait until all output was passed on, but no longer than `orphan_s`."""
        if self._is_drained:
            return
        deadline = self._loop.now + self._settings.orphan_s
        timer = self._loop.at(deadline, self._notify)
        while not self._is_drained and self._loop.now < deadline:
            yield self._change
        timer.cancel()

    def _end_group(self, pid: int) -> Steps[None]:
        """Kill what is left of its group, and check that it is gone: that takes a moment, as zombies count as alive."""
        control = self.control
        if control is None:
            self._release(self)
            return
        answer = control.signal(pid, "KILL", self._notify)
        self._release(self)
        for check in range(CHECKS):
            if check > 0:
                yield Until(self._loop.now + 1.0)
                answer = control.signal(pid, "KILL", self._notify)  # one in execve(2) has no environment for a moment
            while not answer.text:
                yield self._change
            if answer.text == "gone":
                control.sweep(lambda why: self._report(Note(why)))
                return
        self._report(Note(f"something is left of process group {pid} though it was killed"))

    def _notify(self) -> None:
        self._resume(None)

    def _await_change(self, resume: Callable[[Any], None]) -> None:
        self._resume = resume

    def _drained(self) -> None:
        self._is_drained = True
        self._notify()

    def _not_started(self, why: str, *, is_lost: bool = False) -> None:
        """Report that it was not started, unless it is over, and end its life."""
        if not self.is_over:
            self.is_over = True
            self._report(NotStarted(self.id, why, is_lost=is_lost))
        if self._task is not None:
            self._task.stop()
        close_all(self._fds)
        self._fds = ()

    def _abandon(self) -> None:
        """Close the session of a shim, if there is one: the shim ends with its input, and is guarded no longer."""
        self._close_channel()
        if self._pid and self.control is not None:
            self.control.signal(self._pid, "KILL")
        self._release(self)

    def _close_channel(self) -> None:
        if self._channel is not None:
            with suppress(*BROKEN):
                self._channel.close()


def _received(recv: Callable[[int], bytes]) -> bytes:
    """Return all that has come."""
    data = b""
    with suppress(*BROKEN):  # a TimeoutError: no more has come
        while len(data) <= MOST_BYTES and (piece := recv(PIECE_BYTES)):
            data += piece
    return data
