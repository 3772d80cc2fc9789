"""A visitor's login is made with what the visitor gave, and with nothing that libpq finds for this process."""

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo
from starlette.testclient import TestClient

from scheduler.errors import ConfigError
from scheduler.web import role_logins
from scheduler.web.server import make_app
from tests.needs import need
from tests.web.asking_server import PASSWORD, ROLE, AskingServer
from tests.web.conftest import KEY, ORIGIN

VARIABLES = [option.envvar.decode() for option in Conninfo.get_defaults() if option.envvar]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def sign_in(conninfo: str, password: str, role: str = ROLE) -> tuple[int, str]:
    """Return the status of an attempt in a new dashboard, and the name of the cookie or the page."""
    with TestClient(make_app(conninfo, "default", KEY), base_url=ORIGIN, follow_redirects=False) as client:
        answer = client.post("/sign-in", data={"role": role, "password": password})
    return answer.status_code, answer.headers.get("set-cookie", "")[:7] or answer.text


def shown(conninfo: str, setting: str) -> object:
    """Return a setting of a session of the person who signs in."""
    with TestClient(make_app(conninfo, "default", KEY), base_url=ORIGIN) as client:
        people = client.app.state.people  # type: ignore[attr-defined]
        login = people.find(people.sign_in(ROLE, PASSWORD)).login
        with login.session() as session:
            return session.connection.execute(f"show {setting}".encode()).fetchone()[0]


def test_right_password_signs_in(asking: AskingServer) -> None:
    assert sign_in(asking.by_socket, PASSWORD) == (303, "drover=")
    assert sign_in(make_conninfo(asking.by_network, dbname="postgres"), PASSWORD) == (303, "drover=")


@pytest.mark.parametrize("password", ["", "wrong"])
def test_a_file_of_passwords_serves_no_visitor(
    asking: AskingServer, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    assert sign_in(make_conninfo(asking.by_socket, passfile=str(asking.passwords)), password)[0] == 403
    monkeypatch.setenv("PGPASSFILE", str(asking.passwords))
    assert sign_in(asking.by_socket, password)[0] == 403


@pytest.mark.parametrize("password", ["", "wrong"])
def test_the_file_of_passwords_in_the_home_directory_serves_no_visitor(
    asking: AskingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, password: str
) -> None:
    (tmp_path / ".pgpass").write_text(asking.passwords.read_text())
    (tmp_path / ".pgpass").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sign_in(asking.by_socket, password)[0] == 403


@pytest.mark.parametrize("password", ["", "wrong"])
def test_passwords_of_the_url_the_environment_and_a_service_serve_no_visitor(
    asking: AskingServer, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    assert sign_in(make_conninfo(asking.by_socket, password=PASSWORD), password)[0] == 403
    monkeypatch.setenv("PGSERVICEFILE", str(asking.services))
    assert sign_in("service=here", password)[0] == 403
    monkeypatch.setenv("PGSERVICE", "here")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert sign_in("", password)[0] == 403


def test_a_service_says_where_the_server_is_and_no_more(asking: AskingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSERVICEFILE", str(asking.services))
    assert sign_in("service=here", PASSWORD) == (303, "drover=")
    assert shown("service=here", "work_mem") == "4MB"


def test_options_of_the_process_are_not_those_of_a_visitor(
    asking: AskingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(make_conninfo(asking.by_socket, options="-c work_mem=77kB"), "work_mem") == "4MB"
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=77kB")
    assert shown(asking.by_socket, "work_mem") == "4MB"


def test_a_certificate_of_the_process_serves_no_visitor(asking: AskingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with_key = {"sslcert": str(asking.certificate), "sslkey": str(asking.key)}
    psycopg.connect(make_conninfo(asking.by_network, user=ROLE, password=PASSWORD, **with_key)).close()
    assert sign_in(make_conninfo(asking.by_network, **with_key), PASSWORD)[0] == 403
    monkeypatch.setenv("PGSSLCERT", str(asking.certificate))
    monkeypatch.setenv("PGSSLKEY", str(asking.key))
    assert sign_in(asking.by_network, PASSWORD)[0] == 403


def test_a_server_that_asks_for_no_password_proves_nothing(asking: AskingServer) -> None:
    status, text = sign_in(make_conninfo(asking.by_socket, dbname="trusting"), PASSWORD)
    assert (status, "without a password" in text) == (403, True)


def test_a_key_for_scram_in_a_service_is_named(
    asking: AskingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    need("libpq 18")  # which came with this keyword
    with psycopg.connect(asking.by_socket) as admin:
        row = admin.execute("select rolpassword from pg_authid where rolname = %s", [ROLE]).fetchone()
    assert row
    (tmp_path / "services").write_text(f"{asking.services.read_text()}scram_server_key={row[0].rpartition(':')[2]}\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    status, text = sign_in("service=here", PASSWORD)
    assert (status, "has scram_server_key" in text) == (403, True)


def test_a_role_of_another_name_is_looked_for_in_the_same_database(
    asking: AskingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", str(asking.server.folder))
    monkeypatch.setenv("PGPORT", str(asking.port))
    assert sign_in("user=postgres", PASSWORD) == (303, "drover=")
    assert sign_in("user=postgres", "")[0] == 403


def test_a_login_that_became_another_role_is_refused(asking: AskingServer) -> None:
    conninfo = role_logins.conninfo_of(asking.by_socket, ROLE, PASSWORD)
    with psycopg.connect(conninfo) as connection, pytest.raises(ConfigError, match=f"another role in, {ROLE}"):
        role_logins.check(connection, conninfo, "drover_operator")
