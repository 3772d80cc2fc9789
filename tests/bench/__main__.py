"""How fast ours is, against what the machine allows in the same run: `python -m tests.bench`, `make bench`.

One line a target: what, ours, the limit, their ratio (median and range over the rounds), the target, PASS or FALLS
SHORT. Ours and the limit run in turns, since absolute figures move by 1.3 to 2 times on a shared machine; only ratios
count. Lines without a target inform. The exit status is 0 whatever falls short: a figure is no test.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Final

from scheduler import embedded, migrate
from tests.bench import limits, ours
from tests.bench.ours import Place

HERE: Final = Path(__file__).parent
COMPILERS: Final = ["cc", "gcc"]
READY: Final = [b'id="%d" path="some/path/of/file_%d"\n' % (i, i) for i in range(1, 1001)]
ROW: Final = "{:<2}  {:<39}  {:>24}  {:>10}  {:<16}  {:<6}  {}"


@dataclass(frozen=True, slots=True)
class Line:
    """What was measured in each round, against what limit, and what is asked of the ratio (of ours without a limit)."""

    case: str
    what: str
    unit: str
    ours: Sequence[float]
    limit: Sequence[float] = ()
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratios(self) -> list[float]:
        """Ours to the limit, round by round."""
        return [own / limit for own, limit in zip(self.ours, self.limit, strict=True)] if self.limit else []

    @property
    def verdict(self) -> str:
        """Say whether the median is what is asked; nothing when nothing is."""
        figure = median(self.ratios or self.ours)
        if self.at_least is not None:
            return "PASS" if figure >= self.at_least else "FALLS SHORT"
        if self.at_most is not None:
            return "PASS" if figure <= self.at_most else "FALLS SHORT"
        return ""


@dataclass(frozen=True, slots=True)
class Run:
    """Where to measure and how much; `rows` are those of B1, other cases take their part of it."""

    place: Place
    rows: int
    rounds: int
    samples: int
    idle_s: float


# ---- the cases


def b1(run: Run) -> list[Line]:
    """The rows of one query, without a key."""
    raw, expanded = _expand(run, run.rows, None)
    what = f"rows of a query, {run.rows:,}"
    return [
        Line("B1", f"{what}: items/s", "/s", [each.rate for each in expanded], raw, at_least=0.4),
        Line("B1", f"{what}: first item", "s", [each.first_s for each in expanded], at_most=1.0),
        Line("B1", f"{what}: growth", "MB", [each.growth_mb for each in expanded], at_most=20.0),
    ]


def b2(run: Run) -> list[Line]:
    """One-parameter jobs that wait."""
    jobs = max(run.rows // 10, 1)
    pairs = [
        (limits.complete_and_claim(run.place.conninfo, jobs), ours.drain(run.place, jobs)) for _ in range(run.rounds)
    ]
    limit, rates = zip(*pairs, strict=True)
    return [Line("B2", f"one-parameter jobs, {jobs:,}: jobs/s", "/s", rates, limit, at_least=0.3)]


def b3(run: Run) -> list[Line]:
    """The rows of one query whose progress is checkpointed by key."""
    rows = max(run.rows // 5, 1)
    raw, expanded = _expand(run, rows, "id")
    return [Line("B3", f"keyed rows of a query, {rows:,}: items/s", "/s", [each.rate for each in expanded], raw)]


def b4(run: Run) -> list[Line]:
    """A daemon that waits."""
    idle = ours.idle(run.place, run.idle_s)
    return [
        Line("B4", "idle, 4 READY agents: CPU", "%", [idle.cpu_percent]),
        Line("B4", "idle, 4 READY agents: wake-ups", "/s", [idle.wakeups]),
        Line("B4", "idle, 4 READY agents: memory", "MB", [idle.rss_mb]),
    ]


def b5(run: Run) -> list[Line]:
    """A job that finds everybody waiting."""
    percentiles = quantiles(ours.latencies(run.place, run.samples), n=100, method="inclusive")
    what = f"insert -> agent, {run.samples} samples"
    return [Line("B5", f"{what}: p{p}", "ms", [percentiles[p - 1]]) for p in (50, 99)]


def _expand(run: Run, rows: int, key: str | None) -> tuple[list[float], list[ours.Expanded]]:
    raw, expanded = [], []
    for _ in range(run.rounds):
        raw.append(limits.ping_pong(run.place.agent, ours.AGENTS, READY, rows))
        expanded.append(ours.expand(run.place, rows, key))
    return raw, expanded


CASES: Final[dict[str, Callable[[Run], list[Line]]]] = {"B1": b1, "B2": b2, "B3": b3, "B4": b4, "B5": b5}

# ---- printing


def show(line: Line) -> str:
    """Give the line as it is printed."""
    limit = _figure(median(line.limit), line.unit) if line.limit else ""
    low, high = min(line.ours), max(line.ours)
    spread = "" if line.limit or low == high else f" ({_number(low)}-{_number(high)})"
    mine = _figure(median(line.ours), line.unit) + spread
    ratio = f"{median(line.ratios):.2f} ({min(line.ratios):.2f}-{max(line.ratios):.2f})" if line.limit else ""
    asked = [f"{sign} {n:g}" for sign, n in ((">=", line.at_least), ("<=", line.at_most)) if n is not None]
    return ROW.format(line.case, line.what, mine, limit, ratio, "".join(asked), line.verdict).rstrip()


def _figure(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}".replace(" /s", "/s")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# ---- the way there


def main(words: Sequence[str]) -> int:
    """Measure the cases asked for and print a line for each target."""
    options = _options(words)
    print(ROW.format("", "what", "ours", "limit", "ratio (range)", "target", ""), flush=True)
    lines: list[Line] = []
    with _place() as place:
        run = Run(place, options.rows, options.rounds, options.samples, options.idle)
        for name in options.only:
            for line in CASES[name](run):
                print(show(line), flush=True)
                lines.append(line)
    if options.json:
        options.json.write_text(json.dumps([asdict(line) | {"verdict": line.verdict} for line in lines], indent=1))
    return 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure ourselves against the machine.")
    parser.add_argument("--only", type=_cases, default=list(CASES), metavar="B1,B2", help="these cases")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of B1; B2 takes a tenth, B3 a fifth")
    parser.add_argument("--rounds", type=int, default=3, help="times that the limit and ours run in turns")
    parser.add_argument("--samples", type=int, default=100, help="jobs of B5")
    parser.add_argument("--idle", type=float, default=10.0, metavar="S", help="seconds of B4")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    return parser.parse_args(words)


def _cases(text: str) -> list[str]:
    names = text.upper().split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise argparse.ArgumentTypeError(f"no case {unknown[0]}: there are {', '.join(CASES)}")
    return names


@contextmanager
def _place() -> Iterator[Place]:
    with TemporaryDirectory(prefix="drover-bench-") as folder, embedded.temporary(durable=True) as conninfo:
        migrate.apply(conninfo)
        migrate.apply_roles(conninfo)
        yield Place(conninfo, _agent(Path(folder)), Path(folder))


def _agent(folder: Path) -> list[str]:
    """Compile the agent; without a compiler take the slower one in Python, and say so."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        print(f"no C compiler ({', '.join(COMPILERS)}) here: the agents are in Python, and slower", flush=True)
        return [sys.executable, "-S", "-E", str(HERE / "agent.py")]
    program = folder / "agent"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", program, HERE / "agent.c"], check=True)
    return [str(program)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
