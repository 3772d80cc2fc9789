"""The whole core in the simulated world: many seeds, every invariant after every step.

`DROVER_SIM_STEPS` says how many steps in all (CI: 1,000,000), with a quarter of them in test_handover.py. A failing
seed tells its last events.
"""

import os
from typing import Final

import pytest

from tests.sim.broken import Broken
from tests.sim.world import Sim

FEW_STEPS: Final = 26_000  # as many as `make check` has time for, beside the worlds of test_swarm.py
STEPS: Final = int(os.environ.get("DROVER_SIM_STEPS", FEW_STEPS))
STEPS_OF_A_SEED: Final = 1000
STEPS_TO_CALM: Final = 1600  # about, until everything has ended


def tell(sim: Sim, broken: Broken) -> str:
    """Return the story of a failing seed."""
    story = "\n".join(f"{when:12.4f}  {str(what)[:300]}" for when, what in sim.history)
    return f"seed {sim.seed}, step {sim.steps}: {broken}\n{story}"


def story(seed: int) -> list[str]:
    """Run a seed for a while and tell its last events."""
    sim = Sim(seed)
    while sim.steps < 500:
        sim.step()
    return [f"{when} {what}" for when, what in sim.history]


@pytest.mark.parametrize("seed", range(STEPS * 3 // 4 // (STEPS_OF_A_SEED + STEPS_TO_CALM)))
def test_every_invariant_holds_after_every_step(seed: int) -> None:
    sim = Sim(seed)
    try:
        sim.run(STEPS_OF_A_SEED)
    except Broken as broken:
        raise AssertionError(tell(sim, broken)) from broken


def test_a_seed_determines_the_whole_run() -> None:
    assert story(5) == story(5)
