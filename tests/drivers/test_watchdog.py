"""Claims about the watchdog of a loop that hangs. Each loop is in a process of its own: SIGALRM is the tests' timer."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builds import IS_COMPILED
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
HEAD = """
import ctypes, os, select, signal, sys, time
from scheduler.drivers.loop import Watchdog
from scheduler.drivers.loop import Loop

def say(*words): print(*words, flush=True)
def told(seconds, where): say("hung", seconds >= {limit}, where)
def wait_in_python(): sys.stdin.buffer.raw.read(1)
def wait_in_c():
    libc, byte = ctypes.PyDLL(None), ctypes.create_string_buffer(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    while libc.read(0, byte, 1) < 0: pass

loop, watchdog = Loop(), Watchdog({limit}, 1)
loop.watch_with(watchdog, told)
"""
HANG = """
loop.at(loop.now, {call})
loop.turn(loop.now)
loop.turn(loop.now)
watchdog.close()
say("over")
"""
TURN_ON = """
end = time.monotonic() + {seconds}
def again():
    loop.at(loop.now + {every}, again)
again()
while time.monotonic() < end: loop.turn(end)
say("over", signal.getitimer(signal.ITIMER_REAL)[0] > 0)
"""

OUTERMOST = "in <module>"  # the last line of a stack
CALLS = "<module> > wait_in_python" if IS_COMPILED else "Timer.fire > wait_in_python"

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run() -> Iterator[Run]:
    """Start a small program with a loop and an watchdog; it is killed at the end if it still lives."""
    begun: list[subprocess.Popen[str]] = []

    def run(script: str, limit: float, **options: object) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-c", HEAD.format(limit=limit) + script]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        begun.append(subprocess.Popen(argv, cwd=ROOT, text=True, **pipes, **options))  # type: ignore[call-overload]
        return begun[-1]

    yield run
    for process in begun:
        with process:
            process.kill()


def lines_until(process: "subprocess.Popen[str]", text: str) -> list[str]:
    """Return the lines of a program up to one that has this text."""
    assert process.stdout is not None
    told: list[str] = []
    while not told or text not in told[-1]:
        line = process.stdout.readline()
        assert line, f"it ended before {text!r}: {told}"
        told.append(line.rstrip("\n"))
    return told


def wait_until_it_waits(pid: int) -> None:
    """Look until a process sleeps; that it does so for long is the caller's to know."""
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline, "it never waits"


def let_go(process: "subprocess.Popen[str]") -> None:
    """End the hang."""
    assert process.stdin is not None
    process.stdin.write("x")
    process.stdin.flush()


@pytest.mark.parametrize("call", ["wait_in_python", "wait_in_c"])
def test_a_hang_is_logged_while_it_lasts_f58(run: Run, call: str) -> None:
    process = run(HANG.format(call=call), 0.2)
    shown = lines_until(process, OUTERMOST)
    assert any(f"in {call}" in line for line in shown)
    assert process.poll() is None


def test_length_and_place_of_a_hang_are_reported_after_it(run: Run) -> None:
    process = run(HANG.format(call="wait_in_python"), 0.2)
    lines_until(process, OUTERMOST)
    let_go(process)
    *_, told, over = lines_until(process, "over")
    assert told.startswith(f"hung True {CALLS} (<string>:")
    assert over == "over"


def test_hang_is_reported_once(run: Run) -> None:
    process = run(HANG.format(call="wait_in_python"), 0.2)
    lines_until(process, OUTERMOST)
    let_go(process)
    assert [line for line in lines_until(process, "over") if line.startswith("hung")] != []
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_a_loop_that_turns_is_not_reported(run: Run) -> None:
    process = run(TURN_ON.format(seconds=3.0, every=0.01), 2)
    assert lines_until(process, "over") == ["over True"]


@pytest.mark.slow
def test_a_loop_that_waits_for_long_is_not_reported(run: Run) -> None:
    process = run(TURN_ON.format(seconds=6.0, every=3.0), 2)
    assert lines_until(process, "over") == ["over True"]


@pytest.mark.slow
def test_stop_of_the_process_during_a_wait_is_reported(run: Run) -> None:
    process = run("say('up')\nwhile True: loop.turn(loop.now + 0.5)", 1.0)
    lines_until(process, "up")
    wait_until_it_waits(process.pid)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    # the timer runs on while the process does not: it is over when the process goes on
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.send_signal(signal.SIGCONT)
    assert lines_until(process, "hung")[-1] == "hung True a wait: the process was stopped"


def test_children_have_neither_the_timer_nor_the_signal_blocked(run: Run) -> None:
    tell = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    process = run(f"import subprocess\nloop.turn(loop.now)\nsubprocess.run({tell!r}, shell=True)\nsay('over')", 60)
    masks = [int(line.split()[1], 16) for line in lines_until(process, "over")[:-1]]
    assert [mask >> signal.SIGALRM - 1 & 1 for mask in masks] == [0, 0]


def test_a_closed_watchdog_restores_the_signal_handler(run: Run) -> None:
    process = run("watchdog.close()\nsay(signal.getsignal(signal.SIGALRM) == signal.SIG_DFL)", 0.2)
    assert lines_until(process, "True") == ["True"]
