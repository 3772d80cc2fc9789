"""The life of agents under the real daemon: their states as others see them, their deaths, what a death costs."""

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.model.config import Scheduler
from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, start
from tests.integration.puppets import LOCAL, Meeting, moves, puppet, said, settings, slots

BIRTH = [("ST_FREE", "ST_PREP"), ("ST_PREP", "ST_SPAWNED"), ("ST_SPAWNED", "ST_READY")]
LOOP = "echo OK; while read -r line; do echo OK; done"
KILLED = [("ST_READY", "ST_FREEING"), ("ST_FREEING", "ST_FREE")]


def unread(pid: int) -> int:
    """Return the bytes that wait in the standard input of an agent."""
    fd = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    os.close(fd)
    return int(count)


def pipes(pid: int) -> set[str]:
    """Return the pipes that a process holds."""
    fds = Path(f"/proc/{pid}/fd")
    return {link for fd in fds.iterdir() if (link := os.readlink(fd)).startswith("pipe:")}


def dying(births: Path) -> str:
    """Return an agent type whose agents note their birth and die at once."""
    return agent("dying", ["sh", "-c", f"echo born >>{births}; exit 1"])


def count(births: Path) -> int:
    return len(births.read_text().splitlines())


@pytest.fixture(scope="module")
def kinds() -> Iterator[str]:
    """Return the agent types of the shared daemon that nobody has used."""
    return iter([f"p{number}" for number in range(9)])


@pytest.fixture
def kind(kinds: Iterator[str]) -> str:
    """Return an agent type of the shared daemon for one test alone."""
    return next(kinds)


@pytest.fixture(scope="module")
def shared(module_database: str) -> Iterator[Daemon]:
    """Yield a daemon for which one death is one too many."""
    watched = puppet("beating", heartbeat=3) + puppet("free") + puppet("timed", item_timeout=0.5)
    puppets = "".join(puppet(f"p{number}") for number in range(9))
    with start(settings(respawn_count=0) + LOCAL + puppets + watched, module_database) as daemon:
        yield daemon


# ---- states


def test_every_slot_begins_free_without_a_process_f61(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet(slots=3))
    free = slots(daemon, "ST_FREE", count=3)
    assert [(row["status_state"], row["status_pid"]) for row in free] == [(1, None)] * 3
    assert daemon.agent_pids() == []


@pytest.mark.slow
def test_an_agent_is_spawned_until_its_first_ok_and_gets_no_data_f64_f65(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(
        settings(start_limit=60) + LOCAL + agent("slow", ["sh", "-c", f"{meeting.tell('up')}; {meeting.wait}; {LOOP}"])
    )
    job = daemon.insert(jq_type="slow", jq_args=":")
    assert meeting.hear() == "up"
    (slot,) = slots(daemon, "ST_SPAWNED")
    assert (slot["status_state"], unread(slot["status_pid"])) == (4, 0)
    meeting.let_go()
    daemon.wait(job)
    slots(daemon, "ST_READY")


@pytest.mark.slow
def test_an_agent_is_running_until_its_ok_then_ready_f66_f67_f89(shared: Daemon, kind: str, meeting: Meeting) -> None:
    job = shared.insert(jq_type=kind, jq_args=f"{meeting.tell('working')}; {meeting.wait}")
    assert meeting.hear() == "working"
    (running,) = slots(shared, "ST_RUNNING", kind)
    assert (running["status_state"], running["status_jq_fk"]) == (6, job)
    assert running["status_parameter"].startswith("echo working")
    assert shared.wait(job, "running")["jq_endtext"] == "in progress"
    meeting.let_go()
    shared.wait(job)
    (ready,) = slots(shared, "ST_READY", kind)
    assert (ready["status_state"], ready["status_jq_fk"], ready["status_items"]) == (5, None, 1)


def test_no_line_is_sent_while_an_agent_works_f88(shared: Daemon, kind: str, meeting: Meeting) -> None:
    work = f"{meeting.tell('$$')}; {meeting.wait}"
    jobs = [shared.insert(jq_type=kind, jq_args=work) for _ in range(5)]
    assert unread(int(meeting.hear())) == 0
    meeting.let_go()
    assert unread(int(meeting.hear())) == 0
    meeting.let_go(4)
    shared.wait_all(jobs)


def test_state_changes_are_logged_except_between_ready_and_running_f77_f81(launch: Launch) -> None:
    daemon = launch(settings(log_level="info") + LOCAL + puppet())
    daemon.wait_all([daemon.insert(jq_type="puppet", jq_args=":") for _ in range(100)])
    assert moves(daemon, 0) == BIRTH


# ---- killed by us


def test_a_killed_agent_gets_end_of_input_and_sighup_and_its_slot_is_freed_f62_f109_f110_f114(
    launch: Launch, meeting: Meeting
) -> None:
    script = f"trap '{meeting.tell('hangup')}' HUP; {LOOP}; {meeting.tell('eof')}; {meeting.wait}; "
    script += f"{meeting.tell('clean')}"
    daemon = launch(settings(max_idle=0.3, kill_grace=20) + LOCAL + agent("tidy", ["sh", "-c", script]))
    job = daemon.insert(jq_type="tidy", jq_args=":")
    before = daemon.wait(job)
    assert meeting.hear_all(2) == ["eof", "hangup"]
    meeting.let_go(2)
    assert meeting.hear() == "clean"
    said(daemon, "ST_FREEING -> ST_FREE ")
    assert moves(daemon, 0) == BIRTH + KILLED
    assert daemon.row(job) == before


@pytest.mark.slow
def test_an_agent_that_ignores_sighup_is_in_freeing_and_then_gets_sigkill_f62_f113(
    launch: Launch, meeting: Meeting
) -> None:
    script = f"trap '' HUP; {LOOP}; {meeting.tell('$$')}; {meeting.wait}"
    daemon = launch(settings(max_idle=0.2, kill_grace=8) + LOCAL + agent("stubborn", ["sh", "-c", script]))
    daemon.wait(daemon.insert(jq_type="stubborn", jq_args=":"))
    pid = int(meeting.hear())
    (slot,) = slots(daemon, "ST_FREEING")
    assert (slot["status_state"], slot["status_pid"], slot["status_reason"]) == (2, pid, "idle")
    assert not pipes(pid) & pipes(daemon.pid)
    said(daemon, "ST_FREEING -> ST_FREE ")
    assert moves(daemon, 0)[len(BIRTH) :] == [KILLED[0], ("ST_FREEING", "ST_FREEING"), KILLED[1]]
    assert daemon.agent_pids() == []


def test_an_idle_agent_is_ended_and_the_next_job_gets_a_new_one_f118(launch: Launch) -> None:
    daemon = launch(settings(max_idle=0.3, kill_grace=20) + LOCAL + puppet())
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    said(daemon, "ST_FREEING -> ST_FREE ")
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    assert moves(daemon, 0)[: len(BIRTH) * 2 + len(KILLED)] == BIRTH + KILLED + BIRTH


def test_kills_by_the_scheduler_do_not_count_as_respawns_f74(launch: Launch) -> None:
    daemon = launch(
        settings(respawn_count=2, min_idle=0) + "[hosts.local]\nmax = 1\nurgent = 0\n" + puppet("a") + puppet("b")
    )
    for name in ("a", "b") * 10:  # each waits for the one before, so each needs the other's place
        daemon.wait(daemon.insert(jq_type=name, jq_args=":"))
    assert moves(daemon, 0).count(BIRTH[0]) == moves(daemon, 1).count(BIRTH[0]) == 10
    assert "ST_FAIL" not in daemon.stderr()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_no_child_nor_grandchild_survives_an_abort_f115(launch: Launch, meeting: Meeting, number: int) -> None:
    daemon = launch(LOCAL + puppet())
    job = daemon.insert(jq_type="puppet", jq_args=f"sleep 1000 & trap '' HUP; {meeting.tell('up')}; {meeting.wait}")
    assert meeting.hear() == "up"
    assert daemon.stop(number) == 0  # and it asserts that nothing is left
    row = daemon.row(job)
    assert (row["jq_state"], row["jq_endtext"], row["jq_attempt"]) == ("queued", "released for restart", 1)


# ---- deaths


@pytest.mark.slow
def test_an_agent_that_dies_at_once_is_failed_after_six_spawns_f70_f72_t15(launch: Launch, tmp_path: Path) -> None:
    daemon = launch(LOCAL + dying(tmp_path / "births"))
    daemon.insert(jq_type="dying", jq_args=":")
    (slot,) = slots(daemon, "ST_FAIL")
    assert (slot["status_state"], slot["status_spawns"], count(tmp_path / "births")) == (0, 6, 6)
    assert "exit status 1" in slot["status_reason"]


def test_the_throttle_has_its_documented_defaults_f71_f118_f119() -> None:
    defaults = Scheduler()
    assert (defaults.respawn_interval, defaults.respawn_count) == (300, 5)
    assert (defaults.max_idle, defaults.min_idle, defaults.kill_grace, defaults.start_limit) == (900, 20, 20, 60)


@pytest.mark.slow
def test_the_throttle_scales_and_lets_a_slot_try_again_f71_f73_t15(launch: Launch, tmp_path: Path) -> None:
    births = tmp_path / "births"
    daemon = launch(settings(respawn_interval=10, respawn_count=2) + LOCAL + dying(births))
    daemon.insert(jq_type="dying", jq_args=":")
    (slot,) = slots(daemon, "ST_FAIL")
    assert (slot["status_spawns"], count(births)) == (3, 3)
    daemon.until(lambda: count(births) > 3)
    after = moves(daemon, 0)[moves(daemon, 0).index(("ST_FREE", "ST_FAIL")) :]
    assert after[:3] == [("ST_FREE", "ST_FAIL"), ("ST_FAIL", "ST_FREE"), ("ST_FREE", "ST_PREP")]


@pytest.mark.slow
def test_a_failed_type_keeps_its_jobs_and_blocks_no_other_f75(launch: Launch, tmp_path: Path) -> None:
    daemon = launch(LOCAL + dying(tmp_path / "births") + puppet())
    kept = [daemon.insert(jq_type="dying", jq_args=":") for _ in range(3)]
    slots(daemon, "ST_FAIL")
    daemon.wait_all([daemon.insert(jq_type="puppet", jq_args=":") for _ in range(3)])
    rows = daemon.wait_all(kept, "queued")
    assert [row["jq_failures"] for row in rows] == [0, 0, 0]
    daemon.until(lambda: "exit status 1" in daemon.why(kept[0]))


@pytest.mark.slow
def test_an_agent_that_never_says_ok_fails_even_if_starts_are_far_apart(launch: Launch, tmp_path: Path) -> None:
    births = tmp_path / "births"
    mute = agent("mute", ["sh", "-c", f"echo born >>{births}; exec sleep 60"])
    daemon = launch(settings(start_limit=1, respawn_interval=5) + LOCAL + mute)
    daemon.insert(jq_type="mute", jq_args=":")
    (slot,) = slots(daemon, "ST_FAIL")
    assert slot["status_spawns"] == 6
    assert count(births) <= 6  # one that the machine lets wait does not come to it
    assert "no OK within 1 s" in slot["status_reason"]


@pytest.mark.slow
def test_agents_that_never_say_ok_leave_capacity_for_other_types_f2(launch: Launch) -> None:
    names = [f"mute{number}" for number in range(4)]
    mute = "".join(agent(name, ["sleep", "60"]) for name in names)
    daemon = launch(settings(start_limit=1) + "[hosts.local]\nmax = 4\n" + mute + puppet())
    daemon.insert_all([{"jq_type": name, "jq_args": ":"} for name in names])
    daemon.until(lambda: daemon.stderr().count("ST_SPAWNED -> ST_FREEING") >= 4)
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    daemon.until(lambda: daemon.stderr().count("ST_SPAWNED -> ST_FREEING") >= 6)
    assert daemon.most_agents("agent=mute", since=5) == 1


def test_slots_of_five_agents_that_die_at_once_all_change_state_f76_t9(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet(slots=5))
    work = f"{meeting.tell('$$')}; {meeting.wait}"
    jobs = [daemon.insert(jq_type="puppet", jq_args=work) for _ in range(5)]
    pids = [int(pid) for pid in meeting.hear_all(5)]
    daemon.signal(signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    daemon.signal(signal.SIGCONT)
    rows = daemon.wait_all(jobs, "failed")
    assert [row["jq_signal"] for row in rows] == ["SIGKILL"] * 5
    slots(daemon, "ST_FREE", count=5)


@pytest.mark.parametrize(
    ("end", "code", "name"), [("exit 3", 3, None), ("exit 0", 0, None), ("kill -9 $$", None, "SIGKILL")]
)
def test_death_while_working_fails_the_job_and_counts_f91(
    shared: Daemon, kind: str, end: str, code: int | None, name: str | None
) -> None:
    row = shared.wait(shared.insert(jq_type=kind, jq_args=end), "failed")
    assert (row["jq_exitcode"], row["jq_signal"], row["jq_end_bits"]) == (code, name, 2)
    assert row["jq_endtext"].startswith("agent terminated prematurely")
    said(shared, f"every slot of agent {kind} has failed: agent terminated prematurely")


def test_an_unexpected_death_is_logged_and_counted_f117(shared: Daemon, kind: str, meeting: Meeting) -> None:
    shared.wait(shared.insert(jq_type=kind, jq_args=f"{meeting.tell('$THREAD_UNIQUE $$')}"))
    slot, pid = map(int, meeting.hear().split())
    os.kill(pid, signal.SIGSEGV)
    said(shared, f"agent terminated prematurely, by SIGSEGV slot={slot} agent={kind} host=local pid={pid}\n")
    said(shared, f"every slot of agent {kind} has failed")
    assert moves(shared, slot)[len(BIRTH) :] == [("ST_READY", "ST_FREE"), ("ST_FREE", "ST_FAIL")]


@pytest.mark.slow
def test_an_agent_without_a_first_ok_is_warned_about_and_killed_at_the_start_limit_f64(
    launch: Launch, meeting: Meeting
) -> None:
    daemon = launch(
        settings(start_hint=0.2, start_limit=4, respawn_count=0)
        + LOCAL
        + agent("mute", ["sh", "-c", f"{meeting.wait}"])
        + puppet()
    )
    job = daemon.insert(jq_type="mute", jq_args=":")
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    slots(daemon, "ST_FAIL", "mute")
    assert daemon.wait(job, "queued")["jq_failures"] == 0

    def told() -> list[str]:
        return [row["log_message"] for row in daemon.log_rows() if row["log_agent"] == "mute"][:2]

    daemon.until(lambda: told() == ["no OK yet; is stdout flushed?", "no OK within 4 s; killed"])


def test_an_agent_that_cannot_be_started_counts_as_dead_f70(launch: Launch) -> None:
    daemon = launch(LOCAL + agent("absent", ["/nonexistent/agent"]))
    job = daemon.insert(jq_type="absent", jq_args=":")
    (slot,) = slots(daemon, "ST_FAIL")
    assert "/nonexistent/agent" in slot["status_reason"]
    assert "(errno 2)" in slot["status_reason"]
    assert daemon.wait(job, "queued")["jq_failures"] == 0
    daemon.until(lambda: "/nonexistent/agent" in daemon.why(job))


# ---- silence


@pytest.mark.slow
def test_an_agent_that_sends_heartbeats_may_work_longer_than_its_interval_f157(shared: Daemon) -> None:
    beats = "for i in $(seq 8); do sleep 0.5; echo Heartbeat; done"
    assert shared.wait(shared.insert(jq_type="beating", jq_args=beats))["jq_end_bits"] == 1


def test_an_agent_assert_silent_longer_than_its_heartbeat_is_killed_f157(shared: Daemon, meeting: Meeting) -> None:
    row = shared.wait(shared.insert(jq_type="beating", jq_args=meeting.wait), "failed")
    assert row["jq_endtext"] == "no heartbeat for 3 s"
    said(shared, "every slot of agent beating has failed: no heartbeat for 3 s")


def test_without_a_heartbeat_a_silent_agent_is_not_killed_f157(shared: Daemon) -> None:
    assert shared.wait(shared.insert(jq_type="free", jq_args="sleep 0.8"))["jq_end_bits"] == 1


def test_an_item_has_a_time_limit_that_heartbeats_do_not_extend(shared: Daemon) -> None:
    beats = "while :; do sleep 0.1; echo Heartbeat; done"
    row = shared.wait(shared.insert(jq_type="timed", jq_args=beats), "failed")
    assert row["jq_endtext"] == "item took longer than 0.5 s"


# ---- after a death

SIZE = 1 << 29  # of zeros
SHA256 = "9acca8e8c22201155389f65abbf6bc9723edc7384ead80503839f49dcc56d767"


@pytest.mark.slow
def test_an_agent_killed_at_work_gives_the_same_result_at_the_next_attempt_f116_r53(
    launch: Launch, tmp_path: Path
) -> None:
    file = tmp_path / "zeros"
    file.touch()
    os.truncate(file, SIZE << 7)  # nobody is through with that before the kill
    daemon = launch(LOCAL + agent("sha256", ["drover-agent-sha256"]))
    job = daemon.insert(jq_type="sha256", jq_args=str(file), jq_retries=1)
    daemon.wait(job, "running")
    (pid,) = daemon.agent_pids()
    os.kill(pid, signal.SIGSTOP)
    daemon.until(lambda: ") T " in Path(f"/proc/{pid}/stat").read_text(), what="it does not stop")
    os.truncate(file, SIZE)
    os.kill(pid, signal.SIGKILL)
    row = daemon.wait(job)
    assert row["jq_failures"] == 1
    assert row["jq_result"] == {"sha256": SHA256, "size": SIZE}


@pytest.mark.slow
def test_signals_of_children_that_are_not_agents_lose_no_slot_f63(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet("a", slots=2) + agent("b", ["true"], kind="exec"))
    jobs = [daemon.insert(jq_type=kind, jq_args=":") for kind in "ab" * 20]
    for _ in range(1000):
        daemon.signal(signal.SIGCHLD)
    daemon.wait_all(jobs)
    free = slots(daemon, "ST_FREE", "b")
    assert len(free) == 1


# ---- size


@pytest.mark.slow
def test_a_hundred_hosts_and_five_thousand_slots_are_served_f153_j58(launch: Launch) -> None:
    hosts = "".join(f"[hosts.h{number}]\nmax = 4\n" for number in range(100))
    daemon = launch(hosts + puppet(slots=50))
    slots(daemon, "ST_FREE", count=5000)
    assert daemon.wait(daemon.insert(jq_type="puppet", jq_args="echo LOG $DROVER_HOST"))["jq_end_bits"] == 1
    assert daemon.wait(daemon.insert(jq_type="puppet", jq_args=":", jq_host="h99"))["jq_end_bits"] == 1
