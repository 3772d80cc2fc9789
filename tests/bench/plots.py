"""The rate against what may grow: the depth of the queue, the history beside it, the number of agents."""

from typing import Final

from tests.bench import beside, limits, ours
from tests.bench.cases import Run
from tests.bench.peers import GRAPHILE
from tests.bench.svg import Chart

DEPTHS: Final = (1000, 10_000, 100_000, 1_000_000)
HISTORIES: Final = (0, 500_000, 1_000_000, 2_000_000)
AGENTS: Final = (1, 2, 4, 16, 64, 1000)
RATE: Final = "jobs/s"


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
