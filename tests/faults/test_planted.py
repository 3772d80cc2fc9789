"""Every planted fault is seen by the tests that were written for it, and they fail for no other reason."""

from collections.abc import Iterator

import pytest

from tests.faults.planted import FAULTS, Copy, Planted, copied
from tests.needs import PRESENT, need


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    need("postgres")
    with copied() as copy:
        yield copy


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_without_a_fault_none_of_the_tests_fails(copy: Copy) -> None:
    here = [fault for fault in FAULTS if all(PRESENT[name]() for name in fault.needs)]
    tests = dict.fromkeys(test for fault in here for test in fault.tests)
    failed, said = copy.failures(tuple(tests))
    assert (failed, " failed" in said, " error" in said) == (set(), False, False), said


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_fails_its_tests(copy: Copy, fault: Planted) -> None:
    for name in fault.needs:
        need(name)
    with copy.planted(fault):
        failed, said = copy.failures(fault.tests)
    assert failed == set(fault.tests), said
