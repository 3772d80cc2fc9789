"""Hundreds of agents on one daemon, within the limit of open files that a login gets."""

import resource
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import agent
from tests.patience import LONG_PATIENCE_S

AGENTS = 500
USUAL_FILES = 1024
SLEEPER = ["sh", "-c", "echo OK; read line; exec sleep 1000"]
WORKING = "select count(*) from drover.scheduler_status where status_state_name = 'ST_RUNNING'"


@pytest.fixture
def few_files() -> Iterator[None]:
    """Have the limit of open files that a login has, for us and what we start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL_FILES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_five_hundred_agents_work_at_once_t49(launch: Launch, few_files: None) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("sleeper", SLEEPER, slots=AGENTS))
    pks = daemon.insert_all([{"jq_type": "sleeper", "jq_args": str(n)} for n in range(AGENTS)])
    daemon.until(
        lambda: daemon.value(WORKING) == AGENTS,
        timeout=2 * LONG_PATIENCE_S,
        what=f"{AGENTS} agents do not work at once",
    )
    assert len(daemon.agent_pids()) == AGENTS
    assert resource.prlimit(daemon.agent_pids()[0], resource.RLIMIT_NOFILE)[0] == USUAL_FILES
    assert daemon.stop() == 0
    assert {row["jq_state"] for row in daemon.wait_all(pks, "queued")} == {"queued"}
