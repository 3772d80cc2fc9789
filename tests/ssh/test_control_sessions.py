"""A host over SSH is up only with a control session: without one no agent is started there, whatever else works."""

import time
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from scheduler.drivers.ssh_protocol import LinkDown, LinkUp, NotStarted
from tests.patience import PATIENCE_S
from tests.ssh.conftest import Join, Serve
from tests.ssh.host import Host
from tests.ssh.sshd import Server, below, kill
from tests.ssh.test_remote_agents import connections

NEVER_OPENED, LOST = "it runs no commands for us", "its control session has ended"
ESTABLISHED = "01"  # a state of proc_net_tcp(5)
# Runs every command, but while the file `broken` exists this instead of a control session.
SHELL = """
case $SSH_ORIGINAL_COMMAND in *drover-control*) [ ! -e {broken} ] || {instead} ;; esac
eval "$SSH_ORIGINAL_COMMAND"
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Return the file that keeps control sessions from opening while it exists."""
    return tmp_path / "broken"


def shell(broken: Path, instead: str) -> str:
    """Return the path of a script for ForceCommand."""
    script = broken.with_name("shell")
    script.write_text(SHELL.format(broken=broken, instead=instead))
    return f"/bin/sh {script}"


def await_connections(server: Server, count: int) -> None:
    """Wait until the server has so many connections, those that it has not accepted yet included."""
    deadline = time.monotonic() + PATIENCE_S
    while established(server.port) < count:
        assert time.monotonic() < deadline, "no such connection is made"
        time.sleep(0.01)


def established(port: int) -> int:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == ESTABLISHED for row in rows)


def await_never_opened(host: Host) -> None:
    host.until(lambda: [down for down in host.all(LinkDown) if NEVER_OPENED in down.why])


@pytest.mark.slow
@pytest.mark.parametrize("instead", ["exit 1", "exec sleep 600"])
def test_a_host_whose_control_session_never_opens_is_down_and_starts_no_agent(
    serve: Serve, join: Join, broken: Path, tmp_path: Path, instead: str
) -> None:
    broken.touch()
    server = serve(ForceCommand=shell(broken, instead))
    host = join(server.settings(connect_s=1.0))
    host.sh(f"touch {tmp_path}/begun")
    refusal = host.end()
    assert isinstance(refusal, NotStarted)
    assert refusal.is_lost
    await_never_opened(host)
    assert (host.all(LinkUp), (tmp_path / "begun").exists()) == ([], False)


@pytest.mark.slow
def test_a_connection_without_control_session_does_not_bring_up_a_host_that_lost_its_own(
    serve: Serve, join: Join, broken: Path, tmp_path: Path
) -> None:
    server = serve(MaxSessions=1, ForceCommand=shell(broken, "exit 1"))  # an agent wants a connection of its own
    host = join(server.settings())
    host.await_report(LinkUp)
    kill(server.process.pid, SIGSTOP)  # holds up that connection
    host.sh(f"touch {tmp_path}/begun")
    await_connections(server, 2)
    broken.touch()
    for pid in below(server.sessions()[0]):  # the control session
        kill(pid)
    assert host.await_report(LinkDown).why == LOST
    kill(server.process.pid, SIGCONT)
    refusal = host.end()
    assert isinstance(refusal, NotStarted)
    assert refusal.why == LOST or NEVER_OPENED in refusal.why
    await_never_opened(host)
    assert connections(server) >= 2
    assert (len(host.all(LinkUp)), (tmp_path / "begun").exists()) == (1, False)
    broken.unlink()
    host.await_report(LinkUp, 2)
    host.up(1)
