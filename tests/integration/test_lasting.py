"""What must hold for months, in small: memory, and the name of the process."""

from pathlib import Path

import pytest

from tests.agent_tools import AGENTS
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent
from tests.patience import LONG_PATIENCE_S

FILL = "insert into drover.jobqueue (jq_type, jq_args) select 'noop', i::text from generate_series(1, %s) i"
LEFT = "select count(*) from drover.jobqueue where jq_endtime is null"


def work(daemon: Daemon, jobs: int) -> int:
    """Let it do jobs; its resident kilobytes afterwards."""
    daemon.execute(FILL, jobs)
    daemon.until(lambda: daemon.value(LEFT) == 0, timeout=2 * LONG_PATIENCE_S)
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def test_ps_shows_the_daemon_by_its_group_j104(launch: Launch) -> None:
    daemon = launch("[scheduler]\ngroup = 'a-long-name-of-a-group'\n[hosts.alpha]\n" + agent("noop", ["true"]))
    assert Path(f"/proc/{daemon.pid}/comm").read_text() == "drover a-long-n\n"


@pytest.mark.slow
def test_memory_after_20000_jobs_equals_memory_after_5000_j10(launch: Launch) -> None:
    daemon = launch("[hosts.alpha]\n" + agent("noop", [str(AGENTS / "noop/drover-agent-noop")], slots=2))
    first = [work(daemon, 1000) for _ in range(5)][-1]
    later = [work(daemon, 1000) for _ in range(15)][-1]
    assert later < 1.1 * first
