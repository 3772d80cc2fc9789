"""The last words of a process that crashes for real: traceback, then lines; and it dies whatever becomes of these."""

import subprocess
import sys
from pathlib import Path
from signal import SIGABRT, SIGALRM, SIGSEGV

import pytest

from tests.patience import LONG_PATIENCE_S

ROOT = Path(__file__).parents[2]
BEGIN = """
import ctypes, os, time
from scheduler.daemon.crash_table import show_at_crash

def lines():
    yield "slot=0 of the crash"
    {more}

def crash():
    {crash}

show_at_crash(2, lines, lambda line: os.write(2, line.encode() + b"\\n"))
crash()
"""
FAULT = "ctypes.string_at(1)"


def crashed(crash: str = FAULT, more: str = "") -> tuple[int, str]:
    """Return how a process ended that crashes, and what it has written."""
    code = BEGIN.format(crash=crash, more=more)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LONG_PATIENCE_S
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(("crash", "number"), [(FAULT, SIGSEGV), ("os.abort()", SIGABRT)])
def test_a_crash_in_c_has_a_traceback_then_the_lines_and_dies_of_its_signal_f58(crash: str, number: int) -> None:
    status, told = crashed(crash)
    assert status == -number
    before, _, after = told.partition("slot=0 of the crash\n")
    assert "Fatal Python error" in before
    assert "in crash" in before
    assert after == ""


@pytest.mark.parametrize("more", [FAULT, "os.abort()", "raise ValueError"])
def test_a_second_fault_in_the_table_ends_the_process_behind_the_traceback(more: str) -> None:
    status, told = crashed(more=more)
    assert status in (-SIGSEGV, -SIGABRT)
    assert "in crash" in told
    assert "slot=0 of the crash\n" in told


@pytest.mark.slow
def test_a_table_that_hangs_is_ended_by_an_alarm() -> None:
    status, told = crashed(more="time.sleep(1000)")
    assert status == -SIGALRM
    assert "in crash" in told


def test_a_stack_that_overflows_has_a_traceback_and_the_lines() -> None:
    deep = "import sys; sys.setrecursionlimit(10**8); f = lambda x: max([x], key=f); f(0)"
    status, told = crashed(deep)
    assert status == -SIGSEGV
    assert "Fatal Python error" in told
    assert "slot=0 of the crash\n" in told
