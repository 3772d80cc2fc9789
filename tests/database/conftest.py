"""The views of the original front-end, for the tests of several files."""

from collections.abc import Iterator

import pytest

from tests.fossology_tools import FrontEnd, build_views, connected


@pytest.fixture
def compat(database_with_roles: str) -> str:
    """Return the conninfo of a database with the views of the original front-end."""
    build_views(database_with_roles)
    return database_with_roles


@pytest.fixture
def ui(compat: str) -> Iterator[FrontEnd]:
    with connected(compat, "drover_frontend_sql") as connection:
        yield FrontEnd(connection)
