"""Statements about jobs and edges for tests of the schema."""

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
