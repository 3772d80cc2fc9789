"""Send one HTTP request, follow its redirects, and return the answer. Bounded in time, in bytes and in steps.

Each address is looked at before anything is sent to it, those of redirects too; see drover_addresses.
"""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

import drover_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ipaddress import IPv4Network, IPv6Network
    from socket import socket

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
REDIRECTS = (301, 302, 303, 307, 308)
PORTS = {"http": 80, "https": 443}
CHUNK_BYTES = 65536


class FailedError(Exception):
    """There is no answer that counts; the message says why."""


@dataclass(frozen=True)
class Settings:
    """The limits of the site: where requests may go, how long they may take, how much they may bring."""

    allow: list[IPv4Network | IPv6Network] = field(default_factory=list)
    seconds: float = 30.0
    limit_bytes: int = 16 << 20
    redirects: int = 5
    headers: Mapping[str, str] = field(default_factory=dict)  # for the first host only
    roots: str | None = None  # a file of certificates, in place of those of the system


@dataclass(frozen=True)
class Request:
    """One request, as its item has it."""

    url: str
    method: str = "GET"
    body: bytes | None = None
    type: str = "application/json"


@dataclass(frozen=True)
class Answer:
    """The answer that no redirect follows, and the URL that gave it."""

    url: str
    status: int
    type: str
    body: bytes


def fetch(request: Request, settings: Settings, deadline: float, opened: list[socket]) -> Answer:
    """Return the answer. Raises FailedError, RefusedError, OSError, ValueError.

    Each connection is put into `opened`: to shut it down ends a call that an answer, byte by byte, makes last.
    """
    url, headers = request.url, dict(settings.headers)
    if request.method not in METHODS:
        raise ValueError(f"the method is one of {', '.join(METHODS)}, not {request.method!r}")
    for _ in range(settings.redirects + 1):
        parts = _parts(url)
        answer, location = _one(url, parts, request, headers, settings, deadline, opened)
        if answer.status not in REDIRECTS or not location:
            return answer
        if request.method not in ("GET", "HEAD"):
            raise FailedError(f"status {answer.status}: redirects of a {request.method} are not followed")
        url = urljoin(url, location)
        following = _parts(url)
        if parts.scheme == "https" and following.scheme == "http":
            raise FailedError(f"a redirect from https to {url[:200]} is not followed")
        if following.netloc != parts.netloc:
            headers = {}  # they may hold a password, and are for the host that was named
    raise FailedError(f"more than {settings.redirects} redirects; the last is to {url[:200]}")


def _parts(url: str) -> SplitResult:
    """Return the parts of a URL. Raises ValueError if it is none, or has a password."""
    parts = urlsplit(url)
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"a URL has characters that must be escaped: {url[:200]}")
    if parts.scheme not in PORTS or not parts.hostname or parts.username is not None or parts.port == 0:
        raise ValueError(f"not a URL of http or https, without user and password: {url[:200]}")
    return parts


def _one(
    url: str,
    parts: SplitResult,
    request: Request,
    headers: Mapping[str, str],
    settings: Settings,
    deadline: float,
    opened: list[socket],
) -> tuple[Answer, str]:
    """Send the request to one URL; return the answer and where it says to look next."""
    connection = _Connection(parts, settings, deadline, opened)
    sent = {"User-Agent": "drover-agent-http", "Accept-Encoding": "identity", "Connection": "close", **headers}
    if request.body is not None:
        sent.setdefault("Content-Type", request.type)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(request.method, path, request.body, sent)
        got = connection.getresponse()
        body = _body(got, connection, settings, deadline)
    except http.client.HTTPException as error:
        raise FailedError(f"no answer of HTTP: {type(error).__name__} {error}"[:300]) from error
    finally:
        connection.close()
    return Answer(url, got.status, got.headers.get_content_type(), body), got.headers.get("Location", "")


def _body(got: http.client.HTTPResponse, connection: _Connection, settings: Settings, deadline: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        if connection.sock is not None:  # http.client gives it away when the answer says that it is the last
            connection.sock.settimeout(drover_addresses.left(deadline))
        drover_addresses.left(deadline)
        data = got.read1(CHUNK_BYTES)
        if not data:
            break
        size += len(data)
        if size > settings.limit_bytes:
            raise FailedError(f"the answer is longer than {settings.limit_bytes} bytes; see --limit")
        parts.append(data)
    if got.length:  # Content-Length, less what has come
        raise FailedError(f"the answer ends {got.length} bytes too early")
    return b"".join(parts)


class _Connection(http.client.HTTPConnection):
    """A connection to an address that was looked at."""

    def __init__(self, parts: SplitResult, settings: Settings, deadline: float, opened: list[socket]) -> None:
        self._parts, self._settings, self._deadline, self._opened = parts, settings, deadline, opened
        super().__init__(parts.hostname or "", parts.port or PORTS[parts.scheme])
        self.default_port = PORTS[parts.scheme]  # which the header Host leaves out

    def connect(self) -> None:
        plain = drover_addresses.connect(self.host, self.port, self._settings.allow, self._deadline)
        plain.settimeout(drover_addresses.left(self._deadline))
        self._opened.append(plain)
        self.sock = plain
        if self._parts.scheme == "https":
            context = ssl.create_default_context(cafile=self._settings.roots)
            self.sock = context.wrap_socket(plain, server_hostname=self.host)
            self._opened.append(self.sock)
