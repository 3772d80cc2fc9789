"""Claims about the two scripts that run on a host, run here by each sh there is, without any ssh."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from scheduler.errors import AgentError
from scheduler.ssh.remote_processes import agent_command, control_command
from tests.agent_tools import is_gone, watch
from tests.ssh.sshd import kill

SHELLS = [["dash"], ["bash", "--posix"]]
LONG = ["sleep", "600"]


class Session:
    """What sshd would start: a script in a session of its own, between pipes."""

    def __init__(self, shell: list[str], command: bytes) -> None:
        word, sh, option, script, *rest = shlex.split(command.decode("latin-1"))
        assert (word, sh, option) == ("exec", "/bin/sh", "-c")
        pipe = subprocess.PIPE
        argv = [*shell, "-c", script, *rest]
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def ask(self, line: str) -> str:
        self.say(line)
        return self.hear()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self.process.wait(20)


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


@pytest.fixture
def lease_s() -> int:
    """Return the lease of a control session: that of most does not run out while a test lasts."""
    return 20


@pytest.fixture
def control(shell: list[str], lease_s: int) -> Iterator[Session]:
    session = Session(shell, control_command(lease_s))
    assert session.hear() == f"DROVER {session.process.pid}"
    yield session
    session.close()


@pytest.fixture
def group() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that leads a group and is ours to reap."""
    process = subprocess.Popen(LONG, start_new_session=True)
    yield process
    kill(process.pid)
    process.wait()


Group = subprocess.Popen[bytes]


@pytest.mark.slow
@pytest.mark.parametrize("lease_s", [2])
def test_a_guarded_group_dies_when_the_lease_runs_out(control: Session, group: Group) -> None:
    assert control.ask(f"add {group.pid}") == f"{group.pid} added"
    assert group.wait(20) == -signal.SIGKILL
    assert is_gone(watch(control.process.pid))


def test_a_guarded_group_dies_when_the_connection_ends(control: Session, group: Group) -> None:
    control.ask(f"add {group.pid}")
    control.end_input()
    assert group.wait(20) == -signal.SIGKILL


def test_guarded_group_dies_though_output_of_the_control_session_is_closed(control: Session, group: Group) -> None:
    control.ask(f"add {group.pid}")
    assert control.process.stdout is not None
    control.process.stdout.close()
    control.say("beat")
    control.end_input()
    assert group.wait(20) == -signal.SIGKILL


def test_control_session_survives_signals_and_kills_at_the_end_of_input(control: Session, group: Group) -> None:
    control.ask(f"add {group.pid}")
    for number in (signal.SIGHUP, signal.SIGTERM):
        os.killpg(control.process.pid, number)
    assert control.ask("beat") == "beat"
    control.end_input()
    assert group.wait(20) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("lease_s", [6])
def test_a_heartbeat_is_answered_and_renews_the_lease(control: Session, group: Group) -> None:
    control.ask(f"add {group.pid}")
    for _ in range(40):  # longer than the lease
        assert control.ask("beat") == "beat"
        with pytest.raises(subprocess.TimeoutExpired):
            group.wait(0.2)


def test_signal_is_sent_to_the_group_and_the_answer_says_whether_it_is_gone(control: Session, group: Group) -> None:
    assert control.ask(f"kill {group.pid} 0") == f"{group.pid} alive"
    control.say(f"kill {group.pid} TERM")
    assert group.wait(20) == -signal.SIGTERM
    control.hear()
    assert control.ask(f"kill {group.pid} KILL") == f"{group.pid} gone"


def test_an_ended_group_is_killed_at_once_and_no_longer_guarded(control: Session, group: Group) -> None:
    second = subprocess.Popen(LONG, start_new_session=True)
    control.ask(f"add {group.pid}")
    control.ask(f"add {second.pid}")
    control.ask(f"end {second.pid}")
    assert second.wait(20) == -signal.SIGKILL
    assert group.poll() is None
    control.end_input()
    assert group.wait(20) == -signal.SIGKILL


def test_a_shim_waits_until_it_is_guarded(shell: list[str]) -> None:
    session = Session(
        shell, agent_command([b"sh", b"-c", b'echo "$X $$"; read -r line; echo "$line"'], {b"X": b"1"}, b"")
    )
    pid = session.process.pid
    assert session.hear() == f"DROVER {pid}"
    session.say("")
    assert session.hear() == f"1 {pid}"
    assert session.ask("its first item") == "its first item"
    session.close()


def test_a_shim_whose_connection_ends_never_becomes_the_agent(shell: list[str]) -> None:
    session = Session(shell, agent_command([b"echo", b"here"], {}, b""))
    out, _ = session.process.communicate(timeout=20)
    assert out.decode() == f"DROVER {session.process.pid}\n"
    assert session.process.returncode == 125


def test_an_invalid_variable_name_is_refused() -> None:
    with pytest.raises(AgentError, match="X Y"):
        agent_command([b"true"], {b"X Y": b""}, b"")
