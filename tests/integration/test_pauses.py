"""A daemon that did not run for a while, alone or with its agents: time in which it heard nobody is nobody's fault."""

import os
import time
from collections.abc import Sequence
from signal import SIGCONT, SIGSTOP

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent
from tests.integration.puppets import LOCAL

pytestmark = pytest.mark.slow

PAUSE_S = 4.5
DONE = "select count(*) from drover.jobqueue where jq_state = 'done'"
BEGUN = "select count(*) from drover.jobqueue where jq_state = 'running'"
WORK = "echo OK; while read -r line; do sleep 0.02; echo OK; done"
LONG = "echo OK; while read -r line; do sleep 0.5; echo OK; done"


def pause(daemon: Daemon, pids: Sequence[int]) -> None:
    """Stop these processes for a while; the daemon, if it is the last of them, longest."""
    for pid in reversed(pids):
        os.kill(pid, SIGSTOP)
    over = time.monotonic() + PAUSE_S
    daemon.until(lambda: time.monotonic() >= over, what="the pause does not end")
    for pid in pids:
        os.kill(pid, SIGCONT)


def wait_for_progress(daemon: Daemon) -> None:
    """Wait until one more job is done."""
    before = daemon.value(DONE)
    daemon.until(lambda: daemon.value(DONE) > before)


def died(daemon: Daemon) -> int:
    """Return how many agents were killed for being late."""
    return daemon.stderr().count("ST_RUNNING -> ST_FREEING")


@pytest.mark.parametrize("limit", ["heartbeat", "item_timeout"])
def test_items_finished_while_the_daemon_was_stopped_count_as_done(launch: Launch, limit: str) -> None:
    daemon = launch(LOCAL + agent("short", ["sh", "-c", WORK], slots=8, window=1, **{limit: 4}))
    jobs = daemon.insert_all([{"jq_type": "short", "jq_args": "x"}] * 600)
    for _ in range(3):
        wait_for_progress(daemon)
        pause(daemon, [daemon.pid])
    daemon.wait_all(jobs)
    assert died(daemon) == 0


def test_agents_stopped_together_with_the_daemon_miss_no_deadline(launch: Launch) -> None:
    daemon = launch(LOCAL + agent("long", ["sh", "-c", LONG], slots=4, heartbeat=4))
    jobs = daemon.insert_all([{"jq_type": "long", "jq_args": "x"}] * 40)
    daemon.until(lambda: daemon.value(BEGUN) == 4)
    pause(daemon, [*daemon.agent_pids(), daemon.pid])
    daemon.wait_all(jobs)
    assert died(daemon) == 0
