"""Claims about the two scripts that run on a host, run here by each sh there is, without any ssh."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from scheduler.drivers.os_calls import start_of
from scheduler.errors import AgentError, WorldError
from scheduler.ssh.remote_scripts import RemotePid, agent_command, control_command, read_reply
from tests.agent_tools import is_gone, watch
from tests.needs import need
from tests.patience import PATIENCE_S

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "tests.ssh.recycled")
SHELLS = [["dash"], ["bash", "--posix"]]
WORD, OF_AGENT = "f" * 32, "0" * 32  # of a control session, of an agent


class Session:
    """What sshd would start: a script in a session of its own, between pipes."""

    def __init__(self, shell: list[str], command: bytes, proc: str = "/proc/") -> None:
        word, sh, option, script, *rest = shlex.split(command.decode("latin-1"))
        assert (word, sh, option) == ("exec", "/bin/sh", "-c")
        pipe = subprocess.PIPE
        argv = [*shell, "-c", script.replace("/proc/", proc), *rest]
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
    session = Session(shell, control_command(WORD, lease_s))
    assert session.hear().startswith(f"DROVER {WORD} {session.process.pid} ")
    yield session
    session.close()


class Agent(Session):
    """An agent behind its shim, ours to reap; its process is named as the control session wants it."""

    def __init__(self, shell: list[str], *argv: bytes) -> None:
        super().__init__(shell, agent_command(OF_AGENT, argv or (b"sleep", b"600"), {}, b""))
        self.reply = read_reply(OF_AGENT, self.hear().encode() + b"\n")
        assert self.reply is not None
        self.pid = self.reply.pid
        self.named = f"{self.pid} {self.reply.began} {OF_AGENT}"

    def wait(self, within_s: float = 20) -> int:
        return self.process.wait(within_s)


@pytest.fixture
def agent(shell: list[str]) -> Iterator[Agent]:
    session = Agent(shell)
    yield session
    session.close()


def add(control: Session, agent: Agent) -> None:
    """Have an agent guarded, and let it begin."""
    assert control.ask(f"add {agent.named}") == f"{WORD} {agent.pid} added"
    agent.say("")


@pytest.mark.slow
@pytest.mark.parametrize("lease_s", [2])
def test_a_guarded_group_dies_when_the_lease_runs_out(control: Session, agent: Agent) -> None:
    add(control, agent)
    assert agent.wait() == -signal.SIGKILL
    assert is_gone(watch(control.process.pid))


def test_a_guarded_group_dies_when_the_connection_ends(control: Session, agent: Agent) -> None:
    add(control, agent)
    control.end_input()
    assert agent.wait() == -signal.SIGKILL


def test_guarded_group_dies_though_output_of_the_control_session_is_closed(control: Session, agent: Agent) -> None:
    add(control, agent)
    assert control.process.stdout is not None
    control.process.stdout.close()
    control.say("beat")
    control.end_input()
    assert agent.wait() == -signal.SIGKILL


def test_control_session_survives_signals_and_kills_at_the_end_of_input(control: Session, agent: Agent) -> None:
    add(control, agent)
    for number in (signal.SIGHUP, signal.SIGTERM):
        os.killpg(control.process.pid, number)
    assert control.ask("beat") == f"{WORD} beat"
    control.end_input()
    assert agent.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("lease_s", [6])
def test_a_heartbeat_is_answered_and_renews_the_lease(control: Session, agent: Agent) -> None:
    add(control, agent)
    for _ in range(40):  # longer than the lease
        assert control.ask("beat") == f"{WORD} beat"
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(0.2)


def test_signal_is_sent_to_the_group_and_the_answer_says_whether_it_is_gone(control: Session, agent: Agent) -> None:
    add(control, agent)
    assert control.ask(f"kill {agent.pid} 0") == f"{WORD} {agent.pid} alive"
    control.say(f"kill {agent.pid} TERM")
    assert agent.wait() == -signal.SIGTERM
    control.hear()
    assert control.ask(f"kill {agent.pid} KILL") == f"{WORD} {agent.pid} gone"


def test_only_the_signalled_group_is_killed(control: Session, agent: Agent, shell: list[str]) -> None:
    second = Agent(shell)
    add(control, agent)
    add(control, second)
    control.ask(f"kill {second.pid} KILL")
    assert second.wait() == -signal.SIGKILL
    assert agent.process.poll() is None
    control.end_input()
    assert agent.wait() == -signal.SIGKILL
    second.close()


def test_what_an_agent_left_in_its_group_is_found_by_its_word_and_killed(control: Session, shell: list[str]) -> None:
    agent = Agent(shell, b"sh", b"-c", b"sleep 600 >/dev/null 2>&1 </dev/null & echo $!")
    add(control, agent)
    left = watch(int(agent.hear()))
    agent.wait()
    deadline = time.monotonic() + PATIENCE_S
    while control.ask(f"kill {agent.pid} KILL").endswith(" alive"):  # a zombie, or in execve(2): asked again, as we do
        assert time.monotonic() < deadline
    assert is_gone(left)
    agent.close()


# ---------------------------------------------------------------- processes that are not ours


@pytest.mark.parametrize("pid", ["", "0", "1", "-1", "01", "2147483648", "99999999999999999999", "text", "*", "1/1"])
def test_no_such_pid_is_guarded(control: Session, pid: str) -> None:
    assert control.ask(f"add {pid} 1 {OF_AGENT}").endswith(" stranger")


def test_process_without_the_word_is_not_guarded_and_not_signalled(control: Session, agent: Agent) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    for began in (start_of(stranger.pid), 1):
        assert control.ask(f"add {stranger.pid} {began} {OF_AGENT}") == f"{WORD} {stranger.pid} stranger"
    assert control.ask(f"kill {stranger.pid} KILL") == f"{WORD} {stranger.pid} gone"
    control.end_input()
    control.process.wait(20)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_shim_of_another_time_or_word_is_not_guarded(control: Session, agent: Agent) -> None:
    assert agent.reply is not None
    pid, began, _ = agent.named.split()
    assert control.ask(f"add {pid} {began}0 {OF_AGENT}") == f"{WORD} {pid} stranger"
    assert control.ask(f"add {pid} {began} {WORD}") == f"{WORD} {pid} stranger"


@pytest.mark.parametrize(("left_s", "answer"), [("0", "alive"), ("600", "gone")])
def test_process_that_got_the_pid_of_an_agent_is_not_killed(shell: list[str], left_s: str, answer: str) -> None:
    """At kill, and at the end of the lease; also the group of a process that has ended (a daemon does so)."""
    need("pid namespace")
    run = subprocess.run([*NAMESPACE, shell[0], left_s], capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stdout) == (0, f"{answer} alive alive\n"), run.stderr


@pytest.mark.parametrize("shell", SHELLS[:1], ids=["dash"])
def test_without_proc_ps_says_when_a_process_began(shell: list[str]) -> None:
    need("ps")
    control = Session(shell, control_command(WORD, 20), proc="/no-such-proc/")
    assert re.fullmatch(rf"DROVER {WORD} \d+ [A-Za-z]{{3}}_[A-Za-z0-9:_]+", control.hear())
    agent = Session(shell, agent_command(OF_AGENT, [b"sleep", b"600"], {}, b""), proc="/no-such-proc/")
    reply = read_reply(OF_AGENT, agent.hear().encode() + b"\n")
    assert reply is not None
    assert control.ask(f"add {reply.pid} {reply.began} {WORD}") == f"{WORD} {reply.pid} stranger"
    assert control.ask(f"add {reply.pid} {reply.began} {OF_AGENT}") == f"{WORD} {reply.pid} added"
    agent.say("")
    control.say(f"kill {reply.pid} KILL")
    assert agent.process.wait(20) == -signal.SIGKILL
    control.hear()
    assert control.ask(f"kill {reply.pid} KILL") == f"{WORD} {reply.pid} gone"
    agent.close()
    control.close()


# ---------------------------------------------------------------- the shim


def test_a_shim_waits_until_it_is_guarded(shell: list[str]) -> None:
    script = b'echo "$X $word $stat $$"; read -r line; echo "$line"'
    environment = {b"X": b"1", b"word": b"W", b"stat": b"S"}
    session = Session(shell, agent_command(OF_AGENT, [b"sh", b"-c", script], environment, b""))
    pid = session.process.pid
    assert session.hear() == f"DROVER {OF_AGENT} {pid} {start_of(pid)}"
    session.say("")
    assert session.hear() == f"1 W S {pid}"
    assert session.ask("its first item") == "its first item"
    session.close()


def test_a_shim_whose_connection_ends_never_becomes_the_agent(shell: list[str]) -> None:
    session = Session(shell, agent_command(OF_AGENT, [b"echo", b"here"], {}, b""))
    out, _ = session.process.communicate(timeout=20)
    assert re.fullmatch(rf"DROVER {OF_AGENT} {session.process.pid} \d+\n", out.decode())
    assert session.process.returncode == 125


def test_an_invalid_variable_name_is_refused() -> None:
    with pytest.raises(AgentError, match="X Y"):
        agent_command(OF_AGENT, [b"true"], {b"X Y": b""}, b"")


# ---------------------------------------------------------------- what a script says it is

LINE = f"DROVER {WORD} 17 123\n".encode()


@pytest.mark.parametrize("before", [b"", b"Welcome\n", b"to alpha", b"DROVER 1\n", b"DROVER 1 1\nDROVER "])
def test_text_before_a_reply_is_not_read(before: bytes) -> None:
    assert read_reply(WORD, before + LINE) == RemotePid(17, "123", WORD)
    assert [read_reply(WORD, before + LINE[:length]) for length in range(len(LINE))] == [None] * len(LINE)


@pytest.mark.parametrize(
    "pid",
    ["", "0", "1", "-1", "+2", "01", "1_0", "4194305", "2147483648", "9" * 50, "text", "\u0662", "17x", "1e3"],
)
def test_reply_with_a_pid_that_cannot_be_is_the_fault_of_the_host(pid: str) -> None:
    with pytest.raises(WorldError, match="a session was said to be process"):
        read_reply(WORD, f"DROVER {WORD} {pid} 123\n".encode())


@pytest.mark.parametrize("began", ["", " 1", "1 2", "a/b", "*", "1" * 65])
def test_reply_with_a_time_that_cannot_be_is_the_fault_of_the_host(began: str) -> None:
    with pytest.raises(WorldError, match="a session was said to be process"):
        read_reply(WORD, f"DROVER {WORD} 17 {began}\n".encode())
