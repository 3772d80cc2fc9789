"""The previous version of the program, from the wheel that is kept of it, on the databases of the suite.

`Version` unpacks the wheel into a folder, which is its environment: its packages come before ours on the path, and
what it needs of others is what we need.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final
from zipfile import ZipFile

KEPT: Final = Path(__file__).parents[1] / "versions"
LIMIT_S: Final = 120


def wheel() -> Path:
    """Return the wheel of the last version; there is one."""
    (found,) = KEPT.glob("*/*.whl")
    return found


class Version:
    """The last version, unpacked."""

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
