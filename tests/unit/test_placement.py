"""Claims about where a row goes, and how many agents a host takes."""

from typing import Any

import pytest

from scheduler.model.config import AgentType, Host
from scheduler.policy.run_queue import Placement
from tests.core_tools import claim, make_core, spawned, turn


def rule(value: str, host: str, to: str | None = None, kind: str | None = None) -> dict[str, Any]:
    return {"type": kind, "from": value, "to": to, "host": host}


RULES = [
    rule("x", "alpha"),
    rule("x", "beta", kind="mime"),
    rule("x", "gamma"),  # the first one of a value holds
    rule("a", "beta", to="m"),
    rule("b", "alpha", "c", "mime"),
    rule("a", "gamma", to="zz"),
]


@pytest.mark.parametrize(
    ("kind", "value", "host"),
    [
        ("sha", b"alpha", "alpha"),  # a host's name comes before any rule
        ("sha", b"x", "alpha"),
        ("mime", b"x", "beta"),  # the type's own rule comes first
        ("sha", b"bb", "beta"),
        ("mime", b"bb", "alpha"),
        ("sha", b"a", "beta"),  # both ends of a range belong to it
        ("sha", b"m", "beta"),
        ("sha", b"ma", "gamma"),
        ("sha", b"A", None),
        ("mime", b"c", "alpha"),
        ("mime", b"d", "beta"),
        ("sha", None, None),
        ("sha", b"\xff", None),
    ],
)
def test_a_placement_value_maps_to_a_host_f15(kind: str, value: bytes | None, host: str | None) -> None:
    assert Placement(["alpha", "beta"], RULES).host_of(kind, value) == host


@pytest.mark.parametrize(("most", "urgent", "agents"), [(-1, 1, 4), (1, 1, 1), (2, 0, 2), (3, 5, 3)])
def test_a_host_runs_at_most_its_maximum_of_agents_f150(most: int, urgent: int, agents: int) -> None:
    kinds = {"sha": AgentType(command=("agent",), slots=4)}
    core = make_core(kinds, hosts={"alpha": Host(max=most, urgent=urgent)})
    turn(core, *map(claim, range(1, 9)))
    assert len(spawned(core)) == agents


@pytest.mark.parametrize(("rank", "agents"), [(b"1n", 1), (b"0n", 2)])
def test_urgent_places_are_for_urgent_jobs_f150(rank: bytes, agents: int) -> None:
    kinds = {"sha": AgentType(command=("agent",), slots=4)}
    core = make_core(kinds, hosts={"alpha": Host(max=1, urgent=1)})
    turn(core, *(claim(pk, rank=rank) for pk in range(1, 9)))
    assert len(spawned(core)) == agents


@pytest.mark.parametrize("slots", [1, 3])
def test_as_many_children_as_slots_f151(slots: int) -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=slots)})
    turn(core, *map(claim, range(1, 9)))
    assert len(spawned(core)) == slots
