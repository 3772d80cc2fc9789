"""No library below the SSH process reads the supervisor's requests or writes to what the daemon was given."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scheduler.drivers import ssh_protocol as ssh
from scheduler.drivers.loop import Loop
from scheduler.drivers.os_calls import spawn
from scheduler.drivers.ssh_protocol import LinkUp, Note, NotStarted, PacketSocket
from tests.loop_tools import turn_until
from tests.ssh.conftest import Join, Serve
from tests.ssh.host import Host
from tests.ssh.sshd import kill

# What a library may do; then the SSH process serves as ever.
PRINTS = """
import json, os, sys
from scheduler.drivers.ssh_protocol import SshSettings
from scheduler.ssh.__main__ import SshHostProcess, take_descriptors
sock, printed, _stderr = take_descriptors()
{statement}
SshHostProcess(SshSettings("alpha", "127.0.0.1:1"), sock, printed).run()
"""
SECOND_FACTOR = {
    "AuthenticationMethods": "publickey,keyboard-interactive",
    "KbdInteractiveAuthentication": "yes",
    "UsePAM": "yes",
    "PermitRootLogin": "yes",
}
REQUESTS = 300


class Child:
    """A process that has the supervisor's socket as descriptor 0, and what it has reported."""

    def __init__(self, statement: str) -> None:
        self.loop, self.reports = Loop(), list[ssh.Report]()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = (sys.executable, "-c", PRINTS.format(statement=statement))
        self.pid = spawn(program, os.environ, [theirs.fileno()])
        theirs.close()
        self._socket = PacketSocket(self.loop, ours, self._receive, lambda: None)

    def ping(self) -> None:
        self._socket.send(ssh.pack(ssh.Ping()))

    def until(self, kind: type[ssh.Report], count: int = 1) -> None:
        turn_until(self.loop, lambda: sum(isinstance(each, kind) for each in self.reports) >= count)

    def notes(self) -> list[str]:
        return [each.text for each in self.reports if isinstance(each, Note)]

    def close(self) -> None:
        self._socket.close()
        kill(self.pid)
        os.waitpid(self.pid, 0)
        self.loop.close()

    def _receive(self, packet: bytes, _fds: tuple[int, ...]) -> None:
        self.reports.append(ssh.unpack(packet, ssh.REPORTS))


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[Child]:
    made = Child(request.param)
    yield made
    made.close()


def test_descriptors_of_the_ssh_process_are_neither_its_requests_nor_the_daemons(host: Host) -> None:
    host.await_report(LinkUp)
    stdin, stdout, stderr = (os.readlink(f"/proc/{host.process.pid}/fd/{number}") for number in range(3))
    assert stdin == "/dev/null"
    assert stdout == stderr
    assert stderr.startswith("pipe:")
    assert stderr not in [os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)]


@pytest.mark.parametrize("child", ["print('Password:', end=' ', flush=True)"], indirect=True)
def test_what_a_library_prints_is_a_note(child: Child, capfd: pytest.CaptureFixture[str]) -> None:
    child.until(Note)
    assert child.notes() == ["its SSH process printed: Password:"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("child", ["import threading; threading.Thread(target=input).start()"], indirect=True)
def test_a_library_that_asks_gets_no_request_and_no_answer(child: Child) -> None:
    child.ping()
    child.until(ssh.Pong)
    turn_until(child.loop, lambda: "EOFError: EOF when reading a line" in "".join(child.notes()))
    assert "EOFError: EOF when reading a line" in "".join(child.notes())


@pytest.mark.parametrize("child", ["os.write(1, b'x' * 60000)"], indirect=True)
def test_more_than_some_notes_of_what_is_printed_are_dropped(child: Child) -> None:
    """Between two answers the process reads a piece of what was printed: there are thirty."""
    for count in range(1, 40):
        child.ping()
        child.until(ssh.Pong, count)
    assert [len(text) for text in child.notes()] == [2025] * 10


def test_traceback_of_what_ends_the_ssh_process_is_not_lost() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = [sys.executable, "-P", "-m", "scheduler.ssh", '{"no": "setting"}']
    with ours, theirs:
        done = subprocess.run(program, stdin=theirs, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "TypeError: SshSettings.__init__() got an unexpected keyword argument 'no'" in done.stderr


def test_host_that_wants_a_second_factor_answers_every_request(
    serve: Serve, join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve(**SECOND_FACTOR)
    host = join(server.settings(retry_base_s=0.02, retry_max_s=0.05))
    for id in range(REQUESTS):
        host.sh("echo up", id=id)
        host.until(lambda id=id: host.over(id))
    whys = {report.why for report in host.all(NotStarted)}
    assert len(host.all(NotStarted)) == REQUESTS
    assert all(f"it accepts {server.user_key.path}, but wants keyboard-interactive as well" in why for why in whys)
    assert all("Match User root, AuthenticationMethods publickey" in why for why in whys)
    assert capfd.readouterr() == ("", "")
