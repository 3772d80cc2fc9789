"""Connections for queries: SQL jobs whose agents are busy never keep one that another type could use."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.policy.core import Core
from tests.core_tools import claim, make_core, turn

ROWS = 5000  # of each query


class Site:
    """Carry out the effects of a core at once: queries have ROWS rows, agents work until `answer`."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.given: dict[int, int] = {}  # by job: rows of the query that is open
        self.sent: dict[int, list[bytes]] = {}  # by slot
        self.queries: list[tuple[int, str]] = []
        self.most_open = 0

    def settle(self, now: float = 0.0) -> None:
        self.core.tick(now)  # so many processes are started in a turn, and no more
        while effects := self.core.take_effects(now):
            for effect in effects:
                self._carry_out(effect, now)

    def insert(self, name: str, *pks: int, **rules: Any) -> None:
        """Have SQL jobs of a type claimed."""
        self.core.handle(e.Woken(), 0.0)
        turn(self.core, *[claim(pk, name, msq=True, **rules) for pk in pks])
        self.settle()

    def answer(self, slot: int) -> None:
        """Let an agent be done with its item."""
        if (line := self.core.agent_output(slot, b"OK\n", 0.0)) is not None:
            self.sent[slot].append(line)
        self.settle()

    def _carry_out(self, effect: Any, now: float) -> None:
        match effect:
            case e.Spawn(slot=slot):
                self.core.handle(e.Created(slot, 100 + slot), now)
                self.core.agent_output(slot, b"OK\n", now)
            case e.Send(slot=slot, data=data):
                self.sent.setdefault(slot, []).append(data)
            case e.Expand(job=job, query=query):
                self.queries.append((job, query))
                self.given[job] = 0
                self.most_open = max(self.most_open, len(self.given))
                left = ROWS - (int(query.split("> E'")[1].split("'")[0]) if "> E'" in query else 0)
                self.core.handle(e.Opened(job, (b"n",), left), now)
            case e.Fetch(job=job, count=count):
                self._fetch(job, count, now)
            case e.CloseQuery(job=job):
                del self.given[job]

    def _fetch(self, job: int, count: int, now: float) -> None:
        query = [query for pk, query in self.queries if pk == job][-1]
        begin = self.given[job] + (int(query.split("> E'")[1].split("'")[0]) if "> E'" in query else 0)
        rows = [(b"%05d" % (begin + number + 1),) for number in range(min(count, ROWS - begin))]
        self.given[job] += len(rows)
        self.core.handle(e.Fetched(job, rows, begin + len(rows) < ROWS), now)


def occupied(types: int, jobs: int, **rules: Any) -> tuple[Core, Site]:
    """Return a core whose types, but for `idle`, have one agent each, at work on a row of the first of their jobs."""
    names = [f"busy{at}" for at in range(types)]
    core = make_core({name: AgentType(command=("agent",)) for name in (*names, "idle")})
    site = Site(core)
    for at, name in enumerate(names):
        site.insert(name, *range(at * jobs + 1, at * jobs + jobs + 1), **rules)
    return core, site


def at_work(core: Core, name: str) -> list[int]:
    return [slot.job.pk for slot in core.state.pools[name].slots if slot.job is not None]


@pytest.mark.parametrize("rules", [{}, {"key": "n"}], ids=["without a key", "with a key"])
@pytest.mark.parametrize(("types", "jobs"), [(1, 20), (3, 6), (20, 3), (200, 2)])
def test_busy_types_of_any_number_keep_no_other_type_waiting_f49(types: int, jobs: int, rules: dict[str, str]) -> None:
    core, site = occupied(types, jobs, **rules)
    assert [name for name in core.state.pools if name != "idle" and not at_work(core, name)] == []
    site.insert("idle", 10_000, **rules)
    assert at_work(core, "idle") == [10_000]
    assert site.most_open <= core.state.timers.expansions


def test_query_with_a_key_goes_on_behind_the_last_row_that_was_fetched_f49() -> None:
    core, site = occupied(9, 1, key="n")
    (parked,) = set(range(1, 10)) - site.given.keys()
    slot = next(slot for slot in core.state.slots.all if slot.job is not None and slot.job.pk == parked)
    for _ in range(ROWS):
        site.answer(slot.number)
    lines = [line.decode() for line in site.sent[slot.number]]
    assert [int(number) for line in lines for number in line.split('"')[1::2]] == list(range(1, ROWS + 1))


def test_query_without_a_key_has_all_its_rows_fetched_before_its_connection_goes_f49() -> None:
    core, site = occupied(9, 1)
    (read_out,) = set(range(1, 10)) - site.given.keys()
    assert core.state.jobs[read_out].waiting == ROWS - 1
    assert [job for job, _ in site.queries].count(read_out) == 1


def test_query_whose_rows_are_all_fetched_has_no_connection() -> None:
    core, site = occupied(1, 1)
    (slot,) = [slot for slot in core.state.slots.all if slot.job is not None]
    while core.state.expanding:
        site.answer(slot.number)
    assert site.given == {}
    assert core.state.jobs[1].waiting > 0


def test_types_with_busy_agents_leave_one_connection_to_others() -> None:
    core, site = occupied(2, 4)
    assert len(site.given) == core.state.timers.expansions - 1


def test_types_that_need_a_connection_take_turns_f49() -> None:
    core, site = occupied(30, 1, key="n")
    slots = [slot for slot in core.state.slots.all if slot.job is not None]
    for _ in range(1500):
        for slot in slots:
            site.answer(slot.number)
    assert len(slots) == 30
    assert [slot.number for slot in slots if slot.job is None] == []
    assert min(b"".join(site.sent[slot.number]).count(b"\n") for slot in slots) > 1500
