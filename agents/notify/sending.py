"""Send one delivery: a POST to a webhook, or a mail to the relay of the site. Bounded in time and in bytes.

A delivery is done when the receiver answers 200 to 299. No redirect is followed: its target was never looked at.
Nothing of an answer is read but its head. What drover.subscribe takes as a target can be sent; what else a delivery
holds is refused by `read`, `webhook` and `message`.
"""

from __future__ import annotations

import json
import re
import smtplib
import ssl
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import drover_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ipaddress import IPv4Network, IPv6Network
    from socket import socket

HEAD_BYTES = 65536  # of an answer: what is longer is no answer
PORTS = {"http": 80, "https": 443}
LONGEST_LOCAL_PART = 64
LONGEST_ADDRESS = 254
# A name without quotes, comments and blanks at a domain of letters, digits and hyphens: what every relay takes. Without
# the question mark no part of it can be read as an encoded word (RFC 2047).
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+"
_ADDRESS = re.compile(rf"({_ATOM}(?:\.{_ATOM})*)@{_LABEL}(?:\.{_LABEL})*")
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # what a header cannot have
# The address is never folded, as the header that comes of it would be another one; a line may have 998 characters.
_POLICY = SMTP.clone(max_line_length=998)


class FailedError(Exception):
    """The delivery failed, and may be tried again."""


class GoneError(FailedError):
    """The receiver wants no more of it: 410."""


@dataclass(frozen=True)
class Settings:
    """The limits of the site: how long one delivery may take, where it may go, and how mail leaves."""

    seconds: float = 10.0
    allow: list[IPv4Network | IPv6Network] = field(default_factory=list)
    relay: tuple[str, int] | None = None
    sender: str = ""
    roots: str | None = None  # a file of certificates, in place of those of the system


@dataclass(frozen=True)
class Delivery:
    """A message and its target; only webhooks have `headers`."""

    to: str
    body: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Webhook:
    """The parts of the URL of a webhook; `netloc` is host and port as they were written."""

    scheme: str
    host: str
    port: int
    netloc: str
    path: str


def read(line: str) -> Delivery:
    """Return the delivery that a line of JSON holds. Raises ValueError, RecursionError."""
    told = json.loads(line)
    if not isinstance(told, dict) or not {"to", "body", "headers"} <= told.keys():
        raise ValueError("to, body and headers are required")
    to, body, headers = told["to"], told["body"], told["headers"]
    if not isinstance(to, str) or not isinstance(body, str) or not isinstance(headers, dict):
        raise ValueError("to and body are texts, headers are an object")
    if not all(isinstance(value, str) for value in headers.values()):
        raise ValueError("the value of a header is a text")
    return Delivery(to, body, headers)


def send(delivery: Delivery, settings: Settings, deadline: float) -> str:
    """Deliver; return what came back, in a few words. Raises FailedError, RefusedError, OSError, ValueError."""
    if delivery.to.startswith("mailto:"):
        return mail(delivery.to.removeprefix("mailto:"), delivery.body, settings, deadline)
    return post(delivery.to, delivery.body.encode(), delivery.headers, settings, deadline)


# ---- webhooks


def post(url: str, body: bytes, headers: Mapping[str, str], settings: Settings, deadline: float) -> str:
    """Send the body; return the status. Raises as `send`."""
    hook = webhook(url)
    data = request(hook.path, hook.netloc, body, headers)
    with drover_addresses.connect(hook.host, hook.port, settings.allow, deadline) as plain:
        if hook.scheme == "http":
            return answer(plain, data, deadline)
        context = ssl.create_default_context(cafile=settings.roots)
        plain.settimeout(drover_addresses.left(deadline))
        with context.wrap_socket(plain, server_hostname=hook.host) as secure:
            return answer(secure, data, deadline)


def webhook(url: str) -> Webhook:
    """Return the parts of the URL of a webhook. Raises ValueError, saying what is wrong with it."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"a URL has characters that must be escaped: {url[:200]}")
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if parts.scheme not in PORTS or not host or parts.username is not None or port == 0:
        raise ValueError(f"not a URL of a webhook: {url[:200]}")
    if ":" not in host:
        host.encode("idna")  # UnicodeError is a ValueError: an empty label, or one of more than 63 characters
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Webhook(parts.scheme, host, port or PORTS[parts.scheme], parts.netloc, path)


def request(path: str, host: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the request as bytes. Raises ValueError: something in it would be read as another line."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        "User-Agent: drover-agent-notify",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if any(not line.isprintable() or not line.isascii() for line in lines) or " " in path + host:
        raise ValueError("a URL or a header has characters that must be escaped")
    return "\r\n".join([*lines, "", ""]).encode() + body


def answer(connected: socket, data: bytes, deadline: float) -> str:
    """Send a request; return the status of the answer. Raises FailedError, OSError."""
    connected.settimeout(drover_addresses.left(deadline))
    connected.sendall(data)
    status = 100
    head = b""
    while status < 200:  # 100 to 199 are followed by another answer
        while b"\r\n\r\n" not in head:
            connected.settimeout(drover_addresses.left(deadline))
            more = connected.recv(4096)
            if not more:
                break
            head += more
            if len(head) > HEAD_BYTES:
                raise FailedError(f"the head of its answer is longer than {HEAD_BYTES} bytes")
        first, _, _ = head.partition(b"\r\n")
        _, _, head = head.partition(b"\r\n\r\n")
        words = first.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit() or len(words[1]) != 3:
            raise FailedError(f"no answer of HTTP: {first[:100]!r}")
        status = int(words[1])
    return judged(status)


def judged(status: int) -> str:
    """Return the status of a success. Raises FailedError."""
    if 200 <= status < 300:
        return f"status {status}"
    if status == 410:
        raise GoneError("gone: status 410")
    raise FailedError(f"status {status}" + (": redirects are not followed" if 300 <= status < 400 else ""))


# ---- mail


def mail(to: str, body: str, settings: Settings, deadline: float) -> str:
    """Hand a mail to the relay of the site. Raises FailedError, OSError, ValueError."""
    if settings.relay is None:
        raise FailedError("no relay for mail: drover-agent-notify --smtp HOST:PORT")
    mailed = message(settings.sender, to, _told(body))
    try:
        with smtplib.SMTP(*settings.relay, timeout=drover_addresses.left(deadline)) as relay:
            relay.send_message(mailed, to_addrs=[to])
    except smtplib.SMTPException as error:
        raise FailedError(f"the relay refuses it: {error}") from error
    return "mailed"


def message(sender: str, to: str, told: Mapping[str, object]) -> EmailMessage:
    """Return the mail that tells of an event. Raises ValueError, saying what is wrong with the address."""
    found = _ADDRESS.fullmatch(to)
    if not found or len(to) > LONGEST_ADDRESS or len(found[1]) > LONGEST_LOCAL_PART:
        raise ValueError(f"not an address of mail, as NAME@HOST in ASCII: {to[:200]}")
    mail = EmailMessage(_POLICY)
    mail["From"], mail["To"], mail["Subject"] = sender, to, subject(told)
    mail.set_content(json.dumps(told, indent=2, ensure_ascii=False))
    return mail


def _told(body: str) -> Mapping[str, object]:
    """Return the event that a body holds. Raises ValueError."""
    try:
        told = json.loads(body)
    except RecursionError:
        raise ValueError("the body is nested too deep") from None
    if not isinstance(told, dict):
        raise ValueError("the body is no object")
    return told


def subject(told: Mapping[str, object]) -> str:
    """Return what the mail is about, on one line."""
    data = told.get("data")
    data = data if isinstance(data, dict) else {}
    what = data.get("new") or data.get("text") or ""
    about = f"job {data['job']}" if data.get("job") is not None else "site"
    return " ".join(_UNPRINTED.sub(" ", f"drover: {about}: {data.get('kind', 'event')} {what}").split())[:200]
