"""Claims about queues for which places are reserved: how many jobs of other queues a type and its hosts may have."""

from collections import Counter
from typing import Any

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.queue_requests import ClaimRequest, EndAndClaim
from scheduler.policy.core import Core
from tests.core_tools import claim, make_core, settle, turn

SLOTS = 5


def core_of(*types: str, slots: int = SLOTS, paused: bool = False, hosts: Any = None, **reserved: int) -> Core:
    """Return a core with queues `default` and `other`, and with these, for which so many places are reserved."""
    kinds = {name: AgentType(command=("agent",), slots=slots) for name in types or ("sha",)}
    core = make_core(kinds, hosts=hosts)
    rows = [
        {"name": name, "concurrency": None, "paused": paused and count > 0, "reserved": count}
        for name, count in {"default": 0, "other": 0, **reserved}.items()
    ]
    core.handle(e.TablesRead(rows, [], [], []), 0.0)
    for pool in core.state.pools.values():
        pool.rate = 1e6  # as many as there may be are wanted
    return core


def take(core: Core, queue: str, *pks: int, kind: str = "sha") -> None:
    """Have jobs of a queue claimed."""
    core.handle(e.Woken(), 0.0)
    turn(core, *(claim(pk, kind)._replace(request=ClaimRequest(kind, queue, "", False, 1)) for pk in pks))


def asked(core: Core) -> dict[tuple[str, str], int]:
    """Return how many jobs are asked for at most, by type and queue; urgent ones alone with a `!`.

    Queues without a reserve are one: which of them is asked for first changes each time.
    """
    core.handle(e.Woken(), 0.0)
    request: Any = core.next_request(0.0)
    if not isinstance(request, EndAndClaim):
        return {}
    core.handle(e.EndedAndClaimed([]), 0.0)
    found = Counter[tuple[str, str]]()
    for want in request.wanted:
        queue = "default" if want.queue == "other" else want.queue
        found[want.type + "!" * want.urgent, queue] += want.most
    return dict(found)


ALL = 2000  # of the two places of a type: for any host, and for its own


def test_other_queues_leave_what_is_reserved_of_a_type() -> None:
    core = core_of(vip=2)
    assert asked(core) == {("sha", "default"): 3, ("sha", "vip"): ALL}
    take(core, "default", 1)
    take(core, "other", 2)
    assert asked(core)["sha", "default"] == 1
    take(core, "default", 3)
    assert asked(core) == {("sha", "vip"): ALL}


def test_the_end_of_a_job_lets_another_one_of_the_other_queues_be_claimed() -> None:
    core = core_of(vip=2)
    take(core, "default", 1, 2, 3)
    core.cancel(1, "not needed", 0.0)
    settle(core)
    assert asked(core)["sha", "default"] == 1


def test_jobs_of_the_queue_itself_take_nothing_from_others_beyond_its_reserve() -> None:
    core = core_of(vip=2)
    take(core, "vip", *range(1, 9))
    assert asked(core) == {("sha", "default"): 3, ("sha", "vip"): ALL}


def test_queues_leave_each_other_what_is_reserved_for_each() -> None:
    core = core_of(vip=2, ops=1)
    assert asked(core) == {("sha", "default"): 2, ("sha", "vip"): 2, ("sha", "ops"): 1}
    take(core, "default", 1, 2)
    assert asked(core) == {("sha", "vip"): 2, ("sha", "ops"): 1}
    take(core, "vip", 3, 4)
    assert asked(core) == {("sha", "ops"): 1}
    take(core, "ops", 5)
    assert asked(core) == {}


def test_one_agent_of_each_type_is_left_to_the_other_queues() -> None:
    core = core_of(slots=1, vip=2)
    assert asked(core) == {("sha", "default"): 1, ("sha", "vip"): ALL}
    take(core, "default", 1)
    assert asked(core) == {("sha", "vip"): ALL}


def test_hosts_leave_what_is_reserved_of_all_their_places() -> None:
    core = core_of("a", "b", slots=4, hosts={"alpha": Host(max=4, urgent=0)}, vip=2)
    assert asked(core) == {("a", "default"): 2, ("a", "vip"): ALL, ("b", "vip"): ALL}
    take(core, "default", 1, kind="b")
    assert asked(core) == {("a", "default"): 1, ("a", "vip"): ALL, ("b", "vip"): ALL}
    take(core, "default", 2, kind="a")
    assert asked(core) == {("a", "vip"): ALL, ("b", "vip"): ALL}


def test_urgent_jobs_may_use_urgent_places_beside_the_reserve() -> None:
    core = core_of(slots=9, hosts={"alpha": Host(max=4, urgent=1)}, vip=2)
    take(core, "default", 1, 2)
    assert asked(core) == {("sha!", "default"): 1, ("sha", "vip"): ALL}
    take(core, "default", 3)
    assert asked(core) == {("sha", "vip"): ALL}


def test_agents_on_hosts_that_are_not_open_are_not_counted() -> None:
    core = core_of(hosts={"alpha": Host(), "beta": Host(enabled=False)}, vip=2)
    assert asked(core)["sha", "default"] == 3


def test_a_queue_that_is_paused_reserves_nothing() -> None:
    assert asked(core_of(paused=True, vip=2)) == {("sha", "default"): 2 * ALL}


# ---- the room of a queue


def limited(concurrency: int) -> Core:
    """Return a core with two types, and one queue of a limited concurrency."""
    core = core_of("a", "b")
    row = {"name": "default", "concurrency": concurrency, "paused": False, "reserved": 0}
    core.handle(e.TablesRead([row], [], [], []), 0.0)
    return core


def test_all_types_together_ask_for_no_more_than_the_room_of_a_queue() -> None:
    core = limited(3)
    assert sum(asked(core).values()) == 3
    take(core, "default", 1, kind="a")
    take(core, "default", 2, kind="b")
    assert sum(asked(core).values()) == 1
    take(core, "default", 3, kind="b")
    assert asked(core) == {}


def test_each_type_gets_the_last_room_of_a_queue_in_turn() -> None:
    core = limited(1)
    assert {kind.rstrip("!") for _ in range(8) for kind, _ in asked(core)} == {"a", "b"}
