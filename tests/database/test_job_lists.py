"""Lists show what they would if they read all jobs, and read few (man/decisions/0081)."""

import json
import random
from collections import Counter
from typing import Any, Final

import psycopg
import pytest

from scheduler.cli.database_session import Session
from scheduler.cli.job_lists import MOST, MOST_WITH_TEXT, ZONE, find, reading
from scheduler.web.job_filter import Filter
from tests.job_list_tools import (
    FILL,
    NO_FILTER,
    NO_TRIGGERS,
    SORTS,
    TRIGGERS,
    all_jobs,
    any_jobs,
    page,
    page_and_model,
    rows_read,
)
from tests.queue_tools import Desk
from tests.role_tools import PLAIN, Login
from tests.schema_tools import fetch_one

Connection = psycopg.Connection[Any]
SPARSE: Final = 60  # zones of a queue that has a job or two in each
FILTERS: Final[dict[str, dict[str, Any]]] = {
    "none": {}, "type": {"types": ["b"]}, "types": {"types": ["b", "d"]}, "queue": {"queues": ["other"]},
    "host": {"hosts": ["alpha"]}, "submitter": {"submitters": ["Web"]}, "group": {"groups": [1]},
    "state": {"states": ["failed"]}, "states": {"states": ["queued", "claimed", "failed", "held"]},
    "in hand": {"states": ["claimed", "running"]}, "since": {"since": "2026-01-20"}, "before": {"before": 3 * ZONE + 9},
    "no commands": {"with_ended_commands": False}, "no hidden": {"with_hidden": False},
    "type and state": {"types": ["a"], "states": ["queued", "blocked"]}, "nothing": {"submitters": ["nobody"]},
}  # fmt: skip

CHANGES: Final = """
update drover.jobqueue set jq_priority = 'A' where jq_pk % 3 = 0 and jq_pk > 99;
update drover.jobqueue set jq_state = 'queued', jq_starttime = null, jq_endtime = null, jq_end_bits = 0
 where jq_state in ('held', 'failed') and jq_pk > 99;
delete from drover.jobqueue where jq_pk > 99 and jq_pk % 4 = 0 and jq_state = 'done'
"""


def fill(queue: Connection, jobs: list[dict[str, Any]]) -> None:
    """Insert jobs in any states, and count them."""
    queue.execute(NO_TRIGGERS)
    queue.execute(FILL, (json.dumps(jobs),))
    queue.execute(TRIGGERS)
    queue.execute("select drover.recount(0, 4096)")


@pytest.fixture
def mixed(queue: Connection, desk: Desk) -> Session:
    """Return a session on 300 jobs of all kinds in 12 zones; some are in hand, by a record or by their row."""
    queue.execute("insert into drover.job (job_name, job_hidden) values ('shown', false), ('hidden', true)")
    queue.execute("insert into drover.queue (queue_name, queue_group) values ('other', 'default')")
    queue.execute("insert into drover.jobqueue (jq_type) select 'a' from generate_series(1, 8)")
    desk.claim()
    queue.execute("insert into drover.jobqueue (jq_type) select 'a' from generate_series(1, 4)")
    desk.claim_and_mark()
    fill(queue, any_jobs(1, random.Random(1).sample(range(100, 12 * ZONE), 300)))
    queue.execute("insert into drover.hidden select jq_pk from drover.jobqueue where jq_pk %% 9 = 0", ())
    return Session(queue)


@pytest.mark.parametrize("name", FILTERS)
def test_a_page_is_what_it_would_be_if_all_jobs_were_read_p11(mixed: Session, name: str) -> None:
    pages = {
        (sort, limit): page_and_model(mixed, limit, **FILTERS[name], sort=sort)
        for sort in SORTS for limit in (1, 7, 60, None)
    }  # fmt: skip
    assert {which: pages[which][0] for which in pages} == {which: pages[which][1] for which in pages}


@pytest.mark.parametrize("name", FILTERS)
def test_a_page_is_right_while_changes_are_not_added_up_p11(mixed: Session, name: str) -> None:
    mixed.connection.execute("select drover.add_up_changes(1000000)")
    mixed.connection.execute(CHANGES)
    pages = {sort: page_and_model(mixed, 20, **FILTERS[name], sort=sort) for sort in SORTS}
    assert {sort: pages[sort][0] for sort in pages} == {sort: pages[sort][1] for sort in pages}


def test_pages_follow_each_other_without_a_gap_p11(mixed: Session) -> None:
    jobs, before = [], None
    while numbers := page(mixed, 37, before=before)[0]:
        jobs += numbers
        before = numbers[-1]
    assert jobs == all_jobs(mixed)


@pytest.mark.parametrize(
    "wanted",
    [
        Filter(), Filter(type="a"), Filter(queue="other"), Filter(host="beta"), Filter(by="web"), Filter(text="7"),
        Filter(states=("queued", "claimed", "done")), Filter(group=1), Filter(type="a", by="postgres"),
        Filter(type="command"),
    ],
)  # fmt: skip
def test_the_dashboard_counts_the_jobs_that_it_lists_p11(mixed: Session, wanted: Filter) -> None:
    with reading(mixed):
        jobs = find(mixed.with_fellows(), wanted.wanted(None), None).jobs
        listed = Counter(row["state"] for row in mixed.records("page_of_jobs", jobs=jobs))
    assert {row["state"]: row["jobs"] for row in mixed.records("count_jobs", **wanted.parameters())} == listed


# ---- what roles see


@pytest.mark.parametrize("role", ["drover_operator", "drover_readonly", "drover_frontend", "drover_tenant"])
def test_a_role_is_listed_what_it_may_see_p11(login: Login, role: str) -> None:
    by = [job | {"submitter": "drover_frontend"} for job in any_jobs(3, list(range(1, 30000, 700)))]
    fill(login(""), by + any_jobs(4, list(range(2, 30000, 900))))
    session = Session(login(role))
    view = {"all": "jobs", "masked": "jobs_masked", "own": "my_jobs"}[session.access["jobqueue"]]
    visible = [pk for (pk,) in session.connection.execute(f"select jq_pk from drover.{view} order by 1 desc".encode())]
    assert page(session)[0] == visible
    assert page(session, sort="ran", states=["done"])[0] == [
        job for job in page(session, sort="ran")[0] if job in page(session, states=["done"])[0]
    ]


def test_a_tenant_is_listed_what_others_share_with_it_p11(login: Login, tenants: list[Connection]) -> None:
    ours, theirs = tenants
    jobs = [fetch_one(connection, PLAIN) for connection in (theirs, ours, theirs)]
    theirs.execute("select drover.job_share(%s, %s)", (jobs[0], ours.info.user))
    session = Session(ours)
    with reading(session):
        assert sorted(find(session.with_fellows(), NO_FILTER, 10).jobs) == jobs[:2]
        assert find(session, NO_FILTER, 10).jobs == jobs[1:2]


# ---- few such jobs in many places


@pytest.fixture
def sparse(queue: Connection) -> Session:
    """Return a session on a job in each of many zones; that is all that a zone need hold to be read."""
    fill(queue, [job | {"type": "a", "state": "done"} for job in any_jobs(2, [n * ZONE + 1 for n in range(SPARSE)])])
    return Session(queue)


def test_a_search_of_too_many_zones_stops_and_can_go_on_p11(sparse: Session) -> None:
    jobs, found = page(sparse, SPARSE)
    assert found.down_to == (SPARSE - 1 - -(-MOST // ZONE)) * ZONE + ZONE
    assert jobs == [job for job in all_jobs(sparse) if job >= found.down_to]
    assert jobs + page(sparse, SPARSE, before=found.down_to)[0] == all_jobs(sparse)


def test_a_search_for_a_text_reads_fewer_p11(sparse: Session) -> None:
    jobs, found = page(sparse, 10, text="nothing is like this")
    assert (jobs, found.down_to) == ([], (SPARSE - 1 - -(-MOST_WITH_TEXT // ZONE)) * ZONE + ZONE)


def test_the_number_of_a_job_is_found_as_a_text_wherever_it_is_p11(sparse: Session) -> None:
    assert ZONE + 1 in page(sparse, 10, text=str(ZONE + 1))[0]


def test_a_sort_that_did_not_read_all_that_may_come_first_says_so_p11(sparse: Session) -> None:
    assert not page(sparse, SPARSE, sort="ran")[1].is_whole
    jobs, found = page(sparse, None, sort="ran")
    assert (jobs, found.is_whole) == (all_jobs(sparse, sort="ran"), True)


# ---- what a page reads


@pytest.fixture(scope="module")
def sizes() -> tuple[int, int]:
    return 3, 30


COMMON: Final = """
insert into drover.jobqueue (jq_pk, jq_type, jq_queue, jq_host, jq_submitter, jq_state, jq_queued, jq_starttime,
                             jq_endtime, jq_end_bits, jq_priority)
overriding system value
select n, case when n %% 500 = 0 then 'rare' else 'type' || n %% 20 end, case when n %% 3 = 0 then 'other' end,
       case when n %% 4 = 0 then 'alpha' end, 'user' || n %% 5,
       case when n %% 50 = 0 then 'failed' else 'done' end::drover.job_state,
       q, q + lengths, q + 2 * lengths, case when n %% 50 = 0 then 2 else 1 end, chr(97 + n %% 26)
  from generate_series(1, %s) n,
       lateral (select '2026-01-01'::timestamptz + n * interval '1 s' as q,
                       (1 + n / 4096 * 7 %% 31) * (n %% 100) * interval '1 s' as lengths) l
"""
READ: Final[dict[str, dict[str, Any]]] = {
    "none": {}, "type": {"types": ["type3"]}, "rare type": {"types": ["rare"]}, "queue": {"queues": ["other"]},
    "host": {"hosts": ["alpha"]}, "submitter": {"submitters": ["user2"]}, "nobody": {"submitters": ["nobody"]},
    "state": {"states": ["failed"]}, "in hand": {"states": ["claimed", "running"]}, "no state": {"states": ["blocked"]},
    "group": {"groups": [7]}, "since": {"since": "2030-01-01"}, "before": {"before": 9000},
    **{sort: {"sort": sort} for sort in SORTS if sort != "job"},
}  # fmt: skip


def rows_of_page(session: Session, wanted: dict[str, Any]) -> int:
    with reading(session):
        before = rows_read(session)
        found = find(session, NO_FILTER | wanted, 20)
        session.rows("list_jobs", jobs=found.jobs, sort=wanted.get("sort", "job"), limit=20)
        return rows_read(session) - before


def test_a_page_reads_no_more_beside_ten_times_as_many_jobs_p11(queue: Connection, sizes: tuple[int, int]) -> None:
    read: list[dict[str, int]] = []
    for zones in sizes:
        queue.execute("truncate drover.jobqueue cascade")
        queue.execute(NO_TRIGGERS)
        queue.execute(COMMON, (zones * ZONE,))
        queue.execute(TRIGGERS)
        queue.execute("select drover.recount(0, 4096)")
        read.append({name: rows_of_page(Session(queue), wanted) for name, wanted in READ.items()})
    few, many = read
    assert {name: (few[name], many[name]) for name in READ if many[name] > 3 * max(few[name], 100)} == {}
