"""The program: `python -m scheduler.ssh SETTINGS`, with the supervisor's socket as standard input.

Requests come and reports leave as packets on that socket (model/ssh_protocol.py), which never blocks. The end of the
socket ends the process: the kernel closes its connections with it, and the control sessions kill the agents.
"""

import json
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from math import inf
from select import EPOLLIN, EPOLLOUT
from typing import Final

from scheduler.drivers.loop import Loop
from scheduler.drivers.system import hide
from scheduler.errors import AgentError
from scheduler.model.ssh_protocol import (
    PACKET_BYTES,
    Close,
    NotStarted,
    Ping,
    Pong,
    Report,
    Request,
    Signal,
    SshSettings,
    Start,
    pack,
    unpack_request,
)  # fmt: skip
from scheduler.ssh.connection_pool import ConnectionPool
from scheduler.ssh.paramiko_adapters import CallQueue
from scheduler.ssh.relay import Relay
from scheduler.ssh.remote_agent import RemoteAgent, agent_command

PIPES: Final = 3  # that come with a Start
MAX_REQUESTS: Final = 64  # handled in one iteration of the loop
CLOSE_LIMIT_S: Final = 5.0  # for the ends of killed agents to be reported


class SshHostProcess:
    """What this process does for its host."""

    def __init__(self, settings: SshSettings, sock: socket.socket) -> None:
        self._settings, self._loop = settings, Loop()
        self._relay = Relay(self._loop, CallQueue(self._loop))
        self._agents: dict[int, RemoteAgent] = {}
        self._is_closing = False
        self._supervisor = SupervisorSocket(self._loop, sock, self._handle)
        self._pool = ConnectionPool(settings, self._relay, self._supervisor.report)

    def run(self) -> None:
        """Serve until the supervisor is gone; never returns."""
        while True:
            self._loop.turn(inf)
            self._relay.uncork_all()

    def _handle(self, request: Request, fds: tuple[int, ...]) -> None:
        match request:
            case Start():
                self._start(request, fds)
            case Signal():
                if agent := self._agents.get(request.id):
                    agent.signal(request.name)
            case Ping():
                self._supervisor.report(Pong())
            case Close():
                self._close()

    def _start(self, start: Start, fds: tuple[int, ...]) -> None:
        if len(fds) < PIPES:
            refusal = NotStarted(start.id, "its SSH process can open no more files", is_lost=True)
            self._refuse(refusal, fds)
            return
        try:
            command = agent_command(start.argv, start.environment, start.directory)
        except AgentError as error:
            self._refuse(NotStarted(start.id, str(error), is_items_fault=True), fds)
            return
        agent = RemoteAgent(start.id, command, fds, self._relay, self._settings, self._supervisor.report, self._release)
        self._agents[start.id] = agent
        self._pool.start(agent)

    def _refuse(self, refusal: NotStarted, fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)
        self._supervisor.report(refusal)

    def _release(self, agent: RemoteAgent) -> None:
        self._agents.pop(agent.id, None)
        self._pool.release(agent)
        self._exit_if_done()

    def _close(self) -> None:
        self._is_closing = True
        for agent in list(self._agents.values()):
            agent.signal("KILL")
        self._loop.at(self._loop.now + CLOSE_LIMIT_S, lambda: os._exit(0))
        self._exit_if_done()

    def _exit_if_done(self) -> None:
        if self._is_closing and not self._agents:
            os._exit(0)


class SupervisorSocket:
    """Our end of the socket to the supervisor."""

    def __init__(self, loop: Loop, sock: socket.socket, handle: Callable[[Request, tuple[int, ...]], None]) -> None:
        self._loop, self._sock, self._handle = loop, sock, handle
        self._unsent: deque[bytes] = deque()
        sock.setblocking(False)
        loop.register(sock.fileno(), EPOLLIN, self._ready)

    def report(self, report: Report) -> None:
        """Send a report, now or when the socket takes it."""
        self._unsent.append(pack(report))
        if len(self._unsent) == 1:
            self._send()

    def _ready(self, mask: int) -> None:
        if mask & EPOLLOUT:
            self._send()
        if mask & ~EPOLLOUT:
            self._receive()

    def _receive(self) -> None:
        for _ in range(MAX_REQUESTS):
            try:
                packet, fds, _, _ = socket.recv_fds(self._sock, PACKET_BYTES, PIPES)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it was closed while reports were not read yet
                packet = b""
            if not packet:
                os._exit(0)
            self._handle(unpack_request(packet), tuple(fds))

    def _send(self) -> None:
        try:
            while self._unsent:
                self._sock.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            self._loop.modify(self._sock.fileno(), EPOLLIN | EPOLLOUT)
            return
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        self._loop.modify(self._sock.fileno(), EPOLLIN)


def main() -> None:
    """Serve one host."""
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    hide()  # our keys
    SshHostProcess(SshSettings(**json.loads(sys.argv[1])), socket.socket(fileno=0)).run()


if __name__ == "__main__":
    main()
