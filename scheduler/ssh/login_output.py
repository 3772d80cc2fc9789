"""What a host prints before the reply of our script: a motd, the output of login scripts, or no reply at all.

All of it is passed over up to a generous bound, in memory that stays small: its beginning is kept for messages, and its
end, which may be the beginning of our reply.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import paramiko

from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import WorldError
from scheduler.ssh.connection_troubles import told, who
from scheduler.ssh.paramiko_io import BROKEN, PIECE_BYTES
from scheduler.ssh.remote_scripts import shown

MOST_BYTES: Final = 1 << 20  # without the reply of our script; then the host is down
KEPT_BYTES: Final = 8192  # for messages
OF_SSHD: Final = 255  # exit status of an sshd that started no shell
REFUSED: Final = 125  # exit status of our scripts where they cannot run

Found = TypeVar("Found")


class LoginOutput(Generic[Found]):
    """The output of one session until its script, which was given this word, replies: `parse` finds that."""

    def __init__(self, word: str, parse: Callable[[str, bytes], Found | None]) -> None:
        self._word, self._parse, self._mark = word, parse, f"DROVER {word} ".encode()
        self._end = b""
        self.beginning = b""
        self.count = 0  # bytes

    @property
    def is_too_much(self) -> bool:
        return self.count > MOST_BYTES

    def add(self, data: bytes) -> Found | None:
        """Return the reply once its line is complete. Errors: those of `parse`."""
        self.count += len(data)
        self.beginning += data[: KEPT_BYTES - len(self.beginning)]
        self._end += data
        if found := self._parse(self._word, self._end):
            return found
        begin = self._end.rfind(self._mark)
        self._end = self._end[begin if begin >= 0 else -len(self._mark) :]
        return None


def await_reply(channel: paramiko.Channel, output: LoginOutput[Any], settings: SshSettings) -> None:
    """Read until the script replies, for `connect_s` and LoginOutput's bound at most. Errors: WorldError."""
    deadline = time.monotonic() + settings.connect_s
    while output.add(_next_piece(channel, output, deadline, settings)) is None:
        if output.is_too_much:
            raise WorldError(endless(output, settings))


def endless(output: LoginOutput[Any], settings: SshSettings) -> str:
    """Return why a host is down that prints more than a login script would."""
    kib = MOST_BYTES // 1024
    return told("prints without end", text=shown(output.beginning), kib=kib, who=who(settings))


def printed_and_waits(output: LoginOutput[Any], seconds: float, settings: SshSettings) -> str:
    return told("printed and waits", text=shown(output.beginning), seconds=seconds, who=who(settings))


def _next_piece(channel: paramiko.Channel, output: LoginOutput[Any], deadline: float, settings: SshSettings) -> bytes:
    """Return what comes next. Errors: WorldError, nothing does."""
    account, seconds = who(settings), settings.connect_s
    try:
        channel.settimeout(max(deadline - time.monotonic(), 0.01))
        data: bytes = channel.recv(PIECE_BYTES)
    except TimeoutError as error:
        why = (
            printed_and_waits(output, seconds, settings)
            if output.count
            else told("waits", who=account, seconds=seconds)
        )
        raise WorldError(why) from error
    if data:
        return data
    said = output.beginning
    with suppress(*BROKEN):
        said += channel.recv_stderr(KEPT_BYTES)
    status = _status(channel, settings)
    if said and status == REFUSED:
        raise WorldError(told("unsuitable", text=shown(said), who=account))
    if said:
        raise WorldError(told("no shell", text=shown(said), who=account) + _no_shell(status, settings))
    if channel.eof_received:
        raise WorldError(told("ended", who=account) + _no_shell(status, settings))
    raise WorldError(told("cut off", who=account))


def _status(channel: paramiko.Channel, settings: SshSettings) -> int:
    """Return the exit status of a session that has ended; -1 if there is none."""
    if channel.eof_received:
        channel.status_event.wait(settings.connect_s)
    return int(channel.exit_status)


def _no_shell(status: int, settings: SshSettings) -> str:
    """Return what to do about a login shell that has failed, after the reason; nothing if none has."""
    if status in (-1, 0, REFUSED, OF_SSHD):  # none, a login script that exits, our script
        return ""
    return (
        f"; the login shell of {who(settings)} ended with status {status}: if it runs no commands, as "
        f"nologin, false and git-shell, give the account another there (usermod -s /bin/sh {settings.user or 'NAME'})"
    )
