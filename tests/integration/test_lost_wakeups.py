"""What only a rescan found, since its notification was lost, is logged and counted for drover metrics."""

from pathlib import Path

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import agent, rec

TEXT = "[scheduler]\nrescan = 1\nstatus_interval = 1\n[hosts.alpha]\n"  # tests are about the rescan
# Only the daemon's own probe of LISTEN arrives: without it the queue would be polled.
LOSE = """
create or replace function drover.notify(channel text, payload text) returns void language sql as
  'select pg_notify(channel, payload) where channel like ''drover_probe%'''
"""
COUNTED = "select counter_labels[1] as kind from drover.counter where counter_name = 'found_late'"


@pytest.mark.slow
def test_a_job_that_only_a_rescan_found_is_logged_and_counted(launch: Launch, record: Path) -> None:
    daemon = launch(TEXT + agent("a", rec(record)), rescan_helps="nothing is notified")
    daemon.execute(LOSE)
    for _ in range(4):  # the first rescan looks for what was missed before, and counts nothing
        daemon.wait(daemon.insert(jq_type="a"))
    assert daemon.until(lambda: {"kind": "jobs"} in daemon.execute(COUNTED), what="it is not counted")
    assert "jobs: a notification or an event was lost" in daemon.stderr()


@pytest.mark.slow
def test_a_command_that_only_a_rescan_found_is_counted(launch: Launch, record: Path) -> None:
    daemon = launch(TEXT + agent("a", rec(record)), rescan_helps="nothing is notified")
    daemon.execute(LOSE)
    for _ in range(4):
        daemon.wait(daemon.insert(jq_type="command", jq_args="status", role="drover_operator"))
    assert daemon.until(lambda: {"kind": "commands"} in daemon.execute(COUNTED), what="it is not counted")


@pytest.mark.slow
def test_what_notifications_tell_of_is_not_counted_between_rescans(launch: Launch, record: Path) -> None:
    daemon = launch(TEXT + agent("a", rec(record)))
    for _ in range(20):
        daemon.wait(daemon.insert(jq_type="a"))
    daemon.wait(daemon.insert(jq_type="command", jq_args="status", role="drover_operator"))
    assert daemon.execute(COUNTED) == []
