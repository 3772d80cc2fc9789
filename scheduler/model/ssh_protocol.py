"""The packets between the supervisor and the SSH process of a host: requests, reports, and their bytes.

A packet is a JSON list, the name of a class and its fields; after it, for a Start, come a NUL and the words, each
ended by a NUL, as they are: arguments are bytes and need not be text.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Final, get_args

from scheduler.errors import BugError

PACKET_BYTES: Final = 200_000  # what a socket takes at once with the buffer that Linux gives by default
TOO_LONG: Final = "its arguments are longer than 128 KiB, which is what one SSH command can hold"


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
    ping_s: float = 5.0  # between two questions of the daemon to the SSH process whether it runs
    max_pings: int = 4  # that may stay unanswered; then it hangs, and is killed


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
class Close:
    """Kill all agents, report their ends, and exit."""


Request = Start | Signal | Ping | Close


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
class Note:
    """A sentence for the log."""

    text: str


Report = Started | NotStarted | Ended | Lost | LinkUp | LinkDown | Note | Pong

REQUESTS: Final = {kind.__name__: kind for kind in get_args(Request)}
REPORTS: Final = {kind.__name__: kind for kind in get_args(Report)}


def pack(message: Request | Report) -> bytes:
    """Return the packet of a message."""
    name = type(message).__name__
    if not isinstance(message, Start):
        return json.dumps([name, asdict(message)]).encode()
    variables = (name + b"=" + text for name, text in message.environment.items())
    words = (message.directory, *message.argv, *variables)
    head = json.dumps([name, {"id": message.id, "argc": len(message.argv)}])
    return b"\0".join((head.encode(), *words))


def unpack_request(packet: bytes) -> Request:
    """Return the request of a packet. Errors: BugError."""
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
    """Return the report of a packet. Errors: BugError."""
    try:
        name, fields = json.loads(packet)
        report: Report = REPORTS[name](**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise BugError(f"no report of an SSH process: {packet[:100]!r}") from error
    return report


def _start(id: int, argc: int, words: list[bytes]) -> Start:
    directory, *rest = words
    variables = (word.partition(b"=") for word in rest[argc:])
    return Start(id, tuple(rest[:argc]), {name: text for name, _, text in variables}, directory)
