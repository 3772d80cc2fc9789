"""What is said, counted and done when a process starts, is late, is left or ends, and what rows show then."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.queue_requests import Mark, WriteOutput
from scheduler.model.states import NEVER, ST_FAIL, ST_FREE, ST_FREEING, ST_READY
from scheduler.policy.core import Core
from scheduler.policy.deadlines import MARK, OUTPUT
from tests.core_tools import claim, logged, make_core, saved, settle, spawned, turn
from tests.unit.test_handover import handed_over, query_core

EXEC = AgentType(command=("true",), kind="exec")
LINE = AgentType(command=("agent",))
FAR = {"beta": Host(transport="ssh", address="beta")}


def effects(core: Core, kind: type, now: float = 0.0) -> list[Any]:
    return [effect for effect in core.take_effects(now) if isinstance(effect, kind)]


def told(core: Core, now: float = 0.0) -> list[str]:
    """Return what the daemon's own log is told, without where."""
    return [effect.text.partition(" slot=")[0] for effect in effects(core, e.LogMessage, now)]


def at_work(kind: AgentType = LINE, *, hosts: dict[str, Host] | None = None, **timers: Any) -> Core:
    """Return a core whose slot 0 works on job 1."""
    core = make_core({"sha": kind}, hosts=hosts, **timers)
    for name, host in (hosts or {}).items():
        if host.is_remote:
            core.handle(e.HostUp(name), 0.0)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    if kind.kind != "exec":
        core.agent_output(number, b"OK\n", 0.0)
    core.take_effects(0.0)
    return core


# ---- how a process has ended
@pytest.mark.parametrize(
    ("gone", "text"),
    [
        ({"code": 3}, "agent terminated prematurely, with exit status 3"),
        ({"code": 127, "why": "no such file"}, "agent terminated prematurely, with exit status 127: no such file"),
        ({"signal": "SIGSEGV"}, "agent terminated prematurely, by SIGSEGV"),
        ({"why": "its keeper is gone"}, "agent terminated prematurely, its keeper is gone"),
        (
            {"left": True, "why": "it cannot be killed"},
            "protocol violation: it closed its output and lives on; it cannot be killed",
        ),
    ],
)
def test_the_row_says_how_the_agent_of_a_job_has_ended(gone: dict[str, Any], text: str) -> None:
    core = at_work()
    core.handle(e.Gone(0, **gone), 1.0)
    (row,) = saved(settle(core, 1.0))
    assert (row.state, row.text, row.code, row.signal) == ("failed", text, gone.get("code"), gone.get("signal"))


@pytest.mark.parametrize(
    ("gone", "state", "text"),
    [
        ({"code": 0}, "done", "all data processed"),
        ({"code": 3}, "failed", "exit status 3"),
        ({"code": 127, "why": "no such file"}, "failed", "exit status 127: no such file"),
        ({"signal": "SIGSEGV"}, "failed", "killed by SIGSEGV"),
        ({"code": 75}, "blocked", "blocked: exit status 75"),
        ({"lost": True}, "queued", "the link to host alpha was lost"),
        ({"lost": True, "why": "time out"}, "queued", "the link to host alpha was lost: time out"),
        ({"why": "its end is not known"}, "queued", "agent terminated prematurely, its end is not known"),
    ],
)
def test_the_row_says_how_a_command_has_ended(gone: dict[str, Any], state: str, text: str) -> None:
    core = at_work(EXEC)
    core.handle(e.Gone(0, **gone), 1.0)
    rows = {row.pk: row for row in saved(settle(core, 1.0))}
    assert (rows[1].state, rows[1].text) == (state, text) if 1 in rows else state == "done"


@pytest.mark.parametrize(
    ("kind", "gone", "name"),
    [
        (LINE, {"code": 0}, "died"),
        (LINE, {"lost": True}, "lost"),
        (EXEC, {"code": 3}, "exited"),
        (EXEC, {"signal": "SIGSEGV"}, "died"),
    ],
)
def test_processes_are_counted_as_they_have_ended(kind: AgentType, gone: dict[str, Any], name: str) -> None:
    core = at_work(kind)
    core.handle(e.Gone(0, **gone), 1.0)
    counted = core.report.take_counted()
    assert {key: count for key, count in counted.items() if key[0] in ("spawned", "died")} == {
        ("spawned", "sha", "alpha"): 1,
        ("died", "sha", "alpha", name): 1,
    }


def test_a_process_that_was_killed_is_counted_as_asked_to_end() -> None:
    core = at_work()
    core.kill(1, "by a", 1.0)
    core.handle(e.Gone(0, signal="SIGHUP"), 1.0)
    assert ("died", "sha", "alpha", "asked") in core.report.take_counted()


def test_a_process_that_could_not_be_ended_is_told_of_in_the_row_and_in_both_logs() -> None:
    core = at_work()
    core.kill(1, "by a", 1.0)
    core.take_effects(1.0)
    core.handle(e.Gone(0, left=True, why="process 100 cannot be killed"), 2.0)
    assert "process 100 cannot be killed" in told(core, 2.0)
    assert (1, "ERROR", "process 100 cannot be killed") in logged(core)
    assert [row.text for row in saved(settle(core, 2.0))] == ["by a; process 100 cannot be killed"]


def test_a_refused_signal_is_told_of_in_both_logs() -> None:
    core = at_work()
    core.handle(e.Refused(0, "it is another user's"), 1.0)
    assert told(core, 1.0) == ["it is another user's"]
    assert logged(core) == [(1, "WARNING", "it is another user's")]


def test_a_line_without_its_end_counts_if_its_agent_died_behind_it() -> None:
    core = at_work()
    core.agent_output(0, b"FAIL no licence", 0.5)
    core.agent_stderr(0, b"no newline", 0.5)
    core.handle(e.Gone(0, code=0), 1.0)
    assert (1, "STDERR", "no newline") in logged(core)
    assert [row.text for row in saved(settle(core, 1.0))] == ["no licence"]


def test_a_job_goes_back_to_the_queue_unharmed_if_its_agent_died_before_its_line_was_sent() -> None:
    core = make_core()
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.agent_output(number, b"OK\n", 0.0)
    core.schedule(0.0)  # its line is among the effects
    core.handle(e.Gone(number, code=1), 0.0)
    assert [effect for effect in core.take_effects(0.0) if isinstance(effect, e.Send)] == []
    assert (saved(settle(core)), core.state.jobs[1].in_flight, core.state.jobs[1].waiting) == ([], 0, 1)


# ---- starts
def test_an_agent_without_a_first_ok_is_warned_of_and_killed_at_its_limit() -> None:
    core = make_core(start_hint=10.0, start_limit=60.0)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 5.0)
    core.take_effects(5.0)
    core.tick(14.9)
    assert told(core, 14.9) == []
    core.tick(15.0)
    (hint,) = told(core, 15.0)
    assert hint.startswith("no OK yet; ")
    core.tick(64.9)
    assert effects(core, e.Kill, 64.9) == []
    core.tick(65.0)
    assert effects(core, e.Kill, 65.0) == [e.Kill(number)]
    assert str(core.state.pools["sha"].reason).startswith("no OK within 60 s of the start; ")
    assert (1, "ERROR", "no OK within 60 s; killed") in logged(core)


def test_a_process_that_is_not_made_within_the_limit_is_given_up_and_counts_against_its_slot() -> None:
    core = make_core(start_limit=60.0)
    turn(core, claim(1), now=400.0)
    (number,) = spawned(core, 400.0)
    core.tick(460.0)
    assert core.state.slots.all[number].state == ST_FREEING
    assert core.state.pools["sha"].reason == "not started within 60 s"
    core.handle(e.NotCreated(number, "too late"), 461.0)
    assert core.state.slots.all[number].starts == [400.0]


def test_an_idle_agent_is_ended_after_a_while() -> None:
    core = at_work(max_idle=30.0)
    core.agent_output(0, b"OK\n", 1.0)
    core.take_effects(1.0)
    assert core.state.slots.all[0].state == ST_READY
    core.tick(30.9)
    assert effects(core, e.Kill, 30.9) == []
    core.tick(31.0)
    assert effects(core, e.Kill, 31.0) == [e.Kill(0)]
    core.handle(e.Gone(0, signal="SIGHUP"), 31.0)
    assert core.state.slots.all[0].starts == []


@pytest.mark.parametrize(
    ("kind", "said_at", "late_at", "text", "starts"),
    [
        (AgentType(command=("a",), heartbeat=10.0, item_timeout=0.0), 5.0, 15.0, "no heartbeat for 10 s", [0.0]),
        (AgentType(command=("a",), heartbeat=60.0, item_timeout=12.0), 5.0, 12.0, "item took longer than 12 s", []),
    ],
)
def test_an_agent_that_is_silent_or_slow_is_killed_then(
    kind: AgentType, said_at: float, late_at: float, text: str, starts: list[float]
) -> None:
    core = at_work(kind)
    core.agent_output(0, b"HEARTBEAT\n", said_at)
    for now in (said_at + 5.0, late_at - 0.1):
        core.tick(now)
        assert effects(core, e.Kill, now) == []
    core.tick(late_at)
    assert effects(core, e.Kill, late_at) == [e.Kill(0)]
    core.handle(e.Gone(0, signal="SIGHUP"), late_at)
    assert core.state.slots.all[0].starts == starts
    assert [row.text for row in saved(settle(core, late_at))] == [text]


def test_an_agent_that_does_not_read_its_line_is_killed_at_the_limit_of_its_first_byte() -> None:
    core = at_work(write_limit=20.0)
    core.handle(e.Clogged(0), 1.0)
    core.handle(e.Clogged(0), 9.0)
    core.tick(20.9)
    assert effects(core, e.Kill, 20.9) == []
    core.tick(21.0)
    assert effects(core, e.Kill, 21.0) == [e.Kill(0)]


def test_an_agent_that_has_read_its_line_in_time_is_left_alone() -> None:
    core = at_work(write_limit=20.0)
    core.handle(e.Clogged(0), 1.0)
    core.handle(e.Unclogged(0), 20.0)
    core.tick(50.0)
    assert effects(core, e.Kill, 50.0) == []


def test_a_process_that_survives_its_kill_is_killed_by_force_again_and_again() -> None:
    core = at_work(kill_grace=5.0)
    core.kill(1, "by a", 1.0)
    assert effects(core, e.Kill, 1.0) == [e.Kill(0)]
    for now in (6.0, 11.0, 16.0):
        core.tick(now - 0.1)
        assert effects(core, e.ForceKill, now - 0.1) == []
        core.tick(now)
        assert effects(core, e.ForceKill, now) == [e.ForceKill(0)]


def test_a_process_without_grace_is_killed_by_force_once_a_second() -> None:
    core = at_work(kill_grace=0.0)
    core.kill(1, "by a", 1.0)
    core.tick(1.0)
    core.take_effects(1.0)
    core.tick(1.9)
    assert effects(core, e.ForceKill, 1.9) == []
    core.tick(2.0)
    assert effects(core, e.ForceKill, 2.0) == [e.ForceKill(0)]


def test_work_waits_for_a_slot_that_rests_and_begins_when_its_rest_is_over() -> None:
    core = make_core(respawn_count=0, respawn_interval=50.0)
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.Created(number, 100), 0.0)
    core.handle(e.Gone(number, code=1), 0.0)
    assert core.state.slots.all[number].state == ST_FAIL
    settle(core)
    core.take_effects(0.0)
    core.tick(50.0)
    turn(core, claim(2), now=50.0)
    assert spawned(core, 50.0) == [number]


def test_an_answer_for_an_agent_that_has_ended_is_sent_to_nobody() -> None:
    core = at_work(AgentType(command=("a",), db="sql"))
    core.agent_output(0, b"DB: select 1;\n", 0.5)
    (statement,) = effects(core, e.RunStatement, 0.5)
    core.handle(e.Gone(0, code=1), 1.0)
    core.take_effects(1.0)
    core.handle(e.StatementAnswered(0, statement.serial, b"1\n"), 1.0)
    assert effects(core, e.Send, 1.0) == []


# ---- output of commands
def test_output_of_a_command_is_stored_once_after_the_interval_and_at_its_end() -> None:
    core = at_work(EXEC, output_interval=2.0)
    core.exec_output(0, "out", b"one\n", 1.0)
    core.exec_output(0, "out", b"two\n", 2.0)
    assert core.state.deadlines.at[OUTPUT] == 3.0
    core.tick(3.0)
    core.exec_output(0, "err", b"three\n", 4.0)
    core.handle(e.Gone(0, code=3), 4.5)
    written = [request for request in settle(core, 5.0) if isinstance(request, WriteOutput)]
    rows = [(row.job, row.part, row.stream, row.text) for request in written for row in request.rows]
    assert rows == [(1, 1, "out", "one\ntwo\n"), (1, 2, "err", "three\n")]
    assert [request.followed for request in written] == [[1]]


# ---- what is shown
def test_a_job_is_marked_a_moment_after_its_agent_has_it_and_a_younger_one_a_moment_later() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1), claim(2))
    first, second = spawned(core)
    for number, now in ((first, 0.0), (second, 0.04)):
        core.handle(e.Created(number, 100 + number), now)
        core.agent_output(number, b"OK\n", now)
        core.take_effects(now)
    core.tick(0.05)
    assert _marked(core, 0.05) == [1]
    assert core.state.deadlines.at[MARK] <= 0.1
    core.tick(0.1)
    assert _marked(core, 0.1) == [2]
    assert core.state.deadlines.at[MARK] == NEVER


def _marked(core: Core, now: float) -> list[int]:
    return [row.pk for request in settle(core, now) if isinstance(request, Mark) for row in request.rows]


# ---- hosts
def test_agents_of_a_host_that_is_reached_otherwise_now_are_replaced_and_its_rows_wait() -> None:
    core = at_work(hosts=FAR)
    core.handle(e.HostMoved("beta", "gamma"), 1.0)
    assert "host beta: it is gamma now, or reached otherwise; its agents are replaced" in told(core, 1.0)
    core.agent_output(0, b"OK\n", 2.0)
    assert effects(core, e.Kill, 2.0) == [e.Kill(0)]
    core.handle(e.Gone(0, signal="SIGHUP"), 2.0)
    assert core.state.slots.all[0].state == ST_FREE
    assert [row["name"] for row in core.report.take_changed_hosts(2.0)] == ["beta"]


def test_a_host_that_goes_down_gives_back_only_what_is_bound_to_it() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=1)}, hosts={"alpha": Host(), **FAR})
    core.handle(e.HostUp("beta"), 0.0)
    turn(core, claim(1, host="beta"), claim(2, host="beta"), claim(3), claim(4))
    core.handle(e.HostDown("beta", "no route", 8.0), 1.0)
    assert "host beta cannot be reached: no route; next attempt in 8.0 s" in told(core, 1.0)
    back = {row.pk: row.text for row in saved(settle(core, 1.0))}
    assert set(back) <= {1, 2}
    assert set(back.values()) == {"host beta is down"}
    assert {3, 4} <= set(core.state.jobs)


def test_the_machine_that_is_tried_again_first_says_when() -> None:
    core = make_core(hosts={"alpha": Host(), "beta": Host(), "gamma": Host()})
    turn(core, claim(1), claim(2), claim(3))
    for number, now in zip(spawned(core), (0.0, 0.5, 0.7), strict=True):
        core.handle(e.NotCreated(number, "no process", is_machines_fault=True), now)
    assert core.state.deadlines.at["shortage"] == 1.0
    core.tick(1.0)
    assert core.state.deadlines.at["shortage"] == 1.5


def test_a_machine_that_could_start_no_more_is_tried_again_after_its_pause() -> None:
    core = make_core({"sha": AgentType(command=("agent",), slots=2)})
    turn(core, claim(1), claim(2))
    first, second = spawned(core)
    core.handle(e.Created(first, 100), 0.0)
    core.handle(e.NotCreated(second, "no process", is_machines_fault=True), 0.0)
    pause = core.state.hosts["alpha"].pause
    assert f"host alpha: no more agents are started for {pause:g} s: no process" in told(core)
    assert core.state.deadlines.at["shortage"] == pause
    core.tick(pause)
    assert spawned(core, pause) == [second]
    core.handle(e.Created(second, 101), pause)
    assert "host alpha: more agents can be started again" in told(core, pause)
    assert core.state.hosts["alpha"].shortage is None


@pytest.mark.parametrize(("done", "starts"), [(0, [0.0]), (1, [])])
def test_a_process_that_dies_of_its_first_row_counts_against_its_slot_and_a_later_row_is_suspect(
    done: int, starts: list[float]
) -> None:
    core = query_core("n", 4, 4)
    for _ in range(done):
        core.agent_output(0, b"OK\n", 1.0)
        core.take_effects(1.0)
    core.handle(e.Gone(0, code=1), 2.0)
    assert core.state.slots.all[0].starts == starts


def test_a_program_that_is_being_written_is_told_of_once_a_pause() -> None:
    core = make_core()
    turn(core, claim(1))
    (number,) = spawned(core)
    core.handle(e.NotCreated(number, "text file busy", is_busy=True), 0.0)
    pause = core.state.pools["sha"].busy["alpha"].pause
    assert f"host alpha: this type is not started for {pause:g} s: text file busy" in told(core)


def test_a_job_whose_row_says_where_it_runs_is_not_marked_again_by_the_next_program() -> None:
    core = at_work()
    core.tick(1.0)
    assert _marked(core, 1.0) == [1]
    core.take_effects(1.0)
    after = handed_over(core, 2.0)
    after.tick(3.0)
    assert _marked(after, 3.0) == []
