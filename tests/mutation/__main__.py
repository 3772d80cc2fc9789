"""Run the mutants of modules: `python -m tests.mutation [MODULE ...]`; all of model/ and policy/ if none is named.

In model/ and policy/ all functions count. In other packages, such as scheduler/cli, those count that a test reaches:
the tests are those that run in one process, so they reach what is pure, and what does input and output is left out.

Mutants are tried in an order drawn by a seed, so that a run that ends at its budget has tried a fair sample. What was
found is noted, and a later run goes on from there. Prints those that no test saw, and the scores. The exit status is 1
when the score of a whole package is below the one in scores.toml.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutation import mutants, notes
from tests.mutation.mutants import Mutant
from tests.mutation.notes import Found
from tests.mutation.warm import ROOT, TESTS, UNSEEN, Reached, Warm, serve

PACKAGES: Final = ("scheduler/model", "scheduler/policy")  # all of their functions count


@dataclass(slots=True)
class Results:
    """What was found of each mutant that was tried, and how many had been chosen."""

    found: list[tuple[Mutant, str]] = field(default_factory=list)
    chosen: int = 0

    def packages(self) -> set[str]:
        """Return the packages of which a mutant was tried."""
        return {notes.package(mutant.module) for mutant, _ in self.found}


def main(words: Sequence[str]) -> int:
    """Try them, and print what was found."""
    options = _options(words)
    options.notes.mkdir(parents=True, exist_ok=True)
    results = Results()
    with TemporaryDirectory() as place:
        os.environ["TMPDIR"] = place
        status = serve(lambda warm: _run(warm, options, results), options.tests)
    if status or not results.found:
        return status or 2
    survivors = [mutant for mutant, by in results.found if by == UNSEEN]
    for mutant in sorted(survivors, key=lambda each: (each.module, each.lines.start)):
        print(f"\n{mutant.module}:{mutant.lines.start} {mutant.function}\n{mutant.diff}")
        print(f"mutant = {json.dumps(mutant.name)}")
    return max([_report(package, results, options) for package in sorted(results.packages())], default=0)


def _run(warm: Warm, options: argparse.Namespace, results: Results) -> None:
    reached = notes.reached(warm, options.jobs, options.notes)
    listed = notes.equivalent()
    chosen = [each for path in options.modules for each in _mutants(path, reached)]
    chosen = [each for each in chosen if (each.module, each.name) not in listed]
    chosen = Random(options.seed).sample(chosen, min(options.sample or len(chosen), len(chosen)))
    results.chosen = len(chosen)
    found = Found(options.notes)
    known = {id(each): found.of(each, reached.of(each)) for each in chosen}
    results.found += [(each, by) for each in chosen if (by := known[id(each)]) is not None]
    left = [each for each in chosen if known[id(each)] is None]
    print(f"{len(chosen)} mutants, {len(left)} of them to try", flush=True)
    began = time.monotonic()
    for mutant, by in warm.run(_until(_work(left, reached), options.minutes), options.jobs):
        found.note(mutant, by, reached.of(mutant))
        results.found.append((mutant, by))
    print(f"tried in {time.monotonic() - began:.0f} s; {len(chosen) - len(results.found)} not tried", flush=True)


def _mutants(path: Path, reached: Reached) -> list[Mutant]:
    """Return the mutants of a module that count."""
    module = str(path.relative_to(ROOT))
    return mutants.of_module(path, ROOT, None if notes.package(module) in PACKAGES else reached.lines(module))


def _work(left: Sequence[Mutant], reached: Reached) -> Iterator[tuple[Mutant, Sequence[str], float]]:
    for mutant in left:
        tests = reached.of(mutant)
        yield mutant, tests, sum(reached.durations[test] for test in tests)


def _until(
    work: Iterator[tuple[Mutant, Sequence[str], float]], minutes: float | None
) -> Iterator[tuple[Mutant, Sequence[str], float]]:
    end = None if minutes is None else time.monotonic() + 60 * minutes
    for each in work:
        if end is not None and time.monotonic() > end:
            return
        yield each


def _report(package: str, results: Results, options: argparse.Namespace) -> int:
    """Print the score of a package; return 1 if all of it was tried and the score has fallen."""
    score = notes.score(by for mutant, by in results.found if notes.package(mutant.module) == package)
    low, high = score.interval()
    print(f"{package}: {score.percent} %, {score.seen} of {score.tried} mutants were seen ({low:.1f} to {high:.1f})")
    reached = notes.scores(notes.SCORES.read_text()).get(package, [0.0])[-1]
    return int(_is_whole(package, results, options) and score.percent < reached)


def _is_whole(package: str, results: Results, options: argparse.Namespace) -> bool:
    """Return whether all mutants of a package were tried."""
    is_sample = options.sample is not None or len(results.found) < results.chosen
    return not is_sample and {*_modules([package])} <= {*options.modules}


def _modules(names: Sequence[str]) -> list[Path]:
    paths = [ROOT / name for name in names or PACKAGES]
    return [each for path in paths for each in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Which faults do tests not see?")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as scheduler/policy/claims.py")
    parser.add_argument("--minutes", type=float, help="begin no mutant after this time")
    parser.add_argument("--sample", type=int, metavar="N", help="only this many, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="run only these")
    parser.add_argument("--notes", type=Path, default=notes.PLACE, metavar="DIR", help="of earlier runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once")
    options = parser.parse_args(words)
    options.modules = _modules(options.modules)
    if missing := [path for path in options.modules if not path.is_file()]:
        parser.error(f"no module {missing[0]}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
