"""The connections to one host: how many there are, when another is made, what is lost with one.

As many agents share a connection as the host lets (MaxSessions, ten by default: nine agents and a warden); more
connections are made as agents wait for room. Where a connection holds one session only, the first is the warden's, who
then guards the agents of all others. An agent is lost with its connection or with its guard, whichever goes first.

paramiko remembers every session that a connection ever had, so one that has had many gets no more, and is closed when
its last agent has left.

After a failure nobody tries again before a time that doubles with each, with jitter, so that neither MaxStartups nor
the penalties of sshd lock us out; an agent that wants to start before that is refused at once, with the reason.
"""

import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from threading import Thread
from typing import Final

import paramiko

from scheduler.drivers.loop import Timer
from scheduler.errors import WorldError
from scheduler.model.ssh_protocol import LinkDown, LinkUp, Note, Report, SshSettings
from scheduler.ssh.connect import Connection, connect
from scheduler.ssh.control_session import ControlSession
from scheduler.ssh.relay import BROKEN, WINDOW_BYTES, Relay
from scheduler.ssh.remote_agent import RemoteAgent

AGENTS: Final = 9  # of a connection; the tenth session is the warden's
IN_FLIGHT: Final = 5  # connections being made at once: sshd drops some from ten on
PATIENCE: Final = 3  # times `connect_s` for all of a connection, then it is hung up
MOST_DOUBLINGS: Final = 30
SWEEP_S: Final = 1.0  # that sshd may count a session that has ended
NEVER_YET: Final = -1e9


@dataclass(eq=False, slots=True)
class PooledConnection:
    """A connection that is up."""

    connection: Connection
    up_at: float
    room: int
    sessions: int  # that it may still have
    warden: ControlSession | None = None
    agents: set[RemoteAgent] = field(default_factory=set)
    idle_since: float = 0.0
    left_at: float = NEVER_YET


class ConnectionPool:
    """All connections to one host."""

    def __init__(self, settings: SshSettings, relay: Relay, tell: Callable[[Report], None]) -> None:
        self._settings, self._relay, self._loop, self._tell = settings, relay, relay.loop, tell
        self._links: list[PooledConnection] = []
        self._waiting: deque[RemoteAgent] = deque()
        self._of: dict[RemoteAgent, PooledConnection] = {}
        self._making: dict[int, Timer] = {}
        self._room = AGENTS
        self._failures = 0
        self._retry: Timer | None = None  # set: nobody connects before it
        self._retry_at = 0.0
        self._is_up = False  # as was told
        self._why = ""
        self._connect()

    def place(self, agent: RemoteAgent) -> None:
        """Start an agent as soon as there is room for it."""
        self._waiting.append(agent)
        self._serve()

    def left(self, agent: RemoteAgent) -> None:
        """Take back the room of an agent, or what it waits for."""
        with suppress(ValueError):
            self._waiting.remove(agent)
        link = self._of.pop(agent, None)
        if link is not None:
            link.agents.discard(agent)
            link.idle_since = link.left_at = self._loop.now
        self._serve()

    # ---- room

    def _serve(self) -> None:
        while self._waiting and (link := self._with_room()):
            self._open(link, self._waiting.popleft())
        if not self._waiting:
            return
        if self._retry is not None and not self._making:
            self._refuse_if_down()
            return
        leaving = sum(agent.is_told for agent in self._of)  # whose room is free in a moment
        wanted = ceil((len(self._waiting) - leaving) / max(self._room, 1)) if self._guard() else 1
        while len(self._making) < min(wanted, IN_FLIGHT) and self._retry is None:
            self._connect()

    def _with_room(self) -> PooledConnection | None:
        return next((link for link in self._links if self._has_room(link) and self._guard_of(link)), None)

    def _has_room(self, link: PooledConnection) -> bool:
        return link.sessions > 0 and len(link.agents) < link.room

    def _guard(self) -> ControlSession | None:
        return next((link.warden for link in self._links if link.warden), None)

    def _guard_of(self, link: PooledConnection) -> ControlSession | None:
        return link.warden or self._guard()

    def _refuse_if_down(self) -> None:
        """Who waits on a host that can be reached waits for room, or for the next connection."""
        if self._guard():
            return
        waiting, self._waiting = self._waiting, deque()
        for agent in waiting:
            agent.refuse(self._why)

    def _open(self, link: PooledConnection, agent: RemoteAgent) -> None:
        link.agents.add(agent)
        link.sessions -= 1
        self._of[agent] = link
        guard = self._guard_of(link)
        assert guard is not None
        Thread(target=self._open_session, args=(link, agent, guard), daemon=True).start()

    def _open_session(self, link: PooledConnection, agent: RemoteAgent, guard: ControlSession) -> None:
        """Blocks; in a thread of its own."""
        post, transport = self._relay.calls.post, link.connection.transport
        try:
            channel = transport.open_session(WINDOW_BYTES, timeout=self._settings.connect_s)
        except BROKEN as error:
            if transport.is_active() and "Timeout" not in str(error):  # of refusals at once paramiko explains only one
                post(partial(self._is_full, link, agent, str(error)))
            else:
                post(partial(agent.refuse, f"no session: {error or 'the connection broke'}"))
            return
        agent.channel = channel  # so that it can be closed while the host does not answer
        try:
            channel.exec_command(agent.command)
        except BROKEN as error:
            post(partial(agent.refuse, f"the host runs no command: {error}"))
            return
        post(partial(self._opened, link, agent, channel, guard))

    def _opened(
        self, link: PooledConnection, agent: RemoteAgent, channel: paramiko.Channel, guard: ControlSession
    ) -> None:
        if any(guard is other.warden for other in self._links):
            agent.opened(channel, link.connection.wire, guard, guard is link.warden)
        else:
            agent.lose(self._why)

    def _is_full(self, link: PooledConnection, agent: RemoteAgent, why: str) -> None:
        """Learn how many sessions a connection holds; who was refused waits for another."""
        link.agents.discard(agent)
        self._of.pop(agent, None)
        if self._loop.now < link.left_at + SWEEP_S:  # sshd may not know yet that a session has ended
            self._waiting.appendleft(agent)
            self._loop.at(self._loop.now + SWEEP_S / 5, self._serve)
            return
        link.room = min(link.room, len(link.agents))
        if link.warden is None and not link.agents:
            agent.refuse(f"a new connection allows no session: {why}")
            return
        self._room = min(self._room, max(link.room, 1))
        self._waiting.appendleft(agent)
        self._serve()

    # ---- connections

    def _connect(self) -> None:
        connection = Connection(self._closed)
        patience = self._loop.now + PATIENCE * self._settings.connect_s
        self._making[id(connection)] = self._loop.at(patience, connection.hang_up)
        has_single = any(link.warden and not link.room for link in self._links)
        Thread(target=self._make, args=(connection, not has_single), daemon=True).start()

    def _make(self, connection: Connection, with_warden: bool) -> None:
        """Blocks; in a thread of its own."""
        post = self._relay.calls.post
        try:
            connect(self._settings, self._relay, connection, with_warden)
        except WorldError as error:
            post(partial(self._failed, connection, str(error)))
        except Exception as error:  # noqa: BLE001  (what a server may say to paramiko has no end)
            post(partial(self._failed, connection, f"{type(error).__name__}: {error}"))
        else:
            post(partial(self._connected, connection))

    def _connected(self, connection: Connection) -> None:
        if connection.is_hung_up or not connection.transport.is_active():
            self._failed(
                connection, "it took too long" if connection.is_hung_up else "it closed the connection at once"
            )
            return
        self._making.pop(id(connection)).cancel()
        now = self._loop.now
        link = PooledConnection(connection, now, self._room, self._settings.sessions, idle_since=now)
        was_up = self._guard() is not None
        if connection.warden is not None:
            link.warden = ControlSession(
                self._relay, connection.wire, connection.warden, lambda why: self._lose(link, why)
            )
        else:
            link.room = 1
        self._links.append(link)
        if not was_up and not self._is_up:
            self._is_up = True
            self._tell(LinkUp())
        self._tend(link)
        self._serve()

    def _failed(self, connection: Connection, why: str) -> None:
        self._making.pop(id(connection)).cancel()
        connection.hang_up()
        if self._guard():
            self._tell(Note(f"no further connection: {why}"))
        self._back_off(why)

    def _back_off(self, why: str) -> None:
        """Try again later: twice as late each time, and not all hosts at once."""
        self._why = why
        is_new = self._retry is None
        if is_new:
            delay = min(
                self._settings.retry_base_s * 2 ** min(self._failures, MOST_DOUBLINGS), self._settings.retry_max_s
            )
            self._failures += 1
            self._retry_at = self._loop.now + delay * random.uniform(0.5, 1.0)
            self._retry = self._loop.at(self._retry_at, self._try_again)
        if not self._guard() and (is_new or self._is_up):
            self._is_up = False
            self._tell(LinkDown(why, self._retry_at - self._loop.now))
        if not self._making:
            self._refuse_if_down()

    def _try_again(self) -> None:
        self._retry = None
        if not self._guard() and not self._making:
            self._connect()
        self._serve()

    # ---- what is lost

    def _tend(self, link: PooledConnection) -> None:
        """Look after a connection now and every `beat_s`, until it is gone."""
        if link not in self._links:
            return
        now, settings = self._loop.now, self._settings
        again = now + settings.beat_s
        if self._is_spare(link):
            self._drop(link)
            return
        if link.warden is not None:
            if now - link.warden.confirmed_at >= settings.answer_s:
                self._lose(link, f"no answer for {settings.answer_s:g} s")
                return
            link.warden.beat()
            again = min(again, link.warden.confirmed_at + settings.answer_s)
        self._loop.at(again, lambda: self._tend(link))

    def _is_spare(self, link: PooledConnection) -> bool:
        if link.agents or (link.sessions > 0 and self._loop.now - link.idle_since < self._settings.idle_s):
            return False
        is_guarding = link.warden is not None and any(agent.guard is link.warden for agent in self._of)
        return not is_guarding and any(other.warden for other in self._links if other is not link)

    def _closed(self, connection: Connection) -> None:
        """Take the end of a connection, told by its wire."""
        connection.hang_up()  # those that it went through
        for link in self._links:
            if link.connection is connection:
                self._lose(link, _reason(connection))
                return

    def _lose(self, link: PooledConnection, why: str) -> None:
        if link not in self._links:
            return
        self._drop(link)
        orphans = [other for other in self._links if not other.warden] if link.warden and not self._guard() else []
        for agent, its in list(self._of.items()):
            if its is link or (link.warden is not None and agent.guard is link.warden):
                agent.lose(why)
        for other in orphans:
            self._drop(other)
        if self._loop.now - link.up_at > self._settings.retry_max_s:
            self._failures = 0
        if not self._guard():
            self._back_off(why)

    def _drop(self, link: PooledConnection) -> None:
        self._links.remove(link)
        link.connection.hang_up()


def _reason(connection: Connection) -> str:
    error = connection.transport.get_exception()
    if isinstance(error, ConnectionError) and error.strerror:
        return f"the connection broke: {error.strerror}"
    if error is None or isinstance(error, EOFError):
        return "the host closed the connection"
    return f"the connection broke: {error}"
