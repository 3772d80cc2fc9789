"""Copies of the program that tests change while a daemon runs them."""

import re
import shutil
from pathlib import Path

from tests.integration.daemon import Daemon

ROOT = Path(__file__).parents[2]
PARTS = ("scheduler", "schema", "agents", "etc")
GOES_ON = "the new program goes on"


def copy_program(folder: Path) -> Path:
    """Copy the sources of the program, and return where they are: a compiled module would hide what a test changes."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return folder


def replace(program: Path, new: str = "new") -> None:
    """Put another program there: it has another version."""
    path = program / "scheduler" / "package_data.py"
    path.write_text(re.sub(r"return .*metadata", f'return "{new} " + metadata', path.read_text()))


def again(daemon: Daemon, times: int = 1) -> None:
    daemon.until(lambda: daemon.stderr().count(GOES_ON) == times, what="no other program goes on")


def change(program: Path, name: str, old: str, new: str) -> None:
    """Change a file of the program; the text must be there."""
    path = program / "scheduler" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
