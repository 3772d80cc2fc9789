"""Schedules by the real daemon: starts in time, once whatever dies, and what was missed."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, lines, rec
from tests.integration.test_commands import command, told
from tests.integration.test_groups import standby

ADD: Final = """
insert into drover.schedule (schedule_name, schedule_every, schedule_job, schedule_catch_up, schedule_next)
select name, %s::interval, %s, %s, now() + %s::interval from unnest(%s::text[]) as name
"""
HOSTS: Final = "[hosts.alpha]\n[hosts.beta]\n[hosts.gamma]\n[hosts.delta]\n"
OTHER: Final = '[scheduler]\ngroup = "other"\n[hosts.other]\n' + agent("b", ["cat"], kind="exec")
QUEUED: Final = "select count(*) from drover.jobqueue"
LATEST: Final = """
select extract(epoch from max(jq_endtime) - min(start_due_at))::float8
  from drover.schedule_start join drover.jobqueue on jq_pk = any (start_jobs)
"""
LOOKS: Final = """
select coalesce((status_parameter::json -> 'statements' -> 'due_schedules' ->> 'count')::integer, 0)
  from drover.scheduler_status where status_slot = -1
"""
SHOWN: Final = """
select coalesce(max(status_updated), 'epoch') from drover.scheduler_status where status_slot = -1
"""


@pytest.fixture
def text(record: Path) -> str:
    return HOSTS + agent("a", rec(record), slots=2)


def add(
    daemon: Daemon, *names: str, every: str = "1 hour", after: str = "0.5 s", catch_up: str = "one", **job: Any
) -> None:
    """Add schedules as an operator does, whose next start is in so long, or was."""
    columns = json.dumps({"jq_type": "a", "jq_args": "{}", **job})
    daemon.execute(ADD, every, columns, catch_up, after, list(names), role="drover_operator")


@pytest.mark.slow
def test_a_schedule_that_is_added_starts_at_its_time_again_and_again_c19_c24(launch: Launch, text: str) -> None:
    daemon = launch(text)
    add(daemon, "s", every="1 s")
    daemon.until(lambda: daemon.value("select count(*) from drover.jobqueue where jq_state = 'done'") >= 3)
    query = "select max(extract(epoch from start_at - start_due_at))::float8 from drover.schedule_start"
    assert daemon.value(query) < 5


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_daemon_that_is_killed_at_the_start_neither_loses_nor_doubles_it_c20(
    launch: Launch, text: str, record: Path, when: str
) -> None:
    first = launch(text, points=f"start_schedules:{when}=kill")
    add(first, "s", "t", after="0.2 s")
    first.until(lambda: first.process.poll() is not None)
    second = launch(text)
    second.until(lambda: second.value("select count(*) from drover.jobqueue where jq_state = 'done'") == 2)
    assert second.value(QUEUED) == 2
    assert len(lines(record)) == 2
    assert second.value("select count(*) from drover.schedule_start where cardinality(start_jobs) = 1") == 2


@pytest.mark.slow
def test_the_queue_of_due_starts_is_the_same_for_all_schedulers_of_a_group_c21(
    launch: Launch, text: str, ask: Ask, record: Path
) -> None:
    def seen() -> tuple[list[str], list[dict[str, object]]]:
        status = json.loads(ask("status --json").out)
        return [each["role"] for each in status["schedulers"]], [row for row in status["jobs"] if row["type"] == "a"]

    text = "[scheduler]\nlease = 30\n" + text + "[queues.q]\npaused = true\n"
    first = launch(text)
    second = standby(launch, text)
    add(first, *(f"s{n}" for n in range(5)), after="0.1 s", jq_queue="q")
    first.until(lambda: first.value(QUEUED) == 5)
    before = seen()
    first.kill()
    second.until(lambda: "serving group" in second.stderr())
    assert before == (["owner", "standby"], [{"type": "a", "queued": 5, "could_start": 5}])
    assert seen()[1] == before[1]
    second.insert(jq_type="command", jq_args="continue q", role="drover_operator")
    second.until(
        lambda: second.value("select count(*) from drover.jobqueue where jq_type = 'a' and jq_state = 'done'") == 5
    )
    assert len(lines(record)) == second.value("select count(*) from drover.jobqueue where jq_type = 'a'") == 5


@pytest.mark.slow
def test_two_daemons_of_two_groups_make_each_start_once_c20_c22(launch: Launch, text: str) -> None:
    first = launch(text)
    second = launch(OTHER)
    names = [f"s{n}" for n in range(50)]
    add(first, *names)
    first.until(lambda: first.value("select count(*) from drover.jobqueue where jq_state = 'done'") == 50)
    second.stop()
    assert first.value(QUEUED) == 50


@pytest.mark.parametrize(("catch_up", "starts"), [("one", 1), ("all", 3), ("none", 0)])
def test_starts_missed_while_no_scheduler_ran_are_made_up_for_as_set_c49(
    launch: Launch, text: str, catch_up: str, starts: int
) -> None:
    launch(text).stop()
    daemon = launch(text, wait=False)
    add(daemon, "s", after="-2 hours", catch_up=catch_up)
    query = "select schedule_next > now() from drover.schedule"
    daemon.until(lambda: daemon.value(query))
    assert daemon.value(QUEUED) == starts


def test_a_daemon_without_schedules_never_asks_for_them_p4(launch: Launch, text: str) -> None:
    daemon = launch(text)
    daemon.wait(daemon.insert(jq_type="a"))
    daemon.until(lambda: daemon.value("select count(*) from drover.scheduler_status where status_slot = -1") == 1)
    assert daemon.value(LOOKS) == 0
    daemon.stop()
    assert "due_schedules" not in daemon.stderr()


@pytest.mark.slow
def test_schedules_are_not_looked_at_between_their_starts_c19(launch: Launch, text: str) -> None:
    daemon = launch(text)
    add(daemon, "s", after="1 hour")
    looks = []
    for _ in range(4):
        seen = daemon.value(SHOWN)
        daemon.wait_all(daemon.insert_all([{"jq_type": "a", "jq_args": "{}"}] * 20))
        daemon.until(lambda seen=seen: daemon.value(SHOWN) > seen)
        looks.append(daemon.value(LOOKS))
    assert looks[1:] == [looks[1]] * 3


@pytest.mark.slow
def test_schedules_of_the_configuration_are_written_down_followed_and_removed(launch: Launch, text: str) -> None:
    table = '[schedules.s]\nevery = 1\njobs.m = { type = "a", args = "{}" }\n'
    daemon = launch(text + table)
    daemon.until(lambda: daemon.value("select count(*) from drover.jobqueue where jq_state = 'done'") >= 2)
    daemon.execute("update drover.schedule set schedule_enabled = false", role="drover_operator")
    daemon.stop()
    again = launch(text + table)
    assert again.value("select schedule_enabled from drover.schedule") is False  # the file says what it said before
    config = again.folder / "conf.d" / "test.toml"
    config.write_text(text + table.replace("every = 1", "every = 3600"))
    told(again, "reload")
    assert again.value("select schedule_enabled and schedule_every = '1 h' from drover.schedule")
    config.write_text(text)
    told(again, "reload")
    assert again.value("select count(*) from drover.schedule") == 0


def test_a_job_of_the_configuration_that_the_queue_refuses_is_told_at_a_reload(launch: Launch, text: str) -> None:
    daemon = launch(text)
    jobs = '[schedules.s]\nevery = 60\njobs.m = { type = "a", after = ["n"] }\njobs.n = { type = "a", after = ["m"] }\n'
    (daemon.folder / "conf.d" / "test.toml").write_text(text + jobs)
    row = daemon.wait(command(daemon, "reload"), "failed")
    assert "schedule s: job " in row["jq_endtext"]
    assert "that would be a cycle" in row["jq_endtext"]


def test_a_schedule_of_another_group_is_refused(launch: Launch, text: str) -> None:
    table = '[schedules.s]\nevery = 3600\ncommand = "poll"\n'
    launch(text + table)
    other = launch(
        '[scheduler]\ngroup = "other"\n[hosts.other]\n' + agent("b", ["cat"], kind="exec") + table, wait=False
    )
    assert other.wait_exit() == 2
    assert "schedule s belongs to group default: another group has it" in other.stderr()


@pytest.mark.slow
@pytest.mark.alone
def test_a_hundred_starts_of_one_second_over_four_hosts_have_all_begun_in_five_c18(launch: Launch, text: str) -> None:
    daemon = launch(text)
    hosts = ("alpha", "beta", "gamma", "delta")
    for host in hosts:
        add(daemon, *(f"{host}{n}" for n in range(25)), after="2 s", jq_host=host)
    daemon.execute("update drover.schedule set schedule_next = date_trunc('second', now()) + interval '3 s'")
    daemon.execute("update drover.schedule set schedule_due = schedule_next")
    done = "select count(*) from drover.jobqueue where jq_state = 'done'"
    daemon.until(lambda: daemon.value(done) == 100)
    assert daemon.value(QUEUED) == 100
    query = "select count(*) from drover.jobqueue where jq_host = %s"
    assert [daemon.value(query, host) for host in hosts] == [25] * 4
    assert daemon.value(LATEST) < 5
