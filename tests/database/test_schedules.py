"""Schedules on real Postgres: each start once, whoever makes it and whatever is cut off; what is refused when set."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege, InvalidParameterValue

from scheduler.daemon.schedule_starts import start_due
from scheduler.drivers.loop import Loop, Steps
from tests.connection_tools import OTHER, OWNER, PATIENT, QUERIES, ask, opened, rows_of, take_group
from tests.role_tools import Login
from tests.schema_tools import Connection, fetch_all, fetch_one

ADD: Final = """
insert into drover.schedule (schedule_name, schedule_every, schedule_at, schedule_cron, schedule_job, schedule_next,
                             schedule_overlap, schedule_catch_up)
values (%(name)s, %(every)s, %(at)s, %(cron)s, %(job)s, now() - %(late)s::interval, %(overlap)s, %(catch_up)s)
"""
JOB: Final = {"jq_type": "a", "jq_args": "x"}
GRAPH: Final = {
    "group": {"job_name": "nightly", "job_priority": 100},
    "jobs": [
        {"name": "load", "jq_type": "a"},
        {"name": "mail", "jq_type": "a", "after": ["load", "sum"]},
        {"name": "sum", "jq_type": "a", "after": ["load"]},
    ],
}
STARTS: Final = "select start_schedule, cardinality(start_jobs), start_text from drover.schedule_start order by 1, 2, 3"
END: Final = """
update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2
"""
EDGES: Final = """
select c.jq_args || '<' || p.jq_args from drover.jobdepends
  join drover.jobqueue c on c.jq_pk = jdep_jq_fk join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk order by 1
"""

LAST: Final = """
select start_due_at = schedule_last, start_jobs = schedule_jobs from drover.schedule_start, drover.schedule
"""
IN_GROUP: Final = """
select jq_args, jq_unmet, jq_urgent, job_name from drover.jobqueue join drover.job on job_pk = jq_job_fk order by 1
"""
OLD_STARTS: Final = """
insert into drover.schedule_start (start_schedule, start_due_at, start_at)
select 's', t, t from generate_series(now() - '9 days'::interval, now() - '2 days'::interval, '1 day') t
"""

Pass = Callable[..., float | None]


def add(connection: Connection, name: str = "s", job: object = JOB, **values: object) -> None:
    """Add a schedule whose next start has just come, `every` hour unless other times are given."""
    given: dict[str, object] = {"every": None, "at": None, "cron": None, "late": "0", "overlap": "queue"}
    given |= {"name": name, "job": json.dumps(job), "catch_up": "one"} | values
    if not (given["at"] or given["cron"] or given["every"]):
        given["every"] = "1 hour"
    connection.execute(ADD.encode(), given)


@pytest.fixture
def look(database: str) -> Iterator[Pass]:
    """Yield a function that makes one pass of the daemon that owns the group, or of another owner."""
    take_group(database)
    loop = Loop()
    connection = opened(loop, database, settings=PATIENT)

    def make_pass(owner: str = OWNER) -> float | None:
        def ask_query(query: str, /, **values: object) -> Steps[Any]:
            yield from ()
            values = {"group": "default", "owner": owner, **values}
            return rows_of(ask(loop, connection, QUERIES[query], **values))

        steps = start_due(ask_query)
        with pytest.raises(StopIteration) as end:
            next(steps)
        return end.value.value  # type: ignore[no-any-return]

    yield make_pass
    connection.close()
    loop.close()


def test_a_start_queues_the_job_once_and_moves_the_schedule_on_c20(queue: Connection, look: Pass) -> None:
    add(queue)
    assert look() == pytest.approx(3600, abs=5)
    assert look() == pytest.approx(3600, abs=5)
    assert fetch_all(queue, "select jq_type, jq_args, jq_state::text from drover.jobqueue") == [("a", "x", "queued")]
    query = (
        "select start_due_at = schedule_last, start_jobs = schedule_jobs from drover.schedule_start, drover.schedule"
    )
    assert fetch_all(queue, query) == [(True, True)]


def test_the_next_start_is_computed_kept_and_shown_c48_c50(queue: Connection, look: Pass) -> None:
    add(queue, late=None, cron="30 2 * * *")
    assert fetch_one(queue, "select schedule_next from drover.schedule") is None
    look()
    query = "select to_char(schedule_next at time zone 'UTC', 'HH24:MI'), schedule_next > now() from drover.schedule"
    assert fetch_all(queue, query) == [("02:30", True)]
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 0


def test_a_schedule_of_one_instant_is_over_after_it_c48(queue: Connection, look: Pass) -> None:
    add(queue, at="2001-01-01")
    assert look() is None
    query = "select schedule_next, schedule_due, schedule_reason, cardinality(schedule_jobs) from drover.schedule"
    assert fetch_all(queue, query) == [(None, None, "it does not start again", 1)]


def test_two_owners_make_a_start_once_c20_c22(database: str, queue: Connection) -> None:
    add(queue)
    was = fetch_one(queue, "select schedule_next from drover.schedule")
    start = "select * from drover.start_schedule('s', %s, now() + '1 h', now() + '1 h', null, array[%s::timestamptz])"
    with psycopg.connect(database) as first, psycopg.connect(database, autocommit=True) as second:
        assert first.execute(start, (was, was)).fetchone() == (True, 1, None)
        assert second.execute(start, (was, was)).fetchone() == (False, 0, None)  # locked: the other one may not commit
        first.commit()
        assert second.execute(start, (was, was)).fetchone() == (False, 0, None)
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 1


def test_an_owner_that_has_lost_the_group_starts_nothing_c20(queue: Connection, look: Pass) -> None:
    add(queue)
    look(OTHER)
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 0
    look(OWNER)
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 1


def test_a_crash_before_the_commit_leaves_all_or_nothing_c20(database: str, queue: Connection, look: Pass) -> None:
    add(queue)
    was = fetch_one(queue, "select schedule_next from drover.schedule")
    start = "select * from drover.start_schedule('s', %s, now() + '1 h', now() + '1 h', null, array[%s::timestamptz])"
    with psycopg.connect(database) as daemon:
        daemon.execute(start, (was, was))
        queue.execute("select pg_terminate_backend(%s)", (daemon.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            daemon.commit()
    seen = "select count(*) from drover.jobqueue union all select count(*) from drover.schedule_start"
    assert fetch_all(queue, seen) == [(0,), (0,)]
    look()
    assert fetch_all(queue, seen) == [(1,), (1,)]


def test_the_same_start_is_not_made_again_after_the_clock_was_set_back_c20(queue: Connection, look: Pass) -> None:
    add(queue)
    look()
    queue.execute("update drover.schedule set schedule_next = schedule_last, schedule_due = schedule_last")
    look()
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 1


def test_a_start_that_the_clock_put_far_ahead_is_computed_anew_when_it_is_back(queue: Connection, look: Pass) -> None:
    add(queue)
    look()
    queue.execute("""update drover.schedule set schedule_next = now() + '1 year', schedule_due = now() + '1 year',
                     schedule_computed = now() + '364 days'""")
    look()
    assert fetch_one(queue, "select schedule_next < now() + interval '1 hour' from drover.schedule")
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 1


@pytest.mark.parametrize(("catch_up", "starts"), [("one", 1), ("all", 3), ("none", 0)])
def test_starts_missed_while_no_scheduler_was_there_follow_the_catch_up_c49(
    queue: Connection, look: Pass, catch_up: str, starts: int
) -> None:
    add(queue, late="2 hours", catch_up=catch_up)
    queue.execute("update drover.scheduler_group set group_taken_at = now()")
    look()
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == starts


# ---- what a schedule queues


def test_a_schedule_queues_a_group_with_edges_c20(queue: Connection, look: Pass) -> None:
    add(queue, job={**GRAPH, "jobs": [{**job, "jq_args": job["name"]} for job in GRAPH["jobs"]]})  # type: ignore[index]
    look()
    assert [edge for (edge,) in fetch_all(queue, EDGES)] == ["mail<load", "mail<sum", "sum<load"]
    expected = [("load", 0, True, "nightly"), ("mail", 2, True, "nightly"), ("sum", 1, True, "nightly")]
    assert fetch_all(queue, IN_GROUP) == expected


def test_a_schedule_queues_a_command_r52(queue: Connection, look: Pass) -> None:
    add(queue, job={"jq_type": "command", "jq_args": "flush 30"})
    look()
    assert fetch_all(queue, "select jq_type, jq_args from drover.jobqueue") == [("command", "flush 30")]


def test_a_start_is_skipped_while_the_one_before_works(queue: Connection, look: Pass) -> None:
    add(queue, overlap="skip", late="2 hours", catch_up="all")
    look()
    job = fetch_one(queue, "select jq_pk from drover.jobqueue")
    skipped = ("s", 0, f"skipped: job {job} of the start before has not ended")
    assert fetch_all(queue, STARTS) == [skipped, skipped, ("s", 1, None)]
    queue.execute(END.encode())
    queue.execute("update drover.schedule set schedule_next = now(), schedule_due = now()")
    look()
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 2


@pytest.mark.parametrize(("overlap", "jobs"), [("queue", 2), ("skip", 1)])
def test_a_start_by_hand_is_skipped_only_where_overlaps_are(queue: Connection, overlap: str, jobs: int) -> None:
    add(queue, overlap=overlap)
    assert [fetch_one(queue, "select started from drover.run_schedule('s')") for _ in range(2)] == [True, jobs == 2]
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == jobs


def test_a_start_waits_for_the_one_before_however_that_ends(queue: Connection, look: Pass) -> None:
    add(queue, late="1 hour", catch_up="all")
    look()
    assert fetch_all(queue, "select jq_unmet from drover.jobqueue order by jq_pk") == [(0,), (1,)]
    assert fetch_all(queue, "select jdep_depends_bits from drover.jobdepends") == [(3,)]


def test_a_job_that_is_refused_at_its_start_holds_up_no_other_schedule(queue: Connection, look: Pass) -> None:
    add(queue, "bad", {**JOB, "jq_unique_key": "k"})
    add(queue, "good")
    queue.execute("insert into drover.jobqueue (jq_type, jq_unique_key) values ('a', 'k')")
    look()
    (bad, good) = fetch_all(queue, STARTS)
    assert good == ("good", 1, None)
    assert bad[2].startswith("not queued: duplicate key value")
    assert fetch_one(queue, "select schedule_next > now() from drover.schedule where schedule_name = 'bad'")


def test_a_schedule_that_is_locked_is_tried_again_and_holds_up_no_other(
    database: str, queue: Connection, look: Pass
) -> None:
    add(queue, "bad")
    add(queue, "good")
    with psycopg.connect(database) as other:
        other.execute("select from drover.schedule where schedule_name = 'bad' for update")
        assert look() == 1.0
        assert [name for name, _, _ in fetch_all(queue, STARTS)] == ["good"]
    look()
    assert [name for name, _, _ in fetch_all(queue, STARTS)] == ["bad", "good"]


def test_starts_of_long_ago_are_forgotten(queue: Connection, look: Pass) -> None:
    add(queue)
    queue.execute(OLD_STARTS.encode())
    look()
    assert fetch_one(queue, "select count(*) from drover.schedule_start") == 1


# ---- what is refused when it is set


def test_a_schedule_whose_key_another_job_has_is_accepted(database: str, queue: Connection) -> None:
    key = {"jq_unique_key": "key"}
    with psycopg.connect(database) as front_end:
        front_end.execute("insert into drover.jobqueue (jq_type, jq_unique_key) values ('a', 'key')")
        add(queue, "while-it-is-inserted", JOB | key)
        front_end.commit()
    add(queue, "while-it-waits", JOB | key)
    with pytest.raises(CheckViolation, match="duplicate key"):
        add(queue, "twice", {"jobs": [JOB | key, JOB | key]})


def test_a_schedule_whose_queue_is_full_or_locked_is_accepted(database: str, queue: Connection) -> None:
    queue.execute("insert into drover.queue (queue_name, queue_group, queue_max_length) values ('q', 'default', 1)")
    assert fetch_one(queue, "select drover.install_routes()") is None
    with psycopg.connect(database) as front_end:
        front_end.execute("insert into drover.jobqueue (jq_type, jq_queue) values ('a', 'q')")
        add(queue, "locked", JOB | {"jq_queue": "q"})
        front_end.commit()
    add(queue, "full", JOB | {"jq_queue": "q"})
    assert fetch_one(queue, "select count(*) from drover.schedule") == 2


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ({}, "needs a jq_type"),
        ([], "is one JSON object"),
        ({"jq_type": "a", "jq_name": "a.b"}, "has no 'jq_name': there are jq_type"),
        ({"jq_type": "a", "jq_state": "done"}, "has no 'jq_state'"),
        ({"jq_type": "a", "jq_submitter": "postgres"}, "has no 'jq_submitter'"),
        ({"jq_type": "a", "jq_priority": "?"}, "jobqueue_jq_priority_check"),
        ({"jq_type": "a", "jq_retries": "many"}, "invalid input syntax"),
        ({"jq_type": "a", "jq_key": "id"}, "jobqueue_key_needs_sql"),
        ({"jq_type": "cleanup"}, "a clean-up comes from"),
        ({"jq_type": "command", "jq_args": "fly 9"}, "no such command: 'fly'"),
        ({"jq_type": "command"}, "no such command"),
        ({"jq_type": "command", "jq_args": "schedule-run s"}, "a schedule runs no other one"),
        ({"jq_type": "command", "jq_args": "schedule-run  s", "jq_urgent": True}, "a schedule runs no other one"),
        ({"jobs": []}, "1 to 1,000 jobs"),
        ({"jobs": 7}, "1 to 1,000 jobs"),
        ({"jobs": [7]}, "a job of a group is an object"),
        ({"jobs": [{"jq_type": "a", "after": ["b"]}]}, "no job of the group is called 'b'"),
        ({"jobs": [{"jq_type": "a", "name": "b", "after": ["b"]}]}, "jobdepends_not_on_itself"),
        ({"jobs": [{"jq_type": "a", "name": "b"}, {"jq_type": "a", "name": "b"}]}, "two jobs of the group are called"),
        ({"jobs": [{"jq_type": "command", "jq_args": "poll"}]}, "a command waits for nothing"),
        ({"jobs": [JOB], "jq_type": "a"}, 'a group of jobs has "jobs"'),
        ({"jobs": [JOB], "group": {"job_user": "root"}}, 'a group of jobs has "jobs"'),
        (
            {"jobs": [{"jq_type": "a", "name": "b", "after": ["c"]}, {"jq_type": "a", "name": "c", "after": ["b"]}]},
            "that would be a cycle",
        ),
    ],
)
def test_a_job_that_the_queue_would_refuse_is_refused_when_it_is_set(queue: Connection, job: object, told: str) -> None:
    with pytest.raises(CheckViolation) as refused:
        add(queue, job=job)
    assert told in str(refused.value)
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 0


@pytest.mark.parametrize("job", [{"jq_type": "a version=2"}, {"jobs": [{"jq_type": "a version=2"}]}])
def test_a_job_that_asks_for_attributes_is_looked_at_when_it_starts_f154(
    queue: Connection, look: Pass, job: object
) -> None:
    add(queue, job=job)
    look()
    reason = fetch_one(queue, "select schedule_reason from drover.schedule")
    assert reason == "not queued: no agent type has the attributes of a version=2: group default has no a"


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../../etc/passwd", "UTC; drop table x"])
def test_an_unknown_zone_is_refused_when_it_is_set(queue: Connection, zone: str) -> None:
    add(queue)
    with pytest.raises(InvalidParameterValue, match="time zone"):
        queue.execute("update drover.schedule set schedule_zone = %s", (zone,))


@pytest.mark.parametrize(
    "times",
    [
        {"cron": "* * * *"},
        {"cron": "* * * * * *"},
        {"cron": "@daily", "every": "1 hour"},
        {"every": "0.5 s"},
        {"every": "-1 h"},
        {"at": "infinity"},
        {"at": "4713-01-01 BC"},
        {"at": "1899-12-31"},
        {"at": "9000-01-02"},
        {"every": "1 hour", "late": "200 years"},
        {"every": "1 hour", "late": "-10000 years"},
        {"every": "1 hour", "catch_up": "some"},
        {"every": "1 hour", "overlap": "run"},
        {"every": "1 hour", "name": "a b"},
    ],
)
def test_times_that_cannot_be_are_refused_when_they_are_set(queue: Connection, times: dict[str, object]) -> None:
    with pytest.raises(CheckViolation):
        add(queue, **times)  # type: ignore[arg-type]


@pytest.mark.parametrize("next_start", ["infinity", "-infinity", "0001-01-01", "4713-01-01 BC"])
def test_no_next_start_stops_the_other_schedules_c20(login: Login, next_start: str) -> None:
    given = {"name": "s", "every": "1 h", "job": json.dumps(JOB), "next": next_start}
    with pytest.raises(CheckViolation, match="schedule_starts_are_dates"):
        login("drover_operator").execute(
            """insert into drover.schedule (schedule_name, schedule_every, schedule_job, schedule_next)
               values (%(name)s, %(every)s, %(job)s, %(next)s)""",
            given,
        )


def test_the_earliest_start_that_is_let_in_is_read_c20(queue: Connection, look: Pass) -> None:
    add(queue, late=None, every="100 years")
    queue.execute("update drover.schedule set schedule_next = '1900-01-01 UTC', schedule_due = '1900-01-01 UTC'")
    queue.execute("update drover.schedule set schedule_from = schedule_next - schedule_every")
    look()
    assert fetch_one(queue, "select schedule_next > now() from drover.schedule")


def test_an_expression_that_got_into_the_table_wrong_is_shown_and_starts_nothing(queue: Connection, look: Pass) -> None:
    add(queue, cron="61 * * * *", late=None)
    assert look() is None
    assert "wrong minute, which is 0-59" in str(fetch_one(queue, "select schedule_reason from drover.schedule"))


def test_a_schedule_that_is_switched_off_starts_nothing_and_begins_anew_when_on(queue: Connection, look: Pass) -> None:
    add(queue, late="3 hours")
    queue.execute("update drover.schedule set schedule_enabled = false")
    assert look() is None
    queue.execute("update drover.schedule set schedule_enabled = true")
    look()
    assert fetch_one(queue, "select schedule_next > now() from drover.schedule")
    assert fetch_one(queue, "select count(*) from drover.jobqueue") == 0


# ---- rights


@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "readonly", "msq", "agentdb"])
def test_no_front_end_adds_schedules(login: Login, role: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        add(login(f"drover_{role}"))
    assert isinstance(refused.value, InsufficientPrivilege | psycopg.errors.ReadOnlySqlTransaction)


@pytest.mark.parametrize("role", ["frontend", "frontend_sql", "readonly", "operator"])
def test_only_a_scheduler_starts_them(login: Login, role: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        login(f"drover_{role}").execute("select drover.start_schedule('s', null, null, null, null, '{}')")


def test_jobs_belong_to_the_role_that_added_the_schedule_and_edges_too(login: Login) -> None:
    add(login("drover_operator"), job=GRAPH)
    add(login("drover_operator"), "c", {"jq_type": "command", "jq_args": "poll"})
    daemon = login("drover_scheduler")
    start = """select is_moved, started, said from drover.schedule, drover.start_schedule(
                 schedule_name, schedule_next, null, null, null, array[schedule_next, schedule_next + '1 s'])"""
    assert fetch_all(daemon, start) == [(True, 2, None), (True, 2, None)]
    query = "select distinct jq_submitter, job_user from drover.jobqueue left join drover.job on job_pk = jq_job_fk"
    assert set(fetch_all(login(""), query)) == {("drover_operator", "drover_operator"), ("drover_operator", None)}
    assert (
        fetch_one(login(""), "select count(*) from drover.jobdepends") == 3 + 3 + 3
    )  # two starts, one behind the other


def test_a_scheduler_forges_no_schedule(login: Login) -> None:
    add(login("drover_operator"))
    with pytest.raises(InsufficientPrivilege):
        login("drover_scheduler").execute("update drover.schedule set schedule_submitter = 'postgres'")
