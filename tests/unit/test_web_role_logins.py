"""Claims about the login of a visitor: what the configuration says of the server stays, of its user nothing."""

import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from scheduler.web.role_logins import ABSENT, _methods, conninfo_of

VARIABLES = [option.envvar.decode() for option in Conninfo.get_defaults() if option.envvar]
KNOWN = {option.keyword.decode() for option in Conninfo.get_defaults()}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def login(conninfo: str) -> dict[str, object]:
    return dict(conninfo_to_dict(conninfo_of(conninfo, "ann", "hush")))


def test_the_role_and_the_password_are_those_that_were_given() -> None:
    made = login("host=there user=boss password=secret dbname=jobs")
    assert (made["user"], made["password"]) == ("ann", "hush")
    assert "xyzzy" not in conninfo_of("host=there password=xyzzy", "ann", "hush")


def test_the_server_stays_that_of_the_configuration() -> None:
    made = login("host=there port=6432 dbname=jobs sslmode=verify-full sslrootcert=/ca target_session_attrs=read-only")
    assert {name: made[name] for name in ("host", "port", "dbname", "sslmode", "sslrootcert")} == {
        "host": "there", "port": "6432", "dbname": "jobs", "sslmode": "verify-full", "sslrootcert": "/ca",
    }  # fmt: skip
    assert made["target_session_attrs"] == "read-only"


def test_nothing_that_could_prove_another_user_is_left() -> None:
    made = login("host=there passfile=/p sslcert=/c sslkey=/k sslpassword=s options='-c role=boss' krbsrvname=x")
    assert (made["passfile"], made["sslcert"], made["sslkey"]) == (ABSENT,) * 3
    assert (made["gssencmode"], made["sslpassword"], made["options"], made["krbsrvname"]) == ("disable", "", "", "")


def test_the_database_is_that_of_the_configuration_and_not_named_like_the_visitor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert login("host=there user=boss")["dbname"] == "boss"
    assert login("host=there user=boss dbname=jobs")["dbname"] == "jobs"
    assert "dbname" not in login("service=jobs user=boss")
    monkeypatch.setenv("PGDATABASE", "night")
    assert "dbname" not in login("host=there user=boss")


@pytest.mark.parametrize(
    ("configured", "asked"),
    [
        ("", "scram-sha-256,md5,password"),
        ("scram-sha-256", "scram-sha-256"),
        ("none,scram-sha-256", "scram-sha-256"),
        ("gss", "scram-sha-256,md5,password"),
        (" password , md5", "md5,password"),
        ("!password, !none", "scram-sha-256,md5"),
    ],
)
def test_a_stricter_choice_of_methods_is_kept(configured: str, asked: str) -> None:
    assert _methods(configured) == asked
