"""schema.sql, which people read, is what the migrations build."""

import psycopg

from scheduler.package_data import schema_dir
from tests.dump_schema import dump

REWRITE = "run `make schema`"


def _rebuilt(conninfo: str, text: str) -> str:
    """Dump what `text` builds: both sides go through this, as Postgres reprints conditions anew."""
    with psycopg.connect(conninfo) as connection:
        connection.execute("drop schema if exists drover cascade")
        connection.execute(text.encode())
    return dump(conninfo)


def test_schema_sql_builds_what_the_migrations_build(database: str, empty_database: str) -> None:
    written = _rebuilt(empty_database, (schema_dir() / "schema.sql").read_text())
    assert written == _rebuilt(empty_database, dump(database)), REWRITE


def test_dump_shows_a_difference(database: str) -> None:
    before = dump(database)
    with psycopg.connect(database) as connection:
        connection.execute("alter table drover.job alter job_priority set default 1")
    assert dump(database) != before
