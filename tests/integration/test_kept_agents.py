"""systemctl restart, and a crash, with keep_agents: agents of the daemon before go on, or are killed."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from scheduler.daemon.fd_store_recovery import MOST_TRIES
from scheduler.drivers.os_calls import LEAVE, start_of
from tests.agent_tools import cmdline
from tests.faults import reexecs
from tests.integration.conftest import Launch
from tests.integration.daemon import RUN, Daemon, agent, is_gone, rec, records, watch
from tests.integration.puppets import LOCAL, Meeting, puppet, rows, said, settings
from tests.integration.ssh_tools import table
from tests.integration.unit_tools import Unit, dying
from tests.needs import need
from tests.patience import PATIENCE_S
from tests.ssh.sshd import Server

Serve = Callable[..., Unit]
TEXT = settings(keep_agents=True) + LOCAL + puppet(slots=2)
SHORT = settings(keep_agents=True, lease=4) + LOCAL + puppet(slots=2)
OTHER_RIGHTS = "update drover.verb set verb_for_owners = not verb_for_owners where verb_name = 'reload'"
FIRST_STEPS = [  # of a daemon for which something was left, in their order
    ("scheduler.drivers.fd_store", "FdStore.keep"), ("scheduler.daemon.cgroup_warden", "Warden.watch"),
    ("scheduler.daemon.cgroup_warden", "dismiss"), ("scheduler.drivers.fd_store", "FdStore.remove"),
]  # fmt: skip


@pytest.fixture
def serve(database_with_roles: str) -> Iterator[Serve]:
    """Start services on a database of the test's own: `serve(config)`."""
    need("control groups")
    with ExitStack() as units:

        def serve(text: str = TEXT, wait: bool = True, **keys: int) -> Unit:
            unit = units.enter_context(Unit(text, database_with_roles, **keys))
            if wait:
                unit.serving()
            return unit

        yield serve


def pair(serve: Serve, launch: Launch) -> tuple[Unit, Daemon]:
    """Return a service with a short lease, and a daemon of no service that stands by."""
    unit, standby = serve(SHORT), launch(SHORT, wait=False)
    said(standby, "standing by")
    return unit, standby


def work(unit: Unit, meeting: Meeting) -> tuple[int, int]:
    """Let an agent begin a job that waits; return the job, and the agent's pid."""
    pk = unit.daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('$$')}; {meeting.wait}; {meeting.tell('$$')}")
    return pk, int(meeting.hear())


def idle(unit: Unit, meeting: Meeting) -> int:
    """Return the pid of an agent that has nothing in hand, once that is written down."""
    pk = unit.daemon.insert(jq_type="puppet", jq_args=meeting.tell("$$"))
    pid = int(meeting.hear())
    unit.daemon.wait(pk)
    unit.daemon.until(
        lambda: f"p{pid}" in unit.manager.names() and is_marked(unit, 0), what="the idle agent is not stored"
    )
    return pid


def is_marked(unit: Unit, slot: int) -> bool:
    (page,) = [fd for name, fd in unit.manager.store if name == "page"]
    return os.pread(page, 1, 2 + slot) == b"\x01"


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


# ---- an orderly restart


@pytest.mark.slow
def test_a_restart_in_the_middle_of_an_item_keeps_agent_and_item(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    gone = watch(pid)[1]
    unit.restart()
    unit.serving(2)
    meeting.let_go()
    row = unit.daemon.wait(pk)
    assert (int(meeting.hear()), row["jq_attempt"], row["jq_interruptions"]) == (pid, 1, 0)
    assert unit.stop() == 0
    assert is_gone(gone, 0)


@pytest.mark.slow
def test_a_standby_knows_the_process_that_serves_after_a_restart(
    serve: Serve, launch: Launch, meeting: Meeting
) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    unit.restart()
    unit.serving(2)
    found = unit.daemon.execute("select scheduler_pid, scheduler_pid_start from drover.scheduler")
    assert found == [{"scheduler_pid": unit.pid, "scheduler_pid_start": start_of(unit.pid)}]
    said(launch(TEXT, wait=False), "standing by")
    meeting.let_go()
    assert (unit.daemon.wait(pk)["jq_attempt"], int(meeting.hear())) == (1, pid)


@pytest.mark.slow
@pytest.mark.parametrize("end", [Unit.restart, Unit.crash])
def test_a_service_manager_that_has_kept_something_is_not_asked_whether_it_does(
    serve: Serve, meeting: Meeting, end: Callable[[Unit], None]
) -> None:
    unit = serve()
    idle(unit, meeting)
    assert "FDNAME=probe" in unit.manager.told
    unit.manager.told.clear()
    end(unit)
    unit.serving(2)
    assert "FDNAME=probe" not in unit.manager.told


@pytest.mark.slow
def test_a_restart_of_a_daemon_that_drains_is_a_stop(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pk, _ = work(unit, meeting)
    os.kill(unit.pid, signal.SIGINT)
    said(unit.daemon, "draining")
    assert unit.stop(LEAVE) == 0
    assert unit.daemon.row(pk)["jq_state"] == "queued"


@pytest.mark.slow
def test_two_restarts_in_a_row_keep_the_agent(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    for count in (2, 3):
        unit.restart()
        unit.serving(count)
    meeting.let_go()
    assert (unit.daemon.wait(pk)["jq_attempt"], int(meeting.hear())) == (1, pid)


@pytest.mark.slow
def test_more_restarts_during_the_first_keep_the_agent(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    unit.restart()
    for count in range(2, 2 + MOST_TRIES):
        said(unit.daemon, "drover 0", count)  # it has begun
        unit.restart()
    unit.serving(2)
    meeting.let_go()
    assert (unit.daemon.wait(pk)["jq_attempt"], int(meeting.hear())) == (1, pid)


@pytest.mark.slow
def test_a_daemon_killed_while_it_takes_over_leaves_all_to_the_next(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    os.kill(unit.pid, LEAVE)
    unit.daemon.process.wait()
    with psycopg.connect(unit.daemon.database) as other:
        other.execute("lock table drover.scheduler_group in exclusive mode")  # so it does not come up
        unit.start_again()
        said(unit.daemon, "drover 0", 2)
        unit.crash()
    unit.serving(2)
    meeting.let_go()
    assert (unit.daemon.wait(pk)["jq_attempt"], int(meeting.hear())) == (1, pid)


@pytest.mark.slow
@pytest.mark.parametrize("step", [*FIRST_STEPS, ("scheduler.daemon.exec_handover", "read")], ids=lambda step: step[1])
def test_a_daemon_killed_at_its_first_steps_leaves_all_to_the_next(
    serve: Serve, meeting: Meeting, step: tuple[str, str]
) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    dies_at(unit, step, Unit.restart)
    unit.serving(2)
    meeting.let_go()
    assert (unit.daemon.wait(pk)["jq_attempt"], int(meeting.hear())) == (1, pid)


def dies_at(unit: Unit, step: tuple[str, str], end: Callable[[Unit], None]) -> None:
    """End a daemon; the next one is killed where it calls a function, and the one after it lives."""
    unit.program = dying(*step)
    end(unit)
    unit.program, killed = RUN, unit.daemon.process
    unit.start_again()
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_command_in_hand_at_a_restart_goes_back_to_the_queue_at_no_cost(serve: Serve, meeting: Meeting) -> None:
    script = f"{meeting.tell('$$')}; {meeting.wait}"
    unit = serve(settings(keep_agents=True) + LOCAL + agent("run", ["sh", "-c", script], kind="exec"))
    pk = unit.daemon.insert(jq_type="run")
    first = int(meeting.hear())
    gone = watch(first)[1]
    unit.restart()
    second = int(meeting.hear())
    assert is_gone(gone, 0)
    meeting.let_go()
    row = unit.daemon.wait(pk)
    assert (row["jq_attempt"], row["jq_interruptions"], first != second) == (2, 0, True)


@pytest.mark.slow
def test_items_in_hand_of_a_query_are_not_given_out_again_after_a_restart(serve: Serve, meeting: Meeting) -> None:
    script = f'echo LOG $n; test "$n" -gt 2 || {{ {meeting.tell("here")}; {meeting.wait}; }}'
    unit = serve(settings(keep_agents=True, fetch_rows=7) + LOCAL + rows("rows", script, slots=2))
    daemon = unit.daemon
    pk = daemon.insert(jq_type="rows", jq_args="select n from generate_series(1, 60) n", jq_key="n", jq_msq=True)
    assert [meeting.hear(), meeting.hear()] == ["here", "here"]
    unit.restart()
    unit.serving(2)
    meeting.let_go(2)
    row = daemon.wait(pk)
    assert (row["jq_attempt"], row["jq_itemsprocessed"], row["jq_itemstotal"]) == (1, 60, 60)
    logged = sorted(int(each["log_message"]) for each in daemon.log_rows(pk) if each["log_type"] == "LOG")
    assert logged == list(range(1, 61))


@pytest.mark.slow
def test_agents_over_ssh_live_through_two_restarts(serve: Serve, beta: Server, meeting: Meeting) -> None:
    unit = serve(settings(keep_agents=True) + puppet(slots=2) + table("beta", beta))
    pk, pid = work(unit, meeting)
    for count in (2, 3):
        unit.restart()
        unit.serving(count)
    meeting.let_go()
    row = unit.daemon.wait(pk)
    assert (int(meeting.hear()), row["jq_attempt"], row["jq_interruptions"]) == (pid, 1, 0)
    dies = unit.daemon.insert(jq_type="puppet", jq_args="kill -9 $$")
    assert unit.daemon.wait(dies, "failed")["jq_attempt"] == 1
    assert unit.stop() == 0
    unit.daemon.until(lambda: not unit.pids(), what="something is left")


@pytest.mark.slow
def test_an_agent_that_dies_after_a_restart_fails_its_item_with_an_end_that_is_not_known(
    serve: Serve, meeting: Meeting
) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    unit.restart()
    unit.serving(2)
    os.kill(pid, signal.SIGKILL)
    assert "how is not known, since a daemon before this one started it" in unit.daemon.wait(pk, "failed")["jq_endtext"]


@pytest.mark.slow
def test_a_program_replaced_in_place_after_a_restart_keeps_the_agent(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    unit.restart()
    unit.serving(2)
    command = unit.daemon.insert(role="drover_operator", jq_type="command", jq_args="reexec")
    unit.daemon.wait(command)
    unit.restart()
    unit.serving(3)
    meeting.let_go()
    assert (unit.daemon.wait(pk)["jq_attempt"], int(meeting.hear())) == (1, pid)


@pytest.mark.slow
def test_a_group_that_another_daemon_took_meanwhile_ends_the_agents(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    _, pid = work(unit, meeting)
    gone = watch(pid)[1]
    os.kill(unit.pid, LEAVE)
    unit.daemon.process.wait()
    unit.daemon.execute("update drover.scheduler_group set group_owner = gen_random_uuid()")
    unit.start_again()
    assert is_gone(gone)
    said(unit.daemon, "has another owner: standing by")


@pytest.mark.slow
def test_a_stop_gives_jobs_back_and_ends_the_agents(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    assert unit.stop() == 0
    row = unit.daemon.row(pk)
    assert (row["jq_state"], row["jq_interruptions"], lives(pid)) == ("queued", 0, False)
    unit.daemon.until(lambda: not unit.pids(), what="something is left")


@pytest.mark.slow
def test_a_store_that_is_discarded_ends_agents_that_read_no_end(serve: Serve, meeting: Meeting) -> None:
    deaf = agent("deaf", ["sh", "-c", f"trap '' HUP; echo OK; read line; {meeting.tell('$$')}; exec sleep 1000"])
    unit = serve(settings(keep_agents=True) + LOCAL + deaf)
    unit.daemon.insert(jq_type="deaf")
    gone = watch(int(meeting.hear()))[1]
    assert unit.stop(LEAVE) == 0
    assert is_gone(gone)
    unit.daemon.until(lambda: not unit.pids(), what="something is left")


@pytest.mark.slow
@pytest.mark.parametrize("why", ["the warden is dead", "the version is not known"])
def test_a_state_whose_agents_were_killed_is_not_gone_on_with_later(serve: Serve, meeting: Meeting, why: str) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    warden, gone = warden_of(unit), watch(pid)[1]
    os.kill(unit.pid, LEAVE)
    unit.daemon.process.wait()
    (state,) = [number for number, (name, _) in enumerate(unit.manager.store) if name == "state"]
    known = os.dup(unit.manager.store[state][1])
    if why == "the warden is dead":
        os.kill(warden, signal.SIGKILL)
    else:
        unit.manager.store[state] = ("state", newer(unit.manager.store[state][1]))
    unit.program = dying("scheduler.cli.run", "_wait_for_database")
    unit.start_again()
    assert is_gone(gone)
    unit.program = RUN
    unit.daemon.process.wait()
    unit.manager.store = [(name, known if name == "state" else fd) for name, fd in unit.manager.store]
    unit.start_again()
    unit.serving(2)
    assert int(meeting.hear()) != pid
    meeting.let_go()
    assert unit.daemon.wait(pk)["jq_attempt"] == 2


@pytest.mark.slow
def test_a_state_of_a_newer_version_is_not_gone_on_with(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    gone = watch(pid)[1]
    os.kill(unit.pid, LEAVE)
    unit.daemon.process.wait()
    (state,) = [number for number, (name, _) in enumerate(unit.manager.store) if name == "state"]
    unit.manager.store[state] = ("state", newer(unit.manager.store[state][1]))
    unit.start_again()
    assert is_gone(gone)
    said(unit.daemon, "the state that was left has version 99, which is not known here")
    assert int(meeting.hear()) != pid
    meeting.let_go()
    assert unit.daemon.wait(pk)["jq_attempt"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(("failures", "is_kept"), [(2, True), (3, False)])
def test_a_state_goes_on_with_the_third_daemon_that_begins_with_it_at_most(
    serve: Serve, meeting: Meeting, failures: int, is_kept: bool
) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    gone = watch(pid)[1]
    unit.configure("mistake = 1")
    os.kill(unit.pid, LEAVE)
    for _ in range(failures):
        unit.start_again()
    unit.daemon.process.wait()
    unit.configure(TEXT)
    unit.start_again()
    unit.serving(2)
    meeting.let_go()
    assert (unit.daemon.wait(pk)["jq_attempt"] == 1, is_gone(gone, 0)) == (is_kept, not is_kept)


def newer(fd: int) -> int:
    """Return a copy of a state with another version."""
    text = os.pread(fd, os.fstat(fd).st_size, 0).replace(b'"core": {"version": 1', b'"core": {"version": 99')
    copy = os.memfd_create("newer")
    os.write(copy, text)
    os.close(fd)
    return copy


@pytest.mark.slow
def test_a_store_that_is_too_small_ends_all_agents(serve: Serve, meeting: Meeting) -> None:
    unit = serve(most=5)
    pk, pid = work(unit, meeting)
    gone = watch(pid)[1]
    unit.restart()
    assert is_gone(gone)
    assert int(meeting.hear()) != pid
    meeting.let_go()
    assert unit.daemon.wait(pk)["jq_attempt"] == 2


@pytest.mark.slow
def test_a_store_that_was_full_at_a_crash_has_the_new_lifeline(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pid = idle(unit, meeting)
    unit.manager.most = len(unit.manager.store)
    unit.crash()
    unit.serving(2)
    unit.daemon.until(lambda: len(wardens(unit)) == 1, what="the warden of the daemon before has not ended")
    assert [name for name in unit.manager.names() if name.startswith("warden")] == [f"warden{warden_of(unit)}"]
    unit.manager.most = 4096
    unit.restart()
    unit.serving(3)
    unit.daemon.insert(jq_type="puppet", jq_args=meeting.tell("$$"))
    assert int(meeting.hear()) == pid


@pytest.mark.slow
def test_another_group_in_the_configuration_ends_the_agents(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    _, pid = work(unit, meeting)
    gone = watch(pid)[1]
    unit.configure(settings(keep_agents=True, group="other") + "[hosts.elsewhere]\n" + puppet())
    unit.restart()
    assert is_gone(gone)


@pytest.mark.slow
def test_without_a_store_a_restart_is_a_stop(serve: Serve, meeting: Meeting) -> None:
    unit = serve(most=0)
    said(unit.daemon, "the unit keeps no descriptors")
    pk, _ = work(unit, meeting)
    assert unit.stop(LEAVE) == 0
    row = unit.daemon.row(pk)
    assert (row["jq_state"], row["jq_interruptions"]) == ("queued", 0)


# ---- a crash


@pytest.mark.slow
def test_an_idle_agent_outlives_a_crash(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pid = idle(unit, meeting)
    unit.crash()
    unit.serving(2)
    pk = unit.daemon.insert(jq_type="puppet", jq_args=meeting.tell("$$"))
    assert (int(meeting.hear()), unit.daemon.wait(pk)["jq_attempt"]) == (pid, 1)


@pytest.mark.slow
@pytest.mark.parametrize("step", FIRST_STEPS, ids=lambda step: step[1])
def test_an_idle_agent_outlives_the_crash_of_a_daemon_and_of_the_next_one_at_its_first_steps(
    serve: Serve, meeting: Meeting, step: tuple[str, str]
) -> None:
    unit = serve()
    pid = idle(unit, meeting)
    dies_at(unit, step, Unit.crash)
    unit.serving(2)
    unit.daemon.insert(jq_type="puppet", jq_args=meeting.tell("$$"))
    assert int(meeting.hear()) == pid


@pytest.mark.slow
def test_an_idle_agent_with_another_environment_is_killed_after_a_crash(serve: Serve, meeting: Meeting) -> None:
    unit = serve(settings(keep_agents=True) + LOCAL + puppet(slots=1, pass_env=["TOKEN"]))
    gone = watch(idle(unit, meeting))[1]
    unit.environment["TOKEN"] = "new"
    unit.crash()
    assert is_gone(gone)
    unit.daemon.insert(jq_type="puppet", jq_args=meeting.tell("$TOKEN"))
    assert meeting.hear() == "new"


@pytest.mark.slow
def test_an_agent_that_was_told_to_end_is_killed_after_a_crash(serve: Serve, meeting: Meeting) -> None:
    script = "trap 'sleep 4; exit' HUP; echo OK; while read -r line; do eval \"$line\"; echo OK; done; sleep 4"
    unit = serve(settings(keep_agents=True, max_idle=8, kill_grace=20) + LOCAL + agent("puppet", ["sh", "-c", script]))
    gone = watch(idle(unit, meeting))[1]
    said(unit.daemon, "-> ST_FREEING")
    unit.crash()
    assert is_gone(gone)
    unit.serving(2)
    pk = unit.daemon.insert(jq_type="puppet", jq_args=meeting.tell("$$"))
    assert unit.daemon.wait(pk)["jq_attempt"] == 1


@pytest.mark.slow
def test_a_busy_agent_is_killed_after_a_crash_and_an_idle_one_goes_on(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    kept = idle(unit, meeting)
    pk, busy = work(unit, meeting)
    other = kept if busy != kept else 0
    gone = watch(busy)[1]
    unit.crash()
    assert is_gone(gone)
    again = int(meeting.hear())
    meeting.let_go()
    assert (unit.daemon.wait(pk)["jq_attempt"], again != busy) == (2, True)
    assert other in (0, again)


@pytest.mark.slow
def test_a_command_is_killed_after_a_crash_before_it_is_begun_again(serve: Serve, meeting: Meeting) -> None:
    script = f"trap '' HUP TERM; {meeting.tell('$$')}; {meeting.wait}"
    unit = serve(settings(keep_agents=True) + LOCAL + agent("run", ["setsid", "sh", "-c", script], kind="exec"))
    pk = unit.daemon.insert(jq_type="run")
    first = int(meeting.hear())
    gone = watch(first)[1]
    unit.crash()
    assert int(meeting.hear()) != first
    assert is_gone(gone, 0)
    meeting.let_go()
    assert unit.daemon.wait(pk)["jq_attempt"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("changed", [puppet(slots=2, env={"A": "b"}), agent("another", ["true"])])
def test_an_agent_that_would_be_started_otherwise_now_is_killed_after_a_crash(
    serve: Serve, meeting: Meeting, changed: str
) -> None:
    unit = serve()
    gone = watch(idle(unit, meeting))[1]
    unit.configure(settings(keep_agents=True) + LOCAL + changed)
    unit.crash()
    unit.serving(2)
    assert is_gone(gone)


@pytest.mark.slow
def test_an_agent_whose_program_was_replaced_is_killed_after_a_crash(
    serve: Serve, meeting: Meeting, tmp_path: Path
) -> None:
    program = tmp_path / "puppet"
    program.write_text('#!/bin/sh\necho OK; while IFS= read -r line; do eval "$line"; echo OK; done\n')
    program.chmod(0o755)
    unit = serve(settings(keep_agents=True, status_interval=1000) + LOCAL + agent("puppet", [str(program)]))
    gone = watch(idle(unit, meeting))[1]
    program.write_text(program.read_text() + "exit 0\n")
    unit.crash()
    unit.serving(2)
    assert is_gone(gone)


@pytest.mark.slow
def test_idle_agents_end_if_another_daemon_serves_after_the_crash(
    serve: Serve, launch: Launch, meeting: Meeting
) -> None:
    unit, standby = pair(serve, launch)
    gone = watch(idle(unit, meeting))[1]
    os.kill(unit.pid, signal.SIGKILL)
    unit.daemon.process.wait()
    said(standby, "serving group")
    unit.start_again()
    assert is_gone(gone)


@pytest.mark.slow
@pytest.mark.parametrize("number", [LEAVE, signal.SIGKILL])
def test_a_standby_on_the_machine_begins_an_item_again_when_the_agent_that_had_it_is_dead(
    serve: Serve, launch: Launch, meeting: Meeting, number: int
) -> None:
    unit, standby = pair(serve, launch)
    pk, pid = work(unit, meeting)
    gone = watch(pid)[1]
    os.kill(unit.pid, number)
    unit.daemon.process.wait()
    second = int(meeting.hear())
    assert is_gone(gone, 0)
    said(unit.daemon, "no daemon has come before the lease ends: killed what the daemon has left")
    said(standby, ": its lease has run out")
    meeting.let_go()
    assert (standby.wait(pk)["jq_state"], int(meeting.hear())) == ("done", second)


@pytest.mark.slow
def test_a_daemon_that_dies_before_it_is_up_leaves_agents_to_the_end_of_the_lease_at_most(
    serve: Serve, launch: Launch, meeting: Meeting
) -> None:
    unit, standby = pair(serve, launch)
    pk, pid = work(unit, meeting)
    gone = watch(pid)[1]
    unit.program = dying("scheduler.cli.run", "_wait_for_database")
    unit.restart()
    second = int(meeting.hear())
    assert is_gone(gone, 0)
    meeting.let_go()
    assert (standby.wait(pk)["jq_state"], int(meeting.hear())) == ("done", second)


@pytest.mark.slow
def test_a_daemon_that_waits_for_init_when_the_lease_ends_kills_the_agents(serve: Serve, meeting: Meeting) -> None:
    unit = serve(SHORT)
    pk, pid = work(unit, meeting)
    gone = watch(pid)[1]
    unit.daemon.execute(OTHER_RIGHTS)  # as if init of a new version had not been run
    unit.configure(SHORT + puppet("added"))
    unit.restart()
    said(unit.daemon, "the lease ends before drover init was run: all agents that were left are killed")
    assert is_gone(gone)
    unit.daemon.execute(OTHER_RIGHTS)
    again = int(meeting.hear())
    meeting.let_go()
    assert (unit.daemon.wait(pk)["jq_attempt"], int(meeting.hear())) == (2, again)
    assert unit.daemon.wait(unit.daemon.insert(jq_type="added", jq_args=":"))["jq_attempt"] == 1


@pytest.mark.slow
def test_a_daemon_that_gave_the_group_up_is_restarted_in_order(serve: Serve, launch: Launch) -> None:
    unit, standby = pair(serve, launch)
    unit.daemon.wait(unit.daemon.insert(role="drover_operator", jq_type="command", jq_args="step-down"))
    said(standby, "serving group")
    ended = unit.daemon.value("select now() + interval '5 s'")
    unit.daemon.until(lambda: unit.daemon.value("select now() > %s", ended), what="its lease does not end")
    unit.restart()
    said(unit.daemon, "the daemon was started anew")
    assert "does not answer" not in unit.daemon.stderr()


@pytest.mark.slow
def test_a_short_lease_is_told_of(serve: Serve) -> None:
    assert "keep_agents: a restart that takes longer than lease = 4 s kills the agents" in serve(SHORT).daemon.stderr()


@pytest.mark.slow
def test_the_warden_ends_what_a_crash_left_if_the_service_is_not_started_again(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    _, pid = work(unit, meeting)
    gone = watch(pid)[1]
    os.kill(unit.pid, signal.SIGKILL)
    unit.daemon.process.wait()
    unit.manager.discard()
    assert is_gone(gone)
    said(unit.daemon, "the service has ended: killed what the daemon has left")
    unit.daemon.until(lambda: not unit.pids(), what="something is left")


@pytest.mark.slow
def test_a_daemon_whose_warden_was_killed_stops_in_order(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    pk, pid = work(unit, meeting)
    os.kill(warden_of(unit), signal.SIGKILL)
    assert unit.daemon.process.wait(PATIENCE_S) == 0
    assert (unit.daemon.row(pk)["jq_state"], lives(pid)) == ("queued", False)


@pytest.mark.slow
def test_after_a_crash_with_a_dead_warden_nothing_goes_on(serve: Serve, meeting: Meeting) -> None:
    unit = serve()
    gone = watch(idle(unit, meeting))[1]
    os.kill(unit.pid, signal.SIGSTOP)
    os.kill(warden_of(unit), signal.SIGKILL)
    unit.crash()
    unit.serving(2)
    assert is_gone(gone)
    said(unit.daemon, "the warden of the daemon before does not answer")


def warden_of(unit: Unit) -> int:
    (pid,) = wardens(unit)
    return pid


def wardens(unit: Unit) -> list[int]:
    return [pid for pid in unit.pids() if b"scheduler.daemon.cgroup_warden" in cmdline(pid)]


@pytest.mark.slow
def test_agents_that_end_leave_the_store(serve: Serve, meeting: Meeting) -> None:
    unit = serve(settings(keep_agents=True, max_idle=0.5) + LOCAL + puppet())
    pk = unit.daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('$$')}; {meeting.wait}")
    pid = int(meeting.hear())
    unit.daemon.until(lambda: f"p{pid}" in unit.manager.names(), what="it is not stored")
    meeting.let_go()
    unit.daemon.wait(pk)
    assert unit.daemon.until(
        lambda: unit.manager.names() == ["page", f"warden{warden_of(unit)}"], what="it stays in the store"
    )


# ---- a load


@pytest.mark.slow
def test_a_load_over_restarts_loses_and_repeats_nothing(serve: Serve, record: Path) -> None:
    unit = serve(settings(keep_agents=True) + reexecs.config(record).partition("\n")[2])
    outcome = reexecs.load(unit.daemon, record, 300, 150, 2, lambda text: None, restart(unit))
    assert (outcome.twice, outcome.lost, outcome.restarted, outcome.attempts) == (0, 0, 0, 0)


def restart(unit: Unit) -> Callable[[Daemon, int], str]:
    def restart(_daemon: Daemon, number: int) -> str:
        unit.restart()
        unit.serving(number + 2)
        return "started anew"

    return restart


@pytest.mark.slow
@pytest.mark.parametrize("ms", [0, 20, 50, 100, 200, 300, 400, 600])
def test_a_daemon_that_is_killed_on_its_way_out_or_in_loses_nothing(serve: Serve, record: Path, ms: int) -> None:
    unit = serve(settings(keep_agents=True) + LOCAL + agent("one", rec(record), slots=2))
    pks = [row["jq_pk"] for row in unit.daemon.execute(reexecs.JOBS % (0.001, 200))]
    unit.daemon.until(record.exists, what="no agent works")
    os.kill(unit.pid, LEAVE)
    signal.sigtimedwait((), ms / 1000)
    if unit.daemon.process.poll() is not None:
        unit.start_again()
        signal.sigtimedwait((), ms / 1000)
    unit.crash()
    assert {row["jq_state"] for row in unit.daemon.wait_all(pks)} == {"done"}
    lines = {note["line"] for note in records(record) if note["event"] == "line"}
    assert len(lines) == 200


# ---- detached jobs


def detached(folder: Path, slots: int = 2) -> str:
    """Return the configuration of a daemon with agents that are kept, and a type whose jobs are detached."""
    host = f'[hosts.local]\nmax = 8\nspool = "{folder / "spool"}"\n'
    shell = agent("long", ["sh", "-c", "{args}"], kind="exec", detached=True, slots=slots)
    return settings(keep_agents=True, kill_grace=1.0) + host + puppet(slots=2) + shell


def begin_detached(unit: Unit, meeting: Meeting, around: str = "%s") -> tuple[int, int]:
    """Let a detached job begin that tells its pid at its start and at its end; return the job and the pid."""
    script = f"{meeting.tell('$$')}; echo one; {meeting.wait}; echo two; {meeting.tell('$$')}"
    pk = unit.daemon.insert(jq_type="long", jq_args=around % script)
    pid = int(meeting.hear())
    unit.daemon.wait(pk, "running")
    return pk, pid


def adopted(unit: Unit, pk: int, count: int = 1) -> None:
    unit.daemon.until(lambda: unit.daemon.log_text(pk).count("adopted by") >= count, what="the job is not adopted")


def ends_once(unit: Unit, meeting: Meeting, pk: int, pid: int) -> None:
    """Let a detached job end, and check that it has begun once, and that its end and all output were collected."""
    meeting.let_go()
    row = unit.daemon.wait(pk)
    assert (int(meeting.hear()), row["jq_attempt"], row["jq_interruptions"], row["jq_exitcode"]) == (pid, 1, 0, 0)
    parts = unit.daemon.execute("select out_data from drover.output where out_jq_fk = %s order by out_part", pk)
    assert "".join(part["out_data"] for part in parts) == "one\ntwo\n"


@pytest.mark.slow
def test_a_detached_job_is_adopted_after_each_restart_c41(serve: Serve, meeting: Meeting, tmp_path: Path) -> None:
    unit = serve(detached(tmp_path))
    pk, pid = begin_detached(unit, meeting)
    for count in (1, 2):
        unit.restart()
        unit.serving(count + 1)
        adopted(unit, pk, count)
    ends_once(unit, meeting, pk, pid)


@pytest.mark.slow
def test_a_restart_keeps_an_item_in_hand_and_a_detached_job_c41(serve: Serve, meeting: Meeting, tmp_path: Path) -> None:
    unit = serve(detached(tmp_path))
    pk, pid = begin_detached(unit, meeting)
    item = unit.daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('$$')}; until [ -e {tmp_path}/go ]; do :; done")
    meeting.hear()
    unit.restart()
    unit.serving(2)
    adopted(unit, pk)
    (tmp_path / "go").touch()
    row = unit.daemon.wait(item)
    assert (row["jq_attempt"], row["jq_interruptions"]) == (1, 0)
    ends_once(unit, meeting, pk, pid)


@pytest.mark.slow
@pytest.mark.parametrize("around", ["%s", "exec env -i sh -c '%s'"])
def test_a_detached_job_goes_on_over_a_crash_whatever_its_environment_c41(
    serve: Serve, meeting: Meeting, tmp_path: Path, around: str
) -> None:
    unit = serve(detached(tmp_path))
    idle(unit, meeting)
    pk, pid = begin_detached(unit, meeting, around)
    unit.crash()
    unit.serving(2)
    adopted(unit, pk)
    ends_once(unit, meeting, pk, pid)


@pytest.mark.slow
def test_a_detached_job_goes_on_while_the_service_is_stopped_c41(
    serve: Serve, meeting: Meeting, tmp_path: Path
) -> None:
    unit = serve(detached(tmp_path))
    pk, pid = begin_detached(unit, meeting)
    warden = watch(warden_of(unit))[1]
    assert unit.stop() == 0
    assert is_gone(warden)
    assert (unit.daemon.row(pk)["jq_state"], lives(pid)) == ("running", True)
    unit.start_again()
    adopted(unit, pk)
    ends_once(unit, meeting, pk, pid)


@pytest.mark.slow
@pytest.mark.parametrize("ms", [0, 50, 150, 400])
@pytest.mark.parametrize("end", [Unit.restart, Unit.crash])
def test_detached_jobs_that_begin_and_end_around_a_restart_run_once_c41(
    serve: Serve, tmp_path: Path, ms: int, end: Callable[[Unit], None]
) -> None:
    unit = serve(detached(tmp_path, slots=4))
    ledger = tmp_path / "ledger"
    pks = [unit.daemon.insert(jq_type="long", jq_args=f"echo $DROVER_JOB >>{ledger}") for _ in range(16)]
    unit.daemon.until(ledger.exists, what="no job has begun")
    signal.sigtimedwait((), ms / 1000)
    end(unit)
    assert {row["jq_interruptions"] for row in unit.daemon.wait_all(pks)} == {0}
    assert sorted(map(int, ledger.read_text().split())) == sorted(pks)
