"""Claims about signals as events of the loop."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from scheduler.drivers.loop import Loop
from scheduler.drivers.os_calls import SIGNALS, Signals
from tests.loop_tools import turn_until


@pytest.fixture
def heard() -> list[int]:
    return []


@pytest.fixture
def loop(heard: list[int]) -> Iterator[Loop]:
    """Yield a loop that hears signals."""
    loop = Loop()
    signals = Signals(loop, heard.append)
    yield loop
    signals.close()
    loop.close()


@pytest.mark.parametrize("number", SIGNALS)
def test_every_signal_is_reported_by_its_number(loop: Loop, heard: list[int], number: int) -> None:
    signal.raise_signal(number)
    turn_until(loop, lambda: heard)
    assert heard == [number]


def test_second_interrupt_is_reported_too(loop: Loop, heard: list[int]) -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    turn_until(loop, lambda: len(heard) == 3)
    assert heard == [signal.SIGINT, signal.SIGTERM, signal.SIGINT]


def test_a_signal_ends_an_endless_wait(loop: Loop, heard: list[int]) -> None:
    sender = subprocess.Popen(["sh", "-c", f"kill -USR1 {os.getpid()}"])
    turn_until(loop, lambda: heard)
    sender.wait()
    assert heard == [signal.SIGUSR1]


def test_signals_of_other_handlers_are_not_reported(loop: Loop, heard: list[int]) -> None:
    old = signal.signal(signal.SIGURG, lambda *_: None)
    signal.raise_signal(signal.SIGURG)
    signal.raise_signal(signal.SIGHUP)
    turn_until(loop, lambda: heard)
    signal.signal(signal.SIGURG, old)
    assert heard == [signal.SIGHUP]


def test_more_signals_than_the_pipe_holds_do_not_block(loop: Loop, heard: list[int]) -> None:
    for _ in range(70_000):
        signal.raise_signal(signal.SIGUSR2)
    turn_until(loop, lambda: len(heard) == 65_536)
    assert set(heard) == {signal.SIGUSR2}


def test_close_puts_the_old_handlers_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    loop = Loop()
    Signals(loop, lambda _: None).close()
    loop.close()
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.usefixtures("loop")
def test_a_broken_pipe_is_an_error_and_not_a_signal() -> None:
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
