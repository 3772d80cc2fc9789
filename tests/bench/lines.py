"""A line of the table: what was measured against what, what is asked of it, and how that is said.

Pure: knows nothing of how a figure came about.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Final, Literal

from tests.bench.rates import Cost, Rate, median_cost

HEADINGS: Final = ("", "what", "ours", "limit", "peer", "ratio (range)", "target", "")
ROW: Final = "{:<4}  {:<58}  {:>20}  {:>11}  {:>30}  {:>17}  {:<13}  {}"

INDENT: Final = " " * 6
LEGEND: Final = (
    "below a rate: CPU time a job of daemon + backends + agents (+ rest of the server), WAL a job;"
    " a limit or peer has its own process for the daemon"
)


@dataclass(frozen=True, slots=True)
class Line:
    """What was measured in each round, and what is asked of the median ratio to `against`, else of ours itself.

    `missing` says why there is nothing to be compared with; then the line has no verdict but that.
    """

    case: str
    what: str
    unit: str
    ours: Sequence[float] = ()
    limit: Sequence[float] = ()
    peer: Sequence[float] = ()
    peer_name: str = ""
    against: Literal["", "limit", "peer"] = ""
    at_least: float | None = None
    at_most: float | None = None
    missing: str = ""
    costs: Mapping[str, Sequence[Cost]] = field(default_factory=dict)  # of a job of each of the three, by its name

    @property
    def ratios(self) -> list[float]:
        """Ours to what it is measured against, round by round; 0 where that came to nothing."""
        others = {"": (), "limit": self.limit, "peer": self.peer}[self.against]
        return [own / other if other else 0.0 for own, other in zip(self.ours, others, strict=True)] if others else []

    @property
    def verdict(self) -> str:
        """Return whether the median is what is asked; nothing when nothing is."""
        if self.missing:
            return f"missing: {self.missing}"
        if self.at_least is None and self.at_most is None:
            return ""
        figure = median(self.ratios if self.against else self.ours)
        is_met = (self.at_least is None or figure >= self.at_least) and (self.at_most is None or figure <= self.at_most)
        return "PASS" if is_met else "FALLS SHORT"

    @property
    def target(self) -> str:
        """Return the target as text, like `>= 0.6 x limit`."""
        asked = [f"{sign} {n:g}" for sign, n in ((">=", self.at_least), ("<=", self.at_most)) if n is not None]
        return " ".join([*asked, f"x {self.against}"] if asked and self.against else asked)


def cells(line: Line) -> list[str]:
    """Return the line in the columns of HEADINGS."""
    ratios = line.ratios
    ratio = f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else ""
    peer = f"{line.peer_name} {_figure(line.peer, line.unit)}".strip()
    mine = _figure(line.ours, line.unit) + ("" if ratios else _spread(line.ours))
    return [line.case, line.what, mine, _figure(line.limit, line.unit), peer, ratio, line.target, line.verdict]


def of_rates(line: Line, ours: Sequence[Rate], limit: Sequence[Rate] = (), peer: Sequence[Rate] = ()) -> Line:
    """Return the line with these rates and what they cost."""
    rates = {"ours": ours, "limit": limit, line.peer_name or "peer": peer}
    mine, limits, peers = ([rate.per_s for rate in each] for each in rates.values())
    costs = {name: [rate.cost for rate in each] for name, each in rates.items() if each}
    return replace(line, ours=mine, limit=limits, peer=peers, costs=costs)


def show(line: Line) -> str:
    """Return the line as it is printed, with one more for what a job costs if that is known."""
    return "\n".join([ROW.format(*cells(line)).rstrip(), *([INDENT + costs(line)] if line.costs else [])])


def costs(line: Line) -> str:
    """Return what a job costs by those compared, the median over the rounds; LEGEND explains it."""
    return "; ".join(f"{name} {_cost(median_cost(rounds))}" for name, rounds in line.costs.items())


def heading() -> str:
    """Return the lines above all others."""
    return f"{ROW.format(*HEADINGS).rstrip()}\n{INDENT}{LEGEND}"


def to_json(line: Line) -> dict[str, Any]:
    """Return all that is known of the line."""
    cost = {name: asdict(median_cost(rounds)) for name, rounds in line.costs.items()}
    return asdict(line) | {"cost": cost, "ratios": line.ratios, "target": line.target, "verdict": line.verdict}


def number(value: float) -> str:
    """Return three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cost(cost: Cost) -> str:
    parts = [cost.driver_us, cost.backends_us, *([] if cost.agents_us is None else [cost.agents_us])]
    return f"{' + '.join(map(_us, parts))} (+ {_us(cost.server_us)}) us, {cost.wal_bytes:,.0f} B"


def _us(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _figure(values: Sequence[float], unit: str) -> str:
    return f"{number(median(values))} {unit}".replace(" /s", "/s") if values else ""


def _spread(values: Sequence[float]) -> str:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return "" if low == high else f" ({number(low)}-{number(high)})"
