"""What a supervisor and the bridge of a host say to each other: requests, reports, and the bytes of one packet.

A packet is a JSON list, the name of a class and its fields; after it, for a Start, come a NUL and the words, each
ended by a NUL, as they are: arguments are bytes and need not be text.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Final

from scheduler.errors import BugError

PACKET_BYTES: Final = 200_000  # what a socket takes at once with the buffer that Linux gives anybody
TOO_LONG: Final = "its arguments are longer than 128 KiB, which is what one SSH command can hold"


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How a host is reached; empty is what ssh(1) would do. Lengths in seconds."""

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
    answer_s: float = 16.0  # without an answered beat the link is lost; > beat_s + lease_s: agents are dead
    lease_s: int = 10  # without a beat the warden kills
    orphan_s: float = 5.0  # for the output of an agent that has ended, while somebody else holds its pipes
    idle_s: float = 60.0  # an unused connection is closed, unless it is the last
    sessions: int = 10_000  # of agents that a connection has in its life; another takes its place


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
    """Say that you are there."""


@dataclass(frozen=True, slots=True)
class Close:
    """Kill all agents, tell their ends, and end."""


Request = Start | Signal | Ping | Close


@dataclass(frozen=True, slots=True)
class Started:
    """It runs, under this pid of its host."""

    id: int
    pid: int


@dataclass(frozen=True, slots=True)
class NotStarted:
    """It never ran and never will; lost: for want of a way to the host."""

    id: int
    why: str
    is_items_fault: bool = False
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """It has exited with a code or died of a signal; what it said may still be in its pipes."""

    id: int
    code: int | None = None
    signal: str | None = None  # without SIG; "" when the host did not say which


@dataclass(frozen=True, slots=True)
class Lost:
    """Its connection broke: it dies with that, and nobody can say what it did last."""

    id: int
    why: str


@dataclass(frozen=True, slots=True)
class Pong:
    """The bridge is there."""


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The host can be reached."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The host cannot be reached; the next attempt comes in so many seconds."""

    why: str
    retry_s: float


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for the log."""

    text: str


Report = Started | NotStarted | Ended | Lost | LinkUp | LinkDown | Note | Pong

REQUESTS: Final = {kind.__name__: kind for kind in (Start, Signal, Ping, Close)}
REPORTS: Final = {kind.__name__: kind for kind in (Started, NotStarted, Ended, Lost, LinkUp, LinkDown, Note, Pong)}


def pack(message: Request | Report) -> bytes:
    """Give the packet of a message."""
    name = type(message).__name__
    if not isinstance(message, Start):
        return json.dumps([name, asdict(message)]).encode()
    variables = (name + b"=" + text for name, text in message.environment.items())
    words = (message.directory, *message.argv, *variables)
    head = json.dumps([name, {"id": message.id, "argc": len(message.argv)}])
    return b"\0".join((head.encode(), *words))


def unpack_request(packet: bytes) -> Request:
    """Give the request of a packet; a BugError if it is none."""
    head, *words = packet.split(b"\0")
    try:
        name, fields = json.loads(head)
        if name == "Start":
            return _start(fields["id"], fields["argc"], words)
        request: Request = REQUESTS[name](**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise BugError(f"no request of ours: {head[:100]!r}") from error
    return request


def unpack_report(packet: bytes) -> Report:
    """Give the report of a packet; a BugError if it is none."""
    try:
        name, fields = json.loads(packet)
        report: Report = REPORTS[name](**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise BugError(f"no report of a bridge: {packet[:100]!r}") from error
    return report


def _start(id: int, argc: int, words: list[bytes]) -> Start:
    directory, *rest = words
    variables = (word.partition(b"=") for word in rest[argc:])
    return Start(id, tuple(rest[:argc]), {name: text for name, _, text in variables}, directory)
