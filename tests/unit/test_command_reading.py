"""When commands are read again: one that cannot be carried out now waits, and holds up no other."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from scheduler.daemon.command_actions import ACTIONS
from scheduler.daemon.command_rows import AGAIN_S, ONE_READ, REFUSED_S, Commands, Context
from scheduler.drivers.loop import Steps
from scheduler.drivers.statement_runner import RefusedError
from scheduler.drivers.statements import Failure
from scheduler.model.queue_requests import Cells
from tests.core_tools import make_core

PAUSE = (b"7", b"pause", None, None, b"f", b"f", b"f", b"t")
SHUTDOWN = (b"8", b"shutdown", *PAUSE[2:])
A_READ = [(b"%d" % pk, *PAUSE[1:]) for pk in range(1, ONE_READ + 1)]


class Watch:
    """A watch connection whose answers are those of a test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.again: list[float] = []
        self.drains = 0
        nothing: Any = None
        context = Context(
            make_core(),
            lambda: self.now,
            self._ask,
            rescan=nothing,
            start_schedules_in=nothing,
            daemon=self,  # type: ignore[arg-type]
            is_gone=nothing,
        )
        self.commands = Commands(context, ACTIONS, self.again.append, self._go_on)

    def drain(self) -> None:
        """Count what a shutdown does to the daemon."""
        self.drains += 1

    def _ask(self, name: str, /, **values: object) -> Steps[list[Cells]]:
        rows: list[Cells] = yield (name, values)  # type: ignore[misc]
        return rows

    def _go_on(self) -> None:
        self._goes_on = True

    def _begin(self, steps: Steps[None]) -> None:
        self._steps, self._goes_on = steps, False
        self._resume(next)

    def read(self, *rows: Cells) -> object:
        """Let commands be read, and these be there; return those that are passed over."""
        self._begin(self.commands.read())
        passed = self._asked[1]["passed"]
        self.answer("read_commands", *rows)
        self.answer("close_runs")
        return passed

    def answer(self, name: str, *rows: Cells) -> None:
        """Answer the query that was asked last."""
        assert self._asked[0] == name
        self._resume(lambda steps: steps.send(list(rows)))

    def take(self) -> None:
        """Let the next command be taken, in time and with no limit."""
        self.answer("begin_command", (b"f", None))

    def refuse(self, name: str) -> None:
        """Refuse the query that was asked last."""
        assert self._asked[0] == name
        self._resume(lambda steps: steps.throw(RefusedError(Failure("42501", "no"))))

    def asked(self, name: str) -> Mapping[str, Any]:
        """Return the values of the query that was asked last."""
        assert self._asked[0] == name
        return self._asked[1]

    def _resume(self, resume: Callable[[Any], Any]) -> None:
        try:
            self._asked: tuple[str, Mapping[str, Any]] = resume(self._steps)
        except StopIteration:
            self.is_over = not self._goes_on
            if self._goes_on:
                self._begin(self.commands.carry_out_next())


@pytest.mark.parametrize(
    ("fail", "seconds"),
    [(lambda watch: watch.refuse("pause_queues"), REFUSED_S), (lambda watch: watch.answer("pause_queues"), AGAIN_S)],
    ids=["refused", "not ours"],
)
def test_command_that_fails_now_is_skipped_for_a_while(fail: Callable[[Watch], None], seconds: float) -> None:
    watch = Watch()
    assert watch.read(PAUSE) == []
    watch.take()
    fail(watch)
    assert watch.again == [seconds]
    watch.now = seconds - 0.01
    assert watch.read() == [7]
    watch.now = seconds
    assert watch.read() == []


def test_commands_that_are_passed_over_come_again_after_all_others_however_long_these_take() -> None:
    watch = Watch()
    watch.read(*A_READ)
    for _ in A_READ:
        watch.now += AGAIN_S
        watch.take()
        watch.answer("pause_queues")
    assert watch.read(PAUSE) == list(range(1, ONE_READ + 1))
    watch.answer("pause_queues")
    watch.answer("close_commands")
    watch.now += AGAIN_S
    assert watch.read() == []


LIMITED = (b"f", b"60")


@pytest.mark.parametrize(
    ("fail", "why"),
    [
        (lambda watch: watch.refuse("pause_queues"), "no (42501)"),
        (lambda watch: watch.answer("pause_queues"), "what it names is locked by another session, or changes just now"),
    ],
    ids=["refused", "locked"],
)
def test_command_with_a_limit_that_makes_no_headway_ends_with_the_reason(
    fail: Callable[[Watch], None], why: str
) -> None:
    watch = Watch()
    watch.read(PAUSE)
    watch.answer("begin_command", LIMITED)
    fail(watch)
    watch.now = 61.0
    watch.read(PAUSE)
    fail(watch)
    if watch.is_over:
        watch.now += REFUSED_S
        watch.read(PAUSE)
    assert watch.asked("end_command")["text"] == f"given up after 60 s: {why}"


def test_command_that_comes_too_late_is_not_carried_out() -> None:
    watch = Watch()
    watch.read(PAUSE)
    watch.answer("begin_command", (b"t", b"60"))
    assert watch.asked("end_command")["ok"] is False


def test_row_of_a_shutdown_ends_after_the_daemon_has_stopped_to_begin_jobs_f132() -> None:
    watch = Watch()
    watch.read(SHUTDOWN)
    watch.take()
    watch.asked("acknowledge")
    assert watch.drains == 0
    watch.answer("acknowledge")
    watch.asked("close_commands")
    assert watch.drains == 1


def test_shutdown_that_cannot_be_acknowledged_is_obeyed_once_f132() -> None:
    watch = Watch()
    watch.read(SHUTDOWN)
    watch.take()
    watch.refuse("acknowledge")
    assert watch.drains == 1
    watch.now = REFUSED_S
    watch.read(SHUTDOWN)
    watch.answer("acknowledge")
    watch.asked("close_commands")
    assert watch.drains == 1
