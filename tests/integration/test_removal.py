"""What drover(8), REMOVAL says: the schema is all that Drover leaves in a database of the site, and it goes wholly."""

from pathlib import Path

import psycopg
import pytest

from scheduler.database.embedded import temporary
from tests.cli_tools import Drover
from tests.needs import need
from tests.walk_pages import literal_blocks

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "man/drover.8").read_text()
(DROPS,) = (block for block in literal_blocks(PAGE) if block.startswith("drop schema drover"))
SITE = """
create table public.jobqueue (jq_pk bigint primary key, jq_type text);
insert into public.jobqueue values (1, 'theirs');
create schema site;
create view site.log as select * from public.jobqueue;
"""
OURS = "select count(*) from pg_roles where rolname like 'drover%'"
RELATIONS = """
select n.nspname, c.relname, c.relkind::text, c.relacl::text, pg_get_userbyid(c.relowner), c.relhastriggers
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname !~ '^(pg_|information_schema)' order by 1, 2
"""


def test_a_site_has_its_tables_and_nothing_else_after_the_removal_t105(
    drover: Drover, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("postgres")
    with temporary() as conninfo, psycopg.connect(conninfo, autocommit=True) as connection:
        monkeypatch.setenv("DROVER_DATABASE_URL", conninfo)
        connection.execute(SITE)
        before = connection.execute(RELATIONS).fetchall()
        assert drover("init", "--roles").status == 0
        connection.execute("grant select on site.log to drover_msq")
        assert drover("submit", "--force", "noop", "x").status == 0
        added = {row[0] for row in connection.execute(RELATIONS)} - {row[0] for row in before}
        assert (added, connection.execute(OURS).fetchone()) == ({"drover"}, (9,))
        for statement in DROPS.split(";\n"):
            connection.execute(statement.encode())
        assert [row[:3] for row in connection.execute(RELATIONS)] == [row[:3] for row in before]
        assert connection.execute(OURS).fetchone() == (0,)
        assert connection.execute("select jq_type from site.log").fetchall() == [("theirs",)]
