"""`drover ls`: jobs, oldest first; those that are well over only when asked for."""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import psycopg

from scheduler.cli.complain import warn
from scheduler.cli.database import connect, table
from scheduler.cli.tables import Table, as_json, show
from scheduler.cli.text import clipped
from scheduler.cli.watching import redrawn
from scheduler.model.config import Config
from scheduler.model.states import BLOCKED, CLAIMED, FAILED, HELD, JOB_STATES, QUEUED, RUNNING

USUAL = (HELD, QUEUED, CLAIMED, RUNNING, BLOCKED, FAILED)
SHOWN = ("job", "name", "type", "queue", "state", "priority", "queued", "processed", "total", "host", "args", "text")
USUALLY = {"name": (None,), "queue": ("default", None)}  # a column that says nothing else is left out
CLIPPED = {"args": 48, "text": 60}

# Named columns only: a site may add its own.
JOBS = """
select jq_pk as job, jq_name as name, jq_job_fk as group, jq_type as type, jq_state::text as state,
       jq_urgent as urgent, jq_priority as priority, jq_queue as queue, jq_host as host, jq_submitter as submitter,
       jq_attempt as attempt, jq_queued as queued, jq_starttime as start, jq_endtime as end,
       jq_itemsprocessed as processed, jq_itemsfailed as failed, jq_itemstotal as total,
       jq_args as args, jq_endtext as text
  from drover.jobqueue
 where jq_state = any (%s::drover.job_state[]) and (%s::text[] is null or jq_type = any (%s))
   and (%s or jq_type <> 'command' or jq_endtime is null)
   and (%s or not exists (select from drover.job where job_pk = jq_job_fk and job_hidden))
 order by jq_pk desc limit %s
"""


def run(options: Namespace, config: Config) -> int:
    """Print the newest jobs that are asked for, and say so if there are more; --watch does so until Ctrl-C."""
    with connect(config) as connection:
        if options.watch:
            redrawn(connection, lambda: _list(connection, options))
        _list(connection, options)
    return 0


def _list(connection: psycopg.Connection, options: Namespace) -> None:
    limit = options.rows or None
    wants_commands = options.all or bool(options.types)
    filters = (states(options), options.types, options.types, wants_commands, options.all, limit and limit + 1)
    jobs = table(connection, "", JOBS, filters)
    newest = replace(jobs, rows=jobs.rows[:limit][::-1])
    if options.json:
        print("".join(as_json(record) + "\n" for record in newest.records()), end="")
    else:
        show(brief(newest))
    if len(jobs.rows) > len(newest.rows):
        warn(f"these are the newest {limit}; -n 0 lists all")


def states(options: Namespace) -> list[str]:
    """Every state that is asked for: the usual ones and more (-s), or others instead (-S, --all)."""
    if options.all:
        return list(JOB_STATES)
    return [state for state in JOB_STATES if state in {*options.also, *(options.only or USUAL)}]


def brief(jobs: Table) -> Table:
    """What fits a line: names and queues if one has any; an urgent job's priority bears a mark, long texts are cut."""
    records = jobs.records()
    usual = {key for key, values in USUALLY.items() if all(record[key] in values for record in records)}
    columns = tuple(name for name in SHOWN if name not in usual)
    return Table("", columns, [tuple(_brief(record, columns)) for record in records])


def _brief(record: dict[str, Any], columns: Iterable[str]) -> Iterable[Any]:
    shown = record | {"priority": ("!" if record["urgent"] else "") + record["priority"]}
    for name in columns:
        value = shown[name]
        yield clipped(value, CLIPPED[name]) if value and name in CLIPPED else value
