"""The table of faults is printed by its command, and every test that it names exists."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.table import ELSEWHERE

ROOT = Path(__file__).parents[2]
ONE = "tests/faults/test_failpoints.py::test_fault_points_are_parsed_with_their_number"


def run(*words: str) -> tuple[int, str]:
    """Run Python with these words; return its status and what it printed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.slow
def test_the_command_runs_tests_and_prints_their_row() -> None:
    status, said = run("-m", "tests.faults", ONE)
    assert status == 0, said
    assert said.splitlines()[-1].split() == ["failpoints:", "what", "they", "are", "0", "0", "-", "-"]


@pytest.mark.slow
def test_every_test_that_a_row_names_exists() -> None:
    ids = [each for group in ELSEWHERE.values() for each in group]
    status, said = run("-m", "pytest", "--collect-only", *ids)
    assert status == 0, said
