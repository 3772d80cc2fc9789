"""Claims about respawns: how many starts an interval takes, and what a core does with an agent that dies at once."""

from collections.abc import Callable

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host, Scheduler
from scheduler.model.queue_requests import EndAndClaim
from scheduler.model.states import ST_FAIL, ST_FREE
from scheduler.policy.core import Core
from scheduler.policy.deadlines import ROOM
from scheduler.policy.slots import Slot
from tests.core_tools import claim, make_core, ready, settle, spawned, turn


def start_and_die(core: Core, now: float) -> int:
    """Let every agent that is to be started die at once; return how many were."""
    slots = spawned(core)
    for number in slots:
        core.handle(e.Created(number, 100), now)
        core.handle(e.Gone(number, code=1), now)
    return len(slots)


def starts(core: Core, times: list[float]) -> int:
    """Return how many starts there are when the core is looked at so often."""
    return sum(start_and_die(core, now) for now in times)


def up_and_dead(times: list[float]) -> Slot:
    """Let an agent come up and die at each of these times; return its slot."""
    core = make_core()
    for pk, now in enumerate(times, start=1):
        slot = ready(core, claim(pk), now=now)
        core.take_effects(now)
        core.handle(e.Gone(slot.number, code=3), now)
    return core.state.slots.all[0]


def up_and_left(times: list[float]) -> Slot:
    """Let an agent come up and be killed at each of these times, which is refused; return its slot."""
    core = make_core()
    for pk, now in enumerate(times, start=1):
        slot = ready(core, claim(pk), now=now)
        core.kill(pk, "killed", now)
        core.take_effects(now)
        core.handle(e.Gone(slot.number, why="it is left", left=True), now)
    return core.state.slots.all[0]


def test_throttle_defaults_are_as_specified_f71() -> None:
    assert (Scheduler().respawn_interval, Scheduler().respawn_count) == (300.0, 5)


@pytest.mark.parametrize(("deaths", "state"), [(5, ST_FREE), (6, ST_FAIL)])
def test_the_sixth_respawn_is_refused_f72(deaths: int, state: int) -> None:
    slot = up_and_dead([float(n) for n in range(deaths)])
    assert slot.state == state


@pytest.mark.parametrize(("processes", "state"), [(5, ST_FREE), (6, ST_FAIL)])
def test_a_process_that_could_not_be_ended_counts_though_its_job_was_killed(processes: int, state: int) -> None:
    slot = up_and_left([float(n) for n in range(processes)])
    assert slot.state == state


def test_old_starts_do_not_count_f72() -> None:
    assert up_and_dead([0.0, 1.0, 2.0, 301.0]).starts == [2.0, 301.0]


def test_an_agent_that_dies_at_once_is_started_six_times_f70_f72() -> None:
    core = make_core()
    turn(core, claim(1))
    assert starts(core, [n / 10 for n in range(20)]) == 6
    assert core.state.slots.all[0].state == ST_FAIL


def test_throttle_scales_with_other_limits_f71() -> None:
    core = make_core(respawn_interval=3.0, respawn_count=2)
    turn(core, claim(1))
    assert starts(core, [n / 100 for n in range(20)]) == 3


def test_a_failed_slot_is_tried_again_after_the_interval_f73() -> None:
    core = make_core()
    turn(core, claim(1))
    starts(core, [0.0] * 10)
    core.tick(299.0)
    assert core.state.slots.all[0].state == ST_FAIL
    core.tick(301.0)
    assert core.state.slots.all[0].state == ST_FREE


def test_kills_by_the_scheduler_reset_the_count_f74() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    slot.starts = [0.0] * 5
    core.agent_output(slot.number, b"OK\n", 1.0)
    slot.kill("idle", 1.0)
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 1.0)
    assert slot.starts == []


def test_a_failed_type_gives_its_jobs_back_and_blocks_no_other_f75() -> None:
    core = make_core({"sha": AgentType(command=("agent",)), "mime": AgentType(command=("agent",))})
    turn(core, claim(1))
    starts(core, [0.0] * 10)
    rows = [row for request in settle(core) for row in getattr(request, "rows", ()) if getattr(row, "pk", 0) == 1]
    assert [row.state for row in rows] == ["queued"]
    core.handle(e.Woken(), 0.0)
    request = turn(core, claim(2, "mime"))
    assert {want.type for want in request.wanted} <= {"mime"}
    assert len(spawned(core)) == 1


@pytest.mark.parametrize("event", [e.Gone(0, code=3), e.Gone(0, signal="SIGSEGV")])
def test_the_exit_of_an_exec_agent_belongs_to_its_item_and_does_not_count(event: e.Gone) -> None:
    core = make_core({"sha": AgentType(command=("agent",), kind="exec")})
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.handle(event, 1.0)
    assert (number, core.state.slots.all[number].starts) == (0, [])


def test_an_item_whose_agent_died_counts_as_an_item_of_its_slot() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.handle(e.Gone(slot.number, code=3), 1.0)
    assert slot.total == 1


# ---- starts that end before the first OK

MUTE = AgentType(command=("agent",), slots=4)
LINE = AgentType(command=("agent",))


def start_limit_passes(core: Core, numbers: list[int], now: float) -> None:
    """Let these agents, which were started at `now`, say nothing until they are killed for it a minute later."""
    for number in numbers:
        core.handle(e.Created(number, 100), now)
    core.tick(now + 60.0)
    for number in numbers:
        core.handle(e.Gone(number, signal="SIGHUP"), now + 60.0)


def mute_starts(core: Core, now: float, until: float) -> list[float]:
    """Return the instants at which agents are started that never say OK, looked at every minute."""
    started = []
    while now < until:
        core.tick(now)
        numbers = spawned(core)
        started += [now] * len(numbers)
        start_limit_passes(core, numbers, now)
        now += 60.0
    return started


def test_an_agent_that_never_says_ok_is_started_six_times_however_long_each_takes() -> None:
    core = make_core()
    turn(core, claim(1))
    assert len(mute_starts(core, 0.0, 660.0)) == 6
    assert core.state.slots.all[0].state == ST_FAIL


def test_after_each_pause_one_start_is_tried_until_one_says_ok() -> None:
    core = make_core()
    turn(core, claim(1))
    mute_starts(core, 0.0, 660.0)
    core.tick(1000.0)
    core.handle(e.Woken(), 1000.0)
    turn(core, claim(2), now=1000.0)
    assert len(mute_starts(core, 1020.0, 1200.0)) == 1
    assert core.state.slots.all[0].state == ST_FAIL


@pytest.mark.parametrize(
    "mend",
    [
        lambda core: core.tick(1000.0),
        lambda core: core.reset_failed_slots("sha", 700.0),
        lambda core: core.handle(e.Replaced("sha"), 700.0),
    ],
    ids=["the pause is over", "it is enabled", "its program is replaced"],
)
def test_jobs_of_a_failed_type_are_claimed_again_as_soon_as_it_may_start(mend: Callable[[Core], object]) -> None:
    core = make_core()
    turn(core, claim(1))
    mute_starts(core, 0.0, 660.0)
    settle(core, 660.0)
    mend(core)
    core.schedule(1000.0)
    request = core.next_request(1000.0)
    assert isinstance(request, EndAndClaim)
    assert {want.type for want in request.wanted} == {"sha"}


def test_the_first_ok_resets_the_failed_starts() -> None:
    core = make_core()
    turn(core, claim(1))
    mute_starts(core, 0.0, 300.0)
    core.tick(400.0)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 400.0)
    core.agent_output(number, b"OK\n", 400.0)
    assert core.state.pools["sha"].failed_starts == {}


def test_failed_starts_count_for_all_slots_of_a_type_on_a_host() -> None:
    core = make_core({"mute": MUTE})
    turn(core, *(claim(pk, "mute") for pk in range(1, 9)))
    mute_starts(core, 0.0, 540.0)
    assert {slot.state for slot in core.state.slots.all} == {ST_FAIL}
    assert sum(slot.spawns for slot in core.state.slots.all) == 6


def test_after_a_failed_start_one_agent_of_the_type_is_started_at_a_time() -> None:
    core = make_core({"mute": MUTE})
    turn(core, *(claim(pk, "mute") for pk in range(1, 9)))
    first = spawned(core)
    start_limit_passes(core, first, 0.0)
    core.tick(120.0)
    assert (len(first), len(spawned(core))) == (4, 1)


def test_after_a_failed_start_its_capacity_goes_to_others_for_as_long_as_it_was_used() -> None:
    core = make_core()
    turn(core, claim(1))
    start_limit_passes(core, spawned(core), 0.0)
    assert (spawned(core), core.state.deadlines.at[ROOM]) == ([], 120.0)
    core.tick(120.0)
    assert len(spawned(core)) == 1


def test_types_whose_starts_fail_share_one_slot_of_a_host() -> None:
    mute = {f"mute{n}": LINE for n in range(4)}
    core = make_core(mute | {"sha": LINE}, hosts={"alpha": Host(max=4)})
    turn(core, *(claim(n + 1, name) for n, name in enumerate(mute)))
    start_limit_passes(core, spawned(core), 0.0)
    core.tick(120.0)
    assert len(spawned(core)) == 1
    turn(core, claim(9), now=121.0)
    assert [core.state.slots.all[number].pool.name for number in spawned(core)] == ["sha"]


def test_no_slot_is_reserved_for_a_type_whose_starts_fail() -> None:
    core = make_core({"mute": LINE, "sha": LINE}, hosts={"alpha": Host(max=1)})
    turn(core, claim(1, "mute"))
    (number,) = spawned(core)
    host = core.state.hosts["alpha"]
    host.kept_for = core.state.pools["mute"]
    host.yield_to(core.state.pools["mute"])
    start_limit_passes(core, [number], 0.0)
    assert (host.kept_for, host.yields_to) == (None, None)


def test_a_command_that_starts_after_a_failure_lets_the_next_begin() -> None:
    core = make_core({"run": AgentType(command=("run",), kind="exec", slots=2)})
    turn(core, claim(1, "run"), claim(2, "run"), claim(3, "run"))
    first, second = spawned(core)
    core.handle(e.NotCreated(first, "no program"), 0.0)
    core.handle(e.Created(second, 100), 0.0)
    (third,) = spawned(core)
    core.handle(e.Created(third, 101), 0.0)
    assert core.state.hosts["alpha"].probe is None


def test_agent_enable_resets_the_failed_starts() -> None:
    core = make_core()
    turn(core, claim(1))
    mute_starts(core, 0.0, 660.0)
    core.reset_failed_slots("sha", 700.0)
    assert core.state.pools["sha"].failed_starts == {}
    assert core.state.slots.all[0].state != ST_FAIL


# a host that lacks the program


def on_two_hosts(kind: str = "line", slots: int = 3) -> Core:
    types = {"sha": AgentType(command=("agent",), kind="exec" if kind == "exec" else "line", slots=slots)}
    return make_core(types, hosts={"alpha": Host(), "beta": Host()})


def lack(core: Core, hosts: str, now: float) -> list[str]:
    """Let each start on these hosts find no program, once; return the host of each start."""
    slots = [core.state.slots.all[number] for number in spawned(core)]
    found = [slot for slot in slots if slot.host.name in hosts]
    for slot in found:
        core.handle(e.NotCreated(slot.number, f"host {slot.host.name}: agent: not found", code=127), now)
    return [slot.host.name for slot in found]


@pytest.mark.parametrize("kind", ["line", "exec"])
def test_host_without_the_program_is_tried_once_and_its_work_goes_elsewhere(kind: str) -> None:
    core = on_two_hosts(kind)
    turn(core, *(claim(pk) for pk in range(1, 5)))
    tried = [host for now in range(20) for host in lack(core, "beta", float(now))]
    at_beta = [slot for slot in core.state.slots.all if slot.host.name == "beta"]
    assert 0 < len(tried) <= len(at_beta)
    assert {slot.state for slot in at_beta} == {ST_FAIL}
    assert [job.pk for job in core.state.jobs.values() if job.verdict is None] == [1, 2, 3, 4]


def test_last_host_that_may_have_the_program_is_tried_again() -> None:
    core = on_two_hosts(slots=1)
    turn(core, *(claim(pk) for pk in range(1, 5)))
    assert sorted(lack(core, "alpha beta", 0.0)) == ["alpha", "beta"]
    assert len(lack(core, "alpha beta", 1.0)) == 1
    assert [slot.state == ST_FAIL for slot in core.state.slots.all].count(True) == 1


def test_job_that_is_bound_to_a_host_without_the_program_fails_there() -> None:
    core = on_two_hosts("exec", slots=1)
    turn(core, claim(1, host="beta"))
    assert lack(core, "beta", 0.0) == ["beta"]
    assert [job.pk for job in core.state.jobs.values() if job.verdict is None] == []
