"""Waiting for jobs to end: woken by drover_event, with a slow look of its own in case a wake-up is lost.

Reads rows and prints nothing.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from time import monotonic

import psycopg
from psycopg.rows import class_row

LOOK_S = 5.0
FAILURE = 2  # in jq_end_bits

ENDED = """
select jq_pk as job, jq_type as type, jq_state::text as state, coalesce(jq_endtext, '') as text, jq_end_bits as bits
  from drover.jobqueue where jq_pk = any (%s) and jq_endtime is not null order by jq_endtime, jq_pk
"""


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


def ends(
    connection: psycopg.Connection, jobs: Collection[int], limit_s: float, look_s: float = LOOK_S
) -> Iterator[End]:
    """Yield the end of each job as it comes; stop when all have ended or after so many seconds."""
    deadline = monotonic() + limit_s
    waiting = set(jobs)
    connection.execute("listen drover_event")  # before the first look: what ends from now on is heard
    while waiting:
        cursor = connection.cursor(row_factory=class_row(End))
        ended = cursor.execute(ENDED, (list(waiting),)).fetchall()
        yield from ended
        waiting -= {end.job for end in ended}
        left_s = deadline - monotonic()
        if not waiting or left_s <= 0:
            return
        _sleep(connection, waiting, min(left_s, look_s))


def _sleep(connection: psycopg.Connection, waiting: set[int], seconds: float) -> None:
    """Until an event tells of one of the jobs, but no longer than that."""
    notifies = connection.notifies(timeout=seconds)
    for notify in notifies:
        if any(event["jq_pk"] in waiting for event in json.loads(notify.payload)):
            notifies.close()
            return
