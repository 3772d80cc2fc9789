"""The commands in this process, on a database of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from scheduler.cli.main import main
from tests.cli_tools import ACTIVE, CONFIG, Done, Drover


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "drover.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def drover(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Drover:
    """Run a command in this process; the database is the one of DROVER_DATABASE_URL."""
    monkeypatch.setenv("DROVER_CONFIG", str(config))

    def run(*words: str) -> Done:
        status = main(words)
        told = capsys.readouterr()
        return Done(status, told.out, told.err)

    return run


@pytest.fixture
def connection(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """Connect to a fresh database, the one that the commands use too."""
    monkeypatch.setenv("DROVER_DATABASE_URL", database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def active(connection: psycopg.Connection) -> psycopg.Connection:
    """The same, with a scheduler that is active and serves noop and sha256."""
    connection.execute(ACTIVE.encode())
    return connection
