"""What a job and an item cost is counted, and stays within limits.toml; nothing here is timed, so nothing can flake.

A test fails too when a figure is far below its limit: what was won is to be kept (limits.py tells how).
"""

import pytest

from tests.counts import limits
from tests.counts.conftest import Judge
from tests.counts.measures import MEASURES

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(300)]


def figures(*measures: str) -> pytest.MarkDecorator:
    """Parametrize by the figures that these measures give."""
    return pytest.mark.parametrize("figure", [name for name, each in limits.read().items() if each.measure in measures])


@figures("python", "in_hand")
def test_our_python_does_no_more_than_it_did_p1_p2_p3_p4(judge: Judge, figure: str) -> None:
    assert judge(figure) == ""


@figures("slots", "idle_slots")
def test_what_is_done_does_not_grow_with_slots_p7_t49(judge: Judge, figure: str) -> None:
    assert judge(figure) == ""


@figures("jobs", "lone_jobs", "items")
def test_the_database_is_asked_and_written_no_more_than_it_was_p1_p2_p5_t3_t4(judge: Judge, figure: str) -> None:
    assert judge(figure) == ""


@figures("copied")
def test_a_copied_job_writes_no_more_than_it_did_p10(judge: Judge, figure: str) -> None:
    assert judge(figure) == ""


@figures("claims")
def test_a_claim_looks_at_no_more_pages_however_deep_the_queue_c46_j36_t3(judge: Judge, figure: str) -> None:
    assert judge(figure) == ""


@figures("due")
def test_a_look_for_due_rows_looks_at_no_more_pages_however_many_wait_c45(judge: Judge, figure: str) -> None:
    assert judge(figure) == ""


@figures("sites")
def test_a_hundred_hosts_are_read_at_no_more_a_slot_than_ten_f153(judge: Judge, figure: str) -> None:
    assert judge(figure) == ""


@figures("whole_loop", "system_calls")
def test_a_turn_of_the_daemon_costs_the_same_beside_idle_slots_p2_p7(judge: Judge, figure: str) -> None:
    assert judge(figure) == ""


@figures("instructions")
def test_the_core_takes_no_more_instructions_p1_p2(judge: Judge, figure: str) -> None:
    assert judge(figure) == ""


def test_every_measure_has_its_limits() -> None:
    assert {each.measure for each in limits.read().values()} == set(MEASURES)
