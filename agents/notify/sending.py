"""Send one delivery: a POST to a webhook, or a mail to the relay of the site. Bounded in time and in bytes.

A delivery is done when the receiver answers 200 to 299. No redirect is followed: its target was never looked at.
Nothing of an answer is read but its head.
"""

from __future__ import annotations

import json
import smtplib
import ssl
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import drover_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ipaddress import IPv4Network, IPv6Network
    from socket import socket

HEAD_BYTES = 65536  # of an answer: what is longer is no answer


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


def send(delivery: Mapping[str, object], settings: Settings, deadline: float) -> str:
    """Deliver; return what came back, in a few words. Raises FailedError, RefusedError, OSError, ValueError."""
    target, body = str(delivery["to"]), str(delivery["body"])
    if target.startswith("mailto:"):
        return mail(target.removeprefix("mailto:"), body, settings, deadline)
    headers = delivery["headers"]
    if not isinstance(headers, dict):
        raise ValueError("headers are no object")
    return post(target, body.encode(), headers, settings, deadline)


# ---- webhooks


def post(url: str, body: bytes, headers: Mapping[str, object], settings: Settings, deadline: float) -> str:
    """Send the body; return the status. Raises as `send`."""
    parts = urlsplit(url)
    host = parts.hostname
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise ValueError(f"not a URL of a webhook: {url[:200]}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with drover_addresses.connect(host, port, settings.allow, deadline) as plain:
        if parts.scheme == "http":
            return answer(plain, request(path, parts.netloc, body, headers), deadline)
        context = ssl.create_default_context(cafile=settings.roots)
        plain.settimeout(drover_addresses.left(deadline))
        with context.wrap_socket(plain, server_hostname=host) as secure:
            return answer(secure, request(path, parts.netloc, body, headers), deadline)


def request(path: str, host: str, body: bytes, headers: Mapping[str, object]) -> bytes:
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
    told = json.loads(body)
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = settings.sender, to, subject(told)
    message.set_content(json.dumps(told, indent=2, ensure_ascii=False))
    try:
        with smtplib.SMTP(*settings.relay, timeout=drover_addresses.left(deadline)) as relay:
            relay.send_message(message)
    except smtplib.SMTPException as error:
        raise FailedError(f"the relay refuses it: {error}") from error
    return "mailed"


def subject(told: Mapping[str, object]) -> str:
    """Return what the mail is about, on one line."""
    data = told.get("data")
    data = data if isinstance(data, dict) else {}
    what = data.get("new") or data.get("text") or ""
    about = f"job {data['job']}" if data.get("job") is not None else "site"
    return " ".join(f"drover: {about}: {data.get('kind', 'event')} {what}".split())[:200]
