"""What is known of mutants: which tests reach them, what earlier runs found, which are equivalent, and the scores.

Notes of runs are in build/mutants and may be thrown away. equivalent.toml and scores.toml are kept with the sources.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.mutation.mutants import Mutant
from tests.mutation.warm import PRODUCT, ROOT, UNSEEN, Reached, Warm

PLACE: Final = ROOT / "build" / "mutants"
PORTION: Final = 200  # tests that are measured before what was measured is noted
EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")
SCORES: Final = Path(__file__).with_name("scores.toml")
NORMAL_95: Final = 1.96  # standard errors on each side that hold 95 % of cases


def digests() -> dict[str, str]:
    """Return a digest of each source of the product and of the tests."""
    files = [path for top in (*PRODUCT, "tests") for path in (ROOT / top).rglob("*.py")]
    return {str(path.relative_to(ROOT)): sha256(path.read_bytes()).hexdigest()[:16] for path in sorted(files)}


def reached(warm: Warm, jobs: int, place: Path) -> Reached:
    """Return which lines each test reaches: as noted in `place`, and measured where its file has changed."""
    now, file = digests(), place / "reached.json"
    saved = json.loads(file.read_text()) if file.exists() else {"digests": {}, "tests": {}, "durations": {}}
    tests = {module: {int(n): names for n, names in lines.items()} for module, lines in saved["tests"].items()}
    known = Reached(tests, saved["durations"])
    changed = {each for each in now.keys() | saved["digests"].keys() if now.get(each) != saved["digests"].get(each)}
    if any(not _is_test(each) for each in changed):
        known = Reached()
    known.forget({test for test in known.durations if test not in warm.items or _file(test) in changed})
    new = [test for test in warm.items if test not in known.durations]
    for start in range(0, len(new), PORTION):
        known.add(warm.measure(new[start : start + PORTION], jobs, place))
        part = file.with_suffix(".new")
        part.write_text(json.dumps({"digests": now, **asdict(known)}))
        part.replace(file)
    return known


def _is_test(file: str) -> bool:
    """Tell whether no other test depends on this file; nor do any on those of this package."""
    return file.startswith("tests/mutation/") or Path(file).name.startswith("test_")


def _file(test: str) -> str:
    return test.partition("::")[0]


class Found:
    """What earlier runs found, as long as it must be so still.

    A mutant that a test saw is not run again while its module and the test's file are unchanged; another, while its
    module and the files of all its tests are.
    """

    def __init__(self, place: Path) -> None:
        """Read it."""
        file = self.file = place / "found.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []  # the last may have been cut off
        self.notes: dict[str, tuple[str, str]] = {key: (by, stamp) for key, by, stamp in map(json.loads, lines)}
        self.digests = digests()

    def of(self, mutant: Mutant, tests: Sequence[str]) -> str | None:
        """Return the test that saw it, or UNSEEN; None if it is not known."""
        by, stamp = self.notes.get(_key(mutant), ("", ""))
        return by if stamp and stamp == self._stamp(mutant, by, tests) else None

    def note(self, mutant: Mutant, by: str, tests: Sequence[str]) -> None:
        """Note what a run found."""
        with self.file.open("a") as file:
            file.write(json.dumps([_key(mutant), by, self._stamp(mutant, by, tests)]) + "\n")

    def _stamp(self, mutant: Mutant, by: str, tests: Sequence[str]) -> str:
        which = [by] if by in tests else tests
        parts = [self.digests[mutant.module], *(test + self.digests.get(_file(test), "") for test in which)]
        return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _key(mutant: Mutant) -> str:
    return f"{mutant.module}: {mutant.name}"


def equivalent(file: Path = EQUIVALENT) -> dict[tuple[str, str], str]:
    """Return the reason why each listed mutant does what the product does, by its module and name."""
    listed = tomllib.loads(file.read_text())
    return {(module, each["mutant"]): each["reason"] for module, those in listed.items() for each in those}


def package(module: str) -> str:
    """Return the package that the score of a module belongs to; all of agents/ is one."""
    parts = Path(module).parts
    return "/".join(parts[: 1 if parts[0] == "agents" else 2])


def not_met(mutants: Iterable[Mutant], listed: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the listed mutants that cannot be made any more."""
    made = {(mutant.module, mutant.name) for mutant in mutants}
    return [f"{module}: {name}" for module, name in listed if (module, name) not in made]


@dataclass(frozen=True, slots=True)
class Score:
    """How many mutants of a package were tried, and how many of them a test saw."""

    tried: int
    seen: int

    @property
    def percent(self) -> float:
        """Return the part that was seen, rounded down to a tenth."""
        return math.floor(1000 * self.seen / self.tried) / 10 if self.tried else 0.0

    def interval(self) -> tuple[float, float]:
        """Return bounds of the score of all, with a confidence of 95 %, if these are a sample (Wilson)."""
        if not self.tried:
            return 0.0, 100.0
        n, p, z = self.tried, self.seen / self.tried, NORMAL_95
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return 100 * (middle - half) / (1 + z * z / n), 100 * (middle + half) / (1 + z * z / n)


def score(found: Iterable[str]) -> Score:
    """Return the score of what was found."""
    all_found = list(found)
    return Score(len(all_found), sum(by != UNSEEN for by in all_found))


def scores(text: str) -> dict[str, list[float]]:
    """Return the scores of each package in the order in which they were reached; the last one holds."""
    return {package: [each["score"] for each in those] for package, those in tomllib.loads(text).items()}
