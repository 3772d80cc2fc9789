"""A database with an active scheduler, and the command on it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from scheduler.cli.main import main
from tests.cli_tools import ACTIVE, Done
from tests.conftest import _database

Metrics = Callable[..., Done]


@pytest.fixture(scope="module")
def site(postgres: str, migrated_with_roles: str) -> Iterator[str]:
    """Yield a database with all grants and an active scheduler, that the tests of a module share."""
    with _database(postgres, migrated_with_roles) as (_, conninfo):
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(ACTIVE.encode())
        yield conninfo


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Metrics:
    """Run `drover metrics` in this process: `metrics(database, *words)`."""
    monkeypatch.setenv("DROVER_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "5")  # set here, so that it is taken back

    def run(database: str, *words: str) -> Done:
        monkeypatch.setenv("DROVER_DATABASE_URL", database)
        status = main(["metrics", *words])
        told = capsys.readouterr()
        return Done(status, told.out, told.err)

    return run
