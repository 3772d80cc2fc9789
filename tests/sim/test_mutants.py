"""Every planted fault is caught by the invariant it breaks; one that is not means that the simulation is too kind."""

import pytest

from tests.sim.mutants import MUTANTS, Mutant, caught


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    broken, *_ = caught(mutant.name) or ["nothing"]
    assert broken in mutant.caught_by
