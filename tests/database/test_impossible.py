"""What drover.impossible finds: rows that were broken behind the back of the triggers, and nothing else."""

from typing import Any

import psycopg
import pytest

from tests.schema_tools import add_job, claim_job, end_job, fetch_all, set_columns

OWNER = "11111111-1111-1111-1111-111111111111"
OTHER = "22222222-2222-2222-2222-222222222222"
ACTIVE = f"""
insert into drover.scheduler_group (group_name, group_owner, group_lease_until, group_taken_at)
values ('default', '{OWNER}', now() + interval '1 hour', now() - interval '1 hour');
insert into drover.queue (queue_name, queue_group) values ('default', 'default') on conflict do nothing;
"""
FOUND = "select rule, jq_pk from drover.impossible"
BLOCK = "jq_state = 'blocked', jq_owner = null, jq_starttime = null, jq_endtext = 'blocked: tape'"


@pytest.fixture
def active(queue: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Return a connection of the owner, to a database with a group that has been served for an hour."""
    queue.execute(ACTIVE.encode())
    return queue


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
    assert fetch_all(active, FOUND) == []


def test_a_queued_job_that_no_claim_can_find_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    active.execute("delete from drover.claimable")
    assert fetch_all(active, FOUND) == [("no token", job)]


def test_a_job_in_hand_by_a_record_is_possible_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    active.execute("delete from drover.claimable")
    active.execute("insert into drover.in_hand values (%s, array[%s::bigint])", (OWNER, job))
    assert fetch_all(active, FOUND) == []


def test_a_token_of_a_job_that_ended_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    ended = "jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2"
    behind(active, f"update drover.jobqueue set {ended}")
    assert fetch_all(active, FOUND) == [("token of an ended job", job)]


def test_a_blocked_job_without_a_condition_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    claim_job(active, job)
    active.execute("delete from drover.claimable")
    set_columns(active, job, BLOCK)
    assert fetch_all(active, FOUND) == []
    active.execute("delete from drover.blocked")
    assert fetch_all(active, FOUND) == [("no condition", job)]


def test_an_entry_of_a_job_that_is_not_blocked_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    claim_job(active, job)
    active.execute("delete from drover.claimable")
    set_columns(active, job, BLOCK)
    behind(active, "update drover.jobqueue set jq_state = 'held'")
    assert fetch_all(active, FOUND) == [("not blocked", job)]


def test_records_of_a_dead_owner_are_told_as_one_row_t119(active: psycopg.Connection[Any]) -> None:
    first, second = add_job(active), add_job(active)
    active.execute("delete from drover.claimable")
    record = "insert into drover.in_hand values (%s, array[%s, %s]::bigint[], now() - interval '1 hour')"
    active.execute(record, (OTHER, first, second))
    assert fetch_all(active, FOUND) == [("dead owner", first)]


def test_a_claimed_job_of_another_owner_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    claim_job(active, job)
    active.execute("delete from drover.claimable")
    assert fetch_all(active, FOUND) == [("wrong owner", job)]


def test_a_running_job_whose_queue_is_gone_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active, jq_queue="q")
    set_columns(active, job, f"jq_state = 'claimed', jq_owner = '{OWNER}', jq_starttime = now()")
    active.execute("delete from drover.claimable")
    assert fetch_all(active, FOUND) == [("no queue", job)]


def test_a_job_that_waits_for_no_dependency_is_told_t119(active: psycopg.Connection[Any]) -> None:
    parent, child = add_job(active), add_job(active)
    active.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", (child, parent))
    behind(active, "delete from drover.jobdepends")
    assert fetch_all(active, FOUND) == [("no dependency", child)]


def test_a_job_that_is_long_due_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active, jq_not_before="2100-01-01")
    behind(active, "update drover.jobqueue set jq_wait_until = now() - interval '1 hour'")
    assert fetch_all(active, FOUND) == [("overdue", job)]


def test_what_is_only_late_is_no_matter_while_no_scheduler_is_active_t119(active: psycopg.Connection[Any]) -> None:
    add_job(active, jq_not_before="2100-01-01")
    behind(active, "update drover.jobqueue set jq_wait_until = now() - interval '1 hour'")
    active.execute("update drover.scheduler_group set group_lease_until = now() - interval '1 s'")
    assert fetch_all(active, FOUND) == []


def test_a_condition_whose_check_is_overdue_is_told_t119(active: psycopg.Connection[Any]) -> None:
    job = add_job(active)
    claim_job(active, job)
    active.execute("delete from drover.claimable")
    set_columns(active, job, BLOCK)
    active.execute("update drover.recovery set recovery_next = now() - interval '1 hour'")
    assert fetch_all(active, FOUND) == [("unchecked condition", job)]


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
