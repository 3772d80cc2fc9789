"""The front-ends of etc/examples, each run as its author would, with the real daemon."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import IO

import pytest
from psycopg.conninfo import conninfo_to_dict

from scheduler.package_data import etc_dir
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon
from tests.integration.puppets import LOCAL, Meeting, puppet, rows
from tests.needs import NODE_PATH, need
from tests.patience import LONG_PATIENCE_S

EXAMPLES = etc_dir() / "examples"
PROGRAMS = {
    "psql": ["bash", str(EXAMPLES / "follow.sh")],
    "python": [sys.executable, str(EXAMPLES / "follow.py")],
    "node": ["node", str(EXAMPLES / "follow.js")],
    "php": ["php", str(EXAMPLES / "follow.php")],
}
NEEDS = {"psql": "psql", "python": "python", "node": "pg of node", "php": "pgsql of php"}
PARAMETERS = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER"}

Follow = Callable[..., "Example"]


class Example:
    """One of the programs at work."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def lines(self) -> list[str]:
        """Return all that it prints from now on."""
        return self._out.read().splitlines()

    def read_to(self, text: str) -> str:
        """Return the next line that has this text."""
        return next(line.rstrip("\n") for line in self._out if text in line)

    @property
    def _out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout


@pytest.fixture(params=PROGRAMS)
def follow(request: pytest.FixtureRequest, database_with_roles: str) -> Iterator[Follow]:
    """Start the example in one language: `follow(words..., role=...)`."""
    need(NEEDS[request.param])
    place = conninfo_to_dict(database_with_roles)
    variables = {PARAMETERS[key]: str(value) for key, value in place.items() if key in PARAMETERS}

    with ExitStack() as processes:

        def run(*words: str, role: str = "drover_frontend_sql") -> Example:
            environment = os.environ | variables | {"PGUSER": role, "NODE_PATH": NODE_PATH}
            argv = [*PROGRAMS[request.param], *words]
            process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)
            processes.enter_context(process)
            processes.callback(process.kill)
            return Example(process)

        yield run


def _job(daemon: Daemon) -> int:
    return int(daemon.value("select max(jq_pk) from drover.jobqueue where jq_type = 'puppet'"))


@pytest.mark.slow
def test_example_submits_and_follows_a_job_to_its_end_f27_j130(launch: Launch, follow: Follow) -> None:
    daemon = launch(LOCAL + puppet())
    example = follow("puppet", "true", role="drover_frontend")
    lines = example.lines()
    job = _job(daemon)
    assert (lines[0], lines[-1]) == (f"job {job} queued", f"job {job} done: all data processed")
    assert example.process.wait(LONG_PATIENCE_S) == 0


@pytest.mark.slow
def test_example_shows_the_progress_of_an_sql_job_f172(launch: Launch, follow: Follow, meeting: Meeting) -> None:
    daemon = launch(LOCAL + rows("puppet", f"if [ $n = 3 ]; then {meeting.wait}; fi"))
    example = follow("--sql", "puppet", "select n from generate_series(1, 3) n")
    assert example.read_to(" 2 of 3 items") == f"job {_job(daemon)} running: 2 of 3 items"
    meeting.let_go()
    assert example.lines()[-1] == f"job {_job(daemon)} done: all data processed"
    assert example.process.wait(LONG_PATIENCE_S) == 0


@pytest.mark.slow
def test_example_cancels_its_job_at_ctrl_c(launch: Launch, follow: Follow, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet())
    example = follow("puppet", f"{meeting.tell('begun')}; {meeting.wait}")
    assert meeting.hear() == "begun"
    example.read_to(" running")
    example.process.send_signal(signal.SIGINT)
    assert example.lines()[-1] == f"job {_job(daemon)} cancelled: cancelled by drover_frontend_sql"
    assert example.process.wait(LONG_PATIENCE_S) == 1


@pytest.mark.slow
def test_example_tells_why_a_job_failed(launch: Launch, follow: Follow) -> None:
    daemon = launch(LOCAL + puppet())
    example = follow("puppet", "echo FAIL no such file")
    assert example.lines()[-1] == f"job {_job(daemon)} failed: no such file"
    assert example.process.wait(LONG_PATIENCE_S) == 1


def test_example_ends_with_1_if_the_database_refuses_the_job(follow: Follow) -> None:
    example = follow("--sql", "puppet", "select 1", role="drover_frontend")
    assert example.lines() == []
    assert example.process.wait(LONG_PATIENCE_S) == 1
