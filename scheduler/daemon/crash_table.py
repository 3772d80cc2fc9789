"""The last words of a daemon that crashes: which agent had which job, behind the traceback.

faulthandler(3py) catches a fatal signal in C, writes the traceback, sets the handler of before and sends the signal
again. That handler is ours: a function of Python, called by ctypes within the handler of C. It may fail, since nothing
is sure in a process that crashes; the traceback is written by then, a second fault ends the process at once, and so
does an alarm, should it hang. Whether a guardian or systemd is above makes no difference.

The stack for signals that faulthandler makes is too small for Python, so there is another one. Python 3.14 takes each
stack but its own for an overflow: there the traceback remains alone.
"""

import ctypes
import faulthandler
import mmap
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
STACK_BYTES: Final = 1 << 20
LIMIT_S: Final = 5  # for the table; then SIGALRM ends the process
HANDLER: Final = ctypes.CFUNCTYPE(None, ctypes.c_int)


class _Stack(ctypes.Structure):
    """The type stack_t of sigaltstack(2)."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


class CrashTable:
    """Writes a traceback when the process crashes, and lines behind it."""

    def __init__(self, fd: int, lines: Callable[[], Iterable[str]], write: Callable[[str], None]) -> None:
        """Write the traceback to a descriptor from now on, then, with `write`, what `lines` returns at that moment."""
        self._lines, self._write = lines, write
        self._libc = ctypes.CDLL(None)
        self._libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self._libc.signal.restype = ctypes.c_void_p
        self._handler = HANDLER(self._crashed)
        self._memory = mmap.mmap(-1, STACK_BYTES)
        faulthandler.disable()
        for number in CRASHES:
            self._libc.signal(number, ctypes.cast(self._handler, ctypes.c_void_p))
        faulthandler.enable(fd)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._libc.sigaltstack(ctypes.byref(_Stack(start, 0, STACK_BYTES)), None)

    def _crashed(self, number: int) -> None:
        self._libc.signal(signal.SIGALRM, None)
        self._libc.alarm(LIMIT_S)
        self._libc.signal(number, None)
        try:
            for line in self._lines():
                self._write(line)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            signal.raise_signal(number)


_IN_USE: Final[list[CrashTable]] = []  # for as long as the process lives: a signal may come at any moment


def show_at_crash(fd: int, lines: Callable[[], Iterable[str]], write: Callable[[str], None]) -> None:
    """Have these lines behind the traceback of a crash, if Python can do that."""
    if sys.version_info >= (3, 14):
        return
    with suppress(MemoryError, OSError):  # where code may not be made at run time; the traceback remains
        _IN_USE[:] = [CrashTable(fd, lines, write)]
