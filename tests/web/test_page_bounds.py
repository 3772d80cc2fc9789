"""A page reads no more jobs than it shows, beside none and beside many, and its statements keep their limits.

That of the list is measured by test_plans; a front-end's plots read the jobs that it may see.
"""

from collections.abc import Iterator
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.requests import Request

from scheduler.web import actions, pages, submission
from scheduler.web.database_sessions import Login
from scheduler.web.pages import Draw, Page
from tests.cli_tools import ACTIVE
from tests.conftest import _database
from tests.job_list_tools import rows_read
from tests.web.busy_site import fill

JOBS = 10_000
MOST = 4 * pages.ROWS  # of jobs that one page reads
DRAWS: dict[str, Draw] = {
    "/": pages.overview, "/jobs/all": actions.confirm, "/schedules": pages.schedules,
    "/conditions": pages.conditions, "/submit": submission.show,
}  # fmt: skip


@pytest.fixture(scope="module", params=[0, JOBS], ids=["none", "many"])
def conninfo(postgres: str, migrated_with_roles: str, request: pytest.FixtureRequest) -> Iterator[str]:
    with _database(postgres, migrated_with_roles) as (_, conninfo):
        with psycopg.connect(conninfo, autocommit=True) as rows:
            rows.execute(ACTIVE.encode())
            fill(rows, request.param, in_trouble=True)
        yield conninfo


@pytest.fixture(params=["operator", "readonly"])
def role(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def login(conninfo: str, role: str) -> Iterator[Login]:
    login = Login(make_conninfo(conninfo, user=f"drover_{role}"), is_visitor=False)
    yield login
    login.close_idle(0.0)


def drawn(login: Login, path: str) -> tuple[Page, int]:
    """Return a page, and how many rows of the queue were read for it."""
    scope = {
        "type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "path_params": {},
        "app": SimpleNamespace(state=SimpleNamespace(group="default")),
    }  # fmt: skip
    request = Request(scope)
    request.state.login, request.state.person = login, SimpleNamespace(name="ops")
    with login.session() as session, session.connection.transaction():
        before = rows_read(session)
        page = DRAWS[path](request, session)
        return page, rows_read(session) - before


@pytest.mark.parametrize("path", DRAWS)
def test_page_reads_no_more_jobs_than_it_shows(login: Login, path: str) -> None:
    _, read = drawn(login, path)
    assert read <= MOST
