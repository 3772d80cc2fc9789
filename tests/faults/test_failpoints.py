"""Failpoints: how they are written, how often they fail, and what arming replaces."""

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.drivers.statements import load
from scheduler.package_data import schema_dir
from tests.faults.failpoints import Point, Points, arm, parse
from tests.faults.walk import POINTS, SHOWN_ELSEWHERE

pytestmark = pytest.mark.fault("failpoints: what they are")
ROOT = Path(__file__).parents[2]
# Prints what the drivers call that arming replaces; in a process of its own, for there is no disarming.
REPLACED = """
import os
from psycopg import pq
from scheduler.drivers import local_process
from tests.faults.failpoints import arm
def called():
    places = {"os": os, "pq": pq, "local_process": local_process}
    return {f"{name}.{each}": value for name, place in places.items() for each, value in vars(place).items()}
before = called()
arm("end_and_claim:before=kill")
after = called()
print(*sorted(name for name in before if before[name] != after[name]))
"""


@pytest.mark.slow
def test_arming_replaces_what_the_drivers_call() -> None:
    done = subprocess.run([sys.executable, "-c", REPLACED], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["local_process.pidfd_of", "local_process.pipes", "os.write", "pq.PGconn"]


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
