"""Ends the commands for every scheduler, when each of these has acknowledged them, or is dead.

A scheduler that dies acknowledges nothing. On the same machine its process is known to be gone, and the command ends at
once. Elsewhere it is dead when it was not seen for two of its leases. Meanwhile the others look again every second, for
a death sends no notification.

A daemon that obeys a command to shut down may be the last one. So it exits only when that command has ended (`finish`).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from scheduler.daemon.log import log_line
from scheduler.drivers.loop import ConnectionLostError, Steps, Until
from scheduler.drivers.statement_runner import RefusedError
from scheduler.model.queue_requests import Cells
from scheduler.model.verbs import EVERY, about

LOOK_S: Final = 1.0  # between two looks at what other schedulers have not acknowledged
LAST_LOOK_S: Final = 0.2  # the same, when this daemon has nothing else to do


class Missing(NamedTuple):
    """A scheduler that has not acknowledged a command; without a name it is none, but a lock on the command's row."""

    is_of_shutdown: bool
    uuid: str
    name: str


class Acknowledgements:
    """The answers of this daemon and of others to the commands for every scheduler.

    `settle` gets the commands that ended, `is_gone` tells of cells with host, pid, boot id, pid namespace and start
    time whether that process has ended.
    """

    def __init__(
        self,
        ask: Callable[..., Steps[list[Cells]]],
        settle: Callable[[list[Cells]], object],
        is_gone: Callable[[Cells], bool],
    ) -> None:
        self._ask, self._settle, self._is_gone = ask, settle, is_gone
        self.has_new = False  # we have acknowledged one since the last look
        self.obeys_shutdown = False
        self.are_awaited = False  # we have left the group, and a command to shut down has not ended
        self._logged: list[str] = []

    def acknowledge(self, command: int, text: str, *, ok: bool) -> Steps[None]:
        """Record our answer to a command."""
        self.has_new = True
        yield from self._ask("acknowledge", command=command, ok=ok, text=text)

    def close(self) -> Steps[list[Missing]]:
        """End the commands that all have acknowledged; return the schedulers that the others wait for."""
        self.has_new = False
        missing, gone = yield from self._close([])
        if gone:
            missing, _ = yield from self._close(gone)
        return missing

    def _close(self, gone: list[str]) -> Steps[tuple[list[Missing], list[str]]]:
        rows = yield from self._ask("close_commands", every=about(EVERY), gone=gone)
        self._settle([row[:2] for row in rows if row[0] is not None])
        waits = [row for row in rows if row[0] is None]
        return [_missing(row) for row in waits], [_missing(row).uuid for row in waits if self._has_ended(row)]

    def _has_ended(self, row: Cells) -> bool:
        return row[3] is not None and self._is_gone(row[4:])

    # ---- the end of this daemon, which is unregistered already

    def finish(self, now: Callable[[], float], limit_s: float) -> Steps[None]:
        """End the commands that wait for no other scheduler: there may be nobody left who does.

        If we obey one to shut down, wait until it has ended, for so many seconds at most.
        """
        until = now() + limit_s
        while (yield from self._is_missing()) and self.obeys_shutdown and now() < until:
            yield Until(now() + LAST_LOOK_S)

    def _is_missing(self) -> Steps[bool]:
        """End the commands that all have acknowledged; return whether one to shut down has not ended."""
        try:
            missing = [each for each in (yield from self.close()) if each.is_of_shutdown]
        except (RefusedError, ConnectionLostError):
            return True
        self.are_awaited = bool(missing) and self.obeys_shutdown
        if self.are_awaited:
            self._log_wait(missing)
        return bool(missing)

    def _log_wait(self, missing: list[Missing]) -> None:
        names = sorted(each.name or "the lock on the row of the command" for each in missing)
        if names != self._logged:
            log_line("info", f"the command to shut down waits for {', '.join(names)}; a signal ends this daemon now")
            self._logged = names


def _missing(row: Cells) -> Missing:
    _, _, is_of_shutdown, uuid, host, pid = ((cell or b"").decode("utf-8", "backslashreplace") for cell in row[:6])
    return Missing(is_of_shutdown == "t", uuid, f"{host}.{pid}" if uuid else "")
