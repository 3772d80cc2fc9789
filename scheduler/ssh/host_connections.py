"""All connections to one host: how many there are, when another is made, and what is lost with one.

As many agents share a connection as the host allows (MaxSessions, ten by default: nine agents and a control session).
If that is one session, the first connection is for a control session, which then guards the agents of all others. An
agent is lost with its connection or with its control session, whichever goes first. The back-off after a failure keeps
MaxStartups and the penalties of sshd from locking us out; agents that are to start meanwhile are refused at once.
"""

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from math import ceil
from threading import Thread
from typing import Final

from scheduler.drivers.loop import Timer
from scheduler.drivers.ssh_protocol import LinkDown, LinkUp, Moved, Note, Report, SshSettings
from scheduler.errors import WorldError, reason
from scheduler.ssh.connection import SWEEP_S, Connection
from scheduler.ssh.connection_troubles import told
from scheduler.ssh.control_session import ControlSession
from scheduler.ssh.paramiko_io import BROKEN, Relay
from scheduler.ssh.remote_processes import RemoteAgent
from scheduler.ssh.routes import Hop, route

MAX_AGENTS: Final = 9  # of a connection; the tenth session is the control session
MAX_CONNECTING: Final = 5  # at once: sshd drops some from ten on
MAX_DOUBLINGS: Final = 30


class ConnectionPool:
    """All connections to one host."""

    def __init__(self, settings: SshSettings, relay: Relay, report: Callable[[Report], None]) -> None:
        self._settings, self._relay, self._loop, self._report = settings, relay, relay.loop, report
        self._connections: list[Connection] = []  # that are up
        self._connecting: dict[Connection, Timer] = {}
        self._stuck: set[Connection] = set()  # that were given up, and whose threads have not ended
        self._queue: deque[RemoteAgent] = deque()  # agents that wait for capacity
        self._connection_of: dict[RemoteAgent, Connection] = {}
        self._max_agents = MAX_AGENTS
        self._failures = 0
        self._back_off: Timer | None = None  # set: no attempt before it
        self._retry_at = 0.0
        self._is_up = False  # as was reported
        self._why_down = ""
        self._noted: set[str] = set()  # lines of known_hosts that are malformed
        self._connect()

    def start(self, agent: RemoteAgent) -> None:
        """Start an agent as soon as there is capacity for it."""
        self._queue.append(agent)
        self._assign()

    def release(self, agent: RemoteAgent) -> None:
        """Free the session of an agent, or its place in the queue."""
        if agent in self._queue:
            self._queue.remove(agent)
        if connection := self._connection_of.pop(agent, None):
            connection.release(agent)
        self._assign()

    def reread(self) -> None:
        """Read the configuration again: try at once if the host is down, else report whether it leads elsewhere now."""
        if self._control():
            Thread(target=self._compare, daemon=True).start()
        elif self._back_off is not None:
            self._back_off.cancel()
            self._retry()

    def _compare(self) -> None:
        """Compare the route of the configuration with that of the connections; blocks, so it runs in a thread."""
        try:
            hops = route(self._settings)
        except WorldError as error:
            text = f"its connections are kept, as its configuration cannot be followed any more: {error}"
            self._relay.calls.post(partial(self._report, Note(text)))
        else:
            self._relay.calls.post(partial(self._report_if_moved, hops))

    def _report_if_moved(self, hops: list[Hop]) -> None:
        if any(each.hops != hops for each in self._connections):
            self._report(Moved(str(hops[-1])))

    # ---- sessions

    def _assign(self) -> None:
        """Open sessions for queued agents, and make connections for the others."""
        control = self._control()
        while self._queue and control and (connection := next((c for c in self._connections if c.has_capacity), None)):
            agent = self._queue.popleft()
            connection.add(agent)
            self._connection_of[agent] = connection
            args = connection, agent, connection.control or control
            Thread(target=self._open_session, args=args, daemon=True).start()
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
        return next((each.control for each in self._connections if each.control), None)

    def _refuse_if_down(self) -> None:
        """Refuse all queued agents, unless the host is up: then they wait for capacity, or for the next connection."""
        if not self._control():
            queue, self._queue = self._queue, deque()
            for agent in queue:
                agent.refuse(self._why_down)

    def _open_session(self, connection: Connection, agent: RemoteAgent, control: ControlSession) -> None:
        """Open a session for an agent; blocks, so it runs in a thread of its own."""
        post, transport = self._relay.calls.post, connection.transport
        try:
            agent.open_session(transport, self._settings.connect_s)
        except WorldError as error:
            post(partial(agent.refuse, str(error)))
        except BROKEN as error:
            # Of refusals at once paramiko explains only one.
            if transport.is_active() and "Timeout" not in str(error):
                post(partial(self._session_refused, connection, agent, reason(error)))
            else:
                post(partial(agent.refuse, f"no session: {reason(error)}"))
        else:
            post(partial(self._session_opened, connection, agent, control))

    def _session_opened(self, connection: Connection, agent: RemoteAgent, control: ControlSession) -> None:
        if any(control is each.control for each in self._connections):
            agent.session_opened(connection.sock, control)
        else:
            agent.lose(self._why_down)

    def _session_refused(self, connection: Connection, agent: RemoteAgent, why: str) -> None:
        """Learn how many sessions a connection holds; the agent waits for another."""
        self._connection_of.pop(agent, None)
        if not connection.refused(agent):
            self._queue.appendleft(agent)
            self._loop.at(self._loop.now + SWEEP_S / 5, self._assign)
        elif connection.control is None and not connection.agents:
            agent.refuse(f"a new connection allows no session: {why}")
        else:
            self._max_agents = min(self._max_agents, max(connection.max_agents, 1))
            self._queue.appendleft(agent)
            self._assign()

    # ---- connections

    def _connect(self) -> None:
        if len(self._stuck) >= MAX_CONNECTING:
            self._retry_later(self._why_down)
            return
        hops = next((each.hops for each in self._connections), [])
        connection = Connection(self._settings, self._relay, self._closed, hops)
        limit = self._loop.now + self._settings.attempt_s
        self._connecting[connection] = self._loop.at(limit, partial(self._give_up, connection))
        is_one_each = any(each.control and not each.max_agents for each in self._connections)
        Thread(target=self._make, args=(connection, not is_one_each), daemon=True).start()

    def _make(self, connection: Connection, with_control: bool) -> None:
        """Make a connection; blocks, so it runs in a thread of its own."""
        post = self._relay.calls.post
        try:
            connection.make(with_control)
        except WorldError as error:
            post(partial(self._failed, connection, str(error)))
        except Exception as error:  # noqa: BLE001  (what a server may send to paramiko has no end)
            post(partial(self._failed, connection, f"{type(error).__name__}: {reason(error)}"))
        else:
            post(partial(self._connected, connection))

    def _give_up(self, connection: Connection) -> None:
        """Give up making a connection; its thread ends soon, unless a file that it reads blocks it."""
        connection.abort()
        self._stuck.add(connection)
        self._failed(connection, told("late", seconds=self._settings.attempt_s, what=connection.doing))

    def _connected(self, connection: Connection) -> None:
        if connection in self._stuck:
            self._stuck.remove(connection)
            return
        if connection.is_aborted:
            self._failed(connection, "it was given up")
            return
        if not connection.transport.is_active():
            self._failed(connection, told("cut off"))
            return
        self._connecting.pop(connection).cancel()
        connection.come_up(self._max_agents, self._lose)
        self._connections.append(connection)
        for text in dict.fromkeys(connection.notes):
            if text not in self._noted:
                self._noted.add(text)
                self._report(Note(text))
        if self._control() and not self._is_up:
            self._is_up = True
            self._report(LinkUp())
        self._maintain(connection)
        self._assign()

    def _failed(self, connection: Connection, why: str) -> None:
        if connection not in self._connecting:  # what broke was our own doing
            self._stuck.discard(connection)
            return
        self._connecting.pop(connection).cancel()
        connection.abort()
        if self._control():
            self._report(Note(f"no further connection: {why}"))
        self._retry_later(why)

    def _retry_later(self, why: str) -> None:
        """Try again after a back-off that doubles each time, and not for all hosts at the same instant."""
        self._why_down = why
        is_first = self._back_off is None
        if is_first:
            doubled = self._settings.retry_base_s * 2 ** min(self._failures, MAX_DOUBLINGS)
            delay = min(doubled, self._settings.retry_max_s)
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

    def _maintain(self, connection: Connection) -> None:
        """Close a connection that is unused, drop one that does not answer; else renew its lease, every `beat_s`."""
        if connection not in self._connections:
            return
        if self._is_unused(connection):
            self._drop(connection)
            return
        now, answer_s = self._loop.now, self._settings.answer_s
        next_at = now + self._settings.beat_s
        if control := connection.control:
            if now - control.confirmed_at >= answer_s:
                self._lose(connection, f"no answer for {answer_s:g} s")
                return
            control.beat()
            next_at = min(next_at, control.confirmed_at + answer_s)
        self._loop.at(next_at, partial(self._maintain, connection))

    def _is_unused(self, connection: Connection) -> bool:
        """Return whether it has no agents, guards none, and another has a control session too."""
        if not connection.is_idle or not any(each.control for each in self._connections if each is not connection):
            return False
        return connection.control is None or all(a.control is not connection.control for a in self._connection_of)

    def _closed(self, connection: Connection) -> None:
        """Drop a connection whose socket has ended."""
        connection.abort()  # the hops before it
        if connection in self._connections:
            self._lose(connection, connection.why_closed())

    def _lose(self, connection: Connection, why: str) -> None:
        if connection not in self._connections:
            return
        self._drop(connection)
        unguarded = []
        if connection.control and not self._control():
            unguarded = [each for each in self._connections if not each.control]
        if self._loop.now - connection.up_at > self._settings.retry_max_s:
            self._failures = 0
        if not self._control():
            self._retry_later(why)  # first, as a start that fails on a host that is up counts as a death
        for agent, its in list(self._connection_of.items()):
            is_unguarded = connection.control is not None and agent.control is connection.control
            if its is connection or is_unguarded:
                agent.lose(why, None if is_unguarded else agent.control)
        for each in unguarded:
            self._drop(each)

    def _drop(self, connection: Connection) -> None:
        self._connections.remove(connection)
        connection.abort()
