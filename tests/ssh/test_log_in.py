"""Claims about keys: which ones a host is offered, in the order of ssh(1), and what is said if it takes none."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import LinkDown, LinkUp, Note
from tests.ssh.conftest import Join, Serve
from tests.ssh.host import Host
from tests.ssh.sshd import Keys, Server, run

BY_CONFIG = {"address": "alpha", "user": "", "identity": "", "known_hosts": ""}  # all of it is in ssh_config

Agent = Callable[..., str]
Configured = Callable[..., Host]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Start an SSH agent that holds these keys, and return its socket."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*keys: Path) -> str:
        path = str(tmp_path / f"agent{len(processes)}")
        process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        for key in keys:
            subprocess.run(
                ["ssh-add", "-q", str(key)], check=True, env={"SSH_AUTH_SOCK": path, "PATH": "/usr/bin:/bin"}
            )
        return path

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def configured(join: Join, tmp_path: Path) -> Configured:
    """Join a server under the name alpha, with these lines in ssh_config."""

    def start(server: Server, *lines: str, **changes: object) -> Host:
        config = tmp_path / "config"
        common = (
            "HostName 127.0.0.1", f"Port {server.port}", "User root", f"UserKnownHostsFile {server.known_hosts}",
            "GlobalKnownHostsFile none",
        )  # fmt: skip
        config.write_text("".join(f"{line}\n" for line in ("Host alpha", *lines, *common)))
        return join(server.settings(**{**BY_CONFIG, "ssh_config": str(config), **changes}))

    return start


def keys(folder: Path, count: int) -> list[Path]:
    return [Keys(folder / f"key{number}").path for number in range(count)]


def certify(authority: Keys, key: Path, *options: str) -> Path:
    """Return the certificate that an authority gives for a key."""
    run("ssh-keygen", "-q", "-s", str(authority.path), "-I", "drover", "-n", "root", *options, f"{key}.pub")
    return key.with_name(f"{key.name}-cert.pub")


def is_up(host: Host) -> bool:
    return bool(host.await_report(LinkUp) == LinkUp())


def why_down(host: Host) -> str:
    down: LinkDown = host.await_report(LinkDown)
    return down.why


# ---------------------------------------------------------------- keys of an agent


@pytest.mark.parametrize("suffix", ["", ".pub"])
def test_a_named_key_that_an_agent_holds_is_the_only_one_offered(
    serve: Serve, configured: Configured, agent: Agent, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(MaxAuthTries="2")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(*keys(tmp_path, 4), server.user_key.path))
    server.user_key.path.unlink()
    assert is_up(configured(server, f"IdentityFile {server.user_key.path}{suffix}", "IdentitiesOnly yes"))


def test_no_other_key_of_an_agent_is_offered_with_identitiesonly(
    server: Server, configured: Configured, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (named,) = keys(tmp_path, 1)
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(named, server.user_key.path))
    why = why_down(configured(server, f"IdentityFile {named}.pub", "IdentitiesOnly yes"))
    assert " of the SSH agent): add one of them" in why
    assert why.count("of the SSH agent") == 1


def test_a_named_key_of_an_agent_is_offered_before_its_others(
    serve: Serve, configured: Configured, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(MaxAuthTries="2")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(*keys(tmp_path, 4), server.user_key.path))
    assert is_up(configured(server, f"IdentityFile {server.user_key.path}.pub"))


def test_a_key_that_only_an_agent_holds_is_used(
    server: Server, configured: Configured, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(server.user_key.path))
    server.user_key.path.unlink()
    assert is_up(configured(server))


def test_the_agent_of_identityagent_is_asked(
    server: Server, configured: Configured, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(*keys(tmp_path, 1)))
    path = agent(server.user_key.path)
    server.user_key.path.unlink()
    assert is_up(configured(server, f"IdentityAgent {path}"))


def test_no_agent_is_asked_if_identityagent_is_none(
    server: Server, configured: Configured, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(server.user_key.path))
    server.user_key.path.unlink()
    why = why_down(configured(server, "IdentityAgent none", f"IdentityFile {server.user_key.path}.pub"))
    assert f"{server.user_key.path}.pub has a public key only, and no SSH agent that is asked has the other half" in why


def test_a_key_with_a_passphrase_that_an_agent_holds_is_used(
    server: Server, join: Join, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(server.user_key.path))
    run("ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(server.user_key.path))
    assert is_up(join(server.settings()))


def test_a_key_with_a_passphrase_and_no_public_file_is_found_in_the_agent(
    serve: Serve, configured: Configured, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(MaxAuthTries="2")
    key = server.user_key.path
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(*keys(tmp_path, 4), key))
    run("ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key))
    key.with_name(f"{key.name}.pub").unlink()
    assert is_up(configured(server, f"IdentityFile {key}"))


def test_an_agent_that_does_not_sign_is_named(
    server: Server, configured: Configured, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = agent(server.user_key.path)
    run("ssh-add", "-q", "-d", str(server.user_key.path), env={"SSH_AUTH_SOCK": path})
    run("ssh-add", "-q", "-c", str(server.user_key.path), env={"SSH_AUTH_SOCK": path, "SSH_ASKPASS": "/bin/false"})
    monkeypatch.setenv("SSH_AUTH_SOCK", path)
    assert ": look at the agent" in why_down(configured(server, f"IdentityFile {server.user_key.path}.pub"))


def test_a_certificate_that_is_refused_is_said_to_be_one(serve: Serve, configured: Configured, tmp_path: Path) -> None:
    authority, (key,) = Keys(tmp_path / "authority"), keys(tmp_path, 1)
    server = serve(TrustedUserCAKeys=f"{authority.path}.pub")
    certificate = certify(authority, key, "-V", "20010101:20010102")
    why = why_down(configured(server, f"IdentityFile {key}", f"CertificateFile {certificate}", "IdentitiesOnly yes"))
    assert f"{certificate} is a certificate: `ssh-keygen -L -f` prints its dates and principals" in why


def test_an_agent_that_is_gone_is_named(
    server: Server, configured: Configured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    host = configured(server, identity="agent")
    assert f"the SSH agent at {tmp_path / 'gone'}: No such file or directory" in why_down(host)


# ---------------------------------------------------------------- certificates


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_certificate_of_certificatefile_is_used(
    serve: Serve, configured: Configured, tmp_path: Path, kind: str
) -> None:
    authority, key = Keys(tmp_path / "authority"), Keys(tmp_path / "key", kind).path
    server = serve(TrustedUserCAKeys=f"{authority.path}.pub")
    certificate = certify(authority, key).rename(tmp_path / "elsewhere")
    assert is_up(configured(server, f"IdentityFile {key}", f"CertificateFile {certificate}", "IdentitiesOnly yes"))


def test_a_certificate_beside_the_key_of_identityfile_is_used(
    serve: Serve, configured: Configured, tmp_path: Path
) -> None:
    authority, (key,) = Keys(tmp_path / "authority"), keys(tmp_path, 1)
    server = serve(TrustedUserCAKeys=f"{authority.path}.pub")
    certify(authority, key)
    assert is_up(configured(server, f"IdentityFile {key}", "IdentitiesOnly yes"))


def test_a_certificate_whose_key_an_agent_holds_is_used(
    serve: Serve, configured: Configured, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, (key,) = Keys(tmp_path / "authority"), keys(tmp_path, 1)
    server = serve(TrustedUserCAKeys=f"{authority.path}.pub")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(key))
    certificate = certify(authority, key)
    key.unlink()
    lines = f"IdentityFile {key}.pub", f"CertificateFile {certificate}", "IdentitiesOnly yes"
    assert is_up(configured(server, *lines))


def test_a_certificate_of_a_host_is_named_when_it_is_to_log_in(
    server: Server, configured: Configured, tmp_path: Path
) -> None:
    authority, (key,) = Keys(tmp_path / "authority"), keys(tmp_path, 1)
    certificate = certify(authority, key, "-h")
    why = why_down(configured(server, f"IdentityFile {key}", f"CertificateFile {certificate}"))
    assert f"{certificate} is a certificate of a host, not of a user" in why


# ---------------------------------------------------------------- what is said


def test_a_server_that_wants_more_than_a_key_is_named_with_what_it_wants(serve: Serve, join: Join) -> None:
    server = serve(AuthenticationMethods="publickey,password", PasswordAuthentication="yes")
    assert "but wants password as well" in why_down(join(server.settings()))


def test_a_server_that_accepts_no_keys_is_named_with_what_it_accepts(serve: Serve, join: Join) -> None:
    server = serve(PubkeyAuthentication="no", PasswordAuthentication="yes", PermitRootLogin="yes")
    assert "it takes no keys, but password" in why_down(join(server.settings()))


def test_a_server_that_permits_no_more_tries_is_named_with_the_keys(
    serve: Serve, configured: Configured, agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(MaxAuthTries="2")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent(*keys(tmp_path, 4)))
    why = why_down(configured(server, f"IdentityFile {server.user_key.path}"))
    assert "of the SSH agent): name the right one by `identity`, or by IdentityFile with IdentitiesOnly" in why


# ---------------------------------------------------------------- known_hosts


BAD_LINES = {
    "two_words": ("alpha ssh-ed25519", "it needs names, the type of a key, and the key"),
    "no_base64": ("[127.0.0.1]:{port} ssh-ed25519 AAAAC3N!", "its key is no base64"),
    "cut_off": ("[127.0.0.1]:{port} ssh-ed25519 AAAA", "its key is not of type ssh-ed25519"),
    "marker": ("@trusted * ssh-ed25519 AAAA", "@trusted is neither @revoked nor @cert-authority"),
    "hash": ("|1|abc {key}", "its hashed name is not |1|salt|hash"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_malformed_line_of_known_hosts_is_noted_and_harms_no_other(server: Server, join: Join, name: str) -> None:
    line, reason = BAD_LINES[name]
    good = server.known_hosts.read_text()
    server.known_hosts.write_text(f"# comment\n{line.format(port=server.port, key=server.key.public)}\n\n{good}")
    host = join(server.settings())
    assert is_up(host)
    assert host.all(Note) == [Note(f"{server.known_hosts}:2 is no line of known_hosts: {reason}")]


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_malformed_line_of_known_hosts_is_named_when_the_key_is_unknown(
    server: Server, join: Join, name: str
) -> None:
    line, reason = BAD_LINES[name]
    server.known_hosts.write_text(f"{line.format(port=server.port, key=server.key.public)}\n")
    why = why_down(join(server.settings()))
    assert "its host key is unknown (ssh-ed25519 SHA256:" in why
    assert f"{server.known_hosts}:1 is no line of known_hosts: {reason}" in why


def test_an_authority_of_known_hosts_is_named_as_not_followed(server: Server, join: Join) -> None:
    server.known_hosts.write_text(f"\n@cert-authority [127.0.0.1]:* {server.key.public}\n")
    why = why_down(join(server.settings()))
    assert f"{server.known_hosts}:2: @cert-authority cannot be followed here, the key itself is needed" in why


def test_a_key_of_the_host_without_its_port_is_trusted_as_ssh_does(server: Server, join: Join) -> None:
    server.known_hosts.write_text(f"127.0.0.1 {server.key.public}\n")
    assert is_up(join(server.settings()))


@pytest.mark.parametrize("option", ["StrictHostKeyChecking no", "StrictHostKeyChecking accept-new"])
def test_no_option_makes_an_unknown_key_trusted(server: Server, configured: Configured, option: str) -> None:
    server.known_hosts.write_text("")
    why = why_down(configured(server, option, f"IdentityFile {server.user_key.path}"))
    assert "StrictHostKeyChecking: cannot be followed here, only keys in these files are trusted" in why
    assert server.known_hosts.read_text() == ""


def test_hostkeyalias_is_the_name_in_known_hosts(server: Server, configured: Configured) -> None:
    server.known_hosts.write_text(f"cluster {server.key.public}\n")
    assert is_up(configured(server, "HostKeyAlias cluster", f"IdentityFile {server.user_key.path}"))
