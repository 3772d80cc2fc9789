"""Soak: real faults and simulated steps at once, for as long as one likes: `make soak`, `python -m tests.soak`.

Prints a line of progress now and then, and at the end a table of what was tried and what was lost. The exit status is 1
if anything was lost, done twice within an attempt, or is wrong otherwise. A seed draws the same faults in the same
order, though not at the same instants; the seeds of the simulation are repeated exactly.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests import guard
from tests.soak.chaos import Chaos, Row, chaos, yield_processor
from tests.soak.steps import Simulated

TELL_S: Final = 15.0
MOST_SHOWN: Final = 20


class Progress:
    """Prints a line now and then: the time that has passed and that is left, and how far everything is."""

    def __init__(self, seconds: float, simulated: Simulated) -> None:
        self._seconds, self._simulated = seconds, simulated
        self._began = time.monotonic()
        self._told = 0.0

    def tell(self, text: str) -> None:
        passed = time.monotonic() - self._began
        if passed - self._told >= TELL_S:
            self._told = passed
            left = max(0.0, self._seconds - passed)
            print(f"{_clock(passed)}  {_clock(left)} left  {self._simulated.collect(0.0)}  {text}", flush=True)


def main(words: Sequence[str]) -> int:
    """Soak, print the table, and return the exit status."""
    options = _options(words)
    what = f"{options.minutes:g} minutes of faults, {options.steps:,} simulated steps"
    print(f"soak: seed {options.seed}: {what}", flush=True)
    table: list[Row] = []
    wrong: list[object] = []
    with ProcessPoolExecutor(options.workers, initializer=yield_processor) as pool:
        simulated = Simulated(pool, options.seed, options.steps)
        progress = Progress(60 * options.minutes, simulated)
        if options.minutes:
            table, wrong = _endure(options.seed, 60 * options.minutes, progress)
        while simulated.is_running:
            simulated.collect(TELL_S)
            progress.tell("the simulation goes on")
    wrong = [*wrong, *simulated.wrong]
    _show([*table, ("simulated seeds", simulated.seeds), ("simulated steps", simulated.steps)], wrong)
    print(f"again: make soak SOAK='--seed {options.seed} --minutes {options.minutes:g} --steps {options.steps}'")
    return 1 if wrong else 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="real faults and simulated steps")
    parser.add_argument("--minutes", type=float, default=60.0, help="of real faults; 0 is none (default 60)")
    parser.add_argument("--steps", type=int, default=10_000_000, help="of the simulation (default 10 million)")
    parser.add_argument("--workers", type=int, default=1, help="processes that simulate (default 1)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="(default: any)")
    return parser.parse_args(words)


def _endure(seed: int, seconds: float, progress: Progress) -> tuple[list[Row], list[object]]:
    """Do real faults; return the rows of the table, and what is wrong."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="drover-soak-")))
        place.chmod(0o755)
        one: Chaos = stack.enter_context(chaos(place, seed))
        one.endure(seconds, progress.tell)
        print("no more faults: waiting until all has ended", flush=True)
        wrong = one.result()
        return one.table(), wrong


def _show(table: Sequence[Row], wrong: Sequence[object]) -> None:
    width = max(len(name) for name, _ in table)
    print()
    for name, count in table:
        print(f"{name:<{width}}  {count:>12,}")
    print(f"{'wrong':<{width}}  {len(wrong):>12,}")
    for each in wrong[:MOST_SHOWN]:
        print(each)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:3}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    guard.begin()
    sys.exit(main(sys.argv[1:]))
