"""Hosts over SSH for tests of the daemon: tables of the configuration, and what runs on a server."""

from tests.ssh.sshd import Server, below, name_of


def table(name: str, server: Server, **keys: int) -> str:
    """Give the table of a host that is reached over SSH."""
    settings = server.settings()
    lines = [
        f"[hosts.{name}]", 'transport = "ssh"', f'address = "{settings.address}"', f'user = "{settings.user}"',
        f'identity = "{settings.identity}"', f'known_hosts = "{settings.known_hosts}"',
        *(f"{key} = {value}" for key, value in keys.items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def at_work(server: Server) -> list[int]:
    """Give the pids of what runs on a server that is not sshd's."""
    return [pid for pid in below(server.process.pid) if name_of(pid) != "sshd"]
