"""Claims about what a process of the daemon inherits from whoever started the daemon: the table in drover-agent(7)."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli_tools import DROVER
from tests.integration.conftest import Launch
from tests.integration.daemon import RUN, Daemon, agent, below
from tests.integration.ssh_tools import ALPHA, reached, table
from tests.integration.test_detached import Site, site  # noqa: F401  (a fixture)
from tests.integration.test_reexec import reexec
from tests.needs import need
from tests.patience import PATIENCE_S
from tests.ssh.sshd import Server

FILES = 300  # a limit of open files that is below the hard one
# Starts a program in the worst state: every signal ignored and blocked, no rights for new files, odd limits.
HOSTILE = f"""
import os, resource, signal, sys
numbers = signal.valid_signals() - {{signal.SIGKILL, signal.SIGSTOP}}
for number in numbers:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
os.umask(0o777)
os.nice(3)
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
resource.setrlimit(resource.RLIMIT_CORE, (4096, 8192))
os.execv(sys.argv[1], sys.argv[1:])
"""
STARTER = [sys.executable, "-S", "-E", "-c", HOSTILE]
# What an agent finds; head(1) would change none of it. Lines of an agent are read only when it has said all.
LOOK = (
    "{ grep -E '^Sig(Blk|Ign)|^Umask' /proc/self/status; ulimit -Sn; ulimit -Sc; nice; "
    "cat /proc/self/oom_score_adj; } >%s.new; chmod 600 %s.new; mv %s.new %s"
)
OF_LIBC = "0000000180000000"  # ignored by posix_spawn(3) of glibc, which uses these two itself
CLEAN = "Umask:\t0777\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
EXPECTED = f"{CLEAN}{FILES}\n8\n3\n0\n"


def look(file: Path, then: str = "") -> list[str]:
    """Return an argv that writes what it has inherited into a file."""
    return ["sh", "-c", (LOOK % ((file,) * 4)) + then]


def found(daemon: Daemon, file: Path) -> str:
    daemon.until(file.exists, what="nothing is written")
    return read(file)


def read(file: Path) -> str:
    """Return what was written, without the signals of the libc: one that was ignored can be reset by nobody."""
    return re.sub("(?<=SigIgn:\t).*", lambda mask: f"{int(mask[0], 16) & ~int(OF_LIBC, 16):016x}", file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"kind": "exec"}, {"kind": "exec", "limits": {"cpu": 600}}])
def test_agents_start_as_after_a_login_whoever_started_the_daemon(
    launch: Launch, tmp_path: Path, keys: dict[str, object]
) -> None:
    file = tmp_path / "found"
    then = "" if keys else "; echo OK; while read -r line; do echo OK; done"
    daemon = launch(ALPHA + agent("look", look(file, then), **keys), program=[*STARTER, *RUN])
    daemon.wait(daemon.insert(jq_type="look"))
    assert found(daemon, file) == EXPECTED


@pytest.mark.slow
def test_no_signal_is_blocked_in_an_agent_whoever_started_the_daemon(launch: Launch) -> None:
    """Some shells unblock all signals at their start; this program does not."""
    argv = ["grep", "^SigBlk", "/proc/self/status"]
    daemon = launch(ALPHA + agent("look", argv, kind="exec"), program=[*STARTER, *RUN])
    daemon.wait(daemon.insert(jq_type="look"))
    assert daemon.value("select out_data from drover.output") == "SigBlk:\t0000000000000000\n"


OWN = """
import ctypes, os
get_death_signal, get_dumpable, number = 2, 3, ctypes.c_int()
prctl = ctypes.CDLL(None).prctl
prctl(get_death_signal, ctypes.byref(number), 0, 0, 0)
print(os.getpgrp() == os.getpid(), prctl(get_dumpable, 0, 0, 0, 0), number.value, os.getsid(0))
"""


@pytest.mark.slow
def test_an_agent_leads_a_group_in_the_session_of_the_daemon_and_may_be_debugged(launch: Launch) -> None:
    daemon = launch(ALPHA + agent("look", [sys.executable, "-S", "-E", "-c", OWN], kind="exec"))
    daemon.wait(daemon.insert(jq_type="look"))
    assert daemon.value("select out_data from drover.output") == f"True 1 0 {os.getsid(daemon.pid)}\n"


@pytest.mark.slow
def test_detached_jobs_start_as_after_a_login_whoever_started_the_daemon(
    launch: Launch,
    site: Site,  # noqa: F811
    tmp_path: Path,
) -> None:
    file = tmp_path / "found"
    daemon = launch(site.config(), program=[*STARTER, *RUN])
    daemon.wait(daemon.insert(jq_type="long", jq_args=look(file)[-1]))
    assert found(daemon, file) == EXPECTED


@pytest.mark.slow
def test_ssh_processes_start_as_after_a_login_whoever_started_the_daemon(
    launch: Launch, beta: Server, tmp_path: Path
) -> None:
    daemon = launch(table("beta", beta) + agent("look", ["true"], kind="exec"), program=[*STARTER, *RUN])
    reached(daemon)
    daemon.wait(daemon.insert(jq_type="look"))
    (process,) = (
        pid for pid in below(daemon.process.pid) if b"scheduler.ssh" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    masks = dict(
        line.split(":\t") for line in Path(f"/proc/{process}/status").read_text().splitlines() if "Sig" in line
    )
    by_python = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert (int(masks["SigBlk"], 16), int(masks["SigIgn"], 16) & ~int(OF_LIBC, 16)) == (0, by_python)


@pytest.mark.slow
def test_agents_of_a_program_that_took_over_have_the_limit_of_the_first_start(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "found"
    daemon = launch(ALPHA + agent("look", look(file), kind="exec"), program=[*STARTER, *RUN])
    reexec(daemon)
    reexec(daemon)
    daemon.wait(daemon.insert(jq_type="look"))
    assert found(daemon, file) == EXPECTED


@pytest.mark.slow
def test_agents_are_not_spared_when_memory_runs_out_as_the_daemon_is(launch: Launch, tmp_path: Path) -> None:
    """To be spared takes privileges, so the file says that the daemon is, and the daemon has a score to be lowered."""
    need("mount")
    file, spared = tmp_path / "found", tmp_path / "spared"
    spared.write_text("-500\n")
    script = (
        f"echo 300 >/proc/self/oom_score_adj; mount --bind {spared} /proc/$$/oom_score_adj; "
        'export SYSTEMD_EXEC_PID=$$; exec "$@"'
    )
    program = ["unshare", "--mount", "sh", "-c", script, "sh", *RUN]
    daemon = launch(ALPHA + agent("look", look(file), kind="exec"), program=program)
    daemon.wait(daemon.insert(jq_type="look"))
    assert found(daemon, file).splitlines()[-1] == "0"


@pytest.mark.slow
def test_daemon_that_waits_for_its_database_ends_at_sigterm_whoever_started_it(launch: Launch) -> None:
    nowhere = "host=127.0.0.1 port=1 dbname=none"
    daemon = launch(ALPHA + agent("true", ["true"], kind="exec"), via=nowhere, wait=False, program=[*STARTER, *RUN])
    daemon.until(lambda: "trying again" in daemon.stderr(), what="it does not wait")
    assert daemon.stop() in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_an_embedded_database_is_made_and_stopped_whoever_started_the_daemon(tmp_path: Path) -> None:
    need("postgres")
    config = tmp_path / "drover.toml"
    config.write_text(f'[database]\nurl = "embedded:{tmp_path}/pg"\n{ALPHA}{agent("true", ["true"], kind="exec")}')
    log = tmp_path / "log"
    starter = [*STARTER[:-1], HOSTILE.replace("os.umask(0o777)", "")]  # no directory could be made
    environment = {name: text for name, text in os.environ.items() if name != "DROVER_DATABASE_URL"}
    with log.open("wb") as errors:
        daemon = subprocess.Popen([*starter, *RUN, "-c", str(config)], stderr=errors, env=environment)
    try:
        deadline = time.monotonic() + 3 * PATIENCE_S
        while "serving group" not in log.read_text():
            assert (time.monotonic() < deadline, daemon.poll()) == (True, None), log.read_text()
            time.sleep(0.02)
    finally:
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0
    assert not (tmp_path / "pg/data/postmaster.pid").exists()


def test_agent_check_starts_a_program_as_after_a_login(tmp_path: Path) -> None:
    file, program = tmp_path / "found", tmp_path / "agent"
    program.write_text("#!/bin/sh\n" + look(file)[-1] + "\necho OK\nwhile read -r line; do echo OK; done\n")
    program.chmod(0o755)
    done = subprocess.run([*STARTER, *DROVER, "agent-check", str(program)], capture_output=True, text=True, check=False)
    assert "SIGHUP: it exits" in done.stdout
    assert read(file).startswith(CLEAN)


def test_agent_run_starts_a_program_as_after_a_login(tmp_path: Path) -> None:
    file, config = tmp_path / "found", tmp_path / "drover.toml"
    config.write_text(ALPHA + agent("look", look(file), kind="exec"))
    subprocess.run([*STARTER, *DROVER, "-c", str(config), "agent", "run", "look", "x"], capture_output=True, check=True)
    assert read(file).startswith(CLEAN)


def test_agent_check_learns_how_its_children_end_whoever_started_it(tmp_path: Path) -> None:
    """With SIGCHLD ignored nobody is told how a child ended."""
    config = tmp_path / "drover.toml"
    config.write_text(ALPHA + agent("bad", ["false"]))
    done = subprocess.run(
        [*STARTER, *DROVER, "-c", str(config), "agent-check", "--allow-root"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "exit status 1" in done.stdout
