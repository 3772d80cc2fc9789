"""What keeps the work of a group waiting: no scheduler, agent types that rest, machines that can start no more agents.

Reads what the daemon has written about itself, and how many jobs wait; refuses to judge the database (health.py).
"""

from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg

from scheduler.cli.database import visible


@dataclass(frozen=True, slots=True)
class Stoppage:
    """A query that gives (who, age, what) a warning about the group `%(group)s`, and what to do then."""

    kind: str
    query: LiteralString
    advice: str


NO_SCHEDULER: Final = """
select 'group ' || name, now() - group_lease_until, 'no scheduler is active; jobs that wait: ' || jobs
  from (select %(group)s::text as name) asked
  left join drover.scheduler_group on group_name = name,
       lateral (select count(*) as jobs from drover.jobqueue join drover.queue on queue_name = jq_queue
                 where queue_group = name and jq_state in ('queued', 'claimed', 'running')) w
 where jobs > 0 and (group_owner is null or group_lease_until < now())
"""
RESTING: Final = """
select 'type ' || a.agent_type, now() - a.agent_blocked_since,
       'agent type ' || a.agent_type || ' failed, next try ' || date_trunc('second', a.agent_blocked_until)
         || coalesce(', resting since ' || date_trunc('second', a.agent_blocked_since), '')
         || ': ' || coalesce(a.agent_reason, '?') || '; jobs that wait: ' || jobs
  from drover.agent a,
       lateral (select count(*) as jobs from drover.jobqueue join drover.queue on queue_name = jq_queue
                 where queue_group = a.agent_group and jq_type = a.agent_type
                   and jq_state in ('queued', 'claimed', 'running')) w
 where a.agent_group = %(group)s and a.agent_present and a.agent_enabled and a.agent_blocked_until > now() and jobs > 0
   and not starts_with(coalesce(a.agent_reason, ''), 'no connection')  -- of which troubles.py tells
 order by a.agent_type
"""
SHORTAGE: Final = """
select 'scheduler', null::interval, told
  from drover.scheduler_group join drover.scheduler_status on status_scheduler = group_owner and status_slot = -1,
       jsonb_array_elements_text(coalesce(status_parameter::jsonb -> 'shortages', '[]')) as told
 where group_name = %(group)s and group_lease_until > now()
"""
STOPPAGES: Final = (
    Stoppage("no scheduler", NO_SCHEDULER, "start one with drover run"),
    Stoppage("agents failed", RESTING, "look at drover log and the agent; try it at once: drover agent enable TYPE"),
    Stoppage("no more agents", SHORTAGE, "raise the limit that is named, or run fewer agents: max of the host"),
)


def stoppages(connection: psycopg.Connection, group: str) -> list[tuple[Any, ...]]:
    """Return the rows of warnings about what keeps the work of a group waiting, the worst first."""
    rows: list[tuple[Any, ...]] = []
    for each in STOPPAGES:
        found = connection.execute(visible(connection, each.query), {"group": group}).fetchall()
        rows += [(each.kind, *row, each.advice) for row in found]
    return rows
