"""Statements that carry commands out, and others of the watch connection: what they change, and what they leave."""

from typing import Any, Final
from uuid import UUID

import pytest

from scheduler.drivers.statements import Rows, to_json
from tests.connection_tools import OTHER, OWNER, fetch, rows_of

LONG_OVER: Final = "jq_starttime = now() - interval '9 d', jq_endtime = now() - interval '9 d'"


def test_a_job_that_is_retried_has_used_up_none_of_its_allowances(watch: Any, database: str) -> None:
    ((failed,), (order,)) = fetch(
        database, "insert into drover.jobqueue (jq_type) values ('a'), ('command') returning jq_pk"
    )
    used = "jq_failures = 1, jq_interruptions = 2, jq_rescued = 3, jq_retry_at = now()"
    fetch(
        database,
        f"update drover.jobqueue set jq_state = 'failed', {LONG_OVER}, jq_end_bits = 2, {used} where jq_pk = 1",
    )
    assert rows_of(watch("retry_job", command=order, job=failed)) == [(None,)]
    counts = "select jq_failures, jq_interruptions, jq_rescued, jq_retry_at from drover.jobqueue where jq_pk = 1"
    assert fetch(database, counts) == [(0, 0, 0, None)]


def test_unblock_releases_only_jobs_of_its_condition_t85(watch: Any, database: str) -> None:
    ((order,),) = fetch(database, "insert into drover.jobqueue (jq_type) values ('command') returning jq_pk")
    for words in ("disk", "disk is full", "disk2", "disk2 is full", "dis"):
        fetch(database, "insert into drover.jobqueue (jq_type, jq_args) values ('a', %s)", words)
    blocked = "jq_wait_until = 'infinity', jq_endtext = 'blocked: ' || jq_args"
    fetch(database, f"update drover.jobqueue set {blocked} where jq_type = 'a'")
    assert rows_of(watch("unblock", command=order, job=None, condition="disk")) == [(b"2", b"2")]
    free = "select jq_args from drover.jobqueue where jq_type = 'a' and jq_wait_until is null order by jq_pk"
    assert fetch(database, free) == [("disk",), ("disk is full",)]


def test_unblock_of_a_condition_leaves_jobs_that_are_blocked_on_another_t85(watch: Any, database: str) -> None:
    block(database, "disk", "tape", "disk2")
    assert rows_of(watch("unblock", command=add_command(database), job=None, condition="disk")) == [(b"1", b"1")]
    states = "select jq_args, jq_state::text from drover.jobqueue where jq_type = 'a' order by jq_pk"
    assert fetch(database, states) == [("disk", "queued"), ("tape", "blocked"), ("disk2", "blocked")]


def test_unblock_of_a_job_leaves_one_that_waits_for_its_retry_t85(watch: Any, database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type) values ('a')")
    fetch(database, "update drover.jobqueue set jq_wait_until = 'infinity', jq_retry_at = 'infinity', jq_endtext = 'x'")
    assert rows_of(watch("unblock", command=add_command(database), job=1, condition=None)) == [(b"0", b"0")]
    assert fetch(database, "select jq_retry_at::text from drover.jobqueue where jq_pk = 1") == [("infinity",)]


def block(database: str, *conditions: str) -> None:
    """Queue a job for each condition, and block it on that."""
    for condition in conditions:
        fetch(database, "insert into drover.jobqueue (jq_type, jq_args) values ('a', %s)", condition)
    blocked = "jq_state = 'blocked', jq_endtext = 'blocked: ' || jq_args"
    fetch(database, f"update drover.jobqueue set {blocked} where jq_type = 'a'")


def add_command(database: str) -> int:
    """Queue a command, and return its number."""
    ((order,),) = fetch(database, "insert into drover.jobqueue (jq_type) values ('command') returning jq_pk")
    return int(order)


def test_a_job_that_is_retried_shows_nothing_of_its_last_end(watch: Any, database: str) -> None:
    order = failed_job(database, "jq_exitcode = 3, jq_signal = 'SIGTERM', jq_result = '1', jq_itemsfailed = 2")
    watch("retry_job", command=order, job=1)
    shown = "select jq_state::text, jq_endtime, jq_exitcode, jq_signal, jq_result, jq_itemsfailed"
    assert fetch(database, f"{shown} from drover.jobqueue where jq_pk = 1") == [("queued", None, None, None, None, 0)]


# Item 1 has failed once more; 2 and 3 had not begun.
KILLED_AGAIN: Final = """jq_msq = true, jq_key = 'n', jq_itemsfailed = 1,
  jq_checkpoint = '{"watermark": "9", "beyond": [], "again": ["2", "3"]}'"""


def test_a_job_killed_while_it_repeats_failed_items_repeats_those_it_had_not_reached(watch: Any, database: str) -> None:
    fetch(database, "alter table drover.jobqueue disable trigger jobqueue_fixed")
    order = failed_job(database, KILLED_AGAIN)
    keys = "insert into drover.item_failure (item_jq_fk, item_attempt, item_key, item_line, item_reason)"
    for key in "4321":  # those of before, in which 1 came last, and then once more
        fetch(database, f"{keys} values (1, 1, %s, 'x', 'no')", key)
    watch("retry_job", command=order, job=1)
    again = "select jq_checkpoint -> 'again' from drover.jobqueue where jq_pk = 1"
    assert fetch(database, again) == [(["1", "2", "3"],)]


@pytest.mark.parametrize(("not_before", "waits"), [("9999-01-01", True), ("2000-01-01", False)])
def test_a_job_that_is_retried_still_waits_for_its_start(
    watch: Any, database: str, not_before: str, waits: bool
) -> None:
    order = failed_job(database, f"jq_not_before = '{not_before}'")
    watch("retry_job", command=order, job=1)
    waiting = "select jq_wait_until is not null from drover.jobqueue where jq_pk = 1"
    assert fetch(database, waiting) == [(waits,)]


def failed_job(database: str, columns: str) -> int:
    """Queue a job that has failed, its number is 1, and a command; return the number of that."""
    fetch(database, "insert into drover.jobqueue (jq_type) values ('a')")
    fetch(database, f"update drover.jobqueue set jq_state = 'failed', {LONG_OVER}, jq_end_bits = 2, {columns}")
    ((order,),) = fetch(database, "insert into drover.jobqueue (jq_type) values ('command') returning jq_pk")
    return int(order)


@pytest.mark.parametrize(("not_before", "waits"), [("9999-01-01", True), ("2000-01-01", False)])
def test_a_job_that_is_unblocked_still_waits_for_its_start_t85(
    watch: Any, database: str, not_before: str, waits: bool
) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type, jq_not_before) values ('a', %s)", not_before)
    blocked = "jq_wait_until = 'infinity', jq_retry_at = 'infinity', jq_endtext = 'blocked: disk'"
    fetch(database, f"update drover.jobqueue set {blocked}")
    ((order,),) = fetch(database, "insert into drover.jobqueue (jq_type) values ('command') returning jq_pk")
    assert rows_of(watch("unblock", command=order, job=1, condition=None)) == [(b"1", b"1")]
    waiting = "select jq_wait_until is not null, jq_retry_at from drover.jobqueue where jq_pk = 1"
    assert fetch(database, waiting) == [(waits, None)]


# What commands do: by a daemon that does not own the group any more, none of it.
CHANGES: Final[dict[str, dict[str, object]]] = {
    "hold_job": {"job": 1}, "cancel_job": {"job": 1, "text": "x"}, "ice_job": {"job": 1}, "release_job": {"job": 2},
    "retry_job": {"job": 3}, "unblock": {"job": 4, "condition": None}, "begin_run": {"jobs": [2]},
    "set_host": {
        "name": "alpha", "enabled": False, "most": 1, "urgent": 0, "types": "x", "queues": [], "priorities": "x",
        "letters": "x",
    },
    "set_type": {"name": "a", "enabled": False},
    "set_queue": {"queue": "default", "concurrency": 1, "priority": 1, "length": 1},
    "pause_queues": {"names": [], "paused": True}, "add_queue": {"name": "new", "concurrency": None},
    "remove_queue": {"name": "old"},
    "set_priority": {"job": 1, "letters": "a"}, "move_job": {"job": 1, "queue": "old"},
    "set_filter": {"name": "old", "filter": "jq_type = 'b'", "tree": []}, "set_rate": {"name": "old", "rate": {"x": 1}},
    "set_schedule": {"name": "nightly", "enabled": False}, "run_schedule": {"name": "nightly"},
    "check_now": {"names": ["tape"]},
    "stop_unstartable": {"type": "b", "host": "", "most": 9, "state": "blocked", "text": "blocked: no command"},
    "free_put_off": {"queue": "default", "current": "none", "after": "2000-01-01", "most": 9},
    "put_off_is_free": {"queue": "old", "changed": "2000-01-01"},
}  # fmt: skip
STOCK: Final = """
insert into drover.scheduler_group values ('others', null, null);
insert into drover.queue (queue_name, queue_group) values ('old', 'default');
insert into drover.host (host_name, host_group) values ('alpha', 'default');
insert into drover.agent (agent_group, agent_type) values ('default', 'a');
insert into drover.jobqueue (jq_type, jq_state)
  values ('a', 'queued'), ('a', 'held'), ('a', 'queued'), ('a', 'queued');
update drover.jobqueue set jq_state = 'failed', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2
 where jq_pk = 3;
update drover.jobqueue set jq_wait_until = 'infinity', jq_endtext = 'blocked: disk' where jq_pk = 4;
insert into drover.jobqueue (jq_type) values ('command');
insert into drover.queue (queue_name, queue_group) values ('kept', 'default');
insert into drover.jobqueue (jq_type, jq_queue) values ('b', 'kept'), ('c', 'default');
update drover.jobqueue set jq_wait_until = 'infinity', jq_retry_at = 'infinity',
       jq_endtext = 'rate limit of queue default: x' where jq_pk = 7;
update drover.queue set queue_rate_changed = '2000-01-01' where queue_name = 'old';
insert into drover.schedule (schedule_name, schedule_every, schedule_job)
  values ('nightly', '1 day', '{"jq_type": "a"}');
insert into drover.recovery (recovery_group, recovery_condition, recovery_policy, recovery_next)
  values ('default', 'tape', 'default', 'infinity')
"""
ALL_OF_IT: Final = """
select (select jsonb_agg(j order by jq_pk) from drover.jobqueue j),
       (select jsonb_agg(q order by q) from drover.queue q),
       (select jsonb_agg(h) from drover.host h),
       (select jsonb_agg(a) from drover.agent a),
       (select jsonb_agg(s) from drover.schedule s),
       (select jsonb_agg(r) from drover.recovery r)
"""


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    ("until", "owner"),
    [("infinity", OTHER), ("2000-01-01", OWNER), ("infinity", OWNER)],
    ids=["other", "late", "owner"],
)
def test_a_command_is_carried_out_by_the_owner_of_the_group_only_c7(
    watch: Any, database: str, name: str, until: str, owner: str
) -> None:
    fetch(database, STOCK)
    fetch(database, "update drover.scheduler_group set group_lease_until = %s where group_owner is not null", until)
    before = fetch(database, ALL_OF_IT)
    assert isinstance(watch(name, command=5, **CHANGES[name], owner=owner), Rows)
    assert (fetch(database, ALL_OF_IT) != before) is (until == "infinity" and owner == OWNER)


def test_a_host_command_leaves_other_settings_of_the_host(watch: Any, database: str) -> None:
    columns = "host_enabled, host_max, host_urgent, host_types, host_queues, host_priorities, host_letters"
    fetch(
        database,
        f"insert into drover.host (host_name, host_group, {columns})"
        " values ('alpha', 'default', false, 3, 2, 'a', '{default}', 'b', 'b')",
    )
    nothing = dict.fromkeys(("enabled", "most", "urgent", "types", "queues", "priorities", "letters"))
    assert rows_of(watch("set_host", name="alpha", **nothing)) != []
    assert fetch(database, f"select {columns} from drover.host") == [(False, 3, 2, "a", ["default"], "b", "b")]


def test_queues_are_paused_all_or_none(watch: Any, database: str) -> None:
    ((missing, changed, _),) = rows_of(watch("pause_queues", names=["default", "nosuch"], paused=True))
    assert (missing, changed) == (b"nosuch", None)
    assert fetch(database, "select queue_paused from drover.queue") == [(False,)]


def test_a_type_that_has_recovered_is_not_shown_as_failed(watch: Any, database: str) -> None:
    fetch(database, "insert into drover.agent (agent_group, agent_type) values ('default', 'a')")
    told = []
    for seconds in (60.0, None):
        rows = [{"type": "a", "seconds": seconds, "reason": None, "queries_wait": False}]
        watch("show_agents", rows=to_json(rows))
        told += fetch(database, "select agent_blocked_until > now() from drover.agent")
    assert told == [(True,), (None,)]


def test_daemons_are_forgotten_when_they_are_dead_and_not_before_j74(watch: Any, database: str) -> None:
    for number, seen in ((1, "now"), (2, "now"), (3, "2000-01-01")):
        fetch(
            database,
            "insert into drover.scheduler (scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid,"
            " scheduler_boot_id, scheduler_pid_space, scheduler_pid_start, scheduler_version, scheduler_seen)"
            " values (%s, 'default', 'here', %s, 'b', 's', 1, '0', %s)",
            str(UUID(int=number)), number, seen,
        )  # fmt: skip
        fetch(
            database,
            "insert into drover.scheduler_status (status_scheduler, status_slot, status_state, status_state_name,"
            " status_since) values (%s, -1, 1, '', now())",
            str(UUID(int=number)),
        )
    watch("remove_dead", age=60.0)
    assert fetch(database, "select scheduler_pid from drover.scheduler order by 1") == [(1,), (2,)]
    assert fetch(database, "select count(*) from drover.scheduler_status") == [(2,)]


def test_a_row_of_another_attempt_is_not_reported_as_ours(watch: Any, database: str) -> None:
    fetch(database, "insert into drover.jobqueue (jq_type) values ('a'), ('a'), ('a')")
    fetch(
        database,
        "update drover.jobqueue set jq_state = 'claimed', jq_attempt = 2, jq_starttime = now(),"
        " jq_owner = case jq_pk when 3 then %s else %s end::uuid",
        OTHER, OWNER,
    )  # fmt: skip
    assert rows_of(watch("find_lost", pks=[1, 2, 3], attempts=[2, 1, 2])) == [(b"2",), (b"3",)]
