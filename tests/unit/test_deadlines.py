"""Claims about how long things may last: idle agents, silent agents, and the texts that say why a job ended."""

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.queue_requests import Claim
from scheduler.model.states import ST_FREE, ST_FREEING, ST_READY, ST_RUNNING, ST_SPAWNED
from scheduler.policy.core import Core
from scheduler.policy.slots import Slot
from scheduler.policy.state import MARK_AFTER, MOST_STARTS
from tests.core_tools import claim, make_core, ready, saved, settle, spawned, turn

TWO = {"sha": AgentType(command=("agent",)), "mime": AgentType(command=("agent",))}


def idle_beside_another(**timers: float) -> Core:
    """Return a full host: `sha` idle since 1 s, and `mime` work that waits since 2 s."""
    core = make_core(TWO, hosts={"alpha": Host(max=1)}, **timers)
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 1.0)
    turn(core, claim(2, "mime"), now=2.0)
    core.take_effects(2.0)
    return core


def test_an_agent_idle_for_fifteen_minutes_is_killed_f118() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 1.0)
    core.tick(900.9)
    assert slot.state == ST_READY
    core.tick(901.0)
    assert slot.state == ST_FREEING


def test_an_agent_idle_for_less_than_twenty_seconds_is_kept_f119() -> None:
    core = idle_beside_another()
    core.tick(20.9)
    assert e.Kill(0) not in core.take_effects(20.9)


def test_an_idle_agent_is_evicted_for_another_type_after_min_idle_f119_f120() -> None:
    core = idle_beside_another()
    assert core.next_deadline() <= 22.0
    core.tick(22.0)
    assert e.Kill(0) in core.take_effects(22.0)


def test_a_freed_slot_goes_to_the_type_it_was_freed_for_f120() -> None:
    core = idle_beside_another()
    turn(core, claim(3), now=21.0)
    core.tick(22.0)
    core.agent_output(0, b"OK\n", 22.5)
    core.take_effects(22.5)
    core.tick(43.0)
    core.handle(e.Gone(0, signal="SIGHUP"), 43.0)
    assert [effect.type for effect in core.take_effects(43.0) if isinstance(effect, e.Spawn)] == ["mime"]


THREE = TWO | {"zip": AgentType(command=("agent",))}
CROWD = [claim(pk, kind) for pk, kind in enumerate(sorted(THREE) * 4)]  # of each type more than it gets done


def test_a_busy_host_yields_to_a_waiting_type_once_per_interval_f120() -> None:
    core = make_core(THREE, hosts={"alpha": Host(max=1)})
    first = ready(core, *CROWD).number
    assert kills_after_ok(core, first, 20.0) == [e.Kill(first)]  # both others have waited long enough
    second = succeeded(core, first, 20.0)
    assert [kills_after_ok(core, second, now) for now in (20.0, 39.9, 40.0)] == [[], [], [e.Kill(second)]]


def test_an_idle_agent_yields_to_a_waiting_type_once_per_interval_f120() -> None:
    core = make_core(THREE, hosts={"alpha": Host(max=1)})
    first = ready(core, claim(99)).number
    assert kills_after_ok(core, first, 1.0) == []
    turn(core, *[each for each in CROWD if each.request.type != "sha"], now=2.0)
    core.tick(22.0)
    second = succeeded(core, first, 22.0)
    assert [kills_after_ok(core, second, now) for now in (22.0, 41.9, 42.0)] == [[], [], [e.Kill(second)]]


def succeeded(core: Core, number: int, now: float) -> int:
    """Let an agent that was killed be gone; return the one that is started in its place."""
    core.handle(e.Gone(number, signal="SIGHUP"), now)
    (successor,) = spawned(core)
    core.handle(e.Created(successor, 101), now)
    return successor


def kills_after_ok(core: Core, number: int, now: float) -> list[e.Kill]:
    """Let an agent say OK; return who is to go then."""
    core.tick(now)
    commands = list(core.take_effects(now))  # its line among them
    core.agent_output(number, b"OK\n", now)
    return [effect for effect in (*commands, *core.take_effects(now)) if isinstance(effect, e.Kill)]


def test_the_longest_idle_agent_is_evicted_first_f121() -> None:
    kinds = {"sha": AgentType(command=("agent",), slots=3), "mime": AgentType(command=("agent",))}
    core = make_core(kinds, hosts={"alpha": Host(max=3)})
    turn(core, claim(1), claim(2), claim(3))
    core.take_effects(0.0)
    for number in (0, 1, 2):
        core.handle(e.Created(number, 100 + number), 0.0)
        core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    for number, now in ((1, 1.0), (2, 2.0), (0, 3.0)):
        core.agent_output(number, b"OK\n", now)
    turn(core, claim(4, "mime"), now=50.0)
    core.tick(80.0)
    assert [effect for effect in core.take_effects(80.0) if isinstance(effect, e.Kill)] == [e.Kill(1)]


def test_a_silent_agent_is_killed_at_its_heartbeat_deadline_f157() -> None:
    core = make_core({"sha": AgentType(command=("agent",), heartbeat=10.0)})
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"Heartbeat\n", 8.0)
    core.tick(17.9)
    assert slot.state != ST_FREEING
    core.tick(18.0)
    assert slot.state == ST_FREEING


def test_without_a_heartbeat_work_has_no_time_limit_f157() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.tick(9_999.0)
    assert slot.state != ST_FREEING


def test_an_item_has_a_time_limit_of_its_own() -> None:
    core = make_core({"sha": AgentType(command=("agent",), item_timeout=10.0)})
    slot = ready(core, claim(1))
    core.agent_output(slot.number, b"Heartbeat\n", 9.0)
    core.tick(10.0)
    assert slot.state == ST_FREEING


def test_an_agent_without_a_first_ok_within_a_minute_is_killed() -> None:
    core = make_core()
    turn(core, claim(1))
    core.take_effects(0.0)
    core.handle(e.Created(0, 100), 0.0)
    core.tick(5.0)
    core.tick(60.0)
    core.handle(e.Gone(0, signal="SIGHUP"), 61.0)
    assert core.state.slots.all[0].starts == [0.0]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (e.Gone(0, code=3), "agent terminated prematurely, with exit status 3"),
        (e.Gone(0, signal="SIGSEGV"), "agent terminated prematurely, by SIGSEGV"),
    ],
)
def test_a_failed_job_says_why_f161(event: e.Gone, text: str) -> None:
    core = make_core()
    ready(core, claim(1))
    core.take_effects(0.0)
    core.handle(event, 1.0)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.bits, row.text) == ("failed", 2, text)


@pytest.mark.parametrize(("total", "text"), [(0, "no data"), (1, "all data processed")])
def test_a_query_says_how_it_ended_f161(total: int, text: str) -> None:
    core = make_core()
    turn(core, claim(1, msq=True))
    core.handle(e.Opened(1, (b"a",), total), 0.0)
    slot = core.state.slots.all[0]
    core.handle(e.Fetched(1, [(b"x",)] * total, False), 0.0)
    core.take_effects(0.0)
    core.handle(e.Created(0, 100), 0.0)
    core.agent_output(slot.number, b"OK\n", 0.0)
    core.take_effects(0.0)
    core.agent_output(slot.number, b"OK\n", 1.0) if slot.job else None
    assert [(row.state, row.text) for row in saved(settle(core, 1.0)) if row.outcome] == [("done", text)]


def test_a_stop_gives_jobs_back_and_says_so_f161() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.handle(e.Stop(), 1.0)
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 2.0)
    assert [(row.state, row.text) for row in saved(settle(core, 2.0))] == [("queued", "released for restart")]


def test_a_time_limit_is_a_failure_f161() -> None:
    core = make_core()
    slot = ready(core, claim(1, timeout=5.0))
    core.tick(5.0)
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 6.0)
    assert [(row.state, row.text) for row in saved(settle(core, 6.0))] == [("failed", "timeout: ran longer than 5 s")]


def test_the_earlier_time_limit_expires_first_whichever_job_began_first() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1, timeout=9.0), claim(2, timeout=5.0))
    for number in spawned(core):
        core.handle(e.Created(number, 100 + number), 0.0)
        core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)
    core.tick(MARK_AFTER)
    settle(core, MARK_AFTER)
    core.tick(5.0)
    jobs = core.state.jobs
    assert {pk: job.verdict and job.verdict.text for pk, job in jobs.items()} == {
        1: None,
        2: "timeout: ran longer than 5 s",
    }


def test_limits_of_jobs_that_have_ended_are_forgotten() -> None:
    core = make_core()
    slot = ready(core, claim(1, timeout=86_400.0))
    for pk in range(2, 1000):
        core.take_effects(float(pk))
        core.agent_output(slot.number, b"OK\n", float(pk))
        core.handle(e.Woken(), float(pk))
        turn(core, claim(pk, timeout=86_400.0), now=float(pk))
    assert len(core.state.jobs) == 1
    assert len(core.state.job_deadlines) < 110


# ---- how many agents are started at a time


def crowd(count: int) -> Core:
    """Return a core with work for so many agents, none of which lives."""
    core = make_core({"sha": AgentType(command=("agent",), slots=count)})
    turn(core, *(claim(pk) for pk in range(1, count + 1)))
    return core


def test_agent_starts_per_turn_are_bounded_and_the_next_turn_follows_at_once() -> None:
    core = crowd(2 * MOST_STARTS + 1)
    started = [len(spawned(core))]
    while core.next_deadline() <= 0.0:
        core.tick(0.0)
        started.append(len(spawned(core)))
    assert started == [MOST_STARTS, MOST_STARTS, 1]


def test_output_between_turns_does_not_start_more_agents() -> None:
    core = crowd(2 * MOST_STARTS)
    first = spawned(core)[0]
    core.handle(e.Created(first, 100), 0.0)
    assert core.agent_output(first, b"OK\n", 0.0) is None
    assert spawned(core) == []


def test_no_agent_is_started_after_a_stop() -> None:
    core = crowd(2 * MOST_STARTS)
    spawned(core)
    core.handle(e.Stop(), 0.0)
    core.tick(0.0)
    assert (spawned(core), core.next_deadline() > 0.0) == ([], True)


def starting(*claims: Claim) -> tuple[Core, Slot]:
    """Claim rows; the agent that is started for them says nothing."""
    core = make_core()
    turn(core, *claims)
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    return core, core.state.slots.all[number]


def test_killing_a_job_kills_the_agent_starting_for_it_at_once_f134() -> None:
    core, slot = starting(claim(1))
    core.kill(1, "killed", 1.0)
    assert (slot.state, e.Kill(slot.number) in core.take_effects(1.0)) == (ST_FREEING, True)
    assert [row.state for row in saved(settle(core, 1.0))] == ["failed"]
    core.handle(e.Gone(slot.number, signal="SIGHUP"), 1.1)
    assert (slot.state, slot.starts) == (ST_FREE, [])


@pytest.mark.parametrize("other", [claim(2), claim(2, msq=True)], ids=["a job", "a query"])
def test_an_agent_starting_for_another_job_too_is_not_killed_with_one_f134(other: Claim) -> None:
    core, slot = starting(claim(1), other)
    core.cancel(1, "no", 1.0)
    assert slot.state == ST_SPAWNED


# ---- pauses of the daemon


def beating() -> Core:
    """Return a core whose agents are to be heard every 4 s."""
    return make_core({"sha": AgentType(command=("agent",), heartbeat=4.0)})


def test_a_pause_of_the_daemon_does_not_count_against_heartbeats() -> None:
    core = beating()
    slot = ready(core, claim(1), now=1.0)
    core.take_effects(1.0)
    core.resume(7.0, 10.0)
    core.tick(11.9)
    assert slot.state == ST_RUNNING
    core.tick(12.0)
    assert slot.state == ST_FREEING


def test_output_from_a_pause_is_read_before_deadlines_are_checked() -> None:
    core = beating()
    slot = ready(core, claim(1), now=1.0)
    core.take_effects(1.0)
    core.resume(7.0, 20.0)
    core.agent_output(slot.number, b"OK\n", 20.0)
    core.tick(20.0)
    assert slot.state == ST_READY


def test_a_pause_does_not_count_against_the_start_limit() -> None:
    core = make_core(start_limit=5.0)
    turn(core, claim(1))
    core.handle(e.Created(spawned(core)[0], 100), 0.0)
    core.resume(7.0, 8.0)
    core.tick(8.0)
    assert core.state.slots.all[0].state == ST_SPAWNED


def test_a_pause_extends_the_time_limit_of_a_job() -> None:
    core = make_core()
    slot = ready(core, claim(1, timeout=5.0), now=1.0)
    core.take_effects(1.0)
    core.resume(7.0, 10.0)
    core.tick(12.9)
    assert slot.state == ST_RUNNING
    core.tick(13.0)
    assert slot.state == ST_FREEING


def test_after_a_pause_the_lease_is_checked_before_any_input() -> None:
    core = make_core(hosts={"alpha": Host(max=1)})
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    core.resume(10_000.0, 10_001.0)
    assert core.agent_output(slot.number, b"OK\n", 10_001.0) is None
