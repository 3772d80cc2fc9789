"""`drover wait N...`: how jobs end, each as it does, in a line or as JSON with all that came of it."""

from argparse import Namespace
from collections.abc import Collection

import psycopg
from psycopg.rows import dict_row

from scheduler.cli.complain import failed, no_such_job, warn
from scheduler.cli.database import connect, visible
from scheduler.cli.orders import numbers
from scheduler.cli.tables import as_json
from scheduler.cli.text import printable
from scheduler.cli.waiting import GONE, End, ends
from scheduler.errors import DroverError
from scheduler.model.config import Config

# The groups that these jobs wait for in vain.
INACTIVE = """
select distinct q.queue_group
  from drover.jobqueue j join drover.queue q on q.queue_name = j.jq_queue
  left join drover.scheduler_group g on g.group_name = q.queue_group
 where j.jq_pk = any (%s) and j.jq_endtime is null and (g.group_owner is null or g.group_lease_until < now())
"""
OUTCOME = """
select jq_pk as job, jq_name as name, jq_type as type, jq_state::text as state, jq_endtext as text,
       case when jq_end_bits & 2 = 0 then 'ok' else 'fail' end as result, jq_exitcode as code, jq_signal as signal,
       stdout, stderr, jq_result as value
  from drover.jobqueue j,
       lateral (
         select coalesce(string_agg(out_data, '' order by out_part) filter (where out_stream = 'out'), '') as stdout,
                coalesce(string_agg(out_data, '' order by out_part) filter (where out_stream = 'err'), '') as stderr
           from drover.output where out_jq_fk = jq_pk and out_attempt = jq_attempt) o
 where jq_pk = %s
"""


def run(options: Namespace, config: Config) -> int:
    """Print how each job ended; 1 if one failed, is not there, or has not ended in time."""
    with connect(config) as connection:
        found = [_number(connection, job) for job in options.jobs]
        jobs = [job for job in dict.fromkeys(found) if job is not None]
        status = wait(connection, jobs, options.timeout, json=options.json)
    return status or int(None in found)


def wait(connection: psycopg.Connection, jobs: Collection[int], limit_s: float, *, json: bool) -> int:
    """Print how each job ended, and give the exit status."""
    if json:
        connection.execute(visible(connection, OUTCOME), (0,))  # whoever may not see it hears so now, not at the end
    warn_of_inactive(connection, jobs)
    ended = []
    for end in ends(connection, jobs, limit_s):
        _show(connection, end, json=json)
        ended.append(end)
    if len(ended) < len(jobs):
        return failed(
            f"after {limit_s:g} s, {len(jobs) - len(ended)} of {len(jobs)} jobs have not ended; see drover why"
        )
    return int(any(end.is_failure for end in ended))


def warn_of_inactive(connection: psycopg.Connection, jobs: Collection[int]) -> None:
    """Say at once that nobody will work on them, rather than to wait in silence."""
    for (group,) in connection.execute(visible(connection, INACTIVE), (list(jobs),)):
        warn(f"no scheduler is active for group {group}: the job waits until one is; start it with drover run")


def _number(connection: psycopg.Connection, job: int | str) -> int | None:
    """The number of a job; a name that nobody has is told, and holds up no other."""
    try:
        (number,) = numbers(connection, [job])
    except DroverError as error:
        warn(str(error))
        return None
    return number


def _show(connection: psycopg.Connection, end: End, *, json: bool) -> None:
    if end.state == GONE:
        no_such_job(end.job)
    elif json:
        row = connection.cursor(row_factory=dict_row).execute(visible(connection, OUTCOME), (end.job,)).fetchone()
        print(as_json(row), flush=True)
    else:
        print(printable(f"{end.job} {end.type} {end.state} {end.text}"), flush=True)
