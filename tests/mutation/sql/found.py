"""What earlier runs found, as long as it must be so still.

A mutant that a test saw is not run again while its object and the test's file are unchanged; one that no test saw,
while its object and all files of tests are.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from tests.mutation.sql.mutants import Mutant
from tests.mutation.warm import ROOT, UNSEEN


def digests(folders: Sequence[str]) -> dict[str, str]:
    """Return a digest of each file of tests."""
    files = [path for folder in folders for path in ([ROOT / folder] if folder.endswith(".py") else _below(folder))]
    return {str(path.relative_to(ROOT)): _digest(path.read_text()) for path in files}


def _below(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


class Found:
    """Which test saw each mutant, and which saw the last one of an object."""

    def __init__(self, place: Path, files: dict[str, str]) -> None:
        """Read it."""
        self.file = place / "found.jsonl"
        lines = self.file.read_text().split("\n")[:-1] if self.file.exists() else []  # the last may have been cut off
        self.notes: dict[str, tuple[str, str]] = {name: (by, stamp) for name, by, stamp in map(json.loads, lines)}
        self.files = files
        self.last: dict[str, str] = {}

    def of(self, mutant: Mutant) -> str | None:
        """Return the test that saw it, or UNSEEN; None if it is not known."""
        by, stamp = self.notes.get(mutant.name, (UNSEEN, ""))
        return by if stamp == self._stamp(mutant, by) else None

    def note(self, mutant: Mutant, by: str) -> None:
        """Note what a run found."""
        self.last[mutant.object] = by or self.last.get(mutant.object, "")
        with self.file.open("a") as file:
            file.write(json.dumps([mutant.name, by, self._stamp(mutant, by)]) + "\n")

    def _stamp(self, mutant: Mutant, by: str) -> str:
        files = json.dumps(self.files) if by == UNSEEN else self.files.get(by.partition("::")[0], "")
        return _digest(mutant.sql + mutant.text + files)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
