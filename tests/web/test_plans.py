"""Lists stay fast: with 100,000 jobs no page of them reads more than it shows, unless a filter finds little."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.database_session import Session
from scheduler.web.database_sessions import Login
from scheduler.web.job_filter import Filter
from scheduler.web.pages import ROWS

JOBS = 100_000
FILL = """
    insert into drover.jobqueue (jq_type, jq_args, jq_queue, jq_state, jq_starttime, jq_endtime, jq_end_bits,
                                 jq_submitter)
    select 'noop', 'file ' || n, 'default', 'done', now(), now(), 1, 'drover_frontend' from generate_series(1, %s) n"""


@pytest.fixture(scope="module")
def many(web_database: str) -> None:
    with psycopg.connect(web_database, autocommit=True) as rows:
        rows.execute("alter table drover.jobqueue disable trigger user")  # which takes most of the time
        rows.execute(FILL, (JOBS,))
        rows.execute("alter table drover.jobqueue enable trigger user")
        rows.execute("analyze drover.jobqueue")


@pytest.fixture(scope="module", params=["operator", "readonly", "frontend"])
def session(web_database: str, many: None, request: pytest.FixtureRequest) -> Iterator[Session]:
    login = Login(make_conninfo(web_database, user=f"drover_{request.param}"), is_visitor=False)
    with login.session() as session:
        yield session
    login.close_idle(0.0)


def rows_read(session: Session, **parameters: Any) -> int:
    """Run page_of_jobs; return how many rows of the queue were read for it. Errors: AssertionError, it sorts them."""
    text, values = session._permitted("page_of_jobs", parameters)
    with session.expecting_many_jobs():
        ((plan,),) = psycopg.RawCursor(session.connection).execute(b"explain (analyze, format json) " + text, values)
    nodes = list(nodes_of((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"]))
    of_queue = [node for node in nodes if node.get("Relation Name") == "jobqueue" and "Scan" in node["Node Type"]]
    assert not [node for node in nodes if node["Node Type"] == "Sort" and node["Actual Rows"] > ROWS + 1]
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in of_queue
    )


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


@pytest.mark.parametrize("before", [None, JOBS // 2, 100])
def test_page_of_the_list_reads_what_it_shows(session: Session, before: int | None) -> None:
    assert ROWS <= rows_read(session, **Filter().parameters(), before=before, limit=ROWS + 1) <= 4 * ROWS


@pytest.mark.parametrize("wanted", [Filter(type="noop"), Filter(states=("done",)), Filter(by="drover_frontend")])
def test_filter_that_finds_most_reads_what_it_shows(session: Session, wanted: Filter) -> None:
    assert rows_read(session, **wanted.parameters(), before=None, limit=ROWS + 1) <= 4 * ROWS


@pytest.mark.parametrize("wanted", [Filter(states=("blocked",)), Filter(text="nothing is like this"), Filter(type="x")])
def test_filter_that_finds_nothing_reads_each_job_once(session: Session, wanted: Filter) -> None:
    assert rows_read(session, **wanted.parameters(), before=None, limit=ROWS + 1) <= JOBS + 4 * ROWS
