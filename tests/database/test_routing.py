"""Filters of queues on real Postgres: where jobs go, that none fails at evaluation, and what cannot be installed."""

import json
from typing import Any, Final

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from psycopg.errors import InsufficientPrivilege

from scheduler.model.queue_filters import parse_filter
from tests.filter_tools import filters
from tests.role_tools import Login
from tests.schema_tools import Connection, fetch_all, fetch_one

QUEUE: Final = """
insert into drover.queue (queue_name, queue_group, queue_priority, queue_filter, queue_route)
values (%(name)s, %(group)s, %(priority)s, %(text)s, %(route)s)
"""
DATA: Final = {
    "nodes": 8,
    "cores": "16",
    "tags": ["gpu", "big"],
    "version": "2.10",
    "on": True,
    "many": 1e300,
    "none": None,
}
ODD: Final = """
with g as (
  insert into drover.job (job_name, job_tenant, job_data)
  values ('g', 't', %s), ('list', null, '[1]'), (null, null, '5')
  returning job_pk),
j as (
  insert into drover.jobqueue (jq_type, jq_job_fk, jq_timeout, jq_variables)
  select 'a', job_pk, '100 years', '{"a": {"b": 1}, "x": null, "z": 99999999999999999999999999}' from g
  returning 1)
insert into drover.jobqueue (jq_type, jq_name, jq_host, jq_msq)
values ('ä%%_', 'ä%%_.\\', 'h', true), ('', null, null, false)
"""
EVALUATE: Final = """
select count(%s) from drover.jobqueue job left join drover.job above on job_pk = jq_job_fk
"""
ENABLED: Final = "select tgenabled <> 'D' from pg_trigger where tgname = 'jobqueue_route'"


def add(queue: Connection, name: str, text: str, priority: int = 0, zone: str = "UTC", group: str = "default") -> None:
    """Add a queue with a filter, as query `register` does."""
    route = json.dumps({"text": text, "zone": zone, "tree": parse_filter(text)})
    values = {"name": name, "group": group, "priority": priority, "text": text, "route": route}
    queue.execute(QUEUE.encode(), values)


def install(queue: Connection) -> str | None:
    """Install the filters; return what went wrong."""
    return fetch_one(queue, "select drover.install_routes()")


def insert(queue: Connection, **columns: Any) -> str:
    """Queue a job; return the queue that it is in."""
    columns = {"jq_type": "a"} | columns
    names, values = ", ".join(columns), ", ".join(f"%({name})s" for name in columns)
    query = f"insert into drover.jobqueue ({names}) values ({values}) returning jq_queue"
    return str(queue.execute(query.encode(), columns).fetchone()[0])  # type: ignore[index]


def routed(queue: Connection, text: str, **columns: Any) -> bool:
    """Return whether a filter holds for a job."""
    add(queue, "q", text)
    assert install(queue) is None
    return insert(queue, **columns) == "q"


# ---- the order of filters, the default queue, and jobs that name one


def test_of_filters_that_hold_that_of_the_highest_priority_wins_t54(queue: Connection) -> None:
    add(queue, "low", "type = 'a'", 1)
    add(queue, "high", "submitter is not null", 3)
    add(queue, "middle", "type in ('a', 'b')", 2)
    install(queue)
    assert insert(queue) == "high"
    queue.execute("update drover.queue set queue_priority = 0 where queue_name = 'high'")
    assert fetch_one(queue, "select drover.is_route_stale()")
    install(queue)
    assert insert(queue) == "middle"


def test_a_job_no_filter_holds_for_stays_in_the_default_queue_with_a_log_line_t38_t55(queue: Connection) -> None:
    add(queue, "q", "type = 'b'")
    install(queue)
    assert insert(queue) == "default"
    logged = "select jq_type, log_message from drover.log join drover.jobqueue on jq_pk = log_jq_fk"
    assert fetch_all(queue, logged) == [("a", "no filter of a queue holds for it: queue default")]


def test_a_named_queue_wins_over_filters_t58(queue: Connection) -> None:
    add(queue, "q", "type = 'a'")
    install(queue)
    assert insert(queue, jq_queue="other") == "other"
    assert insert(queue, jq_queue=None) == "q"


def test_commands_and_clean_ups_are_not_routed_t51(queue: Connection) -> None:
    add(queue, "q", "type is not null")
    install(queue)
    assert insert(queue, jq_type="command", jq_args="reload") == "None"
    assert insert(queue, jq_type="cleanup") == "default"


def test_a_job_for_a_host_goes_to_queues_of_that_hosts_group_only_t43_t52(queue: Connection) -> None:
    queue.execute("insert into drover.host (host_name, host_group) values ('far', 'others'), ('near', 'default')")
    queue.execute("insert into drover.queue (queue_name, queue_group) values ('others', 'others')")
    add(queue, "ours", "type = 'a'", 2)
    add(queue, "theirs", "type = 'a'", 1, group="others")
    install(queue)
    assert [insert(queue, jq_host=host) for host in ("far", "near", None)] == ["theirs", "ours", "ours"]
    assert insert(queue, jq_host="far", jq_queue="ours") == "ours"


def test_jobs_of_one_statement_go_each_to_its_queue_and_are_claimable_there_t54(queue: Connection) -> None:
    add(queue, "q", "type = 'b'")
    install(queue)
    queue.execute(
        "insert into drover.jobqueue (jq_type) select (array['a', 'b'])[1 + n % 2] from generate_series(1, 80) n"
    )
    tokens = (
        "select claim_queue, claim_type, sum(coalesce(cardinality(claim_jobs), 1)) from drover.claimable group by 1, 2"
    )
    assert sorted(fetch_all(queue, tokens)) == [("default", "a", 40), ("q", "b", 40)]


# ---- the attributes


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("type = 'a'", {}),
        ("name = 'a.1'", {"jq_name": "a.1"}),
        ("submitter = 'somebody'", {"jq_submitter": "somebody"}),
        ("host = 'alpha'", {"jq_host": "alpha"}),
        ("priority between 'a' and 'c'", {"jq_priority": "b2"}),
        ("mode = 'manual'", {"jq_mode": "manual"}),
        ("urgent", {"jq_urgent": True}),
        ("sql", {"jq_msq": True}),
        ("minutes > 59", {"jq_timeout": "1 hour"}),
        ("data.Nodes >= 8 and data.Nodes <> '9'", {"jq_variables": '{"Nodes": 8}'}),
        ("data.cores > 9", {"jq_variables": '{"cores": "16"}'}),
        ("not data.cores > 9 or data.cores is not null", {"jq_variables": '{"cores": "many"}'}),
        ("data.version like '2.%'", {"jq_variables": '{"version": "2.10"}'}),
        ("""data.tags like '%"gpu"%'""", {"jq_variables": '{"tags": ["gpu", "big"]}'}),
    ],
)
def test_each_attribute_of_a_job_can_be_asked_for_t52(queue: Connection, text: str, columns: dict[str, Any]) -> None:
    assert routed(queue, text, **columns)


@pytest.mark.parametrize(
    "text", ["tenant = 'math'", "group_name = 'g'", "group_priority = 7", "data.system = 'cluster'", "data.memory < 99"]
)
def test_each_attribute_of_a_job_group_can_be_asked_for_t52(queue: Connection, text: str) -> None:
    query = """
        insert into drover.job (job_name, job_tenant, job_priority, job_data) values ('g', 'math', 7, %s)
        returning job_pk"""
    data = json.dumps({"system": "cluster", "memory": 64})
    ((group,),) = queue.execute(query.encode(), [data]).fetchall()
    assert routed(queue, text, jq_job_fk=group)
    assert insert(queue) == "default"


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("UTC", "hour = {0:%H} and date = '{0:%Y-%m-%d}' and weekday = {1} and time = '{0:%H:%M}'"),
        ("Pacific/Kiritimati", "hour = {0:%H} and date = '{0:%Y-%m-%d}' and weekday = {1}"),
    ],
)
def test_the_time_of_day_is_that_of_the_queues_zone_whatever_the_session_has_t52(
    queue: Connection, zone: str, text: str
) -> None:
    with queue.transaction():
        now = fetch_one(queue, f"select now() at time zone '{zone}'")
        queue.execute("set local timezone = 'America/New_York'")
        add(queue, "q", text.format(now, now.isoweekday()), zone=zone)
        install(queue)
        assert insert(queue) == "q"


# ---- what cannot be, and what cannot fail


@pytest.mark.slow
def test_no_filter_that_is_understood_fails_at_evaluation_t51_t56(queue: Connection) -> None:
    queue.execute(ODD.encode(), [json.dumps(DATA)])

    @settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
    @given(filters())
    def evaluates(text: str) -> None:
        sql = fetch_one(queue, "select drover.filter_sql(%s::jsonb, 'Europe/Berlin')", json.dumps(parse_filter(text)))
        assert fetch_one(queue, EVALUATE.replace("%s", sql).replace("%", "%%")) is not None

    evaluates()


@pytest.mark.parametrize(
    "tree",
    [
        '"type"', "[]", "{}", "null", '["and"]', '["select", "1"]', '["column", "jq_type; drop table x"]',
        '["number", "1); drop table x; --"]', '["boolean", "1=1"]', '["data", "x", "int)"]', '["=", ["pg_sleep", "9"]]',
        '[["="]]', '["text"]', '["not", ["column", "secret"]]',
    ],
)  # fmt: skip
def test_a_tree_off_the_list_is_not_printed_whoever_wrote_it_t51(queue: Connection, tree: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="no tree of a filter"):
        queue.execute("select drover.filter_sql(%s::jsonb, 'UTC')", [tree])


def test_quotes_in_literals_stay_in_them_t51(queue: Connection) -> None:
    assert routed(queue, """type = 'it''s \\' and data."k'\\" is null""", jq_type="it's \\")


def test_filters_that_cannot_be_installed_change_nothing_and_the_reason_is_told_t56(queue: Connection) -> None:
    add(queue, "q", "type = 'a'")
    assert install(queue) is None
    queue.execute("update drover.queue set queue_route = jsonb_set(queue_route, '{zone}', '\"Mars/Crater\"')")
    assert fetch_one(queue, "select drover.is_route_stale()")
    assert "Mars/Crater" in str(install(queue))
    assert insert(queue) == "q"


def test_a_filter_that_fails_counts_as_false_and_is_logged_t56(queue: Connection) -> None:
    add(queue, "q", "type = 'a'")
    install(queue)
    body = "select case when 1 / (job.jq_pk - job.jq_pk) = 1 then 'q' end"
    queue.execute(
        "create or replace function drover.route(job drover.jobqueue, above drover.job, home text) returns text "
        f"language sql stable as '{body.replace(chr(39), chr(39) * 2)}'".encode()
    )
    assert insert(queue) == "default"
    (message,) = fetch_all(queue, "select log_message from drover.log")[0]
    assert message == "the filters of queues fail: division by zero; queue default"


def test_inserts_call_nothing_before_the_first_filter_and_after_the_last_t51(queue: Connection) -> None:
    told = [fetch_one(queue, ENABLED)]
    for change in ("", "delete from drover.queue"):
        if change:
            queue.execute(change.encode())
        else:
            add(queue, "q", "type = 'a'")
        told += [fetch_one(queue, "select drover.is_route_stale()"), install(queue)]
        told += [fetch_one(queue, ENABLED), fetch_one(queue, "select drover.is_route_stale()")]
    assert told == [False, True, None, True, False, True, None, False, False]


def test_a_filter_of_a_daemon_of_the_version_before_is_not_installed_t56(queue: Connection) -> None:
    add(queue, "q", "type = 'a'")
    queue.execute("update drover.queue set queue_filter = 'whatever; it was'")
    assert install(queue) is None
    assert insert(queue) == "default"


@pytest.mark.slow
def test_an_open_transaction_of_a_front_end_delays_filters_and_is_not_waited_for_t51(
    database: str, queue: Connection
) -> None:
    add(queue, "q", "type = 'a'")
    with psycopg.connect(database) as other:
        other.execute("insert into drover.jobqueue (jq_type) values ('a')")
        assert "lock timeout" in str(install(queue))
        other.commit()
    assert install(queue) is None
    assert insert(queue) == "q"


# ---- who may


@pytest.mark.parametrize(
    "role", ["drover_frontend", "drover_frontend_sql", "drover_operator", "drover_readonly", "drover_msq"]
)
def test_none_but_the_scheduler_installs_filters_or_calls_them_t51(login: Login, role: str) -> None:
    with login(role) as queue:
        for call in ("install_routes()", "routes()", "route(null, null, null)"):
            with pytest.raises(InsufficientPrivilege):
                queue.execute(f"select drover.{call}".encode())


def test_the_scheduler_installs_filters_and_makes_no_function_of_its_own_t51(login: Login) -> None:
    with login("drover_scheduler") as queue:
        add(queue, "q", "type = 'a'")
        assert install(queue) is None
        with pytest.raises(InsufficientPrivilege):
            queue.execute(
                "create or replace function drover.route(job drover.jobqueue, above drover.job, home text) "
                "returns text language sql as 'select null::text'"
            )
    with login("drover_frontend") as queue:
        queue.execute("insert into drover.jobqueue (jq_type) values ('a')")
        assert fetch_one(queue, "select jq_queue from drover.my_jobs") == "q"
