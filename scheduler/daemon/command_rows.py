"""A command row as it was read, and what whoever carries it out is given: a way to ask, to end it, and to leave it."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from scheduler.daemon.retention import Pass
from scheduler.model.commands import Order
from scheduler.model.jobs import Cells
from scheduler.policy.core import Core


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
