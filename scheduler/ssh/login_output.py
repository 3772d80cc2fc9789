"""What a host prints before the reply of our script: a motd, the output of login scripts, or no reply at all.

All of it is passed over up to a generous bound, in memory that stays small: its beginning is kept for messages, and its
end, which may be the beginning of our reply.
"""

import time
from contextlib import suppress
from typing import Final

import paramiko

from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import WorldError
from scheduler.ssh.connection_troubles import told, who
from scheduler.ssh.paramiko_io import BROKEN, PIECE_BYTES
from scheduler.ssh.remote_scripts import RemotePid, read_reply, shown

MOST_BYTES: Final = 1 << 20  # without the reply of our script; then the host is down
KEPT_BYTES: Final = 8192  # for messages


class LoginOutput:
    """The output of one session until its script, which was given this word, replies."""

    def __init__(self, word: str) -> None:
        self._word, self._mark = word, f"DROVER {word} ".encode()
        self._end = b""
        self.beginning = b""
        self.count = 0  # bytes

    @property
    def is_too_much(self) -> bool:
        return self.count > MOST_BYTES

    def add(self, data: bytes) -> RemotePid | None:
        """Return the process of the script once its line is complete. Errors: WorldError, no process can be so."""
        self.count += len(data)
        self.beginning += data[: KEPT_BYTES - len(self.beginning)]
        self._end += data
        if (found := read_reply(self._word, self._end)) is None:
            begin = self._end.rfind(self._mark)
            self._end = self._end[begin if begin >= 0 else -len(self._mark) :]
        return found


def await_reply(channel: paramiko.Channel, output: LoginOutput, settings: SshSettings) -> None:
    """Read until the script replies, for `connect_s` and LoginOutput's bound at most. Errors: WorldError."""
    deadline = time.monotonic() + settings.connect_s
    while output.add(_next_piece(channel, output, deadline, settings)) is None:
        if output.is_too_much:
            raise WorldError(endless(output, settings))


def endless(output: LoginOutput, settings: SshSettings) -> str:
    """Return why a host is down that prints more than a login script would."""
    kib = MOST_BYTES // 1024
    return told("prints without end", text=shown(output.beginning), kib=kib, who=who(settings))


def printed_and_waits(output: LoginOutput, seconds: float, settings: SshSettings) -> str:
    return told("printed and waits", text=shown(output.beginning), seconds=seconds, who=who(settings))


def _next_piece(channel: paramiko.Channel, output: LoginOutput, deadline: float, settings: SshSettings) -> bytes:
    """Return what comes next. Errors: WorldError, nothing does."""
    account, seconds = who(settings), settings.connect_s
    try:
        channel.settimeout(max(deadline - time.monotonic(), 0.01))
        data: bytes = channel.recv(PIECE_BYTES)
    except TimeoutError as error:
        is_silent = not output.count
        silent = told("waits", who=account, seconds=seconds)
        raise WorldError(silent if is_silent else printed_and_waits(output, seconds, settings)) from error
    if data:
        return data
    said = output.beginning
    with suppress(*BROKEN):
        said += channel.recv_stderr(KEPT_BYTES)
    if said:
        raise WorldError(told("no shell", text=shown(said), who=account))
    raise WorldError(told("ended" if channel.eof_received else "cut off", who=account))
