"""The screen of drover top: what it holds, and that it never is larger than the terminal."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cli.health import Row
from scheduler.cli.top import KEYS, LETTERS, Choice, View, draw
from scheduler.model.states import SLOT_STATES, STATE_NAMES

NOW = datetime(2030, 1, 1, tzinfo=UTC)
WARNING: Row = ("agents failed", "type noop", timedelta(minutes=2), "no OK", "look at drover log")


def view(slots: int = 3, queues: int = 2, jobs: int = 2, **more: Any) -> View:
    states = [STATE_NAMES[state] for state in SLOT_STATES]
    return View(
        more.get("headline", "group default: alpha.77 is active"), [WARNING],
        {"could_start": 5, "for_time": 9, "running": 2}, 12.3, 45.6,
        [{"host": f"h{n // 9}", "agent": "noop", "state": states[n % 7], "enabled": True} for n in range(slots)],
        [{"queue": f"q{n}", "concurrency": None, "paused": n == 1, "in_hand": 1, "queued": 9, "could_start": 7}
         for n in range(queues)],
        [{"condition": "tape", "jobs": 4, "next_check": NOW}],
        [{"job": n, "type": "noop", "state": "running", "since": timedelta(seconds=3), "host": "h0",
          "progress": more.get("progress"), "args": more.get("args", "x")} for n in range(1, jobs + 1)],
    )  # fmt: skip


def text(shown: View, choice: Choice | None = None, lines: int = 40, columns: int = 120) -> str:
    return "\n".join(line.plain for line in draw(shown, choice or Choice(), lines, columns))


def test_every_state_of_a_slot_has_a_letter() -> None:
    assert set(LETTERS) == {STATE_NAMES[state] for state in SLOT_STATES}
    assert len(set(LETTERS.values())) == len(LETTERS)


def test_screen_has_slots_rates_queues_conditions_and_jobs() -> None:
    shown = text(view(slots=7))
    for part in (
        "12.3 jobs/s  45.6 items/s",
        "F.kpsrR",
        "4 on tape",
        "7 could start         2 wait  paused",
        "jobs: 5 could start, 9 wait for a time, 2 running",
        "slots: 1 failed, 1 ending, 2 starting, 1 working, 2 idle",
        "job type           state           for host         parameter",
        "agents failed: type noop",
        KEYS,
    ):
        assert part in shown


@given(
    st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.integers(4, 60), st.sampled_from([20, 40, 80, 200])
)
def test_screen_is_never_larger_than_the_terminal(slots: int, queues: int, jobs: int, lines: int, columns: int) -> None:
    drawn = draw(view(slots, queues, jobs, headline="x" * 300, args="[bold]" * 99), Choice(), lines, columns)
    assert len(drawn) <= lines
    assert all(line.cell_len <= columns for line in drawn)


def test_lines_that_one_part_does_not_need_are_given_to_the_others() -> None:
    shown = text(view(slots=1, queues=1, jobs=50), lines=40)
    assert len(shown.splitlines()) == 40
    assert "Jobs in hand or blocked (and 28 more)" in shown


def test_slots_that_failed_stand_above_those_that_work_and_idle_ones_are_a_number() -> None:
    slots = [{"host": "h", "agent": f"{state[3:].lower()}-type", "state": state, "enabled": n < 4} for n, state in
             enumerate(("ST_FREE", "ST_READY", "ST_RUNNING", "ST_FAIL", "ST_FREE"))]  # fmt: skip
    shown = text(replace(view(), slots=slots))
    assert shown.index("fail-type") < shown.index("running-type")
    assert ("ready-type" in shown, "free-type" in shown) == (False, False)
    assert "slots: 1 failed, 1 working, 2 idle, 1 disabled" in shown


def test_job_of_a_query_shows_how_far_it_is() -> None:
    shown = text(view(progress="7 of 20 items, 1 failed, 2/s, about 6 s left", args="select 1"))
    assert "h0           7 of 20 items, 1 failed, 2/s, about 6 s left: select 1" in shown


def test_hostile_text_and_markup_are_shown_as_they_are() -> None:
    shown = text(view(args="[red]x[/red]\x1b[2J\n"))
    assert r"[red]x[/red]\x1b[2J\n" in shown


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [([0], ("queue", "q0")), ([0, 1, 1], ("job", 1)), ([0, -1], ("queue", "q0")), ([0, 9], ("job", 2))],
)
def test_keys_move_over_queues_and_jobs(steps: list[int], chosen: tuple[str, Any]) -> None:
    choice = Choice()
    for step in steps:
        choice.move(view().choices(), step)
    assert choice.at == chosen


def test_a_choice_that_is_gone_becomes_what_is_in_its_place() -> None:
    choice = Choice()
    for step in (0, 1, 1):
        choice.move(view().choices(), step)
    ended = replace(view(), jobs=view().jobs[1:])
    choice.move(ended.choices(), 0)
    assert choice.at == ("job", 2)
    choice.move(view(queues=1, jobs=0).choices(), 0)
    assert choice.at == ("queue", "q0")
    choice.move([], 1)
    assert choice.at is None


def test_a_terminal_of_few_lines_has_the_keys_and_the_first_lines_of_the_head() -> None:
    shown = text(view(), lines=4).splitlines()
    assert len(shown) == 4
    assert shown[0] == "group default: alpha.77 is active"
    assert shown[-1] == KEYS
