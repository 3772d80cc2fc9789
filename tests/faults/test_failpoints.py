"""Failpoints: how they are written, how often they fail, and what arming replaces."""

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.drivers.sql import load
from scheduler.package_data import schema_dir
from tests.faults.failpoints import Point, Points, arm, parse
from tests.faults.walk import POINTS, SHOWN_ELSEWHERE

pytestmark = pytest.mark.fault("failpoints: what they are")
ROOT = Path(__file__).parents[2]
# Prints every function of the drivers that arming replaces; in a process of its own, for there is no disarming.
REPLACED = """
import inspect
from scheduler.drivers import agentdb, libpq, pipes, job_queries, postgres, process_spec
from scheduler.drivers import processes, queue
from tests.faults.failpoints import arm
modules = (agentdb, libpq, pipes, job_queries, postgres, process_spec, processes, queue)
def functions():
    classes = [c for m in modules for _, c in inspect.getmembers(m, inspect.isclass) if c.__module__ == m.__name__]
    found = [(o.__name__, n, f) for o in (*modules, *classes) for n, f in vars(o).items() if inspect.isfunction(f)]
    return {(owner, name): f for owner, name, f in found}
before = functions()
arm("end_and_claim:before=kill")
after = functions()
print(*sorted(".".join(key) for key in before if before[key] != after[key]))
"""


def test_arming_replaces_five_functions_of_the_drivers() -> None:
    done = subprocess.run([sys.executable, "-c", REPLACED], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == [
        "Pipes._write_rest", "Pipes.write", "Processes._start", "Session._finish", "Session._write",
    ]  # fmt: skip


def test_fault_points_are_parsed_with_their_number() -> None:
    assert parse("end_and_claim:before=kill@3, write:after=stop,line.note:after=error") == [
        Point("end_and_claim", "before", "kill", 3),
        Point("write", "after", "stop"),
        Point("line.note", "after", "error"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "end_and_claim",
        "end_and_claim:during=kill",
        "end_and_claim:before=burn",
        "end_and_claim:before=kill@0",
        "end_and_clam:before=kill",
        "end_and_claim:before=kill,",
    ],
)
def test_a_mistake_in_fault_points_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="FAULTS_POINTS: "):
        arm(text)


def test_every_mistake_is_reported() -> None:
    with pytest.raises(ValueError, match="FAULTS_POINTS: ") as told:
        parse("x,end_and_claim:before=kill,y:before=stop")
    assert len(str(told.value).splitlines()) == 2


def test_a_fault_point_fails_once_at_its_number() -> None:
    points = Points(parse("end_and_claim:before=error@2"))
    assert [points.reach("end_and_claim", "before") for _ in range(4)] == [False, True, False, False]
    assert not points.reach("end_and_claim", "after")


def test_the_walk_covers_every_statement() -> None:
    assert set(load((schema_dir() / "queries.sql").read_text())) < {*POINTS, *SHOWN_ELSEWHERE}
