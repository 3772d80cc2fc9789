"""Statements about jobs and edges for tests of the schema."""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]
BEGUN = "jq_owner = gen_random_uuid(), jq_starttime = now()"
ENDED = "jq_owner = null, jq_starttime = now(), jq_endtime = now()"


def fetch_all(queue: Connection, query: str, *values: object) -> list[Any]:
    return queue.execute(query.encode(), values or None).fetchall()


def fetch_one(queue: Connection, query: str, *values: object) -> Any:
    return fetch_all(queue, query, *values)[0][0]


def add_job(queue: Connection, **columns: object) -> int:
    """Insert a job and return its number."""
    given = {"jq_type": "noop", **columns}
    marks = ", ".join("%s" for _ in given)
    job: int = fetch_one(
        queue,
        f"insert into drover.jobqueue ({', '.join(given)}) values ({marks}) returning jq_pk",
        *given.values(),
    )
    return job


def read_column(queue: Connection, job: int, column: str) -> Any:
    return fetch_one(queue, f"select {column} from drover.jobqueue where jq_pk = %s", job)


def set_columns(queue: Connection, job: int, assignment: str) -> None:
    queue.execute(f"update drover.jobqueue set {assignment} where jq_pk = %s".encode(), (job,))


def claim_job(queue: Connection, job: int) -> None:
    set_columns(queue, job, f"jq_state = 'claimed', {BEGUN}")


def end_job(queue: Connection, job: int, state: str = "done", bits: int = 1) -> None:
    claim_job(queue, job)
    set_columns(queue, job, f"jq_state = '{state}', {ENDED}, jq_end_bits = {bits}")


def walk_suspects(ask: Callable[[str], Sequence[Any]]) -> None:
    """Look at everything for drover.impossible, as daemons do in steps, which may do so meanwhile; `ask` gives rows."""
    while ask("select 1 where drover.add_up_changes(50000) > 0"):  # or it might not know where jobs are
        pass
    ask("update drover.suspect_walk set walk_stage = 'jobs', walk_place = -1, walk_ended = null returning 1")
    while not ask("select 1 from drover.suspect_walk where walk_ended is not null"):
        ask("select drover.find_suspects(4000)")


def buffers_of(queue: psycopg.Connection[Any], statement: str) -> int:
    """Carry out a statement, the second time as it is usual, and return how many buffers it looked at."""
    queue.execute(f"explain {statement}".encode())  # what the session knows of the tables costs buffers once
    plan = fetch_one(queue, f"explain (analyze, buffers, format json) {statement}")[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])
