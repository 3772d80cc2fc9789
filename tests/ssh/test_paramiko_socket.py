"""Claims about the socket that paramiko is given: it takes all and never blocks, and all arrives in order."""

import socket
from collections.abc import Iterator

import pytest

from scheduler.drivers.loop import Loop
from scheduler.ssh.paramiko_adapters import FULL_BYTES, CallQueue, ParamikoSocket
from tests.loop_tools import turn_until

BIG = bytes(range(256)) * 8192  # 2 MiB: more than a socket holds


class Line:
    """A wire and its other end."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.calls = CallQueue(self.loop)
        self.closed: list[bool] = []
        ours, self.far = socket.socketpair()
        self.wire = ParamikoSocket(ours, self.loop, self.calls, lambda: self.closed.append(True))
        self.far.setblocking(False)
        self.arrived = b""

    def read(self) -> bytes:
        try:
            self.arrived += self.far.recv(1_000_000)
        except BlockingIOError:
            pass
        return self.arrived

    def close(self) -> None:
        self.wire.close()
        turn_until(self.loop, lambda: self.closed)
        self.far.close()


@pytest.fixture
def line() -> Iterator[Line]:
    one = Line()
    yield one
    one.close()


def test_what_the_socket_does_not_take_is_sent_when_it_does(line: Line) -> None:
    assert line.wire.send(BIG) == len(BIG)
    assert line.wire.is_full
    assert line.wire.send(b"end") == 3
    turn_until(line.loop, lambda: line.read() == BIG + b"end")
    assert not line.wire.is_full


def test_a_corked_wire_keeps_what_it_is_given_until_it_is_uncorked(line: Line) -> None:
    line.wire.cork()
    line.wire.send(b"one ")
    line.wire.send(b"piece")
    assert line.read() == b""
    line.wire.uncork()
    assert line.far.recv(100) == b"one piece"


def test_little_is_not_full(line: Line) -> None:
    line.wire.cork()
    line.wire.send(bytes(FULL_BYTES))
    assert not line.wire.is_full


def test_reads_are_as_short_as_asked_and_lose_nothing(line: Line) -> None:
    line.far.send(b"abcdef")
    assert [line.wire.recv(4), line.wire.recv(4)] == [b"abcd", b"ef"]


def test_a_hung_up_wire_reads_as_ended_and_is_told_of_once(line: Line) -> None:
    line.wire.shut_down()
    assert line.wire.recv(10) == b""
    line.wire.close()
    line.wire.close()
    turn_until(line.loop, lambda: line.closed)
    line.loop.turn(line.loop.now)
    assert line.closed == [True]


def test_who_sends_to_nobody_is_told_the_next_time(line: Line) -> None:
    line.far.close()
    line.wire.send(b"lost")
    with pytest.raises(BrokenPipeError):
        line.wire.send(b"refused")
