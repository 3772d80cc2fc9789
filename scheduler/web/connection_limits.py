"""Limits of connections of browsers: of time for a request, and of how many wait at once.

uvicorn waits for ever for the rest of a request, and for a client that reads no answer. Here a connection either serves
a request that came as a whole, or it waits: for a request, or for its own end. It may wait for some time only. If too
many wait, of one address or of all, the one that has waited for longest is closed: a request that comes at once is
served whatever others keep open.
"""

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from scheduler.web.password_pauses import neighbourhood

NO_LINGER: Final = struct.pack("ii", 1, 0)  # what a client does not read is dropped with its connection
FULL: Final = ("503 Service Unavailable", "too many connections")


@dataclass(slots=True)
class Limits:
    """The limits of one server, and the connections that wait."""

    request_s: float = 20.0  # for head and body of a request
    read_s: float = 30.0  # in which a client reads nothing of an answer
    waiting: int = 200  # of one address
    connections: int = 1000  # of all
    waits: dict["LimitedConnection", None] = field(default_factory=dict)  # the longest first


class LimitedConnection(H11Protocol):
    """A connection of a browser; `limits` is shared by all."""

    def __init__(self, limits: Limits, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits = limits
        self._address = ""
        self._late: asyncio.TimerHandle | None = None  # of one that waits
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = neighbourhood(self.client[0] if self.client else "")
        self._wait()
        if len(self.connections) > self._limits.connections:
            next(iter(self._limits.waits)).end(*FULL)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._look()

    def eof_received(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:
            self.send_400_response("the request was cut short")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        self._read_again()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._read_again()
        super().resume_writing()
        self._look()

    def send_400_response(self, msg: str) -> None:
        self._answer("400 Bad Request", msg)

    def end(self, status: str, text: str) -> None:
        """Close the connection, with an answer if a request has begun; what is not read in time is dropped."""
        if self.transport.is_closing():
            self._drop()
            return
        self._wait_no_more()
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self._answer(status, text)
        self.transport.close()
        self._late = self.loop.call_later(self._limits.request_s, self._drop)

    def _look(self) -> None:
        """Find out whether the connection waits by now, or no more."""
        is_whole = self.cycle is not None and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if is_whole and not self.cycle.response_complete and not self.transport.is_closing():
            self._wait_no_more()
        elif self._unread:  # the client still reads: it may be closed if too many wait, but is given its time
            self._limits.waits.setdefault(self)
        elif self._late is None:
            self._wait()

    def _watch_reader(self, left: int | None = None) -> None:
        """Drop the connection if the client has read nothing of the bytes that were left; look again else."""
        size = self.transport.get_write_buffer_size()
        if left is not None and size >= left:
            self._drop()
        else:
            self._unread = self.loop.call_later(self._limits.read_s, self._watch_reader, size)

    def _wait(self) -> None:
        self._late = self.loop.call_later(self._limits.request_s, self.end, "408 Request Timeout", "it took too long")
        same = [each for each in self._limits.waits if each._address == self._address]
        self._limits.waits[self] = None
        if len(same) >= self._limits.waiting:
            same[0].end(*FULL)

    def _wait_no_more(self) -> None:
        self._limits.waits.pop(self, None)
        if self._late:
            self._late.cancel()
            self._late = None

    def _read_again(self) -> None:
        if self._unread:
            self._unread.cancel()
            self._unread = None

    def _drop(self) -> None:
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.transport.abort()

    def _answer(self, status: str, text: str) -> None:
        """Answer in place of the application, unless it has begun to, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(text) + 1}\r\n\r\n{text}\n".encode())
        self.transport.close()
