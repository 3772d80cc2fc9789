"""The shipped files are found, installed or not, and their version says how."""

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from scheduler.cli import bundled_agents
from scheduler.package_data import agents_dir, etc_dir, schema_dir, version
from tests.builds import IS_COMPILED


@pytest.mark.parametrize("directory", [schema_dir, etc_dir, agents_dir])
def test_shipped_directory_is_there(directory: Callable[[], Path]) -> None:
    assert directory().is_dir()
    assert any(directory().iterdir())


def test_version_says_whether_the_core_is_compiled() -> None:
    assert version().endswith(" (compiled)") == IS_COMPILED


def test_every_bundled_agent_is_a_command_of_the_environment() -> None:
    scripts = entry_points(group="console_scripts")
    commands = {script.name for script in scripts if script.value == f"{bundled_agents.__name__}:main"}
    assert commands == {path.name for path in agents_dir().glob("*/drover-agent-*")}


def test_the_command_of_an_agent_becomes_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, argv: started.append([program, *argv]))
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/drover-agent-sha256", "--save", "x"])
    bundled_agents.main()
    program = str(agents_dir() / "sha256" / "drover-agent-sha256")
    assert started == [[sys.executable, sys.executable, program, "--save", "x"]]
