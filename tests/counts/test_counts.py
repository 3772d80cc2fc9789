"""What a job and an item cost is counted, and stays within limits.toml; nothing here is timed, so nothing can flake.

A test fails too when a figure is far below its limit: what was won is to be kept (limits.py tells how). What is done in
lockstep counts the same on a busy machine; a whole daemon is alone, since it does at once what has come together.
"""

import pytest

from tests.counts import limits
from tests.counts.conftest import Judge
from tests.counts.measures import MEASURES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("measure", ["python", "in_hand"])
def test_python_calls_per_item_stay_within_their_limits_p1_p2_p3_p4(judge: Judge, measure: str) -> None:
    assert judge(measure) == []


@pytest.mark.parametrize("measure", ["slots", "idle_slots"])
def test_work_per_turn_does_not_grow_with_the_number_of_slots_p7_t49(judge: Judge, measure: str) -> None:
    assert judge(measure) == []


def test_reading_100_hosts_costs_no_more_per_slot_than_10_f153(judge: Judge) -> None:
    assert judge("sites") == []


def test_instructions_of_the_core_stay_within_their_limits_p1_p2(judge: Judge) -> None:
    assert judge("instructions") == []


@pytest.mark.parametrize("measure", ["jobs", "lone_jobs", "items"])
def test_statements_and_writes_per_job_stay_within_their_limits_p1_p2_p5_t3_t4(judge: Judge, measure: str) -> None:
    assert judge(measure) == []


def test_writes_per_copied_job_stay_within_their_limit_p10(judge: Judge) -> None:
    assert judge("copied") == []


def test_pages_read_by_a_claim_do_not_grow_with_the_queue_c46_j36_t3(judge: Judge) -> None:
    assert judge("claims") == []


def test_pages_read_to_find_due_rows_do_not_grow_with_waiting_rows_c45(judge: Judge) -> None:
    assert judge("due") == []


@pytest.mark.alone
@pytest.mark.parametrize("measure", ["whole_loop", "system_calls"])
def test_a_turn_of_the_daemon_costs_the_same_with_many_idle_slots_p2_p7(judge: Judge, measure: str) -> None:
    assert judge(measure) == []


def test_every_measure_has_its_limits() -> None:
    assert {each.measure for each in limits.read().values()} == set(MEASURES)
