"""How much of each table of drover status a screen holds."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cli.job_totals import busy_agents, jobs_by_type, jobs_line, live_jobs, pivot, totals
from scheduler.cli.status import TABLE_LINES, shares


@pytest.mark.parametrize(
    ("needs", "lines", "given"),
    [
        ([2, 40, 40], 3 * TABLE_LINES + 22, [2, 10, 10]),
        ([1, 2, 3], 100, [1, 2, 3]),
        ([5, 90], inf, [5, 90]),
        ([5, 90], 3, [1, 1]),
        ([], 24, []),
    ],
)
def test_short_tables_are_whole_and_long_ones_alike(needs: list[int], lines: float, given: list[int]) -> None:
    assert shares(needs, lines) == given


@given(st.lists(st.integers(1, 200), max_size=8), st.integers(50, 200))
def test_tables_fit_the_lines_that_there_are(needs: list[int], lines: int) -> None:
    shown = shares(needs, lines)
    assert sum(shown) + TABLE_LINES * len(needs) <= lines
    assert all(1 <= part <= need for part, need in zip(shown, needs, strict=True))


def test_counts_have_a_column_for_each_state_that_occurs() -> None:
    table = pivot("", ("type",), [(("a",), "done", 2), (("b",), "queued", 1), (("a",), "done", 1)], ["queued", "done"])
    assert (table.columns, table.rows) == (("type", "queued", "done"), [("a", 0, 3), ("b", 1, 0)])


def test_types_with_failed_agents_stand_above_those_that_work() -> None:
    slots = [{"host": host, "agent": "a", "state": state} for host, state in
             (("h1", "ST_RUNNING"), ("h2", "ST_FAIL"), ("h3", "ST_FREE"), ("h2", "ST_RUNNING"))]  # fmt: skip
    assert [row[0] for row in busy_agents(slots).rows] == ["h2", "h1"]


def test_types_with_work_to_do_stand_above_those_that_wait_and_ended_ones_are_counted() -> None:
    counts = [("a", "for_time", 9), ("b", "could_start", 1), ("c", "done", 7), ("d", "running", 2)]
    live = live_jobs(jobs_by_type(counts))
    assert live.columns == ("type", "could_start", "for_time", "running", "done")
    assert ([row[0] for row in live.rows], live.left) == (["d", "b", "a"], 1)


def test_line_of_jobs_leaves_out_what_is_none() -> None:
    assert jobs_line(totals([("a", "could_start", 1200), ("b", "running", 2), ("a", "failed", 3)])) == (
        "jobs: 1,200 could start, 2 running; 3 failed"
    )
    assert jobs_line(totals([])) == "jobs: none"
