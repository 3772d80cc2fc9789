"""Commands that people give log in by `people_url`, the daemon by `url`, and DROVER_DATABASE_URL overrides both."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.config_files import load
from scheduler.cli.database_session import running_database
from tests.cli_tools import CONFIG, Drover

Configure = Callable[..., None]


@pytest.fixture
def configure(config: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Write keys of [database] into the configuration; the environment names no database."""
    monkeypatch.delenv("DROVER_DATABASE_URL", raising=False)

    def write(**keys: str) -> None:
        config.write_text("[database]\n" + "".join(f'{key} = "{text}"\n' for key, text in keys.items()) + CONFIG)

    return write


@pytest.fixture
def person(database_with_roles: str) -> str:
    return make_conninfo(database_with_roles, user="drover_operator")


@pytest.fixture
def daemon(database_with_roles: str) -> str:
    return make_conninfo(database_with_roles, user="drover_scheduler")


def submitters(database: str) -> list[Any]:
    with psycopg.connect(database) as connection:
        return connection.execute("select jq_submitter from drover.jobqueue").fetchall()


def test_commands_run_by_people_log_in_with_people_url(
    configure: Configure, drover: Drover, daemon: str, person: str, database_with_roles: str
) -> None:
    configure(url=daemon, people_url=person)
    done = drover("submit", "noop", "--force", "--retries", "1", "x")
    assert (done.status, done.err) == (0, "")
    assert submitters(database_with_roles) == [("drover_operator",)]


@pytest.mark.parametrize("words", ["submit noop --force --sql select", "pause"])
def test_command_that_the_daemons_login_may_not_give_says_what_to_set(
    configure: Configure, drover: Drover, daemon: str, words: str
) -> None:
    configure(url=daemon)
    done = drover(*words.split())
    assert done.status == 2
    assert "permission denied" in done.err
    assert (
        "set people_url beside it, or DROVER_DATABASE_URL, to a login that has the right; see drover.toml(5)"
        in done.err
    )


def test_a_person_without_the_right_is_not_advised_to_set_people_url_again(
    configure: Configure, drover: Drover, daemon: str, database_with_roles: str
) -> None:
    configure(url=daemon, people_url=make_conninfo(database_with_roles, user="drover_readonly"))
    done = drover("submit", "noop", "--force", "x")
    assert (done.status, "people_url" in done.err) == (2, False)
    assert "connect as a role that has the right" in done.err


def test_database_of_the_environment_is_used_instead_of_people_url(
    configure: Configure, drover: Drover, daemon: str, person: str, monkeypatch: pytest.MonkeyPatch,
    database_with_roles: str,
) -> None:  # fmt: skip
    configure(url=daemon, people_url="host=/nowhere")
    monkeypatch.setenv("DROVER_DATABASE_URL", person)
    assert drover("submit", "noop", "--force", "x").status == 0
    assert submitters(database_with_roles) == [("drover_operator",)]


def test_person_needs_no_password_file_of_the_daemon(
    configure: Configure, drover: Drover, daemon: str, person: str
) -> None:
    configure(url=daemon, people_url=person, password_file="/nowhere/password")
    assert drover("ls").status == 0


def test_a_person_who_cannot_read_the_daemons_password_is_advised_what_to_set(
    configure: Configure, drover: Drover, daemon: str
) -> None:
    configure(url=daemon, password_file="/nowhere/password")
    done = drover("ls")
    assert done.status == 2
    assert "cannot be read" in done.err
    assert "set people_url beside it" in done.err


def test_daemon_and_init_log_in_with_url_only(configure: Configure, config: Path, daemon: str, person: str) -> None:
    configure(url=daemon, people_url=person)
    with running_database(load(str(config), os.environ)) as conninfo:
        assert conninfo == daemon
