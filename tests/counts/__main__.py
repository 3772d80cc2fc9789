"""What everything costs, counted, beside the limits: `python -m tests.counts [--only MEASURES] [--write [REASON]]`.

`--write` notes what was measured in limits.toml; with a reason it moves the limits that do not hold any more, up or
down. The exit status is 1 when a figure is beyond its limit, or far below.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tests.counts import limits
from tests.counts.limits import Limit
from tests.counts.measures import MEASURES, Measured
from tests.counts.place import place
from tests.needs import PRESENT

ROW: Final = "{:<42} {:>10} {:>10}  {:<8} {}"


@dataclass(frozen=True, slots=True)
class Line:
    """A figure and its limit."""

    name: str
    limit: Limit
    figure: float

    @property
    def verdict(self) -> str:
        """Return what is wrong with it."""
        return limits.verdict(self.name, self.limit, self.figure)


def main(words: Sequence[str]) -> int:
    """Measure, print, and write if asked to."""
    options = _options(words)
    known = limits.read()
    print(ROW.format("", "counted", "limit", "for", "verdict"))
    lines: list[Line] = []
    with place() as where:
        measured = Measured(where)
        for measure in options.only:
            if missing := [name for name in MEASURES[measure].needs if not PRESENT[name]()]:
                print(f"{measure}: not measured, this machine has no {' and no '.join(missing)}")
                continue
            mine = [Line(name, known[name], figure) for name, figure in measured(measure).items()]
            print("\n".join(map(_show, mine)), flush=True)
            lines += mine
    if options.write is not None:
        today = datetime.now(UTC).date()
        new = {each.name: limits.renewed(each.name, each.limit, each.figure, options.write, today) for each in lines}
        limits.write(known | new)
    return int(any(line.verdict for line in lines))


def _show(line: Line) -> str:
    word = "over" if line.figure > line.limit.limit else "loose" if line.verdict else "ok"
    figure, most = f"{line.figure:,.5g}", f"{line.limit.limit:,.5g}"
    return ROW.format(line.name, figure, most, " ".join(line.limit.targets), word)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.counts", description="Count what everything costs.")
    parser.add_argument("--only", type=_measures, default=list(MEASURES), metavar="A,B", help=", ".join(MEASURES))
    parser.add_argument("--write", nargs="?", const="", metavar="REASON", help="note the figures in limits.toml")
    return parser.parse_args(words)


def _measures(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in MEASURES]:
        raise argparse.ArgumentTypeError(f"no measure {unknown[0]}: there are {', '.join(MEASURES)}")
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
