"""Connections for queries: SQL jobs whose agents are busy never keep one that another type could use."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.policy.core import Core
from tests.core_tools import claim, make_core, turn

ROWS = 5000  # of each query, unless
HUGE = 10**9  # rows, which no file has room for


class Site:
    """Carry out the effects of a core at once: agents work until `answer`."""

    def __init__(self, core: Core, rows: int = ROWS) -> None:
        self.core, self.rows = core, rows
        self.rows_of: dict[int, int] = {}  # by job, if it has other than `rows`
        self.given: dict[int, int] = {}  # by job with a connection: rows of its query that were fetched
        self.files: dict[int, list[int]] = {}  # by job: the first and the last row in its file
        self.problem = ""  # of files
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
                self.core.handle(e.Opened(job, (b"n",), self._total(job) - self._behind(job)), now)
            case e.Fetch(job=job, count=count):
                self._fetch(job, count, now)
            case e.Keep(job=job, count=count):
                self._keep(job, count, now)
            case e.CloseQuery(job=job):
                self.given.pop(job, None)
                self.files.pop(job, None)

    def _total(self, job: int) -> int:
        return self.rows_of.get(job, self.rows)

    def _behind(self, job: int) -> int:
        """Return the row behind which the query of a job begins."""
        query = [query for pk, query in self.queries if pk == job][-1]
        return int(query.split("> E'")[1].split("'")[0]) if "> E'" in query else 0

    def _fetch(self, job: int, count: int, now: float) -> None:
        file = self.files.get(job)
        if file is not None and file[0] < file[1]:
            begin, end = file[0], min(file[0] + count, file[1])
            file[0] = end
        else:
            begin = self._behind(job) + self.given[job]
            end = min(begin + count, self._total(job))
            self.given[job] += end - begin
        rows = [(b"%05d" % (number + 1),) for number in range(begin, end)]
        is_file_empty = file is None or file[0] == file[1]
        self.core.handle(e.Fetched(job, rows, not is_file_empty or self._is_left(job)), now)

    def _is_left(self, job: int) -> bool:
        """Return whether rows of a job are left on the server."""
        return job in self.given and self._behind(job) + self.given[job] < self._total(job)

    def _keep(self, job: int, count: int, now: float) -> None:
        begin = self._behind(job) + self.given[job]
        end = min(begin + count, self._total(job))
        self.files.setdefault(job, [begin, begin])[1] = end
        self.given[job] += end - begin
        is_left = self._is_left(job)
        if not is_left:
            del self.given[job]
        size = 0 if self.problem else (end - begin) * 22
        self.core.handle(e.Kept(job, end - begin, size, is_left, self.problem), now)


def occupied(types: int, jobs: int, rows: int = ROWS, timers: dict[str, Any] | None = None, **rules: Any) -> Site:
    """Return a site whose types, but for `idle`, have one agent each, at work on a row of the first of their jobs."""
    names = [f"busy{at}" for at in range(types)]
    core = make_core({name: AgentType(command=("agent",)) for name in (*names, "idle")}, **(timers or {}))
    site = Site(core, rows)
    for at, name in enumerate(names):
        site.insert(name, *range(at * jobs + 1, at * jobs + jobs + 1), **rules)
    return site


def at_work(core: Core, name: str) -> list[int]:
    return [slot.job.pk for slot in core.state.pools[name].slots if slot.job is not None]


@pytest.mark.parametrize("rules", [{}, {"key": "n"}], ids=["without a key", "with a key"])
@pytest.mark.parametrize(("types", "jobs"), [(1, 20), (3, 6), (20, 3), pytest.param(200, 2, marks=pytest.mark.slow)])
def test_busy_types_of_any_number_keep_no_other_type_waiting_f49(types: int, jobs: int, rules: dict[str, str]) -> None:
    site = occupied(types, jobs, **rules)
    core = site.core
    assert [name for name in core.state.pools if name != "idle" and not at_work(core, name)] == []
    site.insert("idle", 10_000, **rules)
    assert at_work(core, "idle") == [10_000]
    assert site.most_open <= core.state.timers.expansions


def test_query_with_a_key_goes_on_behind_the_last_row_that_was_fetched_f49() -> None:
    site = occupied(9, 1, key="n")
    (parked,) = set(range(1, 10)) - site.given.keys()
    slot = next(slot for slot in site.core.state.slots.all if slot.job is not None and slot.job.pk == parked)
    for _ in range(ROWS):
        site.answer(slot.number)
    lines = [line.decode() for line in site.sent[slot.number]]
    assert [int(number) for line in lines for number in line.split('"')[1::2]] == list(range(1, ROWS + 1))


def test_query_that_gave_its_connection_back_goes_on_though_its_type_may_have_one_f49() -> None:
    site = occupied(1, 1, timers={"expansions": 1, "expansions_per_type": 1}, key="n")
    site.insert("idle", 10_000, key="n")
    assert (at_work(site.core, "idle"), set(site.given)) == ([10_000], {10_000})
    site.core.cancel(10_000, "not needed", 0.0)
    site.settle()
    for _ in range(ROWS):
        site.answer(0)
    lines = [line.decode() for line in site.sent[0]]
    assert [int(number) for line in lines for number in line.split('"')[1::2]] == list(range(1, ROWS + 1))


def test_rows_of_a_query_without_a_key_come_from_its_file_in_order_f49() -> None:
    site = occupied(9, 1)
    (parked,) = site.files.keys() - site.given.keys()
    assert site.core.state.jobs[parked].waiting < ROWS // 2  # of 5000 rows most are not in memory
    slot = next(slot for slot in site.core.state.slots.all if slot.job is not None and slot.job.pk == parked)
    for _ in range(ROWS):
        site.answer(slot.number)
    lines = [line.decode() for line in site.sent[slot.number]]
    assert [int(number) for line in lines for number in line.split('"')[1::2]] == list(range(1, ROWS + 1))
    assert [job for job, _ in site.queries].count(parked) == 1
    assert parked not in site.core.state.kept


SMALL = [{}, {"key": "n"}]


@pytest.mark.parametrize("rules", SMALL, ids=["a small query", "a huge query with a key"])
@pytest.mark.parametrize(("types", "jobs"), [(1, 10), (3, 4), (20, 2), pytest.param(200, 1, marks=pytest.mark.slow)])
def test_queries_that_no_file_has_room_for_keep_no_other_waiting_f49(
    types: int, jobs: int, rules: dict[str, str]
) -> None:
    site = occupied(types, jobs, HUGE)
    site.rows_of[10_000] = HUGE if rules else ROWS
    site.insert("idle", 10_000, **rules)
    assert at_work(site.core, "idle") == [10_000]
    assert site.most_open <= site.core.state.timers.expansions
    assert sum(site.core.state.kept.values()) <= site.core.state.timers.msq_file_bytes


def test_huge_query_has_the_last_connection_while_no_other_has_begun_one_f49() -> None:
    site = occupied(2, 4, HUGE)  # of which two have begun, five are opened ahead
    assert len(site.given) == 7
    site.insert("idle", 10_000)
    assert at_work(site.core, "idle") == [10_000]


def test_huge_query_that_was_held_back_begins_when_another_has_ended_f49() -> None:
    site = occupied(8, 1, HUGE)
    (waiting,) = [pk for pk, job in site.core.state.jobs.items() if not job.started]
    assert len(site.given) == 7
    site.core.cancel(next(iter(site.given)), "cancelled", 0.0)
    site.settle()
    assert site.core.state.jobs[waiting].started


def test_files_take_no_more_rows_than_they_may_f49() -> None:
    limit = 3 * ROWS * 25
    site = occupied(20, 1, timers={"msq_file_bytes": limit})
    assert ROWS * 20 < sum(site.core.state.kept.values()) <= limit
    site.insert("idle", 10_000, key="n")
    assert at_work(site.core, "idle") == [10_000]


def test_rows_of_all_fetches_of_a_query_count_for_the_room_of_files_f49() -> None:
    limit = 3 * ROWS * 25
    site = occupied(20, 1, timers={"msq_file_bytes": limit, "fetch_rows": 500})
    assert ROWS * 22 < sum(last - first for first, last in site.files.values()) * 22 <= limit


def test_only_connection_is_given_back_too_f49() -> None:
    site = occupied(20, 2, timers={"expansions": 1})
    site.insert("idle", 10_000)
    assert at_work(site.core, "idle") == [10_000]


def test_query_whose_file_is_refused_keeps_its_connection_and_its_rows_f49() -> None:
    site = occupied(1, 1, timers={"expansions": 1})
    site.problem = "No space left on device"
    site.insert("idle", 10_000)
    assert site.core.state.jobs[1].query.stays
    for _ in range(ROWS):
        site.answer(0)
    lines = [line.decode() for line in site.sent[0]]
    assert [int(number) for line in lines for number in line.split('"')[1::2]] == list(range(1, ROWS + 1))
    assert at_work(site.core, "idle") == [10_000]


def test_last_rows_of_a_query_wait_in_memory_and_in_no_file() -> None:
    site = occupied(1, 1, 16 + 1000 + 900, timers={"expansions": 1})
    assert site.core.state.jobs[1].waiting == 1015
    site.insert("idle", 10_000)
    assert (at_work(site.core, "idle"), site.files, site.core.state.jobs[1].waiting) == ([10_000], {}, 1915)


def test_query_with_the_fewest_rows_left_goes_to_a_file_f49() -> None:
    core = make_core({name: AgentType(command=("agent",)) for name in ("a", "b", "idle")}, expansions=2)
    site = Site(core)
    site.rows_of[1] = 4 * ROWS
    site.insert("a", 1)
    site.insert("b", 2)
    site.insert("idle", 10_000)
    assert (at_work(core, "idle"), set(site.files)) == ([10_000], {2})


def test_latest_query_without_begun_rows_is_run_again_when_none_has_room() -> None:
    site = occupied(2, 4, HUGE)
    site.insert("idle", 10_000)
    opened = [pk for pk, _ in site.queries]
    assert set(opened) - site.given.keys() == {7}


def test_one_query_at_a_time_goes_to_a_file() -> None:
    core = make_core({name: AgentType(command=("agent",)) for name in ("a", "b", "idle")}, expansions=2)
    site = Site(core)
    site.insert("a", 1)
    site.insert("b", 2)
    core.handle(e.Woken(), 0.0)
    turn(core, claim(10_000, "idle", msq=True))
    asked = [effect for effect in core.take_effects(0.0) if isinstance(effect, e.Keep | e.Fetch)]
    for _ in range(3):
        core.state.mark_dirty(*core.state.pools.values())
        asked += [effect for effect in core.take_effects(0.0) if isinstance(effect, e.Keep | e.Fetch)]
    assert [(type(effect), effect.job) for effect in asked] == [(e.Keep, 1)]


def waiting_types(core: Core) -> list[str]:
    """Return the types of which people are told that their queries wait for a connection."""
    return [row["type"] for row in core.report.agent_rows(0.0) if row["queries_wait"]]


def test_types_whose_queries_wait_for_a_connection_are_named() -> None:
    site = occupied(1, 1, timers={"expansions": 1})
    told = [waiting_types(site.core)]
    site.problem = "No space left on device"
    site.insert("idle", 10_000)
    told.append(waiting_types(site.core))
    site.core.cancel(1, "not needed", 0.0)
    site.settle()
    assert [*told, waiting_types(site.core), at_work(site.core, "idle")] == [[], ["idle"], [], [10_000]]


def test_query_whose_rows_are_all_fetched_has_no_connection() -> None:
    site = occupied(1, 1)
    core = site.core
    (slot,) = [slot for slot in core.state.slots.all if slot.job is not None]
    while core.state.expanding:
        site.answer(slot.number)
    assert site.given == {}
    assert core.state.jobs[1].waiting > 0


def test_types_with_busy_agents_leave_one_connection_to_others() -> None:
    site = occupied(2, 4)
    assert len(site.given) == site.core.state.timers.expansions - 1


def test_types_that_need_a_connection_take_turns_f49() -> None:
    site = occupied(30, 1, key="n")
    slots = [slot for slot in site.core.state.slots.all if slot.job is not None]
    for _ in range(1500):
        for slot in slots:
            site.answer(slot.number)
    assert len(slots) == 30
    assert [slot.number for slot in slots if slot.job is None] == []
    assert min(b"".join(site.sent[slot.number]).count(b"\n") for slot in slots) > 1500
