"""A rate, and what a job of it costs: CPU time by role, bytes of WAL. Pure: usage.py reads what is computed here."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

Role = Literal["driver", "agents", "backends", "server", "bench"]
US: Final = 1000  # nanoseconds


@dataclass(frozen=True, slots=True)
class Process:
    """The role of a process, its own CPU time so far, and that of the children it has waited for, in nanoseconds."""

    role: Role
    own_ns: int
    waited_ns: int = 0


Look = Mapping[int, Process]


def spent(looks: Sequence[Look], ended: Role) -> Counter[Role]:
    """Return the CPU nanoseconds by role of a process tree from the first look to the last.

    A process that ended in between counts by the last look that saw it. What it ran after that, and processes that no
    look saw, are in what their parent has waited for; they count as `ended`.
    """
    first, last = looks[0], looks[-1]
    seen = {pid: process for look in looks for pid, process in look.items()}
    by_role: Counter[Role] = Counter()
    for pid, process in seen.items():
        by_role[process.role] += process.own_ns - (first[pid].own_ns if pid in first else 0)
    rest = _total(last) - _total(first) - by_role.total()
    by_role[ended] += max(0, rest)  # the kernel tells waited times in ticks of 10 ms
    return by_role


@dataclass(frozen=True, slots=True)
class Cost:
    """What one job costs: microseconds of CPU time, and bytes of WAL.

    `driver` is the daemon, or the process of a limit or a peer in its place. `agents` is None where they are not
    counted: a peer has none, and those of another host are out of sight. `server` is the rest of the server.
    """

    driver_us: float
    backends_us: float
    agents_us: float | None
    server_us: float
    wal_bytes: float


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs a second, and what one of them costs."""

    per_s: float
    cost: Cost


def cost_of(workers: Counter[Role], server: Counter[Role], wal_bytes: int, jobs: int) -> Cost:
    """Return the cost of one of so many jobs."""
    each_ns = {role: ns / jobs / US for role, ns in (workers + server).items()}
    driver, backends, agents, rest = (each_ns.get(role, 0.0) for role in ("driver", "backends", "agents", "server"))
    return Cost(driver, backends, agents, rest, wal_bytes / jobs)


def median_cost(costs: Sequence[Cost]) -> Cost:
    """Return the median of each figure over the rounds."""
    agents = [cost.agents_us for cost in costs if cost.agents_us is not None]
    return Cost(
        median(cost.driver_us for cost in costs),
        median(cost.backends_us for cost in costs),
        median(agents) if agents else None,
        median(cost.server_us for cost in costs),
        median(cost.wal_bytes for cost in costs),
    )


def _total(look: Look) -> int:
    return sum(process.own_ns + process.waited_ns for process in look.values())
