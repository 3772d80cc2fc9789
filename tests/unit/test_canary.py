"""Claims about the rule by which a new program is worse than the one in use, and about the states of a program."""

import json
from fractions import Fraction
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import BugError
from scheduler.model.states import PROGRAM, ProgramEvent, ProgramState
from scheduler.policy.canary_verdict import (
    BY_COMMAND,
    HISTORY,
    Canary,
    Judgement,
    Record,
    compared,
    failures_allowed,
    judge,
)

MOST = 20
COUNTS = st.tuples(st.integers(0, 200), st.integers(0, 200)).map(lambda pair: (min(pair), max(pair)))
TIMES = st.lists(st.floats(0.0, 100.0), min_size=MOST, max_size=HISTORY * MOST)


def record(done: int, failed: int = 0, seconds: float = 0.1) -> Record:
    """Return what a program did: so many items failed, then so many done, each in so many seconds."""
    made = Record("program", HISTORY * MOST)
    for _ in range(failed):
        made.item_failed()
    for _ in range(done):
        made.item_done(seconds)
    return made


def timed(times: list[float]) -> Record:
    made = Record("program", HISTORY * MOST)
    for seconds in times:
        made.item_done(seconds)
    return made


# ---- failures


@pytest.mark.parametrize(
    ("new", "old", "judgement"),
    [
        (record(MOST), record(200), Judgement.PASSES),
        (record(MOST - 1), record(200), Judgement.OPEN),
        (record(0, 1), record(200), Judgement.FAILS),
        (record(0, 1), record(0), Judgement.FAILS),
        (record(MOST), record(0), Judgement.PASSES),
        (record(17, 3), record(190, 10), Judgement.PASSES),  # one of 20 is expected, and two more are chance
        (record(0, 4), record(190, 10), Judgement.FAILS),
        (record(0, MOST), record(0, 200), Judgement.PASSES),
    ],
)
def test_new_program_is_judged_by_its_failures(new: Record, old: Record, judgement: Judgement) -> None:
    assert judge(new, old, MOST) is judgement


@given(COUNTS)
def test_failures_allowed_are_those_expected_and_twice_their_square_root(counts: tuple[int, int]) -> None:
    failed, tried = counts
    expected = Fraction(failed * MOST, tried) if tried else Fraction(0)
    allowed = failures_allowed(record(tried - failed, failed), MOST)
    assert float(expected) + 2 * sqrt(expected) - 1.001 <= allowed <= float(expected) + 2 * sqrt(expected) + 0.001


@given(COUNTS)
def test_program_that_fails_as_often_as_the_one_in_use_is_not_worse(counts: tuple[int, int]) -> None:
    failed, tried = counts
    new = record(MOST - failed * MOST // max(tried, 1), failed * MOST // max(tried, 1))
    assert judge(new, record(tried - failed, failed), MOST) is Judgement.PASSES


@given(COUNTS, st.integers(0, MOST))
def test_one_failure_more_makes_no_program_better(counts: tuple[int, int], failed: int) -> None:
    old = record(counts[1] - counts[0], counts[0])
    more = judge(record(0, failed + 1), old, MOST)
    assert more is Judgement.FAILS or judge(record(0, failed), old, MOST) is not Judgement.FAILS


# ---- times


@given(TIMES)
def test_program_that_is_as_fast_as_the_one_in_use_is_not_slower(times: list[float]) -> None:
    assert judge(timed(times[:MOST]), timed(times[:MOST]), MOST) is Judgement.PASSES


@given(TIMES, st.floats(1.0, 1.49))
def test_program_is_slower_from_one_and_a_half_times_on(times: list[float], factor: float) -> None:
    assert judge(timed([each * factor for each in times]), timed(times), MOST) is Judgement.PASSES
    slow = judge(timed([each * 1.6 + 0.02 for each in times]), timed(times), MOST)
    assert slow is Judgement.SLOW


def test_times_are_compared_only_when_the_program_in_use_has_done_enough() -> None:
    slow = record(MOST, seconds=9.0)
    assert judge(slow, record(MOST - 1), MOST) is Judgement.PASSES
    assert judge(slow, record(MOST), MOST) is Judgement.SLOW


def test_less_than_ten_milliseconds_are_no_difference() -> None:
    assert judge(record(MOST, seconds=0.0099), record(MOST, seconds=0.0002), MOST) is Judgement.PASSES


def test_some_long_items_do_not_make_a_program_slow() -> None:
    assert judge(timed([0.1] * 11 + [60.0] * 9), record(200), MOST) is Judgement.PASSES


def test_record_has_the_last_items_only() -> None:
    made = record(HISTORY * MOST, failed=7)
    assert (made.tried, made.failed, made.done) == (HISTORY * MOST, 0, HISTORY * MOST)


def test_figures_are_told_in_words() -> None:
    text = "3 of 20 failed, of the program in use 0 of 200; an item takes 1.2 s, there 0.1 s"
    assert compared(record(17, 3, 1.2), record(200)) == text
    assert compared(record(0, 1), record(0)) == "1 of 1 failed, of the program in use 0 of 0"


# ---- states


def test_states_of_a_program_are_moved_as_told() -> None:
    moves = {(a, b): cell for a, row in PROGRAM.cells.items() for b, cell in row.items() if cell in PROGRAM.cells}
    assert moves == {
        ("STEADY", "REPLACED"): "TRIAL",
        ("TRIAL", "REPLACED"): "TRIAL",
        ("TRIAL", "CANARY"): "TRIAL",
        ("TRIAL", "RESTORED"): "STEADY",
        ("TRIAL", "PASSED"): "STEADY",
        ("TRIAL", "PROMOTE"): "STEADY",
        ("TRIAL", "WORSE"): "HELD_BACK",
        ("TRIAL", "ROLLBACK"): "HELD_BACK",
        ("HELD_BACK", "REPLACED"): "TRIAL",
        ("HELD_BACK", "CANARY"): "TRIAL",
        ("HELD_BACK", "RESTORED"): "STEADY",
        ("HELD_BACK", "PROMOTE"): "STEADY",
    }


@pytest.mark.parametrize("event", [ProgramEvent.PASSED, ProgramEvent.WORSE])
def test_only_a_program_on_trial_is_judged(event: ProgramEvent) -> None:
    canary = Canary(MOST, "old", is_known=True)
    with pytest.raises(BugError):
        canary.fire(event)


def test_program_that_is_promoted_keeps_its_record() -> None:
    canary = Canary(MOST, "old", is_known=True)
    canary.fire(ProgramEvent.REPLACED)
    canary.begin("new")
    assert canary.new is not None
    canary.new.item_done(0.1)
    canary.fire(ProgramEvent.PASSED)
    canary.promote()
    assert (canary.state, canary.used.program, canary.used.tried) == (ProgramState.STEADY, "new", 1)
    assert (canary.in_file, canary.programs, canary.figures) == ("new", ("new",), "")


def on_trial(*, done: int = 0, failed: int = 0) -> Canary:
    """Return one whose new program has tried so many items."""
    canary = Canary(MOST, "old", ("old", "new"), is_known=True)
    canary.used.item_done(0.1)
    canary.fire(ProgramEvent.REPLACED)
    canary.begin("new")
    assert canary.new is not None
    for _ in range(failed):
        canary.new.item_failed()
    for _ in range(done):
        canary.new.item_done(0.1)
    return canary


def test_an_agent_goes_on_with_the_record_of_the_program_that_it_runs() -> None:
    canary = on_trial(done=3)
    assert (canary.record_of("old"), canary.record_of("new")) == (canary.used, canary.new)
    other = canary.record_of("older")
    assert (other.program, other.tried) == ("older", 0)
    assert Canary(MOST, "old", is_known=True).record_of("new").tried == 0


def test_agents_run_the_new_program_only_while_it_is_on_trial() -> None:
    canary = on_trial()
    told = [canary.programs, canary.in_file]
    canary.fire(ProgramEvent.ROLLBACK)
    canary.hold_back("it was too slow")
    assert [*told, canary.programs, canary.in_file] == [("old", "new"), "new", ("old",), "new"]


def test_nothing_is_known_of_a_program_that_there_is_not() -> None:
    canary = Canary(MOST, "old", is_known=False)
    assert (canary.judgement, canary.figures, canary.text, canary.is_known) == (Judgement.OPEN, "", None, False)


@pytest.mark.parametrize(("most", "tried"), [(MOST // 2, MOST // 2), (2 * MOST, MOST + 5)])
def test_a_trial_of_another_length_keeps_what_was_tried_and_goes_on(most: int, tried: int) -> None:
    canary = on_trial(done=MOST - 1)
    canary.set_most(most)
    assert canary.new is not None
    for _ in range(6):
        canary.new.item_done(0.1)
    assert (canary.new.tried, canary.judgement) == (tried, Judgement.PASSES if tried == most else Judgement.OPEN)


@pytest.mark.parametrize("state", ["steady", "trial", "held back"])
def test_the_next_program_of_the_daemon_knows_what_was_tried(state: str) -> None:
    canary = on_trial(done=3, failed=1) if state != "steady" else Canary(MOST, "old", is_known=True)
    if state == "held back":
        canary.fire(ProgramEvent.WORSE)
        canary.hold_back("1 of 4 failed")
    later = Canary.restored(MOST, json.loads(json.dumps(canary.snapshot())))
    assert later.snapshot() == canary.snapshot()
    assert (later.state, later.why, later.text, later.in_file) == (
        canary.state,
        canary.why,
        canary.text,
        canary.in_file,
    )
    for _ in range(2 * MOST):
        later.record_of(later.in_file).item_done(0.1)
    assert later.record_of(later.in_file).tried == (MOST if state != "steady" else 2 * MOST)


@pytest.mark.parametrize(
    ("why", "is_worse", "text"),
    [
        ("1 of 4 failed", True, "the new program new failed its trial: 1 of 4 failed; the one in use, old, stays"),
        (BY_COMMAND, False, "the new program new was rolled back by command; the one in use, old, stays"),
    ],
)
def test_a_program_that_was_held_back_is_shown_with_the_reason(why: str, is_worse: bool, text: str) -> None:
    canary = on_trial(done=3, failed=1)
    canary.fire(ProgramEvent.ROLLBACK)
    canary.hold_back(why)
    row = canary.shown(["agent", "-x"])
    assert (row["is_worse"], row["text"], row["why"], row["state"]) == (is_worse, text, why, "HELD_BACK")
    assert (row["tried"], row["failed"], row["used_tried"], row["used_failed"]) == (4, 1, 1, 0)
    assert (row["command"], row["used"], row["new"], row["items"]) == (["agent", "-x"], "old", "new", MOST)


def test_of_a_type_without_a_new_program_no_figures_are_shown() -> None:
    row = Canary(MOST, "old", is_known=True).shown(["agent"])
    assert (row["tried"], row["failed"], row["used_tried"], row["used_failed"]) == (0, 0, None, None)
    assert (row["new"], row["is_worse"], row["slot"], row["text"]) == (None, False, None, None)


def test_a_trial_says_how_far_it_is() -> None:
    told = "the new program new is on trial and waits for work: 3 of 20 items, 0 of 3 failed"
    assert str(on_trial(done=3).text).startswith(told)


def test_failures_that_are_allowed_are_whole_items() -> None:
    assert [failures_allowed(record(200 - n, n), MOST) for n in (0, 1, 10, 20, 200)] == [0, 0, 3, 4, 28]
