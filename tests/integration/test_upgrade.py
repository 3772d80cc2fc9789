"""A daemon whose own program is replaced while it runs: it goes on as the new one, in the same process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Launch, Serve
from tests.integration.puppets import LOCAL, Meeting, puppet, settings
from tests.integration.test_commands import command
from tests.integration.upgrade_tools import GOES_ON, again, change, replace

pytestmark = pytest.mark.slow

SERVES = "serving group"
MEMORY = "select max(status_parameter::jsonb ->> 'memory_mb') from drover.scheduler_status where status_slot = -1"


def test_a_replaced_program_goes_on_with_the_work_in_hand_r94(serve: Serve, program: Path, meeting: Meeting) -> None:
    daemon = serve(reexec=True)
    before = daemon.pid
    pk = daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('here')}; {meeting.wait}")
    assert meeting.hear() == "here"
    agents = daemon.agent_pids()
    replace(program)
    again(daemon)
    late = daemon.insert(jq_type="puppet", jq_args="true")
    meeting.let_go()
    assert daemon.wait(pk)["jq_attempt"] == daemon.wait(late)["jq_attempt"] == 1
    assert daemon.agent_pids() == agents
    assert "drover new 0" in daemon.stderr()
    assert os.readlink(f"/proc/{before}/exe") == os.path.realpath(sys.executable)
    assert f"pid={before} group" in daemon.stderr().rpartition("drover new")[2]
    assert daemon.stop() == 0


def test_signals_during_the_exec_of_the_new_program_are_kept_r94(serve: Serve, program: Path) -> None:
    daemon = serve(reexec=True)
    replace(program)

    def went_on() -> bool:
        os.kill(daemon.pid, signal.SIGUSR1)  # unhandled it would be the end
        return GOES_ON in daemon.stderr()

    daemon.until(went_on, what="no other program goes on")
    replace(program, "")
    replace(program, "newer")
    again(daemon, times=2)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait_exit() == 0


def test_a_program_that_cannot_be_imported_replaces_nothing_r94(serve: Serve, program: Path) -> None:
    daemon = serve(reexec=True)
    whole = (program / "scheduler" / "drivers" / "os_calls.py").read_text()
    (program / "scheduler" / "drivers" / "os_calls.py").write_text("def half")
    daemon.until(lambda: "the new program cannot go on" in daemon.stderr(), what="it does not try it")
    assert daemon.wait(daemon.insert(jq_type="puppet", jq_args="true"))["jq_attempt"] == 1
    (program / "scheduler" / "drivers" / "os_calls.py").write_text(whole + "\n# whole again\n")
    again(daemon)
    assert daemon.stderr().count("SyntaxError") == daemon.stderr().count("the new program cannot go on") == 1
    assert daemon.stop() == 0


def test_upgrade_check_without_descriptors_is_repeated_later_r94(serve: Serve, program: Path) -> None:
    daemon = serve(reexec=True)
    limit = ["prlimit", "--pid", str(daemon.pid)]
    subprocess.run([*limit, "--nofile=3:1024"], check=True)
    replace(program)
    daemon.until(lambda: daemon.value(MEMORY) is None, what="it does not look")
    subprocess.run([*limit, "--nofile=1024:1024"], check=True)
    again(daemon)
    assert "drover new" in daemon.stderr()


def test_a_daemon_that_is_stopped_does_not_go_on_as_another_program_r94(
    serve: Serve, program: Path, meeting: Meeting
) -> None:
    daemon = serve(reexec=True)
    daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('here')}; {meeting.wait}")
    assert meeting.hear() == "here"
    replace(program)
    daemon.until(lambda: "the new program is tried" in daemon.stderr(), what="it does not see it")
    assert daemon.stop() == 0


def test_no_process_outlives_an_upgraded_daemon_r94(serve: Serve, program: Path, meeting: Meeting) -> None:
    daemon = serve(reexec=True)
    replace(program)
    again(daemon)
    daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('here')}; {meeting.wait}")
    assert meeting.hear() == "here"
    (agent,) = daemon.agent_pids()
    daemon.signal(signal.SIGKILL)
    daemon.wait_exit()
    assert not Path(f"/proc/{agent}").exists()


def test_a_new_version_takes_over_from_a_running_old_one(
    launch: Launch, serve: Serve, program: Path, meeting: Meeting
) -> None:
    old = launch(settings(lease=30) + LOCAL + puppet())
    pk = old.insert(jq_type="puppet", jq_args=f"{meeting.tell('here')}; {meeting.wait}")
    assert meeting.hear() == "here"
    replace(program)
    new = serve(wait=False, lease=30)
    new.until(lambda: "standing by" in new.stderr(), what="it does not stand by")
    old.insert(role="drover_operator", jq_type="command", jq_args="step-down")
    assert meeting.hear() == "here"
    meeting.let_go(2)
    row = new.wait(pk)
    assert (row["jq_attempt"], row["jq_interruptions"]) == (2, 0)
    assert "drover new" in new.stderr()
    assert SERVES in new.stderr()


def test_agents_whose_program_was_replaced_are_restarted_and_the_daemon_is_not_r95(
    serve: Serve, program: Path, own: Path
) -> None:
    daemon = serve()
    replace(program)
    for times in (1, 2):  # a daemon that followed its own program would have done so at the second look
        write(own, f"version {times}")
        pk = daemon.insert(jq_type="own", jq_args="x")
        daemon.wait(pk)
        assert f"version {times}" in daemon.log_text(pk)
        write(own, "other")
        daemon.until(
            lambda times=times: daemon.stderr().count("ST_FREEING reason='program") == times, what="it is kept"
        )
    assert "reexec" not in daemon.stderr()
    assert daemon.stop() == 0


def write(path: Path, what: str, first: str = "") -> None:
    """Replace the program of an agent by one that logs what it is."""
    new = path.with_suffix(".new")
    new.write_text(f"#!/bin/sh\necho OK; while read -r line; do {first}echo LOG {what}; echo OK; done\n")
    new.chmod(0o755)
    new.rename(path)


def test_a_busy_agent_whose_program_was_replaced_ends_after_its_item_r95(
    serve: Serve, own: Path, meeting: Meeting
) -> None:
    write(own, "old", f"{meeting.tell('here')}; {meeting.wait}; ")
    daemon = serve()
    first = daemon.insert(jq_type="own", jq_args="x")
    assert meeting.hear() == "here"
    write(own, "new")
    second = daemon.insert(jq_type="own", jq_args="x")
    daemon.until(lambda: "program of agent type own was replaced" in daemon.stderr(), what="nobody sees it")
    meeting.let_go()
    assert daemon.wait(first)["jq_attempt"] == daemon.wait(second)["jq_attempt"] == 1
    assert ("old" in daemon.log_text(first), "new" in daemon.log_text(second)) == (True, True)


def test_the_second_upgrade_can_be_handed_back_too_r94(
    serve: Serve, program: Path, meeting: Meeting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place := tmp_path / "run").mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(place))
    daemon = serve(reexec=True, status_interval=1.0)
    (first,) = place.iterdir()
    pk = daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('here')}; {meeting.wait}")
    assert meeting.hear() == "here"
    replace(program)
    again(daemon)
    daemon.until(lambda: [*place.iterdir()] not in ([], [first]), what="no copy of the new program is made")
    daemon.wait(command(daemon, "status"))  # it does nothing else while it copies
    change(program, "daemon/wiring.py", "    def turn(self) -> None:\n", "    def turn(self) -> None:\n        1 / 0\n")
    daemon.until(lambda: "the old one goes on" in daemon.stderr(), what="nothing is handed back")
    meeting.let_go()
    assert daemon.wait(pk)["jq_attempt"] == 1
    assert daemon.stop() == 0
    assert list(place.iterdir()) == []


def test_copy_of_a_killed_daemon_is_removed_by_the_next_r94(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place := tmp_path / "run").mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(place))
    daemon = serve(reexec=True)
    (left,) = place.iterdir()
    daemon.kill()
    assert left.exists()
    other = serve(reexec=True)
    (kept,) = place.iterdir()
    assert kept != left
    assert other.stop() == 0
    assert list(place.iterdir()) == []
