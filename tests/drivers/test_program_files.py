"""Program files of agent types: what is told of them, and what is started when the file has another program."""

import os
from pathlib import Path
from typing import Any

import pytest

from scheduler.drivers import program_files
from scheduler.drivers.process_spec import Surroundings
from scheduler.drivers.program_files import ProgramFiles, copies_folder
from scheduler.model.config import AgentType, Config, Host
from scheduler.model.events_and_effects import NotCreated, ProgramFound, Replaced
from tests.child_tools import Make

HERE = {"here": Host()}


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    return write(tmp_path / "agent", "old")


def write(path: Path, what: str) -> Path:
    """Put a program in the place of the one before; it says what it is."""
    new = path.with_suffix(".new")
    new.write_text(f"#!/bin/sh\necho {what}; read line\n")
    new.chmod(0o755)
    new.rename(path)
    return path


def kind(agent: Path, **keys: Any) -> AgentType:
    return AgentType(**({"command": (str(agent),), "canary": 5} | keys))


def files(tmp_path: Path, **types: AgentType) -> ProgramFiles:
    return ProgramFiles(Config(hosts=HERE, agents=types), Surroundings(os.environ, ()), str(tmp_path / "copies"))


def found(one: ProgramFiles) -> ProgramFound:
    (event,) = one.changes()
    assert isinstance(event, ProgramFound)
    return event


def test_program_is_told_at_first_and_when_it_is_another(tmp_path: Path, agent: Path) -> None:
    one = files(tmp_path, line=kind(agent))
    first, nothing = found(one), list(one.changes())
    write(agent, "new")
    second = found(one)
    assert (nothing, first.copies, set(second.copies)) == ([], (first.program,), {first.program, second.program})
    assert first.program != second.program


def test_same_program_in_another_file_has_the_same_name(tmp_path: Path, agent: Path) -> None:
    one = files(tmp_path, line=kind(agent))
    first = found(one)
    write(agent, "new")
    found(one)
    write(agent, "old")
    assert found(one).program == first.program


def test_type_without_canary_agents_is_copied_nowhere(tmp_path: Path, agent: Path) -> None:
    one = files(tmp_path, line=kind(agent, canary=0))
    one.watch("line")
    write(agent, "new")
    assert list(one.changes()) == [Replaced("line")]
    assert not (tmp_path / "copies").exists()


def test_program_that_is_gone_for_a_moment_is_looked_at_later(tmp_path: Path, agent: Path) -> None:
    one = files(tmp_path, line=kind(agent))
    found(one)
    agent.unlink()
    assert list(one.changes()) == []


def test_program_that_cannot_be_copied_is_told_without_a_copy(
    tmp_path: Path, agent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "copies").write_text("no directory")
    assert found(files(tmp_path, line=kind(agent))).copies == ()
    assert "agent type line: its program cannot be copied" in caplog.text


def test_old_copies_go_but_for_the_newest_ones(tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_files, "MOST_COPIES", 2)
    one = files(tmp_path, line=kind(agent))
    names = []
    for number in range(4):
        write(agent, f"number {number}")
        names.append(found(one).program)
        old = number - 10.0 if number else program_files.time.time()  # the first one was started from just now
        os.utime(tmp_path / "copies" / "line" / names[-1], (old + 100, old + 100))
    write(agent, "the last")
    last = found(one)
    assert set(last.copies) == {names[0], last.program}


def test_copies_are_kept_where_the_service_keeps_its_state() -> None:
    assert copies_folder({"STATE_DIRECTORY": "/var/lib/drover:/other"}) == "/var/lib/drover/programs"
    assert copies_folder({"HOME": "/home/anna"}) == "/home/anna/.local/share/drover/programs"


# ---- what is started


def test_program_is_started_from_its_file_while_that_has_it(family: Make, agent: Path) -> None:
    one = family(line=kind(agent))
    one.processes.check_programs()
    (told,) = [event for event in one.events if isinstance(event, ProgramFound)]
    one.spawn(program=told.program)
    one.until(lambda: one.said[0])
    assert one.said[0] == b"old\n"
    assert os.readlink(f"/proc/{one.pids()[0]}/fd/0").startswith("pipe:")
    assert str(agent).encode() in Path(f"/proc/{one.pids()[0]}/cmdline").read_bytes()


def test_each_program_is_started_whatever_the_file_has(family: Make, agent: Path) -> None:
    one = family(line=kind(agent))
    one.processes.check_programs()
    write(agent, "new")
    one.processes.check_programs()
    old, new = [event.program for event in one.events if isinstance(event, ProgramFound)]
    one.spawn(0, program=old)
    one.spawn(1, program=new)
    one.until(lambda: one.said[0] and one.said[1])
    assert (one.said[0], one.said[1]) == (b"old\n", b"new\n")


def test_file_that_was_replaced_a_moment_ago_is_not_started_as_what_it_was(family: Make, agent: Path) -> None:
    one = family(line=kind(agent))
    one.processes.check_programs()
    (told,) = [event for event in one.events if isinstance(event, ProgramFound)]
    write(agent, "new")
    one.spawn(program=told.program)
    one.until(lambda: one.said[0])
    assert one.said[0] == b"old\n"


def test_program_whose_copy_is_gone_is_not_started(family: Make, agent: Path) -> None:
    one = family(line=kind(agent))
    one.processes.check_programs()
    write(agent, "new")
    one.spawn(program="0123456789ab")
    (told,) = one.all(NotCreated)
    assert "its copy is gone; the file has another program: drover agent promote" in told.reason


def test_command_is_started_from_the_copy_with_its_arguments(family: Make, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\necho "old $1"\n')
    tool.chmod(0o755)
    one = family(exec=kind(tool, kind="exec"))
    one.processes.check_programs()
    (told,) = [event for event in one.events if isinstance(event, ProgramFound)]
    write(tool, "new")
    one.spawn(0, "exec", argv=(os.fsencode(tool), b"word"), stdin=b"", job=1, attempt=1, program=told.program)
    assert one.end().code == 0
    assert one.captured[0, "out"] == b"old word\n"


def test_a_start_from_a_copy_counts_as_use_of_the_copy(family: Make, agent: Path) -> None:
    one = family(line=kind(agent))
    one.processes.check_programs()
    (told,) = [event for event in one.events if isinstance(event, ProgramFound)]
    (copy,) = agent.parent.rglob(told.program)
    os.utime(copy, (1.0, 1.0))
    write(agent, "new")
    one.spawn(program=told.program)
    one.until(lambda: one.said[0])
    assert (one.said[0], copy.stat().st_mtime > 1.0) == (b"old\n", True)
