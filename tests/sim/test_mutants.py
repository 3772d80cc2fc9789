"""Every planted fault is caught by the invariant it breaks; one that is not means that the simulation is too kind."""

from pathlib import Path

import pytest

import scheduler
from tests.sim.mutants import MUTANTS, Mutant, caught

SOURCES = Path(scheduler.__file__).parent.parent


def test_each_planted_fault_changes_one_place_of_the_sources() -> None:
    for mutant in MUTANTS:
        for module, old, _ in mutant.patches:
            source = SOURCES.joinpath(*module.split(".")).with_suffix(".py").read_text()
            assert source.count(old) == 1, f"{mutant.name}: {module} has {old!r} {source.count(old)} times"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(mutant: Mutant) -> None:
    broken, *_ = caught(mutant.name) or ["nothing"]
    assert broken in mutant.caught_by
