"""The connections for the queries of SQL jobs: jobs whose agents are busy keep none that another could use."""

from pathlib import Path

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, rec

ROWS = 20_000  # of a query: more than are fetched at once
NEVER_ENDS = ["sh", "-c", "echo OK; read -r line; exec sleep 300"]


def occupy(daemon: Daemon, types: int, jobs: int, key: str | None) -> None:
    """Insert SQL jobs of types of one agent each, one type after the other, until each agent works on a row."""
    query = f"select n from generate_series(1, {ROWS}) n"
    for at in range(types):
        row = {"jq_type": f"busy{at}", "jq_args": query, "jq_msq": True, "jq_key": key}
        running = f"select count(*) from drover.jobs where jq_state = 'running' and jq_type = 'busy{at}'"
        daemon.insert_all([row] * jobs)
        daemon.until(lambda running=running: daemon.value(running), what=f"the agent of busy{at} is idle")


@pytest.mark.parametrize("key", [None, "n"], ids=["without a key", "with a key"])
@pytest.mark.parametrize(("types", "jobs"), [(3, 6), pytest.param(20, 3, marks=pytest.mark.slow)])
def test_sql_jobs_of_busy_types_keep_no_other_type_waiting_f49(
    launch: Launch, tmp_path: Path, types: int, jobs: int, key: str | None
) -> None:
    busy = [agent(f"busy{at}", NEVER_ENDS) for at in range(types)]
    daemon = launch("[hosts.alpha]\n" + "".join(busy) + agent("idle", rec(tmp_path / "record")))
    occupy(daemon, types, jobs, key)
    query = f"select n from generate_series(1, {ROWS // 100}) n"
    job = daemon.wait(daemon.insert(jq_type="idle", jq_args=query, jq_msq=True, jq_key=key))
    assert job["jq_itemsprocessed"] == len(lines(tmp_path / "record")) == ROWS // 100
