"""What a core counts and waits for: places of queues, tokens, time limits, starts, connections; none is forgotten."""

from typing import Any

import attrs
import pytest

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType, Host
from scheduler.model.protocol import Item
from scheduler.model.states import NEVER, ST_FAIL, ST_FREE
from scheduler.policy.agent_pool import Pool
from scheduler.policy.core import Core
from scheduler.policy.state import MARK_AFTER, MOST_STARTS
from tests.core_tools import TABLES, claim, make_core, ready, saved, sent, settle, spawned, turn
from tests.unit.test_handover import query_core

AGENT = AgentType(command=("agent",))
FAR = {"beta": Host(transport="ssh", address="beta")}


def effects(core: Core, kind: type, now: float = 0.0) -> list[Any]:
    return [effect for effect in core.take_effects(now) if isinstance(effect, kind)]


def up(core: Core, now: float = 0.0) -> list[int]:
    """Let all agents that are to be started come up; return their slots."""
    numbers = spawned(core, now)
    for number in numbers:
        core.handle(e.Created(number, 100 + number), now)
        if not core.state.slots.all[number].pool.is_exec:
            core.agent_output(number, b"OK\n", now)
    core.schedule(now)
    return numbers


def queues(**limits: Any) -> list[dict[str, Any]]:
    return [{"name": "default", "concurrency": None, "paused": False, "reserved": 0} | limits]


def follow(core: Core, rows: list[dict[str, Any]], *, types: list[dict[str, Any]] | None = None) -> None:
    core.handle(e.TablesRead(rows, [], types or [], []), 0.0)


# ---- places
@pytest.mark.parametrize("said", [b"OK\n", b"FAIL a\nOK\n"])
def test_the_end_of_a_job_frees_its_place_in_its_queue(said: bytes) -> None:
    core = make_core()
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    assert core.state.queues["default"].in_hand == 2
    core.agent_output(slot.number, said, 1.0)
    assert core.state.queues["default"].in_hand == 1


def test_a_pause_of_a_queue_gives_back_what_has_not_begun() -> None:
    core = make_core()
    ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    follow(core, queues(paused=True))
    assert [(row.pk, row.text) for row in saved(settle(core))] == [(2, "the queue takes no more")]
    assert core.state.queues["default"].in_hand == 1


# ---- rates of items
def test_types_without_a_rate_before_it_hold_up_no_type_with_one() -> None:
    core = make_core({"a": AGENT, "sha": AgentType(command=("agent",), item_rate=0.5)})
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 0.0)
    assert sent(core, 0.0) == []
    assert core.next_deadline() <= 2.0
    core.tick(2.0)
    assert sent(core, 2.0) == [b"item 2\n"]


def test_two_types_with_rates_wait_for_the_sooner_one() -> None:
    core = make_core({name: AgentType(command=("agent",), item_rate=rate) for name, rate in (("a", 0.1), ("b", 0.5))})
    turn(core, claim(1, "a"), claim(2, "a"), claim(3, "b"), claim(4, "b"))
    up(core)
    core.take_effects(0.0)
    for number in (0, 1):
        core.agent_output(number, b"OK\n", 0.0)
    assert sent(core, 0.0) == []
    assert core.state.deadlines.at["item rates"] == 2.0
    core.tick(2.0)
    assert sent(core, 2.0) == [b"item 4\n"]
    core.tick(10.0)
    assert sent(core, 10.0) == [b"item 2\n"]


# ---- time
def test_time_limits_go_on_after_the_soonest_is_over() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1, timeout=5.0), claim(2, timeout=7.0))
    up(core)
    core.take_effects(0.0)
    for now in (5.0, 7.0):
        assert core.state.deadlines.at["time limits"] == now
        core.tick(now)
        assert len(effects(core, e.Kill, now)) == 1
    assert core.state.deadlines.at["time limits"] == NEVER


def test_many_jobs_with_time_limits_that_have_ended_are_forgotten() -> None:
    core = make_core()
    slot = ready(core, claim(1, timeout=9000.0))
    for pk in range(2, 300):
        core.take_effects(0.0)
        core.agent_output(slot.number, b"OK\n", 0.0)
        turn(core, claim(pk, timeout=5.0 if pk == 299 else 9000.0))
        core.schedule(0.0)
    assert len(core.state.job_deadlines) < 150
    core.tick(5.0)
    assert len(effects(core, e.Kill, 5.0)) == 1


def test_agents_and_jobs_get_the_time_back_in_which_nothing_was_read() -> None:
    core = make_core({"sha": AgentType(command=("agent",), heartbeat=10.0)})
    ready(core, claim(1, timeout=20.0))
    core.take_effects(0.0)
    core.resume(100.0, 105.0)
    core.tick(109.9)
    assert effects(core, e.Kill, 109.9) == []
    core.tick(110.0)
    assert len(effects(core, e.Kill, 110.0)) == 1
    assert core.state.jobs[1].deadline == 120.0


def test_a_pause_past_the_lease_stops_work() -> None:
    core = make_core()
    core.handle(e.Serve(50.0), 0.0)
    core.resume(100.0, 105.0)
    assert not core.state.is_assigning


# ---- starts
def test_only_so_many_agents_are_started_between_two_ticks_and_the_others_after_the_next() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=MOST_STARTS + 3)})
    turn(core, *[claim(pk) for pk in range(1, MOST_STARTS + 4)])
    assert len(spawned(core)) == MOST_STARTS
    assert core.next_deadline() == 0.0
    core.tick(0.0)
    assert len(spawned(core)) == 3
    assert core.state.deadlines.at["starts"] == NEVER


def test_failed_slots_of_one_type_are_reset_and_it_is_claimed_for_again() -> None:
    core = make_core({"sha": AGENT, "md5": AGENT}, respawn_count=0)
    turn(core, claim(1), claim(2, "md5"))
    for number in spawned(core):
        core.handle(e.Created(number, 100), 0.0)
        core.handle(e.Gone(number, code=1), 0.0)
    settle(core)
    assert [slot.state for slot in core.state.slots.all] == [ST_FAIL, ST_FAIL]
    assert core.reset_failed_slots("sha", 1.0) == 1
    assert [slot.state for slot in core.state.slots.all] == [ST_FREE, ST_FAIL]
    core.schedule(1.0)
    request = core.next_request(1.0)
    assert isinstance(request, r.EndAndClaim)
    assert {want.type for want in request.wanted} == {"sha"}
    assert core.reset_failed_slots(None, 1.0) == 1
    assert core.reset_failed_slots(None, 1.0) == 0


# ---- rows
def test_the_row_of_a_job_says_running_a_moment_after_it_began_and_not_before() -> None:
    core = make_core()
    ready(core, claim(1))
    core.take_effects(0.0)
    core.tick(MARK_AFTER - 0.01)
    assert [each for each in settle(core, 0.04) if isinstance(each, r.Mark)] == []
    core.tick(MARK_AFTER)
    assert [each.rows[0].state for each in settle(core, MARK_AFTER) if isinstance(each, r.Mark)] == ["running"]


def test_the_row_of_a_query_says_running_a_moment_after_it_began() -> None:
    core = query_core(None, 2, 2)
    core.tick(MARK_AFTER - 0.01)
    assert [each for each in settle(core, 0.04) if isinstance(each, r.Mark)] == []
    core.tick(MARK_AFTER)
    assert [each.rows[0].state for each in settle(core, MARK_AFTER) if isinstance(each, r.Mark)] == ["running"]


# ---- connections of queries
def test_a_query_that_is_killed_closes_its_cursor_once() -> None:
    core = query_core("n", 2, 9)
    core.kill(1, "by a", 1.0)
    assert effects(core, e.CloseQuery, 1.0) == [e.CloseQuery(1)]
    core.handle(e.Gone(0, signal="SIGHUP"), 2.0)
    assert effects(core, e.CloseQuery, 2.0) == []
    assert (core.state.expanding, core.state.kept) == (set(), {})


def test_the_end_of_a_job_of_one_line_closes_no_query() -> None:
    core = make_core()
    slot = ready(core, claim(1, timeout=9.0))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 1.0)
    assert effects(core, e.CloseQuery, 1.0) == []


def test_the_columns_of_a_query_are_placeholders_of_its_command() -> None:
    core = make_core({"run": AgentType(command=("cat", "{name}"), kind="exec")})
    turn(core, claim(1, "run", msq=True))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"id", b"name"), 1), 0.0)
    core.handle(e.Fetched(1, [(b"7", b"x")], more=False), 0.0)
    (spawn,) = effects(core, e.Spawn)
    assert spawn.argv == (b"cat", b"x")


def test_a_query_that_is_killed_leaves_no_second_try() -> None:
    core = query_core("n", 3, 3)
    core.handle(e.Gone(0, code=1), 1.0)
    core.kill(1, "by a", 1.0)
    assert core.state.pools["sha"].second_tries.__len__() == 0
    for number in spawned(core, 1.0):
        core.handle(e.Created(number, 101), 1.0)
        core.agent_output(number, b"OK\n", 1.0)
        core.handle(e.Gone(number, signal="SIGHUP"), 2.0)
    assert [row.state for row in saved(settle(core, 2.0))] == ["failed"]


# ---- what a type is measured by
@pytest.mark.parametrize(("finished", "span", "rate"), [(10, 0.5, 10.0), (10, 2.0, 5.0), (0, 0.5, 0.0)])
def test_the_rate_of_a_type_is_that_of_its_last_second(finished: int, span: float, rate: float) -> None:
    pool: Pool[Any] = Pool("sha", AGENT, True)
    pool.finished = finished
    pool.measure(span)
    assert pool.rate == rate


def test_the_rate_of_a_type_that_finishes_nothing_halves_each_second() -> None:
    pool: Pool[Any] = Pool("sha", AGENT, True)
    pool.rate = 8.0
    for now in (0.9, 1.1, 1.9, 2.2):
        pool.measure(now)
    assert pool.rate == 2.0


def test_rows_that_are_coming_wait_in_a_run_queue_until_they_are_here() -> None:
    core = make_core()
    request = core.next_request(0.0)
    assert isinstance(request, r.EndAndClaim)
    want = request.wanted[0]
    core.handle(e.EndedAndClaimed([], found={want: 2}, reached={want: r.ClaimPosition("1n", "n", 2)}, size=12), 0.0)
    pool = core.state.pools["sha"]
    assert (pool.arriving, list(pool.coming.values())) == (2, [2])
    core.handle(e.Claimed([claim(1)._replace(request=want), claim(2)._replace(request=want)]), 0.0)
    assert (pool.arriving, pool.coming) == (0, {})


def test_a_large_row_lets_fewer_be_claimed_for_a_while() -> None:
    pool: Pool[Any] = Pool("sha", AGENT, True)
    pool.claimed(1, None, 1000.0)
    pool.expect_row_bytes(200)
    assert pool.row_bytes == 1000.0
    pool.claimed(1, None, 10.0)
    assert pool.row_bytes == 500.0


# ---- rescued rows
def test_rescued_rows_are_marked_as_many_as_could_begin_and_the_others_later() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, *[claim(pk, rescued=1) for pk in (1, 2, 3, 4)])
    marks = [[row.pk for row in each.rows] for each in settle(core) if isinstance(each, r.Mark)]
    assert marks == [[1, 2]]
    up(core)
    core.take_effects(0.0)
    core.agent_output(0, b"OK\n", 1.0)
    core.take_effects(1.0)
    marks = [
        [row.pk for row in each.rows if row.host is None] for each in settle(core, 2.0) if isinstance(each, r.Mark)
    ]
    assert marks == [[3]]


# ---- another configuration
def test_jobs_of_a_queue_that_have_begun_count_for_a_rate_limit_that_comes_later_and_no_others() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=3)})
    other = claim(3)
    turn(core, claim(1), claim(2), other._replace(request=other.request._replace(queue="other")), claim(4))
    up(core)
    follow(core, queues(rate={"rate": 9, "interval": 60.0}) + queues(name="other"))
    assert [len(row["ages"]) for row in core.report.take_changed_rates(0.0)] == [2]


def test_a_host_that_is_reached_otherwise_waits_until_it_is_reached_and_its_agents_are_replaced() -> None:
    core = make_core(hosts=FAR)
    core.handle(e.HostUp("beta"), 0.0)
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    core.report.take_changed_hosts(0.0)
    other = {"beta": Host(transport="ssh", address="gamma")}
    core.handle(e.Reloaded(attrs.evolve(core.config, hosts=other)), 1.0)
    assert not core.state.hosts["beta"].is_up
    assert [row["name"] for row in core.report.take_changed_hosts(1.0)] == ["beta"]
    assert core.agent_output(slot.number, b"OK\n", 2.0) is None
    assert effects(core, e.Kill, 2.0) == [e.Kill(slot.number)]


def test_a_new_host_leaves_the_agents_of_the_others_alone() -> None:
    core = make_core()
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    core.handle(e.Reloaded(attrs.evolve(core.config, hosts={"alpha": Host(), "gamma": Host()})), 1.0)
    assert core.agent_output(slot.number, b"OK\n", 2.0) == b"item 2\n"


def test_a_second_try_stays_bound_to_its_host_after_a_reload_that_leaves_it() -> None:
    pool = make_core(hosts={"alpha": Host(), "gamma": Host()}).state.pools["sha"]
    job: Any = type("J", (), {"rank": b"1n", "queue": "default", "priority": "n"})()
    item = Item(b"x\n", 0)
    for host in ("alpha", "gone", None):
        pool.add_second_try(job, item, host)
    pool.unbind_second_tries()
    assert [host for *_, host in pool.second_tries] == ["alpha", None, None]


def test_a_type_of_another_kind_is_enabled_as_its_table_says() -> None:
    core = make_core()
    follow(core, TABLES["queues"], types=[{"type": "sha", "enabled": False}])
    turn_off = core.next_request(0.0)
    assert not (isinstance(turn_off, r.EndAndClaim) and turn_off.wanted)
    follow(core, TABLES["queues"], types=[{"type": "sha", "enabled": True}])
    assert isinstance(core.next_request(0.0), r.EndAndClaim)


def test_agents_are_looked_at_again_after_an_interval() -> None:
    pool: Pool[Any] = Pool("sha", AGENT, True)
    assert [pool.look_again(now, 5.0) for now in (4.0, 5.0, 9.0, 10.0)] == [False, True, False, True]


def test_an_item_whose_host_takes_its_job_no_more_has_its_second_try_anywhere() -> None:
    core = make_core(hosts={"alpha": Host(), "gamma": Host()})
    turn(core, claim(1, msq=True, runonpfile="at"))
    core.take_effects(0.0)
    core.handle(e.Opened(1, (b"n", b"at"), 1), 0.0)
    core.handle(e.Fetched(1, [(b"1", b"gamma")], more=False), 0.0)
    (number,) = up(core)
    core.take_effects(0.0)
    slot = core.state.slots.all[number]
    assert (slot.host.name, slot.is_bound) == ("gamma", True)
    hosts = {"alpha": Host(), "gamma": Host(queues=("other",))}
    core.handle(e.Reloaded(attrs.evolve(core.config, hosts=hosts)), 1.0)
    core.handle(e.Gone(number, code=1), 2.0)
    assert [spawn.host for spawn in effects(core, e.Spawn, 2.0)] == ["alpha"]
