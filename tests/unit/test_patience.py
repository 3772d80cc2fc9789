"""Waits of tests: each grows with the load, no rescan ends one, and one that its limit ends says what it was for."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemon import BASE
from tests.patience import line_of, named

ROOT = Path(__file__).parents[2]
WAITS = {
    "communicate", "create_connection", "join", "notifies", "run", "settimeout", "stop", "until", "urlopen", "wait",
    "wait_all", "wait_exit",
}  # fmt: skip
FEW_S = 10.0  # a test that nothing happens waits less


def test_seconds_of_a_wait_come_from_the_module_of_patience_and_grow_with_the_load() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in _literal_waits(path)]
    assert not found, "seconds of a test that may be over on a busy machine: " + ", ".join(found)


def test_no_rescan_comes_while_a_daemon_of_a_test_is_waited_for() -> None:
    """Otherwise a test passes on a busy machine, where it waits longer, since the rescan finds what was lost."""
    limit_s = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["timeout"]
    assert tomllib.loads(BASE)["scheduler"]["rescan"] > limit_s


def _literal_waits(path: Path) -> Iterator[int]:
    """Yield the lines where a file says in numbers how many seconds something may take."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in WAITS:
                seconds = [each.value for each in node.keywords if each.arg == "timeout"]
                if name in ("settimeout", "join") or ast.unparse(node.func).endswith("process.wait"):
                    seconds += node.args
            case ast.BinOp(left=ast.Call(func=ast.Attribute(attr="monotonic")), op=ast.Add(), right=right):
                seconds = [right]
            case _:
                continue
        if any(isinstance(each, ast.Constant) and isinstance(each.value, int | float) and each.value >= FEW_S
               for each in seconds):  # fmt: skip
            yield node.lineno


def test_a_wait_that_the_time_limit_ends_says_what_it_was_for() -> None:
    with (
        pytest.raises(AssertionError, match=r"job 7 is not done: Timeout \(>120.0s\)\njob 7 is blocked"),
        named(lambda: "job 7 is not done", lambda: "job 7 is blocked"),
    ):
        pytest.fail("Timeout (>120.0s)")


def test_another_failure_within_a_wait_stays_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), named(lambda: "it is not done", lambda: ""):
        raise ZeroDivisionError


def test_a_wait_without_a_name_is_named_by_its_line() -> None:
    assert line_of(sys._getframe()).startswith("not so yet: assert line_of(sys._getframe())")
