"""Jobs are counted by what they are, exactly at every commit, and where they are is known (man/decisions/0074)."""

from typing import Any

import psycopg
import pytest

from scheduler.model.queue_requests import EndAndClaim
from tests.connection_tools import OWNER
from tests.job_count_tools import jobs_out_of_bounds, wrong_counts
from tests.queue_tools import Desk, end
from tests.role_tools import Login

Connection = psycopg.Connection[Any]

COUNTS = "select type, state, sum(jobs)::int from drover.job_counts group by 1, 2 order by 1, 2"
TAMPERED = """
set session_replication_role = replica;
update drover.jobqueue set jq_state = 'held' where jq_pk % 3 = 0;
delete from drover.jobqueue where jq_pk % 3 = 1;
reset session_replication_role
"""


def add_up(queue: Connection) -> int:
    """Add all changes up; return how many rows were."""
    ((rows,),) = queue.execute("select drover.add_up_changes(1000000)").fetchall()
    return int(rows)


@pytest.mark.parametrize("size", [1, 31, 32, 100])
def test_one_statement_is_counted_by_groups_p11(queue: Connection, size: int) -> None:
    queue.execute("insert into drover.jobqueue (jq_type) select 'a' from generate_series(1, %s)", [size])
    assert queue.execute(COUNTS).fetchall() == [("a", "queued", size)]
    rows = queue.execute("select count(*) from drover.job_change").fetchone()
    assert rows == (size if size < 32 else 1,)


def test_all_kinds_of_new_jobs_are_counted_p11(queue: Connection) -> None:
    queue.execute("""
        insert into drover.jobqueue (jq_type, jq_state, jq_not_before, jq_unique_key, jq_urgent, jq_host)
        select 'a', case i % 3 when 0 then 'held' else 'queued' end::drover.job_state,
               case i % 5 when 0 then now() + interval '1 h' end, case i % 7 when 0 then 'k' || i end, i % 2 = 0,
               case i % 11 when 0 then 'alpha' end
          from generate_series(1, 200) i""")
    assert wrong_counts(queue) == []
    assert jobs_out_of_bounds(queue) == []


def test_plain_ends_are_counted_by_the_statement_that_ends_them_p11(queue: Connection, desk: Desk) -> None:
    queue.execute("insert into drover.jobqueue (jq_type) select 'a' from generate_series(1, 40)")
    claims = desk.claim()
    desk.ask(EndAndClaim([end(claim) for claim in claims[:30]], ()))
    assert queue.execute(COUNTS).fetchall() == [("a", "done", 30), ("a", "queued", 10)]
    assert (wrong_counts(queue), jobs_out_of_bounds(queue)) == ([], [])


def test_a_change_that_is_rolled_back_is_not_counted_p11(queue: Connection) -> None:
    with queue.transaction(force_rollback=True):
        queue.execute("insert into drover.jobqueue (jq_type) values ('a')")
    assert queue.execute(COUNTS).fetchall() == []


def test_removed_jobs_leave_no_kind_behind_p11(queue: Connection) -> None:
    queue.execute("insert into drover.jobqueue (jq_type) select 'a' || i from generate_series(1, 50) i")
    assert add_up(queue) == 50
    queue.execute("delete from drover.jobqueue")
    add_up(queue)
    assert queue.execute("select from drover.job_total union all select from drover.job_zone").fetchall() == []


def test_a_truncated_queue_has_no_jobs_p11(queue: Connection) -> None:
    queue.execute("insert into drover.jobqueue (jq_type) values ('a')")
    queue.execute("truncate drover.jobqueue cascade")
    assert queue.execute(COUNTS).fetchall() == []


def test_two_sessions_do_not_add_up_at_once_p11(database: str, queue: Connection) -> None:
    queue.execute("insert into drover.jobqueue (jq_type) values ('a')")
    with psycopg.connect(database) as other:
        assert add_up(other) == 1
        assert add_up(queue) == 0
    assert queue.execute(COUNTS).fetchall() == [("a", "queued", 1)]


def test_zones_say_where_jobs_are_p11(queue: Connection) -> None:
    queue.execute("""
        insert into drover.jobqueue (jq_pk, jq_type) overriding system value
        select i, case when i % 4096 = 7 then 'rare' else 'a' end from generate_series(1, 9000) i""")
    zones = queue.execute("select zone, jobs::int from drover.job_zones where type = 'rare' order by zone").fetchall()
    assert zones == [(0, 1), (1, 1), (2, 1)]
    assert (wrong_counts(queue), jobs_out_of_bounds(queue)) == ([], [])


def test_jobs_that_were_changed_without_triggers_are_counted_anew_p11(queue: Connection) -> None:
    queue.execute("insert into drover.jobqueue (jq_type) select 'a' from generate_series(1, 90)")
    add_up(queue)
    queue.execute(TAMPERED)
    assert wrong_counts(queue) != []
    queue.execute("select drover.recount(0, 1)")
    assert wrong_counts(queue) == []


def test_ends_that_an_older_daemon_did_not_count_are_counted_when_it_is_gone_p11(queue: Connection) -> None:
    older = "insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid,"
    older += f" scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version) values ('{OWNER}',"
    queue.execute(f"{older} 'default', 'h', 1, '', '', 1, '0')".encode())
    queue.execute("insert into drover.scheduler_group (group_name) values ('default')")
    queue.execute("update drover.scheduler_group set group_owner = %s", [OWNER])
    queue.execute("insert into drover.jobqueue (jq_type) select 'a' from generate_series(1, 90)")
    queue.execute(TAMPERED)
    assert queue.execute("select drover.recount_next(4)").fetchone() == (0,)  # it would be wrong again
    assert wrong_counts(queue) != []
    queue.execute("delete from drover.scheduler")
    while queue.execute("select drover.recount_next(1)").fetchone() != (0,):
        pass
    assert wrong_counts(queue) == []
    assert queue.execute("table drover.recount_place").fetchall() == []


def test_first_of_kind_tells_no_stranger_whether_there_are_such_jobs(login: Login, tenants: list[Connection]) -> None:
    asked = "select drover.first_of_kind('{0}', 'a', 'default', '', %s, 'queued')"
    mine, other = tenants
    mine.execute("insert into drover.jobqueue (jq_type) values ('a')")
    submitter = mine.info.user
    answers = [each.execute(asked, [submitter]).fetchone() for each in (mine, login("drover_readonly"), other)]
    assert answers == [(1,), (1,), (None,)]
