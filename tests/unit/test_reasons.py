"""A reason is never empty, and no child of the daemon shares its standard input."""

import ast
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.errors import WorldError, reason
from scheduler.ssh.connection_troubles import TROUBLES
from tests.package_tools import ROOT

PRODUCT = sorted((ROOT / "scheduler").rglob("*.py"))
STARTS, STREAMS = {"subprocess.run", "subprocess.Popen"}, {"stdin", "input"}
FOR_PEOPLE = {"scheduler/cli/database.py"}  # starts psql, in the person's terminal
EXAMINES = """
import sys
from pathlib import Path
from scheduler.database.postgres_binaries import examine
print(examine(Path(sys.argv[1])).version, sys.stdin.readline())
"""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (EOFError(), "the other side has closed it"),
        (TimeoutError(), "no answer in time"),
        (ValueError(), "ValueError"),
        (WorldError(" "), "WorldError"),
        (OSError(), "OSError"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (ConnectionResetError("gone"), "gone"),
        (KeyError("name"), "'name'"),
    ],
)
def test_an_error_always_has_a_reason(error: Exception, text: str) -> None:
    assert reason(error) == text


def caught_with_or(path: Path) -> Iterator[str]:
    """Yield each place where an exception stands before `or`: it is always true, so what follows never counts."""
    handlers = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.ExceptHandler)]
    for name, node in ((each.name, node) for each in handlers for node in ast.walk(each)):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and ast.unparse(node.values[0]) == name:
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_alternative_follows_an_exception_which_is_always_true() -> None:
    agents = [path for path in (ROOT / "agents").rglob("*") if path.is_file() and "python" in first_line(path)]
    assert [place for path in [*PRODUCT, *agents] for place in caught_with_or(path)] == []


def first_line(path: Path) -> str:
    lines = path.read_bytes().splitlines()
    return "python" if path.suffix == ".py" else lines[0].decode("ascii", "replace") if lines else ""


def started_without_stdin(path: Path) -> Iterator[str]:
    """Yield each start of a child that inherits our standard input."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in STARTS and not STREAMS & keywords(node):
            yield f"{path.relative_to(ROOT)}: {ast.unparse(node.args[0])}"


def keywords(call: ast.Call) -> set[str | None]:
    return {each.arg for each in call.keywords}


def test_no_child_inherits_standard_input() -> None:
    """The guardian of an embedded server has /dev/null itself."""
    files = [path for path in PRODUCT if str(path.relative_to(ROOT)) not in FOR_PEOPLE]
    places = [place for path in files for place in started_without_stdin(path)]
    assert places == ["scheduler/database/embedded_guardian.py: [*namespace, 'true']"]


def test_binaries_of_postgres_read_no_jobs_of_the_daemon(tmp_path: Path) -> None:
    program = tmp_path / "postgres"
    program.write_text('#!/bin/sh\nread -r line\necho "postgres (PostgreSQL) 15.1$line"\n')
    program.chmod(0o755)
    argv = [sys.executable, "-c", EXAMINES, str(tmp_path)]
    done = subprocess.run(argv, input="7\n", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "15.1 7"


# ---- the manual


def as_in_manual(template: str) -> str:
    """Return a sentence of the table as drover(8) has it: fields in capitals, no quotes of commands."""
    parts = string.Formatter().parse(template.replace("`", ""))
    return "".join(text + {None: "", "said": ""}.get(name, str(name).upper()) for text, name, *_ in parts)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_manual_lists_each_trouble_and_what_to_do(trouble: str) -> None:
    manual = " ".join((ROOT / "man/drover.8").read_text().split())
    assert ": ".join(map(as_in_manual, TROUBLES[trouble])) in manual
