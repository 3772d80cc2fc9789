"""Every planted fault is brought out by the walk; one that is not means that the walk is too kind."""

import pytest

from tests.faults.mutants import MUTANTS, Mutant
from tests.faults.site import Site
from tests.faults.walk import suffer, walk

SOON_S = 5.0


@pytest.mark.slow
@pytest.mark.fault("planted faults")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_detected(site: Site, mutant: Mutant) -> None:
    site.tally.is_planted = True
    environment = {"FAULTS_MUTANT": mutant.name}
    go = suffer if mutant.path[0].action == "error" else walk
    go(site, mutant.path, environment=environment)
    assert site.unsettled(SOON_S) + site.violations() + (site.repeated() if go is suffer else []) != []
