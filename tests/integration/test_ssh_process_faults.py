"""An SSH process that dies or hangs, and a daemon that ends with jobs on a host over SSH.

Whatever happens, every job ends and is done once; nothing is left running on the host.
"""

import os
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, await_lines, python, rec
from tests.integration.ssh_tools import (
    ALPHA,
    DEAF,
    OFTEN,
    assert_each_done_once,
    at_work,
    insert_at_gate,
    interruptions,
    numbered,
    reached,
    ssh_processes,
    table,
)
from tests.needs import need
from tests.ssh.net import Net
from tests.ssh.sshd import Server, below, kill, run, serving
from tests.ssh.test_remote_agents import all_gone

pytestmark = pytest.mark.slow


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def zombies(pid: int) -> list[int]:
    return [child for child in below(pid) if ") Z " in Path(f"/proc/{child}/stat").read_text()]


def test_ssh_process_that_dies_interrupts_all_running_jobs_once(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record), slots=4))
    pks = insert_at_gate(daemon, record, gate, 4)
    watched = [os.pidfd_open(pid) for pid in at_work(beta)]
    (ssh_process,) = ssh_processes(daemon)
    os.kill(ssh_process, SIGKILL)
    assert all_gone(watched)
    gate.touch()
    assert_each_done_once(daemon, pks, record)
    assert interruptions(daemon, pks) == [1] * 4


def test_starts_and_losses_leak_no_descriptors_or_processes(launch: Launch, tmp_path: Path, record: Path) -> None:
    """200 commands that come and go; then 20 agents, each alone on its connection, that are lost."""
    need("sshd")
    with serving(tmp_path / "beta", MaxSessions=1) as server:
        types = agent("rec", rec(record), slots=5) + agent("true", ["true"], kind="exec", slots=5)
        daemon = launch(table("beta", server) + types)
        reached(daemon)
        (ssh_process,) = ssh_processes(daemon)
        control, *_ = server.sessions()
        counts = []
        for number in range(5):
            gate = tmp_path / f"gate{number}"
            pks = daemon.insert_all([{"jq_type": "true", "jq_args": "x"} for _ in range(50)])
            daemon.wait_all(pks)
            pks = daemon.insert_all(numbered(5, f"gate:{gate}"))
            await_lines(daemon, record, 10 * number + 5)
            sockets = len(server.sessions()) + 1  # how many are made at once is not always the same
            counts.append((open_files(daemon.pid), open_files(ssh_process) - sockets))
            for pid in server.sessions():
                if pid != control:
                    kill(pid)
            await_lines(daemon, record, 10 * number + 10)
            gate.touch()
            assert_each_done_once(daemon, pks, record)
        assert max(counts[1:]) <= counts[0], counts
        assert zombies(daemon.pid) == []


def test_remote_jobs_of_a_killed_daemon_run_once_more_under_the_next(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    text = table("beta", beta) + agent("rec", rec(record), slots=3)
    daemon = launch(text)
    pks = insert_at_gate(daemon, record, gate, 3)
    watched = [os.pidfd_open(pid) for pid in at_work(beta)]
    daemon.kill()
    assert all_gone(watched)
    gate.touch()
    assert_each_done_once(launch(text), pks, record)
    assert [daemon.row(pk)["jq_attempt"] for pk in pks] == [2, 2, 2]


def beside_a_deaf_agent(launch: Launch, beta: Server, record: Path, gate: Path) -> tuple[Daemon, int, list[int]]:
    """Start a job at the gate beside an idle agent that ignores hang-ups; return both their pidfds too."""
    daemon = launch(table("beta", beta) + agent("rec", rec(record)) + agent("deaf", python(DEAF)))
    daemon.wait(daemon.insert(jq_type="deaf", jq_args="x"))
    (pk,) = insert_at_gate(daemon, record, gate, 1)
    return daemon, pk, [os.pidfd_open(pid) for pid in at_work(beta)]


def test_a_terminated_daemon_leaves_no_remote_process_and_gives_all_jobs_back(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon, pk, watched = beside_a_deaf_agent(launch, beta, record, gate)
    assert daemon.stop(SIGTERM) == 0
    assert all_gone(watched)
    assert (daemon.row(pk)["jq_state"], daemon.row(pk)["jq_interruptions"]) == ("queued", 0)


def test_an_interrupted_daemon_lets_remote_agents_finish(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon, pk, watched = beside_a_deaf_agent(launch, beta, record, gate)
    daemon.signal(SIGINT)
    daemon.until(lambda: "draining" in daemon.stderr())
    gate.touch()
    assert daemon.wait_exit() == 0
    assert all_gone(watched)
    assert daemon.row(pk)["jq_state"] == "done"


def test_hanging_ssh_process_is_noticed_by_its_pings(launch: Launch, beta: Server, record: Path, gate: Path) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record), slots=3), ssh=OFTEN)
    pks = insert_at_gate(daemon, record, gate, 3)
    (ssh_process,) = ssh_processes(daemon)
    os.kill(ssh_process, SIGSTOP)
    gate.touch()
    try:
        assert_each_done_once(daemon, pks, record)
    finally:
        kill(ssh_process, SIGCONT)


def test_a_stopping_daemon_gives_back_jobs_of_a_silent_host(
    launch: Launch, cable: tuple[Net, Server], record: Path, gate: Path
) -> None:
    net, server = cable
    daemon = launch(table("beta", server) + agent("rec", rec(record), slots=3))
    pks = insert_at_gate(daemon, record, gate, 3)
    net.cut()
    daemon.stop(SIGTERM)
    assert "database has not taken" not in daemon.stderr()
    assert [daemon.row(pk)["jq_state"] for pk in pks] == ["queued"] * 3


def test_start_of_the_ssh_process_without_descriptors_is_retried(launch: Launch, beta: Server, record: Path) -> None:
    daemon = launch(ALPHA + table("beta", beta) + agent("rec", rec(record)))
    reached(daemon)
    (ssh_process,) = ssh_processes(daemon)
    limit = ["prlimit", "--pid", str(daemon.pid)]
    run(*limit, "--nofile=3:1024")
    kill(ssh_process)
    daemon.until(lambda: "SSH process cannot be started" in daemon.stderr() or daemon.process.poll() is not None)
    assert daemon.process.poll() is None, daemon.stderr()[-3000:]
    run(*limit, "--nofile=1024:1024")
    reached(daemon, times=2)
