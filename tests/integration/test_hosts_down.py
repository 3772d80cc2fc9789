"""A host that cannot be reached, under the real daemon and a real sshd: every list says since when, why, and what next.

Jobs are bound to no host, or there are none: whoever reads a list learns of the host all the same.
"""

import json
import re
from pathlib import Path

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, agent, rec
from tests.integration.ssh_tools import ALPHA, reached, table
from tests.ssh.sshd import Server

QUICK = "[scheduler]\nrespawn_count = 1\n"
WARNED = re.compile(
    r"host beta, for 0:\d\d:\d\d: host beta cannot be reached, "
    r"(next attempt 20\S+ \S+|an attempt is being made): .*refused.*"
)


def warned(ask: Ask, line: str) -> list[str]:
    """Return the lines of a command's output that warn of the host in full."""
    return [text for text in ask(line).out.splitlines() if WARNED.search(text)]


def is_down(daemon: Daemon) -> bool:
    return bool(daemon.value("select host_reason ~ 'refused' from drover.host where host_name = 'beta'"))


@pytest.mark.slow
def test_host_that_went_down_while_idle_is_in_every_list(launch: Launch, beta: Server, record: Path, ask: Ask) -> None:
    daemon = launch(QUICK + ALPHA + table("beta", beta) + agent("rec", rec(record)))
    reached(daemon)
    assert not warned(ask, "health")
    beta.kill()
    assert daemon.until(lambda: is_down(daemon))
    assert [len(warned(ask, line)) for line in ("health", "status", "check")] == [1, 1, 1]
    (shown,) = [row for row in map(json.loads, ask("host list --json").out.splitlines()) if row["host"] == "beta"]
    assert (bool(shown["down_since"]), bool(shown["down_until"]), "refused" in shown["reason"]) == (True, True, True)
    assert ask("health").status == 1
    beta.begin()
    assert daemon.until(lambda: not warned(ask, "health"))
    assert daemon.value("select host_down_since is null from drover.host where host_name = 'beta'")


@pytest.mark.slow
def test_host_that_went_down_at_work_is_warned_of_though_its_jobs_go_elsewhere(
    launch: Launch, beta: Server, record: Path, ask: Ask, gate: Path
) -> None:
    daemon = launch(QUICK + ALPHA + table("beta", beta) + agent("rec", rec(record), slots=1))
    reached(daemon)
    jobs = daemon.insert_all([{"jq_type": "rec", "jq_args": f"gate:{gate}"}] * 2)
    daemon.wait_all(jobs, "running")
    beta.kill()
    assert daemon.until(lambda: is_down(daemon))
    (told,) = warned(ask, "health")
    assert "jobs that wait for it" not in told
    gate.touch()
    daemon.wait_all(jobs)


@pytest.mark.slow
def test_host_is_down_since_its_first_failure_over_further_attempts(
    launch: Launch, beta: Server, record: Path, ask: Ask
) -> None:
    since = "select host_down_since from drover.host where host_name = 'beta'"
    until = "select host_down_until from drover.host where host_name = 'beta'"
    beta.kill()
    daemon = launch(QUICK + table("beta", beta) + agent("rec", rec(record)))
    assert daemon.until(lambda: is_down(daemon))
    first, tried = daemon.value(since), daemon.value(until)
    assert daemon.until(lambda: daemon.value(until) > tried)
    assert daemon.value(since) == first is not None
