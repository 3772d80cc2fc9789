"""Hosts that have to be reached: where agents start, what a lost link costs, what is shown."""

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.states import FINISH, ST_FREE
from scheduler.policy.core import Core
from tests.core_tools import claim, make_core, ready, saved, sent, settle, spawned, turn

FAR = {"beta": Host(transport="ssh", address="beta")}
BOTH = {"alpha": Host(), **FAR}


def up(core: Core, now: float = 0.0) -> None:
    core.handle(e.HostUp("beta"), now)


def down(core: Core, now: float = 0.0) -> None:
    core.handle(e.HostDown("beta", "no route", 4.0), now)


def at(core: Core) -> list[str]:
    """Return the hosts of the agents that are started now."""
    return [core.state.slots.all[number].host.name for number in spawned(core)]


def places(core: Core) -> set[str]:
    """Return the hosts that claims ask for; "" are rows for any host."""
    core.handle(e.Woken(), 0.0)
    return {want.host for want in turn(core).wanted}


def test_nothing_starts_on_a_host_before_it_is_reached_f10() -> None:
    core = make_core(hosts=BOTH)
    turn(core, claim(1), claim(2))
    assert at(core) == ["alpha"]
    up(core)
    assert at(core) == ["beta"]


def test_rows_of_a_host_are_claimed_only_while_it_can_be_reached_c56() -> None:
    core = make_core(hosts=BOTH)
    asked = [places(core)]
    up(core)
    asked.append(places(core))
    down(core)
    asked.append(places(core))
    assert asked == [{"", "alpha"}, {"", "alpha", "beta"}, {"", "alpha"}]


def test_work_bound_to_a_host_that_went_down_waits_in_the_queue_c56() -> None:
    core = make_core(hosts=FAR)
    up(core)
    ready(core, claim(1, host="beta"), claim(2, host="beta"))
    down(core, 1.0)
    (row,) = saved(settle(core, 1.0))
    assert (row.pk, row.state, row.text, row.interruptions) == (2, "queued", "host beta is down", None)


def test_agents_of_a_host_that_has_moved_finish_and_are_replaced_once_it_is_reached() -> None:
    core = make_core(hosts=FAR)
    up(core)
    slot = ready(core, claim(1))
    core.handle(e.HostMoved("beta", "root@other:22"), 1.0)
    assert (slot.job is not None, slot.wanted) == (True, FINISH)
    assert places(core) == {""}
    up(core, 2.0)
    assert places(core) == {"", "beta"}


def lost(core: Core, slot: int, now: float = 1.0) -> None:
    core.take_effects(0.0)
    core.handle(e.Gone(slot, lost=True, why="cut"), now)


def test_a_lost_job_is_interrupted_and_its_slot_is_not_to_blame_f8_r2() -> None:
    core = make_core(hosts=FAR)
    up(core)
    slot = ready(core, claim(1))
    lost(core, slot.number)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.outcome, row.interruptions) == ("queued", "given back", 1)
    assert (row.text, row.retry_in) == ("the link to host beta was lost: cut", None)
    assert (slot.state, slot.starts) == (ST_FREE, [])


def test_a_job_that_loses_its_host_again_and_again_fails() -> None:
    core = make_core(hosts=FAR)
    up(core)
    slot = ready(core, claim(1, interruptions=3, max_interruptions=3))
    lost(core, slot.number)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.text) == ("failed", "interrupted more than 3 times: the link to host beta was lost: cut")


@pytest.mark.parametrize("kind", ["line", "exec"])
def test_a_start_that_failed_with_the_host_down_does_not_count_against_the_slot(kind: str) -> None:
    core = make_core({"sha": AgentType(command=("agent",), kind=kind)}, hosts=FAR)  # type: ignore[arg-type]
    up(core)
    turn(core, claim(1))
    (number,) = spawned(core)
    down(core, 1.0)
    core.handle(e.NotCreated(number, "host beta: no route", lost=True), 1.0)
    assert core.state.slots.all[number].starts == []
    assert at(core) == []


def test_a_start_refused_by_a_reachable_host_counts_against_the_slot() -> None:
    core = make_core(hosts=FAR, respawn_count=1)
    up(core)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.NotCreated(number, "host beta: no session", lost=True), 1.0)
    assert len(core.state.slots.all[number].starts) == 1


def after_a_loss() -> Core:
    """Return a core whose host was lost with the one item of a query, and is back."""
    core = make_core(hosts=FAR)
    up(core)
    turn(core, claim(1, msq=True, tolerate=1))
    core.handle(e.Opened(1, (b"a",), 1), 0.0)
    core.handle(e.Fetched(1, [(b"x",)], more=False), 0.0)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)
    lost(core, number)
    return core


def test_an_item_of_a_query_is_tried_again_alone_after_a_loss() -> None:
    core = after_a_loss()
    (fresh,) = spawned(core)
    core.handle(e.Created(fresh, 101), 2.0)
    core.agent_output(fresh, b"OK\n", 2.0)
    core.take_effects(2.0)
    core.agent_output(fresh, b"OK\n", 3.0)
    (row,) = saved(settle(core, 4.0))
    assert (row.state, row.processed, row.failed) == ("done", 1, 0)


def test_a_try_lost_with_its_host_is_not_one_of_the_two_tries_of_an_item() -> None:
    core = after_a_loss()
    for now in (2.0, 3.0):
        (fresh,) = spawned(core)
        core.handle(e.Created(fresh, 101), now)
        core.agent_output(fresh, b"OK\n", now)
        assert sent(core) == [b'a="x"\n']
        core.handle(e.Gone(fresh, code=1), now)
    assert [(row.processed, row.failed) for row in saved(settle(core, 4.0))][-1:] == [(0, 1)]


def given(core: Core, first: int, last: int) -> list[bytes]:
    """Return the lines that agents are given in these seconds, new ones too."""
    for second in range(first, last + 1):
        core.tick(float(second))
    for number in spawned(core):
        core.handle(e.Created(number, 100), float(last))
        core.agent_output(number, b"OK\n", float(last))
    return sent(core)


@pytest.mark.parametrize(("spill", "later"), [(0.0, []), (3.0, [b'at="beta"\n'])])
def test_rows_of_a_host_without_slots_run_anywhere_if_their_type_allows_it(spill: float, later: list[bytes]) -> None:
    core = make_core({"sha": AgentType(command=("agent",), spill=spill)}, hosts=BOTH)
    turn(core, claim(1, msq=True, runonpfile="at"))
    core.handle(e.Opened(1, (b"at",), 2), 0.0)
    core.handle(e.Fetched(1, [(b"beta",), (b"beta",)], more=False), 0.0)
    assert (given(core, 1, 3), given(core, 4, 6)) == ([], later)
    assert core.state.counts == {"successes": 0, "placed": 2, "spilled": 2 if spill else 0}


def test_a_host_shows_until_when_it_is_down_and_why() -> None:
    core = make_core(hosts=BOTH)
    shown = [core.report.take_changed_hosts(0.0)]
    down(core, 1.0)
    shown.append(core.report.take_changed_hosts(2.0))
    up(core, 3.0)
    shown.append(core.report.take_changed_hosts(3.0))
    assert shown == [
        [{"name": "beta", "seconds": 0.0, "reason": "it is being reached"}],
        [{"name": "beta", "seconds": 3.0, "reason": "no route"}],
        [{"name": "beta", "seconds": None, "reason": None}],
    ]
    assert core.report.take_changed_hosts(4.0) == []


def test_a_type_whose_hosts_cannot_be_reached_says_which_and_why() -> None:
    core = make_core(hosts=FAR)
    down(core)
    (row,) = core.report.agent_rows(0.0)
    assert row["reason"] == "host beta cannot be reached: no route"
