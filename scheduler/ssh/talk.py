"""What the supervisor asks, and what it is told: packets on one socket, which never blocks us.

The end of the socket is the end of the bridge: the kernel closes the connections with it, and the wardens do the rest.
"""

import os
import socket
from collections import deque
from collections.abc import Callable
from select import EPOLLIN, EPOLLOUT

from scheduler.drivers.loop import Loop
from scheduler.model.ssh_protocol import PACKET_BYTES, Report, Request, pack, unpack_request

PIPES = 3
MOST = 64  # requests taken in one turn

Take = Callable[[Request, tuple[int, ...]], None]


class SupervisorSocket:
    """Our end of the socket to the supervisor."""

    def __init__(self, loop: Loop, sock: socket.socket, take: Take) -> None:
        self._loop, self._sock, self._take = loop, sock, take
        self._untold: deque[bytes] = deque()
        sock.setblocking(False)
        loop.register(sock.fileno(), EPOLLIN, self._ready)

    def tell(self, report: Report) -> None:
        """Tell the supervisor, now or when it listens again."""
        self._untold.append(pack(report))
        if len(self._untold) == 1:
            self._send()

    def _ready(self, mask: int) -> None:
        if mask & EPOLLOUT:
            self._send()
        if mask & ~EPOLLOUT:
            self._hear()

    def _hear(self) -> None:
        for _ in range(MOST):
            try:
                packet, fds, _, _ = socket.recv_fds(self._sock, PACKET_BYTES, PIPES)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it was closed while reports were not read yet
                packet = b""
            if not packet:
                os._exit(0)
            self._take(unpack_request(packet), tuple(fds))

    def _send(self) -> None:
        try:
            while self._untold:
                self._sock.send(self._untold[0])
                self._untold.popleft()
        except BlockingIOError:
            self._loop.modify(self._sock.fileno(), EPOLLIN | EPOLLOUT)
            return
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        self._loop.modify(self._sock.fileno(), EPOLLIN)
