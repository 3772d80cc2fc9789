"""Make one connection: resolve, jump, check the host key, log in, and start the control session.

It blocks, so it runs in a thread of its own, and another thread can abort it at any time. What goes wrong is one
sentence for the operator (WorldError). Nothing is ever forwarded but our own connection through a jump host; paramiko
refuses whatever else a server asks for.
"""

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import paramiko

from scheduler.errors import WorldError
from scheduler.model.ssh_protocol import SshSettings
from scheduler.ssh.control_session import start_control_session
from scheduler.ssh.openssh_files import Hop, HostKeys, route
from scheduler.ssh.paramiko_adapters import BROKEN, ParamikoSocket, Transport
from scheduler.ssh.relay import Relay, Stream

JUMP_WINDOW_BYTES: Final = 2_097_152  # a whole connection goes through it


@dataclass(slots=True)
class Connection:
    """A connection that is being made, or was: its clients and sockets, one for each hop."""

    on_closed: Callable[["Connection"], object]
    socks: list[ParamikoSocket] = field(default_factory=list)
    clients: list[paramiko.SSHClient] = field(default_factory=list)
    control: paramiko.Channel | None = None
    is_aborted: bool = False

    @property
    def transport(self) -> paramiko.Transport:
        """The transport that reaches the host itself."""
        return self.clients[-1].get_transport()

    @property
    def sock(self) -> ParamikoSocket:
        """The socket of the last hop."""
        return self.socks[-1]

    def abort(self) -> None:
        """End it, from any thread."""
        self.is_aborted = True
        for sock in self.socks:
            sock.shut_down()


def connect(settings: SshSettings, relay: Relay, connection: Connection, with_control: bool) -> None:
    """Make a connection. Errors: WorldError; then it is aborted."""
    try:
        for hop in route(settings):
            _connect_hop(settings, relay, connection, hop)
        if with_control:
            connection.control = start_control_session(connection.transport, settings)
    except BaseException:
        connection.abort()
        raise


def _connect_hop(settings: SshSettings, relay: Relay, connection: Connection, hop: Hop) -> None:
    keys = HostKeys(hop.known_as, hop.known_hosts)
    try:
        sock = _tunnel(settings, relay, connection, hop) if connection.clients else _tcp_socket(settings, hop)
        wrapped = ParamikoSocket(sock, relay.loop, relay.calls, lambda: connection.on_closed(connection))
        connection.socks.append(wrapped)
        _log_in(settings, connection, hop, keys, wrapped)
    except WorldError as error:
        raise WorldError(f"{hop}: {error}") from error
    except (*BROKEN, ValueError) as error:
        raise WorldError(f"{hop}: {_sentence(error, settings, hop)}") from error


def _tcp_socket(settings: SshSettings, hop: Hop) -> socket.socket:
    sock = socket.create_connection((hop.address, hop.port), settings.connect_s)
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.answer_s * 1000)),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(int(settings.beat_s), 1)),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(int(settings.beat_s), 1)),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ):
        sock.setsockopt(level, option, value)
    return sock


def _tunnel(settings: SshSettings, relay: Relay, connection: Connection, hop: Hop) -> socket.socket:
    """Return a socket to the next hop: a channel of the connection to this one, relayed as an agent's is."""
    channel = connection.transport.open_channel(
        "direct-tcpip", (hop.address, hop.port), ("127.0.0.1", 0), JUMP_WINDOW_BYTES, timeout=settings.connect_s
    )
    ours, theirs = socket.socketpair()
    fd = theirs.detach()
    stream = Stream(relay, connection.sock, channel, fd, (os.dup(fd),), lambda: None)
    relay.calls.post(stream.begin)
    return ours


def _log_in(settings: SshSettings, connection: Connection, hop: Hop, keys: HostKeys, sock: ParamikoSocket) -> None:
    client = paramiko.SSHClient()  # it knows no host keys, so it asks `keys` about any
    client.set_missing_host_key_policy(keys)
    connection.clients.append(client)

    def transport(sock: ParamikoSocket, **_more: object) -> Transport:
        made = Transport(sock)
        options = made.get_security_options()
        options.key_types = keys.known_first(options.key_types)
        options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)  # others do their MAC in Python
        return made

    client.connect(
        hop.address,
        hop.port,
        hop.user,
        key_filename=list(hop.identities),
        allow_agent=hop.asks_agent,
        look_for_keys=hop.looks_for_keys,
        sock=sock,
        timeout=settings.connect_s,
        banner_timeout=settings.connect_s,
        auth_timeout=settings.connect_s,
        channel_timeout=settings.connect_s,
        transport_factory=transport,
    )


def _sentence(error: Exception, settings: SshSettings, hop: Hop) -> str:
    match error:
        case paramiko.PasswordRequiredException():
            return "its key is protected by a passphrase, and nobody is there to type it; load it into an SSH agent"
        case paramiko.AuthenticationException() if "timeout" not in str(error).lower():
            return f"none of our keys is accepted ({', '.join(_tried(hop)) or 'there is none'})"
        case paramiko.ChannelException():
            return f"the host before it does not let us through ({error})"
        case socket.gaierror():
            return f"its name cannot be resolved ({error.strerror})"
        case TimeoutError():
            return f"no answer within {settings.connect_s:g} s"
        case FileNotFoundError():
            return f"the key file {error.filename} does not exist"
        case EOFError():
            return "it closed the connection while it was being made"
        case OSError():
            return error.strerror or str(error)
    return str(error)


def _tried(hop: Hop) -> Iterator[str]:
    yield from hop.identities
    if hop.asks_agent:
        yield "those of the SSH agent"
    if hop.looks_for_keys:
        yield "~/.ssh/id_*"
