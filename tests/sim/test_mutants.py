"""Every planted fault is caught by the invariant it breaks; one that is not means that the simulation is too kind."""

import subprocess
import sys

import pytest

from tests.sim.mutants import MUTANTS, Mutant


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    command = [sys.executable, "-m", "tests.sim.mutants", mutant.name]
    hunt = subprocess.run(command, capture_output=True, text=True, check=True)
    assert hunt.stdout.strip() in mutant.caught_by
