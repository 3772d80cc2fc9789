"""Claims about how processes start: their program, words, directory, environment, descriptors and limits."""

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.config import AgentType, Host, Limits
from scheduler.model.events_and_effects import Created, Gone, NotCreated, Replaced, Send
from tests.child_tools import Make, command, open_descriptors, program, sh
from tests.needs import need


def test_started_process_is_reported_with_its_pid_f79(family: Make) -> None:
    one = family(line=sh("echo $$; readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2; read line"))
    pid = one.spawn()
    one.until(lambda: one.said[0].count(b"\n") == 4)
    first, *ends = one.said[0].decode().split()
    assert one.events == [Created(0, pid)]
    assert int(first) == pid
    assert [end.partition(":")[0] for end in ends] == ["pipe"] * 3


@pytest.mark.slow
def test_a_death_right_before_each_of_a_thousand_starts_frees_that_slot_and_no_other_f63(family: Make) -> None:
    one = family(exec=command())
    before = open_descriptors()
    for slot in range(1000):
        one.run(b"true", slot=slot)  # the one before it is dead, and nobody was told
        os.kill(os.getpid(), signal.SIGCHLD)
        os.waitid(os.P_PID, one.pids()[slot], os.WEXITED | os.WNOWAIT)
        if slot % 50 == 49:  # no more descriptors than a process may have
            one.until(lambda slot=slot: one.all(Gone, slot))
    one.until(lambda: not one.pids())
    created = [event.slot for event in one.events if isinstance(event, Created)]
    gone = [event.slot for event in one.events if isinstance(event, Gone) and (event.code, event.signal) == (0, None)]
    assert created == sorted(gone) == list(range(1000))
    assert open_descriptors() == before


def test_an_agent_does_not_preempt_the_daemon_p2(family: Make) -> None:
    one = family(line=sh("read line"))
    assert os.sched_getscheduler(one.spawn()) == os.SCHED_BATCH


@pytest.mark.parametrize("limits", [Limits(), Limits(nofile=64)])
def test_a_process_sees_three_descriptors_only(family: Make, tmp_path: Path, limits: Limits) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)  # as one that we were given is
        one = family(line=sh("ls /proc/$$/fd; true", limits=limits))
        one.spawn()
        one.end()
    assert one.said[0].split() == [b"0", b"1", b"2"]


SECRETS = {"PGPASSWORD": "s", "PGHOST": "h", "SSH_AUTH_SOCK": "s", "DROVER_DATABASE_URL": "u", "OTHER": "o"}
KEPT = {"HOME": "/h", "LANG": "C", "LC_ALL": "C", "TZ": "UTC", "PASSED": "p"}


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of ours with secrets, and nothing else but what is kept."""
    for name in set(os.environ) - {"PATH"}:
        monkeypatch.delenv(name)
    for name, text in {**SECRETS, **KEPT}.items():
        monkeypatch.setenv(name, text)


def environment(output: bytes) -> dict[str, str]:
    return dict(line.split("=", 1) for line in output.decode().splitlines())


@pytest.mark.usefixtures("surroundings")
def test_a_line_agent_inherits_what_is_allowed_and_no_secret_j43(family: Make) -> None:
    given = {"GIVEN": "a b", "LANG": "de"}
    passed = ("PASSED", "DROVER_DATABASE_URL", "ABSENT")
    one = family(line=AgentType(command=("env",), env=given, pass_env=passed, database="site"), folders=("/a",))
    one.spawn(slot=5)
    one.end(5)
    assert environment(one.said[5]) == {
        **KEPT,
        **given,
        "PATH": f"/a:{os.environ['PATH']}",
        "PGSERVICE": "site",
        "PYTHONUNBUFFERED": "1",
        "THREAD_UNIQUE": "5",
        "DROVER_HOST": "here",
        "DROVER_AGENT": "line",
    }


@pytest.mark.usefixtures("surroundings")
def test_command_has_its_job_and_attempt_in_its_environment(family: Make) -> None:
    one = family(exec=command())
    one.run(b"env")
    one.end()
    seen = environment(one.captured[0, "out"])
    assert (seen["DROVER_JOB"], seen["DROVER_ATTEMPT"]) == ("17", "3")
    assert not SECRETS.keys() & seen.keys()


def test_each_process_has_its_own_slot_and_job_in_its_environment(family: Make) -> None:
    one = family(exec=command())
    one.spawn(1, "exec", argv=(b"env",), job=17, attempt=3)
    one.spawn(2, "exec", argv=(b"env",), job=18, attempt=1)
    one.end(1)
    one.end(2)
    seen = [environment(one.captured[slot, "out"]) for slot in (1, 2)]
    assert [(own["THREAD_UNIQUE"], own["DROVER_JOB"], own["DROVER_ATTEMPT"]) for own in seen] == [
        ("1", "17", "3"),
        ("2", "18", "1"),
    ]


def test_a_line_agent_runs_in_the_directory_of_the_daemon_j42(family: Make) -> None:
    one = family(line=sh("pwd"))
    one.spawn()
    one.end()
    assert one.said[0].decode() == os.getcwd() + "\n"


def test_a_command_runs_in_tmp_r19(family: Make) -> None:
    one = family(exec=command())
    one.run(b"pwd")
    one.end()
    assert one.captured[0, "out"] == b"/tmp\n"


@pytest.mark.parametrize("kind", ["line", "exec"])
def test_process_runs_in_the_directory_of_its_type_j42_r19(family: Make, tmp_path: Path, kind: Any) -> None:
    one = family(type=AgentType(command=("pwd",), kind=kind, cwd=str(tmp_path)))
    one.spawn(type="type")
    one.end()
    assert one.said[0] + one.captured[0, "out"] == os.fsencode(tmp_path) + b"\n"


def test_arguments_arrive_unchanged_j44_r20(family: Make) -> None:
    one = family(exec=command())
    one.run(b"printf", b"%s|", b"a  b", b"$(touch x)", b"\xff'\"", b"")
    one.end()
    assert one.captured[0, "out"] == b"a  b|$(touch x)|\xff'\"||"


def test_agents_are_found_in_the_shipped_folders_first(family: Make, tmp_path: Path) -> None:
    program(tmp_path / "ls", "echo ours")
    one = family(line=AgentType(command=("ls",)), folders=(str(tmp_path),))
    one.spawn()
    one.end()
    assert one.said[0] == b"ours\n"


def test_a_relative_program_is_found_from_its_directory(family: Make, tmp_path: Path) -> None:
    program(tmp_path / "mine", "echo mine")
    one = family(line=AgentType(command=("./mine",), cwd=str(tmp_path)))
    one.spawn()
    one.end()
    assert one.said[0] == b"mine\n"


def test_a_program_that_has_moved_is_found_where_it_is_now(family: Make, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    program(first / "mine", "pwd")
    one = family(exec=command(), folders=(str(first), str(second)))
    one.run(b"mine")
    one.end()
    (first / "mine").rename(second / "mine")
    one.run(b"mine", slot=1)
    assert one.end(1) == Gone(1, code=0)


def test_a_program_earlier_in_the_path_is_found_at_the_next_check(family: Make, tmp_path: Path) -> None:
    one = family(line=AgentType(command=("ls",)), folders=(str(tmp_path),))
    one.spawn()
    program(tmp_path / "ls", "echo ours")
    one.processes.check_programs()
    one.spawn(1)
    one.end(1)
    assert one.said[1] == b"ours\n"


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (AgentType(command=("no-such",)), "'no-such': No such file or directory (errno 2); look at"),
        (AgentType(command=("/no/such",)), "'/no/such': No such file or directory (errno 2); look at"),
        (
            AgentType(command=("/etc/passwd",)),
            "'/etc/passwd': Permission denied (errno 13); /etc/passwd is not executable",
        ),
        (sh("true", cwd="/no"), "'sh' (/no): No such file or directory (errno 2); its cwd /no"),
        (AgentType(command=("sh", "\0")), "'sh': embedded null byte"),
    ],
)
def test_failed_start_is_reported_with_the_reason_j45(family: Make, agent: AgentType, text: str) -> None:
    one = family(line=agent)
    before = open_descriptors()
    one.spawn()
    (told,) = one.all(NotCreated)
    assert told.reason.startswith(f"agent 'line': cannot start {text}")
    assert (one.pids(), open_descriptors()) == ({}, before)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "#!/no/such/sh\n",
            "its interpreter /no/such/sh is not there or not executable; install it or correct the first line",
        ),
        (
            "#!/etc/passwd\n",
            "its interpreter /etc/passwd is not there or not executable; install it or correct the first line",
        ),
        (
            "echo OK\n",
            "it is no program of this machine; a script needs a first line with its interpreter, as #!/bin/sh",
        ),
    ],
)
def test_failed_start_of_a_script_names_what_its_first_line_lacks(
    family: Make, tmp_path: Path, text: str, complaint: str
) -> None:
    script = tmp_path / "agent"
    script.write_text(text)
    script.chmod(0o755)
    one = family(line=AgentType(command=(str(script),)))
    one.spawn()
    (told,) = one.all(NotCreated)
    assert told.reason.startswith(f"agent 'line': cannot start '{script}': ")
    assert told.reason.endswith(f"; {script}: {complaint}")


@pytest.fixture
def allow() -> Iterator[Callable[[int], None]]:
    """Allow so many more descriptors than are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def allow(more: int) -> None:
        free = [number for number in range(soft) if not os.path.exists(f"/proc/self/fd/{number}")]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[more], hard))

    yield allow
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("directory", "more"), [("", more) for more in range(1, 6)] + [("/", 6)])
def test_without_descriptors_nothing_is_started_and_nothing_leaks(
    family: Make, allow: Callable[[int], None], directory: str, more: int
) -> None:
    one = family(line=sh("read line", cwd=directory))
    before = open_descriptors()
    allow(more)
    one.spawn()
    (told,) = one.all(NotCreated)
    assert (told.is_machines_fault, told.lost) == (True, False)
    assert f"(errno {errno.EMFILE}); raise LimitNOFILE" in told.reason
    assert open_descriptors() == before


def test_descriptors_for_three_pipes_are_enough_to_start_and_watch_a_process(
    family: Make, allow: Callable[[int], None]
) -> None:
    one = family(line=sh("exit 3"))
    allow(6)
    one.spawn()
    assert one.end().code == 3


def test_a_process_begins_in_its_directory_and_we_stay_in_ours(family: Make, tmp_path: Path) -> None:
    here = os.getcwd()
    one = family(line=sh("pwd", cwd=str(tmp_path)), lost=sh("pwd", cwd=str(tmp_path / "absent")))
    one.spawn()
    one.end()
    one.spawn(1, "lost")
    assert one.said[0] == f"{tmp_path}\n".encode()
    assert f"({tmp_path / 'absent'}): No such file or directory" in one.all(NotCreated, 1)[0].reason
    assert os.getcwd() == here


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_process_begins_though_nobody_may_go_back_to_our_directory(
    family: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    open_file = os.open

    def refuse(path: Any, *rest: Any) -> int:
        if path == ".":  # which root may always open
            raise error
        return open_file(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    here = os.getcwd()
    one = family(line=sh("pwd", cwd=str(tmp_path)), lost=sh("pwd", cwd=str(tmp_path / "absent")))
    pid = one.spawn()
    one.end()
    one.spawn(1, "lost")
    assert one.said[0] == f"{tmp_path}\n".encode()
    assert one.events[0] == Created(0, pid)
    assert "No such file or directory" in one.all(NotCreated, 1)[0].reason
    assert os.getcwd() == here


def test_limits_hold_in_the_process(family: Make) -> None:
    need("setpriv")
    one = family(line=sh("ulimit -n; ulimit -t; ulimit -c", limits=Limits(nofile=64, cpu=9, core=0)))
    one.spawn()
    one.end()
    assert one.said[0] == b"64\n9\n0\n"


def test_replaced_program_is_reported_once(family: Make, tmp_path: Path) -> None:
    path = tmp_path / "agent"
    program(path, "read line")
    one = family(line=AgentType(command=(str(path),)))
    one.spawn()
    one.events.clear()
    one.processes.check_programs()
    before = list(one.events)
    program(path, "read another")
    one.processes.check_programs()
    one.processes.check_programs()
    assert (before, one.events) == ([], [Replaced("line")])


def test_program_that_was_missing_is_reported_when_it_appears(family: Make, tmp_path: Path) -> None:
    path = tmp_path / "agent"
    one = family(line=AgentType(command=(str(path),)))
    one.spawn()
    one.events.clear()
    one.processes.check_programs()
    before = list(one.events)
    program(path, "read line")
    one.processes.check_programs()
    path.unlink()
    one.processes.check_programs()
    assert (before, one.events) == ([], [Replaced("line")])


def test_a_host_behind_a_command_is_reached_through_it(family: Make) -> None:
    behind = Host(transport="command", command=("echo", "--to={host}", "--"))
    one = family(hosts={"here": behind}, line=AgentType(command=("agent", "a b")))
    one.spawn()
    one.end()
    assert one.said[0] == b"--to=here -- agent a b\n"


@pytest.fixture
def few_files() -> Iterator[int]:
    """Yield a limit of open files that is less than it could be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    yield 300
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_keeps_the_original_limit_of_open_files_t49(few_files: int, family: Make) -> None:
    one = family(line=sh("read line; ulimit -n"))
    one.spawn()
    one.processes.send(Send(0, b"go\n"))
    one.end()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (one.said[0], soft) == (b"%d\n" % few_files, hard)
