"""Lists stay fast: with 100,000 jobs no page of them reads more than it shows, unless a filter finds little."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from scheduler.cli.database_session import Session
from scheduler.cli.job_lists import MOST_WITH_TEXT, ZONE, find, reading
from scheduler.web.database_sessions import Login
from scheduler.web.job_filter import Filter
from scheduler.web.pages import ROWS, counted
from tests.job_list_tools import rows_read

JOBS = 100_000
ALL = Filter()
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
        rows.execute("select drover.recount(0, 4096)")
        rows.execute("analyze drover.jobqueue")


@pytest.fixture(scope="module", params=["operator", "readonly", "frontend"])
def session(web_database: str, many: None, request: pytest.FixtureRequest) -> Iterator[Session]:
    login = Login(make_conninfo(web_database, user=f"drover_{request.param}"), is_visitor=False)
    with login.session() as session:
        yield session
    login.close_idle(0.0)


def rows_of_page(session: Session, wanted: Filter = ALL, before: int | None = None) -> int:
    """Return how many rows of the queue are read for a page."""
    with reading(session):
        read = rows_read(session)
        found = find(session.with_fellows(), wanted.wanted(before), ROWS + 1)
        session.rows("page_of_jobs", jobs=found.jobs)
        return rows_read(session) - read


@pytest.mark.parametrize("before", [None, JOBS // 2, 100])
def test_page_of_the_list_reads_what_it_shows(session: Session, before: int | None) -> None:
    assert ROWS <= rows_of_page(session, before=before) <= 4 * ROWS


@pytest.mark.parametrize("wanted", [Filter(type="noop"), Filter(states=("done",)), Filter(by="drover_frontend")])
def test_filter_that_finds_most_reads_what_it_shows(session: Session, wanted: Filter) -> None:
    assert rows_of_page(session, wanted) <= 4 * ROWS


@pytest.mark.parametrize("wanted", [Filter(states=("blocked",)), Filter(type="x"), Filter(states=("running",))])
def test_filter_that_finds_nothing_reads_the_newest_job_alone_p11(session: Session, wanted: Filter) -> None:
    assert rows_of_page(session, wanted) <= 1


@pytest.mark.parametrize("wanted", [ALL, Filter(type="noop"), Filter(states=("done", "failed"), queue="default")])
def test_number_of_jobs_is_shown_without_reading_them(session: Session, wanted: Filter) -> None:
    with reading(session):
        before = rows_read(session)
        assert counted(session, wanted) == JOBS
        assert rows_read(session) - before <= 1


def test_text_that_is_in_no_job_is_looked_for_in_some_p11(session: Session) -> None:
    assert rows_of_page(session, Filter(text="nothing is like this")) <= MOST_WITH_TEXT + ZONE
