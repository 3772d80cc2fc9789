"""Thousands of jobs and dozens of faults: nothing is lost, each ends once, no (pk, attempt) twice."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.faults.server import server
from tests.faults.settings import FULL
from tests.faults.site import RETRIED, Site, Tally
from tests.faults.soak import Soak
from tests.needs import need

JOBS, FAULTS = (20_000, 100) if FULL else (2_000, 15)
SEED = 12
UNEXPECTED = """
select count(*) from drover.jobqueue
 where jq_state <> 'done' and not (jq_state = 'failed' and jq_args ~ 'stuck:')
   and not (jq_state = 'cancelled' and jq_args = 'long')  -- a job of the tester, when nothing waited for it any more
"""
FIGURES = """
select count(*), count(*) filter (where jq_attempt > 1), sum(jq_rescued), sum(jq_failures), sum(jq_interruptions)
  from drover.jobqueue
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory(prefix="drover-faults-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def seed(capfd: pytest.CaptureFixture[str]) -> int:
    """Return the seed: the same in every run of the suite, another in each long one; shown before anything begins."""
    chosen = os.environ.get("DROVER_FAULTS_SEED") or (random.SystemRandom().randrange(1 << 32) if FULL else SEED)
    with capfd.disabled():  # what is captured is lost with a process that hangs and is killed
        print(f"\nsoak: seed {chosen} (DROVER_FAULTS_SEED)", flush=True)
    return int(chosen)


@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 1200)
@pytest.mark.fault(f"soak: {JOBS} jobs, {FAULTS} faults")
def test_a_soak_loses_no_job_and_ends_each_once(place: Path, tmp_path: Path, tally: Tally, seed: int) -> None:
    need("postgres account")
    with server(place / "pg") as own, Site(own.conninfo, tmp_path, tally) as site:
        site.lasting = RETRIED  # for those whose agent is killed, and for no other: see below
        soak = Soak(site, own, seed)
        soak.run(JOBS, FAULTS)
        assert site.settle(patience=120.0) == [], f"seed {seed}"
        assert site.value(UNEXPECTED) == 0
        assert site.failures() <= soak.agents_killed, f"seed {seed}"
        jobs, repeated, rescued, failures, interruptions = site.rows(FIGURES)[0]
    tally.notes.append(
        f"seed {seed}: {jobs} jobs, {sum(soak.faults.values())} faults {soak.faults}; {repeated} jobs were begun again:"
        f" {rescued} rescues, {failures} failures, {interruptions} interruptions"
    )
