"""Claims about agents that become another user's on their host: the account of our sessions may not signal them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import Ended, Left, Note
from tests.agent_tools import is_gone, watch
from tests.other_user import setuid_program
from tests.ssh.accounts import for_user_1
from tests.ssh.conftest import Join, Serve
from tests.ssh.host import Host

DEAF = "trap '' HUP; echo up; exec sleep 600"


@pytest.fixture
def host(serve: Serve, join: Join, tmp_path: Path) -> Host:
    """Return a host that is reached as user 1."""
    (tmp_path / "server").symlink_to(tmp_path / "server0")
    return join(serve(**for_user_1(tmp_path)).settings(user="daemon"))


@pytest.fixture
def become() -> Iterator[list[str]]:
    with setuid_program() as words:
        yield words


def up(host: Host, become: list[str], script: str = DEAF) -> int:
    """Start an agent that is user 2 by now, and watch it."""
    host.start(*become, script)
    host.until(lambda: host.said[0] == b"up\n")
    return watch(host.pid())


def end(pidfd: int) -> None:
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # it lives
    assert is_gone(pidfd)
    os.close(pidfd)


def test_agent_that_its_host_may_not_kill_is_left(host: Host, become: list[str]) -> None:
    agent = up(host, become)
    host.process.signal(0, "KILL")
    assert host.end() == Left(0, host.pid())
    end(agent)
    host.up(1)


def test_refused_signal_other_than_kill_is_noted(host: Host, become: list[str]) -> None:
    agent = up(host, become)
    host.process.signal(0, "HUP")
    assert host.await_report(Note).text == f"SIGHUP is refused: process {host.pid()} runs as another user by now"
    assert host.over() == []
    end(agent)
    assert host.end() == Ended(0, signal="KILL")


def test_agent_of_another_user_that_ends_by_itself_has_ended(host: Host, become: list[str]) -> None:
    host.start(*become, "echo up; read -r line; exit 7")
    host.until(lambda: host.said[0] == b"up\n")
    host.write(0, b"end\n")
    assert host.end() == Ended(0, code=7)
