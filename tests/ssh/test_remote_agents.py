"""Claims about agents on a host behind a real sshd: how they start, talk, clog and die, and what is told of it."""

import os
import signal
from hashlib import sha256
from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import TOO_LONG, Ended, LinkDown, LinkUp, Note, NotStarted, Started
from tests.agent_tools import _is_ready as is_ready
from tests.agent_tools import watch
from tests.patience import PATIENCE_S
from tests.ssh.conftest import Join, Serve
from tests.ssh.host import Host
from tests.ssh.sshd import Server, below

MANY = 40
BIG = bytes(range(256)) * 40_960  # 10 MiB
STUBBORN = 'trap "" HUP INT TERM; sh -c \'trap "" HUP INT TERM; echo up; while :; do sleep 600; done\' & wait'
COUNTS = """
import hashlib, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.write(1, b'up\\n')
signal.sigwait([signal.SIGUSR1])
print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())
"""
FLOODS = """
import os, select, sys
big, sent = bytes(range(256)) * 40_960, 0
os.set_blocking(1, False)
while sent < len(big):
    if not select.select([], [1], [], 1)[1]:
        open(sys.argv[1], 'wb').write(b'%d' % sent)
        select.select([], [1], [])
    sent += os.write(1, big[sent:])
"""


def tree(pid: int) -> list[int]:
    """Watch a process and all below it."""
    return [watch(one) for one in (pid, *below(pid))]


def all_gone(watched: list[int], within_s: float = PATIENCE_S) -> bool:
    """Return whether they all end in good time; 0 asks whether they have ended."""
    try:
        return all(is_ready(pidfd, within_s) for pidfd in watched)
    finally:
        for pidfd in watched:
            os.close(pidfd)


def connections(server: Server) -> int:
    return server.log().count("Accepted publickey")


def ping(host: Host, id: int, times: int) -> None:
    """Say something to an agent that echoes, and hear it, again and again."""
    for _ in range(times):
        length = len(host.said[id])
        host.write(id, b"still here\n")
        host.until(lambda length=length: len(host.said[id]) == length + len(b"still here\n"))


# ---------------------------------------------------------------- how they begin and end


def test_agent_behind_sshd_reads_writes_and_exits_f8(host: Host) -> None:
    host.sh('read -r line; echo "got $line"; echo oops >&2; exit 7')
    host.write(0, b"one item\n")
    assert (host.end(), host.said[0], host.errors[0]) == (Ended(0, code=7), b"got one item\n", b"oops\n")


def test_started_reports_the_pid_that_leads_session_and_group(host: Host) -> None:
    pid = host.up()
    assert (os.getsid(pid), os.getpgid(pid)) == (pid, pid)
    assert [type(report) for report in host.reports] == [LinkUp, Started]


def test_arguments_environment_and_directory_arrive_unchanged(host: Host) -> None:
    words = (b"it's", b"", b"a\nb", b"$HOME `id` \\", b"\xff\xfe", b"--", b"*")
    script = 'printf "%s|" "$@" "$X"; pwd'
    host.start("sh", "-c", script, "sh", *words, environment={b"X": b"'\xff\n "}, directory=b"/usr")
    host.end()
    assert host.said[0] == b"|".join((*words, b"'\xff\n ", b"/usr\n"))


@pytest.mark.parametrize("code", [0, 1, 128, 255])
def test_each_exit_status_is_reported(host: Host, code: int) -> None:
    host.sh(f"exit {code}")
    assert host.end() == Ended(0, code=code)


def test_end_of_input_ends_an_agent_f9(host: Host) -> None:
    host.up()
    host.close_stdin()
    assert host.end() == Ended(0, code=0)


def test_missing_program_is_not_started_and_counts_as_no_death(host: Host) -> None:
    host.start("no-such-program")
    assert host.end() == NotStarted(0, "no-such-program: not found")


def test_script_with_crlf_is_not_started_and_the_reason_says_so(host: Host, tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.write_bytes(b"#!/bin/sh\r\necho OK\r\n")
    program.chmod(0o755)
    host.start(str(program))
    why = "its lines end in CR LF, so that its interpreter is not found; try dos2unix(1)"
    assert host.end() == NotStarted(0, f"{program}: {why}")


def test_missing_directory_is_reported(host: Host) -> None:
    host.sh("true", directory=b"/no/such")
    report = host.end()
    assert isinstance(report, NotStarted)
    assert "/no/such" in report.why


def test_an_argument_of_a_hundred_kilobytes_arrives(host: Host) -> None:
    host.start("sh", "-c", 'printf %s "$1" | wc -c', "sh", b"x" * 100_000)
    host.end()
    assert host.said[0].strip() == b"100000"


@pytest.mark.parametrize("size", [140_000, 1_000_000])
def test_an_argument_too_long_for_a_command_fails_its_item(host: Host, size: int) -> None:
    host.start("true", b"x" * size)
    assert host.end() == NotStarted(0, TOO_LONG, is_items_fault=True)


def test_output_of_a_login_shell_is_not_output_of_the_agent(server: Server, join: Join) -> None:
    (server.folder / ".bashrc").write_text("echo Welcome; echo -n to alpha\n")
    host = join(server.settings())
    host.up(script="echo up")
    assert (host.end(), host.said[0]) == (Ended(0, code=0), b"up\n")


# ---------------------------------------------------------------- how they are killed


@pytest.mark.parametrize("name", ["HUP", "TERM", "USR1", "KILL"])
def test_signal_ends_an_agent_and_its_name_is_reported_f9(host: Host, name: str) -> None:
    host.up()
    host.process.signal(0, name)
    assert host.end() == Ended(0, signal=name)


def test_an_agent_that_ignores_the_end_of_input_and_hup_dies_with_its_grandchildren_f9(host: Host) -> None:
    watched = tree(host.up(script=STUBBORN))
    host.close_stdin()
    host.process.signal(0, "HUP")
    host.process.signal(0, "KILL")
    assert host.end() == Ended(0, signal="KILL")
    assert all_gone(watched)


def test_processes_left_in_the_group_of_an_agent_are_killed(host: Host) -> None:
    host.sh("sleep 600 >/dev/null 2>&1 </dev/null & echo $!; read line")
    host.until(lambda: host.said[0].endswith(b"\n"))
    left = watch(int(host.said[0]))
    host.write(0, b"end\n")
    assert host.end() == Ended(0, code=0)
    assert all_gone([left])


@pytest.mark.slow
def test_process_that_holds_the_pipes_of_a_dead_agent_is_killed_at_a_deadline(host: Host) -> None:
    host.sh("sleep 600 & echo $!")
    host.until(lambda: host.said[0].endswith(b"\n"))
    left = watch(int(host.said[0]))
    assert host.end() == Ended(0, code=0)
    assert all_gone([left])


@pytest.mark.slow
def test_process_that_left_the_group_with_the_pipes_does_not_delay_the_end(host: Host) -> None:
    host.sh("setsid sh -c 'echo $$; exec sleep 600' & wait $!")
    host.until(lambda: host.said[0].endswith(b"\n"))
    fled = int(host.said[0])
    try:
        host.process.signal(0, "KILL")
        assert host.end() == Ended(0, signal="KILL")
    finally:
        os.kill(fled, signal.SIGKILL)


def test_an_agent_killed_before_it_began_never_begins(host: Host) -> None:
    host.sh("echo up")
    host.process.signal(0, "KILL")
    assert isinstance(host.end(), NotStarted)
    assert host.said[0] == b""


def test_signal_to_an_ended_agent_does_nothing(host: Host) -> None:
    host.sh("exit 0")
    host.end()
    host.process.signal(0, "KILL")
    host.up(1)
    assert host.over(1) == []


def test_finish_kills_all_agents_reports_their_ends_and_ends_the_process(host: Host) -> None:
    watched = tree(host.up(0)) + tree(host.up(1, script=STUBBORN)) + [watch(host.process.pid or 0)]
    host.process.finish()
    assert (host.end(0), host.end(1)) == (Ended(0, signal="KILL"), Ended(1, signal="KILL"))
    assert all_gone(watched)


# ---------------------------------------------------------------- how many


def test_forty_agents_share_five_connections(server: Server, host: Host) -> None:
    for id in range(MANY):
        host.sh("echo up; exec cat", id=id)
    host.until(lambda: all(host.said[id] == b"up\n" for id in range(MANY)))
    for id in range(MANY):
        host.write(id, b"%d\n" % id)
    host.until(lambda: all(host.said[id] == b"up\n%d\n" % id for id in range(MANY)))
    assert connections(server) == 5
    assert host.all(LinkUp) == [LinkUp()]


def test_sessions_of_ended_agents_are_used_again(server: Server, host: Host) -> None:
    for id in range(30):
        host.sh("true", id=id)
        assert host.end(id) == Ended(id, code=0)
    assert connections(server) == 1


@pytest.mark.parametrize("sessions", [1, 2, 4])
def test_agents_per_connection_follow_the_limit_of_the_host(serve: Serve, join: Join, sessions: int) -> None:
    host = join(serve(MaxSessions=sessions).settings())
    for id in range(6):
        host.sh("echo up; exec cat", id=id)
    host.until(lambda: all(host.said[id] == b"up\n" for id in range(6)))
    host.process.signal(5, "TERM")
    assert host.end(5) == Ended(5, signal="TERM")
    host.close_stdin(0)
    assert host.end(0) == Ended(0, code=0)
    assert host.all(LinkDown) == []


@pytest.mark.slow
def test_connections_are_made_a_few_at_a_time(serve: Serve, join: Join) -> None:
    """More than MaxStartups at once would be dropped by sshd."""
    host = join(serve(MaxSessions=2, MaxStartups=9).settings())
    for id in range(MANY):
        host.sh("echo up; exec cat", id=id)
    host.until(lambda: all(host.said[id] == b"up\n" for id in range(MANY)))
    assert host.all(Note) == []


# ---------------------------------------------------------------- how they are held up


def test_input_waits_in_the_supervisors_pipe_until_the_agent_reads(host: Host) -> None:
    host.start("python3", "-S", "-c", COUNTS)
    host.up(1)
    host.until(lambda: host.said[0] == b"up\n")
    host.feed(0, BIG)
    before = -1
    while host.fed[0] != before:  # others are answered on the same connection: nobody is held up but this agent
        before = host.fed[0]
        ping(host, 1, 20)
    assert 0 < host.fed[0] < len(BIG) // 2
    host.process.signal(0, "USR1")
    host.until(lambda: host.fed[0] == len(BIG))
    host.close_stdin()
    assert host.end() == Ended(0, code=0)
    assert host.said[0].split()[-1].decode() == sha256(BIG).hexdigest()


@pytest.mark.slow
def test_output_waits_at_the_agent_until_the_supervisor_reads(host: Host, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held_up")
    host.start("python3", "-S", "-c", FLOODS, str(tmp_path / "held_up"), is_heard=False)
    sent = int((tmp_path / "held_up").read_bytes())
    assert sent < len(BIG) // 2
    host.hear(0)
    assert host.end() == Ended(0, code=0)
    assert host.said[0] == BIG
