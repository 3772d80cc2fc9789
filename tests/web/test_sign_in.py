"""Who is let in, and what a cookie is good for."""

import re

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from scheduler.errors import ConfigError
from scheduler.web.server import make_app
from scheduler.web.sign_in import IDLE_S, People
from tests.web.conftest import KEY, ORIGIN


def token_of(page: str) -> str:
    return page.partition('name="token" value="')[2].partition('"')[0]


def test_key_signs_in_and_sign_out_forgets(web_database: str) -> None:
    with TestClient(make_app(web_database, "default", KEY), base_url=ORIGIN, follow_redirects=False) as client:
        assert client.get("/log").status_code == 403
        signed_in = client.post("/sign-in", data={"role": "", "password": KEY})
        cookie = signed_in.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
        page = client.get("/log")
        assert page.status_code == 200
        secret = client.cookies["drover"]
        assert client.post("/sign-out", data={"token": token_of(page.text)}).status_code == 303
        client.cookies.set("drover", secret)
        assert client.get("/log").status_code == 403


def forms(page: str) -> list[set[str]]:
    """Return the names of the fields of each form to sign in."""
    found = re.findall(r'<form method="post" action="/sign-in".*?</form>', page, re.DOTALL)
    return [set(re.findall(r'<label>\w+ <input name="([a-z]+)"', form)) for form in found]


def test_sign_in_page_has_two_ways_each_with_its_own_form(web_database: str, visitor: TestClient) -> None:
    page = visitor.get("/sign-in").text
    assert forms(page) == [{"role", "password"}, {"password"}]
    assert "With a role of the database" in page
    assert "With the link of <code>drover web</code>" in page
    wrong = visitor.post("/sign-in", data={"role": "", "password": "wrong"}).text
    assert "the key is wrong" in wrong.partition('id="with-key"')[2]
    with TestClient(make_app(web_database, "default"), base_url=ORIGIN) as client:
        page = client.get("/sign-in").text
        assert forms(page) == [{"role", "password"}]
        assert "made no link: it does not run on a terminal" in page


@pytest.mark.parametrize("password", ["", "wrong", KEY + " ", "x" * 5000, "\0"])
def test_wrong_key_is_refused(visitor: TestClient, password: str) -> None:
    answer = visitor.post("/sign-in", data={"role": "", "password": password})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_role_that_the_database_lets_in_without_password_is_refused(visitor: TestClient) -> None:
    answer = visitor.post("/sign-in", data={"role": "drover_operator", "password": "x"})
    assert answer.status_code == 403
    assert "without a password" in answer.text


def test_sign_out_needs_the_token_of_the_page(operator: TestClient) -> None:
    assert operator.post("/sign-out", data={"token": "forged"}).status_code == 403
    assert operator.get("/log").status_code == 200


def test_form_that_is_too_long_is_not_read(visitor: TestClient) -> None:
    assert visitor.post("/sign-in", data={"role": "x" * 100_000}).status_code == 413


def test_person_is_forgotten_after_idle_hours(web_database: str) -> None:
    clock = [0.0]
    people = People(web_database, KEY, lambda: clock[0])
    secret = people.sign_in("", KEY)
    clock[0] += IDLE_S - 1
    assert people.find(secret)
    clock[0] += IDLE_S - 1
    people.close_idle()
    assert people.find(secret)
    clock[0] += IDLE_S + 1
    people.close_idle()
    assert people.find(secret) is None


def test_nobody_signs_in_without_key_where_none_was_made(web_database: str) -> None:
    with pytest.raises(ConfigError, match="a role is required"):
        People(web_database, "").sign_in("", "")


def test_visitor_can_write_nothing(web_database: str, rows: psycopg.Connection) -> None:
    app = make_app(make_conninfo(web_database, user="drover_operator"), "default", KEY)
    for login in (app.state.visitors, app.state.people._own):
        with pytest.raises(ConfigError, match="read-only"), login.session() as session:
            session.connection.execute("insert into drover.jobqueue (jq_type) values ('noop')")
        login.close_idle(0.0)
