"""Every measure by name, with what it needs of the machine; each is taken once, however many figures it gives."""

from collections.abc import Callable
from typing import Final, NamedTuple

from tests.counts import figures, instructions, processes
from tests.counts.figures import Figures
from tests.counts.place import Place


class Measure(NamedTuple):
    """What gives some figures."""

    take: Callable[[Place], Figures]
    needs: tuple[str, ...] = ()


MEASURES: Final[dict[str, Measure]] = {
    "python": Measure(lambda place: figures.python()),
    "slots": Measure(lambda place: figures.slots()),
    "idle_slots": Measure(lambda place: figures.idle_slots()),
    "in_hand": Measure(lambda place: figures.in_hand()),
    "jobs": Measure(figures.jobs, ("postgres",)),
    "lone_jobs": Measure(figures.lone_jobs, ("postgres",)),
    "items": Measure(figures.items, ("postgres",)),
    "copied": Measure(figures.copied, ("postgres",)),
    "claims": Measure(figures.claims, ("postgres",)),
    "due": Measure(figures.due, ("postgres",)),
    "sites": Measure(lambda place: figures.sites()),
    "whole_loop": Measure(processes.whole_loop, ("postgres",)),
    "system_calls": Measure(processes.system_calls, ("postgres", "strace")),
    "instructions": Measure(lambda place: instructions.instructions(place.folder), ("valgrind",)),
}


class Measured:
    """What was measured so far in a place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._taken: dict[str, Figures] = {}

    def __call__(self, measure: str) -> Figures:
        """Return the figures of a measure."""
        if measure not in self._taken:
            self._taken[measure] = MEASURES[measure].take(self._place)
        return self._taken[measure]
