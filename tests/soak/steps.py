"""Simulated steps of many seeds, in processes beside what else goes on."""

from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Final

from tests.sim.broken import Broken
from tests.sim.test_sim import STEPS_OF_A_SEED, STEPS_TO_CALM, tell
from tests.sim.world import Sim

SEEDS_AT_ONCE: Final = 20


def simulate(first: int, most: int) -> tuple[int, list[str]]:
    """Run some seeds; return the steps done, and the stories of those that broke an invariant."""
    steps, stories = 0, []
    for seed in range(first, first + most):
        sim = Sim(seed)
        try:
            sim.run(STEPS_OF_A_SEED)
        except Broken as broken:
            stories.append(tell(sim, broken))
        steps += sim.steps
    return steps, stories


class Simulated:
    """The seeds that are run, and what came of them."""

    def __init__(self, pool: ProcessPoolExecutor, seed: int, steps: int) -> None:
        seeds = -(-steps // (STEPS_OF_A_SEED + STEPS_TO_CALM))
        self._asked, self.steps, self.seeds = steps, 0, seeds
        self.wrong: list[object] = []
        self._running: dict[Future[tuple[int, list[str]]], int] = {
            pool.submit(simulate, seed + first, min(SEEDS_AT_ONCE, seeds - first)): seed + first
            for first in range(0, seeds, SEEDS_AT_ONCE)
        }

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def collect(self, patience: float) -> str:
        """Take in what is done within so many seconds; return how far it is."""
        for each in wait(self._running, patience, FIRST_COMPLETED).done:
            first = self._running.pop(each)
            if error := each.exception():
                self.wrong.append(f"one of the {SEEDS_AT_ONCE} seeds from {first} on: {error!r}")
            else:
                steps, stories = each.result()
                self.steps += steps
                self.wrong += stories
        return f"{self.steps:,} of {self._asked:,} steps"
