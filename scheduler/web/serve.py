"""`drover web`: serve the dashboard until Ctrl-C."""

import os
import secrets
import socket
import sys
from argparse import Namespace
from types import FrameType

import uvicorn

from scheduler.cli.config_files import is_embedded_url
from scheduler.cli.output import warn
from scheduler.cli.session import people_database
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.web.app import make_app
from scheduler.web.guard import LOOPBACK
from scheduler.web.live_updates import Changes

GRACE_S = 2  # for requests in hand, after Ctrl-C


class Server(uvicorn.Server):
    """A server that first ends the streams of changes, which it would wait for."""

    def __init__(self, config: uvicorn.Config, changes: Changes) -> None:
        super().__init__(config)
        self._changes = changes

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._changes.end()
        super().handle_exit(sig, frame)


def serve(options: Namespace, config: Config) -> int:
    """Serve until it is stopped. The key is for the reader of this terminal, and new each time."""
    with listening(options.host, options.port) as listener, people_database(config) as (conninfo, _):
        names = [*options.names, options.host]
        key = secrets.token_urlsafe(18) if sys.stdout.isatty() or is_embedded_url(config.database.url) else ""
        app = make_app(conninfo, config.scheduler.group, key, names)
        announce(options.host, listener.getsockname()[1], key)
        settings = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="on", log_level="warning", access_log=False,
            server_header=False, timeout_graceful_shutdown=GRACE_S,
        )  # fmt: skip
        try:
            Server(settings, app.state.changes).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises it once more when all is closed
            pass
    return 0


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Errors: ConfigError, the address is in use or not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        said = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ConfigError(f"drover web: cannot listen on {host} port {port}: {said}; see --port") from error


def announce(host: str, port: int, key: str) -> None:
    """Print where the dashboard is, and how to sign in."""
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"the dashboard is at {address}/ until Ctrl-C", flush=True)
    if key:
        print(f"to sign in, open {address}/sign-in#{key}, a secret of this run", flush=True)
    if host not in LOOPBACK:
        warn("passwords go over this network as they are: let a proxy with TLS stand before it; see drover(1)")
