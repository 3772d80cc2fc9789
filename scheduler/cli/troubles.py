"""Connections that the active scheduler cannot make, as it wrote them down."""

from typing import Final, LiteralString

import psycopg

from scheduler.cli.database import visible
from scheduler.cli.health import Warned

TROUBLES: Final[LiteralString] = """
select t.value ->> 'what',
       now() - status_updated + make_interval(secs => (t.value ->> 'seconds')::float8), t.value ->> 'reason'
  from drover.scheduler_status join drover.scheduler_group on group_owner = status_scheduler,
       jsonb_array_elements(status_parameter::jsonb -> 'troubles') t
 where group_name = %s and status_slot = -1 and group_lease_until > now()
 order by 2 desc
"""
NEXT: Final = "it is tried again by itself; run drover check where the scheduler runs: it says what to do"


def troubles(connection: psycopg.Connection, group: str) -> list[Warned]:
    """Return a row of COLUMNS for each that fails in the scheduler of a group; none for those who may not see it."""
    found = connection.execute(visible(connection, TROUBLES), (group,)).fetchall()
    return [("connection", who, age, what, NEXT) for who, age, what in found]
