"""What drover.impossible finds: rows that were broken behind the back of the triggers, and nothing else.

It reads what the walk of drover.find_suspects found; a whole walk is made here before each look, as the daemon makes it
in steps.
"""

from functools import partial
from typing import Any

import psycopg
import pytest

from tests.schema_tools import add_job, buffers_of, claim_job, end_job, fetch_all, set_columns, walk_suspects

OWNER = "11111111-1111-1111-1111-111111111111"
OTHER = "22222222-2222-2222-2222-222222222222"
ACTIVE = f"""
insert into drover.scheduler_group (group_name, group_owner, group_lease_until, group_taken_at)
values ('default', '{OWNER}', now() + interval '1 hour', now() - interval '1 hour');
insert into drover.queue (queue_name, queue_group) values ('default', 'default') on conflict do nothing;
"""
FOUND = "select rule, jq_pk from drover.impossible"
STEP = 4000  # rows that a step of the daemon looks at
MANY = 20_000
FILL = "insert into drover.jobqueue (jq_type) select 'noop' from generate_series(1, %s)"
BLOCK = "jq_state = 'blocked', jq_owner = null, jq_starttime = null, jq_endtext = 'blocked: tape'"


@pytest.fixture
def active(queue: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Return a connection of the owner, to a database with a group that has been served for an hour."""
    queue.execute(ACTIVE.encode())
    return queue


def found(queue: psycopg.Connection[Any]) -> list[Any]:
    """Return rule and job of all that cannot be, after a whole walk."""
    walk_suspects(partial(fetch_all, queue))
    return fetch_all(queue, FOUND)


def behind(queue: psycopg.Connection[Any], statement: str, *values: object) -> None:
    """Run a statement behind the back of the triggers."""
    queue.execute("set session_replication_role = replica")
    queue.execute(statement.encode(), values)
    queue.execute("set session_replication_role = origin")


def test_jobs_in_every_state_are_possible_t119(active: psycopg.Connection[Any]) -> None:
    jobs = [add_job(active) for _ in range(5)]
    set_columns(active, jobs[0], "jq_state = 'held'")
    end_job(active, jobs[1])
    active.execute("delete from drover.claimable where %s = any (coalesce(claim_jobs, array[claim_first]))", (jobs[1],))
    active.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (jobs[2], jobs[3]))
    set_columns(active, jobs[4], "jq_wait_until = now() + interval '1 hour'")
    assert found(active) == []


def test_a_queued_job_that_no_claim_can_find_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    active.execute("delete from drover.claimable")
    assert found(active) == [("no token", job)]


def test_a_job_in_hand_by_a_record_is_possible_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    active.execute("delete from drover.claimable")
    active.execute("insert into drover.in_hand values (%s, array[%s::bigint])", (OWNER, job))
    assert found(active) == []


def test_a_token_of_a_job_that_ended_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    ended = "jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2"
    behind(active, f"update drover.jobqueue set {ended}")
    assert found(active) == [("token of an ended job", job)]


def test_a_blocked_job_without_a_condition_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    claim_job(active, job)
    active.execute("delete from drover.claimable")
    set_columns(active, job, BLOCK)
    assert found(active) == []
    active.execute("delete from drover.blocked")
    assert found(active) == [("no condition", job)]


def test_an_entry_of_a_job_that_is_not_blocked_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    claim_job(active, job)
    active.execute("delete from drover.claimable")
    set_columns(active, job, BLOCK)
    behind(active, "update drover.jobqueue set jq_state = 'held'")
    assert found(active) == [("not blocked", job)]


def test_records_of_a_dead_owner_are_told_as_one_row_t119(active: psycopg.Connection[Any]) -> None:
    first, second = add_job(active), add_job(active)
    active.execute("delete from drover.claimable")
    record = "insert into drover.in_hand values (%s, array[%s, %s]::bigint[], now() - interval '1 hour')"
    active.execute(record, (OTHER, first, second))
    assert found(active) == [("dead owner", first)]


def test_a_claimed_job_of_another_owner_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    claim_job(active, job)
    active.execute("delete from drover.claimable")
    assert found(active) == [("wrong owner", job)]


def test_a_running_job_whose_queue_is_gone_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active, jq_queue="q")
    set_columns(active, job, f"jq_state = 'claimed', jq_owner = '{OWNER}', jq_starttime = now()")
    active.execute("delete from drover.claimable")
    assert found(active) == [("no queue", job)]


def test_a_job_that_waits_for_no_dependency_is_told_t119(active: psycopg.Connection[Any]) -> None:
    parent, child = add_job(active), add_job(active)
    active.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent))
    behind(active, "delete from drover.jobdepends")
    assert found(active) == [("no dependency", child)]


def test_a_job_that_is_long_due_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active, jq_not_before="2100-01-01")
    behind(active, "update drover.jobqueue set jq_wait_until = now() - interval '1 hour'")
    assert found(active) == [("overdue", job)]


def test_what_is_only_late_is_no_matter_while_no_scheduler_is_active_t119(active: psycopg.Connection[Any]) -> None:
    add_job(active, jq_not_before="2100-01-01")
    behind(active, "update drover.jobqueue set jq_wait_until = now() - interval '1 hour'")
    active.execute("update drover.scheduler_group set group_lease_until = now() - interval '1 s'")
    assert found(active) == []


def test_a_condition_whose_check_is_overdue_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    claim_job(active, job)
    active.execute("delete from drover.claimable")
    set_columns(active, job, BLOCK)
    active.execute("update drover.recovery set recovery_next = now() - interval '1 hour'")
    assert found(active) == [("unchecked condition", job)]


# ---- what it costs


def whole_walk(queue: psycopg.Connection[Any]) -> list[float]:
    """Return the buffers of each step of a whole walk."""
    queue.execute("select drover.add_up_changes(100000)")
    spent = []
    while not fetch_all(queue, "select walk_ended is not null from drover.suspect_walk")[0][0]:
        spent.append(buffers_of(queue, f"select drover.find_suspects({STEP})"))
    return spent


def test_reading_what_is_impossible_costs_the_same_beside_many_jobs(active: psycopg.Connection[Any]) -> None:
    active.execute(FILL, (100,))
    walk_suspects(partial(fetch_all, active))
    few = buffers_of(active, FOUND)
    active.execute(FILL, (MANY,))
    assert buffers_of(active, FOUND) <= few + 20


def test_each_step_of_the_walk_reads_a_bounded_number_of_buffers(active: psycopg.Connection[Any]) -> None:
    active.execute(FILL, (MANY,))
    active.execute(FILL.replace("jq_type)", "jq_type, jq_msq)").replace("'noop'", "'noop', true"), (9000,))
    spent = whole_walk(active)
    assert len(spent) >= 2 * (MANY + 9000) / STEP
    assert max(spent) < 20 * STEP


def test_a_walk_passes_over_zones_whose_jobs_have_all_ended(active: psycopg.Connection[Any]) -> None:
    active.execute(FILL, (MANY,))
    behind(active, "update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(),"
                   " jq_end_bits = 2")  # fmt: skip
    active.execute("truncate drover.claimable")
    active.execute("select drover.recount(0, 100)")
    job = add_job(active)
    active.execute("delete from drover.claimable")
    assert len(whole_walk(active)) == 1
    assert fetch_all(active, FOUND) == [("no token", job)]


def test_a_step_with_nothing_to_look_at_reads_next_to_nothing(active: psycopg.Connection[Any]) -> None:
    walk_suspects(partial(fetch_all, active))
    assert buffers_of(active, f"select drover.find_suspects({STEP})") < 100


def test_suspects_by_each_rule_are_bounded(active: psycopg.Connection[Any]) -> None:
    active.execute(FILL, (MANY,))
    active.execute("delete from drover.claimable")
    held = add_job(active, jq_state="held")
    behind(active, "update drover.jobqueue set jq_unmet = 1 where jq_pk = %s", held)
    walk_suspects(partial(fetch_all, active))
    rules = dict(fetch_all(active, "select rule, count(*) from drover.impossible group by 1"))
    assert rules["no dependency"] == 1
    assert 1000 <= rules["no token"] <= 1000 + STEP


def test_a_suspect_that_is_right_again_is_forgotten_by_the_next_step(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    active.execute("delete from drover.claimable")
    assert found(active) == [("no token", job)]
    set_columns(active, job, "jq_state = 'held'")
    assert fetch_all(active, FOUND) == []
    walk_suspects(partial(fetch_all, active))
    assert fetch_all(active, "select * from drover.suspect") == []


def test_while_one_daemon_makes_a_step_another_makes_none(active: psycopg.Connection[Any], database: str) -> None:
    with psycopg.connect(database) as other:
        other.execute("select drover.find_suspects(1)")
        active.execute("set lock_timeout = '10s'")
        assert fetch_all(active, "select drover.find_suspects(1)") == [(True,)]
        assert fetch_all(active, "select walk_at from drover.suspect_walk") == [(None,)]


# ---- alerts


@pytest.fixture
def alerted(active: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Return a connection to a database with a subscription of the site to alerts."""
    active.execute("select drover.subscribe('alert', is_site => true)")
    return active


def look(queue: psycopg.Connection[Any], *, later: bool = False) -> int:
    """Look for alerts, or half a minute later; return how many were told."""
    if later:
        queue.execute("update drover.alert set alert_since = alert_since - interval '30 seconds'")
    walk_suspects(partial(fetch_all, queue))
    return int(fetch_all(queue, "select drover.find_alerts(100)")[0][0])


def test_what_stays_impossible_is_an_event_of_the_site_once_t119(alerted: psycopg.Connection[Any]) -> None:
    job = add_job(alerted)
    alerted.execute("delete from drover.claimable")
    assert [look(alerted), look(alerted), look(alerted, later=True), look(alerted, later=True)] == [0, 0, 1, 0]
    told = f"job {job} is queued, and no claim can find it: drover hold {job}, then drover release {job}"
    assert fetch_all(alerted, "select ev_kind, ev_text from drover.event") == [("alert", told)]
    assert fetch_all(alerted, "select log_type, log_message from drover.log") == [("ALERT", told)]


def test_what_was_impossible_for_a_moment_is_no_alert_t119(alerted: psycopg.Connection[Any]) -> None:
    job = add_job(alerted)
    claimable = fetch_all(alerted, "delete from drover.claimable returning claim_first")
    looks = [look(alerted)]
    set_columns(alerted, job, "jq_state = 'held'")
    looks.append(look(alerted, later=True))
    assert claimable == [(job,)]
    assert looks == [0, 0]
    assert fetch_all(alerted, "select * from drover.alert") == []


def test_what_is_impossible_again_is_told_again_t119(alerted: psycopg.Connection[Any]) -> None:
    job = add_job(alerted)
    alerted.execute("delete from drover.claimable")
    looks = [look(alerted), look(alerted, later=True)]
    set_columns(alerted, job, "jq_state = 'held'")
    looks.append(look(alerted))
    set_columns(alerted, job, "jq_state = 'queued'")
    alerted.execute("delete from drover.claimable")
    assert [*looks, look(alerted), look(alerted, later=True)] == [0, 1, 0, 0, 1]


def test_without_a_subscription_nobody_looks_for_alerts_t119(active: psycopg.Connection[Any]) -> None:
    add_job(active)
    active.execute("delete from drover.claimable")
    assert [look(active), look(active, later=True)] == [0, 0]
    assert fetch_all(active, "select * from drover.alert") == []


def test_a_subscription_of_a_job_to_alerts_is_refused_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="of kind alert are of the site"):
        active.execute("select drover.subscribe('alert', job => %s)", (job,))
