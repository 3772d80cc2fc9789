"""Window auto: an agent and its type prove by their items that they are fast, and only then it gets lines ahead."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import MOST_LINES, AgentType, Host
from scheduler.policy.core import Core
from scheduler.policy.prefetch_window import AHEAD_S, FAST_S, FEW, MOST_CROWD, REST_S, SLOW_S, MeanPace, Pace
from scheduler.policy.slots import Slot
from tests.core_tools import claim, make_core, sent, turn
from tests.unit.test_window import at_work, query

ITEM_S = 0.0001
MANY = 100  # items after which nothing more changes


class Bench:
    """Agents of one type, each with a query's rows; what one has not answered it has `lines` of."""

    def __init__(self, slots: int = 1, rows: int = 1000, **options: Any) -> None:
        kind = AgentType(command=("agent",), slots=slots, **options)
        self.core: Core = make_core({"sha": kind}, hosts={"alpha": Host(max=-1)})
        query(self.core, rows)
        self.agents = at_work(self.core, slots)
        self.lines = {slot: data.count(b"\n") for slot, data in zip(self.agents, sent(self.core), strict=True)}
        self.now = 0.0

    def says(self, slot: Slot, text: bytes = b"OK\n", after: float = ITEM_S) -> int:
        """Let an agent say something after so many seconds; return how many lines it gets."""
        self.now += after
        self.lines[slot] -= text.count(b"OK\n")
        got = (self.core.agent_output(slot.number, text, self.now) or b"").count(b"\n")
        self.lines[slot] += got
        return got

    def proves(self, *slots: Slot, items: int = MANY, after: float = ITEM_S) -> None:
        """Let agents finish so many items each, one after the other."""
        for _ in range(items):
            for slot in slots:
                self.says(slot, after=after / len(slots))


def test_an_agent_that_proves_fast_gets_up_to_sixteen_lines() -> None:
    bench = Bench()
    (slot,) = bench.agents
    assert bench.lines[slot] == 1
    bench.proves(slot, items=1)
    assert bench.lines[slot] == 1
    bench.proves(slot)
    assert MOST_LINES // 2 <= bench.lines[slot] <= MOST_LINES


@pytest.mark.parametrize("seconds", [0.0005, 0.001, 0.0015])
def test_no_more_lines_are_ahead_than_are_processed_in_some_milliseconds(seconds: float) -> None:
    bench = Bench()
    (slot,) = bench.agents
    bench.proves(slot, after=seconds)
    assert 1 < bench.lines[slot] <= 1 + AHEAD_S / seconds


def test_an_agent_whose_items_take_longer_gets_one_line_at_a_time() -> None:
    bench = Bench()
    (slot,) = bench.agents
    bench.proves(slot, items=200, after=2 * FAST_S)
    assert bench.lines[slot] == 1


def test_an_agent_of_a_type_that_has_proved_fast_gets_lines_after_one_item_p7() -> None:
    bench = Bench(slots=2, rows=100_000)
    first, second = bench.agents
    while bench.lines[first] == 1:
        bench.says(first, after=ITEM_S)
    assert bench.lines[second] == 1
    bench.now = 0.0  # the second one is as fast
    bench.says(second)
    assert bench.lines[second] > 1


def test_one_slow_item_ends_lines_ahead_at_once_until_many_of_its_type_are_fast() -> None:
    bench = Bench()
    (slot,) = bench.agents
    bench.proves(slot)
    while bench.lines[slot] > 1:
        bench.says(slot, after=SLOW_S)
    bench.proves(slot, items=10)
    assert bench.lines[slot] == 1
    bench.proves(slot)
    assert bench.lines[slot] > 1


@pytest.mark.parametrize("said", [b"Heartbeat\n", b"LOG on my way\n", b"ItemsProcessed 3\n"])
def test_nothing_is_sent_behind_an_item_that_takes_long(said: bytes) -> None:
    bench = Bench()
    (slot,) = bench.agents
    bench.proves(slot)
    bench.says(slot, b"OK\n" * (bench.lines[slot] - 1), after=ITEM_S)
    before = bench.lines[slot]
    got = [bench.says(slot, said, after=SLOW_S) for _ in range(5)]
    assert got == [0] * 5
    assert bench.lines[slot] == before


def test_no_agent_gets_lines_ahead_while_another_one_is_slow_nor_a_minute_after_that() -> None:
    bench = Bench(slots=2, rows=100_000)
    slow, fast = bench.agents
    bench.proves(slow, fast)
    bench.now += SLOW_S

    bench.proves(fast)
    assert bench.lines[fast] == 1
    assert bench.lines[slow] <= MOST_LINES
    bench.says(slow, after=0.0)
    bench.proves(fast)
    assert bench.lines[fast] == 1
    bench.proves(slow, fast, items=1, after=2 * REST_S)
    bench.proves(slow, fast, items=2 * MANY)
    assert bench.lines[fast] > 1


def test_the_last_items_are_spread() -> None:
    bench = Bench(slots=4, rows=400)
    counts = []
    while bench.core.state.jobs[1].waiting:
        bench.proves(*bench.agents, items=1)
        waiting = bench.core.state.jobs[1].waiting
        counts.append((waiting, max(bench.lines.values())))
    assert max(most for _, most in counts) > 4
    assert all(most <= 1 + max(MOST_LINES // 2, 200 // 4) for _, most in counts)
    assert max(bench.lines.values()) - min(bench.lines.values()) <= 2


def test_rows_for_other_hosts_are_no_part_of_the_share() -> None:
    kind = AgentType(command=("agent",), slots=1, window=9)
    core = make_core({"sha": kind}, hosts={"alpha": Host(max=-1), "beta": Host(max=-1)})
    turn(core, claim(1, msq=True, runonpfile="place"))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n", b"place"), 44), 0.0)
    places = [b"alpha"] * 4 + [b"beta"] * 40
    core.handle(e.Fetched(1, [(b"%d" % n, place) for n, place in enumerate(places)], more=False), 0.0)
    at_work(core, 2)
    assert sorted(data.count(b"\n") for data in sent(core)) == [2, 9]


def test_time_in_which_an_agent_has_nothing_to_do_is_not_counted() -> None:
    pace = Pace(MeanPace())
    pace.look(1, 0.0, ITEM_S)
    pace.look(1, 100.0, 100.0)  # it is idle
    pace.look(2, 100.0, 100.0 + ITEM_S)
    assert pace.seconds == pytest.approx(ITEM_S)


def test_an_item_in_hand_that_takes_longer_than_those_before_is_counted() -> None:
    pace = Pace(MeanPace())
    pace.look(1, 0.0, ITEM_S)
    pace.look(1, ITEM_S, SLOW_S)
    assert pace.seconds == pytest.approx(SLOW_S - ITEM_S)


def test_the_mean_of_a_type_forgets_a_slow_item_bit_by_bit_however_long_it_took() -> None:
    mean = MeanPace()
    Pace(mean).look(1, 0.0, 1e6)
    assert mean.seconds == SLOW_S
    for _ in range(MANY):
        Pace(mean).look(1, 0.0, ITEM_S)
    assert mean.seconds < 2 * ITEM_S


@pytest.mark.parametrize("db", ["statements", "sql"])
def test_an_agent_that_may_ask_the_database_gets_no_lines_ahead(db: Any) -> None:
    bench = Bench(db=db)
    (slot,) = bench.agents
    bench.proves(slot)
    assert bench.lines[slot] == 1


def test_an_agent_that_sends_a_db_line_without_the_right_gets_no_lines_ahead() -> None:
    bench = Bench()
    (slot,) = bench.agents
    bench.says(slot, b"DB: select 1;\nOK\n")
    bench.proves(slot)
    assert bench.lines[slot] == 1


@pytest.mark.parametrize("agents", [1, FEW, 100 * FEW])
def test_no_agent_has_more_lines_than_the_most_however_fast_it_is(agents: int) -> None:
    mean = MeanPace()
    pace = Pace(mean)
    for number in range(1, 200):
        pace.look(1000 * number, 0.0, 0.001 * number)
    assert pace.lines(agents) == MOST_LINES - 1


def test_window_of_one_is_never_ahead() -> None:
    bench = Bench(window=1)
    (slot,) = bench.agents
    bench.proves(slot)
    assert bench.lines[slot] == 1


def test_death_of_a_fast_agent_costs_the_rows_ahead_of_it_nothing() -> None:
    bench = Bench(slots=2)
    dead, other = bench.agents
    bench.proves(dead, other)
    assert bench.lines[dead] > 1
    job = bench.core.state.jobs[1]
    before = job.waiting
    bench.core.handle(e.Gone(dead.number, None, "SIGKILL"), bench.now)
    assert job.query is not None
    assert len(job.query.second_tries) == 1
    assert job.waiting == before + bench.lines[dead] - 1
    assert job.in_flight == bench.lines[other]
    assert job.failed == 0


@pytest.mark.parametrize(("slots", "most"), [(FEW, 1.0), (4 * FEW, 4.0), (100 * FEW, MOST_CROWD)])
def test_items_of_a_crowd_may_take_as_much_longer_as_it_has_agents(slots: int, most: float) -> None:
    for seconds, is_fast in ((0.9 * most * FAST_S, True), (1.1 * most * FAST_S, False)):
        pace = Pace(mean := MeanPace())
        mean.seconds = ITEM_S
        pace.look(1, 0.0, seconds)
        assert (pace.lines(slots) > 0) is is_fast


def test_an_agent_that_asked_for_more_than_lines_gets_none_ahead_however_fast_it_is() -> None:
    pace = Pace(mean := MeanPace())
    mean.seconds = ITEM_S
    pace.stay()
    pace.look(10, 0.0, ITEM_S)
    assert pace.lines(1000) == 0


@pytest.mark.parametrize(("slots", "has_lines"), [(FEW, False), (2 * FEW, True)])
def test_a_crowd_has_lines_ahead_where_few_have_none_p7(slots: int, has_lines: bool) -> None:
    bench = Bench(slots=slots, rows=20_000)
    bench.proves(*bench.agents, after=1.5 * FAST_S)
    assert (max(bench.lines.values()) > 1) is has_lines
