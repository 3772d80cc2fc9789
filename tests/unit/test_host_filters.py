"""Claims about filters: which hosts take which jobs, what is asked of the queue for them, and who waits for whom."""

from typing import Any

import pytest

from scheduler.model.config import AgentType, Host
from scheduler.model.events_and_effects import EndedAndClaimed, Woken
from scheduler.model.priority_ranges import LETTERS
from scheduler.model.queue_requests import ClaimRequest
from scheduler.policy.core import Core
from scheduler.policy.run_queue import HostFilters
from tests.core_tools import claim, make_core, spawned, turn

A_TO_F = Host(priorities="^[a-f]")


def taking(hosts: dict[str, Host], queue: str, priority: str) -> frozenset[str] | None:
    """Return the hosts that take a job."""
    return HostFilters(hosts).at(queue, priority).hosts


@pytest.mark.parametrize(
    ("host", "queue", "priority", "takes"),
    [
        (Host(queues=("q1",)), "q1", "n", True),
        (Host(queues=("q1",)), "q2", "n", False),
        (A_TO_F, "any", "f", True),
        (A_TO_F, "any", "g", False),
        (A_TO_F, "any", "F", False),
        (Host(priorities="[nz]", queues=("q1", "q2")), "q2", "z", True),
        (Host(priorities="[nz]", queues=("q1", "q2")), "q3", "z", False),
        (A_TO_F, "any", "f9", True),
        (Host(priorities="^a1"), "any", "a1", True),
        (Host(priorities="^a1"), "any", "a12", True),
        (Host(priorities="^a1"), "any", "a", False),
        (Host(priorities="^a1"), "any", "a2", False),
        (Host(priorities="^a1$"), "any", "a1", True),
        (Host(priorities="^a1$"), "any", "a10", False),
        (Host(priorities="[nz]"), "any", "an", False),
    ],
)
def test_a_host_takes_jobs_that_match_its_filters_r9_r55_t44(
    host: Host, queue: str, priority: str, takes: bool
) -> None:
    assert taking({"it": host}, queue, priority) == (frozenset(("it",)) if takes else frozenset())


def test_jobs_taken_by_the_same_hosts_share_a_run_queue() -> None:
    doors = HostFilters({"choosy": A_TO_F, "open": Host()})
    found = {letter: doors.at("q", letter) for letter in LETTERS}
    assert [len(set(map(id, found.values()))), found["a"] is found["f"], found["a"] is found["n"]] == [2, True, False]


def test_priorities_are_requested_in_ranges_of_their_order_r55() -> None:
    doors = HostFilters({"low": Host(priorities="[n-z]"), "high": A_TO_F})
    assert [letters for letters, _ in doors.runs("q")] == [("a", "g"), ("n", "{")]


def test_longer_priorities_are_requested_in_ranges_within_their_character_r55() -> None:
    doors = HostFilters({"exact": Host(priorities="^a1$"), "all": Host(priorities="^[ab]")})
    runs = [(letters, sorted(run_queue.hosts or ())) for letters, run_queue in doors.runs("q")]
    assert runs == [(("a", "a1"), ["all"]), (("a1", "a10"), ["all", "exact"]), (("a10", "c"), ["all"])]


@pytest.mark.parametrize(("urgent", "bounds"), [(False, ("1a", "1g")), (True, ("0a", "0g"))])
def test_urgent_rows_of_a_range_are_a_range_of_their_own_r55(urgent: bool, bounds: tuple[str, str]) -> None:
    want = ClaimRequest("sha", "q", "", urgent, 1, letters=("a", "g"))
    assert (want.start.rank, want.below) == bounds


def test_a_type_without_filters_has_no_host_filters() -> None:
    assert make_core().state.pools["sha"].queues.filters is None


def choosy() -> Core:
    """Return a core with one agent for urgent letters and one for all others, none at work yet."""
    hosts = {"high": A_TO_F, "low": Host(priorities="[g-z]")}
    return make_core({"sha": AgentType(command=("agent",))}, hosts=hosts)


def letters_wanted(core: Core) -> set[Any]:
    """Return the priorities of jobs for any host that the core asks for."""
    core.handle(Woken(), 1.0)
    request: Any = core.next_request(1.0)
    return {want.letters for want in request.wanted if not want.urgent and not want.host}


def test_jobs_for_a_busy_host_do_not_delay_jobs_of_other_hosts_t44() -> None:
    core = choosy()
    turn(
        core,
        *(
            claim(pk)._replace(request=ClaimRequest("sha", "default", "", False, 9, letters=("g", "{")))
            for pk in range(9)
        ),
    )
    spawned(core)
    assert letters_wanted(core) == {("a", "g")}


def test_hosts_without_room_are_asked_for_one_urgent_row_until_there_is_none() -> None:
    hosts = {"high": A_TO_F, "low": Host(priorities="[g-z]", max=1, urgent=1)}
    core = make_core({"sha": AgentType(command=("agent",), slots=2)}, hosts=hosts)
    want = ClaimRequest("sha", "default", "", False, 9, letters=("g", "{"))
    turn(core, *(claim(pk)._replace(request=want) for pk in range(9)))
    assert len(spawned(core)) == 1
    core.handle(Woken(), 1.0)
    found: Any = core.next_request(1.0)
    asked = {(each.letters, each.urgent): each.most for each in found.wanted if not each.host}
    assert asked == {(("g", "{"), True): 1, (("a", "g"), True): 2, (("a", "g"), False): 2}
    assert {each.after for each in found.wanted} == {each.start for each in found.wanted}
    core.handle(EndedAndClaimed([]), 1.0)
    assert core.next_request(1.0) is None


def test_a_job_starts_its_agent_on_a_host_that_takes_it_r55() -> None:
    core = choosy()
    turn(core, claim(1, rank=b"1c"), claim(2, rank=b"1n"), claim(3, rank=b"1n"))
    assert {core.state.slots.all[slot].host.name for slot in spawned(core)} == {"high", "low"}


def test_a_claim_that_no_host_takes_since_a_reload_goes_back_r55() -> None:
    core = choosy()
    turn(core, claim(1, rank=b"1A"))
    assert core.state.jobs == {}
