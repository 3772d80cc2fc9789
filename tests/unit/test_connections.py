"""Work that needs a connection that cannot be made goes back at no cost and is not begun; all other work goes on."""

from typing import Any

import attrs
import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType
from scheduler.policy.core import Core
from tests.core_tools import claim, make_core, ready, saved, settle, turn

KINDS = {"sha": AgentType(command=("agent",)), "asks": AgentType(command=("agent",), db="sql")}
REFUSED = 'FATAL: role "drover_msq" does not exist'


def refuse(
    core: Core, need: e.ConnectionKind = "queries", now: float = 0.0, *, seconds: float = 8.0, up: int = 0
) -> None:
    core.handle(e.ConnectionsChanged(need, "drover_msq", REFUSED, seconds, up), now)


def let_in(core: Core, need: e.ConnectionKind = "queries", now: float = 0.0) -> None:
    core.handle(e.ConnectionsChanged(need, "drover_msq", None), now)


def outcomes(core: Core, now: float = 0.0) -> list[tuple[Any, ...]]:
    """Save, and return what is written of each row."""
    return [(row.pk, row.state, row.outcome, row.retry_in) for row in saved(settle(core, now))]


def test_sql_job_goes_back_until_the_next_attempt_while_log_ins_fail() -> None:
    core = make_core()
    refuse(core)
    turn(core, claim(1, msq=True), now=1.0)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.outcome, row.interruptions, row.failures) == ("queued", "not begun", None, None)
    assert row.text == f"no connection as drover_msq: {REFUSED}"
    assert 7.0 < row.retry_in < 8.0
    assert core.state.jobs == {}


def test_job_of_one_parameter_goes_on_while_log_ins_for_queries_fail() -> None:
    core = make_core()
    refuse(core)
    slot = ready(core, claim(1))
    assert slot.job is not None


def test_query_that_waits_for_an_agent_goes_back_when_log_ins_begin_to_fail() -> None:
    core = make_core(expansions_per_type=1)
    turn(core, claim(1, msq=True), claim(2, msq=True))
    core.take_effects(0.0)
    refuse(core)
    assert outcomes(core) == [(2, "queued", "not begun", 8.5)]


def test_query_whose_connection_is_refused_goes_back_without_a_counted_attempt() -> None:
    core = make_core()
    turn(core, claim(1, msq=True))
    assert [type(effect) for effect in core.take_effects(0.0)] == [e.Expand]
    core.handle(e.NotExpanded(1, REFUSED, again=True, retry_in=3.0), 0.0)
    (row,) = saved(settle(core))
    assert (row.state, row.outcome, row.interruptions, row.retry_in) == ("queued", "not begun", None, 3.5)


@pytest.mark.parametrize(("now", "delay"), [(5.0, 5.5), (20.0, 20.5), (500.0, 30.5)])
def test_back_off_grows_with_the_length_of_the_failure_while_an_attempt_hangs(now: float, delay: float) -> None:
    core = make_core(reconnect_max=30.0)
    refuse(core, now=0.0, seconds=1.0)
    turn(core, claim(1, msq=True), now=now)
    assert outcomes(core, now) == [(1, "queued", "not begun", delay)]


def test_queries_are_opened_again_when_log_ins_succeed() -> None:
    core = make_core()
    refuse(core)
    let_in(core, now=9.0)
    turn(core, claim(1, msq=True), now=9.0)
    assert e.Expand in [type(effect) for effect in core.take_effects(9.0)]


def test_queries_go_on_over_connections_that_are_up() -> None:
    core = make_core()
    refuse(core, up=1)
    turn(core, claim(1, msq=True))
    assert e.Expand in [type(effect) for effect in core.take_effects(0.0)]


def expanded(core: Core, now: float = 0.0) -> list[int]:
    """Look, and return the jobs whose queries are begun."""
    core.schedule(now)
    return [effect.job for effect in core.take_effects(now) if isinstance(effect, e.Expand)]


def test_queries_share_connections_that_are_up_while_others_are_refused() -> None:
    core = make_core(expansions=8)
    refuse(core, up=1)
    turn(core, claim(1, msq=True), claim(2, msq=True))
    assert expanded(core) == [1]
    refuse(core, up=3)
    assert expanded(core) == [2]


def test_all_queries_are_opened_again_once_no_connection_is_refused() -> None:
    core = make_core(expansions=8)
    refuse(core, up=1)
    turn(core, *(claim(pk, msq=True) for pk in range(1, 4)))
    let_in(core)
    assert expanded(core) == [1, 2, 3]


def test_query_that_got_the_one_refused_connection_is_claimed_again_soon() -> None:
    core = make_core()
    turn(core, claim(1, msq=True))
    refuse(core, seconds=30.0, up=1)
    core.handle(e.NotExpanded(1, REFUSED, again=True, retry_in=30.0), 0.0)
    assert outcomes(core) == [(1, "queued", "not begun", 0.5)]


@pytest.mark.parametrize("waiting_type", ["sha", "asks"])
def test_connection_of_a_query_whose_row_is_lost_goes_to_the_query_that_waits(waiting_type: str) -> None:
    core = make_core(KINDS, expansions=1)
    turn(core, claim(1, msq=True))
    turn(core, claim(2, waiting_type, msq=True))
    assert expanded(core) == [1]
    core.handle(e.RowsLost([(1, 1)]), 1.0)
    assert expanded(core) == [2]


def test_type_that_may_ask_the_database_is_not_claimed_while_its_log_in_fails() -> None:
    core = make_core(KINDS)
    refuse(core, "statements")
    assert {want.type for want in turn(core).wanted} == {"sha"}
    let_in(core, "statements")
    assert {want.type for want in turn(core).wanted} == {"sha", "asks"}


def test_job_of_a_type_whose_log_in_fails_goes_back_without_a_counted_attempt() -> None:
    core = make_core(KINDS)
    turn(core, claim(1, "asks"), claim(2))
    refuse(core, "statements")
    assert outcomes(core) == [(1, "queued", "not begun", None)]
    assert list(core.state.jobs) == [2]


def test_items_of_a_type_whose_log_in_fails_wait_until_it_succeeds() -> None:
    core = make_core({"asks": KINDS["asks"]})
    turn(core, claim(1, "asks", msq=True))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"a",), 2), 0.0)
    core.handle(e.Fetched(1, [(b"1",), (b"2",)], False), 0.0)
    (spawn,) = [effect for effect in core.take_effects(0.0) if isinstance(effect, e.Spawn)]
    core.handle(e.Created(spawn.slot, 100), 0.0)
    core.agent_output(spawn.slot, b"OK\n", 0.0)
    core.take_effects(0.0)
    refuse(core, "statements")
    assert core.agent_output(spawn.slot, b"OK\n", 1.0) is None
    assert [effect for effect in core.take_effects(1.0) if isinstance(effect, e.Send)] == []
    let_in(core, "statements", 2.0)
    assert [effect.data for effect in core.take_effects(2.0) if isinstance(effect, e.Send)] == [b'a="2"\n']


def test_why_names_the_failing_log_in_of_a_type_and_the_next_attempt() -> None:
    core = make_core(KINDS)
    refuse(core, "statements", now=1.0)
    rows = {row["type"]: row for row in core.report.agent_rows(2.0)}
    assert (rows["asks"]["seconds"], rows["asks"]["reason"]) == (7.0, f"no connection as drover_msq: {REFUSED}")
    assert (rows["sha"]["seconds"], rows["sha"]["reason"]) == (None, None)


def test_type_allowed_the_database_by_a_reload_waits_for_the_log_in() -> None:
    core = make_core(KINDS)
    refuse(core, "statements")
    sha = AgentType(command=("agent",), db="sql")
    core.handle(e.Reloaded(attrs.evolve(core.state.config, agents={"sha": sha})), 1.0)
    assert core.next_request(1.0) is None
