"""When commands are read again: one that cannot be done now waits, and holds up no other."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from scheduler.daemon.commands import AGAIN_S, REFUSED_S, Commands
from tests.core_tools import make_core

PAUSE = (b"7", b"pause", None, None, b"f", b"f", b"f", b"t")


class Watch:
    """A watch connection whose answers are those of a test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[str, Mapping[str, object], Callable[[list[Any]], object], Callable[[], object]]] = []
        self.again: list[float] = []
        self.commands = Commands(make_core(), self._ask, self.again.append, self._go_on, {}, lambda: self.now)

    def _ask(self, *question: Any) -> None:
        self.asked.append(question)

    def _go_on(self) -> None:
        self.commands.do_next()

    def read(self, *rows: tuple[bytes | None, ...]) -> object:
        """Let commands be read, and these be there; give those that are passed over."""
        self.commands.read()
        passed = self.asked[-1][1]["passed"]
        self.answer("read_commands", *rows)
        self.answer("close_runs")
        return passed

    def answer(self, name: str, *rows: tuple[bytes | None, ...]) -> None:
        """Answer the query that was asked last."""
        asked, _, then, _ = self.asked[-1]
        assert asked == name
        then(list(rows))

    def refuse(self, name: str) -> None:
        """Refuse the query that was asked last."""
        asked, _, _, refused = self.asked[-1]
        assert asked == name
        refused()


@pytest.mark.parametrize(
    ("fail", "seconds"),
    [(lambda watch: watch.refuse("pause_queues"), REFUSED_S), (lambda watch: watch.answer("pause_queues"), AGAIN_S)],
    ids=["refused", "not ours"],
)
def test_a_command_that_cannot_be_done_now_is_passed_over_for_a_while(
    fail: Callable[[Watch], None], seconds: float
) -> None:
    watch = Watch()
    assert watch.read(PAUSE) == []
    fail(watch)
    assert watch.again == [seconds]
    watch.now = seconds - 0.01
    assert watch.read() == [7]
    watch.now = seconds
    assert watch.read() == []
