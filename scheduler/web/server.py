"""`drover web`: serve the dashboard until Ctrl-C; the routes, and the guard before every page.

The dashboard is an ASGI application. The guard is its outermost layer, so that no page can forget it: it knows which
names of hosts and origins are ours, and adds headers to every answer.
"""

import asyncio
import secrets
import socket
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType
from typing import Final, cast
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scheduler.cli.config_files import is_embedded_url
from scheduler.cli.database_session import people_database
from scheduler.cli.output import warn
from scheduler.cli.web_and_metrics import address, cannot_listen
from scheduler.drivers.os_calls import open_more_files
from scheduler.errors import DroverError
from scheduler.model.config import Config
from scheduler.web import actions, pages, sign_in, submission
from scheduler.web.connection_limits import LimitedConnection, Limits
from scheduler.web.database_sessions import Login, LoginRefusedError
from scheduler.web.live_updates import Changes
from scheduler.web.request_handling import (
    SignInNeededError,
    ask_to_sign_in,
    changes,
    drawn,
    failed,
    refused,
    submitted,
    with_token,
)
from scheduler.web.sign_in import People
from scheduler.web.templating import STATIC, environment

GRACE_S = 2  # for requests in hand, after Ctrl-C
TIDY_S: Final = 30.0
MOST_CONNECTIONS: Final = 1000
BACKLOG: Final = 100  # so many are accepted before any is counted
RESERVED_FILES: Final = 200  # for sessions of the database, and what a page reads
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
SAFE: Final = ("GET", "HEAD")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
WITHOUT_KEY: Final = (
    "to sign in, use a role of the database and its password, which the server must ask for; there is no link with a "
    "key, since this is no terminal"
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


def serve(options: Namespace, config: Config) -> int:
    """Serve until it is stopped. The key is for the reader of this terminal, and new each time."""
    with listening(options.host, options.port) as listener, people_database(config) as conninfo:
        names = [*options.names, options.host]
        key = secrets.token_urlsafe(18) if sys.stdout.isatty() or is_embedded_url(config.database.url) else ""
        app = make_app(conninfo, config.scheduler.group, key, names)
        announce(options.host, listener.getsockname()[1], key)
        _, files = open_more_files()
        limits = Limits(connections=min(MOST_CONNECTIONS, files - RESERVED_FILES))
        try:
            Server(settings(app, limits), app.state.changes).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises it once more when all is closed
            pass
    return 0


def settings(app: Starlette, limits: Limits) -> uvicorn.Config:
    """Return the settings of the server."""
    return uvicorn.Config(
        app, loop="asyncio", http=cast("type[asyncio.Protocol]", partial(LimitedConnection, limits)), ws="none",
        lifespan="on", log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )  # fmt: skip


class Server(uvicorn.Server):
    """A server that first ends the streams of changes, which it would wait for."""

    def __init__(self, config: uvicorn.Config, changes: Changes) -> None:
        super().__init__(config)
        self._changes = changes

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._changes.end()
        super().handle_exit(sig, frame)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Errors: ConfigError, the address is in use or not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise cannot_listen("web", host, port, error) from error


def announce(host: str, port: int, key: str) -> None:
    """Print where the dashboard is, and how to sign in."""
    print(f"the dashboard is at {address(host, port)}/ until Ctrl-C", flush=True)
    if key:
        print(f"to sign in, open {address(host, port)}/sign-in#{key}, a secret of this run", flush=True)
    else:
        print(WITHOUT_KEY, flush=True)
    if host not in LOOPBACK:
        warn("passwords go over this network as they are: let a proxy with TLS stand before it; see drover(1)")


# ---- the application


def make_app(conninfo: str, group: str, key: str = "", names: Iterable[str] = ()) -> Starlette:
    """Return the application for a database; `names` are those under which browsers may reach it."""
    told = Changes(conninfo)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(told.listen()), asyncio.create_task(_tidy(app))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            app.state.visitors.close_idle(0.0)
            app.state.people.close()

    app = Starlette(
        routes=routes(),
        lifespan=lifespan,
        middleware=[Middleware(Guard, names=tuple(names))],
        exception_handlers={
            HTTPException: refused,
            SignInNeededError: ask_to_sign_in,
            DroverError: failed,
            LoginRefusedError: sign_in.show_refused_login,
        },
    )
    app.state.group, app.state.changes = group, told
    app.state.visitors = Login(conninfo, is_visitor=True)
    app.state.people = People(conninfo, key)
    app.state.templates = environment()
    return app


def routes() -> list[Route | Mount]:
    return [
        Route("/", drawn(pages.overview), name="overview"),
        Route("/jobs", drawn(pages.jobs), name="jobs"),
        Route("/jobs/{job:int}", drawn(pages.job), name="job"),
        Route("/jobs/all", drawn(actions.confirm), name="all-jobs"),
        Route("/jobs/all", submitted(with_token(actions.act_on_all)), methods=["POST"]),
        Route("/act", submitted(with_token(actions.act)), methods=["POST"]),
        Route("/submit", drawn(submission.show), name="submit"),
        Route("/submit", submitted(with_token(submission.submit)), methods=["POST"]),
        Route("/schedules", drawn(pages.schedules), name="schedules"),
        Route("/conditions", drawn(pages.conditions), name="conditions"),
        Route("/log", drawn(pages.log), name="log"),
        Route("/changes", changes, name="changes"),
        Route("/sign-in", sign_in.show_sign_in, name="sign-in"),
        Route("/sign-in", submitted(sign_in.sign_in), methods=["POST"]),
        Route("/sign-out", submitted(with_token(sign_in.sign_out)), methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC), name="static"),
    ]


async def _tidy(app: Starlette) -> None:
    while True:
        await asyncio.sleep(TIDY_S)
        await run_in_threadpool(app.state.visitors.close_idle)
        await run_in_threadpool(app.state.people.close_idle)


# ---- the guard


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
