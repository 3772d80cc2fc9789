"""Claims about ssh_config(5): a host leads to where ssh(1) goes, or what cannot be followed is said first."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import LinkDown, LinkUp, Note, NotStarted, SshSettings, Started
from tests.agent_tools import is_gone
from tests.patience import LONG_PATIENCE_S
from tests.ssh.conftest import Join, Serve
from tests.ssh.host import Host
from tests.ssh.sshd import Server

BY_CONFIG = {"address": "", "user": "", "identity": "", "known_hosts": ""}  # all of it is in ssh_config

LEADS = {
    "Include": "Include {folder}/more\nHost alpha\n Port {beta}\n",
    "Include_in_a_Host": "Host alpha\n Include {folder}/more\n Port {beta}\n",
    "Match_Host": "Match Host other\n Port {beta}\nHost alpha\n Port {alpha}\n",
    "Match_HOST_that_is_it": "Match HOST alpha\n Port {alpha}\nHost *\n Port {beta}\n",
    "Match_host=other": "Match host=other\n Port {beta}\nHost alpha\n Port {alpha}\n",
    "Match_final": "Match final host 127.0.0.1\n Port {alpha}\nMatch final all\n Port {beta}\n",
    "Match_originalhost": "Match originalhost alpha,other\n Port {alpha}\nHost *\n Port {beta}\n",
    "Match_exec_false": 'Match exec "exit 1"\n Port {beta}\nMatch exec true\n Port {alpha}\n',
    "Match_localuser": "Match localuser nobody\n Port {beta}\nMatch all\n Port {alpha}\n",
    "Host_not": "Host * !alpha\n Port {beta}\nHost=alp?a\n Port = {alpha}\n",
    "capitals_count_in_Host": "Host ALPHA\n Port {beta}\nHOST alpha\n PORT {alpha}\n",
    "comment_in_Latin-1": "# f\xfcr alle\nHost alpha # Gr\xfc\xdfe\n Port {alpha}\n",
    "the_first_value_counts": "Port {alpha}\nHost alpha\n Port {beta}\n",
    "quotes": 'Host "alpha"\n Port "{alpha}"\n',
}


class Machines:
    """Two machines that take the same key, and a configuration that leads to one of them."""

    def __init__(self, serve: Serve, folder: Path) -> None:
        self.alpha, self.beta = serve(), serve()
        self.folder, self.config = folder, folder / "config"
        keys = [server.user_key.public for server in (self.alpha, self.beta)]
        for server in (self.alpha, self.beta):
            (server.folder / "authorized_keys").write_text("\n".join(keys) + "\n")
        known = "".join(server.known_hosts.read_text() for server in (self.alpha, self.beta))
        (folder / "known_hosts").write_text(known)
        self.common = (
            f"\nMatch all\n HostName 127.0.0.1\n User root\n IdentityFile {self.alpha.user_key.path}\n"
            f" IdentitiesOnly yes\n UserKnownHostsFile {folder / 'known_hosts'}\n"
        )

    def write(self, text: str) -> None:
        ports = {"alpha": self.alpha.port, "beta": self.beta.port, "folder": self.folder}
        self.config.write_bytes((text.format(**ports) + self.common).encode("latin-1"))

    def settings(self, **changes: object) -> SshSettings:
        return self.alpha.settings(**BY_CONFIG, ssh_config=str(self.config), **changes)


@pytest.fixture
def machines(serve: Serve, tmp_path: Path) -> Machines:
    return Machines(serve, tmp_path)


def why_down(host: Host) -> str:
    down: LinkDown = host.await_report(LinkDown)
    return down.why


def port_of(host: Host, id: int = 0) -> int:
    """Return the port of the sshd that an agent runs below."""
    host.sh("echo $SSH_CONNECTION; exec cat", id=id)
    host.until(lambda: host.said[id].endswith(b"\n") or host.over(id))
    assert host.said[id], host.reports
    return int(host.said[id].split()[3])


# ---------------------------------------------------------------- where it leads


@pytest.mark.parametrize("name", LEADS)
def test_a_host_is_the_machine_that_ssh_reaches(machines: Machines, join: Join, name: str) -> None:
    (machines.folder / "more").write_text(f"Port {machines.alpha.port}\n")
    machines.write(LEADS[name])
    argv = ["ssh", "-o", "BatchMode=yes", "-F", str(machines.config), "alpha", "echo $SSH_CONNECTION"]
    said = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=LONG_PATIENCE_S)
    assert int(said.stdout.split()[3]) == machines.alpha.port
    assert port_of(join(machines.settings())) == machines.alpha.port


def test_all_connections_lead_to_one_machine_though_the_file_changes(serve: Serve, join: Join, tmp_path: Path) -> None:
    machines = Machines(lambda: serve(MaxSessions="2"), tmp_path)
    machines.write("Host alpha\n Port {alpha}\n")
    host = join(machines.settings())
    first = port_of(host)
    machines.write("Host alpha\n Port {beta}\n")
    assert (first, port_of(host, 1)) == (machines.alpha.port, machines.alpha.port)


def test_a_file_that_was_corrected_is_read_at_the_next_attempt(machines: Machines, join: Join) -> None:
    machines.write("Host alpha\n Port {alpha}\n ProxyCommand nc %h %p\n")
    host = join(machines.settings())
    assert f"{machines.config}:3: ProxyCommand of alpha cannot be followed: " in why_down(host)
    machines.write("Host alpha\n Port {alpha}\n")
    assert host.await_report(LinkUp) == LinkUp()


def test_a_jump_host_is_reached_by_its_own_entry(serve: Serve, join: Join, tmp_path: Path) -> None:
    machines = Machines(lambda: serve(AllowTcpForwarding="yes"), tmp_path)
    machines.write(
        "Include {folder}/jumps\nMatch Host other\n Port 1\nHost alpha\n Port {alpha}\n"
        " ProxyJump joe@first,root@second:{beta}\n"
    )
    (tmp_path / "jumps").write_text(f"Host first\n Port {machines.beta.port}\n")
    host = join(machines.settings())
    assert f"joe@127.0.0.1:{machines.beta.port}: none of our keys is accepted" in why_down(host)
    machines.write("Host first\n Port {beta}\nHost alpha\n Port {alpha}\n ProxyJump first,root@second:{beta}\n")
    host.await_report(LinkUp)
    assert port_of(host) == machines.alpha.port
    assert machines.beta.log().count("Accepted publickey") >= 2


# ---------------------------------------------------------------- what cannot be followed


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("ProxyCommand nc %h %p", "{config}:2: ProxyCommand of alpha cannot be followed: "),
        ("RemoteCommand uptime", "{config}:2: RemoteCommand of alpha cannot be followed: "),
        ("SessionType none", "{config}:2: SessionType of alpha cannot be followed: "),
        ("PubkeyAuthentication no", "{config}:2: PubkeyAuthentication of alpha cannot be followed: "),
        ("PreferredAuthentications password", "{config}:2: PreferredAuthentications of alpha cannot be followed: "),
        ("RevokedHostKeys /dev/null", "{config}:2: RevokedHostKeys of alpha cannot be followed: mark the keys"),
        ("BindInterface lo", "{config}:2: BindInterface of alpha cannot be followed: name its address"),
        ("Ciphers chacha20-poly1305@openssh.com", "Ciphers (chacha20-poly1305@openssh.com) has nothing that"),
        ("KexAlgorithms diffie-hellman-group18-sha512", "KexAlgorithms (diffie-hellman-group18-sha512) has nothing"),
        (
            "PubkeyAcceptedAlgorithms sk-ssh-ed25519@openssh.com",
            "PubkeyAcceptedAlgorithms (sk-ssh-ed25519@openssh.com) has nothing that can be used here; add one of ssh-",
        ),
        ("IdentityAgent $NO_SUCH_VARIABLE", "IdentityAgent $NO_SUCH_VARIABLE: the SSH process of a host has no such"),
        ("CertificateFile ~/%C", "CertificateFile ~/%C: %C is not followed"),
        ("NoSuchWord yes", "{config}: line 2: Bad configuration option: nosuchword"),
        ("Port many", "{config} line 2: Bad port 'many'"),
        ("ProxyJump alpha", "{config}:2: ProxyJump of alpha has no end: alpha -> alpha"),
        ("ProxyJump 127.0.0.1:{port}", "{config}:2: ProxyJump of alpha has no end: it leads to 127.0.0.1 again"),
    ],
)
def test_a_word_that_cannot_be_followed_is_named_before_the_first_job(
    server: Server, join: Join, tmp_path: Path, line: str, sentence: str
) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host alpha\n {line}\n HostName 127.0.0.1\n Port {server.port}\n".format(port=server.port))
    host = join(server.settings(address="alpha", ssh_config=str(config)))
    host.sh("echo up")
    assert sentence.format(config=config) in why_down(host)
    assert isinstance(host.end(), NotStarted)
    assert not host.all(Started)


def test_a_loop_of_jumps_is_named(server: Server, join: Join, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host alpha\n ProxyJump beta\nHost beta\n ProxyJump gamma\nHost gamma\n ProxyJump alpha\n")
    why = why_down(join(server.settings(address="alpha", ssh_config=str(config))))
    assert f"{config}:2, {config}:4, {config}:6: ProxyJump of alpha has no end: alpha -> beta -> gamma -> alpha" in why


@pytest.mark.slow
def test_a_match_exec_that_hangs_is_ended_and_named(server: Server, join: Join, tmp_path: Path) -> None:
    config, pid, open_files = tmp_path / "config", tmp_path / "pid", tmp_path / "open"
    script = f"ls -l /proc/$$/fd >{open_files}; echo $$ >{pid}; exec sleep 1000"
    config.write_text(f'Match exec "{script}"\n Port 1\n')
    host = join(server.settings(ssh_config=str(config), connect_s=6.0))
    why = why_down(host)
    assert "ssh(1) took more than 6 s to read its configuration" in why
    assert f"look at its Match exec, and at CanonicalizeHostname if names cannot be resolved ({config}:1)" in why
    host.until(lambda: is_gone(int(pid.read_text())))
    assert "socket:" not in open_files.read_text()


@pytest.mark.parametrize(
    ("name", "text", "test"), [("SITE", "x", "test $SITE"), ("SHELL", "/bin/bash", "[[ a == a* ]]")]
)
def test_programs_of_match_exec_have_the_environment_of_the_daemon(
    machines: Machines, join: Join, name: str, text: str, test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    machines.write(f'Match originalhost alpha exec "{test}"\n Port {{alpha}}\nHost *\n Port {{beta}}\n')
    assert port_of(join(machines.settings())) == machines.alpha.port


def test_a_process_that_match_exec_leaves_is_not_waited_for(server: Server, join: Join, tmp_path: Path) -> None:
    config, pid = tmp_path / "config", tmp_path / "pid"
    config.write_text(f'Match exec "sleep 1000 & echo $! >{pid}"\n Compression no\n')
    host = join(server.settings(ssh_config=str(config), connect_s=6.0))
    host.until(lambda: host.all(LinkUp) or host.all(LinkDown))
    assert host.all(LinkUp)
    os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(("word", "setting"), [("UserKnownHostsFile", "known_hosts"), ("IdentityFile", "identity")])
def test_a_file_that_blocks_keeps_a_host_down_with_a_reason(
    server: Server, join: Join, tmp_path: Path, word: str, setting: str
) -> None:
    os.mkfifo(fifo := tmp_path / "fifo")
    (config := tmp_path / "config").write_text(f"{word} {fifo}\n")
    host = join(server.settings(ssh_config=str(config), connect_s=1.0, **{setting: ""}))
    assert "it is not connected after 3 s, while " in why_down(host)
    host.sh("true")
    host.until(host.over)


def test_a_known_hosts_file_that_cannot_be_read_is_passed_over(server: Server, join: Join, tmp_path: Path) -> None:
    host = join(server.settings(known_hosts=f"{tmp_path} {server.known_hosts}"))
    host.until(lambda: host.all(LinkUp) or host.all(LinkDown))
    assert host.all(LinkUp)
    assert [note.text for note in host.all(Note)] == [f"cannot read {tmp_path}: Is a directory"]


def test_a_file_of_ssh_itself_that_others_may_write_to_is_refused(server: Server, join: Join, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host alpha\n")
    config.chmod(0o666)
    assert "others may write to it; refused" in why_down(join(server.settings(ssh_config=str(config))))


# ---------------------------------------------------------------- without ssh(1)


def test_without_ssh_simple_files_are_followed(machines: Machines, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.write('# f\xfcr alle\nHost beta\n Port {beta}\nHost=alp?a !x\n\tPort\t=\t"{alpha}"\n')
    monkeypatch.setenv("PATH", os.devnull)
    assert port_of(join(machines.settings())) == machines.alpha.port


@pytest.mark.parametrize("name", ["Include", "Match_Host", "Match_host=other", "Match_exec_false", "Match_final"])
def test_without_ssh_what_is_not_followed_is_named(
    machines: Machines, join: Join, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    machines.write(LEADS[name])
    monkeypatch.setenv("PATH", os.devnull)
    why = why_down(join(machines.settings()))
    assert why.startswith(f"{machines.config}:1: ")
    assert "cannot be followed here; install OpenSSH's ssh(1)" in why


def test_a_program_called_ssh_that_is_no_openssh_is_not_asked(
    machines: Machines, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other := tmp_path / "bin" / "ssh").parent.mkdir()
    other.write_text("#!/bin/sh\necho 'Dropbear SSH client' >&2\nexit 1\n")
    other.chmod(0o755)
    machines.write("Host alpha\n Port {alpha}\n")
    monkeypatch.setenv("PATH", f"{other.parent}:{os.environ['PATH']}")
    assert port_of(join(machines.settings())) == machines.alpha.port
