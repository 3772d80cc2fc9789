"""The SSH process of a host: `python -m scheduler.ssh SETTINGS`, with the supervisor's socket as descriptor 0.

That descriptor is given another number at once, as no library below us may read the supervisor's requests, nor write
to the terminal or the log as it likes: 0 is /dev/null, and what is written to 1 and 2 becomes notes in the log.

It holds the connections, paramiko and its threads. One thread waits in one epoll and does everything but what blocks:
connecting, opening a session. Each of these has a thread of its own, which ends with it. paramiko adds one for each
connection. Nothing of this runs in the daemon, which passes pipe ends over the socket and sees pipes and reports only
(drivers/ssh_protocol.py). The end of the socket ends the process: the kernel closes its connections, so the control
sessions kill the agents.
"""

import faulthandler
import json
import logging
import os
import socket
import sys
from collections import deque
from math import inf
from select import EPOLLIN
from typing import Final

from scheduler.drivers import ssh_protocol as ssh
from scheduler.drivers.loop import Loop
from scheduler.drivers.os_calls import close_all, hide
from scheduler.errors import AgentError
from scheduler.ssh.host_connections import ConnectionPool
from scheduler.ssh.paramiko_io import CallQueue, Relay
from scheduler.ssh.remote_processes import RemoteAgent
from scheduler.ssh.remote_scripts import agent_script, new_word

CLOSE_LIMIT_S: Final = 5.0  # for the ends of killed agents to be reported
STDERR: Final = 2
PRINTED_BYTES: Final = 2000  # of what a library prints, in one note
MOST_NOTES, NOTES_S = 10, 60.0  # so many of these at most in so many seconds


class SshHostProcess:
    """Carry out the requests of the supervisor for one host."""

    def __init__(self, settings: ssh.SshSettings, sock: socket.socket, printed: int) -> None:
        """Serve `sock`, and pass on as notes what can be read from `printed`."""
        self._settings, self._loop, self._printed = settings, Loop(), printed
        self._relay = Relay(self._loop, CallQueue(self._loop))
        self._agents: dict[int, RemoteAgent] = {}
        self._is_closing = False
        self._supervisor = ssh.PacketSocket(self._loop, sock, self._receive, lambda: os._exit(0))
        self._pool = ConnectionPool(settings, self._relay, self._report)
        self._noted_at = deque[float](maxlen=MOST_NOTES)
        self._loop.register(printed, EPOLLIN, self._note_printed)

    def run(self) -> None:
        """Serve until the supervisor is gone; never returns."""
        while True:
            self._loop.turn(inf)
            self._relay.uncork_all()

    def _note_printed(self, _mask: int) -> None:
        """Report what a library has printed, but no more than MOST_NOTES pieces in NOTES_S."""
        text = os.read(self._printed, PRINTED_BYTES).decode("utf-8", "backslashreplace").strip()
        is_too_much = len(self._noted_at) == MOST_NOTES and self._loop.now - self._noted_at[0] < NOTES_S
        if text and not is_too_much:
            self._noted_at.append(self._loop.now)
            self._report(ssh.Note(f"its SSH process printed: {text}"))

    def _report(self, report: ssh.Report) -> None:
        self._supervisor.send(ssh.pack(report))

    def _receive(self, packet: bytes, fds: tuple[int, ...]) -> None:
        match request := ssh.unpack(packet, ssh.REQUESTS):
            case ssh.Start():
                self._start(request, fds)
            case ssh.Signal():
                if agent := self._agents.get(request.id):
                    agent.signal(request.name)
            case ssh.Ping():
                self._report(ssh.Pong())
            case ssh.Reread():
                self._pool.reread()
            case ssh.Close():
                self._is_closing = True
                for agent in list(self._agents.values()):
                    agent.signal("KILL")
                self._loop.at(self._loop.now + CLOSE_LIMIT_S, lambda: os._exit(0))
                self._exit_if_done()

    def _start(self, start: ssh.Start, fds: tuple[int, ...]) -> None:
        refusal = None
        if len(fds) < ssh.PIPES:
            refusal = ssh.NotStarted(start.id, "its SSH process can open no more files", is_lost=True)
        try:
            script = agent_script(new_word(), start.argv, start.environment, start.directory)
        except AgentError as error:
            refusal = ssh.NotStarted(start.id, str(error), is_items_fault=True)
        if refusal is not None:
            close_all(fds)
            self._report(refusal)
            return
        agent = RemoteAgent(start.id, script, fds, self._relay, self._settings, self._report, self._release)
        self._agents[start.id] = agent
        self._pool.start(agent)

    def _release(self, agent: RemoteAgent) -> None:
        self._agents.pop(agent.id, None)
        self._pool.release(agent)
        self._exit_if_done()

    def _exit_if_done(self) -> None:
        if self._is_closing and not self._agents:
            os._exit(0)


def take_descriptors() -> tuple[socket.socket, int, int]:
    """Return the supervisor's socket, where to read what is printed, and standard error, as it was given to us.

    Nothing waits for the pipe of what is printed: more than it holds is lost.
    """
    sock, stderr = socket.socket(fileno=os.dup(0)), os.dup(STDERR)
    printed, writer = os.pipe()
    os.set_blocking(writer, False)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((null, 0), (writer, 1), (writer, STDERR)):
        os.dup2(fd, number)
    os.close(null)
    os.close(writer)
    return sock, printed, stderr


def main() -> None:
    """Serve one host."""
    sock, printed, stderr = take_descriptors()
    try:
        faulthandler.enable(stderr)
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        hide()  # our keys
        SshHostProcess(ssh.SshSettings(**json.loads(sys.argv[1])), sock, printed).run()
    finally:
        os.dup2(stderr, STDERR)  # for the traceback of what ends us


if __name__ == "__main__":
    main()
