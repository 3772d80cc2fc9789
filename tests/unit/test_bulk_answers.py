"""The answer of a command about many jobs comes as soon as the core says what became of those in hand."""

from time import process_time
from typing import Any

from scheduler.daemon.bulk_changes import Batches, change_all
from scheduler.daemon.command_rows import CommandRow, Context, Done, Later, Outcome
from scheduler.model.queue_requests import EndAndClaim
from scheduler.model.verbs import ALL, parse
from scheduler.policy.core import Core
from tests.core_tools import claim, make_core, turn

COMMAND = f"cancel {ALL}"


def carry_out(core: Core, rows: list[Any], progress: object = None) -> Outcome:
    """Carry out a batch, to which the database answers with these rows."""

    def ask(name: str, **values: object) -> Any:
        return rows
        yield

    fields: dict[str, Any] = dict.fromkeys(Context.__slots__)
    context = Context(**fields | {"core": core, "now": lambda: 0.0, "ask": ask})
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
