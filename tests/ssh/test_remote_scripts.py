"""Claims about the two scripts that run on a host, run here by each sh there is, without any ssh."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from scheduler.errors import AgentError, WorldError
from scheduler.ssh.remote_scripts import (
    RemotePid,
    RemoteScript,
    agent_script,
    control_script,
    is_ready,
    new_word,
    read_reply,
)
from tests.agent_tools import is_gone, watch
from tests.needs import need
from tests.other_user import setuid_program
from tests.patience import LONG_PATIENCE_S, PATIENCE_S

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "tests.ssh.recycled")
SHELLS = [["dash"], ["bash", "--posix"], ["busybox", "ash"], ["mksh"]]
WORD = "f" * 32  # of a control session; agents have their own, or other tests would sweep them


class Session:
    """What sshd would start: a script in a session of its own, between pipes; its sh has said its pid."""

    def __init__(self, shell: list[str], script: RemoteScript, proc: str = "/proc/", user: int | None = None) -> None:
        need(shell[0])
        word, sh, option, bootstrap, *rest = shlex.split(script.command.decode())
        assert (word, sh, option) == ("exec", "/bin/sh", "-c")
        pipe, argv = subprocess.PIPE, [*shell, "-c", bootstrap, *rest]
        keys: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "bufsize": 0, "user": user}
        self.process = subprocess.Popen(argv, **keys, start_new_session=True)
        self.reply = read_reply(script.word, self.hear().encode() + b"\n")
        assert self.reply == RemotePid(self.process.pid, script.word)
        self.send(script.line.replace(b"/proc/", proc.encode()))

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        while data:
            data = data[self.process.stdin.write(data) :]

    def say(self, line: str) -> None:
        self.send(line.encode() + b"\n")

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
        self.process.wait(PATIENCE_S)


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
    session = Session(shell, control_script(WORD, lease_s))
    assert is_ready(WORD, session.hear().encode() + b"\n")
    yield session
    session.close()


class Agent(Session):
    """An agent behind its shim, ours to reap; its process is named as the control session wants it."""

    def __init__(self, shell: list[str], *argv: bytes, user: int | None = None) -> None:
        self.word = new_word()
        super().__init__(shell, agent_script(self.word, argv or (b"sleep", b"600"), {}, b""), user=user)
        assert is_ready(self.word, self.hear().encode() + b"\n")
        self.pid = self.process.pid
        self.named = f"{self.pid} {self.word}"

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


@pytest.mark.slow
@pytest.mark.parametrize("lease_s", [2])
def test_what_left_a_guarded_group_dies_when_the_lease_runs_out(control: Session, shell: list[str]) -> None:
    agent = Agent(shell, b"setsid", b"sh", b"-c", b"echo $$; exec sleep 600 >/dev/null 2>&1 </dev/null")
    add(control, agent)
    assert is_gone(watch(int(agent.hear())))
    assert is_gone(watch(control.process.pid))
    agent.close()


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


def test_signal_to_another_users_process_is_refused_and_of_its_zombie_it_is_not_said(shell: list[str]) -> None:
    control = Session(shell, control_script(WORD, 20), user=1)
    assert is_ready(WORD, control.hear().encode() + b"\n")
    with setuid_program() as become:
        agent = Agent(shell, *map(os.fsencode, become), b"echo up; exec sleep 600", user=1)
        add(control, agent)
        assert agent.hear() == "up"
    assert control.ask(f"kill {agent.pid} TERM") == f"{WORD} {agent.pid} refused"
    os.kill(agent.pid, signal.SIGKILL)
    os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
    assert control.ask(f"kill {agent.pid} 0") == f"{WORD} {agent.pid} alive"
    agent.wait()
    assert control.ask(f"kill {agent.pid} KILL") == f"{WORD} {agent.pid} gone"
    agent.close()
    control.close()


# ---------------------------------------------------------------- processes that are not ours


@pytest.mark.parametrize("pid", ["", "0", "1", "-1", "01", "2147483648", "99999999999999999999", "text", "*", "1/1"])
def test_no_such_pid_is_guarded(control: Session, pid: str) -> None:
    assert control.ask(f"add {pid} {new_word()}").endswith(" stranger")


def test_process_without_the_word_is_not_guarded_and_not_signalled(control: Session, agent: Agent) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    assert control.ask(f"add {stranger.pid} {agent.word}") == f"{WORD} {stranger.pid} stranger"
    assert control.ask(f"kill {stranger.pid} KILL") == f"{WORD} {stranger.pid} gone"
    control.end_input()
    control.process.wait(PATIENCE_S)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_shim_of_another_word_is_not_guarded(control: Session, agent: Agent) -> None:
    assert control.ask(f"add {agent.pid} {WORD}") == f"{WORD} {agent.pid} stranger"


@pytest.mark.parametrize(("left_s", "answer"), [("0", "alive"), ("600", "gone")])
def test_process_that_got_the_pid_of_an_agent_is_not_killed(shell: list[str], left_s: str, answer: str) -> None:
    """At kill, and at the end of the lease; also the group of a process that has ended (a daemon does so)."""
    need("pid namespace")
    run = subprocess.run(
        [*NAMESPACE, shell[0], left_s], capture_output=True, text=True, check=False, timeout=LONG_PATIENCE_S
    )
    assert (run.returncode, run.stdout) == (0, f"{answer} alive alive\n"), run.stderr


@pytest.mark.parametrize("shell", SHELLS[:1], ids=["dash"])
def test_without_proc_ps_says_when_a_process_began(shell: list[str]) -> None:
    need("ps")
    control = Session(shell, control_script(WORD, 20), proc="/no-such-proc/")
    assert is_ready(WORD, control.hear().encode() + b"\n")
    agent = Agent(shell)
    assert control.ask(f"add {agent.pid} {WORD}") == f"{WORD} {agent.pid} stranger"
    assert control.ask(f"add {agent.named}") == f"{WORD} {agent.pid} added"
    agent.say("")
    control.say(f"kill {agent.pid} KILL")
    assert agent.wait() == -signal.SIGKILL
    control.hear()
    assert control.ask(f"kill {agent.pid} KILL") == f"{WORD} {agent.pid} gone"
    assert control.ask("sweep") == f"{WORD} swept"
    agent.close()
    control.close()


# ---------------------------------------------------------------- the shim


def test_a_shim_waits_until_it_is_guarded(shell: list[str]) -> None:
    script = b'echo "$X $word $stat $$"; read -r line; echo "$line"'
    environment = {b"X": b"1", b"word": b"W", b"stat": b"S"}
    session = Session(shell, agent_script(WORD, [b"sh", b"-c", script], environment, b""))
    pid = session.process.pid
    assert session.hear() == f"DROVER {WORD} ready"
    session.say("")
    assert session.hear() == f"1 W S {pid}"
    assert session.ask("its first item") == "its first item"
    session.close()


def test_a_shim_whose_connection_ends_never_becomes_the_agent(shell: list[str]) -> None:
    session = Session(shell, agent_script(WORD, [b"echo", b"here"], {}, b""))
    out, _ = session.process.communicate(timeout=PATIENCE_S)
    assert out.decode() == f"DROVER {WORD} ready\n"
    assert session.process.returncode == 125


SHEBANG = "its interpreter /no/such is not there or not executable; install it or correct the first line"


@pytest.mark.parametrize(
    ("head", "mode", "why"),
    [
        (b"#!/bin/sh\r\n", 0o755, "its lines end in CR LF, so that its interpreter is not found; try dos2unix(1)"),
        (b"#! \t /no/such\n", 0o755, SHEBANG),
        (b"#!/no/such x /bin/sh", 0o755, SHEBANG),
        (b"#!/bin/sh\n", 0o644, "it is not executable, or is on a noexec mount; chmod a+x it, or move it"),
    ],
    ids=["crlf", "interpreter", "arguments", "mode"],
)
def test_program_that_cannot_be_executed_is_refused_with_what_is_wrong(
    shell: list[str], tmp_path: Path, head: bytes, mode: int, why: str
) -> None:
    program = tmp_path / "it's * a"
    program.write_bytes(head)
    program.chmod(mode)
    assert refusal(shell, program) == (126, f"{program}: {why}\n")


def test_what_is_no_program_is_refused_with_what_it_is(shell: list[str], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o755)
    assert refusal(shell, tmp_path) == (126, f"{tmp_path}: it is a directory or a device; name a program\n")
    assert refusal(shell, pipe) == (126, f"{pipe}: it is a directory or a device; name a program\n")
    assert refusal(shell, tmp_path / "none") == (127, f"{tmp_path}/none: not found\n")


def refusal(shell: list[str], program: Path) -> tuple[int, str]:
    """Return with what status a shim refuses a program, and what it says; it was never ready."""
    session = Session(shell, agent_script(WORD, [bytes(program)], {}, b""))
    out, err = session.process.communicate(timeout=PATIENCE_S)
    assert out == b""
    return session.process.returncode, err.decode()


@pytest.mark.parametrize("head", [b"#!/bin/sh\n", b"#! /bin/sh -e\n", b"#!/bin/sh", b"#!\n", b"#!\t/bin/sh  \n", b""])
def test_program_that_can_be_executed_begins(shell: list[str], tmp_path: Path, head: bytes) -> None:
    program = tmp_path / "program"
    program.write_bytes(head)
    program.chmod(0o755)
    session = Session(shell, agent_script(WORD, [bytes(program)], {}, b""))
    assert session.hear() == f"DROVER {WORD} ready"
    session.close()


def test_program_that_can_be_executed_and_not_read_begins(shell: list[str]) -> None:
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = Path(shutil.copy(shutil.which("true") or "", folder))
        program.chmod(0o711)
        session = Session(shell, agent_script(WORD, [bytes(program)], {}, b"/"), user=1)
        assert session.hear() == f"DROVER {WORD} ready"
        session.say("")
        assert session.process.wait(PATIENCE_S) == 0
        session.close()


@pytest.mark.parametrize(
    "script", [control_script(WORD, 20), agent_script(WORD, [b"a\nb", b"it's"], {b"X": b"\n"}, b"")]
)
def test_command_has_nothing_that_login_shells_read_in_different_ways(script: RemoteScript) -> None:
    assert re.fullmatch(rb"exec /bin/sh -c '[^'\\!\n]{1,900}' drover-(control|agent) [0-9a-f]+", script.command)
    assert script.line.count(b"\n") == 1


def test_an_invalid_variable_name_is_refused() -> None:
    with pytest.raises(AgentError, match="X Y"):
        agent_script(WORD, [b"true"], {b"X Y": b""}, b"")


# ---------------------------------------------------------------- what a script says it is

LINE = f"DROVER {WORD} 17\n".encode()


@pytest.mark.parametrize("before", [b"", b"Welcome\n", b"to alpha", b"DROVER 1\n", b"DROVER 1 1\nDROVER "])
def test_text_before_a_reply_is_not_read(before: bytes) -> None:
    assert read_reply(WORD, before + LINE) == RemotePid(17, WORD)
    assert [read_reply(WORD, before + LINE[:length]) for length in range(len(LINE))] == [None] * len(LINE)


@pytest.mark.parametrize(
    "pid",
    ["", "0", "1", "-1", "+2", "01", "1_0", "4194305", "2147483648", "9" * 50, "text", "\u0662", "17x", "1e3", "17 1"],
)
def test_reply_with_a_pid_that_cannot_be_is_the_fault_of_the_host(pid: str) -> None:
    with pytest.raises(WorldError, match="a session was said to be process"):
        read_reply(WORD, f"DROVER {WORD} {pid}\n".encode())
