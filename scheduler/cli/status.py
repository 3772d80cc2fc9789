"""`drover status`: who schedules, what the slots do, how many jobs wait for what, and what is wrong.

Reads what the daemon has written, and the server's statistics (health.py); a stopped daemon is no reason to fail.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg.rows import dict_row

from scheduler.cli.db import MASKED, NOTHING, connect, sight, table, unseen, visible
from scheduler.cli.health import Limits, Warned, warnings
from scheduler.cli.output import Table, as_json, cell, printable, show
from scheduler.cli.wait import WAITER, redrawn
from scheduler.errors import ConfigError
from scheduler.model.config import Config
from scheduler.model.states import JOB_STATES

GROUP = """
select g.group_name as name, g.group_owner as owner, s.scheduler_host as host, s.scheduler_pid as pid,
       coalesce(g.group_lease_until > now(), false) and g.group_owner is not null as active,
       g.group_taken_at as since, g.group_lease_until as lease_until, g.group_lease_until - now() as lease_left,
       (select count(*) from drover.scheduler o
         where o.scheduler_group = g.group_name and o.scheduler_uuid <> g.group_owner
           and o.scheduler_seen > now() - make_interval(secs => o.scheduler_lease)) as standbys
  from (select %s::text as name) asked
  left join drover.scheduler_group g on g.group_name = asked.name
  left join drover.scheduler s on s.scheduler_uuid = g.group_owner
"""
GROUPS = "select group_name from drover.scheduler_group order by group_name"
SCHEDULERS = """
select scheduler_host as host, scheduler_pid as pid,
       case when group_lease_until > now() then case status_state_name when 'draining' then 'draining' else 'owner' end
            when scheduler_seen < now() - make_interval(secs => scheduler_lease) then 'gone?'
            else 'standby' end as role,
       scheduler_version as version, scheduler_started as started, now() - scheduler_seen as unseen_for,
       (status_parameter::jsonb ->> 'slow_turns')::bigint as slow_turns,
       (status_parameter::jsonb ->> 'longest_turn_ms')::float8 as longest_turn_ms,
       (status_parameter::jsonb ->> 'memory_mb')::float8 as memory_mb
  from drover.scheduler
  left join drover.scheduler_status on status_scheduler = scheduler_uuid and status_slot = -1
  left join drover.scheduler_group on group_owner = scheduler_uuid and group_name = scheduler_group
 where scheduler_group = %s and scheduler_seen > now() - make_interval(secs => 2 * scheduler_lease)
 order by group_owner is null, scheduler_started
"""
SLOTS = """
select status_slot as slot, status_host as host, status_agent as agent, status_state_name as state,
       now() - status_since as since, status_pid as pid, status_jq_fk as job, status_items as items,
       status_spawns as spawns, status_reason as reason
  from drover.scheduler_status join drover.scheduler_group on group_owner = status_scheduler
 where group_name = %s and status_slot >= 0 and group_lease_until > now() order by status_host, status_slot
"""
JOBS = "select jq_type, jq_state::text, count(*) from drover.jobqueue group by 1, 2 order by 1, 2"
UNSERVED = """
select j.jq_type as type, q.queue_group as group, count(*) as jobs,
       case when a.agent_type is null then 'not configured'
            when not a.agent_present then 'no longer configured'
            else 'disabled' end as reason
  from drover.jobqueue j
  join drover.queue q on q.queue_name = j.jq_queue
  left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.jq_type
 where j.jq_state in ('held', 'queued', 'blocked') and j.jq_type <> 'command'
   and not coalesce(a.agent_present and a.agent_enabled, false)
 group by 1, 2, 4 order by 1, 2, 4
"""
LOST = """
select j.jq_queue as queue, count(*) as jobs, string_agg(distinct j.jq_type, ', ' order by j.jq_type) as types
  from drover.jobqueue j
 where j.jq_state in ('held', 'queued', 'blocked') and j.jq_type <> 'command'
   and not exists (select from drover.queue where queue_name = j.jq_queue)
 group by 1 order by 1
"""
QUEUES = """
select queue_name as queue, queue_concurrency as concurrency, queue_paused as paused,
       count(jq_pk) filter (where jq_state in ('claimed', 'running')) as in_hand,
       count(jq_pk) filter (where jq_state = 'queued') as queued
  from drover.queue left join drover.jobqueue on jq_queue = queue_name and jq_state in ('queued', 'claimed', 'running')
 where queue_group = %s and queue_present
 group by queue_name order by queue_name
"""
# Parts that are empty for whoever sees less than all of drover.scheduler_status.
HIDDEN = {MASKED: ("statements",), NOTHING: ("slots", "statements")}
# Commands of ours that wait for an end, on this server; whoever waits otherwise may take their name.
WAITING = "select count(*) from pg_stat_activity where application_name = %s and datname = current_database()"
STATEMENTS = """
select t.key as statement, (t.value ->> 'count')::bigint as count, (t.value ->> 'mean_ms')::float8 as mean_ms,
       (t.value ->> 'max_ms')::float8 as max_ms
  from drover.scheduler_status join drover.scheduler on scheduler_uuid = status_scheduler,
       jsonb_each(status_parameter::jsonb -> 'statements') t
 where scheduler_group = %s and status_slot = -1 order by t.key
"""


def show_status(options: Namespace, config: Config) -> int:
    """Print it as a headline and tables, or all of it as one JSON object; --watch does so until Ctrl-C."""
    name = options.group or config.scheduler.group
    with connect(config) as connection:
        if options.group:
            _check_group(connection, options.group)
        if options.watch:
            redrawn(connection, lambda: _print(connection, name, json=options.json))
        _print(connection, name, json=options.json)
    return 0


def headline(group: dict[str, Any]) -> str:
    """One line: who owns the group, and for how long if nothing is heard any more."""
    name = printable(group["name"])
    if not group["active"]:
        return f"group {name}: no scheduler is active; start one with drover run"
    owner = f"{group['host']}.{group['pid']}" if group["host"] else str(group["owner"])
    since, left = cell(group["since"]), cell(group["lease_left"])
    return f"group {name}: {printable(owner)} is active since {since}, its lease ends in {left}"


def note(group: dict[str, Any]) -> str | None:
    """One more line, if nobody would go on when the owner of the group dies."""
    if not group["active"] or group["standbys"]:
        return None
    return "note: no other scheduler of the group stands by to take over"


def patience(clients: int) -> str | None:
    """One more line, if somebody waits for an end."""
    return f"{clients} {'client waits' if clients == 1 else 'clients wait'} for jobs or answers" if clients else None


def pivot(counts: list[tuple[Any, ...]]) -> Table:
    """Rows of (type, state, jobs) as a row a type and a column for every state that occurs."""
    jobs = Counter({(kind, state): count for kind, state, count in counts})
    states = [state for state in JOB_STATES if any(seen == state for _, seen in jobs)]
    kinds = dict.fromkeys(kind for kind, _ in jobs)
    return Table("Jobs", ("type", *states), [(kind, *(jobs[kind, state] for state in states)) for kind in kinds])


def _print(connection: psycopg.Connection, name: str, *, json: bool) -> None:
    with connection.transaction():
        group = _group(connection, name)
        ((clients,),) = connection.execute(WAITING, (WAITER,)).fetchall()
        seen = sight(connection)
        missing = unseen(connection, seen, "jobqueue", "scheduler_status")
        parts = _parts(connection, name)
        if json:
            hidden = HIDDEN.get(seen["scheduler_status"], ())
            told = {"group": group, "waiting_clients": clients, "unseen": missing}
            print(as_json(told | {key: None if key in hidden else part.records() for key, part in parts}))
        else:
            notes = (f"note: {each}" for each in missing)
            _show_parts([headline(group), note(group), *notes, patience(clients)], parts)


def _check_group(connection: psycopg.Connection, name: str) -> None:
    """A group that was asked for is most often misspelt if it never had a scheduler, and others had."""
    names = [known for (known,) in connection.execute(GROUPS)]
    if names and name not in names:
        raise ConfigError(f"no group {name}: there are {', '.join(names)}")


def _group(connection: psycopg.Connection, name: str) -> dict[str, Any]:
    """The group's owner; one that never had any is not active."""
    row = connection.cursor(row_factory=dict_row).execute(GROUP, (name,)).fetchone()
    return (row or {}) | {"name": name}


def _parts(connection: psycopg.Connection, name: str) -> Iterator[tuple[str, Table]]:
    """Each table when it is asked for: what is wrong comes before the queue, which somebody may keep locked."""
    yield "warnings", _warnings(connection, name)
    yield "schedulers", table(connection, "Schedulers", SCHEDULERS, (name,))
    yield "slots", table(connection, "Slots", SLOTS, (name,))
    yield "jobs", pivot(connection.execute(visible(connection, JOBS)).fetchall())
    yield "unserved", table(connection, "Types that nobody serves", UNSERVED)
    yield "unknown_queues", table(connection, "Jobs in queues that do not exist", LOST)
    yield "queues", table(connection, "Queues", QUEUES, (name,))
    yield "statements", table(connection, "Statements of the schedulers", STATEMENTS, (name,))


def _warnings(connection: psycopg.Connection, name: str) -> Table:
    """What keeps work waiting, then what hurts the database."""
    of_database = warnings(connection, Limits())
    return Table(
        of_database.title,
        of_database.columns,
        [*stoppages(connection, name), *refused(connection, name), *troubles(connection, name), *of_database.rows],
    )


def _show_parts(lines: Iterable[str | None], parts: Iterable[tuple[str, Table]]) -> None:
    print(*filter(None, lines), sep="\n", flush=True)
    for _, part in parts:
        if part.rows:
            print()
            show(part)
            sys.stdout.flush()


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
