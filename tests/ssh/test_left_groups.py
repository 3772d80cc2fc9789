"""Claims about processes that have left the group of an agent, on a real sshd: they end with it, or with the host."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import Ended, LinkDown, Lost, Note
from tests.agent_tools import is_gone, watch
from tests.patience import PATIENCE_S
from tests.ssh.accounts import with_login_shell
from tests.ssh.conftest import Join, Serve
from tests.ssh.host import Host
from tests.ssh.sshd import Server, kill, name_of, parent_of

# Leads a session of its own and is deaf, before its pid is printed.
LEAVES = "setsid sh -c 'trap \"\" HUP TERM; echo $$; exec sleep 600 >/dev/null 2>&1 </dev/null' & "
# Each process of the chain starts the next in another session and ends, a minute long.
CHAIN = """
export script='trap "" HUP; echo $$ >>"$2"; [ $1 -lt 300 ] || exit
sleep 0.2; setsid sh -c "$script" sh $(($1 + 1)) "$2" & sleep 0.1'
setsid sh -c "$script" sh 1 {file} >/dev/null 2>&1 </dev/null & read -r line
"""
# A grep that names another process than was asked for, as if its pid had been given again since.
LIES = '#!/bin/sh\ncase $1 in -ls) echo /proc/{pid}/environ ;; *) exec {grep} "$@" ;; esac\n'


def left_by(host: Host, script: str = LEAVES + "read -r line", id: int = 0) -> int:
    """Start an agent, and watch the process that has left its group."""
    host.sh(script, id=id)
    host.until(lambda: host.said[id].endswith(b"\n"))
    return watch(int(host.said[id]))


def dies(pidfd: int) -> bool:
    try:
        return is_gone(pidfd)
    finally:
        os.close(pidfd)


def test_what_has_left_the_group_of_an_agent_is_killed_when_that_exits(host: Host) -> None:
    left = left_by(host)
    host.write(0, b"end\n")
    assert host.end() == Ended(0, code=0)
    assert host.all(Note) == []
    assert dies(left)


def test_what_has_left_the_group_of_an_agent_is_killed_with_it(host: Host) -> None:
    left = left_by(host)
    host.process.signal(0, "KILL")
    assert host.end() == Ended(0, signal="KILL")
    assert dies(left)


@pytest.mark.parametrize(
    "script",
    [
        "kill() { :; }; export -f kill",
        'grep() { command grep --color=always "$@"; }; export -f grep',
        "set -f; export SHELLOPTS",
        "read() { :; }; export -f read",
    ],
    ids=["kill", "grep", "noglob", "read"],
)
def test_login_scripts_that_change_what_words_of_sh_mean_change_nothing(
    serve: Serve, join: Join, tmp_path: Path, script: str
) -> None:
    """bash takes functions and options from the environment, as sh too."""
    (tmp_path / "server0").mkdir()
    (tmp_path / "server0" / ".bashrc").write_text(f"{script}\n")
    host = join(serve(inside=with_login_shell(tmp_path, "/bin/bash", sh="/bin/bash")).settings())
    left = left_by(host, LEAVES + "exec cat")
    host.process.signal(0, "KILL")
    assert host.end() == Ended(0, signal="KILL")
    assert dies(left)


def test_what_has_left_the_group_of_an_agent_that_runs_is_let_be_while_others_end(host: Host) -> None:
    others, own = left_by(host, id=0), left_by(host, id=1)
    host.write(0, b"end\n")
    assert dies(others)
    host.up(2)
    os.kill(int(host.said[1]), 0)
    host.write(1, b"end\n")
    assert dies(own)


def test_what_has_left_the_group_of_an_agent_dies_with_the_ssh_process(host: Host) -> None:
    left = left_by(host)
    kill(host.process.pid or 0)
    assert isinstance(host.end(), Lost)
    assert dies(left)


def test_what_has_left_the_group_of_an_agent_dies_with_the_connection(server: Server, host: Host) -> None:
    left = left_by(host)
    server.kill()
    assert isinstance(host.end(), Lost)
    assert dies(left)


def test_what_has_left_the_group_of_an_agent_dies_when_the_process_finishes(host: Host) -> None:
    left = left_by(host)
    host.process.finish()
    assert host.end() == Ended(0, signal="KILL")
    assert dies(left)


def test_chain_of_processes_each_in_a_session_of_its_own_is_killed(host: Host, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    host.sh(CHAIN.format(file=pids))
    host.until(lambda: pids.exists() and len(pids.read_text().split()) > 2)
    host.write(0, b"end\n")
    assert host.end() == Ended(0, code=0)
    deadline = time.monotonic() + PATIENCE_S
    while any(name_of(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline, "the chain goes on"
        time.sleep(0.05)


def test_process_with_a_cleared_environment_is_left(host: Host) -> None:
    fled = left_by(host, "setsid env -i sh -c 'echo $$; exec sleep 600 >/dev/null 2>&1 </dev/null' & read -r line")
    swept = left_by(host, id=1)
    host.write(0, b"end\n")
    host.end(0)
    host.write(1, b"end\n")
    assert dies(swept)
    signal.pidfd_send_signal(fled, signal.SIGKILL)  # it is there
    os.close(fled)


@pytest.mark.slow
def test_process_that_is_found_and_not_of_the_agent_is_not_killed_but_noted(server: Server, join: Join) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    grep = server.folder / "grep"
    grep.write_text(LIES.format(pid=stranger.pid, grep=shutil.which("grep")))
    grep.chmod(0o755)
    (server.folder / ".bashrc").write_text(f"PATH={server.folder}:$PATH\n")
    host = join(server.settings())
    host.sh("true")
    assert f"still there: process {stranger.pid}" in host.await_report(Note).text
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_agent_whose_connection_is_lost_is_killed_by_the_control_session_of_another(serve: Serve, join: Join) -> None:
    server = serve(MaxSessions=1)
    host = join(server.settings())
    host.sh("trap '' HUP TERM; exec 2>/dev/null; echo $$; while :; do sleep 600; done")
    host.until(lambda: host.said[0].endswith(b"\n"))
    agent = watch(int(host.said[0]))
    kill(parent_of(int(host.said[0])))  # the sshd of its connection
    assert isinstance(host.end(), Lost)
    assert host.all(LinkDown) == []
    assert dies(agent)
