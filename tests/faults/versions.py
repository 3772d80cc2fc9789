"""Other versions of the program on the databases of the suite.

`Version` unpacks the wheel that is kept of the previous one into a folder, which is its environment: its packages come
before ours on the path, and what it needs of others is what we need. `Copy` is this version, to be replaced while its
daemons run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final
from zipfile import ZipFile

KEPT: Final = Path(__file__).parents[1] / "versions"
ROOT: Final = KEPT.parents[1]
PARTS: Final = ("scheduler", "schema", "agents", "etc")
LIMIT_S: Final = 120


def wheel() -> Path:
    """Return the wheel of the last version; there is one."""
    (found,) = KEPT.glob("*/*.whl")
    return found


class Version:
    """The last version, unpacked."""

    knows_queues = False  # their filters and rates
    settings = ""  # of its daemons, in [scheduler]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with ZipFile(wheel()) as packed:
            packed.extractall(folder)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which its modules are found, and not ours."""
        return {"PYTHONPATH": str(self.folder)}

    @property
    def migrations(self) -> list[str]:
        """Return the names of the migrations that it knows."""
        return sorted(path.name for path in self.folder.glob("scheduler/_data/schema/migrations/*.sql"))

    def run(self, *words: str, database: str) -> "subprocess.CompletedProcess[str]":
        """Run one of its commands on a database."""
        around = os.environ | self.environment | {"DROVER_DATABASE_URL": database}
        command = [sys.executable, "-m", "scheduler.cli.main", *words]
        return subprocess.run(
            command, env=around, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )


class Copy(Version):
    """This version, whose daemons go on as the new program when it is replaced."""

    knows_queues = True
    settings = "reexec = true\n"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in PARTS:
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))

    def replace(self) -> None:
        """Put another program there: one line longer."""
        with (self.folder / "scheduler" / "package_data.py").open("a") as file:
            file.write("# another\n")
