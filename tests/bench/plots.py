"""The plots: bars of what the lines say, and the rate against what may grow.

That is the depth of the queue, the history beside it, the number of agents.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Final

from tests.bench import beside, limits, ours
from tests.bench.bars import Bars
from tests.bench.cases import Run
from tests.bench.lines import Line
from tests.bench.peers import GRAPHILE
from tests.bench.rates import Cost, median_cost
from tests.bench.svg import Chart

DEPTHS: Final = (1000, 10_000, 100_000, 1_000_000)
HISTORIES: Final = (0, 500_000, 1_000_000, 2_000_000)
AGENTS: Final = (1, 2, 4, 16, 64, 1000)
RATE: Final = "jobs/s"
PARTS: Final = ("daemon (or peer)", "backends", "agents", "rest of the server")


def bars_of(lines: Sequence[Line]) -> Iterator[Bars]:
    """Yield two plots for each case that has rates: the rates, and the CPU time of a job."""
    for case, group in groupby((line for line in lines if line.costs), key=lambda line: line.case):
        found = _contestants(list(group))
        yield Bars(f"{case}-rate", f"{case}: rate, /s", ["rate"], {name: [rate] for name, (rate, _) in found.items()})
        costs = {name: _parts(cost) for name, (_, cost) in found.items()}
        yield Bars(f"{case}-cpu", f"{case}: CPU time a job, us", PARTS, costs)


def _contestants(lines: Sequence[Line]) -> Mapping[str, tuple[float, Cost]]:
    """Return median rate and cost of all that the lines of a case compare, each once."""
    found: dict[str, tuple[float, Cost]] = {}
    for line in lines:
        for (name, costs), rates in zip(
            line.costs.items(), filter(None, (line.ours, line.limit, line.peer)), strict=True
        ):
            figures = median(rates), median_cost(costs)
            if figures not in found.values():
                found[f"{name} ({line.what})" if name in found else name] = figures
    return found


def _parts(cost: Cost) -> Sequence[float]:
    return cost.driver_us, cost.backends_us, cost.agents_us or 0.0, cost.server_us


def measured(run: Run) -> list[Chart]:
    """Measure and give all charts; once each, for the shape counts."""
    return [by_depth(run), by_history(run), by_agents(run)]


def by_depth(run: Run) -> Chart:
    """Drain queues of so many jobs: ours, the limit and the best peer in turn."""
    series: dict[str, list[tuple[float, float]]] = {"ours": [], "limit": [], GRAPHILE: []}
    for depth in _scaled(run, DEPTHS):
        series["ours"].append((depth, ours.drain(run.place, depth).per_s))
        series["limit"].append((depth, limits.complete_and_claim(run.place.conninfo, depth).per_s))
        if rate := run.peers.drain(GRAPHILE, depth):
            series[GRAPHILE].append((depth, rate.per_s))
    return Chart("Rate against the depth of the queue", "jobs that wait", RATE, _told(series))


def by_history(run: Run) -> Chart:
    """Drain the same jobs beside more and more that are finished."""
    place = run.place.in_database("plot")
    load = ours.Load(run.sizes.jobs, place.line_agents(ours.AGENTS))
    points = []
    for finished, before in zip(_scaled(run, HISTORIES), (0, *_scaled(run, HISTORIES)), strict=False):
        beside.add_finished(place, finished - before)
        points.append((finished, ours.drain_beside(place, load).per_s))
    return Chart("Rate against the history", "finished jobs beside", RATE, {"ours": points})


def by_agents(run: Run) -> Chart:
    """Work the rows of one query with more and more agents, all of them started."""
    counts = [count for count in AGENTS if count <= run.sizes.agents]
    points = [(count, ours.crowd(run.place, count, run.sizes.rows // 10, 0.0).rate.per_s) for count in counts]
    return Chart("Rate against the number of agents", "READY agents", "items/s", {"ours": points})


def _scaled(run: Run, sizes: tuple[int, ...]) -> list[int]:
    """Return the sizes as far as this run goes: the largest is that of P6."""
    factor = run.sizes.finished / HISTORIES[-1]
    return [round(size * factor) for size in sizes]


def _told(series: dict[str, list[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    return {name: points for name, points in series.items() if points}
