"""Queues with filters under the real daemon: where jobs go, and what a reload or a command changes about it."""

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon
from tests.integration.puppets import LOCAL, puppet
from tests.integration.test_commands import told
from tests.integration.test_reload import reload

LONG = "[queues.long]\nconcurrency = 1\npriority = 2\nfilter = \"minutes > 60 or data.kind = 'long'\"\n"
POWER = "[queues.power]\npriority = 1\nfilter = \"submitter = 'drover_frontend'\"\n"


def queues(daemon: Daemon, *pks: int) -> list[str]:
    """Return the queue of each job."""
    return [daemon.value("select jq_queue from drover.jobqueue where jq_pk = %s", pk) for pk in pks]


@pytest.mark.slow
def test_long_jobs_and_those_of_a_power_user_have_queues_of_their_own_t57(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet() + LONG + POWER)
    pks = [
        daemon.insert(jq_type="puppet", jq_args="true", jq_timeout="2 hours"),
        daemon.insert(jq_type="puppet", jq_args="true", jq_timeout="2 hours", role="drover_frontend"),
        daemon.insert(jq_type="puppet", jq_args="true", role="drover_frontend"),
        daemon.insert(jq_type="puppet", jq_args="true"),
        daemon.insert(jq_type="puppet", jq_args="true", jq_timeout="2 hours", jq_queue="power"),
    ]
    assert queues(daemon, *pks) == ["long", "long", "power", "default", "power"]
    daemon.wait_all(pks)


@pytest.mark.slow
def test_a_reload_installs_filters_and_removes_them_and_refuses_a_wrong_one_t56(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet())
    found = queues(daemon, daemon.insert(jq_type="puppet", jq_timeout="2 hours"))
    reload(daemon, LOCAL + puppet() + LONG)
    found += queues(daemon, daemon.insert(jq_type="puppet", jq_timeout="2 hours"))
    wrong = LONG.replace("minutes > 60", "pg_sleep(9) is null")
    answer = reload(daemon, LOCAL + puppet() + wrong, "failed")
    assert "character 1: functions are not allowed; write comparisons like" in answer
    found += queues(daemon, daemon.insert(jq_type="puppet", jq_timeout="2 hours"))
    reload(daemon, LOCAL + puppet())
    found += queues(daemon, daemon.insert(jq_type="puppet", jq_timeout="2 hours"))
    assert found == ["default", "long", "long", "default"]


def test_set_queue_priority_changes_the_order_of_filters_t36_t53_t54(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet() + LONG + POWER)
    row = {"jq_type": "puppet", "jq_timeout": "2 hours", "role": "drover_frontend"}
    found = queues(daemon, daemon.insert(**row))
    assert told(daemon, "set-queue-priority power 2", "failed") == (
        "queue power: 2 is the priority of queue long, which has a filter too"
    )
    assert told(daemon, "set-queue-priority power 3") == "queue power: concurrency unlimited, priority 3"
    found += queues(daemon, daemon.insert(**row))
    assert found == ["long", "power"]


def test_a_filter_set_by_command_routes_and_lasts_until_the_file_changes_it_t51_t56(launch: Launch) -> None:
    text = LOCAL + puppet() + POWER + "[queues.night]\npriority = 1\nzone = 'Europe/Berlin'\n"
    daemon = launch(text.replace("priority = 1\nfilter", "priority = 2\nfilter"))
    assert told(daemon, "set-filter night sql or minutes > 60") == (
        "queue night: the filter is set, for jobs that are inserted from now on, with times of Europe/Berlin"
    )
    row = {"jq_type": "puppet", "jq_timeout": "2 hours"}
    found = queues(daemon, daemon.insert(**row))
    said = told(daemon, "set-filter night pg_sleep(9) is null", "failed")
    assert said.startswith("the filter, character 1: functions are not allowed; write comparisons like type = ")
    reload(daemon, text.replace("priority = 1\nfilter", "priority = 2\nfilter"))
    found += queues(daemon, daemon.insert(**row))
    assert told(daemon, "set-filter night") == "queue night: no filter"
    found += queues(daemon, daemon.insert(**row))
    told(daemon, "set-filter night urgent")
    reload(daemon, LOCAL + puppet() + "[queues.night]\nfilter = 'minutes > 60'\n")
    found += queues(daemon, daemon.insert(**row))
    assert found == ["night", "night", "default", "night"]


def test_two_filters_of_one_priority_are_refused_when_set_t53(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet() + POWER)
    told(daemon, "add-queue other 3")
    told(daemon, "set-queue-priority other 1")
    assert told(daemon, "set-filter other urgent", "failed") == (
        "queue other: its priority 1 is that of queue power, which has a filter too; "
        "set-queue-priority gives it another"
    )
    told(daemon, "set-queue-priority other 2")
    told(daemon, "set-filter other submitter = 'drover_frontend'")
    reload(daemon, LOCAL + puppet() + POWER)  # which does not name it
    row = {"jq_type": "puppet", "role": "drover_frontend"}
    assert queues(daemon, daemon.insert(**row)) == ["other"]


def test_a_filter_on_the_time_of_day_goes_by_the_zone_of_the_queue_c18_t52(launch: Launch) -> None:
    daemon = launch(
        LOCAL
        + puppet()
        + '[queues.now]\nzone = "Asia/Kathmandu"\npriority = 1\nfilter = "hour between 0 and 11"\n'
        + '[queues.then]\nzone = "Asia/Kathmandu"\npriority = 2\nfilter = "hour >= 12"\n'
    )
    pk = daemon.insert(jq_type="puppet", jq_args="true")
    hour = "select extract(hour from jq_queued at time zone 'Asia/Kathmandu') from drover.jobqueue where jq_pk = %s"
    assert queues(daemon, pk) == ["now" if daemon.value(hour, pk) < 12 else "then"]
    daemon.wait_all([pk])
