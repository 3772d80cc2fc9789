"""Which jobs a core gives back, lets end or forgets when it drains, stops, steps down or has lost its group."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.model.config import AgentType, Scheduler
from scheduler.model.queue_requests import Adoption, EndAndClaim
from scheduler.policy.core import Core
from scheduler.policy.group_lease import Lease, LeaseStatement, Owner
from tests.core_tools import answer_to, claim, make_core, ready, saved, sent, settle, spawned, turn
from tests.unit.test_handover import query_core

DETACHED = AgentType(command=("tool",), kind="exec", detached=True)


def effects(core: Core, kind: type, now: float = 0.0) -> list[Any]:
    return [effect for effect in core.take_effects(now) if isinstance(effect, kind)]


def told(core: Core, now: float = 0.0) -> list[str]:
    return [effect.text for effect in effects(core, e.LogMessage, now)]


def states(core: Core, now: float = 1.0) -> dict[int, str]:
    """Save all; return the states of the rows that were saved, plain ends too."""
    requests = settle(core, now)
    ends = {end.pk: "done" for request in requests if isinstance(request, EndAndClaim) for end in request.ends}
    return ends | {row.pk: row.state for row in saved(requests)}


def ended(core: Core, now: float) -> list[e.Effect]:
    """Let a core end; return how it says so."""
    core.tick(now)
    settle(core, now)
    core.end_if_over()
    return [effect for effect in core.take_effects(now) if isinstance(effect, e.Exit | e.ReleaseGroup)]


def with_one_at_work() -> Core:
    """Return a core that works on job 1 and has job 2."""
    core = make_core()
    ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    return core


# ---- drain
def test_a_drain_lets_the_job_at_work_end_and_gives_the_others_back() -> None:
    core = with_one_at_work()
    core.handle(e.Drain(), 1.0)
    assert (states(core), effects(core, e.Kill, 1.0)) == ({2: "queued"}, [])
    core.agent_output(0, b"OK\n", 2.0)
    assert effects(core, e.Kill, 2.0) == [e.Kill(0)]
    assert states(core, 2.0) == {1: "done"}
    core.handle(e.Gone(0, signal="SIGHUP"), 3.0)
    assert ended(core, 3.0) == [e.Exit()]


@pytest.mark.parametrize(("key", "drains", "is_given_back"), [("n", 1, True), (None, 1, False), (None, 2, True)])
def test_a_drain_stops_queries_with_a_key_and_lets_others_finish_their_slice(
    key: str | None, drains: int, is_given_back: bool
) -> None:
    core = query_core(key, 4, 4)
    for _ in range(drains):
        core.handle(e.Drain(), 1.0)
    core.take_effects(1.0)
    assert core.agent_output(0, b"OK\n", 2.0) == (None if is_given_back else b'n="2"\n')
    assert states(core, 2.0) == ({1: "queued"} if is_given_back else {})


def test_a_draining_core_assigns_items_of_the_last_slice_and_ends_its_agents_then() -> None:
    core = query_core(None, 2, 2)
    core.handle(e.Drain(), 1.0)
    assert core.agent_output(0, b"OK\n", 2.0) == b'n="2"\n'
    core.agent_output(0, b"OK\n", 3.0)
    assert effects(core, e.Kill, 3.0) == [e.Kill(0)]
    assert states(core, 3.0) == {1: "done"}


def test_a_second_drain_lets_the_job_at_work_end_too() -> None:
    core = with_one_at_work()
    core.handle(e.Drain(), 1.0)
    core.handle(e.Drain(), 1.0)
    core.agent_output(0, b"OK\n", 2.0)
    assert states(core, 2.0) == {1: "done", 2: "queued"}


def test_an_agent_of_a_draining_core_ends_after_its_job_while_others_are_at_work() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1), claim(2))
    for number in spawned(core):
        core.handle(e.Created(number, 100), 0.0)
    for number in (0, 1):
        core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    core.handle(e.Drain(), 1.0)
    core.agent_output(1, b"OK\n", 2.0)
    assert effects(core, e.Kill, 2.0) == [e.Kill(1)]


def test_a_draining_core_waits_for_rows_that_are_on_their_way_and_gives_them_back() -> None:
    core = make_core()
    request = core.next_request(0.0)
    assert isinstance(request, EndAndClaim)
    want = request.wanted[0]
    core.handle(e.EndedAndClaimed([], found={want: 1}, reached={want: r.ClaimPosition("1n", "n", 1)}, size=6), 0.0)
    core.handle(e.Drain(), 0.1)
    assert ended(core, 0.1) == []
    core.handle(e.Claimed([claim(1)._replace(request=want)]), 2.0)
    assert states(core, 2.0) == {1: "queued"}
    assert ended(core, 2.0) == [e.Exit()]


def test_a_draining_core_claims_nothing() -> None:
    core = with_one_at_work()
    core.handle(e.Drain(), 1.0)
    settle(core, 1.0)
    core.handle(e.Woken(), 2.0)
    assert core.next_request(2.0) is None


# ---- stop, and giving the group up
def test_a_stop_kills_all_agents_and_gives_all_jobs_back() -> None:
    core = with_one_at_work()
    core.handle(e.Stop(), 1.0)
    assert effects(core, e.Kill, 1.0) == [e.Kill(0)]
    assert states(core) == {2: "queued"}
    core.handle(e.Gone(0, signal="SIGHUP"), 2.0)
    assert states(core, 2.0) == {1: "queued"}
    assert ended(core, 2.0) == [e.Exit()]


def test_a_core_that_steps_down_gives_all_back_and_releases_the_group() -> None:
    core = with_one_at_work()
    assert core.step_down(1.0)
    assert "stepping down: agents are killed, their rows given back" in told(core, 1.0)
    assert not core.end_if_over()
    core.handle(e.Gone(0, signal="SIGHUP"), 2.0)
    assert states(core, 2.0) == {1: "queued", 2: "queued"}
    assert ended(core, 2.0) == [e.ReleaseGroup()]


@pytest.mark.parametrize("event", [e.Drain(), e.Stop()])
def test_a_core_that_ends_does_not_step_down(event: e.Event) -> None:
    core = with_one_at_work()
    core.handle(event, 1.0)
    assert not core.step_down(1.0)
    assert not core.is_stepping_down


def test_a_stop_while_stepping_down_ends_the_daemon() -> None:
    core = make_core()
    core.step_down(1.0)
    core.handle(e.Stop(), 1.0)
    core.take_effects(1.0)
    core.tick(1.0)
    assert core.take_effects(1.0) == [e.Exit()]


def test_a_core_that_has_lost_its_group_kills_all_and_saves_nothing() -> None:
    core = with_one_at_work()
    core.agent_output(0, b"OK\n", 1.0)
    core.take_effects(1.0)
    core.handle(e.LeaseLost(), 1.0)
    assert [each for each in core.take_effects(1.0) if isinstance(each, e.Kill | e.LetGo)] == [e.Kill(0)]
    assert (states(core), core.state.jobs) == ({}, {})


def test_a_core_that_has_lost_its_group_while_stepping_down_serves_again_later() -> None:
    core = with_one_at_work()
    core.step_down(1.0)
    core.handle(e.LeaseLost(), 1.0)
    core.handle(e.Gone(0, signal="SIGHUP"), 1.0)
    settle(core, 1.0)
    core.handle(e.Serve(9_000.0), 2.0)
    turn(core, claim(3), now=2.0)
    assert spawned(core, 2.0) == [0]


@pytest.mark.parametrize("event", [e.Stop(), e.Drain()])
def test_a_detached_job_that_has_not_begun_goes_back_and_one_that_runs_is_left_alone(event: e.Event) -> None:
    core = make_core({"long": DETACHED, "sha": AgentType(command=("agent",))})
    core.handle(e.Adopted("site", "/spool", [Adoption(claim(7, "long"), "alpha", "/spool", 1, "", 0.0)]), 0.0)
    core.handle(e.Created(effects(core, e.Spawn)[0].slot, 100), 0.0)
    core.handle(event, 1.0)
    assert [effect.slot for effect in effects(core, e.LetGo, 1.0)] == [0]
    assert states(core) == {}


def test_a_detached_job_whose_row_does_not_say_yet_where_it_runs_goes_back() -> None:
    core = make_core({"long": DETACHED})
    core.handle(e.Adopted("site", "/spool", []), 0.0)
    turn(core, claim(1, "long"))
    request = core.next_request(0.0)
    while not isinstance(request, r.Mark):
        assert request is not None
        core.handle(answer_to(request), 0.0)
        request = core.next_request(0.0)
    core.handle(e.Drain(), 0.0)
    core.handle(answer_to(request), 0.0)
    assert effects(core, e.Spawn) == []
    assert states(core) == {1: "queued"}
    assert core.end_if_over()


# ---- the lease
def test_no_item_is_assigned_past_the_lease_before_it_is_renewed() -> None:
    core = with_one_at_work()
    core.handle(e.Serve(5.0), 0.0)
    core.tick(4.9)
    assert told(core, 4.9) == []
    core.tick(5.0)
    assert "past the lease: no agent is given work until it is renewed" in told(core, 5.0)
    assert (core.agent_output(0, b"OK\n", 5.0), sent(core, 5.0)) == (None, [])
    core.handle(e.Serve(20.0), 6.0)
    assert sent(core, 6.0) == [b"item 2\n"]


def test_a_lease_that_has_run_out_by_the_clock_of_the_database_is_renewed_at_once() -> None:
    core = make_core()
    request = core.next_request(0.0)
    assert isinstance(request, EndAndClaim)
    core.handle(e.EndedAndClaimed(has_lapsed=True), 1.0)
    asked = core.take_effects(1.0)
    assert e.RenewLease() in asked
    assert [effect.level for effect in asked if isinstance(effect, e.LogMessage)] == ["warning"]
    assert core.next_request(1.0) is None
    core.handle(e.Serve(9_000.0), 2.0)
    assert isinstance(core.next_request(2.0), EndAndClaim)


def test_a_program_that_took_over_knows_only_after_a_renewal_that_the_group_is_its_own() -> None:
    lease = Lease(Scheduler())
    known = [lease.is_renewed]
    lease.restore([50.0, "then"])
    known.append(lease.is_renewed)
    lease.connected(1.0)
    lease.renew(1.0)
    assert lease.step(1.0) is LeaseStatement.RENEW
    lease.renewed(True, 1.0)
    assert [*known, lease.is_renewed] == [True, False, True]


def test_a_lease_without_a_connection_asks_nothing() -> None:
    lease = Lease(Scheduler())
    lease.connected(0.0)
    assert lease.step(0.0) is LeaseStatement.REGISTER
    assert lease.step(0.0) is None
    lease.disconnected()
    assert (lease.step(100.0), lease.next_deadline()) == (None, float("inf"))


@pytest.mark.parametrize("is_asked", [True, False])
def test_the_next_statement_is_due_only_when_none_runs(is_asked: bool) -> None:
    lease = Lease(Scheduler())
    lease.connected(3.0)
    assert lease.next_deadline() == 3.0
    if is_asked:
        lease.step(3.0)
        assert lease.next_deadline() == float("inf")
        lease.registered(3.0)
        assert lease.next_deadline() <= 4.0


@pytest.mark.parametrize(
    ("owner", "has_role"),
    [
        (Owner("x", is_lapsed=False, is_dead=False), True),
        (Owner("x", is_lapsed=False, is_dead=True), False),
        (Owner(None, is_lapsed=True, is_dead=False), False),
    ],
)
def test_a_standby_has_a_role_while_its_owner_may_need_to_be_replaced(owner: Owner, has_role: bool) -> None:
    lease = Lease(Scheduler())
    lease.connected(0.0)
    lease.step(0.0)
    lease.registered(0.0)
    lease.step(0.0)
    lease.looked(owner, 0.0)
    assert lease.has_role is has_role


# ---- too many results
def test_no_item_is_assigned_while_too_many_results_wait_and_the_log_says_how_many() -> None:
    core = make_core({"sha": AgentType(command=("agent",)), "run": AgentType(command=("run",), kind="exec",
                      output_limit=80 << 20)})  # fmt: skip
    turn(core, claim(1, "run"))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.exec_output(number, "out", b"x" * (33 << 20), 0.5)
    core.save_output(0.5)
    assert [text for text in told(core, 0.5) if "results wait" in text] == [
        "33 MiB of results wait to be saved: no agent is given work until half of it is"
    ]
    assert not core.state.is_assigning
    settle(core, 1.0)
    assert core.state.is_assigning
