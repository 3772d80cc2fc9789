"""A scrape reads what waits and is worked: with 100,000 jobs that have ended it reads none of these (C43)."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.database_session import Session, open_session, statement
from scheduler.metrics.families import STATEMENTS

ENDED = 100_000
WAITING = 50
FILL = """
    insert into drover.jobqueue (jq_type, jq_args, jq_queue, jq_state, jq_starttime, jq_endtime, jq_end_bits)
    select 'noop', 'file ' || n, 'default', 'done', now(), now(), 1 from generate_series(1, %s) n"""
WAIT = """
    insert into drover.jobqueue (jq_type, jq_args, jq_not_before)
    select 'noop', 'x', case when n % 2 = 0 then now() + interval '1 day' end from generate_series(1, {}) n"""


@pytest.fixture(scope="module")
def many(site: str) -> None:
    with psycopg.connect(site, autocommit=True) as rows:
        rows.execute("alter table drover.jobqueue disable trigger user")  # which takes most of the time
        rows.execute(FILL, (ENDED,))
        rows.execute("alter table drover.jobqueue enable trigger user")
        rows.execute(WAIT.format(WAITING).encode())
        rows.execute("analyze drover.jobqueue")


@pytest.fixture(params=["operator", "readonly"])
def session(site: str, many: None, request: pytest.FixtureRequest) -> Iterator[Session]:
    with open_session(make_conninfo(site, user=f"drover_{request.param}")) as session:
        yield session


@pytest.mark.parametrize("name", STATEMENTS)
def test_scrape_reads_no_jobs_that_have_ended_c43(session: Session, name: str) -> None:
    assert jobs_read(session, name) <= WAITING


def jobs_read(session: Session, name: str) -> int:
    """Run a statement; return how many rows of drover.jobqueue it read."""
    text, values = session._permitted(name, dict.fromkeys(statement(name).names))
    ((plan,),) = psycopg.RawCursor(session.connection).execute(b"explain (analyze, format json) " + text, values)
    found = nodes_of((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"])
    of_queue = [node for node in found if node.get("Relation Name") == "jobqueue"]
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]) for node in of_queue
    )


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)
