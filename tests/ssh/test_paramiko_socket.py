"""Claims about the socket that paramiko is given: it takes all and never blocks, and all arrives in order."""

import socket
from collections.abc import Iterator

import pytest

from scheduler.drivers.loop import Loop
from scheduler.ssh.paramiko_io import FULL_BYTES, CallQueue, ParamikoSocket
from tests.loop_tools import turn_until

BIG = bytes(range(256)) * 8192  # 2 MiB: more than a socket holds


class Line:
    """A ParamikoSocket and its other end."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.calls = CallQueue(self.loop)
        self.closed: list[bool] = []
        ours, self.far = socket.socketpair()
        self.sock = ParamikoSocket(ours, self.loop, self.calls, lambda: self.closed.append(True))
        self.far.setblocking(False)
        self.arrived = b""

    def read(self) -> bytes:
        try:
            self.arrived += self.far.recv(1_000_000)
        except BlockingIOError:
            pass
        return self.arrived

    def close(self) -> None:
        self.sock.close()
        turn_until(self.loop, lambda: self.closed)
        self.far.close()


@pytest.fixture
def line() -> Iterator[Line]:
    one = Line()
    yield one
    one.close()


def test_data_the_socket_refuses_is_sent_later(line: Line) -> None:
    assert line.sock.send(BIG) == len(BIG)
    assert line.sock.is_full
    assert line.sock.send(b"end") == 3
    turn_until(line.loop, lambda: line.read() == BIG + b"end")
    assert not line.sock.is_full


def test_corked_socket_keeps_data_until_it_is_uncorked(line: Line) -> None:
    line.sock.cork()
    line.sock.send(b"one ")
    line.sock.send(b"piece")
    assert line.read() == b""
    line.sock.uncork()
    assert line.far.recv(100) == b"one piece"


def test_a_little_pending_data_does_not_count_as_full(line: Line) -> None:
    line.sock.cork()
    line.sock.send(bytes(FULL_BYTES))
    assert not line.sock.is_full


def test_short_reads_lose_no_data(line: Line) -> None:
    line.far.send(b"abcdef")
    assert [line.sock.recv(4), line.sock.recv(4)] == [b"abcd", b"ef"]


def test_socket_that_is_shut_down_reads_as_ended_and_reports_that_once(line: Line) -> None:
    line.sock.shut_down()
    assert line.sock.recv(10) == b""
    line.sock.close()
    line.sock.close()
    turn_until(line.loop, lambda: line.closed)
    line.loop.turn(line.loop.now)
    assert line.closed == [True]


def test_send_after_the_peer_closed_fails_the_next_time(line: Line) -> None:
    line.far.close()
    line.sock.send(b"lost")
    with pytest.raises(BrokenPipeError):
        line.sock.send(b"refused")
