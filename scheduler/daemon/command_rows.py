"""A command row as it was read, and what whoever carries it out is given: a way to ask, to end it, and to leave it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from scheduler.model.commands import Order
from scheduler.model.jobs import Cells
from scheduler.policy.core import Core

PIECE: Final = 1000  # rows looked at by one statement, which takes tens of milliseconds
PAUSE_S: Final = 0.05  # between two of them
STAGES: Final = ("jobs", "groups", "log")  # as drover.flush has them


class Row(NamedTuple):
    """A command row, and the job that it names."""

    pk: int
    text: str
    job: int | None  # None: there is none
    state: str | None  # of that job
    is_ours: bool  # we work on it
    is_command: bool
    took_effect: bool  # it was done, or begun, and its row did not end: so "done already" is done
    of_operator: bool  # these come before all others


class Pass:
    """One pass over all that ended more than so many days before a command came, or before now (None)."""

    def __init__(self, days: int, *, failed_too: bool, command: int | None) -> None:
        self.days, self._failed_too, self._command = days, failed_too, command
        self._stage: str | None = STAGES[0]
        self._place = 0
        self.removed = dict.fromkeys(STAGES, 0)

    @property
    def is_over(self) -> bool:
        """Say whether all was looked at."""
        return self._stage is None

    def values(self) -> dict[str, object]:
        """Give the parameters of query `flush` for the next piece."""
        return {
            "command": self._command, "days": self.days, "failed": self._failed_too, "most": PIECE,
            "stage": self._stage, "place": self._place,
        }  # fmt: skip

    def take(self, cells: Cells) -> None:
        """Note its answer."""
        count, stage, place = cells
        self.removed[self._stage or ""] += int(count or 0)
        self._stage = None if stage is None else stage.decode()
        self._place = int(place or 0)

    def __str__(self) -> str:
        """Give the end of a pass in words."""
        jobs, groups, lines = self.removed.values()
        return f"removed {jobs} jobs, {groups} job groups, {lines} log lines about no job"


class Desk(Protocol):
    """Where one command after the other is done. Each is ended, or left; a refused statement leaves it too."""

    core: Core
    now: Callable[[], float]  # monotonic seconds
    passes: dict[int, Pass]  # how far commands have come that are done piece by piece

    def ask(self, name: str, values: Mapping[str, object], then: Callable[[list[Cells]], object]) -> None:
        """Run a named query and go on with its rows."""

    def end(self, row: Row, text: str, result: object = True, *, ok: bool = True) -> None:
        """End a command with a word and an answer; one that failed has no answer unless one is given."""

    def later(self, seconds: float = ...) -> None:
        """Leave a command as it is for a moment: what it names is on its way from one state to another, or locked."""

    def leave(self) -> None:
        """Leave a command that goes on by itself."""

    def settle(self, parents: Iterable[bytes | None]) -> None:
        """Others may wait for what has ended."""


Doer = Callable[[Desk, Row, Order], None]


def text_of(cell: bytes | None) -> str:
    """Give a cell as text."""
    return (cell or b"").decode("utf-8", "backslashreplace")


def parents_of(ended: Iterable[Cells]) -> list[bytes | None]:
    """Give those for which others wait, of rows with a number and whether some do."""
    return [pk for pk, is_parent in ended if is_parent == b"t"]
