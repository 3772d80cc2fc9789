"""Log restarts of the embedded server and replaced files below it, and report them for `drover status`.

This module only reads; the guardian restarts the server (scheduler/database/replaced_files.py).
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from scheduler.daemon.log import log_line
from scheduler.drivers.loop import Loop

LOOK_S: Final = 5.0
NAME: Final = "embedded database"  # the statements of drover status know it


class ServerState(Protocol):
    """A server that runs: its pid, its binaries in words, and what is wrong with them, if anything is."""

    @property
    def pid(self) -> int: ...
    @property
    def binaries(self) -> object: ...
    @property
    def trouble(self) -> str: ...


class EmbeddedServer:
    """Looks at the server every few seconds; `read` returns None while there is none, `changed` is to show it."""

    def __init__(self, loop: Loop, read: Callable[[], ServerState | None], changed: Callable[[], None]) -> None:
        self._loop, self._read, self._changed = loop, read, changed
        self._pid, self._trouble, self._since = 0, "", loop.now

    def look(self) -> None:
        """Log what has changed, now and from now on."""
        self._loop.at(self._loop.now + LOOK_S, self.look)
        state = None
        with suppress(OSError):  # too many open files, most likely; the next look may find it better
            state = self._read()
        if state is None:
            return
        is_another, self._pid = self._pid not in (0, state.pid), state.pid
        if state.trouble != self._trouble:
            self._note(state.trouble)
        if is_another:
            log_line("info", f"{NAME}: started again as {state.binaries}")

    def _note(self, trouble: str) -> None:
        if trouble:
            log_line("warning", f"{NAME}: {trouble}")
        if not self._trouble:
            self._since = self._loop.now
        self._trouble = trouble
        self._changed()

    def troubles(self) -> list[dict[str, Any]]:
        """Return what is wrong, and for how many seconds, as `drover status` shows it."""
        if not self._trouble:
            return []
        return [{"what": NAME, "reason": self._trouble, "seconds": round(self._loop.now - self._since, 1)}]
