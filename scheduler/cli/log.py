"""`drover log`: rows of drover.log, one line each; their text was written by agents, so it is escaped."""

from argparse import Namespace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from scheduler.cli.complain import no_such_job
from scheduler.cli.database import connect, listen, visible
from scheduler.cli.orders import numbers
from scheduler.cli.tables import as_json, cell
from scheduler.cli.text import printable
from scheduler.model.config import Config

LAST = 100
LOOK_S = 1.0  # nothing announces a log row; the end of a job does wake us, but not on a replica
FIELDS = ("job", "host", "agent", "pid")

# Rows are numbered as they are written: of two writers at once, the later commit may be overtaken and not be followed.
ROWS = """
select * from (
  select log_pk as pk, log_date as date, log_type as type, log_jq_fk as job, log_host as host, log_agent as agent,
         log_pid as pid, log_message as message
    from drover.log l
   where log_pk > %s and (%s::bigint is null or log_jq_fk = %s)
   order by log_pk desc limit %s) newest
 order by pk
"""
IS_THERE = "select jq_endtime is not null from drover.jobqueue where jq_pk = %s"


def run(options: Namespace, config: Config) -> int:
    """Print the last rows, of one job or of all; -f goes on until the job ends."""
    with connect(config) as connection:
        if options.job is not None:
            (options.job,) = numbers(connection, [options.job])
        last = _print_rows(connection, options, 0, options.lines if _is_limited(options) else LAST)
        if (
            options.job
            and not last
            and not connection.execute(visible(connection, IS_THERE), (options.job,)).fetchone()
        ):
            return no_such_job(options.job)
        if options.follow:
            _follow(connection, options, last)
    return 0


def line(row: dict[str, Any]) -> str:
    """A row as one line: when, what kind, the fields that it has, the message."""
    fields = "".join(f" {name}={row[name]}" for name in FIELDS if row[name] is not None)
    return printable(f"{cell(row['date'])} {row['type']}{fields}: {row['message']}")


def _is_limited(options: Namespace) -> bool:
    return options.lines is not None or options.job is not None


def _print_rows(connection: psycopg.Connection, options: Namespace, after: int, limit: int | None) -> int:
    """Print what is newer than `after`, and give the number of the newest."""
    cursor = connection.cursor(row_factory=dict_row)
    for row in cursor.execute(visible(connection, ROWS), (after, options.job, options.job, limit)):
        after = row.pop("pk")
        print(as_json(row) if options.json else line(row), flush=options.follow)
    return after


def _follow(connection: psycopg.Connection, options: Namespace, last: int) -> None:
    listen(connection, "drover_event")
    has_ended = False
    while not has_ended:
        for _ in connection.notifies(timeout=LOOK_S, stop_after=1):
            pass
        has_ended = _has_ended(connection, options.job)  # looked at first: what it logged last is there then
        last = _print_rows(connection, options, last, None)


def _has_ended(connection: psycopg.Connection, job: int | None) -> bool:
    row = connection.execute(visible(connection, IS_THERE), (job,)).fetchone() if job else (False,)
    return row is None or bool(row[0])
