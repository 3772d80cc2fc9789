"""Tools for tests of batches of commands about many jobs: drover.change_jobs without a daemon."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.connection_tools import OWNER, take_group
from tests.database.test_claimable import DIFFERENCE

MANY = "insert into drover.jobqueue (jq_type, jq_args) select 'a', i::text from generate_series(1, 100) i"
FAIL = """
update drover.jobqueue set jq_state = 'failed', jq_starttime = now(), jq_endtime = now() - interval '1 s',
       jq_end_bits = 2
 where jq_pk <= 100
"""
HOLD = "update drover.jobqueue set jq_state = 'held'"
QUEUE = "insert into drover.queue (queue_name, queue_group) values ('q', 'default')"


@contextmanager
def queue_of_hundred(database: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """Yield a queue of 100 jobs that share tokens, one of another type, and a group that is ours."""
    take_group(database)
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(MANY.encode())
        connection.execute("insert into drover.jobqueue (jq_type) values ('b')")
        yield connection


def give(queue: psycopg.Connection[Any], words: str, /, **chosen: Any) -> int:
    """Insert a command for all jobs of a filter; return its number."""
    row = queue.execute("select drover.command(%s, %s) as pk", (words, Jsonb(chosen))).fetchone()
    assert row
    return int(row["pk"])


def batch(queue: psycopg.Connection[Any], command: int, most: int = 1000) -> dict[str, Any]:
    """Carry out one batch."""
    row = queue.execute("select * from drover.change_jobs(%s, %s, %s)", (command, OWNER, most)).fetchone()
    assert row
    return dict(row)


def states(queue: psycopg.Connection[Any], kind: str = "a") -> dict[str, int]:
    """Return how many jobs of a type there are in each state."""
    query = "select jq_state::text as state, count(*) as jobs from drover.jobqueue where jq_type = %s group by 1"
    return {row["state"]: row["jobs"] for row in queue.execute(query, (kind,))}


def differences(queue: psycopg.Connection[Any]) -> list[Any]:
    """Return where tokens and jobs that may be claimed are not the same."""
    rows = queue.execute(DIFFERENCE.encode()).fetchall()
    return [row for row in rows if "command" not in row.values()]
