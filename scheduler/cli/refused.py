"""What `drover status` warns of by the schedulers' own word: statements that the database refuses."""

from typing import Final

import psycopg

from scheduler.cli.database import visible
from scheduler.cli.health import Warned

REFUSED: Final = """
select 'refused', scheduler_host || '.' || scheduler_pid, null::interval, status_reason,
       'mend it in the database; the scheduler tries again, and goes on by itself'
  from drover.scheduler_status join drover.scheduler on scheduler_uuid = status_scheduler
 where scheduler_group = %s and status_slot = -1 and status_reason is not null
   and scheduler_seen > now() - make_interval(secs => 2 * scheduler_lease)
 order by 2
"""


def refused(connection: psycopg.Connection, group: str) -> list[Warned]:
    """Return a row of COLUMNS for each scheduler of the group that is refused something."""
    return connection.execute(visible(connection, REFUSED), (group,)).fetchall()
