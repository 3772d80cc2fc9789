"""A run of the tests that ends by a signal leaves no process: no daemon, guardian, agent or database server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM
from typing import NamedTuple

import pytest

from tests.integration.daemon import below, is_gone, watch
from tests.needs import need
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
WAITS = "tests/integration/run_that_waits.py"


class Run(NamedTuple):
    """A pytest whose only test waits for ever: the process that was started, and the one that runs the test."""

    process: "subprocess.Popen[bytes]"
    tester: int


@contextmanager
def waiting_run(folder: Path, *options: str) -> Iterator[Run]:
    """Start a run and wait until its test waits."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder / 'run'}", *options, WAITS]
    around = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    around["RUN_THAT_WAITS"] = str(pipe)
    with (
        (folder / "said").open("wb") as said,
        subprocess.Popen(argv, cwd=ROOT, env=around, stdout=said, stderr=said) as process,
    ):
        try:
            yield Run(process, int(pipe.read_text()))
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "workers"), [(SIGTERM, "0"), (SIGINT, "1"), (SIGKILL, "0"), (SIGKILL, "1")])
def test_a_test_run_ended_by_a_signal_leaves_no_process(number: int, workers: str, tmp_path: Path) -> None:
    need("postgres")
    with waiting_run(tmp_path, "-n", workers) as run:
        started = [watch(pid) for pid in below(run.process.pid)]
        run.process.send_signal(number)
        run.process.wait(PATIENCE_S)
        left = [pid for pid, fd in started if not is_gone(fd)]
    assert (left, len(started) > 8) == ([], True)  # guard, pytest, daemon and guardian, agent, database and guardian


@pytest.mark.slow
def test_a_test_run_whose_worker_is_killed_leaves_no_process(tmp_path: Path) -> None:
    need("postgres")
    with waiting_run(tmp_path, "-n1", "--max-worker-restart=0") as run:
        started = [watch(pid) for pid in below(run.process.pid)]
        os.kill(run.tester, SIGKILL)
        status = run.process.wait(PATIENCE_S)
        left = [pid for pid, fd in started if not is_gone(fd)]
    assert (status, left, len(started) > 8) == (1, [], True)
