"""What the simulation reaches: cells of the state tables, events, effects, and branches of policy/, each counted.

`python -m tests.sim.reach` runs the worlds that `make check` runs, and prints the branches of each module of policy/
that none of them takes. A cell is counted when it is looked up: while a count runs the tables are replaced by such as
count, with the same cells. The branches are counted by coverage.py, which takes twice the time.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, get_args

from scheduler.model import states
from scheduler.model.events_and_effects import Effect, Event
from scheduler.model.states import IMPOSSIBLE, LEASE, PROGRAM, QUERY, WANTED, Machine
from tests.sim import swarm
from tests.sim.world import Sim

WORLDS: Final = 24  # of a swarm
OLD_WORLDS: Final = 7  # without features, longer
OLD_STEPS: Final = 1000
MACHINES: Final[tuple[Machine[Any, Any], ...]] = (WANTED, QUERY, LEASE, PROGRAM)
POLICY: Final = Path(states.__file__).parents[1] / "policy"


class Reached:
    """Counts of what was reached, by name."""

    def __init__(self) -> None:
        self.cells: Counter[tuple[str, str, str]] = Counter()  # machine, state, event
        self.words: Counter[str] = Counter()  # events and effects

    def note(self, thing: object) -> None:
        """Count an event or an effect."""
        self.words[type(thing).__name__] += 1


class _Row(tuple[int, ...]):
    """A row of the table of slots, which counts."""

    state: str
    cells: Counter[tuple[str, str, str]]

    def __getitem__(self, event: Any) -> Any:
        self.cells["slot", self.state, states.EVENT_NAMES[event]] += 1
        return super().__getitem__(event)


class _Cells(dict[str, str]):
    """A row of the table of another machine, which counts."""

    def __init__(self, row: dict[str, str], where: tuple[str, str], cells: Counter[tuple[str, str, str]]) -> None:
        super().__init__(row)
        self._where, self._cells = where, cells

    def __getitem__(self, event: str) -> str:
        self._cells[*self._where, event] += 1
        return super().__getitem__(event)


@contextmanager
def counting(reached: Reached) -> Iterator[None]:
    """Count the cells that are looked up meanwhile."""
    table, before = states.SLOT_TABLE, [machine.cells for machine in MACHINES]
    rows = []
    for name, row in zip(states.STATE_NAMES, table, strict=False):
        counted = _Row(row)
        counted.state, counted.cells = name, reached.cells
        rows.append(counted)
    states.SLOT_TABLE = tuple(rows)  # type: ignore[misc]
    for machine in MACHINES:
        machine.cells = {
            state: _Cells(dict(row), (machine.name, state), reached.cells) for state, row in machine.cells.items()
        }
    try:
        yield
    finally:
        states.SLOT_TABLE = table  # type: ignore[misc]
        for machine, cells in zip(MACHINES, before, strict=True):
            machine.cells = cells


def all_cells() -> set[tuple[str, str, str]]:
    """Return the cells that are not impossible."""
    tables = [("slot", states.SLOT_CELLS), *((machine.name, machine.cells) for machine in MACHINES)]
    return {
        (name, state, event)
        for name, rows in tables for state, row in rows.items() for event, cell in row.items() if cell != IMPOSSIBLE
    }  # fmt: skip


def all_words() -> set[str]:
    """Return the names of all events and effects."""
    return {each.__name__ for each in (*get_args(Event), *get_args(Effect))}


def worlds() -> Iterator[tuple[Sim, int]]:
    """Yield the worlds of the default run, each with the number of its steps."""
    for number in range(WORLDS):
        yield swarm.world(number), swarm.STEPS
    for seed in range(OLD_WORLDS):
        yield Sim(seed), OLD_STEPS


def branches() -> dict[str, tuple[int, int, list[str]]]:
    """Run the worlds; return of each module of policy/ how many branches were taken, of how many, and the others."""
    import coverage

    measured = coverage.Coverage(branch=True, include=[f"{POLICY}/*"], data_file=None, config_file=False)
    with measured.collect():
        for sim, steps in worlds():
            sim.run(steps)
    found = {}
    for path in sorted(POLICY.glob("*.py")):
        analysis = measured._analyze(str(path))  # reports are made of the same
        counts = analysis.branch_stats().values()
        lines = path.read_text().splitlines()
        missed = [
            f"{line}: {lines[line - 1].strip()} -> {max(to, 0)}"
            for line, targets in sorted(analysis.missing_branch_arcs().items()) for to in targets
        ]  # fmt: skip
        found[path.name] = sum(taken for _, taken in counts), sum(every for every, _ in counts), missed
    return found


def share(found: dict[str, tuple[int, int, list[str]]]) -> float:
    """Return the percentage of branches that were taken."""
    return 100 * sum(taken for taken, _, _ in found.values()) / sum(every for _, every, _ in found.values())


def main() -> None:
    """Print what is not reached."""
    found = branches()
    for name, (taken, every, missed) in found.items():
        print(f"{name}: {taken} of {every}", *missed, sep="\n    ")
    print(f"{share(found):.1f} % of the branches of policy/")


if __name__ == "__main__":
    sys.exit(main())
