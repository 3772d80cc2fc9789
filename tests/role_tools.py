"""Columns and statements for tests of the grants."""

from collections.abc import Callable

from scheduler.database import migrate
from tests.schema_tools import Connection, fetch_all

Login = Callable[[str], Connection]
FRONTEND = {
    "jq_job_fk", "jq_name", "jq_type", "jq_args", "jq_variables", "jq_resubmit_of", "jq_host", "jq_tolerate",
    "jq_queue", "jq_urgent", "jq_priority", "jq_not_before", "jq_not_after", "jq_max_interruptions", "jq_retries",
    "jq_timeout", "jq_unique_key", "jq_delete", "jq_mode", "jq_state",
}  # fmt: skip
SQL_ONLY = {"jq_msq", "jq_runonpfile", "jq_key", "jq_repeat"}
PLAIN = "insert into drover.jobqueue (jq_type, jq_args) values ('noop', 'secret') returning jq_pk"


def add_edge(connection: Connection, child: int, parent: int) -> None:
    connection.execute(
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent)
    )


def insertable(connection: Connection, role: str) -> set[str]:
    query = """
        select attname from pg_attribute
         where attrelid = 'drover.jobqueue'::regclass and attnum > 0 and not attisdropped
           and has_column_privilege(%s, attrelid, attnum, 'insert')"""
    return {name for (name,) in fetch_all(connection, query, role)}


def grant_roles(conninfo: str) -> None:
    """Create the roles, and their grants on a schema that is there."""
    with migrate.changing(conninfo) as connection:
        migrate.apply_roles(connection)
