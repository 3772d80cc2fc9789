"""Where jobs stand in the picture of dependencies."""

import re
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.web.dependency_graph import EDGE, HEIGHT, NARROW, WIDTH, Picture, draw, draw_narrow

FAMILIES = st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=2, max_size=31)


def row(job: int, *parents: int) -> dict[str, Any]:
    return {"job": job, "name": None, "type": "noop", "state": "queued", "parents": list(parents)}


def columns(rows: list[dict[str, Any]]) -> list[set[int]]:
    picture = draw(rows, rows[0]["job"])
    assert picture
    found: dict[int, set[int]] = {}
    for box in picture.boxes:
        found.setdefault(box.x, set()).add(box.job["job"])
    return [found[x] for x in sorted(found)]


def test_job_stands_right_of_all_that_it_depends_on() -> None:
    assert columns([row(1), row(2, 1), row(3, 1), row(4, 2, 3, 1)]) == [{1}, {2, 3}, {4}]


def test_parent_may_be_younger_than_its_child() -> None:
    assert columns([row(1, 2), row(2, 3), row(3)]) == [{3}, {2}, {1}]


def test_job_alone_has_no_picture() -> None:
    assert draw([row(1, 99)], 1) is None


def test_relatives_that_are_left_out_have_no_lines() -> None:
    picture = draw([row(1, 98, 99), row(2, 1)], 1)
    assert picture
    assert len(picture.lines) == 1


def family(above: list[list[int]]) -> list[dict[str, Any]]:
    return [row(job, *sorted({each for each in parents if each < job})) for job, parents in enumerate(above)]


def places(picture: Picture | None) -> dict[int, tuple[int, int]]:
    assert picture
    return {box.job["job"]: (box.x, box.y) for box in picture.boxes}


def ends(line: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    points = [int(each) for each in re.findall(r"\d+", line)]
    return tuple(points[:2]), tuple(points[-2:])


@given(FAMILIES)
def test_boxes_do_not_meet_and_fill_the_picture(above: list[list[int]]) -> None:
    rows = family(above)
    picture = draw(rows, 0)
    assert picture
    at = places(picture)
    assert len(at) == len(set(at.values())) == len(rows)
    assert all(at[parent][0] < at[job["job"]][0] for job in rows for parent in job["parents"])
    assert (min(x for x, _ in at.values()), min(y for _, y in at.values())) == (EDGE, EDGE)
    assert picture.width == max(x for x, _ in at.values()) + WIDTH + EDGE
    assert picture.height == max(y for _, y in at.values()) + HEIGHT + EDGE
    assert all(abs(y - other) >= HEIGHT for x, y in at.values() for x2, other in at.values() if x == x2 and y != other)


@given(FAMILIES)
def test_a_line_leads_from_the_right_side_of_a_job_to_the_left_side_of_its_child(above: list[list[int]]) -> None:
    rows = family(above)
    picture = draw(rows, 0)
    assert picture
    at = places(picture)
    assert sorted(map(ends, picture.lines)) == sorted(
        ((at[parent][0] + WIDTH, at[parent][1] + HEIGHT // 2), (at[job["job"]][0], at[job["job"]][1] + HEIGHT // 2))
        for job in rows
        for parent in job["parents"]
    )


@given(FAMILIES)
def test_on_a_phone_each_job_has_a_row_below_what_it_depends_on_and_all_fits(above: list[list[int]]) -> None:
    rows = family(above)
    picture = draw_narrow(rows, 0)
    assert picture
    at = places(picture)
    heights = sorted(y for _, y in at.values())
    assert heights[0] == EDGE
    assert all(below - y > HEIGHT for y, below in pairwise(heights))
    assert all(at[parent][1] < at[job["job"]][1] for job in rows for parent in job["parents"])
    assert all(at[parent][0] < at[job["job"]][0] for job in rows for parent in job["parents"])
    assert picture.width == max(x for x, _ in at.values()) + WIDTH + EDGE <= NARROW
    assert picture.height == heights[-1] + HEIGHT + EDGE


@given(FAMILIES)
def test_on_a_phone_a_line_leads_from_below_a_job_to_the_left_side_of_its_child(above: list[list[int]]) -> None:
    rows = family(above)
    picture = draw_narrow(rows, 0)
    assert picture
    at = places(picture)
    wanted = [(at[parent], at[job["job"]]) for job in rows for parent in job["parents"]]
    found = [(*ends(line), re.findall(r"L(\d+) (\d+)L", line)[0]) for line in picture.lines]
    assert sorted(end for _, end, _ in found) == sorted((x, y + HEIGHT // 2) for _, (x, y) in wanted)
    assert sorted(start[1] for start, _, _ in found) == sorted(y + HEIGHT for (_, y), _ in wanted)
    assert all((start[0], end[1]) == (int(x), int(y)) and start[0] < end[0] for start, end, (x, y) in found)


def test_jobs_of_a_column_stand_in_the_order_of_what_they_depend_on() -> None:
    at = places(draw([row(1), row(2), row(3, 2), row(4, 1)], 1))
    assert at[4][1] < at[3][1]


def test_the_job_that_was_asked_for_is_marked() -> None:
    for picture in (draw([row(1), row(2, 1)], 2), draw_narrow([row(1), row(2, 1)], 2)):
        assert picture
        assert [box.job["job"] for box in picture.boxes if box.is_asked] == [2]


def test_relatives_that_are_left_out_have_no_lines_on_a_phone() -> None:
    picture = draw_narrow([row(1, 98, 99), row(2, 1)], 1)
    assert picture
    assert len(picture.lines) == 1
    assert draw_narrow([row(1, 99)], 1) is None
