"""Limits of connections of browsers: of time for a request, and of how many wait at once.

uvicorn waits for ever for the rest of a request, and for a client that reads no answer. Here a connection either serves
a request that came as a whole, or it waits: for a request, or for its own end. It may wait for some time only, and so
may only some connections of one address.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from scheduler.web.password_pauses import neighbourhood


@dataclass(slots=True)
class Limits:
    """The limits of one server, and how many connections wait, by address."""

    request_s: float = 20.0  # for head and body of a request
    read_s: float = 30.0  # in which a client reads nothing of an answer
    waiting: int = 64  # for one address
    connections: int = 1000  # of all
    by_address: Counter[str] = field(default_factory=Counter)


class LimitedConnection(H11Protocol):
    """A connection of a browser; `limits` is shared by all."""

    def __init__(self, limits: Limits, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits = limits
        self._address = ""
        self._late: asyncio.TimerHandle | None = None  # while it waits
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = neighbourhood(self.client[0] if self.client else "")
        is_full = len(self.connections) > self._limits.connections or self._has_too_many
        self._wait()
        if is_full:
            self._answer("503 Service Unavailable", "too many connections")

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
        self._unread = self.loop.call_later(self._limits.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._read_again()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._answer("400 Bad Request", msg)

    @property
    def _has_too_many(self) -> bool:
        return self._limits.by_address[self._address] >= self._limits.waiting

    def _look(self) -> None:
        """Find out whether the connection waits by now, or no more."""
        is_whole = self.cycle is not None and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if is_whole and not self.cycle.response_complete and not self.transport.is_closing():
            self._wait_no_more()
        elif self._late is None:
            if self._has_too_many:
                self.transport.close()
            self._wait()

    def _wait(self) -> None:
        self._limits.by_address[self._address] += 1
        self._late = self.loop.call_later(self._limits.request_s, self._end)

    def _wait_no_more(self) -> None:
        if self._late is None:
            return
        self._late.cancel()
        self._late = None
        self._limits.by_address[self._address] -= 1
        if not self._limits.by_address[self._address]:
            del self._limits.by_address[self._address]

    def _read_again(self) -> None:
        if self._unread:
            self._unread.cancel()
            self._unread = None

    def _end(self) -> None:
        """End a connection that waited for too long; what was not read after that is dropped."""
        if self.transport.is_closing():
            self.transport.abort()
            return
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self._answer("408 Request Timeout", "the request took too long")
        self.transport.close()
        self._late = self.loop.call_later(self._limits.request_s, self.transport.abort)

    def _answer(self, status: str, text: str) -> None:
        """Answer in place of the application, unless it has begun to, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = f"HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(text) + 1}\r\n\r\n{text}\n".encode())
        self.transport.close()
