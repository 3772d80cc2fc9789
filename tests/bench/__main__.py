"""How fast ours is, against what the machine allows and the best peer: `python -m tests.bench`, `make bench`.

A line a target: ours, the limit, the peer, the ratio (median and range over the rounds), the target, PASS or FALLS
SHORT. All that one line compares runs in turns, since absolute figures move by 1.3 to 2 times on a shared machine; only
ratios count. Lines without a target inform. The exit status is 0 whatever falls short: a figure is no test.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg

from scheduler.database import embedded
from tests.bench import plots, report
from tests.bench.cases import CASES, Run
from tests.bench.lines import Line, heading, show, to_json
from tests.bench.others import OTHERS
from tests.bench.peers import DRIVERS, GRAPHILE, Peers
from tests.bench.peers.install import default_cache
from tests.bench.place import Place
from tests.bench.sizes import QUICK, Sizes

HERE: Final = Path(__file__).parent
COMPILERS: Final = ["cc", "gcc"]
ALL: Final = {**CASES, **OTHERS}
FULL_SNAPSHOT_S: Final = 300.0
QUICK_CASES: Final = {"P1": 4, "P2": 3, "P3": 5, "P6": 6, "P8": 1, "P10": 1}  # and how the time is shared
QUICK_S: Final = 105.0  # of two minutes; the rest is for starting and stopping the server
QUICK_SAYS: Final = f"""\
quick: small sizes, no peer but {GRAPHILE}, as many of the rounds as fit into two minutes; to compare before and after a
change, while the targets are those of the whole measurement"""


def main(words: Sequence[str]) -> int:
    """Measure the cases asked for and print a line for each target."""
    options = _options(words)
    _allow_descriptors()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what it has started is ended then, too
    begun = time.monotonic()
    with place_of_bench() as place:
        run = _run(options, place)
        lines = list(_measured(run, options.only, begun + QUICK_S if options.quick else inf))
        drawn = plots.measured(run) if options.plots else []
        about = {"quick": options.quick, **_about(run, time.monotonic() - begun)}
    print(f"{about['minutes']:.1f} minutes", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"about": about, "lines": [to_json(line) for line in lines]}, indent=1))
    if options.report:
        report.write(options.report, about, lines, drawn)
    return 0


def _measured(run: Run, names: Sequence[str], until: float) -> Iterator[Line]:
    """Measure case by case, each in its share of the time, and print each line as soon as it is known."""
    if until < inf:
        print(QUICK_SAYS, flush=True)
    print(heading(), flush=True)
    for done, name in enumerate(names):
        for line in _lines(_with_share(run, until, names[done:]), name):
            print(show(line), flush=True)
            yield line


def _lines(run: Run, name: str) -> list[Line]:
    """Return the lines of a case; of one that did not get that far, a line with the reason."""
    try:
        return ALL[name](run)
    except (AssertionError, psycopg.Error, OSError, subprocess.SubprocessError) as error:
        traceback.print_exc()
        return [Line(name, "not measured", "", missing=str(error))]


def _with_share(run: Run, until: float, names: Sequence[str]) -> Run:
    """Return the run until the first of these cases has used its share; one without an end as it is: it is cached."""
    if until == inf:
        return run
    now = time.monotonic()
    shares = [QUICK_CASES.get(name, 1) for name in names]
    return replace(run, until=now + (until - now) * shares[0] / sum(shares))


# ---- what is asked for


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Measure ourselves against the machine and against our peers."
    )
    parser.add_argument("--only", type=_cases, metavar="P1,P8", help=f"these cases, of {', '.join(ALL)}")
    parser.add_argument("--rounds", type=int, default=3, help="times that all contestants run in turns")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="measure so much of everything: 0.01 shows that it works"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"measure {','.join(QUICK_CASES)} on a small scale, in two minutes"
    )
    parser.add_argument("--full", action="store_true", help="hold the snapshot of P6 for five minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="write report.html there, with bars of all rates and costs"
    )
    parser.add_argument("--plots", action="store_true", help="measure the plots; instead of the table, without --only")
    parser.add_argument("--cache", type=Path, default=default_cache(os.environ), help="where the peers are installed")
    parser.add_argument("--without-peers", action="store_true", help="install none; their lines say so")
    options = parser.parse_args(words)
    if options.plots and not options.report:
        parser.error("--plots is drawn into a report: name its folder with --report DIR")
    if options.quick and options.full:
        parser.error("--quick and --full exclude each other")
    every = list(QUICK_CASES if options.quick else ALL)
    options.only = options.only or ([] if options.plots else every)
    return options


def _cases(text: str) -> list[str]:
    names = text.upper().split(",")
    if unknown := [name for name in names if name not in ALL]:
        raise argparse.ArgumentTypeError(f"no case {unknown[0]}: there are {', '.join(ALL)}")
    return names


def _run(options: argparse.Namespace, place: Place) -> Run:
    sizes = QUICK if options.quick else Sizes()
    if options.full:
        sizes = replace(sizes, snapshot_s=FULL_SNAPSHOT_S)
    peers = Peers(place.conninfo, options.cache, [GRAPHILE] if options.quick else [*DRIVERS])
    if options.without_peers:
        peers.leave_out("left out by --without-peers")
    return Run(place, peers, sizes.scaled(options.scale), options.rounds)


def _about(run: Run, seconds: float) -> dict[str, Any]:
    """Return what the figures are of."""
    with run.place.database() as database:
        (version,) = database.execute(b"show server_version").fetchone() or ("",)
    return {
        "minutes": seconds / 60,
        "rounds": run.rounds,
        "cpus": os.cpu_count(),
        "postgres": version,
        "python": sys.version.split()[0],
        "sizes": asdict(run.sizes),
        "missing": sorted(run.peers.missing.values()),
    }


# ---- where it runs


@contextmanager
def place_of_bench() -> Iterator[Place]:
    """Yield a server of its own, durable, and the agent."""
    with TemporaryDirectory(prefix="drover-bench-") as folder, embedded.temporary(durable=True) as conninfo:
        place = Place(conninfo, _agent(Path(folder)), Path(folder))
        place.migrate()
        yield place


def _agent(folder: Path) -> list[str]:
    """Compile the agent; without a compiler take the slower one in Python, and say so."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        print(f"missing: no C compiler ({', '.join(COMPILERS)}): the agents are in Python, and slower", flush=True)
        return [sys.executable, "-S", "-E", str(HERE / "agent.py")]
    program = folder / "agent"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", program, HERE / "agent.c"], check=True)
    return [str(program)]


def _allow_descriptors() -> None:
    """Let our children open as many files as may be: a thousand agents need four each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
