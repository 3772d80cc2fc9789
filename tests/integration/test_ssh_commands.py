"""Commands about a host over SSH, or a job there, while the host is slow, silent or down.

An operator removes or disables the host, or kills the job.
"""

import os
from pathlib import Path
from signal import SIGSTOP

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import agent, lines, rec
from tests.integration.ssh_tools import (
    ALPHA,
    OFTEN,
    SOON,
    assert_each_done_once,
    at_work,
    command,
    hosts,
    insert_at_gate,
    interruptions,
    numbered,
    reached,
    ssh_processes,
    table,
)
from tests.patience import LONG_PATIENCE_S
from tests.ssh.net import Net
from tests.ssh.sshd import Server, below
from tests.ssh.test_remote_agents import all_gone


@pytest.mark.slow
def test_hanging_ssh_process_delays_a_kill_by_its_ping_interval_only(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record), slots=3), ssh=OFTEN)
    killed, *others = insert_at_gate(daemon, record, gate, 3)
    (ssh_process,) = ssh_processes(daemon)
    os.kill(ssh_process, SIGSTOP)
    command(daemon, f"killjob {killed}")
    daemon.wait(killed, "failed", timeout=LONG_PATIENCE_S)
    gate.touch()
    assert_each_done_once(daemon, others, record)
    assert interruptions(daemon, others) == [1, 1]


@pytest.mark.slow
def test_a_reload_that_removes_a_host_lets_its_agents_finish(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    types = agent("rec", rec(record), slots=2)
    daemon = launch(ALPHA + "enabled = false\n" + table("beta", beta) + types)
    pks = insert_at_gate(daemon, record, gate, 2)
    (daemon.folder / "conf.d" / "test.toml").write_text(ALPHA + types)
    command(daemon, "reload")
    (near,) = daemon.insert_all(numbered(1, "near"))
    daemon.wait(near)
    gate.touch()
    assert_each_done_once(daemon, pks, record)
    assert hosts(record) == {"beta": 2, "alpha": 1}
    daemon.until(lambda: not below(beta.process.pid) and not ssh_processes(daemon), what="something is left")


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 2], ids=["idle", "at work"])
def test_hanging_ssh_process_of_a_removed_host_is_killed(
    launch: Launch, beta: Server, record: Path, gate: Path, count: int
) -> None:
    types = agent("rec", rec(record), slots=2)
    daemon = launch(ALPHA + "enabled = false\n" + table("beta", beta) + types, ssh=OFTEN)
    reached(daemon)
    pks = insert_at_gate(daemon, record, gate, count)
    (ssh_process,) = ssh_processes(daemon)
    watched = [os.pidfd_open(ssh_process), *map(os.pidfd_open, at_work(beta))]
    os.kill(ssh_process, SIGSTOP)
    (daemon.folder / "conf.d" / "test.toml").write_text(ALPHA + types)
    command(daemon, "reload")
    assert all_gone(watched, within_s=40)
    gate.touch()
    assert_each_done_once(daemon, pks, record)
    assert interruptions(daemon, pks) == [1] * count
    assert ssh_processes(daemon) == []


@pytest.mark.slow
def test_a_host_is_disabled_and_enabled_while_it_is_down(launch: Launch, beta: Server, record: Path) -> None:
    beta.kill()
    daemon = launch(table("beta", beta) + agent("rec", rec(record)))
    pk = daemon.insert(jq_type="rec", jq_args="x", jq_host="beta")
    daemon.until(lambda: "host beta is down" in daemon.why(pk))
    command(daemon, "host-disable beta")
    daemon.until(lambda: daemon.why(pk) == "host beta is disabled")
    beta.begin()
    reached(daemon)
    assert lines(record) == []
    command(daemon, "host-enable beta")
    daemon.wait(pk)


@pytest.mark.slow
def test_a_job_is_killed_while_its_remote_start_is_in_flight(
    launch: Launch, cable: tuple[Net, Server], record: Path
) -> None:
    net, server = cable
    commands = agent("touch", ["touch", str(record)], kind="exec") + agent("true", ["true"], kind="exec")
    daemon = launch(table("beta", server) + commands)
    reached(daemon)
    net.cut()
    pk = daemon.insert(jq_type="touch", jq_args="x")
    daemon.until(lambda: "ST_FREE -> ST_PREP slot=0" in daemon.stderr())
    command(daemon, f"killjob {pk}")
    assert daemon.wait(pk, "failed")["jq_endtext"] == "killed by command of drover_operator"
    net.mend()
    daemon.wait(daemon.insert(jq_type="true", jq_args="x"))
    assert not record.exists()


@pytest.mark.slow
def test_a_slow_kill_without_grace_logs_a_bounded_number_of_lines(
    launch: Launch, cable: tuple[Net, Server], record: Path, gate: Path
) -> None:
    net, server = cable
    daemon = launch("[scheduler]\nkill_grace = 0\n" + table("beta", server) + agent("rec", rec(record)), ssh=SOON)
    (pk,) = insert_at_gate(daemon, record, gate, 1)
    net.cut()
    command(daemon, f"killjob {pk}")
    daemon.until(lambda: "reason='killed by command of drover_operator'" in daemon.stderr())
    (near,) = daemon.insert_all([{"jq_type": "command", "jq_args": "status"}], role="drover_operator")
    daemon.wait(near)
    daemon.wait(pk, "failed", timeout=LONG_PATIENCE_S)
    assert daemon.stderr().count("ST_FREEING -> ST_FREEING") < 100
