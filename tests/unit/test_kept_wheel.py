"""The wheel of the last version in tests/versions: its migrations are ours, byte for byte, or no database goes on."""

from hashlib import sha256
from zipfile import ZipFile

from scheduler.database import migrate
from scheduler.package_data import schema_dir
from tests.faults.versions import wheel

FOLDER = "scheduler/_data/schema/migrations/"


def test_migrations_of_the_last_version_are_unchanged_t34() -> None:
    with ZipFile(wheel()) as packed:
        names = sorted(name for name in packed.namelist() if name.startswith(FOLDER))
        theirs = {name.removeprefix(FOLDER): sha256(packed.read(name)).hexdigest() for name in names}
    ours = {path.name: sha256(path.read_bytes()).hexdigest() for path in (schema_dir() / "migrations").glob("*.sql")}
    assert {name: ours.get(name) for name in theirs} == theirs
    assert len(theirs) == migrate.RUNS_WITH
