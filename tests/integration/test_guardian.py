"""Claims about the guardian: nobody outlives the daemon, signals and ends go through, an orphaned daemon stops."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import psycopg
import pytest

from scheduler.database import embedded
from tests.agent_tools import is_gone, watch
from tests.integration.conftest import Launch
from tests.integration.daemon import RUN, Daemon
from tests.integration.puppets import LOCAL, Meeting, puppet, said
from tests.needs import need

ROOT = Path(__file__).parents[2]
TREE = """
trap '' HUP INT TERM
if [ $1 -gt 0 ]; then
  setsid sh {path} $(($1 - 1)) &
  setsid sh {path} $(($1 - 1)) &
fi
{tell}
exec sleep 1000
"""
FAMILIES = {
    "an agent": ("exec {tree} 0", 1),
    "a grandchild": ("{tree} 0 & wait", 1),
    "one in a session of its own": ("setsid {tree} 0 & wait", 1),
    "one that has lost its parent": ("(setsid {tree} 0 &); read go <{gate}", 1),
    "thirty, each in a session of its own": ("{tree} 4 & wait", 31),
}
BEGIN = """
import os, signal, sys
from scheduler.daemon import guardian
guardian.begin(os.environ)
"""
LISTEN = """
import os, signal
from scheduler.daemon import guardian
heard = {signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, heard)
guardian.begin(os.environ)
print("up", flush=True)
while (number := signal.sigwait(heard)) != signal.SIGTERM:
    print(signal.Signals(number).name, flush=True)
"""
TELL = BEGIN + "print(os.getpid(), os.getppid())"
IGNORING_CHILDREN = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"

Watch = Callable[[int], int]
Family = Callable[[str], list[int]]
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def watched() -> Iterator[Watch]:
    """Yield a pidfd of a process; it is killed at the end if it still lives."""
    pidfds: list[int] = []

    def watched(pid: int) -> int:
        pidfds.append(watch(pid))
        return pidfds[-1]

    yield watched
    for pidfd in pidfds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, SIGKILL)
        os.close(pidfd)


@pytest.fixture
def daemon(launch: Launch) -> Daemon:
    """Return a daemon with one puppet."""
    return launch(LOCAL + puppet())


@pytest.fixture
def family(daemon: Daemon, meeting: Meeting, tmp_path: Path, watched: Watch) -> Family:
    """Queue a job that starts one of FAMILIES; pidfds of those that are to be gone, once all are there."""
    tree = tmp_path / "tree"
    tree.write_text(TREE.format(path=tree, tell=meeting.tell("$$")))

    def family(kind: str) -> list[int]:
        script, size = FAMILIES[kind]
        gate = meeting.wait.rpartition("<")[2]
        daemon.insert(jq_type="puppet", jq_args=script.format(tree=f"sh {tree}", gate=gate))
        return [watched(int(pid)) for pid in meeting.hear_all(size)]

    return family


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start a small program that begins with a guardian; it is killed at the end if it still lives."""
    begun: list[subprocess.Popen[str]] = []

    def begin(script: str, *before: str, **options: Any) -> "subprocess.Popen[str]":
        argv = [*before, sys.executable, "-c", script]
        begun.append(subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options))
        return begun[-1]

    yield begin
    for process in begun:
        with process:
            process.kill()


def heard(process: "subprocess.Popen[str]", count: int) -> list[str]:
    """Return the next lines of a program."""
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def children(pid: int) -> list[int]:
    """Return the children of a process, zombies too, the oldest first."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# ---- nobody survives


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_no_process_survives_a_killed_daemon_f115(daemon: Daemon, family: Family, kind: str) -> None:
    members = family(kind)
    assert daemon.stop(SIGKILL) == -SIGKILL
    assert all(map(is_gone, members))


def test_remaining_processes_get_sighup_before_sigkill_f9(daemon: Daemon, meeting: Meeting, tmp_path: Path) -> None:
    heeds = tmp_path / "heeds"
    tell = f"trap '{meeting.tell('$1 was told')}; exit' HUP"
    heeds.write_text(f"exec 2>&-; {tell}; {meeting.tell('up')}; while :; do sleep 0.1; done")
    daemon.insert(jq_type="puppet", jq_args=f"setsid sh {heeds} grandchild & exec sh {heeds} agent")
    assert meeting.hear_all(2) == ["up", "up"]
    assert daemon.stop(SIGKILL) == -SIGKILL
    assert meeting.hear_all(2) == ["agent was told", "grandchild was told"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_no_process_survives_an_orderly_end_of_the_daemon_f115(daemon: Daemon, family: Family, kind: str) -> None:
    members = family(kind)
    assert daemon.stop(SIGTERM) == 0
    assert all(map(is_gone, members))


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if "lost" not in kind])
def test_a_daemon_whose_guardian_is_killed_stops_in_order_and_leaves_no_process_f54_f115(
    daemon: Daemon, family: Family, watched: Watch, kind: str
) -> None:
    members, itself = family(kind), watched(daemon.pid)
    daemon.process.kill()
    assert all(map(is_gone, [itself, *members]))
    assert said(daemon, "the guardian has ended: stopping").endswith("ended\n")
    assert daemon.execute("select jq_state::text, jq_endtext from drover.jobqueue") == [
        {"jq_state": "queued", "jq_endtext": "released for restart"}
    ]


def test_an_orphan_that_exits_is_reaped(daemon: Daemon, meeting: Meeting) -> None:
    job = daemon.insert(jq_type="puppet", jq_args=f"(setsid sh -c '{meeting.tell('$PPID')}; {meeting.wait}' &)")
    daemon.wait(job)
    assert int(meeting.hear()) != daemon.pid
    daemon.until(lambda: len(children(daemon.process.pid)) == 2, what="the guardian did not adopt it")
    meeting.let_go()
    daemon.until(lambda: children(daemon.process.pid) == [daemon.pid], what="it was not reaped")


@pytest.mark.slow
def test_an_embedded_database_serves_others_after_its_daemon_is_killed(tmp_path: Path, begin: Begin) -> None:
    need("postgres")
    need("setpriv")
    config = tmp_path / "drover.toml"
    config.write_text(f'[database]\nurl = "embedded:{tmp_path / "pg"}"\n{LOCAL}{puppet()}')
    environment = {name: text for name, text in os.environ.items() if name != "DROVER_DATABASE_URL"}
    argv = [*RUN, "-c", str(config)]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "serving group" in line)
        with embedded.join(tmp_path / "pg", durable=True) as conninfo:
            os.kill(children(process.pid)[0], SIGKILL)
            assert process.wait() == -SIGKILL
            with psycopg.connect(conninfo) as connection:
                assert connection.execute("select 1").fetchone() == (1,)


# ---- ends and signals go through


@pytest.mark.parametrize("status", [0, 1, 2, 3, 130, 255])
def test_the_exit_status_of_the_daemon_is_that_of_its_guardian(begin: Begin, status: int) -> None:
    assert begin(f"{BEGIN}sys.exit({status})").wait() == status


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL, signal.SIGINT, signal.SIGABRT, signal.SIGSEGV])
def test_the_signal_that_ends_the_daemon_ends_its_guardian(begin: Begin, number: int) -> None:
    silent = f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); signal.signal({number}, 0)"
    silent = silent if number != SIGKILL else ""
    assert begin(f"{BEGIN}{silent}\nos.kill(os.getpid(), {number})").wait() == -number


def test_a_guardian_reaps_children_if_its_parent_ignores_sigchld(begin: Begin) -> None:
    assert begin(f"{IGNORING_CHILDREN}\n{BEGIN}sys.exit(3)").wait() == 3


@pytest.mark.slow
def test_a_signal_to_the_guardian_reaches_the_daemon_f54_j122(daemon: Daemon, family: Family) -> None:
    family("an agent")
    daemon.process.send_signal(SIGTERM)
    assert daemon.wait_exit() == 0
    assert daemon.value("select jq_endtext from drover.jobqueue") == "released for restart"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_is_passed_on_once(begin: Begin, number: signal.Signals) -> None:
    process = begin(LISTEN)
    told = heard(process, 1)
    process.send_signal(number)
    told += heard(process, 1)
    process.send_signal(SIGTERM)
    assert [*told, process.communicate()[0]] == ["up", number.name, ""]


def test_a_signal_before_the_guardian_is_ready_is_kept(begin: Begin) -> None:
    process = begin(LISTEN.replace("guardian.begin", "os.kill(os.getpid(), signal.SIGUSR1); guardian.begin"))
    told = heard(process, 2)
    process.send_signal(SIGTERM)
    assert (told, process.wait()) == (["up", "SIGUSR1"], 0)


@pytest.mark.parametrize(("key", "name"), [(b"\x03", "SIGINT"), (b"\x1c", "SIGQUIT")])
def test_an_interrupt_key_of_the_terminal_reaches_the_daemon_once_f51(begin: Begin, key: bytes, name: str) -> None:
    keyboard, terminal = pty.openpty()
    process = begin(LISTEN, "setsid", "--ctty", stdin=terminal)
    told = heard(process, 1)
    os.write(keyboard, key)
    told += heard(process, 1)
    process.send_signal(signal.SIGUSR1)  # passed on after whatever the guardian made of the key
    told += heard(process, 1)
    process.send_signal(SIGTERM)
    rest = process.communicate()[0]
    os.close(keyboard)
    os.close(terminal)
    assert [*told, rest] == ["up", name, "SIGUSR1", ""]


# ---- who has a guardian


def test_the_daemon_is_the_child_of_its_guardian(begin: Begin) -> None:
    process = begin(TELL)
    pid, parent = heard(process, 1)[0].split()
    assert (int(parent), int(pid) != process.pid) == (process.pid, True)


def test_the_main_process_of_systemd_is_the_daemon_itself(begin: Begin) -> None:
    process = begin(TELL, "sh", "-c", 'SYSTEMD_EXEC_PID=$$ exec "$@"', "sh")
    pid, parent = heard(process, 1)[0].split()
    assert (int(pid), int(parent)) == (process.pid, os.getpid())


def test_a_daemon_started_by_a_main_process_of_systemd_has_a_guardian(begin: Begin) -> None:
    process = begin(TELL, env=os.environ | {"SYSTEMD_EXEC_PID": str(os.getpid())})
    assert heard(process, 1)[0].endswith(f" {process.pid}")
