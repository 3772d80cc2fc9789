"""Our transport and a server in this process, which can be made to do something between our KEXINIT and its own."""

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Final

import paramiko
from paramiko import common
from paramiko.packet import Packetizer

from scheduler.drivers.loop import Loop
from scheduler.ssh.paramiko_io import BROKEN, CallQueue, ParamikoSocket
from scheduler.ssh.transport import Transport
from tests.loop_tools import turn_until
from tests.patience import PATIENCE_S

NEVER_BYTES: Final = 1 << 40
EXCHANGE: Final = (common.MSG_KEXINIT, common.MSG_NEWKEYS)
KEY: Final = paramiko.ECDSAKey.generate()


class Noted(Packetizer):  # type: ignore[misc]
    """Notes the kind of each packet that comes."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.kinds: list[int] = []

    def read_message(self) -> tuple[int, paramiko.Message]:
        kind, message = super().read_message()
        self.kinds.append(kind)
        return kind, message


class Anybody(paramiko.ServerInterface):
    """Lets everybody in, and opens sessions that run nothing."""

    def check_auth_none(self, username: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class Slow(paramiko.Transport):  # type: ignore[misc]
    """A server that calls `before`, in its thread, when a KEXINIT has come, and then answers it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, packetizer_class=Noted)
        self.before: Callable[[], object] = lambda: None

    def _negotiate_keys(self, message: paramiko.Message) -> None:
        self.before()
        super()._negotiate_keys(message)


class Pair:
    """A connection between the two, with one session; nothing turns the loop, as nothing here needs it."""

    def __init__(self) -> None:
        self.loop = Loop()
        ours, theirs = socket.socketpair()
        self._asked, self._answers, self._closed = Event(), Event(), Event()
        self._is_patient = True
        self.sock = ParamikoSocket(ours, self.loop, CallQueue(self.loop), self._closed.set)
        self.server, self.client = Slow(theirs), Transport(self.sock, NEVER_BYTES)
        self.server.add_server_key(KEY)
        self.server.start_server(event=Event(), server=Anybody())
        self.client.start_client(timeout=PATIENCE_S)
        self.client.auth_none("anybody")
        self.ours = self.client.open_session(timeout=PATIENCE_S)
        self.theirs = self.server.accept(PATIENCE_S)

    def exchange(self, before: Callable[[], object] = lambda: None) -> bool:
        """Exchange keys, and return whether that ended; the server does something before its KEXINIT."""
        self.begin(before)
        return self.end()

    def begin(self, before: Callable[[], object] = lambda: None) -> None:
        """Begin an exchange, which the server does not go on with before `end`; it has our KEXINIT then."""
        self._answers.clear()

        def hold() -> None:
            before()
            self._asked.set()
            self._is_patient = self._answers.wait(PATIENCE_S)

        self.server.before = hold
        self._renewal = Thread(target=self._renew, daemon=True)
        self._renewal.start()
        assert self._asked.wait(PATIENCE_S)

    def end(self) -> bool:
        """Let the server go on, and return whether the exchange ended, and not before this was called."""
        self._answers.set()
        self._renewal.join(PATIENCE_S)
        return self._is_patient and not self._renewal.is_alive()

    def received_amid(self) -> list[int]:
        """Return the kinds of packets that the server received between the last KEXINIT and NEWKEYS."""
        kinds: list[int] = self.server.packetizer.kinds
        *_, begin, end = (place for place, kind in enumerate(kinds) if kind in EXCHANGE)
        assert (kinds[begin], kinds[end]) == EXCHANGE
        return kinds[begin + 1 : end]

    def close(self) -> None:
        self._answers.set()
        self.sock.shut_down()
        self.client.join(PATIENCE_S)
        self.server.close()
        turn_until(self.loop, self._closed.is_set)
        self.loop.close()

    def _renew(self) -> None:
        with suppress(*BROKEN):  # the connection is lost
            self.client.renegotiate_keys()
