"""The socket between the supervisor and an SSH process: packets with descriptors, in order, and it never blocks.

Both ends use it (model/ssh_protocol.py says what the packets hold). What the socket does not take is kept.
"""

import errno
import socket
from collections import deque
from collections.abc import Callable
from select import EPOLLIN, EPOLLOUT
from typing import Final

from scheduler.drivers.loop import Loop
from scheduler.drivers.system import close_all
from scheduler.model.ssh_protocol import PACKET_BYTES

PIPES: Final = 3  # that come with the start of an agent
MAX_PACKETS: Final = 64  # received in one iteration of the loop
RESEND_S: Final = 0.1


class PacketSocket:
    """One end; `on_packet` gets each packet and its descriptors, `on_end` is called once the other end is closed."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_packet: Callable[[bytes, tuple[int, ...]], object],
        on_end: Callable[[], object],
    ) -> None:
        self._loop, self._sock, self._on_packet, self._on_end = loop, sock, on_packet, on_end
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
        sock.setblocking(False)
        loop.register(sock.fileno(), EPOLLIN, self._ready)

    @property
    def is_open(self) -> bool:
        """Whether it was not closed by us."""
        return self._sock.fileno() >= 0

    def send(self, packet: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a packet, now or when the socket takes it; its descriptors are closed then."""
        self._unsent.append((packet, fds))
        if len(self._unsent) == 1:
            self._send()

    def receive_all(self) -> None:
        """Receive what has come, though the loop has not reported it."""
        while self._receive_one():
            pass

    def close(self) -> None:
        """Close it, and what was not sent."""
        for _, fds in self._unsent:
            close_all(fds)
        self._unsent.clear()
        if self.is_open:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()

    def _ready(self, mask: int) -> None:
        if mask & EPOLLOUT:
            self._send()
        if mask & ~EPOLLOUT:
            for _ in range(MAX_PACKETS):
                if not self._receive_one():
                    return

    def _send(self) -> None:
        if not self.is_open:
            return
        try:
            while self._unsent:
                packet, fds = self._unsent[0]
                socket.send_fds(self._sock, [packet], fds)
                self._unsent.popleft()
                close_all(fds)
        except BlockingIOError:
            self._loop.modify(self._sock.fileno(), EPOLLIN | EPOLLOUT)
            return
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # more files in sockets than we may have
                self._loop.at(self._loop.now + RESEND_S, self._send)
            return  # else the other end is closed, which is read too
        self._loop.modify(self._sock.fileno(), EPOLLIN)

    def _receive_one(self) -> bool:
        """Receive one packet; False when there is none."""
        if not self.is_open:
            return False
        try:
            packet, fds, _, _ = socket.recv_fds(self._sock, PACKET_BYTES, PIPES)
        except BlockingIOError:
            return False
        except OSError:  # the other end was closed before it read all packets
            packet, fds = b"", []
        if not packet:
            self._loop.unregister(self._sock.fileno())
            self._on_end()
            return False
        self._on_packet(packet, tuple(fds))
        return True
