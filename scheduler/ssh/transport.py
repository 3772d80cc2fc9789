"""The SSH transport of a connection: paramiko's, but no sender ever waits, and the exit of a program is called back.

While new keys are exchanged, only packets of the exchange may be sent (RFC 4253, 7.1). paramiko makes the sender of any
other packet wait. If that is its own thread, which receives the exchange, the exchange never ends; if it is our loop,
all agents of the host wait, and what the loop has corked as well. OpenSSH queues such packets, and sends them in order
once the new keys are in force; so does this. Little is queued: streams stop meanwhile (paramiko_io.py), and what is not
data is a few packets for each channel.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import paramiko
from paramiko import common

from scheduler.ssh.paramiko_io import ParamikoSocket

EXIT_SIGNAL: Final = "drover_exit_signal"  # attributes that `Transport` reads and writes on a paramiko.Channel
ON_EXIT: Final = "drover_on_exit"

LAST_OF_TRANSPORT: Final = 49  # kinds of packets up to it belong to the transport: an exchange may have them
SERVICES: Final = (common.MSG_SERVICE_REQUEST, common.MSG_SERVICE_ACCEPT)  # but not these
MAX_QUEUED: Final = 10_000  # packets; no host that means well comes near it

HANDLERS: Final[dict[int, Callable[[Any, Any], None]]] = paramiko.Transport._channel_handler_table


def _handle_channel_request(channel: Any, message: paramiko.Message) -> None:
    begin = message.packet.tell()
    kind, _ = message.get_text(), message.get_boolean()
    if kind == "exit-signal":
        setattr(channel, EXIT_SIGNAL, message.get_text())
    message.packet.seek(begin)
    HANDLERS[common.MSG_CHANNEL_REQUEST](channel, message)
    if kind in ("exit-signal", "exit-status") and (on_exit := getattr(channel, ON_EXIT, None)):
        on_exit()


class Transport(paramiko.Transport):  # type: ignore[misc]
    """A transport over a `ParamikoSocket`; each method here may be called by any thread."""

    _channel_handler_table: Final = {**HANDLERS, common.MSG_CHANNEL_REQUEST: _handle_channel_request}

    def __init__(
        self, sock: ParamikoSocket, rekey_bytes: int, disabled: Mapping[str, Iterable[str]] = MappingProxyType({})
    ) -> None:
        """`disabled` are algorithms that are not used, by paramiko's names of their kinds."""
        super().__init__(sock, disabled_algorithms=disabled)
        self.packetizer.REKEY_BYTES = rekey_bytes
        self._queued: deque[paramiko.Message] = deque()  # under clear_to_send_lock

    def _send_message(self, message: paramiko.Message) -> None:
        """Send a packet of an exchange at once, past the cork too; paramiko gives us other packets here as well."""
        kind = message.asbytes()[0]
        if kind > LAST_OF_TRANSPORT or kind in SERVICES:
            self._send_user_message(message)
        else:
            self.packetizer.send_message(message)
            self.sock.uncork()

    def _send_user_message(self, message: paramiko.Message) -> None:
        """Send a packet, or queue it while keys are exchanged; drop it after the end. Errors: one of BROKEN."""
        with self.clear_to_send_lock:
            if len(self._queued) >= MAX_QUEUED:
                self.sock.shut_down()
                raise paramiko.SSHException(f"{MAX_QUEUED} packets wait for an exchange of keys that does not end")
            if self.active:
                self._queued.append(message)
                self._send_queued()

    def _parse_newkeys(self, message: paramiko.Message) -> None:
        """Put the new keys in force, and send what has waited for them."""
        super()._parse_newkeys(message)
        with self.clear_to_send_lock:
            self._send_queued()

    def _send_queued(self) -> None:
        while self._queued and self.clear_to_send.is_set():
            self.packetizer.send_message(self._queued.popleft())
