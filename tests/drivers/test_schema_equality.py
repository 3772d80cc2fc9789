"""schema.sql, which people read, is what the migrations build."""

import psycopg

from scheduler.database import migrate
from scheduler.package_data import schema_dir

REWRITE = "run `python -m scheduler.database.migrate --dump`"


def _rebuilt(conninfo: str, text: str) -> str:
    """Dump what `text` builds: both sides go through this, as Postgres reprints conditions anew."""
    with psycopg.connect(conninfo) as connection:
        connection.execute("drop schema if exists drover cascade")
        connection.execute(text.encode())
    return migrate.dump(conninfo)


def test_schema_sql_builds_what_the_migrations_build(database: str, empty_database: str) -> None:
    written = _rebuilt(empty_database, (schema_dir() / "schema.sql").read_text())
    assert written == _rebuilt(empty_database, migrate.dump(database)), REWRITE


def test_dump_shows_a_difference(database: str) -> None:
    before = migrate.dump(database)
    with psycopg.connect(database) as connection:
        connection.execute("alter table drover.job alter job_priority set default 1")
    assert migrate.dump(database) != before
