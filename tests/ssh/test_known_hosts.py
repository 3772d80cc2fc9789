"""Claims about the files of OpenSSH: which names a line of known_hosts is about, and what an address means."""

from pathlib import Path

import paramiko
import pytest

from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.errors import WorldError
from scheduler.ssh.known_hosts import HostKeys
from scheduler.ssh.routes import route

KEY = paramiko.ECDSAKey.generate()


def is_trusted(name: str, pattern: str, folder: Path) -> bool:
    """Return whether a host of this name may have the key of a line with this pattern."""
    file = folder / "known_hosts"
    file.write_text(f"{pattern} {KEY.get_name()} {KEY.get_base64()}\n")
    try:
        HostKeys((name,), [file]).check(KEY)
    except WorldError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("a.example", "a.example"),
        ("A.Example", "a.example"),
        ("a.example", "b.example,a.example"),
        ("a.b.example", "*.example"),
        ("a1.example", "a?.example"),
        ("[10.0.0.1]:2222", "[10.0.0.1]:2222"),
        ("[10.0.0.1]:2222", "[10.0.0.*]:2222"),
        ("b.example", "!a.example,*.example"),
    ],
)
def test_a_host_matched_by_a_pattern_is_trusted_f8(tmp_path: Path, name: str, pattern: str) -> None:
    assert is_trusted(name, pattern, tmp_path)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("axexample", "a.example"),
        ("10.0.011", "10.0.0.1"),
        ("a.example.evil", "a.example"),
        ("evil.a.example", "a.example"),
        ("a.exampleb", "a.example?b"),
        ("a.example", "*.other"),
        ("a.example", "*.example,!a.example"),
        ("a.example", "!a.example"),
        ("1", "[10.0.0.1]:2222"),
        ("10.0.0.1", "[10.0.0.1]:2222"),
    ],
)
def test_a_host_matched_by_no_pattern_is_refused_f8(tmp_path: Path, name: str, pattern: str) -> None:
    assert not is_trusted(name, pattern, tmp_path)


@pytest.mark.parametrize(
    ("address", "name", "port"),
    [
        ("a.example", "a.example", 22),
        ("a.example:2222", "a.example", 2222),
        ("::1", "::1", 22),
        ("[::1]", "::1", 22),
        ("[::1]:2222", "::1", 2222),
    ],
)
def test_an_address_is_a_host_with_or_without_a_port_f8(address: str, name: str, port: int) -> None:
    (hop,) = route(SshSettings("alpha", address, "me", ssh_config="/nonexistent"))
    assert (hop.address, hop.port) == (name, port)


def test_ssh_config_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (config := tmp_path / "config").write_text("Host alpha\n HostName 10.0.0.1\n")
    (hop,) = route(SshSettings("alpha", "alpha", "me", ssh_config=str(config)))
    assert hop.address == "10.0.0.1"
    config.chmod(0o664)
    with pytest.raises(WorldError, match="others may write to it; refused"):
        route(SshSettings("alpha", "alpha", "me", ssh_config=str(config)))
