"""Faults that tests/faults plants: each can still be planted, and the tests that must see it are there."""

import ast
from pathlib import Path

import pytest

from scheduler.drivers.statements import expand
from scheduler.package_data import schema_dir
from tests.faults.mutants import MUTANTS, Mutant, edited
from tests.faults.planted import FAULTS, ROOT, Planted, UnplantableError, mutated
from tests.needs import PRESENT


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_its_tests_exist(fault: Planted) -> None:
    path, text = mutated(fault)
    assert text != path.read_text()
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(ROOT / file)
    assert set(fault.needs) <= set(PRESENT)


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.edits], ids=lambda mutant: mutant.name)
def test_a_fault_in_a_statement_of_the_daemon_can_be_planted(mutant: Mutant) -> None:
    queries = expand((schema_dir() / "queries.sql").read_text())
    assert edited(queries, mutant) != queries


def test_a_fault_whose_text_is_gone_cannot_be_planted() -> None:
    with pytest.raises(UnplantableError, match="x cannot be planted any more"):
        mutated(Planted("x", "scheduler/drivers/loop.py", "", "no such text", "", (), ()))


def test_a_fault_whose_text_occurs_twice_cannot_be_planted() -> None:
    with pytest.raises(
        UnplantableError, match=r"x cannot be planted any more: .* near 'def cancel' has 'call' 2 times"
    ):
        mutated(Planted("x", "scheduler/drivers/loop.py", "def cancel", "call", "", (), ()))


def test_every_fault_has_a_name_of_its_own_and_a_test() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(fault.tests for fault in FAULTS)
