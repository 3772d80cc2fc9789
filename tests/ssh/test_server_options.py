"""Hosts whose sshd or login is set up in other ways are reached, or say which way that is."""

from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import Ended, LinkDown, LinkUp, Lost
from tests.needs import SFTP_SERVER, need
from tests.ssh.conftest import Join, Serve
from tests.ssh.sshd import Keys, Server

HARDENED = {
    "KexAlgorithms": "curve25519-sha256",
    "Ciphers": "aes256-gcm@openssh.com",
    "MACs": "hmac-sha2-512-etm@openssh.com",
    "HostKeyAlgorithms": "ssh-ed25519",
    "PubkeyAcceptedAlgorithms": "ssh-ed25519",
    "Compression": "no",
    "AllowTcpForwarding": "no",
    "AllowAgentForwarding": "no",
    "PermitTTY": "no",
    "X11Forwarding": "no",
}
RUNS_ALL = 'eval "$SSH_ORIGINAL_COMMAND"'


def serves_an_agent(server: Server, join: Join, **settings: object) -> None:
    host = join(server.settings(**settings))
    host.up()
    host.close_stdin()
    assert host.end() == Ended(0, code=0)


def why_down(server: Server, join: Join, **settings: object) -> str:
    down: LinkDown = join(server.settings(**settings)).await_report(LinkDown)
    return down.why


def test_an_sshd_with_modern_algorithms_only_is_reached(serve: Serve, join: Join) -> None:
    serves_an_agent(serve(**HARDENED), join)


@pytest.mark.slow
@pytest.mark.parametrize("mac", ["hmac-sha2-512-etm@openssh.com", "hmac-sha2-256-etm@openssh.com", "hmac-sha2-256"])
@pytest.mark.parametrize("cipher", ["aes256-ctr", "aes128-gcm@openssh.com"])
def test_an_sshd_with_one_cipher_and_mac_is_reached(serve: Serve, join: Join, cipher: str, mac: str) -> None:
    serves_an_agent(serve(Ciphers=cipher, MACs=mac), join)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"KexAlgorithms": "sntrup761x25519-sha512@openssh.com"}, "key exchange: it offers sntrup761x25519-sha512"),
        ({"Ciphers": "chacha20-poly1305@openssh.com"}, "cipher: it offers chacha20-poly1305@openssh.com;"),
        ({"Ciphers": "aes256-ctr", "MACs": "umac-128-etm@openssh.com"}, "MAC: it offers umac-128-etm@openssh.com;"),
    ],
)
def test_no_common_algorithm_is_told_with_what_each_side_offers(
    serve: Serve, join: Join, options: dict[str, str], kind: str
) -> None:
    why = why_down(serve(**options), join)
    assert f"no common {kind}" in why
    assert "; we know " in why
    assert f"sshd_config ({list(options)[-1]})" in why


def test_a_forced_command_that_runs_ours_is_passed_through(serve: Serve, join: Join) -> None:
    serves_an_agent(serve(ForceCommand=RUNS_ALL), join)


@pytest.mark.parametrize("where", ["sshd_config", "authorized_keys"])
def test_an_account_for_sftp_only_is_told_so(serve: Serve, join: Join, where: str) -> None:
    if where == "sshd_config":
        server = serve(ForceCommand="internal-sftp", Subsystem="sftp internal-sftp")
    else:
        server = serve(Subsystem="sftp internal-sftp")
        keys = server.folder / "authorized_keys"
        keys.write_text(f'restrict,command="internal-sftp" {keys.read_text()}')
    why = why_down(server, join)
    assert "it runs no commands for us: it printed 'This service allows sftp connections only.\\n' and ended" in why


@pytest.mark.slow
def test_an_account_whose_command_is_sftp_server_is_told_so(serve: Serve, join: Join) -> None:
    need("sftp-server")
    why = why_down(serve(ForceCommand=SFTP_SERVER), join, connect_s=1.0)
    assert "no answer within 1 s though it has logged us in" in why
    assert "or a ForceCommand, such as sftp-server" in why


@pytest.mark.slow
def test_a_host_that_probes_its_clients_keeps_an_idle_one(serve: Serve, join: Join) -> None:
    """sshd ends a connection after one second without an answer; the heartbeat comes later than that."""
    server = serve(ClientAliveInterval=1, ClientAliveCountMax=1)
    host = join(server.settings(beat_s=60.0, answer_s=200.0, lease_s=100))
    host.sh("sleep 6")
    assert host.end() == Ended(0, code=0)
    assert host.all(Lost) + host.all(LinkDown) == []


@pytest.mark.parametrize("size", [20, 20_000])
def test_a_banner_before_the_log_in_is_passed_over(serve: Serve, join: Join, tmp_path: Path, size: int) -> None:
    banner = tmp_path / "banner"
    banner.write_text("Keep out!\n" * (size // 10))
    serves_an_agent(serve(Banner=banner), join)


@pytest.mark.parametrize("address", ["[::1]:{port}", "::1"])
def test_a_host_is_reached_at_an_address_of_ipv6(serve: Serve, join: Join, tmp_path: Path, address: str) -> None:
    need("ipv6")
    server = serve(address="::1")
    config = tmp_path / "config"
    config.write_text(f"Port {server.port}\n")
    serves_an_agent(server, join, address=address.format(port=server.port), ssh_config=str(config))


@pytest.mark.parametrize("size", [100, 20_000, 1_000_000])
def test_what_a_login_script_prints_is_passed_over_up_to_a_megabyte(serve: Serve, join: Join, size: int) -> None:
    """Of control sessions and of agents: both begin with it."""
    server = serve()
    (server.folder / ".bashrc").write_text(f"yes Welcome | head -c {size}\n")
    serves_an_agent(server, join)


@pytest.mark.slow
def test_an_agent_whose_login_prints_without_end_brings_its_host_down(serve: Serve, join: Join) -> None:
    server = serve()
    host = join(server.settings())
    host.await_report(LinkUp)
    (server.folder / ".bashrc").write_text("exec yes Welcome\n")
    host.sh("echo up")
    down: LinkDown = host.await_report(LinkDown)
    assert "it printed 'Welcome\\nWelcome" in down.why
    assert "over 1024 KiB without the reply of our script" in down.why


def with_keys(server: Server, tmp_path: Path, count: int) -> dict[str, object]:
    """Return settings by which so many keys are offered, all of which the server takes."""
    keys = [Keys(tmp_path / f"key{number}") for number in range(count)]
    (server.folder / "authorized_keys").write_text("".join(f"{key.public}\n" for key in keys))
    config = tmp_path / "config"
    config.write_text("".join(f"IdentityFile {key.path}\n" for key in keys))
    return {"identity": "", "ssh_config": str(config)}


def test_a_server_that_wants_two_keys_gets_two(serve: Serve, join: Join, tmp_path: Path) -> None:
    server = serve(AuthenticationMethods="publickey,publickey")
    serves_an_agent(server, join, **with_keys(server, tmp_path, 2))


def test_a_server_that_wants_another_key_than_ours_says_so(serve: Serve, join: Join, tmp_path: Path) -> None:
    server = serve(AuthenticationMethods="publickey,publickey")
    why = why_down(server, join, **with_keys(server, tmp_path, 1))
    assert f"it accepts {tmp_path}/key0, but wants another key as well" in why


@pytest.mark.parametrize("text", ["", "hello\n"], ids=["empty", "no key"])
def test_a_key_file_that_is_of_no_use_keeps_no_other_key_back(
    serve: Serve, join: Join, tmp_path: Path, text: str
) -> None:
    server = serve()
    config, wrong = tmp_path / "config", tmp_path / "wrong"
    wrong.write_text(text)
    config.write_text(f"IdentityFile {wrong}\nIdentityFile {server.user_key.path}\n")
    serves_an_agent(server, join, identity="", ssh_config=str(config))
