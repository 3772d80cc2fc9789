"""The rate of items of an agent type: rows of queries and one-parameter jobs alike, whoever is free."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Config, Host, Scheduler
from scheduler.policy.core import Core
from scheduler.policy.item_rate import TokenBucket
from tests.core_tools import claim, make_core, sent, settle, spawned, turn
from tests.unit.test_handover import handed_over


def limited(rate: float = 10.0, slots: int = 1, **options: Any) -> Core:
    """Return a core whose one type has a rate of items."""
    kind = AgentType(command=("agent",), slots=slots, item_rate=rate, **options)
    return make_core({"sha": kind}, hosts={"alpha": Host(max=-1)})


def come_up(core: Core) -> list[int]:
    """Start agents for what is in hand; each says its first OK."""
    numbers = spawned(core)
    for number in numbers:
        core.handle(e.Created(number, 100 + number), 0.0)
        core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)
    return numbers


def worked(core: Core, until: float, step: float = 0.01) -> list[float]:
    """Let each agent say OK to its line at once; return when lines were sent, up to an instant."""
    at: list[float] = []
    now = 0.0
    busy: list[int] = []
    while now <= until:
        core.tick(now)
        for number in busy:
            line = core.agent_output(number, b"OK\n", now)
            at += [now] if line else []
        effects = core.take_effects(now)
        busy = [slot.number for slot in core.state.slots.all if slot.job is not None]
        at += [now for effect in effects if isinstance(effect, e.Send)]
        now = round(now + step, 6)
    return at


def query(core: Core, rows: int, pk: int = 1) -> None:
    """Take a query of so many rows in hand."""
    turn(core, claim(pk, msq=True))
    core.take_effects(0.0)
    core.handle(e.Opened(pk, (b"n",), rows), 0.0)
    core.handle(e.Fetched(pk, [(b"%d" % n,) for n in range(rows)], more=False), 0.0)


def most_in_a_second(at: list[float]) -> int:
    """Return how many of these instants some second has at most."""
    return max(sum(start <= each < start + 0.999 for each in at) for start in at)


@pytest.mark.parametrize("slots", [1, 4])
def test_rows_of_a_query_keep_to_the_rate_of_their_type(slots: int) -> None:
    core = limited(slots=slots)
    query(core, 100)
    come_up(core)
    at = worked(core, 3.0)
    assert most_in_a_second(at) <= 11
    assert 30 <= len(at) <= 32


def test_jobs_of_one_parameter_keep_to_the_rate_of_their_type() -> None:
    core = limited(slots=4)
    turn(core, *[claim(pk) for pk in range(1, 101)])
    come_up(core)
    at = worked(core, 3.0)
    assert most_in_a_second(at) <= 11
    assert 30 <= len(at) <= 32


def test_rows_and_jobs_share_the_rate_of_their_type() -> None:
    core = limited(slots=2)
    turn(core, claim(1, msq=True), *[claim(pk) for pk in range(2, 52)])
    come_up(core)  # a query is opened when its type has an agent
    core.handle(e.Opened(1, (b"n",), 50), 0.0)
    core.handle(e.Fetched(1, [(b"%d" % n,) for n in range(50)], more=False), 0.0)
    assert most_in_a_second(worked(core, 3.0)) <= 11


def test_commands_keep_to_the_rate_of_their_type() -> None:
    core = limited(1.0, slots=4, kind="exec")
    turn(core, *[claim(pk) for pk in range(1, 9)])
    started = []
    for second in range(4):
        core.tick(float(second))
        numbers = spawned(core, float(second))
        started.append(len(numbers))
        for number in numbers:
            core.handle(e.Created(number, 100), float(second))
            core.handle(e.Gone(number, code=0), second + 0.1)
        settle(core, second + 0.1)
    assert started == [1, 1, 1, 1]


def test_a_second_try_counts_too() -> None:
    core = limited(1.0)
    query(core, 2)
    (number,) = come_up(core)
    assert sent(core) == [b'n="0"\n']
    core.handle(e.Gone(number, code=3), 0.1)
    core.tick(0.2)
    (number,) = spawned(core, 1.0) or [number]
    core.tick(1.0)
    (number,) = spawned(core, 1.0) or [number]
    core.handle(e.Created(number, 101), 1.0)
    core.agent_output(number, b"OK\n", 1.0)
    core.schedule(1.0)
    assert sent(core, 1.0) == [b'n="0"\n']
    assert core.agent_output(number, b"OK\n", 1.1) is None
    core.take_effects(1.1)
    core.tick(2.0)
    assert sent(core, 2.0) == [b'n="1"\n']


def test_a_type_without_a_rate_has_no_limit() -> None:
    core = limited(0.0)
    query(core, 100)
    come_up(core)
    assert len(worked(core, 1.0)) == 100


def test_a_rate_that_is_removed_lets_go_what_waits() -> None:
    core = limited(0.001)
    query(core, 3)
    (number,) = come_up(core)
    sent(core)
    assert core.agent_output(number, b"OK\n", 1.0) is None
    kinds = {"sha": AgentType(command=("agent",))}
    core.handle(e.Reloaded(Config(scheduler=Scheduler(), hosts={"alpha": Host(max=-1)}, agents=kinds)), 1.0)
    assert sent(core, 1.0) == [b'n="1"\n']


def test_a_rate_that_is_raised_is_for_what_waits() -> None:
    core = limited(0.001)
    query(core, 3)
    (number,) = come_up(core)
    sent(core)
    assert core.agent_output(number, b"OK\n", 1.0) is None
    kinds = {"sha": AgentType(command=("agent",), item_rate=1.0)}
    core.handle(e.Reloaded(Config(scheduler=Scheduler(), hosts={"alpha": Host(max=-1)}, agents=kinds)), 1.0)
    core.tick(2.0)
    assert sent(core, 2.0) == [b'n="1"\n']


def test_a_rate_lasts_over_an_upgrade_of_the_daemon() -> None:
    core = limited(1.0, db="statements")
    query(core, 3)
    (number,) = come_up(core)
    sent(core)
    assert core.agent_output(number, b"OK\n", 0.1) is None
    core = handed_over(core, 0.2)
    core.tick(0.3)
    assert sent(core, 0.3) == []
    core.tick(1.0)
    assert sent(core, 1.0) == [b'n="1"\n']


def test_a_drain_does_not_give_back_a_query_that_waits_for_its_rate() -> None:
    core = limited(1.0)
    query(core, 3)
    (number,) = come_up(core)
    sent(core)
    core.agent_output(number, b"OK\n", 0.1)
    core.handle(e.Drain(), 0.2)
    assert core.state.jobs[1].verdict is None


@given(st.floats(0.01, 1000.0), st.lists(st.floats(0.0, 5.0), min_size=1, max_size=200), st.floats(0.1, 20.0))
def test_no_span_of_time_has_more_tokens_than_the_rate_and_a_burst(
    rate: float, pauses: list[float], span: float
) -> None:
    bucket, now = TokenBucket(rate), 0.0
    at: list[float] = []
    for pause in pauses:
        now += pause
        while bucket.has_token(now) and len(at) < 3000:
            bucket.take(now)
            at.append(now)
    most = rate * span + max(1.0, rate / 10) + 0.001
    assert all(sum(start <= each < start + span for each in at) <= most for start in at[:50])
