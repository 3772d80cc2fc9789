"""Another program takes the place of the daemon again and again; every invariant holds after every step, as without."""

from typing import Final

import pytest

from tests.sim.broken import Broken
from tests.sim.test_sim import STEPS, STEPS_OF_A_SEED, STEPS_TO_CALM, tell
from tests.sim.world import Sim

OFTEN_S: Final = (0.5, 2.0, 10.0)  # between two executions, about


@pytest.mark.parametrize("seed", range(STEPS // 4 // (STEPS_OF_A_SEED + STEPS_TO_CALM)))
def test_every_invariant_holds_while_other_programs_take_over(seed: int) -> None:
    sim = Sim(seed, reexecs=OFTEN_S[seed % len(OFTEN_S)])
    try:
        sim.run(STEPS_OF_A_SEED)
    except Broken as broken:
        raise AssertionError(tell(sim, broken)) from broken


def test_programs_do_take_over_in_the_simulation() -> None:
    sim = Sim(1, reexecs=1.0)
    sim.run(STEPS_OF_A_SEED)
    assert sim.takeovers > 10
