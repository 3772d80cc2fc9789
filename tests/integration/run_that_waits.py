"""Not collected: test_ends_of_runs.py runs it by its name, and ends the run."""

import os
import signal
from pathlib import Path

from tests.integration.conftest import Launch
from tests.integration.daemon import agent, rec


def test_a_job_is_worked_on_while_the_test_waits(launch: Launch, tmp_path: Path) -> None:
    daemon = launch("[hosts.local]\n" + agent("rec", rec(tmp_path / "record")))
    daemon.wait(daemon.insert(jq_type="rec", jq_args=f"gate:{tmp_path / 'never'}"), "running")
    Path(os.environ["RUN_THAT_WAITS"]).write_text(f"{os.getpid()}\n")  # a named pipe
    signal.pause()
