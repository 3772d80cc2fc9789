"""What stands before every page: which names of hosts and origins are ours, how much is read, headers of every answer.

An outermost layer in ASGI, so that no page can forget it.
"""

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
SAFE: Final = ("GET", "HEAD")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Refuse requests for other hosts and from other sites; add headers to every answer."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self.app = app
        self.names = frozenset(name.lower() for name in (*LOOPBACK, *names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self.refusal(scope["method"], Headers(scope=scope))

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        app = PlainTextResponse(f"{refusal}\n", status_code=403) if refusal else self.app
        await app(scope, receive, send_guarded)

    def refusal(self, method: str, headers: Headers) -> str:
        """Return why a request is refused, or nothing.

        A browser that was led here by another name of this address (DNS rebinding) says that name. A form of another
        site says that site, or says that it does not come from here.
        """
        host = headers.get("host", "")
        if host_name(host) not in self.names:
            return "this host name is not ours; start drover web with --name to allow it"
        if method in SAFE:
            return ""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if (origin is not None and urlsplit(origin).netloc.lower() != host.lower()) or site != "same-origin":
            return "this form came from another site"
        return ""


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without the port and the brackets of IPv6."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
