"""A real sshd of our own: its keys, its configuration and its port; the machine's own is never touched."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from scheduler.drivers.ssh_protocol import SshSettings
from tests.patience import PATIENCE_S

SSHD = "/usr/sbin/sshd"
PORTS = (10_000, 32_000)  # below those that the kernel gives to outgoing connections
SEPARATION = Path("/run/sshd")  # where Debian's sshd locks itself up; its own service would make it


class Keys:
    """A key pair in files."""

    def __init__(self, path: Path, kind: str = "ed25519") -> None:
        self.path = path
        run("ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path))
        self.public = path.with_name(path.name + ".pub").read_text().strip()


class Server:
    """One sshd, and all that it serves."""

    def __init__(
        self, folder: Path, address: str = "127.0.0.1", inside: Sequence[str] = (), port: int = 0, **options: object
    ) -> None:
        folder.mkdir(exist_ok=True)
        SEPARATION.mkdir(mode=0o755, exist_ok=True)
        self.folder, self.address, self._inside = folder, address, list(inside)
        self.port = port or free_port()
        self.key, self.user_key = Keys(folder / "host_key"), Keys(folder / "user_key")
        self.known_hosts = folder / "known_hosts"
        self.trust(self.key)
        (folder / "authorized_keys").write_text(self.user_key.public + "\n")
        self.options = options
        self.process: subprocess.Popen[bytes]
        self.begin()

    def begin(self) -> None:
        """Serve, until stopped; returns when it answers."""
        lines = {
            "Port": self.port,
            "ListenAddress": self.address,
            "HostKey": self.key.path,
            "AuthorizedKeysFile": self.folder / "authorized_keys",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "MaxStartups": "100",
            "SetEnv": f"HOME={self.folder}",  # Debian's bash reads ~/.bashrc when sshd starts it
            **self.options,
        }
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        with (self.folder / "log").open("ab") as log:
            program = [*self._inside, SSHD, "-D", "-e", "-f", str(config)]
            self.process = subprocess.Popen(program, stderr=log, process_group=0)
        self._await()

    def trust(self, key: Keys) -> None:
        """Make this the known key of the server."""
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {key.public}\n")

    def settings(self, **changes: object) -> SshSettings:
        """Return the settings with which it is reached; short back-off, for tests."""
        settings: dict[str, object] = {
            "host": "alpha",
            "address": f"{self.address}:{self.port}",
            "user": "root",
            "identity": str(self.user_key.path),
            "known_hosts": str(self.known_hosts),
            "ssh_config": "/dev/null",
            "retry_base_s": 0.1,
            "retry_max_s": 1.0,
            "orphan_s": 0.5,
        }
        return SshSettings(**{**settings, **changes})  # type: ignore[arg-type]

    def log(self) -> str:
        """Return what sshd has said."""
        return (self.folder / "log").read_text()

    def sessions(self) -> list[int]:
        """Return the pids of the sshd processes of all connections."""
        return [pid for pid in below(self.process.pid) if name_of(pid) == "sshd"]

    def kill(self) -> None:
        """Kill sshd, that of each connection too; agents live on."""
        for pid in [self.process.pid, *self.sessions()]:
            kill(pid)
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Kill sshd and all that runs below it."""
        for pid in [self.process.pid, *below(self.process.pid)]:
            kill(pid)
        self.process.wait(PATIENCE_S)

    def _await(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while "Server listening" not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)


@contextmanager
def serving(folder: Path, **keys: object) -> Iterator[Server]:
    """Yield a server for as long as this lasts."""
    server = Server(folder, **keys)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.close()


def run(*argv: str, env: Mapping[str, str] | None = None) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, env=env and os.environ | env).stdout


def free_ports(count: int) -> list[int]:
    """Return different ports at which nobody listens, and which no outgoing connection gets meanwhile."""
    with ExitStack() as servers:
        ports: list[int] = []
        while len(ports) < count:
            with suppress(OSError):  # somebody listens there
                port = random.SystemRandom().randrange(*PORTS)
                servers.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports


def free_port() -> int:
    return free_ports(1)[0]


def below(pid: int) -> list[int]:
    """Return all processes below one, the nearest first."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return found[1:]


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
