"""Faults of hosts over SSH and of the way to them, each under the real daemon, a real sshd and a real network.

Whatever happens: every job ends, is done once, and no attempt at a job reaches two agents.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from tests.integration.conftest import Launch
from tests.integration.daemon import Daemon, agent, lines, python, rec, records
from tests.integration.ssh_tools import at_work, table
from tests.integration.test_ssh_hosts import ALPHA, SOON, hosts, reached, said
from tests.needs import need
from tests.ssh.net import Net, cabled
from tests.ssh.sshd import Server, below, kill, run, serving
from tests.ssh.test_remote_agents import all_gone

DEAF = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("OK")
while True:
    if sys.stdin.readline():
        print("OK")
    else:
        signal.pause()
"""
OFTEN = {"ping_s": 1.0}  # the SSH process is asked whether it runs
SHORT_S = 3.0  # of silence: less than the lease of the control session, even if it began just before a heartbeat
SMALL = 'mount -t tmpfs -o size=64k tmpfs {} && exec "$@"'


@contextmanager
def wired(folder: Path, **options: object) -> Iterator[tuple[Net, Server]]:
    """Give a host at the end of a cable."""
    need("netns")
    need("sshd")
    with cabled() as net, serving(folder, address=net.address, inside=net.inside, port=2222, **options) as server:
        yield net, server


@pytest.fixture
def cable(tmp_path: Path) -> Iterator[tuple[Net, Server]]:
    with wired(tmp_path / "beta") as both:
        yield both


@pytest.fixture
def beta(tmp_path: Path) -> Iterator[Server]:
    need("sshd")
    with serving(tmp_path / "beta") as server:
        yield server


def forget_connections(net: Net) -> None:
    """Make the host forget all its connections; nobody is told, if its cable is cut."""
    run(*net.inside, "ss", "-K", "state", "established")


def command(daemon: Daemon, text: str) -> None:
    daemon.insert(jq_type="command", jq_args=text, role="drover_operator")


def ssh_processes(daemon: Daemon) -> list[int]:
    """Return the pids of the SSH processes."""
    return [pid for pid in daemon.agent_pids() if b"scheduler.ssh" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def numbered(count: int, act: str) -> list[dict[str, object]]:
    """Give rows of jobs whose lines differ."""
    return [{"jq_type": "rec", "jq_args": f"{act};{number}"} for number in range(count)]


def await_lines(daemon: Daemon, record: Path, count: int) -> None:
    """Wait until agents have been given so many lines in all."""
    daemon.until(lambda: len(lines(record)) == count, what=f"{count} lines are not given out")


def interruptions(daemon: Daemon, pks: list[int]) -> list[int]:
    return [daemon.row(pk)["jq_interruptions"] for pk in pks]


def assert_each_done_once(daemon: Daemon, pks: list[int], record: Path) -> None:
    """Every job is done, by one attempt; no more lines were given out for it than there were attempts."""
    daemon.wait_all(pks, timeout=60)
    given = Counter(lines(record))
    for pk in pks:
        outcomes = [each["att_outcome"] for each in daemon.attempts(pk)]
        assert outcomes.count("done") == 1, (pk, outcomes)
        assert 1 <= given[daemon.row(pk)["jq_args"]] <= len(outcomes), (pk, outcomes, given)


# ---- the network


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


def test_a_half_open_connection_is_closed_when_the_host_resets_it(
    launch: Launch, cable: tuple[Net, Server], record: Path, gate: Path
) -> None:
    net, server = cable
    daemon = launch(table("beta", server) + agent("rec", rec(record), slots=2))
    pks = daemon.insert_all(numbered(2, f"gate:{gate}"))
    await_lines(daemon, record, 2)
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
    row = daemon.wait(query, timeout=60)
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
    daemon.wait(bound, timeout=40)
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


# ---- the host


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
    pks = daemon.insert_all(numbered(3, f"gate:{gate}"))
    await_lines(daemon, record, 3)
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


def test_an_idle_agent_that_ignores_everything_is_reaped_f9(launch: Launch, beta: Server) -> None:
    daemon = launch("[scheduler]\nmax_idle = 0.5\n" + table("beta", beta) + agent("deaf", python(DEAF)))
    daemon.wait(daemon.insert(jq_type="deaf", jq_args="x"))
    pid = daemon.value("select max(att_pid) from drover.attempt")
    assert pid in at_work(beta)
    assert all_gone([os.pidfd_open(pid)])


# ---- SSH processes and daemons


def test_ssh_process_that_dies_interrupts_all_running_jobs_once(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record), slots=4))
    pks = daemon.insert_all(numbered(4, f"gate:{gate}"))
    await_lines(daemon, record, 4)
    watched = [os.pidfd_open(pid) for pid in at_work(beta)]
    (ssh_process,) = ssh_processes(daemon)
    os.kill(ssh_process, SIGKILL)
    assert all_gone(watched)
    gate.touch()
    assert_each_done_once(daemon, pks, record)
    assert interruptions(daemon, pks) == [1] * 4


@pytest.mark.slow
def test_hanging_ssh_process_delays_a_kill_by_its_ping_interval_only(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record), slots=3), ssh=OFTEN)
    killed, *others = daemon.insert_all(numbered(3, f"gate:{gate}"))
    await_lines(daemon, record, 3)
    (ssh_process,) = ssh_processes(daemon)
    os.kill(ssh_process, SIGSTOP)
    command(daemon, f"killjob {killed}")
    daemon.wait(killed, "failed", timeout=40)
    gate.touch()
    assert_each_done_once(daemon, others, record)
    assert interruptions(daemon, others) == [1, 1]


@pytest.mark.slow
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


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def zombies(pid: int) -> list[int]:
    return [child for child in below(pid) if ") Z " in Path(f"/proc/{child}/stat").read_text()]


def test_remote_jobs_of_a_killed_daemon_run_once_more_under_the_next(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    text = table("beta", beta) + agent("rec", rec(record), slots=3)
    daemon = launch(text)
    pks = daemon.insert_all(numbered(3, f"gate:{gate}"))
    await_lines(daemon, record, 3)
    watched = [os.pidfd_open(pid) for pid in at_work(beta)]
    daemon.kill()
    assert all_gone(watched)
    gate.touch()
    assert_each_done_once(launch(text), pks, record)
    assert [daemon.row(pk)["jq_attempt"] for pk in pks] == [2, 2, 2]


def test_a_terminated_daemon_leaves_no_remote_process_and_gives_all_jobs_back(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record)) + agent("deaf", python(DEAF)))
    (pk,) = daemon.insert_all(numbered(1, f"gate:{gate}"))
    daemon.wait(daemon.insert(jq_type="deaf", jq_args="x"))
    await_lines(daemon, record, 1)
    watched = [os.pidfd_open(pid) for pid in at_work(beta)]
    assert daemon.stop(SIGTERM) == 0
    assert all_gone(watched)
    assert (daemon.row(pk)["jq_state"], daemon.row(pk)["jq_interruptions"]) == ("queued", 0)


def test_an_interrupted_daemon_lets_remote_agents_finish(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record)) + agent("deaf", python(DEAF)))
    (pk,) = daemon.insert_all(numbered(1, f"gate:{gate}"))
    daemon.wait(daemon.insert(jq_type="deaf", jq_args="x"))
    await_lines(daemon, record, 1)
    watched = [os.pidfd_open(pid) for pid in at_work(beta)]
    daemon.signal(SIGINT)
    daemon.until(lambda: "draining" in daemon.stderr())
    gate.touch()
    assert daemon.wait_exit() == 0
    assert all_gone(watched)
    assert daemon.row(pk)["jq_state"] == "done"


# ---- orders


def test_a_reload_that_removes_a_host_lets_its_agents_finish(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    types = agent("rec", rec(record), slots=2)
    daemon = launch(ALPHA + "enabled = false\n" + table("beta", beta) + types)
    pks = daemon.insert_all(numbered(2, f"gate:{gate}"))
    await_lines(daemon, record, 2)
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
    pks = daemon.insert_all(numbered(count, f"gate:{gate}"))
    await_lines(daemon, record, count)
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


def test_a_host_without_slots_delays_no_other(launch: Launch, beta: Server, record: Path) -> None:
    daemon = launch(ALPHA + table("beta", beta) + agent("rec", rec(record), hosts=["alpha"]))
    reached(daemon)
    bound = daemon.insert(jq_type="rec", jq_args="far", jq_host="beta")
    daemon.wait_all(daemon.insert_all(numbered(5, "near")))
    assert daemon.row(bound)["jq_state"] == "queued"


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
    assert daemon.wait(pk, "failed")["jq_endtext"] == "killed"
    net.mend()
    daemon.wait(daemon.insert(jq_type="true", jq_args="x"))
    assert not record.exists()


def test_a_broken_connection_does_not_count_against_slots_while_another_is_refused(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    once = "[scheduler]\nrespawn_count = 0\n"  # a death that counts blocks its slot for minutes
    daemon = launch(once + table("beta", beta) + agent("rec", rec(record), slots=12))
    reached(daemon)
    pks = daemon.insert_all(numbered(9, f"gate:{gate}"))
    daemon.until(lambda: len(lines(record)) == 9)
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


def test_slots_beyond_the_session_limit_wait_while_no_other_connection_can_be_made(
    launch: Launch, beta: Server, record: Path, gate: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record), slots=12))
    reached(daemon)
    pks = daemon.insert_all(numbered(9, f"gate:{gate}"))
    daemon.until(lambda: len(lines(record)) == 9)
    kill(beta.process.pid)
    beta.process.wait()
    pks += daemon.insert_all(numbered(3, "more"))
    daemon.until(lambda: "no further connection" in daemon.stderr())
    beta.begin()
    daemon.until(lambda: len(lines(record)) == 12)
    gate.touch()
    assert_each_done_once(daemon, pks, record)


@pytest.mark.slow
def test_hanging_ssh_process_is_noticed_by_its_pings(launch: Launch, beta: Server, record: Path, gate: Path) -> None:
    daemon = launch(table("beta", beta) + agent("rec", rec(record), slots=3), ssh=OFTEN)
    pks = daemon.insert_all(numbered(3, f"gate:{gate}"))
    daemon.until(lambda: len(lines(record)) == 3)
    (ssh_process,) = ssh_processes(daemon)
    os.kill(ssh_process, SIGSTOP)
    gate.touch()
    try:
        assert_each_done_once(daemon, pks, record)
    finally:
        kill(ssh_process, SIGCONT)


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
def test_a_stopping_daemon_gives_back_jobs_of_a_silent_host(
    launch: Launch, cable: tuple[Net, Server], record: Path, gate: Path
) -> None:
    net, server = cable
    daemon = launch(table("beta", server) + agent("rec", rec(record), slots=3))
    pks = daemon.insert_all(numbered(3, f"gate:{gate}"))
    daemon.until(lambda: len(lines(record)) == 3)
    net.cut()
    daemon.stop(SIGTERM)
    assert "database has not taken" not in daemon.stderr()
    assert [daemon.row(pk)["jq_state"] for pk in pks] == ["queued"] * 3


@pytest.mark.slow
def test_a_slow_kill_without_grace_logs_a_bounded_number_of_lines(
    launch: Launch, cable: tuple[Net, Server], record: Path, gate: Path
) -> None:
    net, server = cable
    daemon = launch("[scheduler]\nkill_grace = 0\n" + table("beta", server) + agent("rec", rec(record)), ssh=SOON)
    (pk,) = daemon.insert_all(numbered(1, f"gate:{gate}"))
    daemon.until(lambda: len(lines(record)) == 1)
    net.cut()
    command(daemon, f"killjob {pk}")
    daemon.until(lambda: "reason='killed'" in daemon.stderr())
    (near,) = daemon.insert_all([{"jq_type": "command", "jq_args": "status"}], role="drover_operator")
    daemon.wait(near)
    daemon.wait(pk, "failed", timeout=40)
    assert daemon.stderr().count("ST_FREEING -> ST_FREEING") < 100


def test_a_missing_remote_command_fails_its_job_like_a_local_one(launch: Launch, beta: Server) -> None:
    daemon = launch(table("beta", beta) + agent("none", ["no-such-program"], kind="exec"))
    pk = daemon.insert(jq_type="none", jq_args="x")
    row = daemon.wait(pk, "failed")
    assert "not found" in row["jq_endtext"]
    assert interruptions(daemon, [pk]) == [0]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("slots", [9, 18])
def test_short_commands_need_no_more_connections_than_their_slots(launch: Launch, beta: Server, slots: int) -> None:
    daemon = launch(table("beta", beta) + agent("true", ["true"], kind="exec", slots=slots))
    reached(daemon)
    daemon.wait_all(daemon.insert_all([{"jq_type": "true", "jq_args": "x"} for _ in range(1000)]), timeout=60)
    assert beta.log().count("Accepted publickey") == slots // 9
