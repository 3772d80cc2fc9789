"""One application for the tests of a module, on one database; requests are made in this process."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from scheduler.web.server import make_app
from tests.cli_tools import ACTIVE
from tests.conftest import _database
from tests.needs import need
from tests.web.asking_server import AskingServer, asking_server

KEY = "a-key-of-this-run"
ORIGIN = "http://localhost"
Browser = Callable[..., TestClient]


@pytest.fixture(scope="module")
def web_database(postgres: str, migrated_with_roles: str) -> Iterator[str]:
    """Yield a database with all grants and an active scheduler."""
    with _database(postgres, migrated_with_roles) as (_, conninfo):
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(ACTIVE.encode())
        yield conninfo


@pytest.fixture(scope="module")
def rows(web_database: str) -> Iterator[psycopg.Connection]:
    """Connect to that database as its owner."""
    with psycopg.connect(web_database, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def visitor(web_database: str) -> Iterator[TestClient]:
    """Yield a browser in which nobody has signed in; redirects are not followed."""
    with TestClient(make_app(web_database, "default", KEY), base_url=ORIGIN, follow_redirects=False) as client:
        yield client


@pytest.fixture(scope="module")
def operator(web_database: str) -> Iterator[TestClient]:
    """Yield a browser in which a member of drover_operator has signed in, by the key."""
    app = make_app(make_conninfo(web_database, user="drover_operator"), "default", KEY)
    with TestClient(app, base_url=ORIGIN, follow_redirects=False) as client:
        signed_in = client.post("/sign-in", data={"role": "", "password": KEY})
        assert signed_in.status_code == 303
        yield client


@pytest.fixture(scope="module")
def asking() -> Iterator[AskingServer]:
    """Yield a server that asks for passwords, with databases that have no schema."""
    need("postgres account")
    need("openssl")
    with asking_server() as made:
        yield made
