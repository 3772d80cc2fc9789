"""A dashboard that serves on loopback in this process, and clients that are no browsers."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import Any

from starlette.applications import Starlette

from scheduler.web.connection_limits import Limits
from scheduler.web.server import Server, settings
from tests.patience import PATIENCE_S

HALF_HEAD = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
PAGE = HALF_HEAD + b"\r\n"
HALF_BODY = b"POST /sign-in HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nrole=x"

Address = tuple[str, int]


@contextmanager
def served(app: Starlette, **limits: Any) -> Iterator[Address]:
    """Serve in a thread, and yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(settings(app, Limits(**limits)), app.state.changes)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def client(address: Address, data: bytes) -> socket.socket:
    """Return a connection on which this was sent."""
    made = socket.create_connection(address, timeout=PATIENCE_S)
    made.sendall(data)
    return made


@contextmanager
def clients(address: Address, data: bytes, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(client(address, data)) for _ in range(count)]


def said(connection: socket.socket) -> bytes:
    """Return all that the server says until it closes the connection. Errors: TimeoutError if it does not."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def status(address: Address, data: bytes = PAGE) -> int:
    """Return the status of the answer to a request."""
    with client(address, data) as connection:
        return status_of(connection)


def status_of(connection: socket.socket) -> int:
    with connection.makefile("rb") as lines:
        return int((lines.readline() or b"- 0").split()[1])
