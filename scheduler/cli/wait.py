"""`drover wait`, and the ways other commands wait: for the end of jobs, for an event, or to redraw (`--watch`).

NOTIFY wakes a waiting command; a slow poll of its own covers a lost wake-up. The application_name of its session lets
`drover status` count the commands that wait.
"""

import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import NoReturn

import psycopg
from psycopg.rows import class_row, dict_row

from scheduler.cli.db import connect, job_numbers, listen, visible
from scheduler.cli.output import as_json, failed, no_such_job, printable, warn
from scheduler.errors import DroverError
from scheduler.model.config import Config

WAITER = "drover-wait"  # application_name of whoever waits for the end of something
LOOK_S = 5.0
REPLICA_LOOK_S = 1.0  # a replica wakes nobody
FAILURE = 2  # in jq_end_bits
GONE = "gone"  # in place of a state: there is no such job, or no more

ENDED = """
select pk as job, coalesce(jq_type, '-') as type, coalesce(jq_state::text, 'gone') as state,
       case when jq_pk is null then 'there is no such job' else coalesce(jq_endtext, '') end as text,
       coalesce(jq_end_bits, 2) as bits
  from unnest(%(jobs)s::bigint[]) as pk
  left join (select * from drover.jobqueue where jq_pk = any (%(jobs)s)) j on jq_pk = pk
 where jq_pk is null or jq_endtime is not null order by jq_endtime, pk
"""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended."""

    job: int
    type: str
    state: str
    text: str
    bits: int

    @property
    def is_failure(self) -> bool:
        """Whether whoever waits should hear that it failed."""
        return bool(self.bits & FAILURE)


def ends(connection: psycopg.Connection, jobs: Collection[int], limit_s: float) -> Iterator[End]:
    """Yield the end of each job as it comes; stop when all have ended or after so many seconds."""
    deadline = monotonic() + limit_s
    waiting = set(jobs)
    look_s = woken(connection, "drover_event")  # before the first look: what ends from now on is heard
    query = visible(connection, ENDED)
    while waiting:
        cursor = connection.cursor(row_factory=class_row(End))
        ended = cursor.execute(query, {"jobs": list(waiting)}).fetchall()
        yield from ended
        waiting -= {end.job for end in ended}
        left_s = deadline - monotonic()
        if not waiting or left_s <= 0:
            return
        sleep(connection, waiting, min(left_s, look_s))


def woken(connection: psycopg.Connection, *channels: str) -> float:
    """Listen, under the name of those who wait; give the seconds after which to look all the same."""
    connection.execute("select set_config('application_name', %s, false)", (WAITER,))
    return LOOK_S if listen(connection, *channels) else REPLICA_LOOK_S


def sleep(connection: psycopg.Connection, jobs: Collection[int], seconds: float) -> None:
    """Until one of the jobs is told of, by its number wherever it stands, but no longer than that."""
    names = set(map(str, jobs))
    notifies = connection.notifies(timeout=seconds)
    for notify in notifies:
        if not names.isdisjoint(_NUMBER.findall(notify.payload)):
            notifies.close()
            return


REDRAW_S = 0.5  # between two drawings, at least
WATCH_S = 5.0  # and at most
CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def redrawn(connection: psycopg.Connection, draw: Callable[[], object], look_s: float = WATCH_S) -> NoReturn:
    """Draw for ever: over the last drawing on a terminal, below it after an empty line elsewhere."""
    listen(connection, "drover_event", "drover_queue", "drover_change")
    is_terminal = sys.stdout.isatty()
    while True:
        drawn_at = time.monotonic()
        sys.stdout.write(CLEAR if is_terminal else "")
        draw()
        sys.stdout.write("" if is_terminal else "\n")
        sys.stdout.flush()
        _sleep_until_news(connection, drawn_at + REDRAW_S, look_s)


def _sleep_until_news(connection: psycopg.Connection, not_before: float, look_s: float) -> None:
    """Until something is announced; what comes while it is too early for a drawing is one reason for the next."""
    for _ in connection.notifies(timeout=look_s, stop_after=1):
        pass
    for _ in connection.notifies(timeout=max(not_before - time.monotonic(), 0.0)):
        pass


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


def wait_for_jobs(options: Namespace, config: Config) -> int:
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
        (number,) = job_numbers(connection, [job])
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
