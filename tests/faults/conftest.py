"""Sites for the tests of faults, and the row of the table that each adds to."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import _database
from tests.faults.site import Site, Tally
from tests.faults.table import TALLIES

Open = Callable[[], Site]


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Return the row of the table that a test belongs to: its mark `fault`."""
    mark = request.node.get_closest_marker("fault")
    return TALLIES.setdefault(mark.args[0] if mark else request.node.name, Tally())


@pytest.fixture
def site(postgres: str, migrated_with_roles: str, tmp_path: Path, tally: Tally) -> Iterator[Site]:
    """Yield a database of its own with an auditor."""
    with ExitStack() as stack:
        _, conninfo = stack.enter_context(_database(postgres, migrated_with_roles))
        yield stack.enter_context(Site(conninfo, tmp_path, tally))
