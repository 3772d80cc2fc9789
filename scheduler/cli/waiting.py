"""Waiting for jobs: woken by what is announced, with a slow look of its own in case a wake-up is lost.

Reads rows and prints nothing. Who waits is known by the name of its session, and so `drover status` can count them.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from time import monotonic

import psycopg
from psycopg.rows import class_row

from scheduler.cli.database import listen, visible

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
