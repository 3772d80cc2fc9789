"""The program: `python -m scheduler.ssh SETTINGS`, with the supervisor's socket as standard input."""

import json
import logging
import os
import socket
import sys
from math import inf

from scheduler.drivers.loop import Loop
from scheduler.drivers.system import hide
from scheduler.errors import AgentError
from scheduler.model.ssh_protocol import Close, NotStarted, Ping, Pong, Request, Signal, SshSettings, Start
from scheduler.ssh.connection_pool import ConnectionPool
from scheduler.ssh.mailbox import CallQueue
from scheduler.ssh.relay import Relay
from scheduler.ssh.remote_agent import RemoteAgent
from scheduler.ssh.remote_scripts import agent_command
from scheduler.ssh.talk import PIPES, SupervisorSocket

FAREWELL_S = 5.0  # for agents that were killed to be told of


class SshProcess:
    """All that one process does for one host."""

    def __init__(self, settings: SshSettings, sock: socket.socket) -> None:
        self._settings, self._loop = settings, Loop()
        self._relay = Relay(self._loop, CallQueue(self._loop))
        self._agents: dict[int, RemoteAgent] = {}
        self._is_closing = False
        self._talk = SupervisorSocket(self._loop, sock, self._take)
        self._links = ConnectionPool(settings, self._relay, self._talk.tell)

    def run(self) -> None:
        """Serve until the supervisor is gone; never returns."""
        while True:
            self._loop.turn(inf)
            self._relay.end_turn()

    def _take(self, request: Request, fds: tuple[int, ...]) -> None:
        match request:
            case Start():
                self._start(request, fds)
            case Signal():
                if agent := self._agents.get(request.id):
                    agent.signal(request.name)
            case Ping():
                self._talk.tell(Pong())
            case Close():
                self._close()

    def _start(self, start: Start, fds: tuple[int, ...]) -> None:
        if len(fds) < PIPES:
            for fd in fds:
                os.close(fd)
            self._talk.tell(NotStarted(start.id, "its bridge can open no more files", is_lost=True))
            return
        try:
            command = agent_command(start.argv, start.environment, start.directory)
        except AgentError as error:
            for fd in fds:
                os.close(fd)
            self._talk.tell(NotStarted(start.id, str(error), is_items_fault=True))
            return
        agent = RemoteAgent(start.id, command, fds, self._relay, self._settings, self._talk.tell, self._left)
        self._agents[start.id] = agent
        self._links.place(agent)

    def _left(self, agent: RemoteAgent) -> None:
        self._agents.pop(agent.id, None)
        self._links.left(agent)
        self._end_if_over()

    def _close(self) -> None:
        self._is_closing = True
        for agent in list(self._agents.values()):
            agent.signal("KILL")
        self._loop.at(self._loop.now + FAREWELL_S, lambda: os._exit(0))
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_closing and not self._agents:
            os._exit(0)


def main() -> None:
    """Serve one host."""
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    hide()  # our keys
    SshProcess(SshSettings(**json.loads(sys.argv[1])), socket.socket(fileno=0)).run()


if __name__ == "__main__":
    main()
