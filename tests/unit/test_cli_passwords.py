"""Passwords in files of their own: which file, who may read it, and what it becomes part of."""

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from scheduler.cli.config_files import CREDENTIALS, with_logins, with_password
from scheduler.errors import ConfigError
from scheduler.model.config import Config, Database

PASSWORD = "it's \\ hush"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file that holds a password, and is its owner's alone."""
    path = tmp_path / "db"
    path.write_text(f"{PASSWORD}\n")
    path.chmod(0o400)
    return path


def with_file(file: Path | str, url: str = "host=there user=me") -> Config:
    return Config(database=Database(url=url, password_file=str(file)))


def refusal(config: Config, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        with_password(config, environ or {})
    assert "hush" not in str(caught.value)
    return str(caught.value)


def test_password_goes_into_the_connection_string(file: Path) -> None:
    found = with_password(with_file(file), {}).database.url
    assert conninfo_to_dict(found) == {"host": "there", "user": "me", "password": PASSWORD}


def test_plain_name_is_a_credential_of_systemd(file: Path) -> None:
    found = with_password(with_file("db"), {CREDENTIALS: str(file.parent)}).database.url
    assert conninfo_to_dict(found)["password"] == PASSWORD


def test_plain_name_without_credentials_says_where_they_come_from() -> None:
    assert "LoadCredential=db:FILE" in refusal(with_file("db"))


def test_each_login_has_a_password_of_its_own(file: Path, tmp_path: Path) -> None:
    for name in ("msq", "agents"):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o400)
    database = Database(
        url="host=there user=me",
        password_file=str(file),
        msq_password_file=str(tmp_path / "msq"),
        agentdb_url="host=elsewhere user=other",
        agentdb_password_file=str(tmp_path / "agents"),
    )
    found = with_logins(Config(database=database), {}).database
    assert conninfo_to_dict(found.msq_url) == {"host": "there", "user": "drover_msq", "password": "msq"}
    assert conninfo_to_dict(found.agentdb_url) == {"host": "elsewhere", "user": "other", "password": "agents"}
    assert found.url == "host=there user=me"


def test_configuration_without_password_files_is_unchanged() -> None:
    config = Config(database=Database(url="host=there"))
    assert with_logins(with_password(config, {}), {}) == config


@pytest.mark.parametrize("mode", [0o404, 0o444, 0o644])
def test_file_that_others_may_read_is_refused_with_its_mode(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert refusal(with_file(file)) == (
        f"database.password_file: others may read {file} (mode {mode:04o}); chmod 400 {file}"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("hush\nhush\n", "must hold one line"),
        ("hush\0", "must hold one line"),
        ("hush" * 300, "must hold one line, of 1000 bytes at most"),
    ],
)
def test_file_that_holds_no_password_is_refused(file: Path, text: str, problem: str) -> None:
    file.chmod(0o600)
    file.write_text(text)
    assert problem in refusal(with_file(file))


def test_missing_password_file_is_reported(tmp_path: Path) -> None:
    assert refusal(with_file(tmp_path / "no")) == (
        f"database.password_file: {tmp_path}/no cannot be read: No such file or directory"
    )


@pytest.mark.parametrize("url", ["host=there password=hush", "postgresql://me:hush@there/db"])
def test_url_and_file_that_both_give_a_password_are_refused(file: Path, url: str) -> None:
    assert "has a password already" in refusal(with_file(file, url))


def test_connection_string_that_cannot_be_read_is_not_shown(file: Path) -> None:
    assert "its url is not a connection string" in refusal(with_file(file, "host=there hush"))
