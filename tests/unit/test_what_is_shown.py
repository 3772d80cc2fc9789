"""What the status, drover.why and people with signals are shown of a core: numbers, texts and what has changed."""

from typing import Any

import attrs
import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.states import NEVER
from scheduler.policy.core import Core
from scheduler.policy.deadlines import PROGRESS
from scheduler.policy.report import PARAMETER_BYTES
from tests.core_tools import TABLES, claim, make_core, ready, saved, settle, spawned, turn
from tests.unit.test_handover import query_core

FAR = {"beta": Host(transport="ssh", address="beta")}
TWO = {"sha": AgentType(command=("agent",), slots=2), "run": AgentType(command=("run",), kind="exec", slots=1)}


def busy() -> Core:
    """Return a core with three slots: one works on job 1, one is idle, one is free."""
    core = make_core(TWO)
    turn(core, claim(1), claim(2))
    for number in spawned(core):
        core.handle(e.Created(number, 100 + number), 1.0)
    for number in (0, 1):
        core.agent_output(number, b"OK\n", 2.0)
    core.take_effects(2.0)
    core.agent_output(1, b"OK\n", 3.0)
    core.take_effects(3.0)
    return core


# ---- in words
def test_a_signal_is_answered_with_the_slots_by_state_and_a_line_for_each_process() -> None:
    summary = busy().report.summary()
    assert summary[0].startswith("jobs in hand: 1; slots: ")
    counts = dict(word.split("=") for word in summary[0].split() if "=" in word)
    assert {name: count for name, count in counts.items() if count != "0"} == {
        "ST_FREE": "1",
        "ST_READY": "1",
        "ST_RUNNING": "1",
    }
    assert summary[1:] == [
        "slot=0 ST_RUNNING agent=sha host=alpha pid=100 items=0 job=1",
        "slot=1 ST_READY agent=sha host=alpha pid=101 items=1",
    ]


def test_what_is_in_hand_is_told_in_a_few_words() -> None:
    report = busy().report
    assert report.in_short() == "1 jobs in hand, 2 agents, 1 of them at work"
    assert report.alive() == "agent sha on host alpha, process 100, agent sha on host alpha, process 101"
    assert make_core().report.alive() == ""


def test_agents_at_work_are_counted_by_host_and_type() -> None:
    report = busy().report
    assert [report.agents_at_work(), report.agents_at_work(host="alpha", kind="sha")] == [1, 1]
    assert [report.agents_at_work(host="beta"), report.agents_at_work(kind="run")] == [0, 0]


def test_the_status_of_a_daemon_has_its_jobs_queues_and_slots() -> None:
    overview = busy().report.overview()
    assert overview == {
        "jobs": 1,
        "expansions": 0,
        "items": 1,
        "agents": {"sha": {"ST_RUNNING": 1, "ST_READY": 1}, "run": {"ST_FREE": 1}},
        "queues": {"default": {"paused": False, "concurrency": None, "in_hand": 1}},
    }


@pytest.mark.parametrize(
    ("event", "phase"), [(None, "serving"), (e.Drain(), "draining"), (e.Stop(), "stopping"), ("down", "stepping down")]
)
def test_a_daemon_says_what_it_is_doing(event: Any, phase: str) -> None:
    core = busy()
    if event == "down":
        core.step_down(3.0)
    elif event is not None:
        core.handle(event, 3.0)
    assert core.report.phase("serving") == phase


# ---- slots
def moves(core: Core, now: float) -> list[tuple[str, str]]:
    return [(each.level, each.text) for each in core.take_effects(now) if isinstance(each, e.LogMessage)]


def test_each_move_of_an_agent_is_a_line_of_the_log_with_the_reason_if_it_is_to_end() -> None:
    core = make_core()
    turn(core, claim(1))
    where = "slot=0 agent=sha host=alpha"
    assert moves(core, 0.0) == [("info", f"ST_FREE -> ST_PREP {where}")]
    core.handle(e.Created(0, 100), 0.0)
    core.agent_output(0, b"OK\n", 0.0)
    assert moves(core, 0.0)[1] == ("info", f"ST_SPAWNED -> ST_READY {where} pid=100")
    core.kill(1, "by a", 1.0)
    assert moves(core, 1.0) == [("info", f"ST_RUNNING -> ST_FREEING reason='by a' {where} pid=100 job=1")]


@pytest.mark.parametrize(("wanted", "lines"), [(True, 2), (False, 0)])
def test_starts_and_ends_of_commands_are_debug_lines_for_those_who_want_them(wanted: bool, lines: int) -> None:
    core = make_core({"run": TWO["run"]})
    core.log_routine(wanted)
    turn(core, claim(1, "run"))
    (number,) = [each.slot for each in core.take_effects(0.0) if isinstance(each, e.Spawn)]
    core.handle(e.Created(number, 100), 0.0)
    assert [level for level, _ in moves(core, 0.0)] == ["debug"] * lines


def test_the_age_of_a_slot_has_no_time_in_which_the_daemon_did_not_run() -> None:
    core = busy()
    core.resume(100.0, 105.0)
    assert [row["age"] for row in core.report.all_slots(110.0)] == [8.0, 7.0, 110.0]


def test_the_row_of_a_slot_says_what_its_process_does_and_since_when() -> None:
    rows = {row["slot"]: row for row in busy().report.all_slots(10.0)}
    shown = ("name", "age", "pid", "job", "parameter", "spawns", "items", "reason", "program")
    assert [rows[0][key] for key in shown] == ["ST_RUNNING", 8.0, 100, 1, "item 1", 1, 0, None, None]
    assert [rows[1][key] for key in shown] == ["ST_READY", 7.0, 101, None, None, 1, 1, None, None]
    assert [rows[2][key] for key in shown] == ["ST_FREE", 10.0, None, None, None, 0, 0, None, None]


def test_a_long_parameter_is_shown_in_part() -> None:
    core = make_core()
    ready(core, claim(1)._replace(args=b"x" * 300))
    (row,) = core.report.all_slots(0.0)
    assert row["parameter"] == "x" * PARAMETER_BYTES


def test_only_slots_that_look_other_than_they_were_shown_are_shown_again() -> None:
    core = busy()
    core.report.take_changed_slots(3.0)
    assert (core.report.has_slot_changes, core.report.take_changed_slots(3.0)) == (False, ([], []))
    core.agent_output(0, b"OK\n", 4.0)
    core.take_effects(4.0)
    core.tick(60.0)
    rows, gone = core.report.take_changed_slots(60.0)
    assert ([(row["slot"], row["items"], row["job"]) for row in rows], gone) == ([(0, 1, None)], [])


def test_the_pid_of_a_keeper_is_shown_once_it_is_known() -> None:
    core = make_core({"long": AgentType(command=("tool",), kind="exec", detached=True)})
    slot = core.state.slots.all[0]
    core.report.take_changed_slots(0.0)
    slot.set_pid(4711)
    (row,) = core.report.take_changed_slots(0.0)[0]
    assert row["pid"] == 4711


def test_the_reason_of_a_slot_is_that_of_its_end_or_of_its_rest() -> None:
    core = busy()
    core.kill(1, "by a", 4.0)
    rows = {row["slot"]: row["reason"] for row in core.report.all_slots(4.0)}
    assert rows == {0: "by a", 1: None, 2: None}
    core = make_core(respawn_count=0)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.handle(e.Gone(number, code=1), 0.0)
    assert core.report.all_slots(0.0)[0]["reason"] == "agent terminated prematurely, with exit status 1"


def test_slots_that_are_gone_are_shown_no_more() -> None:
    core = busy()
    core.report.take_changed_slots(3.0)
    core.handle(e.Reloaded(attrs.evolve(core.config, agents={"sha": TWO["sha"]})), 4.0)
    core.state.slots.show_again(core.state.slots.all[2])
    assert [row["slot"] for row in core.report.all_slots(4.0)] == [0, 1]
    assert core.report.take_changed_slots(4.0)[1] == [2]
    assert core.report.vacant == [2]


# ---- why jobs wait
def why(core: Core, now: float = 0.0) -> Any:
    return core.report.agent_rows(now)[0]["reason"]


def tables(core: Core, *, enabled: bool) -> None:
    hosts = [{"name": "alpha", "max": -1, "urgent": 0, "enabled": enabled, "types": "", "queues": (), "priorities": ""}]
    core.handle(e.TablesRead(TABLES["queues"], hosts, [], []), 0.0)


def test_jobs_wait_for_a_host_that_is_enabled() -> None:
    core = make_core()
    assert why(core) is None
    tables(core, enabled=False)
    assert why(core) == "every host of the type is disabled"


def test_jobs_do_not_wait_while_one_of_their_hosts_is_enabled() -> None:
    core = make_core(hosts={"alpha": Host(), "gamma": Host()})
    tables(core, enabled=False)
    assert why(core) is None


def test_jobs_wait_only_if_every_host_can_start_no_more() -> None:
    core = make_core(hosts={"alpha": Host(), "gamma": Host()})
    turn(core, claim(1), claim(2))
    first, second = spawned(core)
    core.handle(e.NotCreated(first, "no process", is_machines_fault=True), 0.0)
    assert why(core) is None
    core.handle(e.NotCreated(second, "no process", is_machines_fault=True), 0.0)
    text = "host {} cannot start more than 0 agents, tried again within 1 s: no process"
    assert why(core) == "; ".join(text.format(name) for name in ("alpha", "gamma"))


@pytest.mark.parametrize(("rate", "soon"), [(0.01, ""), (0.7, ""), (5.0, "; the next begins within a second")])
def test_jobs_wait_for_the_item_rate_of_their_type(rate: float, soon: str) -> None:
    core = make_core({"sha": AgentType(command=("agent",), item_rate=rate)})
    slot = ready(core, *[claim(pk) for pk in range(1, 20)])
    core.take_effects(0.0)
    for _ in range(15):
        if core.agent_output(slot.number, b"OK\n", 0.0) is None:
            break
        core.take_effects(0.0)
    assert why(core) == f"agent type sha has reached its item_rate of {rate:g} a second{soon}"


def test_the_reason_why_agents_do_not_come_up_is_told_until_one_is_up() -> None:
    core = make_core({"sha": TWO["sha"]})
    turn(core, claim(1), claim(2))
    first, second = spawned(core)
    for number in (first, second):
        core.handle(e.Created(number, 100), 0.0)
    core.handle(e.Gone(first, code=1), 0.0)
    assert why(core) == "agent terminated prematurely, with exit status 1"
    core.agent_output(second, b"OK\n", 0.0)
    assert why(core) is None


def test_the_rest_of_a_type_that_has_failed_is_told_in_seconds() -> None:
    core = make_core(respawn_count=0, respawn_interval=50.0)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 10.0)
    core.handle(e.Gone(number, code=1), 10.0)
    (row,) = core.report.agent_rows(15.0)
    assert (row["since"], row["seconds"]) == (5.0, 45.0)
    (row,) = make_core().report.agent_rows(15.0)
    assert (row["since"], row["seconds"]) == (None, None)


def test_jobs_of_a_draining_daemon_wait_since_it_drains() -> None:
    core = make_core()
    core.handle(e.Drain(), 0.0)
    assert why(core) == "the scheduler drains"


def test_a_host_that_changed_is_shown_once_and_again_when_that_was_lost() -> None:
    core = make_core(hosts={"alpha": Host(), **FAR})
    assert [row["name"] for row in core.report.take_changed_hosts(0.0)] == ["beta"]
    assert (core.report.has_host_changes, core.report.take_changed_hosts(0.0)) == (False, [])
    core.report.show_hosts_again()
    assert [(row["name"], row["reason"]) for row in core.report.take_changed_hosts(0.0)] == [
        ("beta", "it is being reached")
    ]
    core.handle(e.HostDown("beta", "no route", 8.0), 10.0)
    assert core.report.has_host_changes
    assert core.report.take_changed_hosts(12.0) == [{"name": "beta", "seconds": 6.0, "reason": "no route"}]
    core.handle(e.HostUp("beta"), 13.0)
    assert core.report.take_changed_hosts(13.0) == [{"name": "beta", "seconds": None, "reason": None}]


# ---- progress
def test_progress_of_a_line_is_saved_once_for_each_count() -> None:
    core = make_core(progress_interval=5.0)
    slot = ready(core, claim(1), claim(2))
    core.take_effects(0.0)
    core.agent_output(slot.number, b"ItemsProcessed 3\n", 1.0)
    counts = []
    for now in (5.0, 10.0, 15.0):
        core.tick(now)
        counts.append([row.processed for row in saved(settle(core, now))])
        if now == 10.0:
            core.agent_output(slot.number, b"ItemsProcessed 4\n", now)
    assert counts == [[3], [], [7]]
    core.agent_output(slot.number, b"OK\n", 16.0)
    core.take_effects(16.0)
    assert [row.processed for row in saved(settle(core, 16.0))] == [7]


def test_progress_of_a_query_counts_what_failed_too() -> None:
    core = query_core("n", 8, 8)
    core.agent_output(0, b"OK\n", 4.0)
    core.take_effects(4.0)
    core.agent_output(0, b"FAIL a\nOK\n", 4.0)
    core.take_effects(4.0)
    core.tick(10.0)
    (row,) = saved(settle(core, 10.0))
    assert (row.processed, row.failed, row.remaining, row.total) == (1, 1, 30.0, 8)


def test_progress_is_looked_at_again_while_jobs_are_in_hand() -> None:
    core = make_core(progress_interval=5.0)
    ready(core, claim(1))
    core.tick(5.0)
    assert core.state.deadlines.at[PROGRESS] == 10.0
    core.take_effects(5.0)
    core.agent_output(0, b"OK\n", 6.0)
    settle(core, 6.0)
    core.tick(10.0)
    assert core.state.deadlines.at[PROGRESS] == NEVER


def test_a_query_says_what_it_waits_for_before_it_has_rows() -> None:
    core = make_core(progress_interval=5.0)
    turn(core, claim(1, msq=True))
    core.take_effects(0.0)
    core.tick(5.0)
    assert [row.text for row in saved(settle(core, 5.0))] == ["its query is running"]
    core.tick(10.0)
    assert saved(settle(core, 10.0)) == []
    core.handle(e.Opened(1, (b"n",), 1), 11.0)
    core.tick(15.0)
    assert [row.text for row in saved(settle(core, 15.0))] == ["in progress"]


# ---- counters
def test_how_long_jobs_ran_is_counted_from_their_agents_time() -> None:
    core = make_core()
    slot = ready(core, claim(1), claim(2), now=100.0)
    core.take_effects(100.0)
    core.agent_output(slot.number, b"OK\n", 107.0)
    core.agent_output(slot.number, b"OK\n", 110.0)
    counted = core.report.take_counted()
    assert counted["worked", "sha"] == 10.0
    assert sum(value for key, value in counted.items() if key[0] == "ended") == 2
    assert core.report.take_counted() == {}


def test_how_long_a_query_ran_counts_all_its_slices() -> None:
    core = query_core(None, 1, 1)
    core.state.jobs[1].since = 10.0
    core.agent_output(0, b"OK\n", 30.0)
    assert core.state.pools["sha"].ran.total == 20.0
