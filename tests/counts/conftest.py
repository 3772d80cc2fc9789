"""The judge of what was measured: a measure gives several figures, each with a limit."""

from collections.abc import Callable, Iterator

import pytest

from tests.counts import limits
from tests.counts.measures import MEASURES
from tests.counts.place import Place, place
from tests.needs import need

Judge = Callable[[str], list[str]]


@pytest.fixture(scope="session")
def where() -> Iterator[Place]:
    with place() as where:
        yield where


@pytest.fixture
def judge(where: Place) -> Judge:
    """Return what is wrong with the figures of a measure, a sentence each."""

    def judged(measure: str) -> list[str]:
        for name in MEASURES[measure].needs:
            need(name)
        known = {figure: limit for figure, limit in limits.read().items() if limit.measure == measure}
        figures = MEASURES[measure].take(where)
        return list(filter(None, (limits.verdict(name, limit, figures[name]) for name, limit in known.items())))

    return judged
