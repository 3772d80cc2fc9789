"""A server and a host for each test that asks for them; a test has one SSH process at most."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import SshSettings
from tests.needs import need
from tests.ssh.host import Host
from tests.ssh.sshd import Server

Serve = Callable[..., Server]
Join = Callable[[SshSettings], Host]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start an sshd with these options; it and all below it are killed at the end."""
    need("sshd")
    servers: list[Server] = []

    def start(**options: object) -> Server:
        servers.append(Server(tmp_path / f"server{len(servers)}", **options))  # type: ignore[arg-type]
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def join() -> Iterator[Join]:
    """Start the SSH process of a host; it ends with the test."""
    hosts: list[Host] = []

    def start(settings: SshSettings) -> Host:
        hosts.append(Host(settings))
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()


@pytest.fixture
def server(serve: Serve) -> Server:
    return serve()


@pytest.fixture
def host(server: Server, join: Join) -> Host:
    return join(server.settings())
