"""The views of the original front-end, for the tests of several files."""

from collections.abc import Iterator

import pytest

from scheduler.database import migrate
from tests.fossology_tools import FrontEnd, connected


@pytest.fixture
def compat(database_with_roles: str) -> str:
    """Return the conninfo of a database with the views of the original front-end."""
    migrate.apply_compat(database_with_roles, "fossology")
    return database_with_roles


@pytest.fixture
def ui(compat: str) -> Iterator[FrontEnd]:
    with connected(compat, "drover_frontend_sql") as connection:
        yield FrontEnd(connection)
