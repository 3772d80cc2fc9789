"""`drover queue`, `drover host` and `drover agent`: what is kept in tables and may change while daemons run.

It is listed, and changed by command rows alone: the scheduler heeds them at once, and says what was wrong with them.
"""

from argparse import Namespace
from typing import Final, LiteralString

import psycopg

from scheduler.cli.complain import warn
from scheduler.cli.database import MASKED, NOTHING, connect, sight, table, unseen
from scheduler.cli.orders import carry_out
from scheduler.cli.tables import Table, as_json, show
from scheduler.errors import ConfigError
from scheduler.model.config import Config

LIST: Final = "list"
# Who serves: the owner of the group, if its lease holds.
QUEUES = """
select queue_name as queue, queue_group as group, scheduler_host || '.' || scheduler_pid as scheduler,
       queue_concurrency as concurrency, queue_reserved as reserved, queue_priority as priority, queue_paused as paused,
       count(jq_pk) filter (where jq_state = 'queued') as queued,
       count(jq_pk) filter (where jq_state in ('claimed', 'running')) as in_hand
  from drover.queue
  left join drover.scheduler_group on group_name = queue_group and group_lease_until > now()
  left join drover.scheduler on scheduler_uuid = group_owner
  left join drover.jobqueue on jq_queue = queue_name and jq_state in ('queued', 'claimed', 'running')
 where queue_present
 group by queue_name, scheduler_uuid order by queue_group, queue_name
"""
HOSTS = """
select host_name as host, host_group as group, scheduler_host || '.' || scheduler_pid as scheduler,
       host_transport as transport, host_max as max, host_urgent as urgent, host_enabled as enabled,
       nullif(concat_ws(' ', 'types=' || nullif(host_types, ''), 'queues=' || array_to_string(host_queues, ','),
                        'priorities=' || nullif(host_priorities, '')), '') as filter,
       count(status_pid) as agents, host_down_until as down_until, host_reason as reason
  from drover.host
  left join drover.scheduler_group on group_name = host_group and group_lease_until > now()
  left join drover.scheduler on scheduler_uuid = group_owner
  left join drover.scheduler_status
         on status_scheduler = scheduler_uuid and status_host = host_name and status_slot >= 0
 where host_present
 group by host_name, scheduler_uuid order by host_group, host_name
"""
AGENTS = """
select agent_type as type, agent_group as group, scheduler_host || '.' || scheduler_pid as scheduler,
       agent_kind as kind, agent_enabled as enabled, count(status_slot) as slots, count(status_pid) as agents,
       agent_blocked_until as blocked_until, agent_reason as reason
  from drover.agent
  left join drover.scheduler_group on group_name = agent_group and group_lease_until > now()
  left join drover.scheduler on scheduler_uuid = group_owner
  left join drover.scheduler_status
         on status_scheduler = scheduler_uuid and status_agent = agent_type and status_slot >= 0
 where agent_present
 group by agent_group, agent_type, scheduler_uuid order by agent_group, agent_type
"""
LISTS: Final[dict[str, LiteralString]] = {"queue": QUEUES, "host": HOSTS, "agent": AGENTS}
OF_SLOTS: Final = {"slots", "agents"}  # columns that are counted from drover.scheduler_status
COUNTED: Final = {"queue": "jobqueue", "host": "scheduler_status", "agent": "scheduler_status"}
VERBS: Final = {
    ("queue", "add"): "add-queue",
    ("queue", "remove"): "remove-queue",
    ("queue", "set"): "set-concurrency",
    ("queue", "priority"): "set-queue-priority",
    ("host", "enable"): "host-enable",
    ("host", "disable"): "host-disable",
    ("host", "max"): "host-max",
    ("host", "filter"): "host-filter",
    ("agent", "enable"): "agent-enable",
    ("agent", "disable"): "agent-disable",
}


def run(options: Namespace, config: Config) -> int:
    """List them, or insert the command, wait for its end and print the answer; 1 if it is refused."""
    if options.action == LIST and options.words:
        raise ConfigError(f"too many words: drover {options.command} list")
    with connect(config) as connection:
        if options.action != LIST:
            words = " ".join([VERBS[options.command, options.action], *options.words])
            return carry_out(connection, [words], options.wait, json=options.json)
        listed = _listed(connection, options.command)
    if options.json:
        print("".join(as_json(record) + "\n" for record in listed.records()), end="")
    else:
        show(listed)
    return 0


def _listed(connection: psycopg.Connection, what: str) -> Table:
    """All of them; what the role may not see is said, and what would be counted from it is left empty."""
    listed, seen = table(connection, "", LISTS[what]), sight(connection)
    if seen[COUNTED[what]] != MASKED:
        for missing in unseen(connection, seen, COUNTED[what]):
            warn(missing)
    if seen[COUNTED[what]] != NOTHING:
        return listed
    rows = [{**record, **dict.fromkeys(record.keys() & OF_SLOTS)} for record in listed.records()]
    return Table(listed.title, listed.columns, [tuple(row.values()) for row in rows])
