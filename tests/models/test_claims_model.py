"""The model of claims by batch record (claims.pml), searched by Spin: whole, and with each of its rules left out."""

import subprocess
from pathlib import Path

import pytest

from tests.needs import need

MODEL = Path(__file__).with_name("claims.pml")

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _the_checker() -> None:
    need("spin")
    need("gcc")


def search(directory: Path, *names: str, optimised: str = "-O1") -> str:
    """Search all states of the model with these names defined, and return Spin's report.

    With some 100,000 states, compiling takes longer than the search; with millions of them -O2 pays.
    """
    defined = [f"-D{name}" for name in names]
    subprocess.run(["spin", *defined, "-a", str(MODEL)], cwd=directory, check=True, capture_output=True)
    subprocess.run(["gcc", optimised, "-w", "-DSAFETY", *defined, "-o", "pan", "pan.c"], cwd=directory, check=True)
    found = subprocess.run(["./pan", "-m1000", "-w23"], cwd=directory, check=True, capture_output=True, text=True)
    return found.stdout


def assert_nothing_is_wrong(report: str) -> None:
    assert "errors: 0" in report
    assert "not completed" not in report
    assert "too small" not in report  # the depth of the search


@pytest.mark.parametrize("size", [("FAULTS=1", "COMMANDS=0"), ("FAULTS=0", "COMMANDS=1")])
def test_no_claim_is_lost_or_doubled(tmp_path: Path, size: tuple[str, ...]) -> None:
    assert_nothing_is_wrong(search(tmp_path, *size))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "size", [("FAULTS=2", "COMMANDS=0"), ("FAULTS=1", "COMMANDS=1"), ("JOBS=3", "FAULTS=1", "COMMANDS=0")]
)
def test_no_claim_is_lost_or_doubled_in_millions_of_states(tmp_path: Path, size: tuple[str, ...]) -> None:
    assert_nothing_is_wrong(search(tmp_path, *size, optimised="-O2"))


@pytest.mark.parametrize(
    "rule", ["RECORD", "OWNED_RECORD", "NEW_ATTEMPT", "NEW_NAME", "COMPARISON", "MARK", "FENCES", "TOKEN"]
)
def test_a_rule_that_is_left_out_is_missed(tmp_path: Path, rule: str) -> None:
    size = ("FAULTS=0", "COMMANDS=1") if rule == "TOKEN" else ("FAULTS=1", "COMMANDS=0")
    assert "errors: 1" in search(tmp_path, f"WITHOUT_{rule}", *size)


@pytest.mark.parametrize("fence", ["OWNER", "ATTEMPT"])
def test_one_fence_is_enough(tmp_path: Path, fence: str) -> None:
    assert_nothing_is_wrong(search(tmp_path, f"WITHOUT_{fence}", "FAULTS=1", "COMMANDS=0"))
