"""Scale on paper: what a site of a billion items a day reaches, and what grows faster than the site.

    python -m tests.sim.scale     prints the tables of man/decisions/0011-scalability-limits.md

What a site reaches comes from the model of site.py. What grows is counted: lines of our Python that an act takes on
1,000 slots and, in three ways, on 10,000.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from scheduler.policy.deadlines import MARK
from scheduler.policy.state import MARK_AFTER
from tests.counts.meters import work
from tests.sim.site import COSTS, Figures, Load, Shape, Site, cost

DAY_S: Final = 86_400
GOAL: Final = 1_000_000_000  # items a day

Act = Callable[[Shape], float]  # how many lines something takes at a site


# ---- what grows


SHAPES: Final = (
    Shape(10, 20, 10, 5),  # 1,000 slots, and three ways to 10,000:
    Shape(100, 20, 100, 5),
    Shape(10, 200, 10, 5),
    Shape(100, 200, 50, 1),
)
ROWS: Final = Load("rows", 0.01)
JOBS: Final = Load("jobs", 0.01)
LONG: Final = Load("jobs", 1000.0)
COUNTED: Final = 10_000  # items


def lines(*calls: Callable[[], object]) -> int:
    """Return how many lines of our Python some calls run, those of loops each time."""
    with work() as counted:
        for call in calls:
            call()
    return counted.lines


def busy(shape: Shape, load: Load) -> Site:
    """Return a site where every agent works."""
    site = Site(shape, load)
    site.warm()
    return site


def idle(shape: Shape, load: Load) -> Site:
    """Return a site where every agent is idle."""
    site = busy(shape, load)
    site.rest()
    return site


def _per_item(load: Load) -> Act:
    return lambda shape: lines(partial(busy(shape, load).run, COUNTED)) / COUNTED


def _alone(load: Load) -> Act:
    """An item that comes to one type while all agents are idle, from its wake-up to its end."""

    def act(shape: Shape) -> float:
        site = idle(shape, load)
        site.supply["type0"] = 1
        return lines(site.wake, partial(site.run, 1))

    return act


def _tick(site: Site) -> float:
    """Ask the core what a turn of the loop asks it, whatever happens."""
    core, now = site.core, site.now + 2 * MARK_AFTER
    site.calm()
    return lines(core.next_deadline, partial(core.tick, now), partial(core.next_request, now))


def _marked(shape: Shape) -> float:
    """A row is shown as running, while all other agents work on rows that are."""
    site = busy(shape, LONG)
    world = site.core.state
    job = next(iter(world.jobs.values()))
    job.marked, job.started = False, True
    slot = next(slot for slot in world.slots.all if slot.job is job)
    world.begun_slots = {slot: None}
    world.deadlines.set(MARK, site.now)
    return lines(partial(site.core.tick, site.now))


def _started(shape: Shape) -> float:
    """An agent is started, of a type that has more work than it may have agents."""
    site = Site(shape, JOBS)
    site.supply |= dict.fromkeys(list(site.supply)[1:], 0)
    agents = shape.places * shape.slots
    return lines(partial(site.warm, agents)) / agents


def _starving(shape: Shape) -> float:
    """The pools are looked at because one has got a job, while every host is full and most types have none."""
    site = busy(shape.tight(), LONG)
    core = site.core
    core.state.mark_dirty(core.state.pools["type0"])
    return lines(partial(core.schedule_dirty, site.now))


def _shown(shape: Shape) -> float:
    """Every slot and type is shown."""
    site = busy(shape, LONG)
    return lines(partial(site.core.report.all_slots, site.now), partial(site.core.report.agent_rows, site.now))


ACTS: Final[dict[str, Act]] = {
    "turn, all agents idle": lambda shape: _tick(idle(shape, JOBS)),
    "turn, all agents at work": lambda shape: _tick(busy(shape, LONG)),
    "the same, jobs with a time limit": lambda shape: _tick(busy(shape, LONG._replace(timeout=86_400.0))),
    "row of a query": _per_item(ROWS),
    "job": _per_item(JOBS),
    "job beside idle agents": _alone(JOBS),
    "query of one row beside idle agents": _alone(ROWS),
    "start of an agent": _started,
    "wake-up that finds nothing": lambda shape: lines(idle(shape, JOBS).wake),
    "row shown as running": _marked,
    "look while types have no room": _starving,
    "all slots and types shown": _shown,
}


# ---- what it reaches

# agents, of how many types on how many hosts; what they do
REACHES: Final[tuple[tuple[Shape, Load, int], ...]] = (
    (Shape(1, 4, 1, 4), Load("rows", 0.001), 20_000),
    (Shape(4, 4, 4, 8), Load("rows", 0.01), 20_000),
    (Shape(12, 10, 12, 10), Load("rows", 0.1), 20_000),
    (Shape(100, 20, 100, 5), Load("rows", 0.1), 50_000),
    (Shape(100, 20, 100, 5), Load("rows", 1.0), 30_000),
    (Shape(100, 20, 100, 5), Load("rows", 10.0), 20_000),
    (Shape(100, 200, 50, 1), Load("rows", 10.0), 20_000),
    (Shape(1, 4, 1, 4), Load("jobs", 0.001), 20_000),
    (Shape(4, 4, 4, 8), Load("jobs", 0.01), 20_000),
    (Shape(12, 10, 12, 10), Load("jobs", 0.1), 10_000),
    (Shape(100, 20, 100, 5), Load("jobs", 10.0), 2_000),
    (Shape(100, 200, 50, 1), Load("jobs", 10.0), 2_000),
)


def reached(shape: Shape, load: Load, items: int) -> Figures:
    """Return what a site reaches once every agent works."""
    site = busy(shape, load)
    site.run(shape.agents)  # they have begun together, and are to end apart
    return site.run(items)


def a_day(what: str, items: int = GOAL) -> dict[str, float]:
    """Return what so many items a day take, whatever their agents do: shares of a processor, bytes a day."""
    per_s = items / DAY_S
    if what == "rows":
        return {"loop": per_s * cost("loop_row"), "database": per_s * cost("db_row"), "wal": items * cost("wal_row")}
    return {
        "loop": per_s * cost("loop_job"),
        "database": per_s * cost("db_job"),
        "wal": items * cost("wal_job"),
        "kept": items * cost("kept_job"),
    }


# ---- tables


def tables() -> Iterator[str]:
    """Return what the page is made of, line by line."""
    yield "what things take"
    for name, (value, unit, source) in COSTS.items():
        yield f"  {name:13} {_short(value, unit):>9}  {source}"
    yield f"{GOAL:,} items a day"
    for what in ("rows", "jobs"):
        yield f"  {what}: " + ", ".join(f"{name} {_amount(name, value)}" for name, value in a_day(what).items())
    yield "what a site reaches: agents, types, hosts; items/s and a day; busy: thread, queue and watch connection"
    for shape, load, items in REACHES:
        yield "  " + _reach(shape, load, reached(shape, load, items))
    yield "lines of Python: " + ", ".join(f"{s.hosts} hosts {s.types} types {s.agents} slots" for s in SHAPES)
    for name, act in ACTS.items():
        first, *others = (act(shape) for shape in SHAPES)
        yield f"  {name:36} {first:8,.0f}" + "".join(f" {other:10,.0f} x{other / first:<5.3g}" for other in others)


def _short(value: float, unit: str) -> str:
    return f"{value * 1e6:g} us" if unit == "s" else f"{value:,g} B"


def _amount(name: str, value: float) -> str:
    return f"{value / 1e9:,.1f} GB" if name in ("wal", "kept") else f"{value:.1%} of a processor"


def _reach(shape: Shape, load: Load, found: Figures) -> str:
    return (
        f"{shape.agents:6,} {shape.types:4} {shape.hosts:4}  {load.what} of {load.item_s:g} s: {found.rate:8,.0f}/s "
        f"{found.rate * DAY_S / 1e6:7,.0f}M a day, {found.loop:4.0%} {found.queue:4.0%} {found.watch:4.0%}, "
        f"{found.statements:4.0f} statements/s, agents wait {found.wait_s * 1e3:.2f} ms"
    )


if __name__ == "__main__":
    for line in tables():
        print(line, flush=True)
