"""Jobs that end are freed without the cyclic garbage collector, which runs rarely in a daemon (drivers/os_calls.py)."""

import gc
from collections.abc import Iterator

import pytest

from tests.core_tools import make_core
from tests.counts.lockstep import Lockstep
from tests.counts.memory import Memory

JOBS = 1000


@pytest.fixture
def _uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_uncollected")
def test_jobs_that_ended_leave_nothing_to_the_collector_p1() -> None:
    memory = Memory()
    daemon = Lockstep(memory, make=make_core)
    for _ in range(3):  # jobs of a moment ago are still known
        memory.put(JOBS)
        daemon.work(JOBS)
    assert gc.collect() < JOBS // 10


@pytest.mark.usefixtures("_uncollected")
def test_rows_that_were_worked_leave_nothing_to_the_collector_p2() -> None:
    memory = Memory()
    daemon = Lockstep(memory, make=make_core)
    memory.put_query(JOBS)
    daemon.work(JOBS)
    assert gc.collect() < JOBS // 10
