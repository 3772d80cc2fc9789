"""The connections to one host: how many there are, when another is made, what is lost with one.

As many agents share a connection as the host allows (MaxSessions, ten by default: nine agents and a control session);
more connections are made as agents wait for capacity. Where a connection holds one session only, the first connection
is that of the control session, which then guards the agents of all others. An agent is lost with its connection or with
its control session, whichever goes first.

paramiko remembers every session that a connection ever had, so one that has had many gets no more, and is closed when
its last agent has ended.

After a failure there is no further attempt before an instant that is later each time, with jitter, so that neither
MaxStartups nor the penalties of sshd lock us out; an agent that is to start before that is refused at once.
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
from scheduler.ssh.paramiko_adapters import BROKEN
from scheduler.ssh.relay import WINDOW_BYTES, Relay
from scheduler.ssh.remote_agent import RemoteAgent

MAX_AGENTS: Final = 9  # of a connection; the tenth session is the control session
MAX_CONNECTING: Final = 5  # at once: sshd drops some from ten on
CONNECT_LIMIT: Final = 3  # times `connect_s` for all steps of a connection, then it is aborted
MAX_DOUBLINGS: Final = 30
SWEEP_S: Final = 1.0  # for which sshd may still count a session that has ended
NEVER_YET: Final = -1e9


@dataclass(eq=False, slots=True)
class PooledConnection:
    """A connection that is up."""

    connection: Connection
    up_at: float
    max_agents: int
    sessions: int  # that it may still have in its life
    control: ControlSession | None = None
    agents: set[RemoteAgent] = field(default_factory=set)
    idle_since: float = 0.0
    released_at: float = NEVER_YET

    @property
    def has_capacity(self) -> bool:
        """Whether another agent may get a session."""
        return self.sessions > 0 and len(self.agents) < self.max_agents


class ConnectionPool:
    """All connections to one host."""

    def __init__(self, settings: SshSettings, relay: Relay, report: Callable[[Report], None]) -> None:
        self._settings, self._relay, self._loop, self._report = settings, relay, relay.loop, report
        self._pooled: list[PooledConnection] = []
        self._queue: deque[RemoteAgent] = deque()  # agents that wait for capacity
        self._connection_of: dict[RemoteAgent, PooledConnection] = {}
        self._connecting: dict[int, Timer] = {}  # by id() of the connection
        self._max_agents = MAX_AGENTS
        self._failures = 0
        self._back_off: Timer | None = None  # set: no attempt before it
        self._retry_at = 0.0
        self._is_up = False  # as was reported
        self._why_down = ""
        self._connect()

    def start(self, agent: RemoteAgent) -> None:
        """Start an agent as soon as there is capacity for it."""
        self._queue.append(agent)
        self._assign()

    def release(self, agent: RemoteAgent) -> None:
        """Free the session of an agent, or its place in the queue."""
        with suppress(ValueError):
            self._queue.remove(agent)
        pooled = self._connection_of.pop(agent, None)
        if pooled is not None:
            pooled.agents.discard(agent)
            pooled.idle_since = pooled.released_at = self._loop.now
        self._assign()

    # ---- sessions

    def _assign(self) -> None:
        """Open sessions for queued agents, and make connections for the others."""
        control = self._control()
        while self._queue and control and (pooled := next((p for p in self._pooled if p.has_capacity), None)):
            self._start_session(pooled, self._queue.popleft(), pooled.control or control)
        if not self._queue:
            return
        if self._back_off is not None and not self._connecting:
            self._refuse_if_down()
            return
        leaving = sum(agent.is_over for agent in self._connection_of)  # their sessions are free in a moment
        wanted = ceil((len(self._queue) - leaving) / max(self._max_agents, 1)) if control else 1
        while len(self._connecting) < min(wanted, MAX_CONNECTING) and self._back_off is None:
            self._connect()

    def _control(self) -> ControlSession | None:
        """Return a control session of the host; none means that it is down."""
        return next((pooled.control for pooled in self._pooled if pooled.control), None)

    def _refuse_if_down(self) -> None:
        """Refuse all queued agents, unless the host is up: then they wait for capacity, or for the next connection."""
        if self._control():
            return
        queue, self._queue = self._queue, deque()
        for agent in queue:
            agent.refuse(self._why_down)

    def _start_session(self, pooled: PooledConnection, agent: RemoteAgent, control: ControlSession) -> None:
        pooled.agents.add(agent)
        pooled.sessions -= 1
        self._connection_of[agent] = pooled
        Thread(target=self._open_session, args=(pooled, agent, control), daemon=True).start()

    def _open_session(self, pooled: PooledConnection, agent: RemoteAgent, control: ControlSession) -> None:
        """Blocks; in a thread of its own."""
        post, transport = self._relay.calls.post, pooled.connection.transport
        try:
            channel = transport.open_session(WINDOW_BYTES, timeout=self._settings.connect_s)
        except BROKEN as error:
            if transport.is_active() and "Timeout" not in str(error):  # of refusals at once paramiko explains only one
                post(partial(self._session_refused, pooled, agent, str(error)))
            else:
                post(partial(agent.refuse, f"no session: {error or 'the connection broke'}"))
            return
        agent.channel = channel  # so that it can be closed while the host does not answer
        try:
            channel.exec_command(agent.command)
        except BROKEN as error:
            post(partial(agent.refuse, f"the host runs no command: {error}"))
            return
        post(partial(self._session_opened, pooled, agent, channel, control))

    def _session_opened(
        self, pooled: PooledConnection, agent: RemoteAgent, channel: paramiko.Channel, control: ControlSession
    ) -> None:
        if any(control is each.control for each in self._pooled):
            agent.session_opened(channel, pooled.connection.sock, control, control is pooled.control)
        else:
            agent.lose(self._why_down)

    def _session_refused(self, pooled: PooledConnection, agent: RemoteAgent, why: str) -> None:
        """Learn how many sessions a connection holds; the agent waits for another."""
        pooled.agents.discard(agent)
        self._connection_of.pop(agent, None)
        if self._loop.now < pooled.released_at + SWEEP_S:  # sshd may not know yet that a session has ended
            self._queue.appendleft(agent)
            self._loop.at(self._loop.now + SWEEP_S / 5, self._assign)
            return
        pooled.max_agents = min(pooled.max_agents, len(pooled.agents))
        if pooled.control is None and not pooled.agents:
            agent.refuse(f"a new connection allows no session: {why}")
            return
        self._max_agents = min(self._max_agents, max(pooled.max_agents, 1))
        self._queue.appendleft(agent)
        self._assign()

    # ---- connections

    def _connect(self) -> None:
        connection = Connection(self._closed)
        limit = self._loop.now + CONNECT_LIMIT * self._settings.connect_s
        self._connecting[id(connection)] = self._loop.at(limit, connection.abort)
        is_one_each = any(pooled.control and not pooled.max_agents for pooled in self._pooled)
        Thread(target=self._connect_in_thread, args=(connection, not is_one_each), daemon=True).start()

    def _connect_in_thread(self, connection: Connection, with_control: bool) -> None:
        post = self._relay.calls.post
        try:
            connect(self._settings, self._relay, connection, with_control)
        except WorldError as error:
            post(partial(self._failed, connection, str(error)))
        except Exception as error:  # noqa: BLE001  (what a server may send to paramiko has no end)
            post(partial(self._failed, connection, f"{type(error).__name__}: {error}"))
        else:
            post(partial(self._connected, connection))

    def _connected(self, connection: Connection) -> None:
        if connection.is_aborted:
            self._failed(connection, "it took too long")
            return
        if not connection.transport.is_active():
            self._failed(connection, "it closed the connection at once")
            return
        self._connecting.pop(id(connection)).cancel()
        now = self._loop.now
        pooled = PooledConnection(connection, now, self._max_agents, self._settings.sessions, idle_since=now)
        was_up = self._control() is not None
        if connection.control is not None:
            on_lost = partial(self._lose, pooled)
            pooled.control = ControlSession(self._relay, connection.sock, connection.control, on_lost)
        else:
            pooled.max_agents = 1
        self._pooled.append(pooled)
        if not was_up and not self._is_up:
            self._is_up = True
            self._report(LinkUp())
        self._maintain(pooled)
        self._assign()

    def _failed(self, connection: Connection, why: str) -> None:
        self._connecting.pop(id(connection)).cancel()
        connection.abort()
        if self._control():
            self._report(Note(f"no further connection: {why}"))
        self._retry_later(why)

    def _retry_later(self, why: str) -> None:
        """Try again after a back-off that doubles each time, and not for all hosts at the same instant."""
        self._why_down = why
        is_first = self._back_off is None
        if is_first:
            longest, doublings = self._settings.retry_max_s, min(self._failures, MAX_DOUBLINGS)
            delay = min(self._settings.retry_base_s * 2**doublings, longest)
            self._failures += 1
            self._retry_at = self._loop.now + delay * random.uniform(0.5, 1.0)
            self._back_off = self._loop.at(self._retry_at, self._retry)
        if not self._control() and (is_first or self._is_up):
            self._is_up = False
            self._report(LinkDown(why, self._retry_at - self._loop.now))
        if not self._connecting:
            self._refuse_if_down()

    def _retry(self) -> None:
        self._back_off = None
        if not self._control() and not self._connecting:
            self._connect()
        self._assign()

    # ---- what is lost

    def _maintain(self, pooled: PooledConnection) -> None:
        """Close a connection that is unused, drop one that does not answer; else renew its lease, every `beat_s`."""
        if pooled not in self._pooled:
            return
        now, settings = self._loop.now, self._settings
        next_at = now + settings.beat_s
        if self._is_unused(pooled):
            self._drop(pooled)
            return
        if pooled.control is not None:
            if now - pooled.control.confirmed_at >= settings.answer_s:
                self._lose(pooled, f"no answer for {settings.answer_s:g} s")
                return
            pooled.control.beat()
            next_at = min(next_at, pooled.control.confirmed_at + settings.answer_s)
        self._loop.at(next_at, partial(self._maintain, pooled))

    def _is_unused(self, pooled: PooledConnection) -> bool:
        if pooled.agents or (pooled.sessions > 0 and self._loop.now - pooled.idle_since < self._settings.idle_s):
            return False
        is_guarding = pooled.control is not None and any(a.control is pooled.control for a in self._connection_of)
        return not is_guarding and any(other.control for other in self._pooled if other is not pooled)

    def _closed(self, connection: Connection) -> None:
        """Drop a connection whose socket has ended."""
        connection.abort()  # the hops before it
        for pooled in self._pooled:
            if pooled.connection is connection:
                self._lose(pooled, _why_closed(connection))
                return

    def _lose(self, pooled: PooledConnection, why: str) -> None:
        if pooled not in self._pooled:
            return
        self._drop(pooled)
        unguarded = (
            [each for each in self._pooled if not each.control] if pooled.control and not self._control() else []
        )
        for agent, its in list(self._connection_of.items()):
            if its is pooled or (pooled.control is not None and agent.control is pooled.control):
                agent.lose(why)
        for each in unguarded:
            self._drop(each)
        if self._loop.now - pooled.up_at > self._settings.retry_max_s:
            self._failures = 0
        if not self._control():
            self._retry_later(why)

    def _drop(self, pooled: PooledConnection) -> None:
        self._pooled.remove(pooled)
        pooled.connection.abort()


def _why_closed(connection: Connection) -> str:
    error = connection.transport.get_exception()
    if isinstance(error, ConnectionError) and error.strerror:
        return f"the connection broke: {error.strerror}"
    if error is None or isinstance(error, EOFError):
        return "the host closed the connection"
    return f"the connection broke: {error}"
