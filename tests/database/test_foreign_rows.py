"""Rows that are nobody's business, or another group's, cost a daemon nothing: its periodic statements do not read them.

Counted are pages that each statement looks at, with the plan that it made while there was nothing; nothing is timed.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from scheduler.daemon.connections import PLANS
from tests.connection_tools import fetch, take_group
from tests.counts.meters import buffers
from tests.counts.queues import Straight, queries
from tests.database.test_plans import CHORES, GROUP

MANY = 20_000
A_FEW = 100  # pages: a level more of some indexes, and entries of rows that were changed and not vacuumed yet
PIECE = 2500  # pages of a statement that reads a table in pieces, however long that is
IN_PIECES = {"find_unserved", "forget_events", "forget_subscriptions", "rescan", "flush", "find_suspects"}
OTHERS = """
insert into drover.scheduler_group values ('others', '00000000-0000-0000-0000-000000000002', now() + interval '1 hour');
insert into drover.queue (queue_name, queue_group)
select 'theirs' || i, 'others' from generate_series(0, 99) i;
insert into drover.queue (queue_name, queue_group) values ('ours', 'default');
insert into drover.agent (agent_group, agent_type) values ('default', 'a');
"""
JOBS = "insert into drover.jobqueue (jq_type, jq_queue, jq_args, jq_not_before, jq_not_after, jq_mode) select "
EACH = f" from generate_series(1, {MANY}) i"
SOON = "clock_timestamp() + interval '10 ms'"
FOREIGN: dict[str, str] = {
    "due in a queue that does not exist": f"{JOBS} 'a', 'nobodys', i::text, {SOON}, null, 'background' {EACH}",
    "due in a queue of another group": f"{JOBS} 'a', 'theirs1', i::text, {SOON}, null, 'background' {EACH}",
    "due in many queues of another group":
        f"{JOBS} 'a', 'theirs' || i % 100, i::text, {SOON}, null, 'background' {EACH}",
    "due in many queues that do not exist": f"{JOBS} 'a', 'nobodys' || i, i::text, {SOON}, null, 'background' {EACH}",
    "waiting for an instant, of another group":
        f"{JOBS} 'a', 'theirs1', i::text, now() + interval '1 h', null, 'background' {EACH}",
    "expired in a queue that does not exist": f"{JOBS} 'a', 'nobodys', i::text, null, {SOON}, 'background' {EACH}",
    "expired in a queue of another group": f"{JOBS} 'a', 'theirs1', i::text, null, {SOON}, 'background' {EACH}",
    "held for an hour": f"{JOBS} 'a', 'ours', i::text, now() + interval '1 h', null, 'manual' {EACH}",
    "expired, held": f"{JOBS} 'a', 'ours', i::text, null, {SOON}, 'manual' {EACH}",
    "waiting for ever": f"{JOBS} 'a', 'ours', i::text, '9999-12-31', null, 'background' {EACH}",
    "of types that nobody serves": f"{JOBS} 'a' || i, 'ours', i::text, null, null, 'background' {EACH}",
    "of one type that nobody serves": f"{JOBS} 'other', 'ours', i::text, null, null, 'background' {EACH}",
    "of types of another group": f"{JOBS} 'a' || i, 'theirs1', i::text, null, null, 'background' {EACH}",
    "in queues that do not exist": f"{JOBS} 'a', 'nobodys' || i, i::text, null, null, 'background' {EACH}",
    "dead letters of jobs":
        "insert into drover.dead_letter (dead_kind, dead_reason, dead_jq_fk) select 'alternate', 'no consumer', i"
        f"{EACH}",
    "dead letters of jobs that wait still":
        "with j as (insert into drover.jobqueue (jq_type, jq_args, jq_queued) select 'other', i::text, "
        f"now() - interval '1 h' {EACH} returning jq_pk) insert into drover.dead_letter (dead_kind, dead_reason, "
        "dead_jq_fk) select 'alternate', 'no consumer', jq_pk from j",
    "schedules of another group that are due":
        "set session_replication_role = replica; "
        "insert into drover.schedule (schedule_name, schedule_every, schedule_job, schedule_group) "
        f"""select 's' || i, '1 h', '{{"jq_type": "a"}}', 'others' {EACH}""",
    "schedules": "set session_replication_role = replica; "
        "insert into drover.schedule (schedule_name, schedule_at, schedule_job, schedule_due, "
        f"""schedule_computed) select 's' || i, '2030-01-01', '{{"jq_type": "a"}}', '2030-01-01', now() {EACH}""",
    "events": f"insert into drover.event (ev_kind, ev_text) select 'user', i::text {EACH}",
    "events of jobs": "with j as (insert into drover.jobqueue (jq_type, jq_queue) select 'a', 'theirs1'"
        f"{EACH} returning jq_pk) insert into drover.event (ev_kind, ev_jq_fk) select 'user', jq_pk from j",
    "subscriptions": "insert into drover.subscription (sub_scope, sub_of, sub_kind) select 'owner', 'x' || i, 'status'"
        f" {EACH}",
    "deliveries that wait": "insert into drover.delivery (del_sub, del_target, del_event, del_jq_fk, del_next, "
        f"del_owner) select i, 1, i, i, now() + interval '1 h', 'x' {EACH}",
    "deliveries of many owners": "insert into drover.delivery (del_sub, del_target, del_event, del_jq_fk, del_next, "
        f"del_owner) select i, 1, i, i, now() + interval '1 h', 'x' || i {EACH}",
    "conditions of another group": "insert into drover.recovery (recovery_group, recovery_condition, recovery_policy, "
        f"recovery_next) select 'others', 'c' || i, '', now() {EACH}",
    "queues of another group": "insert into drover.queue (queue_name, queue_group) select 'theirs.' || i, 'others'"
        f" {EACH}",
    "types of another group": f"insert into drover.agent (agent_group, agent_type) select 'others', 't' || i {EACH}",
    "hosts of another group": "insert into drover.host (host_name, host_group, host_max) select 't' || i, 'others', 1"
        f" {EACH}",
    "in hand of another group": "with j as (insert into drover.jobqueue (jq_type, jq_queue, jq_args) select 'a', "
        f"'theirs1', i::text {EACH} returning jq_pk), t as (select array_agg(jq_pk) as jobs from j) "
        "insert into drover.in_hand select '00000000-0000-0000-0000-000000000002', jobs from t",
    "detached of another group": "insert into drover.detached (det_jq_fk, det_attempt, det_group, det_host, det_spool)"
        f" select i, 1, 'others', 'h', 's' {EACH}",
    "edges that are open": "with j as (insert into drover.jobqueue (jq_type, jq_queue, jq_args, jq_mode) select 'a', "
        f"'theirs1', i::text, 'manual' {EACH} returning jq_pk) insert into drover.jobdepends (jdep_jq_fk, "
        "jdep_jq_depends_fk) select jq_pk, jq_pk - 1 from j where jq_pk % 2 = 0",
    "blocked": "insert into drover.jobqueue (jq_type, jq_queue, jq_args) select 'a', "
        f"'theirs1', i::text {EACH}; delete from drover.claimable; update drover.jobqueue set jq_state = 'blocked', "
        "jq_endtext = 'blocked: license'",
    "ended": f"{JOBS} 'a', 'theirs1', i::text, null, null, 'background' {EACH}; delete from drover.claimable; "
        "update drover.jobqueue set jq_state = 'claimed', "
        "jq_owner = '00000000-0000-0000-0000-000000000002', jq_starttime = now(); update drover.jobqueue set jq_state "
        "= 'done', jq_owner = null, jq_endtime = now(), jq_end_bits = 1",
    "log of no job": f"insert into drover.log (log_type, log_message) select 'LOG', i::text {EACH}",
    "outputs": "insert into drover.output (out_jq_fk, out_attempt, out_part, out_stream, out_data) select i, 1, 1, "
        f"'out', 'x' {EACH}",
    "schedulers": "insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid, "
        "scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version, scheduler_lease) select "
        "gen_random_uuid(), 'others', 'h', 1, '', '', 1, '1', 30 from generate_series(1, 1000)",
    "counters": "insert into drover.counter (counter_name, counter_labels, counter_value) select 'x', "
        f"array[i::text], 1 {EACH}",
}  # fmt: skip
# populations of our own that are worked off by so many looks
WORKED_OFF = {"expired, held": 5}
MORE: dict[str, dict[str, object]] = {
    "read_recovery": {},
    "read_kept": {},
    "install_routes": {},
    "flush": {"command": None, "days": '{"done": 30}', "most": 1000, "stage": "jobs", "place": 0},
    "count": {"rows": "[]"},
    "show_status": {"rows": "[]", "gone": []},
    "show_agents": {"rows": "[]"},
    "show_hosts": {"rows": "[]"},
    "show_starts": {"rows": "[]"},
    "check_now": {"names": ["agent:"]},
    "stop_unstartable": {"type": "a", "host": "", "state": "failed", "text": "", "most": 2000},
    "adopt": {"types": ["a"], "live": [], "before": "2030-01-01", "schedinfo": "x", "unread": 3, "guarded": []},
}


@pytest.fixture
def watch(database: str) -> Iterator[Straight]:
    """Yield a watch connection, on which each periodic statement was planned while there was nothing."""
    take_group(database)
    fetch(database, OTHERS)
    fetch(database, "alter table drover.jobqueue set (autovacuum_enabled = off)")  # else entries stay while it runs
    with psycopg.connect(database, autocommit=True) as connection:
        link = Straight(connection)
        for setting in PLANS:
            link.run(setting)
        yield link


# each of the 20,000 changes one row of drover.recovery, which takes 16 s
SLOW = {"blocked": pytest.mark.slow}


@pytest.mark.parametrize("population", [pytest.param(name, marks=SLOW.get(name, ())) for name in FOREIGN])
def test_rows_that_are_nobodys_business_are_not_read(watch: Straight, database: str, population: str) -> None:
    before = _pages(watch)
    fetch(database, FOREIGN[population])
    fetch(database, "select pg_sleep(0.01)")  # which ends after SOON of the last row
    for _ in range(WORKED_OFF.get(population, 0)):
        watch.ask(queries()["due"], GROUP, _forget, limit_s=0.0)
    unanalysed = _pages(watch)
    fetch(database, "analyze")
    analysed = _pages(watch)
    grown = {name: (was, unanalysed[name], analysed[name]) for name, was in before.items()}
    assert {name: pages for name, pages in grown.items() if max(pages) > _most(name, pages[0])} == {}


def test_a_thousand_own_queues_cost_a_few_pages_each(watch: Straight, database: str) -> None:
    fetch(database, "insert into drover.queue (queue_name, queue_group) select 'own' || i, 'default'"
                    " from generate_series(1, 1000) i")  # fmt: skip
    fetch(database, f"{JOBS} 'a', 'own' || i % 1000, i::text, now() + interval '1 h', null, 'background' {EACH}")
    assert buffers(watch.explain(queries()["due"], GROUP)) < 10_000


def test_only_jobs_of_own_queues_become_due(watch: Straight, database: str) -> None:
    insert = "insert into drover.jobqueue (jq_type, jq_queue, jq_not_before) values ('a', %s, now() + '1 h')"
    for name in ("ours", "default", "nobodys"):
        fetch(database, insert, name)
    fetch(database, "update drover.jobqueue set jq_wait_until = now() - jq_pk * interval '1 s'")
    answers: list[Any] = []
    watch.ask(queries()["due"], GROUP, answers.append, limit_s=0.0)
    assert answers[0].rows == [(b"2", None, None)]
    assert fetch(database, "select jq_queue from drover.jobqueue where jq_wait_until is not null") == [("nobodys",)]


def _forget(_: object) -> None:
    """Take no answer."""


def _most(name: str, before: int) -> int:
    return max(before, PIECE if name in IN_PIECES else 0) + A_FEW


def _pages(link: Straight) -> dict[str, int]:
    every = CHORES | MORE
    return {name: buffers(link.explain(queries()[name], GROUP | values)) for name, values in every.items()}
