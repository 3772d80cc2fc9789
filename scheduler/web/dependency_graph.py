"""The graph of the dependencies of a job as a picture: the place of each box, and the path of each line.

Pure. A job stands one column to the right of the last of those that it depends on; in a column, jobs stand in the order
of what they are joined with, so that few lines cross.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

WIDTH: Final = 168  # of a box
HEIGHT: Final = 44
GAP: Final = 56  # between columns
ROW: Final = 58
EDGE: Final = 8  # around all
NARROW: Final = 340  # the width of a picture for a phone
STEP: Final = 28  # to the right there, if there is room


class Box(NamedTuple):
    """One job, and the place of its upper left corner."""

    job: dict[str, Any]
    x: int
    y: int
    is_asked: bool


class Picture(NamedTuple):
    """Boxes, lines as paths of SVG, and how large all is."""

    boxes: list[Box]
    lines: list[str]
    width: int
    height: int


def draw(rows: Sequence[dict[str, Any]], asked: int) -> Picture | None:
    """Return the picture of a family of jobs, rows of `family`; None for a job alone."""
    jobs = {row["job"]: row for row in rows}
    if len(jobs) < 2:
        return None
    parents = {job: [each for each in row["parents"] if each in jobs] for job, row in jobs.items()}
    columns = _columns(parents)
    places: dict[int, tuple[int, int]] = {}
    for number, column in enumerate(columns):
        for row, job in enumerate(_in_order(column, parents, places)):
            places[job] = EDGE + number * (WIDTH + GAP), EDGE + row * ROW
    boxes = [Box(jobs[job], x, y, job == asked) for job, (x, y) in places.items()]
    lines = [_line(places[parent], places[job]) for job in places for parent in parents[job]]
    tallest = max(map(len, columns))
    return Picture(boxes, lines, 2 * EDGE + len(columns) * (WIDTH + GAP) - GAP, 2 * EDGE + tallest * ROW - ROW + HEIGHT)


def draw_narrow(rows: Sequence[dict[str, Any]], asked: int) -> Picture | None:
    """Return the picture for a phone: a row for each job, further to the right below what it depends on."""
    jobs = {row["job"]: row for row in rows}
    if len(jobs) < 2:
        return None
    parents = {job: [each for each in row["parents"] if each in jobs] for job, row in jobs.items()}
    columns = _columns(parents)
    step = min(STEP, (NARROW - 2 * EDGE - WIDTH) // max(len(columns) - 1, 1))
    ordered = [(number, job) for number, column in enumerate(columns) for job in sorted(column)]
    places = {job: (EDGE + number * step, EDGE + row * ROW) for row, (number, job) in enumerate(ordered)}
    boxes = [Box(jobs[job], x, y, job == asked) for job, (x, y) in places.items()]
    lines = [_elbow(places[parent], places[job]) for job in places for parent in parents[job]]
    width, height = 2 * EDGE + (len(columns) - 1) * step + WIDTH, 2 * EDGE + len(jobs) * ROW - ROW + HEIGHT
    return Picture(boxes, lines, width, height)


def _columns(parents: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the jobs of each column. A parent may have a higher number, so columns are found until nothing moves."""
    column = dict.fromkeys(parents, 0)
    for _ in parents:  # as many rounds as the longest chain can have
        moved = {job: 1 + max(column[each] for each in above) for job, above in parents.items() if above}
        if all(column[job] == at for job, at in moved.items()):
            break
        column |= moved
    found: defaultdict[int, list[int]] = defaultdict(list)
    for job, at in column.items():
        found[at].append(job)
    return [found[at] for at in sorted(found)]


def _in_order(
    column: Sequence[int], parents: Mapping[int, Sequence[int]], places: Mapping[int, tuple[int, int]]
) -> list[int]:
    heights = {job: [places[each][1] for each in parents[job]] for job in column}
    return sorted(column, key=lambda job: (fmean(heights[job]) if heights[job] else 0.0, job))


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return a curve from the right side of one box to the left side of another."""
    x1, y1 = start[0] + WIDTH, start[1] + HEIGHT // 2
    x2, y2 = end[0], end[1] + HEIGHT // 2
    bend = (x2 - x1) // 2
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"


def _elbow(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return a line from the lower edge of one box down, then right to the left side of another."""
    x, y = start[0] + min(EDGE, (end[0] - start[0]) // 2), end[1] + HEIGHT // 2
    return f"M{x} {start[1] + HEIGHT}L{x} {y}L{end[0]} {y}"
