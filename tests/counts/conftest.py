"""What was measured is shared by all tests of a session: a measure gives several figures."""

from collections.abc import Callable, Iterator

import pytest

from tests.counts import limits
from tests.counts.limits import Limit
from tests.counts.measures import MEASURES, Measured
from tests.counts.place import place
from tests.needs import need

Judge = Callable[[str], str]


@pytest.fixture(scope="session")
def known() -> dict[str, Limit]:
    """Return the limits by figure."""
    return limits.read()


@pytest.fixture(scope="session")
def measured() -> Iterator[Measured]:
    with place() as where:
        yield Measured(where)


@pytest.fixture
def judge(measured: Measured, known: dict[str, Limit]) -> Judge:
    """Return what is wrong with a figure, nothing when nothing is; measure it first if nobody has."""

    def judged(figure: str) -> str:
        limit = known[figure]
        for name in MEASURES[limit.measure].needs:
            need(name)
        return limits.verdict(figure, limit, measured(limit.measure)[figure])

    return judged
