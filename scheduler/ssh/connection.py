"""One connection to a host: how it is made, the agents on it, and why it has ended.

It is made hop by hop (host key, log-in, control session), then shared by agents. Making it blocks, so that has a thread
of its own, and another thread can abort it at any time. Nothing is forwarded but our own connection through a jump
host; paramiko refuses whatever else a server asks for.
"""

import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

import paramiko

from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import WorldError, reason
from scheduler.ssh.connection_troubles import why_not_connected
from scheduler.ssh.control_session import ControlSession, start_control_session
from scheduler.ssh.heard_transport import HeardTransport
from scheduler.ssh.known_hosts import HostKeys
from scheduler.ssh.log_in import log_in, unused_keys
from scheduler.ssh.paramiko_io import BROKEN, ParamikoSocket, Relay, Stream
from scheduler.ssh.remote_processes import RemoteAgent
from scheduler.ssh.routes import Hop, route

JUMP_WINDOW_BYTES: Final = 2_097_152  # a whole connection goes through it
SWEEP_S: Final = 1.0  # for which sshd may still count a session that has ended
NEVER_YET: Final = -1e9


class Connection:
    """A connection that is being made, is up, or was: a transport and a socket for each hop, and the agents on it.

    `hops` are those of a connection that is up, so that all lead to one machine; if there is none they are found anew.
    """

    def __init__(
        self, settings: SshSettings, relay: Relay, on_closed: Callable[["Connection"], object], hops: list[Hop]
    ) -> None:
        self._settings, self._relay, self._on_closed = settings, relay, on_closed
        self.hops = hops
        self.notes: list[str] = []  # on what was read
        self._socks: list[ParamikoSocket] = []
        self._transports: list[HeardTransport] = []
        self._control_channel: tuple[paramiko.Channel, str] | None = None  # and its word
        self.is_aborted = False
        self.doing = "the configuration is read"  # while it is being made
        self.control: ControlSession | None = None
        self.agents: set[RemoteAgent] = set()
        self.max_agents = 0  # at once
        self._sessions = settings.sessions  # that it may still have: paramiko remembers every one
        self.up_at = self._idle_since = 0.0
        self._released_at = NEVER_YET

    @property
    def transport(self) -> paramiko.Transport:
        """The transport that reaches the host itself."""
        return self._transports[-1]

    @property
    def sock(self) -> ParamikoSocket:
        return self._socks[-1]

    def abort(self) -> None:
        """End it, from any thread."""
        self.is_aborted = True
        for sock in self._socks:
            sock.shut_down()

    # ---- while it is being made, in a thread of its own

    def make(self, with_control: bool) -> None:
        """Connect, and start a control session. Errors: WorldError; then it is aborted."""
        try:
            self.hops = self.hops or route(self._settings)
            for hop in self.hops:
                if self.is_aborted:
                    raise WorldError("it took too long")
                self._connect_hop(hop)
            self.doing = "its control session begins"
            if with_control:
                self._control_channel = start_control_session(self.transport, self._settings)
        except BaseException:
            self.abort()
            raise

    def _connect_hop(self, hop: Hop) -> None:
        self.doing = f"the known_hosts files for {hop} are read"
        keys = HostKeys(hop.known_as, hop.known_hosts, hop.trusting)
        self.notes += keys.malformed
        transport = None
        self.doing = f"{hop} is connected, and the files of keys for it are read"
        try:
            sock = self._tunnel(hop) if self._transports else self._tcp_socket(hop)
            calls = self._relay.calls
            self._socks.append(ParamikoSocket(sock, self._relay.loop, calls, lambda: self._on_closed(self)))
            transport = HeardTransport(self._socks[-1], self._settings.rekey_bytes, unused_keys(hop))
            log_in(transport, hop, keys, self._settings.connect_s)
            self._transports.append(transport)
        except WorldError as error:
            raise WorldError(f"{hop}: {error}") from error
        except (*BROKEN, ValueError) as error:
            why = why_not_connected(error, hop, self._settings.connect_s, transport)
            raise WorldError(f"{hop}: {why}") from error

    def _tcp_socket(self, hop: Hop) -> socket.socket:
        sock = hop.connected(self._settings.connect_s)
        beat_s = max(int(self._settings.beat_s), 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_NODELAY, 1),
            (socket.TCP_USER_TIMEOUT, int(self._settings.answer_s * 1000)),
            (socket.TCP_KEEPIDLE, beat_s),
            (socket.TCP_KEEPINTVL, beat_s),
            (socket.TCP_KEEPCNT, 3),
        ):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        return sock

    def _tunnel(self, hop: Hop) -> socket.socket:
        """Return a socket to the next hop: a channel of the connection to this one, relayed as an agent's is."""
        target, connect_s = (hop.address, hop.port), self._settings.connect_s
        channel = self.transport.open_channel(
            "direct-tcpip", target, ("127.0.0.1", 0), JUMP_WINDOW_BYTES, timeout=connect_s
        )
        ours, theirs = socket.socketpair()
        fd = theirs.detach()
        stream = Stream(self._relay, self.sock, channel, fd, (os.dup(fd),), lambda: None)
        self._relay.calls.post(stream.begin)
        return ours

    # ---- when it is up, in the thread of the loop

    def come_up(self, max_agents: int, on_lost: Callable[["Connection", str], None]) -> None:
        """Serve agents from now on; `on_lost` is called when the control session is lost."""
        self.up_at = self._idle_since = self._relay.loop.now
        self.max_agents = max_agents if self._control_channel else 1
        if self._control_channel:
            self.control = ControlSession(self._relay, self.sock, *self._control_channel, partial(on_lost, self))

    @property
    def has_capacity(self) -> bool:
        """Return whether another agent may get a session."""
        return self._sessions > 0 and len(self.agents) < self.max_agents

    @property
    def is_idle(self) -> bool:
        """Return whether it has had no agents for long, or has none and may have no more."""
        is_long = self._relay.loop.now - self._idle_since >= self._settings.idle_s
        return not self.agents and (is_long or self._sessions <= 0)

    def add(self, agent: RemoteAgent) -> None:
        """Use a session for an agent."""
        self.agents.add(agent)
        self._sessions -= 1

    def release(self, agent: RemoteAgent) -> None:
        self.agents.discard(agent)
        self._idle_since = self._released_at = self._relay.loop.now

    def refused(self, agent: RemoteAgent) -> bool:
        """Take no more agents than it has, as it got no session for this one; False if that may pass in a moment."""
        self.agents.discard(agent)
        if self._relay.loop.now < self._released_at + SWEEP_S:
            return False
        self.max_agents = min(self.max_agents, len(self.agents))
        return True

    def why_closed(self) -> str:
        """Return why it has ended, if we did not end it."""
        error = self.transport.get_exception()
        if error is None or isinstance(error, EOFError):
            return "the host closed the connection"
        return f"the connection broke: {reason(error)}"
