"""A session of the dashboard ends with its login at the database: with the role, its password, its right to log in."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from starlette.testclient import TestClient

from scheduler.database import migrate
from scheduler.web.database_sessions import PROOF_S
from scheduler.web.live_updates import Changes
from scheduler.web.server import make_app
from scheduler.web.sign_in import People
from tests.role_tools import grant_roles
from tests.web.asking_server import PASSWORD, ROLE, AskingServer
from tests.web.conftest import KEY, ORIGIN
from tests.web.test_sign_in import token_of


@pytest.fixture(scope="module")
def admin(asking: AskingServer) -> Iterator[psycopg.Connection]:
    """Connect as the administrator of a server that asks for passwords; its database has the schema and all roles."""
    migrate.apply(asking.by_socket)
    grant_roles(asking.by_socket)
    with psycopg.connect(asking.by_socket, autocommit=True) as connection:
        yield connection


@pytest.fixture
def person(asking: AskingServer, admin: psycopg.Connection) -> Iterator[TestClient]:
    """Yield a browser in which an operator has signed in and seen a page, by a password that is valid until now."""
    admin.execute(f"create role {ROLE} login password '{PASSWORD}'".encode())
    admin.execute(f"grant drover_operator to {ROLE}".encode())
    app = make_app(asking.by_socket, "default", KEY)
    with TestClient(app, base_url=ORIGIN, follow_redirects=False) as client:
        assert client.post("/sign-in", data={"role": ROLE, "password": PASSWORD}).status_code == 303
        assert client.get("/log").status_code == 200
        yield client
    admin.execute(f"drop role if exists {ROLE}".encode())


@pytest.fixture(autouse=True, scope="module")
def no_role_at_first(admin: psycopg.Connection) -> None:
    admin.execute(f"drop role {ROLE}".encode())


def pass_time(client: TestClient, seconds: float) -> None:
    """Let all logins be as old as if so many seconds had passed."""
    people: People = client.app.state.people  # type: ignore[attr-defined]
    for each in people._people.values():
        each.login._proven -= seconds


@pytest.mark.parametrize(
    "change", [f"alter role {ROLE} nologin", f"alter role {ROLE} password 'another'", f"drop role {ROLE}"]
)
def test_person_whose_login_has_ended_is_signed_out(person: TestClient, admin: psycopg.Connection, change: str) -> None:
    secret, token = person.cookies["drover"], token_of(person.get("/jobs").text)
    admin.execute(change.encode())
    pass_time(person, PROOF_S)
    answer = person.post("/act", data={"token": token, "about": "agent", "verb": "agent-disable", "word": "noop"})
    assert answer.status_code == 403
    assert "does not let this role in any more: sign in again" in answer.text
    assert 'name="password"' in answer.text
    person.cookies.set("drover", secret)
    assert person.get("/log").status_code != 200
    assert admin.execute("select count(*) from drover.jobqueue").fetchone() == (0,)


def test_login_is_proven_once_in_a_while_and_not_for_each_request(person: TestClient) -> None:
    (found,) = person.app.state.people._people.values()  # type: ignore[attr-defined]
    first = found.login._proven
    assert person.get("/jobs").status_code == 200
    assert found.login._proven == first
    pass_time(person, PROOF_S)
    assert person.get("/jobs").status_code == 200
    assert found.login._proven > first


def test_person_stays_signed_in_where_the_server_only_has_no_place(
    person: TestClient, admin: psycopg.Connection
) -> None:
    admin.execute(f"alter role {ROLE} connection limit 0".encode())
    pass_time(person, PROOF_S)
    assert person.get("/log").status_code == 503
    admin.execute(f"alter role {ROLE} connection limit -1".encode())
    assert person.get("/log").status_code == 200


def test_stream_of_changes_ends_with_the_sign_in() -> None:
    signed_in = [True]

    async def read() -> list[str]:
        told = Changes("")
        stream = told.messages(None, lambda: signed_in[0])
        said = [await anext(stream)]
        told.tell()
        said.append(await anext(stream))
        signed_in.clear()
        signed_in.append(False)
        told.tell()
        return said + [each async for each in stream]

    said = asyncio.run(read())
    assert said == ["retry: 2000\nevent: begin\ndata:\n\n", "event: change\ndata:\n\n"]
