"""The answer of a command about many jobs comes as soon as the core says what became of those in hand."""

from time import process_time
from typing import Any

import pytest

from scheduler.daemon.bulk_changes import LONG_S, PAUSE_S, Batches, change_all
from scheduler.daemon.command_rows import AGAIN_S, CommandRow, Context, Done, Later, Outcome
from scheduler.drivers.statement_runner import RefusedError
from scheduler.drivers.statements import Failure
from scheduler.model.queue_requests import EndAndClaim
from scheduler.model.verbs import ALL, parse
from scheduler.policy.core import Core
from tests.core_tools import claim, make_core, turn

COMMAND = f"cancel {ALL}"
REFUSED = RefusedError(Failure("23514", "no"))  # for what the row holds


def carry_out(core: Core, rows: list[Any] | RefusedError, progress: object = None, took_s: float = 0.0) -> Outcome:
    """Carry out a batch, to which the database answers with these rows after so many seconds."""
    clock = [100.0]

    def ask(name: str, **values: object) -> Any:
        clock[0] += took_s
        if isinstance(rows, RefusedError):
            raise rows
        return rows
        yield

    fields: dict[str, Any] = dict.fromkeys(Context.__slots__)
    context = Context(**fields | {"core": core, "now": lambda: clock[0], "ask": ask})
    row = CommandRow(1, COMMAND, None, None, "cancelled by ann", False, True, False, True, progress)
    steps = change_all(context, row, parse(COMMAND))
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for more than its batch")


def answer(ours: bytes, told: int) -> list[Any]:
    """Return the last batch: three jobs were changed, and so many in hand are to end."""
    return [(b"t", b"t", b"3", b"0", b"{}", None, ours, b"%d" % told, b"{}", None)]


def test_jobs_that_ended_by_themselves_hold_up_no_answer_and_do_not_count() -> None:
    core = make_core()
    turn(core, claim(7))
    done = carry_out(core, answer(b"7,8,9", 3))
    assert isinstance(done, Done)
    assert done.text == "cancel: 4 jobs"  # 7 was in hand, 8 and 9 were not


def test_jobs_that_a_claim_is_still_to_bring_are_waited_for() -> None:
    core = make_core()
    assert isinstance(core.next_request(0.0), EndAndClaim)
    later = carry_out(core, answer(b"7", 1))
    assert isinstance(later, Later)
    assert isinstance(later.progress, Batches)
    assert list(later.progress.coming) == [7]


def test_count_of_a_daemon_that_goes_on_is_that_of_the_row() -> None:
    done = carry_out(make_core(), answer(b"", 5))
    assert isinstance(done, Done)
    assert done.text == "cancel: 8 jobs"


def cancel_all(jobs: int) -> float:
    """Return what it costs, in time of the processor, to cancel so many jobs in hand."""

    def once() -> float:
        core = make_core()
        turn(core, *[claim(pk) for pk in range(jobs)])
        began = process_time()
        assert all(core.cancel(pk, "cancelled", 0.0) for pk in range(jobs))
        return process_time() - began

    return min(once() for _ in range(3))


def test_a_job_in_hand_is_cancelled_at_the_same_cost_however_many_others_are() -> None:
    assert cancel_all(2000) < 25 * cancel_all(200)  # ten times, if each costs the same


def batch(is_over: bool = False, has_moved: bool = True) -> list[Any]:
    over, moved = (b"t" if each else b"f" for each in (is_over, has_moved))
    return [(over, moved, b"3", b"0", b"{}", None, None, b"0", b"{}", None)]


def size_after(size: int, rows: list[Any] | RefusedError, took_s: float = 0.0) -> int:
    later = carry_out(make_core(), rows, Batches(size), took_s)
    assert isinstance(later, Later)
    assert isinstance(later.progress, Batches)
    return later.progress.most


@pytest.mark.parametrize(
    ("size", "took_s", "then"),
    [
        (1000, 0.0, 1000),
        (300, LONG_S - 0.01, 600),
        (1000, 0.3, 500),
        (300, 0.3, 200),
        (200, 0.3, 200),
        (100, 0.3, 100),
        (1, 0.0, 2),
    ],
)
def test_a_batch_that_took_long_is_followed_by_a_smaller_one(size: int, took_s: float, then: int) -> None:
    assert size_after(size, batch(), took_s) == then


@pytest.mark.parametrize(("size", "then"), [(1000, 100), (15, 1), (2, 1)])
def test_a_batch_that_is_refused_becomes_smaller_until_a_job_is_alone(size: int, then: int) -> None:
    assert size_after(size, REFUSED) == then


def test_the_refusal_of_one_job_is_told() -> None:
    with pytest.raises(RefusedError):
        carry_out(make_core(), REFUSED, Batches(1))


@pytest.mark.parametrize(("has_moved", "seconds"), [(True, PAUSE_S), (False, AGAIN_S)])
def test_a_command_that_has_moved_goes_on_soon(has_moved: bool, seconds: float) -> None:
    later = carry_out(make_core(), batch(has_moved=has_moved))
    assert isinstance(later, Later)
    assert (later.seconds, later.has_moved, str(later.progress)) == (seconds, has_moved, "3 jobs so far")


def test_the_answer_counts_the_refused_and_those_of_other_groups() -> None:
    row = (b"t", b"t", b"1", b"2", b"{}", None, None, b"0", b'{"b": 3, "a": 1}', None)
    done = carry_out(make_core(), [(*row[:4], b'{"locked": 2}', *row[5:])])
    assert done == Done(
        "cancel: 1 job, 2 refused, 1 given to the scheduler of group a, 3 given to the scheduler of group b",
        {"jobs": 1, "refused": 2, "reasons": {"locked": 2}, "given": {"b": 3, "a": 1}},
    )


@pytest.mark.parametrize(("done", "refused", "ok"), [(b"0", b"1", False), (b"1", b"1", True), (b"0", b"0", True)])
def test_a_command_of_which_all_jobs_are_refused_has_failed(done: bytes, refused: bytes, ok: bool) -> None:
    ended = carry_out(make_core(), [(b"t", b"t", done, refused, b"{}", None, None, b"0", b"{}", None)])
    assert isinstance(ended, Done)
    assert ended.ok is ok


def test_a_mistake_in_the_filter_ends_the_command() -> None:
    done = carry_out(make_core(), [(b"t", b"f", b"0", b"0", b"{}", None, None, b"0", b"{}", b"no such column")])
    assert done == Done("no such column", ok=False)
