"""Where jobs stand in the picture of dependencies."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.web.dependency_graph import HEIGHT, WIDTH, draw


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


@given(st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=2, max_size=31))
def test_boxes_do_not_meet_and_lie_within_the_picture(above: list[list[int]]) -> None:
    rows = [row(job, *{each for each in parents if each < job}) for job, parents in enumerate(above)]
    picture = draw(rows, 0)
    assert picture
    places = {box.job["job"]: (box.x, box.y) for box in picture.boxes}
    assert len(places) == len(set(places.values())) == len(rows)
    assert all(places[parent][0] < places[job["job"]][0] for job in rows for parent in job["parents"])
    assert all(x + WIDTH <= picture.width and y + HEIGHT <= picture.height for x, y in places.values())
