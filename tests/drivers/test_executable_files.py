"""Claims about why a program cannot be started: the same words from the daemon, `drover check` and `agent-check`."""

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.cli.config_files import BEHIND_PRELUDE
from scheduler.cli.machine_checks import program_finding
from scheduler.cli.output import FAIL, OK, WARN
from scheduler.drivers.executable_files import problem_of
from scheduler.model.config import AgentType, Config, Host, Limits
from scheduler.model.events_and_effects import NotCreated
from tests.child_tools import Make, command
from tests.needs import lack, need

PATH = "/usr/bin:/bin"
NOBODY = 65534
LOADER = re.compile(rb"/lib[^\0]*/ld-[^\0]*")
# Starts an agent through the driver that the daemon uses, and prints why that fails; then what check says.
IN_NAMESPACE = """
import sys
from scheduler.cli.machine_checks import program_finding
from scheduler.drivers.loop import Loop
from scheduler.drivers.processes import Processes
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.events_and_effects import Spawn
config = Config(agents={"a": AgentType(command=(sys.argv[1],))}, hosts={"here": Host()})
quiet = lambda *_: None
Processes(Loop(), config, (), quiet, quiet, quiet, lambda event: print(event.reason)).spawn(Spawn(0, 1, "a", "here"))
print(*program_finding(config, "a"))
"""


def script(path: Path, text: bytes = b"#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.write_bytes(text)
    path.chmod(mode)
    return path


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe", 0o755)
    return tmp_path / "pipe"


def start(family: Make, program: Path) -> NotCreated:
    """Return why a program is not started."""
    one = family(line=AgentType(command=(str(program),)))
    one.spawn()
    (told,) = one.all(NotCreated)
    return told


# Each is a file that is there and may be executed, and the error of execve(2) that people get for it.
CONTENTS = {
    "CR LF": (b"#!/bin/sh\r\necho OK\r\n", "No such file or directory (errno 2); {}: its lines end in CR LF, so"),
    "mark": (
        b"\xef\xbb\xbf#!/bin/sh\n",
        "Exec format error (errno 8); {}: it begins with a byte order mark, before #!",
    ),
    "empty": (b"", "Exec format error (errno 8); {}: it is empty"),
    "no script": (b"echo OK\n", "Exec format error (errno 8); {}: it is no program of this machine; a script needs"),
    "no interpreter": (b"#!/no/sh\n", "No such file or directory (errno 2); {}: its interpreter /no/sh is not there"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_start_says_what_in_the_file_is_wrong(family: Make, tmp_path: Path, name: str) -> None:
    text, told = CONTENTS[name]
    program = script(tmp_path / "agent", text)
    assert start(family, program).reason.startswith(f"agent 'line': cannot start '{program}': {told.format(program)}")


def test_a_directory_is_no_program(family: Make, tmp_path: Path) -> None:
    told = f"Permission denied (errno 13); {tmp_path} is a directory; name a program"
    assert start(family, tmp_path).reason.endswith(told)


def test_a_named_pipe_is_no_program(family: Make, pipe: Path) -> None:
    assert start(family, pipe).reason.endswith(f"{pipe} is a named pipe; name a program")


def test_a_directory_on_path_hides_no_program(family: Make, tmp_path: Path) -> None:
    (tmp_path / "first" / "mine").mkdir(parents=True)
    (tmp_path / "second").mkdir()
    script(tmp_path / "second" / "mine", b"#!/bin/sh\nread line\n")
    one = family(line=AgentType(command=("mine",)), folders=(str(tmp_path / "first"), str(tmp_path / "second")))
    assert one.spawn()


@pytest.fixture
def binary(tmp_path: Path) -> bytearray:
    """Return a program of this machine that names a loader."""
    found = bytearray(Path(shutil.which("true") or "").read_bytes())
    if found[:6] != b"\x7fELF\x02\x01" or not LOADER.search(found):
        lack("a program of 64 bits", "true(1) is none")
    return found


def test_a_program_for_another_machine_is_named(family: Make, tmp_path: Path, binary: bytearray) -> None:
    struct.pack_into("<H", binary, 18, 22)  # e_machine
    program = script(tmp_path / "agent", bytes(binary))
    told = (
        f"Exec format error (errno 8); {program}: it is a program for s390x, and this machine is {os.uname().machine}"
    )
    assert told in start(family, program).reason


def test_a_missing_loader_is_named(family: Make, tmp_path: Path, binary: bytearray) -> None:
    """The file is there, and execve(2) says that there is no such file."""
    (found,) = LOADER.findall(bytes(binary))[:1]
    program = script(tmp_path / "agent", bytes(binary).replace(found, b"/no" + found[3:], 1))
    told = f"No such file or directory (errno 2); {program}: its loader /no{found[3:].decode()} is not there"
    assert told in start(family, program).reason


@pytest.mark.parametrize("place", ["program", "interpreter"])
def test_a_mount_without_exec_is_named_by_start_and_check(tmp_path: Path, place: str) -> None:
    need("mount")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    inside = 'mount -t tmpfs -o noexec tmpfs "$1" && cp "$2" "$3" && shift 3 && exec "$@"'
    source = script(tmp_path / "source")
    program = mounted / "agent" if place == "program" else script(tmp_path / "agent", b"#!%s/agent\n" % bytes(mounted))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside, "sh", mounted, source, mounted / "agent", sys.executable, "-c",
         IN_NAMESPACE, program],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    told = {
        "program": f"{program} is on {mounted}, which is mounted noexec; move it, or mount {mounted} without noexec",
        "interpreter": f"{program}: its interpreter {mounted}/agent is on a file system that is mounted noexec",
    }[place]
    first, second = done.stdout.splitlines()
    assert first.endswith(f"Permission denied (errno 13); {told}")
    assert second == f"FAIL agent a: {told}"


def as_nobody(file: Path) -> str:
    """Return what is wrong with a file for a user who has no rights here."""
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        os.setresuid(NOBODY, NOBODY, NOBODY)
        os.write(writer, problem_of(str(file), PATH).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader) as said:
        return said.read()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that everybody may enter, unlike those above it."""
    need("root")
    above = [each for each in tmp_path.parents if each.stat().st_mode & 0o7777 == 0o700]
    for each in (*above, tmp_path):
        each.chmod(0o711)
    yield tmp_path
    for each in above:
        each.chmod(0o700)


def test_a_directory_that_may_not_be_entered_is_named(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o700)
    program = script(folder / "closed" / "agent")
    closed = folder / "closed"
    told = f"this user may not enter the directory {closed}; chmod +x {closed}, or run as its owner"
    assert as_nobody(program) == f"{program}: {told}"


def test_a_program_that_its_owner_alone_may_execute_is_told_from_one_that_nobody_may(folder: Path) -> None:
    program = script(folder / "agent", mode=0o744)
    told = f"{program} may not be executed by this user (its mode is 0744); chmod a+x {program}"
    assert as_nobody(program) == told


def test_a_program_that_is_being_written_is_a_fault_of_the_moment(family: Make, tmp_path: Path) -> None:
    program = script(tmp_path / "agent", b"#!/bin/sh\nread line\n")
    one = family(line=AgentType(command=(str(program),)))
    with program.open("ab"):
        one.spawn()
    (told,) = one.all(NotCreated)
    assert (told.is_busy, told.is_machines_fault, told.is_items_fault) == (True, False, False)
    assert "Text file busy (errno 26); it is being written; replace a program by a new file" in told.reason
    assert one.spawn()


def test_a_command_whose_program_is_being_written_is_a_fault_of_the_moment(family: Make, tmp_path: Path) -> None:
    program = script(tmp_path / "agent")
    one = family(exec=command())
    with program.open("ab"):
        one.run(bytes(program))
    assert [(told.is_busy, told.is_machines_fault) for told in one.all(NotCreated)] == [(True, False)]


# ---- behind another program: prlimit(1), setpriv(1), a prelude, a keeper

BEHIND: dict[str, Limits] = {"nothing": Limits(), "prlimit": Limits(core=0)}
ENV_CRLF = b"#!/usr/bin/env sh\r\n"


def severity(agent: AgentType) -> str:
    """Return what `drover check` says of a type."""
    return program_finding(Config(agents={"a": agent}, hosts={"here": Host()}), "a")[0]


def behind(prelude: Path, *command: str) -> AgentType:
    """Return a type with a prelude, as the configuration gives it to the daemon."""
    prelude.touch(0o644)
    return AgentType(command=("sh", "-c", BEHIND_PRELUDE, str(prelude), *command), kind="exec", prelude=str(prelude))


@pytest.mark.parametrize("text", [b"#!/bin/sh\r\n", b"#!/no/sh\n"])
def test_a_start_that_fails_behind_a_wrapper_says_what_in_the_file_is_wrong(
    family: Make, tmp_path: Path, text: bytes
) -> None:
    program = script(tmp_path / "agent", text)
    one = family(exec=command(limits=BEHIND["prlimit"]))
    one.run(bytes(program))
    end = one.end()
    assert (end.code, end.why) == (127, problem_of(str(program), PATH))


@pytest.mark.parametrize("limits", BEHIND)
def test_an_interpreter_that_env_does_not_find_is_named(family: Make, tmp_path: Path, limits: str) -> None:
    program = script(tmp_path / "agent", ENV_CRLF)
    one = family(exec=command(limits=BEHIND[limits]))
    one.run(bytes(program))
    assert "its lines end in CR LF" in one.end().why


def test_a_start_that_fails_behind_a_prelude_says_what_in_the_file_is_wrong(family: Make, tmp_path: Path) -> None:
    program = script(tmp_path / "agent", b"#!/no/sh\n")
    agent = behind(tmp_path / "prelude", str(program))
    one = family(exec=agent)
    one.run(*map(os.fsencode, agent.command))
    assert one.end().why == problem_of(str(program), PATH)


def test_a_program_that_was_being_written_behind_a_wrapper_may_be_the_cause(family: Make, tmp_path: Path) -> None:
    program = script(tmp_path / "agent")
    one = family(exec=command(limits=BEHIND["prlimit"]))
    with program.open("ab"):
        one.run(bytes(program))
        end = one.end()
    told = f"its error output says whether {program} could not be started, as while it is being written"
    assert (end.code, end.why) == (126, told)


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_ran_and_has_such_a_status_is_not_blamed(family: Make, tmp_path: Path, code: int) -> None:
    one = family(exec=command())
    one.run(bytes(script(tmp_path / "agent", b"#!/bin/sh\nexit %d\n" % code)))
    assert (one.end().code, one.end().why) == (code, "")


def test_check_warns_of_a_script_that_sh_runs_behind_a_wrapper_alone(family: Make, tmp_path: Path) -> None:
    program = script(tmp_path / "agent", b"exit 3\n")
    bare, wrapped = (AgentType(command=(str(program),), kind="exec", limits=each) for each in BEHIND.values())
    assert (severity(bare), severity(wrapped)) == (FAIL, WARN)
    one = family(exec=wrapped)
    one.run(bytes(program))
    assert one.end().code == 3


def test_check_looks_at_the_program_behind_a_prelude(tmp_path: Path) -> None:
    prelude, program = tmp_path / "prelude", script(tmp_path / "agent", b"#!/no/sh\n")
    assert severity(behind(prelude, str(program))) == WARN
    assert severity(behind(prelude, str(tmp_path / "missing"))) == WARN
    assert severity(behind(prelude, "its_function")) == OK
    assert severity(behind(prelude, "/bin/true")) == OK
