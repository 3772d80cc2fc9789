"""What SQL changes in the database, after which work can go on: it does so at once, and not with the next rescan."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.daemon import Daemon, agent, rec, start

NO_RESCAN: Final = """
[scheduler]
rescan = 3600
[hosts.alpha]
[hosts.off]
enabled = false
[hosts.away]
enabled = false
[hosts.picky]
types = "a"
queues = ["paused"]
[queues.paused]
paused = true
[queues.left]
paused = true
[queues.full]
concurrency = 1
[queues."full too"]
concurrency = 1
[queues.short-lived]
[queues."rated"]
rate = 1
rate_interval = 1000
[queues."rated more"]
rate = 1
rate_interval = 1000
[queues."each"]
rate_each = 1
rate_by = "submitter"
rate_interval = 1000
[queues."each more"]
rate_each = 1
rate_by = "submitter"
rate_interval = 1000
[queues.shared]
[conditions.slow]
condition = "storage"
wait = 1000
"""
LATER: Final = "2100-01-01"
CANCEL: Final = """
update drover.jobqueue set jq_state = 'cancelled', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2
 where jq_pk = %s
"""


@pytest.fixture(scope="module")
def daemon(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Return one daemon for all of these tests; most change a queue, a host or a type that no other test uses."""
    record = tmp_path_factory.mktemp("record") / "record"
    text = NO_RESCAN + agent("a", rec(record), slots=3) + agent("off", rec(record), enabled=False)
    with start(text, module_database) as daemon:
        rescanned = {"remove_dead", "rescan", "find_unserved"}  # the first one comes a second after the start
        assert daemon.until(lambda: rescanned <= daemon.vitals()["statements"].keys(), what="no first rescan")
        yield daemon


def insert(daemon: Daemon, **columns: Any) -> int:
    return daemon.insert(**{"jq_type": "a"} | columns)


def waiting(daemon: Daemon, **columns: Any) -> int:
    """Queue a job that does not begin, though another that came after it did."""
    pk = insert(daemon, **columns)
    daemon.wait(insert(daemon))
    assert daemon.row(pk)["jq_state"] in ("queued", "held")
    return pk


def a_second_passes(daemon: Daemon) -> None:
    """Let the daemon look at what it was told of: what it gathers for a moment would hide that a change is not told."""
    later = daemon.value("select clock_timestamp() + interval '1 s'")
    assert daemon.until(lambda: daemon.value("select clock_timestamp() > %s", later), what="no second passes")


def in_hand(daemon: Daemon, gate: Path, **columns: Any) -> int:
    """Queue a job that an agent works on until the gate is there."""
    pk = insert(daemon, jq_args=f"gate:{gate}", **columns)
    daemon.wait(pk, "running")
    return pk


@pytest.mark.parametrize(
    ("columns", "change"),
    [
        ({"jq_queue": "paused"}, "update drover.queue set queue_paused = false where queue_name = 'paused'"),
        ({"jq_type": "off"}, "update drover.agent set agent_enabled = true where agent_type = 'off'"),
        ({"jq_host": "off"}, "update drover.host set host_enabled = true where host_name = 'off'"),
        ({"jq_host": "picky"}, "update drover.host set host_queues = '{}' where host_name = 'picky'"),
        ({"jq_host": "away"}, "update drover.jobqueue set jq_host = null where jq_pk = %s"),
        ({"jq_queue": "left"}, "update drover.jobqueue set jq_queue = 'default' where jq_pk = %s"),
        ({"jq_state": "held"}, "update drover.jobqueue set jq_state = 'queued' where jq_pk = %s"),
        ({"jq_not_before": LATER}, "update drover.jobqueue set jq_wait_until = null where jq_pk = %s"),
        (
            {"jq_not_before": LATER},
            "update drover.jobqueue set jq_wait_until = now() + interval '10 ms' where jq_pk = %s",
        ),
        ({"jq_not_before": LATER}, "update drover.jobqueue set jq_not_before = null where jq_pk = %s"),
        (
            {"jq_not_before": LATER},
            "update drover.jobqueue set jq_not_before = now() + interval '10 ms' where jq_pk = %s",
        ),
    ],
)
def test_a_job_begins_as_soon_as_sql_lets_it(daemon: Daemon, columns: dict[str, Any], change: str) -> None:
    pk = waiting(daemon, **columns)
    if "jq_not_before" in columns:
        a_second_passes(daemon)
    daemon.execute(change, *[pk] * change.count("%s"))
    assert daemon.wait(pk)["jq_state"] == "done"


def test_a_job_whose_start_window_sql_ends_fails_at_once(daemon: Daemon) -> None:
    pk = waiting(daemon, jq_not_before=LATER, jq_not_after=LATER)
    daemon.execute("update drover.jobqueue set jq_not_after = now() where jq_pk = %s", pk)
    assert daemon.wait(pk, "failed")["jq_endtext"].startswith("not started by ")


def test_a_job_whose_start_window_sql_moves_to_later_waits(daemon: Daemon) -> None:
    pk = waiting(daemon, jq_queue="left")
    daemon.execute("update drover.jobqueue set jq_not_before = %s, jq_queue = 'default' where jq_pk = %s", LATER, pk)
    daemon.wait(insert(daemon))
    row = daemon.row(pk)
    assert (row["jq_state"], row["jq_wait_until"]) == ("queued", row["jq_not_before"])
    daemon.execute(CANCEL, pk)


def test_a_child_begins_as_soon_as_its_dependency_is_removed(daemon: Daemon) -> None:
    parent, child = insert(daemon, jq_state="held"), insert(daemon, jq_state="held")
    daemon.execute("insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (%s, %s)", child, parent)
    daemon.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", child)
    daemon.wait(insert(daemon))
    daemon.execute("delete from drover.jobdepends where jdep_jq_fk = %s", child)
    assert daemon.wait(child)["jq_state"] == "done"
    daemon.execute(CANCEL, parent)


@pytest.mark.parametrize(
    "change",
    [
        "update drover.recovery set recovery_next = now()",
        "update drover.jobqueue set jq_state = 'queued' where jq_state = 'blocked'",
        """update drover.recovery_policy set policy_rules = '{"steps": [[0, 900]]}' where policy_name = 'slow'""",
    ],
)
def test_a_blocked_job_is_tried_again_as_soon_as_sql_says_so(daemon: Daemon, change: str) -> None:
    pk = insert(daemon, jq_args="say:BLOCKED storage")
    daemon.wait(pk, "blocked")
    a_second_passes(daemon)
    daemon.execute(change)
    assert daemon.until(lambda: daemon.row(pk)["jq_attempt"] > 1, what="it is not tried again")
    daemon.wait(pk, "blocked")
    daemon.execute(CANCEL, pk)


@pytest.mark.parametrize(
    ("queue", "change"),
    [
        ("rated", "null"),
        ("rated more", "queue_rate || '{\"rate\": 9}'"),
        ("each", "null"),
        ("each more", "queue_rate || '{\"each\": 9}'"),
    ],
)
def test_a_job_begins_as_soon_as_sql_raises_the_rate_of_its_queue(daemon: Daemon, queue: str, change: str) -> None:
    daemon.wait(insert(daemon, jq_queue=queue))
    pk = waiting(daemon, jq_queue=queue)
    daemon.execute(f"update drover.queue set queue_rate = {change} where queue_name = %s", queue)
    assert daemon.wait(pk)["jq_state"] == "done"


@pytest.mark.parametrize(("queue", "most"), [("full", "2"), ("full too", "null")])
def test_a_job_begins_as_soon_as_sql_raises_the_limit_of_its_queue(
    daemon: Daemon, queue: str, most: str, gate: Path
) -> None:
    first = in_hand(daemon, gate, jq_queue=queue)
    pk = waiting(daemon, jq_queue=queue)
    daemon.execute(f"update drover.queue set queue_concurrency = {most} where queue_name = %s", queue)
    assert daemon.wait(pk)["jq_state"] == "done"
    gate.touch()
    daemon.wait(first)


@pytest.mark.parametrize("change", ["delete from drover.quota", "update drover.quota set quota_most = 5"])
def test_a_job_begins_as_soon_as_sql_raises_its_quota(daemon: Daemon, change: str, gate: Path) -> None:
    daemon.execute("delete from drover.quota")
    daemon.execute("insert into drover.quota (quota_name, quota_most, quota_queue) values ('shared', 1, 'shared')")
    daemon.wait(insert(daemon))
    first = in_hand(daemon, gate, jq_queue="shared")
    pk = insert(daemon, jq_queue="shared")
    daemon.wait(pk, "blocked")
    daemon.execute(change)
    assert daemon.wait(pk)["jq_state"] == "done"
    gate.touch()
    daemon.wait(first)


@pytest.mark.parametrize("change", ["schedule_enabled = true", "schedule_at = null, schedule_every = interval '1 s'"])
def test_a_schedule_starts_as_soon_as_sql_says_so(daemon: Daemon, change: str) -> None:
    is_off = "enabled" in change
    daemon.execute(
        """insert into drover.schedule (schedule_name, schedule_at, schedule_every, schedule_job, schedule_enabled)
           values ('s', %s, %s, '{"jq_type": "a", "jq_args": "scheduled"}', %s)""",
        None if is_off else LATER, "1 s" if is_off else None, not is_off,
    )  # fmt: skip
    daemon.wait(insert(daemon))
    daemon.execute(f"update drover.schedule set {change}")
    started = "select jq_pk from drover.jobqueue where jq_args = 'scheduled' and jq_state = 'done'"
    assert daemon.until(lambda: daemon.execute(started), what="it does not start")
    daemon.execute("delete from drover.schedule")
    daemon.execute("delete from drover.jobqueue where jq_args = 'scheduled'")


def child_of(daemon: Daemon, parent: int) -> int:
    """Queue a job that begins when another one has ended, however it does."""
    child = insert(daemon, jq_state="held")
    daemon.execute(
        "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits) values (%s, %s, 7)",
        child, parent,
    )  # fmt: skip
    daemon.execute("update drover.jobqueue set jq_state = 'queued' where jq_pk = %s", child)
    return child


def test_children_of_a_job_that_fails_when_it_is_unblocked_begin_at_once(daemon: Daemon) -> None:
    parent = insert(daemon, jq_queue="short-lived", jq_args="say:BLOCKED storage")
    daemon.wait(parent, "blocked")
    child = child_of(daemon, parent)
    daemon.execute("delete from drover.queue where queue_name = 'short-lived'")
    daemon.execute("update drover.recovery_policy set policy_rules = policy_rules || '{\"at_once\": 9}'")
    assert daemon.wait(child)["jq_state"] == "done"
    assert daemon.row(parent)["jq_endtext"] == "recovery_failure: its queue is gone: short-lived"


def test_children_of_a_job_whose_condition_lasts_too_long_begin_at_once(daemon: Daemon) -> None:
    rules = '{"steps": [[0, 1000]], "max_elapsed": 0.001}'
    parent = insert(daemon, jq_args="say:BLOCKED storage")
    daemon.wait(parent, "blocked")
    child = child_of(daemon, parent)
    daemon.execute("update drover.recovery_policy set policy_rules = %s", rules)
    assert daemon.wait(child)["jq_state"] == "done"
    assert daemon.row(parent)["jq_state"] == "failed"


def test_children_of_a_job_that_is_too_late_when_it_is_released_begin_at_once(daemon: Daemon) -> None:
    parent = insert(daemon, jq_state="held", jq_not_after="2000-01-01")
    child = child_of(daemon, parent)
    daemon.wait(insert(daemon))
    daemon.wait(daemon.insert(jq_type="command", jq_args=f"release {parent}", role="drover_operator"))
    assert daemon.wait(child)["jq_state"] == "done"
    assert daemon.row(parent)["jq_state"] == "failed"


def test_children_of_a_job_that_no_scheduler_runs_begin_at_once(daemon: Daemon) -> None:
    parent = insert(daemon, jq_mode="manual", jq_queue="nobody")
    child = child_of(daemon, parent)
    daemon.wait(insert(daemon))
    daemon.insert(jq_type="command", jq_args=f"run {parent}", role="drover_operator")
    assert daemon.wait(child)["jq_state"] == "done"
    assert daemon.row(parent)["jq_state"] == "ignored"


def test_children_of_jobs_that_one_command_cancels_begin_at_once(daemon: Daemon) -> None:
    parent = insert(daemon, jq_state="held", jq_args="many")
    child = child_of(daemon, parent)
    daemon.wait(insert(daemon))
    daemon.execute("select drover.command('cancel', jsonb_build_object('state', 'held'))", role="drover_operator")
    assert daemon.wait(child)["jq_state"] == "done"
    assert daemon.row(parent)["jq_state"] == "cancelled"
