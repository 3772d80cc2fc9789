"""Run the mutants of the SQL: `python -m tests.mutation.sql [OBJECT ...]`; all of schema/ if none is named.

An object is one of schema.sql (drover.command), a table (its constraints and triggers), a statement of queries.sql, or
roles.sql. Mutants are tried in an order drawn by a seed, so that a run that ends at its budget has tried a fair sample.
What was found is noted, and a later run goes on from there. Prints those that no test saw, and the score. The exit
status is 1 when the score of all of it is below the one in scores.toml.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutation import notes
from tests.mutation.sql import mutants, reach, warm
from tests.mutation.sql.found import Found, digests
from tests.mutation.sql.mutants import Mutant
from tests.mutation.sql.reach import Order, Uses
from tests.mutation.sql.servers import Server, running
from tests.mutation.warm import ROOT, UNSEEN, Warm, serve

TESTS: Final = ("tests/database", "tests/drivers")
# They compare texts or build anew what is there, so they see each fault, whatever that does.
LEFT_OUT: Final = (
    "tests/database/test_schema_equality.py",
    "tests/database/test_roles.py::test_roles_may_be_applied_again_and_change_nothing",
    "tests/database/test_roles.py::test_applying_roles_again_takes_back_a_grant_too_many",
)
PLACE: Final = ROOT / "build" / "mutants-sql"
EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")
PORTION: Final = 200  # tests that are measured before what was measured is noted
PACKAGE: Final = "schema"
Results = list[tuple[Mutant, str]]


def main(words: Sequence[str]) -> int:
    """Try them, and print what was found."""
    options = _options(words)
    options.notes.mkdir(parents=True, exist_ok=True)
    results: Results = []
    with TemporaryDirectory() as place:
        os.environ["TMPDIR"] = place
        status = serve(lambda imported: _run(imported, options, results), options.tests)
    if status or not results:
        return status or 2
    for mutant, by in sorted(results, key=lambda each: each[0].name):
        if by == UNSEEN:
            print(f"\nmutant = {json.dumps(mutant.name)}")
    return _report(results, options)


def _run(imported: Warm, options: argparse.Namespace, results: Results) -> None:
    chosen = _chosen(options)
    found = Found(options.notes, digests(options.tests))
    known = {each.name: by for each in chosen if (by := found.of(each)) is not None}
    left = [each for each in chosen if each.name not in known]
    print(f"{len(chosen)} mutants, {len(left)} of them to try", flush=True)
    began = time.monotonic()
    with ExitStack() as stack:
        servers = [stack.enter_context(running()) for _ in range(options.jobs)]
        uses = _uses(imported, servers, options)
        order = Order(uses, warm.sources(imported, uses))
        for mutant, by in warm.run(imported, _work(left, order, found, options), servers):
            found.note(mutant, by)
            known[mutant.name] = by
    results += [(each, known[each.name]) for each in chosen if known.get(each.name, warm.REFUSED) != warm.REFUSED]
    print(f"took {time.monotonic() - began:.0f} s; {len(chosen) - len(known)} not tried", flush=True)


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants of the objects, or a sample of them, in an order drawn by the seed."""
    listed = notes.equivalent(EQUIVALENT)
    every = [each for each in mutants.all_of_them() if (each.object, each.name) not in listed]
    if options.objects:
        every = [each for each in every if {each.object, each.table} & {*options.objects}]
    if not every:
        raise SystemExit(f"no mutants of {', '.join(options.objects)}")
    return Random(options.seed).sample(every, min(options.sample or len(every), len(every)))


def _uses(imported: Warm, servers: Sequence[Server], options: argparse.Namespace) -> dict[str, Uses]:
    """Return what each test uses: as noted, and measured where its file has changed."""
    file, now = options.notes / "uses.json", digests(options.tests)
    before, known = reach.read(file)
    changed = {each for each in now if now[each] != before.get(each)}
    known = {test: uses for test, uses in known.items() if test in imported.items and _file(test) not in changed}
    wanted = _some_variants([test for test in imported.items if not test.startswith(LEFT_OUT)], options.variants)
    new = [test for test in wanted if test not in known and _file(test) in changed]
    for start in range(0, len(new), PORTION):
        portion = new[start : start + PORTION]
        known |= warm.measure(imported, portion, servers, options.notes)
        done = {each: now[each] for each in now if each not in {_file(test) for test in new[start + PORTION :]}}
        reach.write(file, done, known)
        print(f"{len(new) - start - len(portion)} tests to measure", flush=True)
    return known


def _some_variants(tests: Sequence[str], most: int | None) -> list[str]:
    """Return tests, of each with parameters so many variants, drawn by lot: this is quicker, and sees less."""
    seen, chosen = Counter[str](), list[str]()
    for test in Random(0).sample(tests, len(tests)):
        seen[test.partition("[")[0]] += 1
        if most is None or seen[test.partition("[")[0]] <= most:
            chosen.append(test)
    return sorted(chosen)


def _file(test: str) -> str:
    return test.partition("::")[0]


def _work(left: Sequence[Mutant], order: Order, found: Found, options: argparse.Namespace) -> Iterator[warm.Work]:
    """Yield mutants with their tests until the time is over; first the test that saw the last one of the object."""
    end = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    for mutant in left:
        if end is not None and time.monotonic() > end:
            return
        tests = order.of(mutant, options.seconds)
        last = found.last.get(mutant.object, "")
        if last in order.uses:
            tests = [last, *(test for test in tests if test != last)]
        yield mutant, tests, sum(order.uses[test].seconds for test in tests)


def _report(results: Results, options: argparse.Namespace) -> int:
    """Print the scores by kind and of all; return 1 if all was tried and the score has fallen."""
    for kind in sorted({mutant.kind for mutant, _ in results}):
        _show(kind, notes.score(by for mutant, by in results if mutant.kind == kind))
    score = notes.score(by for _, by in results)
    _show(PACKAGE, score)
    is_whole = not options.objects and not options.sample and options.minutes is None
    reached = notes.scores(notes.SCORES.read_text()).get(PACKAGE, [0.0])[-1]
    return int(is_whole and score.percent < reached)


def _show(name: str, score: notes.Score) -> None:
    low, high = score.interval()
    print(f"{name}: {score.percent} %, {score.seen} of {score.tried} mutants were seen ({low:.1f} to {high:.1f})")


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.sql", description="Which faults do tests not see?")
    parser.add_argument("objects", nargs="*", metavar="OBJECT", help="such as drover.command")
    parser.add_argument("--minutes", type=float, help="begin no mutant after this time")
    parser.add_argument("--seconds", type=float, default=20, help="what the tests of a mutant may take; %(default)s")
    parser.add_argument("--sample", type=int, metavar="N", help="only this many, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="run only these")
    parser.add_argument("--variants", type=int, metavar="N", help="of a test with parameters run so many only")
    parser.add_argument("--notes", type=Path, default=PLACE, metavar="DIR", help="of earlier runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once, each on its own server")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
