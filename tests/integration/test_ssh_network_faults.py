"""A network, a host or a connection over SSH that fails: real cables and a real sshd under the real daemon.

Whatever happens, every job ends and is done once, and no attempt at a job reaches two agents.
"""

import os
import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import agent, await_lines, lines, python, rec, records
from tests.integration.ssh_tools import (
    ALPHA,
    DEAF,
    SOON,
    assert_each_done_once,
    at_work,
    forget_connections,
    hosts,
    insert_at_gate,
    interruptions,
    numbered,
    reached,
    said,
    ssh_processes,
    table,
    wired,
)
from tests.needs import need
from tests.patience import LONG_PATIENCE_S
from tests.ssh.net import Net
from tests.ssh.sshd import Server, kill, run, serving
from tests.ssh.test_remote_agents import all_gone

SHORT_S = 3.0  # of silence: less than the lease of the control session, even if it began just before a heartbeat
SMALL = 'mount -t tmpfs -o size=64k tmpfs {} && exec "$@"'


@pytest.mark.slow
def test_a_short_network_silence_interrupts_no_job(
    launch: Launch, cable: tuple[Net, Server], record: Path, gate: Path
) -> None:
    net, server = cable
    daemon = launch(table("beta", server) + agent("rec", rec(record), slots=2))
    pks = daemon.insert_all([*numbered(1, f"gate:{gate}"), *numbered(5, "nap:0.2")])
    daemon.until(lambda: "nap:0.2;0" in lines(record))
    net.cut()
    time.sleep(SHORT_S)
    net.mend()
    gate.touch()
    assert_each_done_once(daemon, pks, record)
    assert interruptions(daemon, pks) == [0] * 6


@pytest.mark.slow
def test_a_half_open_connection_is_closed_when_the_host_resets_it(
    launch: Launch, cable: tuple[Net, Server], record: Path, gate: Path
) -> None:
    net, server = cable
    daemon = launch(table("beta", server) + agent("rec", rec(record), slots=2))
    pks = insert_at_gate(daemon, record, gate, 2)
    net.cut()
    forget_connections(net)
    net.mend()
    gate.touch()
    assert_each_done_once(daemon, pks, record)
    assert interruptions(daemon, pks) == [1, 1]


@pytest.mark.slow
def test_a_slow_network_loses_no_job(launch: Launch, cable: tuple[Net, Server], record: Path) -> None:
    net, server = cable
    daemon = launch(table("beta", server) + agent("rec", rec(record), slots=3))
    reached(daemon)
    for words in ((), net.inside):
        device = net.theirs if words else net.ours
        run(
            *words,
            "tc",
            "qdisc",
            "add",
            "dev",
            device,
            "root",
            "tbf",
            "rate",
            "256kbit",
            "burst",
            "4kb",
            "latency",
            "1s",
        )
    sql = "select n as k, repeat('x', 200) as pad from generate_series(1, 200) n"
    query = daemon.insert(jq_type="rec", jq_args=sql, jq_msq=True, jq_key="k")
    pks = daemon.insert_all(numbered(100, "nothing"))
    assert_each_done_once(daemon, pks, record)
    row = daemon.wait(query, timeout=LONG_PATIENCE_S)
    assert (row["jq_itemsprocessed"], row["jq_interruptions"]) == (200, 0)
    assert hosts(record) == {"beta": 300}


@pytest.mark.slow
def test_an_address_that_drops_packets_is_down_and_delays_no_other_f10(
    launch: Launch, cable: tuple[Net, Server], record: Path
) -> None:
    net, server = cable
    mac = run("ip", "-n", net.name, "-br", "link", "show", "dev", net.theirs).split()[2]
    run("ip", "neighbour", "replace", net.address, "lladdr", mac, "dev", net.ours, "nud", "permanent")
    net.cut()
    daemon = launch(ALPHA + table("beta", server) + agent("rec", rec(record)), ssh=SOON)
    bound = daemon.insert(jq_type="rec", jq_args="far", jq_host="beta")
    daemon.wait_all(daemon.insert_all(numbered(5, "near")))
    daemon.until(lambda: "no answer within 2 s" in daemon.why(bound), what="why does not say so")
    net.mend()
    daemon.wait(bound, timeout=LONG_PATIENCE_S)
    assert hosts(record) == {"alpha": 5, "beta": 1}


def test_a_name_that_cannot_be_resolved_is_reported(launch: Launch, beta: Server, record: Path) -> None:
    text = table("beta", beta).replace(f"{beta.address}:{beta.port}", "no-such-host.invalid")
    daemon = launch(ALPHA + text + agent("rec", rec(record)))
    bound = daemon.insert(jq_type="rec", jq_args="far", jq_host="beta")
    daemon.wait(daemon.insert(jq_type="rec", jq_args="near"))
    daemon.until(lambda: re.search("host beta is down: .*cannot be resolved", daemon.why(bound)))
    assert lines(record) == ["near"]


@pytest.mark.slow
def test_a_host_cut_off_from_the_network_delays_no_other_f10_c56(launch: Launch, tmp_path: Path, record: Path) -> None:
    with ExitStack() as stack:
        wires = {name: stack.enter_context(wired(tmp_path / name)) for name in ("beta", "gamma", "delta")}
        tables = "".join(table(name, server) for name, (_, server) in wires.items())
        daemon = launch(tables + agent("rec", rec(record), slots=3), ssh=SOON)
        for name in wires:
            reached(daemon, name)
        pks = daemon.insert_all(numbered(600, "nap:0.05"))
        daemon.until(lambda: len(lines(record)) > 100)
        wires["beta"][0].cut()
        cut = time.monotonic()
        assert_each_done_once(daemon, pks, record)
    notes = [note for note in records(record) if note["event"] == "line"]
    begun = min(note["time"] for note in notes)
    for name in ("gamma", "delta"):
        times = [note["time"] for note in notes if note["host"] == name]
        before = sum(at < cut for at in times) / (cut - begun)
        after = sum(cut < at < cut + 2 for at in times) / 2
        assert after > before / 2, (name, before, after)
    assert sum(interruptions(daemon, pks)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [1, 2])
def test_more_slots_than_ssh_sessions_all_work(
    launch: Launch, tmp_path: Path, record: Path, gate: Path, sessions: int
) -> None:
    need("sshd")
    with serving(tmp_path / "beta", MaxSessions=sessions) as server:
        daemon = launch(table("beta", server) + agent("rec", rec(record), slots=6))
        pks = daemon.insert_all(numbered(12, f"gate:{gate}"))
        await_lines(daemon, record, 6)
        gate.touch()
        assert_each_done_once(daemon, pks, record)
        assert interruptions(daemon, pks) == [0] * 12
        assert server.log().count("Accepted publickey") <= 14  # some are made before it is known how much one holds
        told = [line for line in daemon.stderr().splitlines() if "host beta" in line]
        assert len(told) <= 3, told


@pytest.mark.slow
def test_an_agents_error_about_a_full_disk_is_reported(launch: Launch, tmp_path: Path) -> None:
    need("sshd")
    need("mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    inside = ["unshare", "--mount", "sh", "-c", SMALL.format(disk), "sh"]
    with serving(tmp_path / "beta", inside=inside) as server:
        words = ["sh", "-c", f"head -c 1000000 /dev/zero > {disk}/file"]
        daemon = launch(table("beta", server) + agent("write", words, kind="exec"))
        pk = daemon.insert(jq_type="write", jq_args="x")
        row = daemon.wait(pk, "failed")
        assert row["jq_exitcode"] == 1
        assert "No space left on device" in said(daemon, pk, "err")


@pytest.mark.slow
def test_jobs_of_a_host_after_a_power_cut_run_when_it_is_back_r2_r58(
    launch: Launch, cable: tuple[Net, Server], record: Path, gate: Path
) -> None:
    net, server = cable
    daemon = launch(table("beta", server) + agent("rec", rec(record), slots=3))
    pks = insert_at_gate(daemon, record, gate, 3)
    net.cut()
    for pid in run("ip", "netns", "pids", net.name).split():
        kill(int(pid))
    server.process.wait()
    forget_connections(net)
    net.mend()
    server.begin()
    gate.touch()
    assert_each_done_once(daemon, pks, record)
    assert interruptions(daemon, pks) == [1, 1, 1]


@pytest.mark.slow
def test_an_idle_agent_that_ignores_everything_is_reaped_f9(launch: Launch, beta: Server) -> None:
    daemon = launch("[scheduler]\nmax_idle = 4\n" + table("beta", beta) + agent("deaf", python(DEAF)))
    daemon.wait(daemon.insert(jq_type="deaf", jq_args="x"))
    pid = daemon.value("select max(att_pid) from drover.attempt")
    assert pid in at_work(beta)
    assert all_gone([os.pidfd_open(pid)])


@pytest.mark.slow
def test_a_host_without_slots_delays_no_other(launch: Launch, beta: Server, record: Path) -> None:
    daemon = launch(ALPHA + table("beta", beta) + agent("rec", rec(record), hosts=["alpha"]))
    reached(daemon)
    bound = daemon.insert(jq_type="rec", jq_args="far", jq_host="beta")
    daemon.wait_all(daemon.insert_all(numbered(5, "near")))
    assert daemon.row(bound)["jq_state"] == "queued"


@pytest.mark.slow
def test_a_broken_connection_does_not_count_against_slots_while_another_is_refused(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    once = "[scheduler]\nrespawn_count = 0\n"  # a death that counts blocks its slot for minutes
    daemon = launch(once + table("beta", beta) + agent("rec", rec(record), slots=12))
    reached(daemon)
    pks = insert_at_gate(daemon, record, gate, 9)
    sessions = beta.sessions()
    kill(beta.process.pid)  # who listens; the connections live on
    beta.process.wait()
    pks += daemon.insert_all(numbered(3, "more"))
    daemon.until(lambda: "no further connection" in daemon.stderr())
    for pid in sessions:
        kill(pid)
    daemon.until(lambda: "host beta cannot be reached" in daemon.stderr())
    beta.begin()
    gate.touch()
    assert_each_done_once(daemon, pks, record)
    assert "ST_FAIL" not in daemon.stderr()


@pytest.mark.slow
def test_slots_beyond_the_session_limit_wait_while_no_other_connection_can_be_made(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record), slots=12))
    reached(daemon)
    pks = insert_at_gate(daemon, record, gate, 9)
    kill(beta.process.pid)
    beta.process.wait()
    pks += daemon.insert_all(numbered(3, "more"))
    daemon.until(lambda: "no further connection" in daemon.stderr())
    beta.begin()
    daemon.until(lambda: len(lines(record)) == 12)
    gate.touch()
    assert_each_done_once(daemon, pks, record)


@pytest.mark.slow
def test_an_item_of_a_query_is_not_failed_by_hosts_that_are_lost(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record)))
    sql = f"select 1 as k, 'gate:{gate}' as act"
    pk = daemon.insert(jq_type="rec", jq_args=sql, jq_msq=True, jq_key="k")
    for times in (1, 2):
        daemon.until(lambda times=times: len(lines(record)) == times)
        (ssh_process,) = ssh_processes(daemon)
        kill(ssh_process)
        reached(daemon, times=times + 1)
    gate.touch()
    row = daemon.wait(pk)
    assert (row["jq_itemsprocessed"], row["jq_itemsfailed"]) == (1, 0)


@pytest.mark.slow
def test_a_missing_remote_command_fails_its_job_like_a_local_one(launch: Launch, beta: Server) -> None:
    daemon = launch(table("beta", beta) + agent("none", ["no-such-program"], kind="exec"))
    pk = daemon.insert(jq_type="none", jq_args="x")
    row = daemon.wait(pk, "failed")
    assert "not found" in row["jq_endtext"]
    assert interruptions(daemon, [pk]) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("slots", [9, 18])
def test_short_commands_need_no_more_connections_than_their_slots(launch: Launch, beta: Server, slots: int) -> None:
    daemon = launch(table("beta", beta) + agent("true", ["true"], kind="exec", slots=slots))
    reached(daemon)
    daemon.wait_all(
        daemon.insert_all([{"jq_type": "true", "jq_args": "x"} for _ in range(1000)]), timeout=LONG_PATIENCE_S
    )
    assert beta.log().count("Accepted publickey") == slots // 9
