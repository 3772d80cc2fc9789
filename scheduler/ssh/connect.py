"""How one connection comes to be: names and keys looked up, jumps made, the host proved, ourselves proved, its warden.

It blocks, so it runs in a thread of its own; whoever waits for it can hang up at any time. What goes wrong is one
sentence for the operator (WorldError). OpenSSH's configuration is read for Host aliases as ssh(1) does; what would run
a program (ProxyCommand) is refused rather than left out in silence. Nothing is ever forwarded but our own connection
through a jump host; paramiko refuses whatever else a server asks for.
"""

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import paramiko

from scheduler.errors import WorldError
from scheduler.model.ssh_protocol import SshSettings
from scheduler.ssh.openssh_files import HostKeys
from scheduler.ssh.paramiko_adapters import ParamikoSocket
from scheduler.ssh.relay import BROKEN, Relay, Stream
from scheduler.ssh.remote_scripts import MARK, NOISE_BYTES, control_command

SSH_PORT: Final = 22
MOST_JUMPS: Final = 8  # one that jumps over itself has no end
KNOWN_HOSTS: Final = "~/.ssh/known_hosts /etc/ssh/ssh_known_hosts"
JUMP_WINDOW_BYTES: Final = 2_097_152  # a whole connection goes through it
EXIT_SIGNAL: Final = "drover_exit_signal"
ON_EXIT: Final = "drover_on_exit"

HANDLERS: Final[dict[int, Callable[[Any, Any], None]]] = paramiko.Transport._channel_handler_table
CHANNEL_REQUEST: Final = paramiko.common.MSG_CHANNEL_REQUEST


@dataclass(frozen=True, slots=True)
class Hop:
    """One host on the way, the last one ours."""

    address: str
    port: int
    user: str
    known_as: str
    known_hosts: tuple[Path, ...]
    identities: tuple[str, ...]
    asks_agent: bool
    looks_for_keys: bool

    def __str__(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"


@dataclass(slots=True)
class Connection:
    """One that is being made or was: what is to be hung up when it ends."""

    closed: Callable[["Connection"], object]
    wires: list[ParamikoSocket] = field(default_factory=list)
    clients: list[paramiko.SSHClient] = field(default_factory=list)
    warden: paramiko.Channel | None = None
    is_hung_up: bool = False

    @property
    def transport(self) -> paramiko.Transport:
        """The one that reaches the host itself."""
        return self.clients[-1].get_transport()

    @property
    def wire(self) -> ParamikoSocket:
        """Its socket, or what stands for one."""
        return self.wires[-1]

    def hang_up(self) -> None:
        """End it, from any thread."""
        self.is_hung_up = True
        for wire in self.wires:
            wire.hang_up()


def _take_request(channel: Any, message: paramiko.Message) -> None:
    """Take what the host says of a channel; runs in paramiko's thread."""
    begin = message.packet.tell()
    kind, _ = message.get_text(), message.get_boolean()
    if kind == "exit-signal":
        setattr(channel, EXIT_SIGNAL, message.get_text())
    message.packet.seek(begin)
    HANDLERS[CHANNEL_REQUEST](channel, message)
    if kind in ("exit-signal", "exit-status") and (tell := getattr(channel, ON_EXIT, None)):
        tell()


class Transport(paramiko.Transport):  # type: ignore[misc]
    """One that tells when a program has ended, and of which signal, which paramiko throws away."""

    _channel_handler_table: Final = {**HANDLERS, CHANNEL_REQUEST: _take_request}


def connect(settings: SshSettings, relay: Relay, connection: Connection, with_warden: bool) -> None:
    """Make a connection. Errors: WorldError; then it is hung up."""
    try:
        for hop in route(settings):
            _hop(settings, relay, connection, hop)
        if with_warden:
            connection.warden = _warden(settings, connection.transport)
    except BaseException:
        connection.hang_up()
        raise


def route(settings: SshSettings) -> list[Hop]:
    """Give the way to a host, by OpenSSH's configuration. Errors: WorldError."""
    name, _, port = (settings.address or settings.host).rpartition(":")
    if not name or not port.isdigit() or name.count(":"):  # a bare name, or an IPv6 address
        name, port = settings.address or settings.host, ""
    config = _config(Path(settings.ssh_config).expanduser())
    try:
        options = config.lookup(name.strip("[]"))
        *jumps, _ = _aliases(config, name.strip("[]"))
    except (paramiko.SSHException, OSError, ValueError) as error:
        raise WorldError(f"{settings.ssh_config}: {error}") from error
    own = _hop_of(options, settings, user=settings.user, port=port, identity=settings.identity)
    return [*(_jump(config, settings, jump) for jump in jumps), own]


def _config(path: Path) -> paramiko.SSHConfig:
    try:
        return paramiko.SSHConfig.from_text(path.read_text())
    except FileNotFoundError:
        return paramiko.SSHConfig()
    except (OSError, UnicodeDecodeError, paramiko.SSHException) as error:
        raise WorldError(f"cannot read {path}: {error}") from error


def _aliases(config: paramiko.SSHConfig, name: str, depth: int = 0) -> list[str]:
    """Give the jumps before a host and the host; the jumps of the first jump come before it."""
    options = config.lookup(name)
    if options.get("proxycommand", "none") not in (None, "none"):
        raise ValueError(f"ProxyCommand of {name} is not supported; use ProxyJump")
    if depth > MOST_JUMPS:
        raise ValueError(f"ProxyJump of {name} has no end")
    jumps = options.get("proxyjump", "none")
    if jumps == "none":
        return [name]
    first, *others = (word.strip() for word in jumps.split(","))
    *before, _ = _aliases(config, _split(first)[1], depth + 1)
    return [*before, first, *others, name]


def _split(word: str) -> tuple[str, str, str]:
    """Give user, name and port of [ssh://][user@]host[:port]."""
    user, _, rest = word.removeprefix("ssh://").rpartition("@")
    name, _, port = rest.rpartition(":")
    return (user, name.strip("[]"), port) if name and port.isdigit() else (user, rest.strip("[]"), "")


def _jump(config: paramiko.SSHConfig, settings: SshSettings, word: str) -> Hop:
    user, name, port = _split(word)
    return _hop_of(config.lookup(name), settings, user=user, port=port, identity="")


def _hop_of(options: dict[str, Any], settings: SshSettings, *, user: str, port: str, identity: str) -> Hop:
    address, number = options["hostname"], int(port or options.get("port", SSH_PORT))
    files = settings.known_hosts or options.get("userknownhostsfile") or KNOWN_HOSTS
    plain = address if number == SSH_PORT else f"[{address}]:{number}"
    return Hop(
        address,
        number,
        user or options.get("user") or getpass.getuser(),
        options.get("hostkeyalias") or plain,
        tuple(Path(word).expanduser() for word in files.split()),
        *_identities(options, identity or settings.identity if "identityfile" not in options else identity),
    )


def _identities(options: dict[str, Any], identity: str) -> tuple[tuple[str, ...], bool, bool]:
    """Give key files, whether the agent is asked, whether the usual files are looked at."""
    if identity == "agent":
        return (), True, False
    if identity:
        return (str(Path(identity).expanduser()),), False, False
    named = [*options.get("identityfile", ()), *options.get("certificatefile", ())]
    there = [path for path in (str(Path(word).expanduser()) for word in named) if os.path.isfile(path)]
    return tuple(there), options.get("identitiesonly") != "yes", not named


def _hop(settings: SshSettings, relay: Relay, connection: Connection, hop: Hop) -> None:
    host_keys = HostKeys(hop.known_as, hop.known_hosts)
    try:
        sock = _through(settings, relay, connection, hop) if connection.clients else _socket(settings, hop)
        wire = ParamikoSocket(sock, relay.loop, relay.calls, lambda: connection.closed(connection))
        connection.wires.append(wire)
        _log_in(settings, connection, hop, host_keys, wire)
    except WorldError as error:
        raise WorldError(f"{hop}: {error}") from error
    except (*BROKEN, ValueError) as error:
        raise WorldError(f"{hop}: {_sentence(error, settings, hop)}") from error


def _socket(settings: SshSettings, hop: Hop) -> socket.socket:
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


def _through(settings: SshSettings, relay: Relay, connection: Connection, hop: Hop) -> socket.socket:
    """Give a socket to the next host: a channel of the connection to this one, pumped as an agent's is."""
    channel = connection.transport.open_channel(
        "direct-tcpip", (hop.address, hop.port), ("127.0.0.1", 0), JUMP_WINDOW_BYTES, timeout=settings.connect_s
    )
    near, far = socket.socketpair()
    fds = far.detach()
    stream = Stream(relay, connection.wire, channel, fds, (os.dup(fds),), lambda: None)
    relay.calls.post(stream.begin)
    return near


def _log_in(settings: SshSettings, connection: Connection, hop: Hop, host_keys: HostKeys, wire: ParamikoSocket) -> None:
    client = paramiko.SSHClient()  # it knows no host keys, so it asks `host_keys` about any
    client.set_missing_host_key_policy(host_keys)
    connection.clients.append(client)

    def transport(sock: ParamikoSocket, **_more: object) -> Transport:
        made = Transport(sock)
        options = made.get_security_options()
        options.key_types = host_keys.first(options.key_types)
        options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)  # others do their MAC in Python
        return made

    client.connect(
        hop.address,
        hop.port,
        hop.user,
        key_filename=list(hop.identities),
        allow_agent=hop.asks_agent,
        look_for_keys=hop.looks_for_keys,
        sock=wire,
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


# ---- the warden's session


def _warden(settings: SshSettings, transport: paramiko.Transport) -> paramiko.Channel:
    try:
        channel = transport.open_session(timeout=settings.connect_s)
        channel.exec_command(control_command(settings.lease_s))
        channel.settimeout(settings.connect_s)
        _await_mark(channel)
    except BROKEN as error:
        raise WorldError(f"it runs no commands for us: {error or 'no answer'}") from error
    return channel


def _await_mark(channel: paramiko.Channel) -> None:
    heard = b""
    while not MARK.search(heard):
        data = channel.recv(NOISE_BYTES)
        if not data or len(heard) > NOISE_BYTES:
            with suppress(*BROKEN):
                heard += channel.recv_stderr(NOISE_BYTES)
            raise paramiko.SSHException(f"its shell said {heard[:200]!r} and no more")
        heard += data
