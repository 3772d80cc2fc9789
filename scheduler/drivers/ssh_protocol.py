"""Between the supervisor and the SSH process of a host: requests, reports, their packets, and the socket.

A packet is a JSON list, the name of a class and its fields; after it, for a Start, come a NUL and the words, each
ended by a NUL, as they are: arguments are bytes and need not be text. The descriptors of a Start come with its packet.
"""

import errno
import json
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from select import EPOLLIN, EPOLLOUT
from typing import Final, TypeVar, get_args

from scheduler.drivers.loop import Loop
from scheduler.drivers.os_calls import close_all
from scheduler.errors import BugError

PACKET_BYTES: Final = 200_000  # what a socket takes at once with the buffer that Linux gives by default
WORD_BYTES: Final = 131_071  # of an argument, or a variable with its name: Linux takes no more
TOO_LONG: Final = "its arguments are too long: one may have 128 KiB, and all together 192 KiB"
NOT_FOUND: Final = ": not found"  # the end of what the host says of a program that it does not have
PIPES: Final = 3  # that come with the start of an agent
MAX_PACKETS: Final = 64  # received in one iteration of the loop
RESEND_S: Final = 0.1
STEPS: Final = 3  # of a connection, each of which may take `connect_s`


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How a host is reached; empty is what ssh(1) would do. Times in seconds."""

    host: str  # as the configuration names it; for messages, and where `address` is empty
    address: str = ""  # host or host:port; a Host alias of the OpenSSH configuration too
    user: str = ""
    identity: str = ""  # a key file; "agent" for those of the SSH agent alone
    known_hosts: str = ""
    ssh_config: str = "~/.ssh/config"
    connect_s: float = 10.0
    retry_base_s: float = 1.0
    retry_max_s: float = 60.0
    beat_s: float = 4.0
    answer_s: float = 16.0  # without an answer the connection is lost; > beat_s + lease_s: agents are dead by then
    lease_s: int = 10  # without a heartbeat the control session kills all agents
    orphan_s: float = 5.0  # for the output of an agent that has ended, while another process holds its pipes
    idle_s: float = 60.0  # an unused connection is closed, unless it is the last
    sessions: int = 10_000  # of agents that a connection serves in its life; then it is replaced
    rekey_bytes: int = 1 << 29  # sent or received under the same keys; then new ones are exchanged
    ping_s: float = 5.0  # between two questions of the daemon to the SSH process whether it runs
    max_pings: int = 4  # that may stay unanswered; then it hangs, and is killed

    @property
    def attempt_s(self) -> float:
        """Return how long one attempt to reach the host may take, with all steps of a connection."""
        return STEPS * self.connect_s


@dataclass(frozen=True, slots=True)
class Start:
    """Start a program between three pipe ends, which come with the packet."""

    id: int
    argv: tuple[bytes, ...]
    environment: dict[bytes, bytes] = field(default_factory=dict)
    directory: bytes = b""  # empty: the home directory


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to the process group of an agent; harmless when it is gone."""

    id: int
    name: str  # without SIG


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer with Pong."""


@dataclass(frozen=True, slots=True)
class Reread:
    """Read OpenSSH's configuration again: try at once if the host is down, and report Moved if it leads elsewhere."""


@dataclass(frozen=True, slots=True)
class Close:
    """Kill all agents, report their ends, and exit."""


Request = Start | Signal | Ping | Reread | Close


@dataclass(frozen=True, slots=True)
class Started:
    """It runs, under this pid on its host."""

    id: int
    pid: int


@dataclass(frozen=True, slots=True)
class NotStarted:
    """It never ran and never will; `is_lost`: because the host is not connected."""

    id: int
    why: str
    is_items_fault: bool = False
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """It has exited with a code or died of a signal; its last output may still be in its pipes."""

    id: int
    code: int | None = None
    signal: str | None = None  # without SIG; "" when the host did not say which


@dataclass(frozen=True, slots=True)
class Lost:
    """Its connection was lost: it dies with that, and what it did last is unknown."""

    id: int
    why: str


@dataclass(frozen=True, slots=True)
class Left:
    """It runs as another user on its host, which refuses to kill it: it lives on, and we are not told of its end."""

    id: int
    pid: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The SSH process answers a Ping."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The host is connected."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The host cannot be reached; the next attempt is in `retry_s` seconds."""

    why: str
    retry_s: float


@dataclass(frozen=True, slots=True)
class Moved:
    """OpenSSH's configuration leads to another place than the connections that are up, or there in another way."""

    to: str


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for the log."""

    text: str


Report = Started | NotStarted | Ended | Lost | Left | LinkUp | LinkDown | Moved | Note | Pong

REQUESTS: Final[dict[str, type[Request]]] = {kind.__name__: kind for kind in get_args(Request)}
REPORTS: Final[dict[str, type[Report]]] = {kind.__name__: kind for kind in get_args(Report)}

Message = TypeVar("Message", bound=Request | Report)


def pack(message: Request | Report) -> bytes:
    name = type(message).__name__
    if not isinstance(message, Start):
        return json.dumps([name, asdict(message)]).encode()
    head = json.dumps([name, {"id": message.id, "argc": len(message.argv)}]).encode()
    variables = (name + b"=" + text for name, text in message.environment.items())
    return b"\0".join((head, message.directory, *message.argv, *variables))


def unpack(packet: bytes, kinds: dict[str, type[Message]]) -> Message:
    """Return the message of a packet, which is one of these kinds. Errors: BugError."""
    head, *words = packet.split(b"\0")
    try:
        name, fields = json.loads(head)
        if words:
            directory, *words = words
            argc = fields.pop("argc")
            variables = (word.partition(b"=") for word in words[argc:])
            environment = {name: text for name, _, text in variables}
            fields |= {"argv": tuple(words[:argc]), "environment": environment, "directory": directory}
        return kinds[name](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BugError(f"no {' or '.join(kinds)}: {head[:100]!r}") from error


class PacketSocket:
    """One end of the socket, which never blocks and keeps packets in order.

    `on_packet` gets each packet and its descriptors; `on_end` is called once the other end is closed.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_packet: Callable[[bytes, tuple[int, ...]], object],
        on_end: Callable[[], object],
    ) -> None:
        self._loop, self._sock, self._on_packet, self._on_end = loop, sock, on_packet, on_end
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._is_frozen = False
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * PACKET_BYTES)
        sock.setblocking(False)
        loop.register(sock.fileno(), EPOLLIN, self._ready)

    @property
    def is_open(self) -> bool:
        """Return whether it was not closed by us."""
        return self._sock.fileno() >= 0

    def send(self, packet: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a packet, now or when the socket takes it; its descriptors are closed then."""
        self._unsent.append((packet, fds))
        if len(self._unsent) == 1 and not self._is_frozen:
            self._send()

    @property
    def has_unsent(self) -> bool:
        """Return whether packets wait that the socket did not take."""
        return bool(self._unsent)

    def fileno(self) -> int:
        return self._sock.fileno()

    def freeze(self) -> None:
        """Neither send nor receive until `thaw`."""
        if self.is_open and not self._is_frozen:
            self._is_frozen = True
            self._loop.unregister(self._sock.fileno())

    def thaw(self) -> None:
        """Send and receive again."""
        if self.is_open and self._is_frozen:
            self._is_frozen = False
            self._loop.register(self._sock.fileno(), EPOLLIN, self._ready)
            if self._unsent:
                self._send()

    def receive_all(self) -> None:
        """Receive what has come, though the loop has not reported it."""
        while self._receive_one():
            pass

    def close(self) -> None:
        """Close it, and what was not sent."""
        while self._unsent:
            close_all(self._unsent.popleft()[1])
        if self.is_open:
            self._loop.unregister(self._sock.fileno())
            self._sock.close()

    def _ready(self, mask: int) -> None:
        if mask & EPOLLOUT:
            self._send()
        if mask & ~EPOLLOUT:
            for _ in range(MAX_PACKETS):
                if not self._receive_one():
                    return

    def _send(self) -> None:
        if not self.is_open:
            return
        try:
            while self._unsent:
                packet, fds = self._unsent[0]
                socket.send_fds(self._sock, [packet], fds)
                self._unsent.popleft()
                close_all(fds)
            self._loop.modify(self._sock.fileno(), EPOLLIN)
        except BlockingIOError:
            self._loop.modify(self._sock.fileno(), EPOLLIN | EPOLLOUT)
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # more files in sockets than we may have
                self._loop.at(self._loop.now + RESEND_S, self._send)
            # else the other end is closed, which is read too

    def _receive_one(self) -> bool:
        """Receive one packet; False when there is none."""
        if not self.is_open:
            return False
        try:
            packet, fds, _, _ = socket.recv_fds(self._sock, PACKET_BYTES, PIPES)
        except BlockingIOError:
            return False
        except OSError:  # the other end was closed before it read all packets
            packet, fds = b"", []
        if not packet:
            self._loop.unregister(self._sock.fileno())
            self._on_end()
            return False
        self._on_packet(packet, tuple(fds))
        return True
