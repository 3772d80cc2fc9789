"""A clock that rings when it is not put off: so a loop that hangs says where, while it hangs.

Touches SIGALRM and the timer of the process, no thread. At the ring the C handler of faulthandler(3py) writes the
stack at once, even inside a call that does not come back; then Python's own notes the place, as soon as Python runs
again. Refuses to know who hangs.
"""

import faulthandler
import signal
from types import CodeType, FrameType

TURN = ".turn"  # of the loop, or of the daemon: the calls below it are those to name


class Alarm:
    """Rings once, `limit` seconds after it was put off last; made and closed in the main thread."""

    def __init__(self, limit: float, fd: int) -> None:
        self.limit = limit
        self._where: str | None = None
        self._old = signal.signal(signal.SIGALRM, self._rung)
        faulthandler.register(signal.SIGALRM, fd, all_threads=False, chain=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

    def put_off(self) -> None:
        """Ring `limit` seconds from now."""
        signal.setitimer(signal.ITIMER_REAL, self.limit)

    def stop(self) -> None:
        """Do not ring: whoever waits does not hang."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def take(self) -> str | None:
        """Give where we were when it rang, once."""
        where, self._where = self._where, None
        return where

    def close(self) -> None:
        """Put back what was there before."""
        self.stop()
        faulthandler.unregister(signal.SIGALRM)
        signal.signal(signal.SIGALRM, self._old)

    def _rung(self, _number: int, frame: FrameType | None) -> None:
        self._where = place(frame)


def place(frame: FrameType | None) -> str:
    """Give the calls that led to a frame, from the loop on, and the line it is at."""
    calls: list[CodeType] = []
    line = 0 if frame is None else frame.f_lineno
    while frame is not None and not frame.f_code.co_qualname.endswith(TURN):
        calls.append(frame.f_code)
        frame = frame.f_back
    if not calls:
        return "the turn itself"
    path = " > ".join(code.co_qualname for code in reversed(calls))
    return f"{path} ({calls[0].co_filename}:{line})"
