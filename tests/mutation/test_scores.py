"""The scores that were reached: a change may raise them, and none may lower them.

To measure takes a night, so what is checked here is that nobody lowered the file. `make mutants` fails when a score
that it measures is below the one in the file.
"""

import subprocess

from tests.mutation import notes
from tests.mutation.warm import ROOT

FILE = str(notes.SCORES.relative_to(ROOT))


def committed() -> dict[str, list[float]]:
    """Return the scores of the last commit; none where this is no clone."""
    shown = subprocess.run(["git", "show", f"HEAD:{FILE}"], cwd=ROOT, capture_output=True, text=True, check=False)
    return notes.scores(shown.stdout) if shown.returncode == 0 else {}


def test_scores_only_rise() -> None:
    assert [
        package
        for package, all_of_it in notes.scores(notes.SCORES.read_text()).items()
        if all_of_it != sorted(all_of_it)
    ] == []


def test_no_score_that_was_reached_is_taken_away() -> None:
    now = notes.scores(notes.SCORES.read_text())
    assert {package: now.get(package, [])[: len(old)] for package, old in committed().items()} == committed()
