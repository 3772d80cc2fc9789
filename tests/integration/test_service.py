"""Claims about the daemon as a service: what it tells its manager, its log, and how it dies of a crash or hangs."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

import psycopg
import pytest

from scheduler.drivers.os_calls import identity
from tests.agent_tools import cmdline
from tests.builds import IS_COMPILED
from tests.cli_tools import Drover
from tests.integration.conftest import Launch
from tests.integration.daemon import RUN, Daemon
from tests.integration.puppets import LOCAL, Meeting, puppet, said, settings
from tests.needs import need
from tests.notify_tools import Ear
from tests.patience import PATIENCE_S

TEXT = LOCAL + puppet()
WITHIN = r'cli/run\.py", line \d+ in run' if IS_COMPILED else r'daemon/wiring\.py", line \d+ in turn'
# A daemon whose USR2 holds the loop up until something comes through a pipe: the one thing here that users cannot have.
STUCK = """
import os, sys
from signal import SIGUSR2
from scheduler.cli.main import main
from scheduler.daemon.wiring import Daemon

def wait_for_ever(): os.close(os.open({gate!r}, os.O_RDONLY))

obey = Daemon.signalled
Daemon.signalled = lambda self, number: wait_for_ever() if number == SIGUSR2 else obey(self, number)
sys.exit(main())
"""

Stuck = Callable[..., Daemon]


@pytest.fixture
def ear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    """Yield the manager of all daemons that a test starts."""
    with Ear(str(tmp_path / "notify")) as ear:
        monkeypatch.setenv("NOTIFY_SOCKET", ear.address)
        yield ear


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Return the file that a stuck daemon waits for."""
    os.mkfifo(tmp_path / "let-go")
    return tmp_path / "let-go"


@pytest.fixture
def stuck(launch: Launch, gate: Path) -> Stuck:
    """Start a daemon that can be made to hang, and make it hang."""
    program = [sys.executable, "-c", STUCK.format(gate=str(gate)), *RUN[3:]]

    def stuck(**timers: float) -> Daemon:
        daemon: Daemon = launch(settings(**timers) + TEXT, program=program)
        daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
        daemon.signal(signal.SIGUSR2)
        return daemon

    return stuck


def let_go(gate: Path) -> None:
    """End the hang."""
    os.close(os.open(gate, os.O_WRONLY))


# ---- what the manager hears


def test_ready_is_sent_when_a_daemon_serves_and_stopping_when_it_ends_r82_f165(ear: Ear, launch: Launch) -> None:
    daemon = launch(TEXT)
    told = ear.until("READY=1")
    assert f"MAINPID={daemon.pid}" in told
    daemon.stop()
    assert "STOPPING=1" in ear.until("STOPPING=1")
    assert ear.heard() == []


@pytest.mark.slow
def test_a_daemon_that_may_not_take_over_yet_is_not_ready_and_starts_nothing_r82_r83(
    ear: Ear, launch: Launch, database_with_roles: str
) -> None:
    with psycopg.connect(database_with_roles) as locker:
        locker.execute("lock table drover.scheduler_group in exclusive mode")
        daemon = launch(TEXT, wait=False)
        pk = daemon.insert(jq_type="puppet", jq_args=":")
        said(daemon, "lock timeout", 2)
        told = [line for lines in ear.heard() for line in lines]
        assert [line for line in told if line.startswith("READY")] == []
        assert (daemon.agent_pids(), daemon.row(pk)["jq_state"]) == ([], "queued")
    ear.until("READY=1")
    daemon.wait(pk)


def test_a_standby_sends_ready(ear: Ear, launch: Launch) -> None:
    launch(TEXT)
    ear.until("READY=1")
    standby = launch(TEXT, wait=False)
    told = ear.until("READY=1")
    assert f"MAINPID={standby.pid}" in told
    assert "STATUS=standing by, group default: 0 jobs in hand, 0 agents, 0 of them at work" in told


@pytest.mark.slow
def test_status_of_the_service_shows_jobs_and_agents(ear: Ear, launch: Launch, meeting: Meeting) -> None:
    daemon = launch(TEXT)
    daemon.insert(jq_type="puppet", jq_args=meeting.wait)
    ear.until("STATUS=serving, group default: 1 jobs in hand, 1 agents, 1 of them at work")
    daemon.signal(signal.SIGINT)
    ear.until("STATUS=draining, group default: 1 jobs in hand")
    meeting.let_go()
    ear.until("STOPPING=1")
    assert daemon.wait_exit() == 0


@pytest.mark.slow
def test_status_of_the_service_shows_a_database_outage(ear: Ear, launch: Launch) -> None:
    daemon = launch(TEXT)
    ear.until("READY=1")
    name = daemon.value("select current_database()")
    with psycopg.connect(daemon.database, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"alter database {name} with allow_connections false")
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'drover_scheduler'")
        ear.until("STATUS=serving, group default, the database is away")
        connection.execute(f"alter database {name} with allow_connections true")
    ear.until("STATUS=serving, group default: ")


@pytest.mark.slow
def test_an_idle_daemon_signals_the_watchdog_f165(ear: Ear, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "500000")
    launch(TEXT)
    ear.until("READY=1")
    assert [ear.until("WATCHDOG=1")[-1] for _ in range(5)] == ["WATCHDOG=1"] * 5


@pytest.mark.slow
def test_a_hanging_loop_stops_signalling_the_watchdog_until_it_goes_on_f165(
    ear: Ear, stuck: Stuck, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    daemon = stuck(hang_limit=1)
    said(daemon, "in wait_for_ever")  # a second has passed
    ear.heard()
    ear.assert_silent(1.0)
    let_go(gate)
    assert "WATCHDOG=1" in ear.until("WATCHDOG=1")
    assert daemon.stop() == 0


def test_agents_do_not_inherit_notify_socket(ear: Ear, launch: Launch, meeting: Meeting) -> None:
    daemon = launch(LOCAL + puppet(pass_env=["NOTIFY_SOCKET"]))
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=meeting.tell('"<${NOTIFY_SOCKET}>"')))
    assert meeting.hear() == "<>"


def test_a_reload_is_reported_to_the_manager_at_start_and_end(ear: Ear, launch: Launch) -> None:
    daemon = launch(TEXT)
    ear.until("READY=1")
    daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args="reload"))
    assert ear.until("READY=1").count("RELOADING=1") == 1


@pytest.mark.slow
def test_the_embedded_database_does_not_send_ready_to_the_manager(
    ear: Ear, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("postgres")
    monkeypatch.delenv("DROVER_DATABASE_URL", raising=False)
    config = tmp_path / "drover.toml"
    config.write_text(f'[database]\nurl = "embedded:{tmp_path / "pg"}"\n{TEXT}')
    with subprocess.Popen(
        [*RUN, "-c", str(config)], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL
    ) as process:
        told = ear.until("READY=1")
        postmaster = (tmp_path / "pg/data/postmaster.pid").read_text().splitlines()[0]
        variables = Path(f"/proc/{postmaster}/environ").read_bytes().split(b"\0")
        process.send_signal(SIGTERM)
        told += ear.until("STOPPING=1")
        process.wait(PATIENCE_S)
    assert told.count("READY=1") == 1
    assert [name for name in variables if name.startswith(b"NOTIFY_SOCKET")] == []


def test_the_ready_file_exists_while_the_daemon_serves_r82(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "ready"
    daemon = launch(settings(ready_file=str(path)) + TEXT)
    daemon.until(path.exists)
    assert path.read_text() == f"{daemon.pid}\n"
    daemon.stop()
    assert not path.exists()


# ---- crashes


@pytest.mark.parametrize("number", [SIGSEGV, SIGABRT, signal.SIGBUS, signal.SIGFPE])
def test_a_crash_logs_a_traceback_and_the_children_and_dies_of_the_signal_f58(
    launch: Launch, meeting: Meeting, number: signal.Signals
) -> None:
    daemon = launch(TEXT)
    job = daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('$$')}; exec sleep 1000")
    agent = int(meeting.hear())
    daemon.signal(number)
    assert daemon.process.wait(PATIENCE_S) == -number
    told = daemon.stderr()
    assert re.search(rf'Fatal Python error: .*\n(.*\n)+  File ".*/scheduler/{WITHIN}\n', told)
    assert in_hand(agent, job) in told.partition("Fatal Python error")[2]
    assert f"the daemon died of {number.name} and left children: 1\n" in told
    assert re.search(rf"^pid={agent} state=[A-Z] command=", told, re.MULTILINE)
    assert not Path(f"/proc/{agent}").exists()


def in_hand(pid: int, job: int) -> str:
    """Return the line of an agent behind the traceback of a crash."""
    return f"slot=0 ST_RUNNING agent=puppet host=local pid={pid} items=0 job={job}\n"


def test_a_daemon_without_a_guardian_logs_at_a_crash_which_agent_has_which_job_f58(
    launch: Launch, meeting: Meeting
) -> None:
    daemon = launch(TEXT, program=["sh", "-c", 'SYSTEMD_EXEC_PID=$$ exec "$@"', "sh", *RUN])
    job = daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('$$')}; exec sleep 1000")
    agent = int(meeting.hear())
    os.kill(daemon.process.pid, SIGSEGV)
    assert daemon.process.wait(PATIENCE_S) == -SIGSEGV
    _, _, told = daemon.stderr().partition("Fatal Python error")
    assert "jobs in hand: 1; slots: " in told
    assert in_hand(agent, job) in told
    os.killpg(agent, SIGKILL)


def test_a_killed_daemon_logs_no_table_of_children(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(TEXT)
    daemon.insert(jq_type="puppet", jq_args=f"{meeting.tell('up')}; exec sleep 1000")
    meeting.hear()
    assert daemon.stop(SIGKILL) == -SIGKILL
    assert "left children" not in daemon.stderr()


def test_process_names_in_the_table_of_children_are_escaped(launch: Launch, meeting: Meeting) -> None:
    daemon = launch(TEXT)
    daemon.insert(jq_type="puppet", jq_args=r"""exec sh -c 'sleep 1000; :' "$(printf '\033[2Jx\nERROR')" """)
    daemon.until(lambda: any(b"\x1b" in cmdline(pid) for pid in daemon.agent_pids()))
    daemon.signal(SIGSEGV)
    daemon.process.wait(PATIENCE_S)
    assert "\x1b" not in daemon.stderr()
    assert r"\x1b[2Jx\nERROR" in daemon.stderr()


# ---- hangs


@pytest.mark.slow
def test_a_hang_is_logged_while_it_lasts_and_when_it_is_over(stuck: Stuck, gate: Path) -> None:
    daemon = stuck(hang_limit=0.5)
    said(daemon, "in wait_for_ever")
    it_is_over = re.compile(r"ERROR the loop was held up for \d+\.\d s in .*\bwait_for_ever \(")
    assert it_is_over.search(daemon.stderr()) is None
    let_go(gate)
    daemon.until(lambda: it_is_over.search(daemon.stderr()), what="it does not say that the hang is over")
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))


@pytest.mark.slow
def test_a_hang_is_counted_even_if_logging_of_hangs_is_off(stuck: Stuck, gate: Path) -> None:
    daemon = stuck(hang_limit=0)
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(0.5)
    let_go(gate)
    daemon.until(lambda: (vital(daemon, "slow_turns") or 0) > 0)
    assert "wait_for_ever" not in daemon.stderr()


@pytest.mark.slow
def test_status_shows_slow_turns(stuck: Stuck, gate: Path, drover: Drover, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = stuck(hang_limit=0.5)
    said(daemon, "in wait_for_ever")
    let_go(gate)
    daemon.until(lambda: (vital(daemon, "longest_turn_ms") or 0) > 400)  # others may be slow, too
    monkeypatch.setenv("DROVER_DATABASE_URL", daemon.database)
    (shown,) = json.loads(drover("status", "--json").out)["schedulers"]
    assert shown["slow_turns"] > 0
    assert shown["longest_turn_ms"] > 400


def test_status_shows_the_memory_of_the_daemon_j80(
    launch: Launch, drover: Drover, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = launch(LOCAL + puppet())
    monkeypatch.setenv("DROVER_DATABASE_URL", daemon.database)
    shown = daemon.until(lambda: json.loads(drover("status", "--json").out)["schedulers"][0]["memory_mb"])
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1])
    assert abs(shown - pages * os.sysconf("SC_PAGESIZE") / 2**20) < 10


@pytest.mark.slow
def test_a_daemon_out_of_descriptors_goes_on_without_showing_its_memory_j80(launch: Launch) -> None:
    daemon = launch(LOCAL + puppet())
    daemon.until(lambda: vital(daemon, "memory_mb"))
    limit = ["prlimit", "--pid", str(daemon.pid)]
    subprocess.run([*limit, "--nofile=3:1024"], check=True)
    daemon.until(lambda: vital(daemon, "memory_mb") is None)
    subprocess.run([*limit, "--nofile=1024:1024"], check=True)
    assert daemon.until(lambda: vital(daemon, "memory_mb")) > 1
    assert daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))["jq_interruptions"] == 0


def vital(daemon: Daemon, name: str) -> Any:
    """Return what the daemon shows of itself; None before it shows it."""
    query = "select max((status_parameter::jsonb ->> %s)::float8) from drover.scheduler_status where status_slot = -1"
    return daemon.value(query, name)


# ---- the log


def test_a_daemon_goes_on_when_its_log_is_full_and_says_what_was_lost(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    daemon = launch(settings(log_file=str(path)) + TEXT, wait=False)
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    assert daemon.stderr() == ""


def test_with_json_logging_every_line_is_json(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "log"
    daemon = launch(settings(log_file=str(path), log_format="json") + TEXT, wait=False)
    pk = daemon.insert(jq_type="puppet", jq_args="echo hello; echo oops >&2")
    daemon.wait(pk)
    daemon.signal(signal.SIGHUP)
    daemon.until(lambda: "jobs in hand" in path.read_text())
    daemon.stop()
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert {"time", "message"} <= set.intersection(*(set(line) for line in told))
    assert any(line.get("agent") == "puppet" for line in told)
    assert any(line["message"].endswith("hello") for line in told)
    assert daemon.stderr() == ""


def test_a_crash_is_written_to_the_log_file(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "log"
    daemon = launch(settings(log_file=str(path)) + TEXT, wait=False)
    daemon.until(lambda: path.exists() and "serving group" in path.read_text())
    daemon.signal(SIGABRT)
    daemon.process.wait(PATIENCE_S)
    assert "Fatal Python error: Aborted" in path.read_text()
    assert "the daemon died of SIGABRT" in daemon.stderr()


def test_a_log_that_cannot_be_written_is_an_error_at_start_up_j106(launch: Launch) -> None:
    daemon = launch(settings(log_file="/nonexistent/log") + TEXT, wait=False)
    assert daemon.wait_exit() == 2
    assert daemon.stderr() == "scheduler.log_file: /nonexistent/log cannot be written: No such file or directory\n"


def test_a_rotated_log_is_reopened_by_the_command_f147_j107(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "log"
    daemon = launch(settings(log_file=str(path)) + TEXT, wait=False)
    daemon.until(lambda: path.exists() and "serving group" in path.read_text())
    old = path.rename(tmp_path / "log.1")
    row = daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args="reopen-log"))
    pid = daemon.pid
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    assert f"the log is {path}" in json.dumps(row["jq_result"])
    assert ("ST_PREP" in path.read_text(), "ST_PREP" in old.read_text(), daemon.pid) == (True, False, pid)


def test_a_log_that_cannot_be_reopened_fails_the_command_f147(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "log"
    daemon = launch(settings(log_file=str(path)) + TEXT, wait=False)
    daemon.until(lambda: path.exists() and "serving group" in path.read_text())
    old = path.rename(tmp_path / "log.1")
    path.mkdir()
    row = daemon.wait(daemon.insert(role="drover_operator", jq_type="command", jq_args="reopen-log"), "failed")
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    assert "cannot be written: Is a directory" in row["jq_endtext"]
    assert "ST_PREP" in old.read_text()


def test_trace_logs_every_command_to_a_driver_j105(launch: Launch) -> None:
    daemon = launch(settings(log_level="trace") + TEXT)
    daemon.wait(daemon.insert(jq_type="puppet", jq_args=":"))
    assert " TRACE Spawn(" in said(daemon, "TRACE Spawn(")


# ---- the number of this boot


def test_the_boot_id_of_systemd_is_used_if_the_kernel_hides_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = identity().boot_id
    monkeypatch.setattr("scheduler.drivers.os_calls.BOOT_ID", Path("/nonexistent"))
    monkeypatch.setenv("DROVER_BOOT_ID", told.replace("-", ""))
    assert identity().boot_id == told


@pytest.mark.parametrize("told", ["", "nonsense"])
def test_an_invalid_boot_id_is_ignored(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setattr("scheduler.drivers.os_calls.BOOT_ID", Path("/nonexistent"))
    monkeypatch.setenv("DROVER_BOOT_ID", told)
    assert identity().boot_id == ""


def test_sigterm_stops_the_daemon_which_notifies_the_manager_first(ear: Ear, launch: Launch) -> None:
    daemon = launch(TEXT)
    ear.until("READY=1")
    daemon.process.send_signal(SIGTERM)
    assert "STATUS=stopping, group default: 0 jobs in hand, 0 agents, 0 of them at work" in ear.until("STOPPING=1")
    assert daemon.wait_exit() == 0
