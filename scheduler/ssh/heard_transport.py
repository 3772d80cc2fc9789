"""A transport that remembers what the server has said before the log-in, for the reason why there is no connection."""

from typing import Any, Final

import paramiko

from scheduler.ssh.connection_troubles import Heard
from scheduler.ssh.transport import Transport

CURVE: Final = "curve25519-sha256"
MOST_LINES: Final = 10  # before the version of a server


class HeardTransport(Transport):
    """A transport that remembers what the server said before the log-in, for messages.

    It knows curve25519-sha256 by that name too (RFC 8731): some servers offer nothing else.
    """

    _kex_info: Final = {**Transport._kex_info, CURVE: Transport._kex_info[f"{CURVE}@libssh.org"]}
    _preferred_kex: Final = (*Transport._preferred_kex[:1], CURVE, *Transport._preferred_kex[1:])

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.heard = Heard()
        self._readline = self.packetizer.readline
        self.packetizer.readline = self._heard_line

    def _heard_line(self, limit_s: float) -> str:
        line: str = self._readline(limit_s)
        if line.startswith("SSH-"):
            self.heard.version = line
        else:
            self.heard.lines = [*self.heard.lines, line][:MOST_LINES]
        return line

    def _really_parse_kex_init(self, message: paramiko.Message, ignore_first_byte: bool = False) -> dict[str, Any]:
        parsed: dict[str, Any] = super()._really_parse_kex_init(message, ignore_first_byte)
        if not ignore_first_byte:  # else it is what we have sent
            self.heard.algorithms = {name: list(words) for name, words in parsed.items() if isinstance(words, list)}
        return parsed
