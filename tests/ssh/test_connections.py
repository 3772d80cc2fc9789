"""Claims about connections: which hosts are trusted, with which keys we come, what is lost when something dies."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from scheduler.drivers.loop import Loop
from scheduler.drivers.ssh_protocol import Ended, LinkDown, LinkUp, Lost, NotStarted, Start, Started
from scheduler.drivers.ssh_supervisor import LONG_LIFE_S, SshProcess
from tests.agent_tools import is_gone, watch
from tests.loop_tools import turn_until
from tests.ssh.conftest import Join, Serve
from tests.ssh.host import Host
from tests.ssh.sshd import Keys, Server, free_port, kill, parent_of, run
from tests.ssh.test_remote_agents import STUBBORN, all_gone, connections, tree


def why_down(host: Host) -> str:
    down: LinkDown = host.await_report(LinkDown)
    return down.why


# ---------------------------------------------------------------- whom we trust


def test_unknown_host_key_is_refused_with_what_to_do_f8(server: Server, join: Join) -> None:
    server.known_hosts.write_text("")
    host = join(server.settings())
    host.sh("echo up")
    why = why_down(host)
    assert "its host key is unknown (ssh-ed25519 SHA256:" in why
    assert f"add it as [127.0.0.1]:{server.port} to {server.known_hosts}" in why
    assert host.end() == NotStarted(0, why, is_lost=True)
    assert connections(server) == 0


def test_a_changed_host_key_is_refused_f8(server: Server, join: Join, tmp_path: Path) -> None:
    server.trust(Keys(tmp_path / "other"))
    host = join(server.settings())
    assert "its host key HAS CHANGED" in why_down(host)
    assert connections(server) == 0


def test_a_revoked_host_key_is_refused_though_it_is_known(server: Server, join: Join) -> None:
    with server.known_hosts.open("a") as file:
        file.write(f"@revoked * {server.key.public}\n")
    assert "revoked" in why_down(join(server.settings()))


def test_certificate_authority_in_known_hosts_is_not_trusted(server: Server, join: Join) -> None:
    server.known_hosts.write_text(f"@cert-authority * {server.key.public}\n")
    assert "its host key is unknown" in why_down(join(server.settings()))


def test_one_of_several_known_keys_is_enough_hashed_or_not(server: Server, join: Join, tmp_path: Path) -> None:
    other = Keys(tmp_path / "other")
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {other.public}\n[127.0.0.?]:* {server.key.public}\n")
    run("ssh-keygen", "-q", "-H", "-f", str(server.known_hosts))
    assert join(server.settings()).await_report(LinkUp) == LinkUp()


@pytest.mark.slow
def test_a_key_type_that_is_known_is_asked_for(serve: Serve, join: Join, tmp_path: Path) -> None:
    rsa = Keys(tmp_path / "rsa", "rsa")
    ecdsa = Keys(tmp_path / "ecdsa", "ecdsa")
    server = serve(HostKey=f"{ecdsa.path}\nHostKey {rsa.path}")
    server.trust(rsa)
    assert join(server.settings()).await_report(LinkUp) == LinkUp()


# ---------------------------------------------------------------- who we are


def test_refused_key_is_reported_with_its_name_f8(server: Server, join: Join, tmp_path: Path) -> None:
    stranger = Keys(tmp_path / "stranger")
    why = why_down(join(server.settings(identity=str(stranger.path))))
    assert f"none of our keys is accepted ({stranger.path})" in why


def test_missing_key_file_is_reported(server: Server, join: Join) -> None:
    assert "the key file /no/such does not exist" in why_down(join(server.settings(identity="/no/such")))


def test_key_with_a_passphrase_is_reported(server: Server, join: Join, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked))
    assert "protected by a passphrase" in why_down(join(server.settings(identity=str(locked))))


def test_a_certificate_beside_the_key_is_used_to_log_in(serve: Serve, join: Join, tmp_path: Path) -> None:
    authority, key = Keys(tmp_path / "authority"), Keys(tmp_path / "key")
    run("ssh-keygen", "-q", "-s", str(authority.path), "-I", "drover", "-n", "root", f"{key.path}.pub")
    server = serve(TrustedUserCAKeys=f"{authority.path}.pub")
    assert join(server.settings(identity=str(key.path))).await_report(LinkUp) == LinkUp()


def test_keys_of_an_ssh_agent_are_used_to_log_in(
    server: Server, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None
        agent.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        run("ssh-add", "-q", str(server.user_key.path))
        assert join(server.settings(identity="agent")).await_report(LinkUp) == LinkUp()
    finally:
        agent.kill()
        agent.communicate()


# ---------------------------------------------------------------- where it is


def test_a_host_alias_of_openssh_is_followed(server: Server, join: Join, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"Host alp*\n  HostName 127.0.0.1\n  Port {server.port}\n  User root\n"
        f"  IdentityFile {server.user_key.path}\n  IdentitiesOnly yes\n  UserKnownHostsFile {server.known_hosts}\n"
    )
    host = join(server.settings(address="", user="", identity="", known_hosts="", ssh_config=str(config)))
    assert host.await_report(LinkUp) == LinkUp()


@pytest.mark.slow
def test_a_host_behind_two_jumps_transfers_megabytes(serve: Serve, join: Join, tmp_path: Path) -> None:
    servers = [serve() for _ in range(3)]
    names, config = ("one", "two", "alpha"), tmp_path / "config"
    jumps = ("none", "one", "two")
    config.write_text(
        "".join(
            f"Host {name}\n HostName 127.0.0.1\n Port {server.port}\n User root\n ProxyJump {jump}\n"
            f" IdentityFile {server.user_key.path}\n UserKnownHostsFile {server.known_hosts}\n"
            for name, server, jump in zip(names, servers, jumps, strict=True)
        )
    )
    host = join(servers[2].settings(address="", user="", identity="", known_hosts="", ssh_config=str(config)))
    host.start("sh", "-c", "head -c 3000000 /dev/zero; exec cat")
    host.until(lambda: len(host.said[0]) == 3_000_000)
    servers[0].kill()
    assert isinstance(host.end(), Lost)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [("ProxyCommand nc %h %p", "ProxyCommand of alpha cannot be followed"), ("ProxyJump alpha", "has no end")],
)
def test_unsupported_ssh_config_is_reported(
    server: Server, join: Join, tmp_path: Path, options: str, sentence: str
) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host alpha\n  {options}\n")
    assert sentence in why_down(join(server.settings(address="alpha", ssh_config=str(config))))


def test_unresolvable_name_is_reported(server: Server, join: Join) -> None:
    assert "its name cannot be resolved" in why_down(join(server.settings(address="no-such-host.invalid:22")))


def test_host_that_runs_no_commands_is_reported(serve: Serve, join: Join) -> None:
    why = why_down(join(serve(ForceCommand="echo go away").settings()))
    assert "it runs no commands for us" in why
    assert "go away" in why


@pytest.mark.slow
def test_each_attempt_is_reported_and_delayed_longer(join: Join, server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.listen(0)
        address = f"127.0.0.1:{free_port()}"
        host = join(server.settings(address=address, retry_base_s=0.05, retry_max_s=0.4))
        host.await_report(LinkDown, 5)
    downs = host.all(LinkDown)
    assert all("Connection refused" in down.why for down in downs)
    assert 0.025 <= downs[0].retry_s <= 0.05
    assert 0.2 <= downs[4].retry_s <= 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lived", "longest", "least", "most"), [("sleep 0.5", 0.4, 0.02, 0.04), ("exit 0", 20.0, 0.64, 20.0)]
)
def test_the_back_off_of_a_host_begins_anew_after_a_connection_that_lasted(
    server: Server, join: Join, lived: str, longest: float, least: float, most: float
) -> None:
    server.kill()
    host = join(server.settings(retry_base_s=0.04, retry_max_s=longest))
    host.await_report(LinkDown, 5)
    server.begin()
    host.await_report(LinkUp)
    begun = len(host.all(LinkDown))
    host.sh(lived)
    host.end()
    server.kill()
    assert least <= host.await_report(LinkDown, begun + 1).retry_s <= most


def test_start_on_a_host_that_is_down_is_refused_at_once_with_the_reason(server: Server, join: Join) -> None:
    host = join(server.settings(address=f"127.0.0.1:{free_port()}", retry_base_s=60.0, retry_max_s=60.0))
    why = why_down(host)
    host.sh("echo up")
    assert host.end() == NotStarted(0, why, is_lost=True)


# ---------------------------------------------------------------- what is lost


def test_killed_sshd_loses_its_agents_and_the_host_is_reached_again(server: Server, host: Host) -> None:
    watched = tree(host.up(script=STUBBORN))
    server.kill()
    assert host.end() == Lost(0, "the host closed the connection")
    host.await_report(LinkDown)
    assert all_gone(watched)
    server.begin()
    host.await_report(LinkUp, 2)
    host.up(1)


def test_lost_connection_loses_its_own_agents_only(host: Host) -> None:
    for id in range(12):
        host.up(id)
    kill(parent_of(host.pid(11)))
    host.until(lambda: len(host.all(Lost)) == 3)
    for id in range(9):
        host.close_stdin(id)
        assert host.end(id) == Ended(id, code=0)
    assert {report.id for report in host.all(Lost)} == {9, 10, 11}
    assert host.all(LinkDown) == []


def test_host_is_down_before_agents_are_lost_with_the_ssh_process(host: Host) -> None:
    """Else a start that is lost would be one that failed on a host that is up, which counts as a death."""
    host.up()
    host.sh("exec cat", id=1)
    kill(host.process.pid or 0)
    host.until(lambda: host.over(0) and host.over(1))
    order = [type(report).__name__ for report in host.reports]
    assert order.index("LinkDown") < order.index("Lost")


@pytest.mark.slow
def test_killed_ssh_process_loses_its_agents_and_another_is_started(host: Host) -> None:
    watched = tree(host.up(script=STUBBORN))
    kill(host.process.pid or 0)
    assert host.end() == Lost(0, "its SSH process died of SIGKILL")
    assert all_gone(watched)
    host.await_report(LinkUp, 2)
    host.up(1)


def test_back_off_of_the_ssh_process_doubles_until_one_has_lasted(server: Server) -> None:
    passed = [0.0]
    loop, downs = Loop(lambda: time.monotonic() + passed[0]), list[LinkDown]()
    process = SshProcess(
        loop,
        server.settings(retry_base_s=1.0, retry_max_s=60.0),
        lambda told: downs.extend([told] * isinstance(told, LinkDown)),
    )
    try:
        for lifetime_s in (0.0, 0.0, 0.0, LONG_LIFE_S, 0.0):
            turn_until(loop, lambda: process.pid)
            passed[0] += lifetime_s
            died = len(downs) + 1
            kill(process.pid or 0)
            turn_until(loop, lambda died=died: len(downs) == died)
            passed[0] += downs[-1].retry_s
        assert [down.retry_s for down in downs] == [1.0, 2.0, 4.0, 1.0, 2.0]
    finally:
        process.close()
        loop.close()


def test_start_is_refused_while_no_ssh_process_runs(server: Server, join: Join) -> None:
    host = join(server.settings(retry_base_s=60.0, retry_max_s=60.0))
    host.await_report(LinkUp)
    kill(host.process.pid or 0)
    host.await_report(LinkDown)
    host.sh("echo up")
    assert host.end() == NotStarted(0, "its SSH process is not running", is_lost=True)


def test_agents_and_ssh_process_die_with_their_supervisor_f9(server: Server) -> None:
    """Its ends of the pipes stay open in us: nothing but the socket tells."""
    read, write = os.pipe()
    supervisor = os.fork()
    if not supervisor:
        _supervise(server, write)
    os.close(write)
    *pids, process = map(int, os.read(read, 100).split())
    watched = [watch(pid) for pid in (*pids, process)]
    os.close(read)
    kill(supervisor)
    os.waitpid(supervisor, 0)
    assert all_gone(watched)


def _supervise(server: Server, write: int) -> None:
    host = Host(server.settings())
    pid = host.up(script=STUBBORN)
    os.write(write, b"%d %d" % (pid, host.process.pid or 0))
    signal.pause()


@pytest.mark.slow
def test_stopped_ssh_process_loses_its_agents_when_the_lease_ends(server: Server, join: Join) -> None:
    host = join(server.settings(lease_s=2, beat_s=0.5, answer_s=3.5))
    watched = tree(host.up(script=STUBBORN))
    kill(host.process.pid or 0, signal.SIGSTOP)
    try:
        assert all_gone(watched)
    finally:
        kill(host.process.pid or 0, signal.SIGCONT)
    assert isinstance(host.end(), Lost)


@pytest.mark.slow
def test_a_lease_that_is_renewed_lasts(server: Server, join: Join) -> None:
    host = join(server.settings(lease_s=6, beat_s=0.2, answer_s=8.0))
    host.up()
    host.sh("sleep 8", id=1)
    assert host.end(1) == Ended(1, code=0)
    assert host.all(Lost) == []


@pytest.mark.slow
def test_unused_connections_but_the_last_are_closed(server: Server, join: Join) -> None:
    host = join(server.settings(idle_s=0.2, beat_s=0.1))
    for id in range(12):
        host.up(id)
    assert connections(server) == 2
    for id in range(12):
        host.close_stdin(id)
        host.end(id)
    host.sh("sleep 2", id=20)
    host.end(20)
    host.until(lambda: len(server.sessions()) == 1)
    assert host.all(LinkDown) == []


@pytest.mark.slow
def test_a_connection_at_its_session_limit_is_replaced(server: Server, join: Join) -> None:
    host = join(server.settings(sessions=5, beat_s=0.1))
    host.up(script=STUBBORN)
    for id in range(1, 21):
        host.sh("exit 0", id=id)
        assert host.end(id) == Ended(id, code=0)
    host.until(lambda: len(server.sessions()) == 2)  # of the first agent, and of the last one
    assert connections(server) == 5
    assert host.all(LinkDown) == []
    host.process.signal(0, "KILL")
    host.end()
    host.until(lambda: len(server.sessions()) == 1)


def test_supervisor_does_not_block_on_an_ssh_process_that_does_not_read(server: Server) -> None:
    loop = Loop()
    reports: list[object] = []
    process = SshProcess(loop, server.settings(), reports.append)
    kill(process.pid or 0, signal.SIGSTOP)
    ends = [process.start(Start(id, (b"true", b"x" * 50_000))) for id in range(50)]
    kill(process.pid or 0, signal.SIGCONT)
    try:
        turn_until(loop, lambda: sum(isinstance(report, Ended) for report in reports) == 50)
        assert sum(isinstance(report, Started) for report in reports) == 50
    finally:
        process.close()
        for end in ends:
            for fd in end:
                os.close(fd)
        loop.close()
    assert process.pid is None


def test_closed_host_leaves_no_descriptor_open(server: Server) -> None:
    before = len(os.listdir("/proc/self/fd"))
    host = Host(server.settings())
    host.up()
    process = watch(host.process.pid or 0)
    host.close()
    assert is_gone(process)
    os.close(process)
    assert len(os.listdir("/proc/self/fd")) == before
