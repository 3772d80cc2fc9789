"""Draw state machines as text for the manuals: `python -m tests.state_diagrams NAME` prints the lines for the source.

A state is a column, a move is an arrow from one to another with the events that cause it; `o` is an event after which
the state is the same, `x` one that is a violation. Events that are ignored or impossible are not drawn. `moves` reads a
drawing, so that a test compares each cell of the tables with what a reader sees.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from textwrap import fill, wrap
from typing import NamedTuple

from scheduler.model.states import (
    HOST_LINK,
    IGNORE,
    IMPOSSIBLE,
    INSERTABLE,
    JOB_MOVES,
    LEASE,
    PROGRAM,
    QUERY,
    SLOT_CELLS,
    VIOLATION,
    Machine,
    Rows,
)

MARK = '.\\" drawn by "python -m tests.state_diagrams'
WIDTH = 4  # of a column
PAGE = 73  # of a page of 78, less the margin
INSERT = "insert"  # in the place of the state of a job that is not there yet
SLOT_LIFE = ("ST_FREE", "ST_PREP", "ST_SPAWNED", "ST_READY", "ST_RUNNING", "ST_FREEING", "ST_FAIL")


class Move(NamedTuple):
    before: str
    event: str  # empty for jobs, which have none
    after: str


def _job_rows() -> Rows:
    """Return the moves of jobs as a table, with numbers in the place of events."""
    moves = {INSERT: INSERTABLE} | JOB_MOVES
    return {
        before: {str(number): after for number, after in enumerate(moves) if after in moves[before]} for before in moves
    }


MACHINES: Mapping[str, Machine] = {"query": QUERY, "program": PROGRAM, "lease": LEASE, "link": HOST_LINK}
TABLES: Mapping[str, Rows] = {
    "slot": {state: SLOT_CELLS[state] for state in SLOT_LIFE},
    "job": _job_rows(),
    **{name: machine.cells for name, machine in MACHINES.items()},
}


def table_moves(rows: Rows) -> Iterator[Move]:
    """Yield every cell of a table that is a move, in the order of the table."""
    for before, row in rows.items():
        for event, after in row.items():
            if after not in (IGNORE, IMPOSSIBLE):
                yield Move(before, "" if event.isdigit() else event, after)


def drawing(rows: Rows) -> list[str]:
    """Return the lines of a drawing: a stair of names, then an arrow for each pair of states."""
    states = list(rows)
    stair = ["|   " * number + name for number, name in enumerate(states)]
    bars = "|   " * len(states)
    arrows = [
        line
        for (before, after), moves in _grouped(table_moves(rows))
        for line in _labelled(_arrow(states, before, after), ", ".join(move.event for move in moves), bars)
    ]
    return [*stair, *arrows]


def _labelled(arrow: str, events: str, bars: str) -> Iterator[str]:
    """Yield the lines of an arrow: events that do not fit go below, beside bars alone."""
    for number, line in enumerate(wrap(events, PAGE - len(bars)) or [""]):
        yield ((bars if number else arrow) + line).rstrip()


def _grouped(moves: Iterable[Move]) -> Iterator[tuple[tuple[str, str], list[Move]]]:
    """Group the moves of a state by where they lead."""
    for _, row in groupby(moves, key=lambda move: move.before):
        by_pair: dict[tuple[str, str], list[Move]] = {}
        for move in row:
            by_pair.setdefault((move.before, move.after), []).append(move)
        yield from by_pair.items()


def _arrow(states: list[str], before: str, after: str) -> str:
    line = list("|   " * len(states))
    start = states.index(before) * WIDTH
    if after in (before, VIOLATION):
        line[start] = "x" if after == VIOLATION else "o"
        return "".join(line)
    end = states.index(after) * WIDTH
    left, right = sorted((start, end))
    line[left + 1 : right] = "-" * (right - left - 1)
    if start < end:
        line[end - 1] = ">"
    else:
        line[end + 1] = "<"
    return "".join(line)


def moves(lines: Iterable[str]) -> list[Move]:
    """Read a drawing: every move that it shows."""
    states, found = [], []
    for line in lines:
        if not found and (name := re.fullmatch(r"(?:\|   )*([A-Za-z_]+)", line)):
            states.append(name[1])
            continue
        graph, events = line[: len(states) * WIDTH], line[len(states) * WIDTH :]
        if re.search("[^| ]", graph):  # else events of the arrow above
            before, after = _ends(states, graph)
        found += [Move(before, event, after) for event in events.rstrip(",").split(", ")]
    return found


def _ends(states: list[str], graph: str) -> tuple[str, str]:
    if mark := re.search("[ox]", graph):
        state = states[mark.start() // WIDTH]
        return state, VIOLATION if mark[0] == "x" else state
    line = re.search(r"<?-+>?", graph)
    assert line, f"no arrow in {graph!r}"
    left, right = states[line.start() // WIDTH], states[line.end() // WIDTH]
    return (right, left) if line[0].startswith("<") else (left, right)


def source(name: str) -> str:
    """Return the lines of a manual with a drawing and, if the states of the machine have one, what ends each."""
    states = MACHINES[name].states if name in MACHINES else ()
    ends = [f".It Li {state.name}\n{fill(state.value, 80)}" for state in states]
    lasts = [".Pp", '.Bl -tag -width "STEPPING_DOWN" -compact', *ends, ".El"] if ends else []
    return "\n".join([f'{MARK} {name}"', ".Bd -literal", *drawing(TABLES[name]), ".Ed", *lasts])


if __name__ == "__main__":
    print(source(sys.argv[1]))
