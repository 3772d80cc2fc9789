"""Claims about what the values of a configuration mean together: for claims, clean-ups, conditions and schedules."""

from typing import Any

import pytest

from scheduler.model.config import AgentType, Condition, Config, Host, Schedule, ScheduledJob, Scheduler

ONE = AgentType(command=("agent",))


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"window": 7}, 7),
        ({"window": 7, "item_rate": 2.0}, 1),
        ({"item_rate": 2.0}, 1),
        ({"kind": "exec"}, 1),
        ({"db": "sql"}, 1),
    ],
)
def test_an_agent_has_one_line_unless_its_window_allows_more(values: dict[str, Any], lines: int) -> None:
    assert AgentType(command=("agent",), **values).most_lines == lines
    assert ONE.most_lines > 1


def test_jobs_are_kept_as_long_as_all_unless_their_end_has_days_of_its_own() -> None:
    assert Scheduler(retention=7).days_kept == {
        "done": 7, "cancelled": 7, "skipped": 7, "ignored": 7, "command": 7, "log": 7,
    }  # fmt: skip
    assert Scheduler(retention=7, retention_done=0, retention_failed=3).days_kept == {
        "failed": 3, "cancelled": 7, "skipped": 7, "ignored": 7, "command": 7, "log": 7,
    }  # fmt: skip
    assert Scheduler(retention_done=1).days_kept == {"done": 1}


@pytest.mark.parametrize(
    ("condition", "steps"),
    [
        (Condition(), [(0, 60.0)]),
        (Condition(wait=5.0), [(0, 5.0)]),
        (Condition(steps=("10x20", "300")), [(10, 20.0), (0, 300.0)]),
    ],
)
def test_a_condition_is_checked_by_its_steps_or_after_the_usual_wait(condition: Condition, steps: list[Any]) -> None:
    assert condition.rules(60.0)["steps"] == steps


def test_a_job_of_a_schedule_names_only_columns_that_are_given() -> None:
    assert ScheduledJob("md5").columns == {
        "jq_type": "md5", "jq_priority": "n", "jq_urgent": False, "jq_retries": 0,
    }  # fmt: skip
    job = ScheduledJob("md5", "a", (), "night", "alpha", "a", True, 2, True, "select 1", "k")
    assert job.columns == {
        "jq_type": "md5", "jq_args": "a", "jq_queue": "night", "jq_host": "alpha", "jq_runonpfile": "select 1",
        "jq_key": "k", "jq_priority": "a", "jq_urgent": True, "jq_retries": 2, "jq_msq": True,
    }  # fmt: skip


def test_a_schedule_queues_a_command_a_job_or_a_group() -> None:
    one, two = ScheduledJob("md5"), ScheduledJob("sha", after=("a",))
    assert Schedule(command="flush 7").job("night") == {"jq_type": "command", "jq_args": "flush 7"}
    assert Schedule(jobs={"a": one}).job("night") == one.columns
    assert Schedule(jobs={"a": one, "b": two}).job("night") == {
        "group": {"job_name": "night"},
        "jobs": [{"name": "a", "after": ()} | one.columns, {"name": "b", "after": ("a",)} | two.columns],
    }


def test_a_type_has_slots_on_its_hosts_that_take_it() -> None:
    hosts = {"alpha": Host(), "beta": Host(types="^md")}
    config = Config(hosts=hosts, agents={"md5": ONE, "sha": ONE, "own": AgentType(("agent",), hosts=("beta", "alpha"))})
    assert config.hosts_of("md5") == ("alpha", "beta")
    assert config.hosts_of("sha") == ("alpha",)
    assert config.hosts_of("own") == ("alpha",)


@pytest.mark.parametrize(
    ("host", "is_selective", "is_remote"),
    [
        (Host(), False, False),
        (Host(types="^a"), False, False),
        (Host(queues=("night",)), True, False),
        (Host(priorities="^[a-f]"), True, False),
        (Host(priorities="."), False, False),
        (Host(transport="ssh", address="a"), False, True),
        (Host(transport="command", command=("a",)), False, False),
    ],
)
def test_a_host_that_takes_some_jobs_of_its_types_is_selective(host: Host, is_selective: bool, is_remote: bool) -> None:
    assert (host.is_selective, host.is_remote) == (is_selective, is_remote)
