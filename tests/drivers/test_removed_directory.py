"""Claims about processes that are started when a directory was removed: that of the daemon, or their own."""

from pathlib import Path

import pytest

from scheduler.drivers.trusted_files import who_may_write
from scheduler.model.config import AgentType
from scheduler.model.events_and_effects import NotCreated
from tests.child_tools import Family, Make, command, program, sh

WHERE = 'printf "up %s\\n" "$(pwd -P)"; read -r line'


@pytest.fixture
def removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory that was removed."""
    place = tmp_path / "removed"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    return place


def refusal(one: Family, type: str = "line") -> str:
    """Return why a process of a type is not created."""
    one.spawn(0, type, argv=(b"true",) if type == "exec" else None)
    (event,) = one.all(NotCreated)
    return str(event.reason)


@pytest.mark.usefixtures("removed")
def test_line_agent_starts_in_the_root_directory_if_that_of_the_daemon_was_removed(family: Make) -> None:
    one = family(line=sh(WHERE))
    one.up()
    assert one.said[0] == b"up /\n"


@pytest.mark.usefixtures("removed")
def test_command_and_agent_with_a_directory_start_if_that_of_the_daemon_was_removed(
    family: Make, tmp_path: Path
) -> None:
    one = family(line=sh(WHERE, cwd=str(tmp_path)), exec=command())
    one.up()
    one.run(b"pwd", slot=1)
    one.end(1)
    assert (one.said[0], one.captured[1, "out"]) == (b"up %b\n" % bytes(tmp_path), b"/tmp\n")


@pytest.mark.usefixtures("removed")
def test_relative_program_in_a_removed_directory_of_the_daemon_is_refused_with_that_reason(family: Make) -> None:
    assert refusal(family(line=AgentType(command=("bin/agent",)))) == (
        "agent 'line': cannot start 'bin/agent': No such file or directory (errno 2); the directory in which the "
        "daemon was started was removed; set cwd, or start the daemon in another"
    )


@pytest.mark.usefixtures("removed")
def test_owners_of_a_prelude_are_looked_at_if_the_directory_of_the_daemon_was_removed(
    tmp_path: Path,
) -> None:
    prelude = tmp_path / "prelude"
    prelude.write_text("")
    prelude.chmod(0o666)
    assert list(who_may_write("relative", ())) == []
    assert list(who_may_write(str(prelude), ())) == [f"others may write to {prelude} (mode 0666); chmod go-w {prelude}"]


@pytest.mark.parametrize("words", [("./agent",), ("sh", "-c", "true")])
def test_reason_names_the_directory_of_a_type_that_is_not_there(
    family: Make, tmp_path: Path, words: tuple[str, ...]
) -> None:
    reason = refusal(family(line=AgentType(command=words, cwd=str(tmp_path / "gone"))))
    assert reason.endswith(f"; its cwd {tmp_path / 'gone'} is not there; create it, or correct cwd")


def test_reason_names_the_directory_of_commands_that_is_not_there(family: Make, tmp_path: Path) -> None:
    reason = refusal(family(exec=command(cwd=str(tmp_path / "gone"))), "exec")
    assert reason.endswith(f"; its cwd {tmp_path / 'gone'} is not there; create it, or correct cwd")


def test_program_in_a_relative_directory_is_found_and_started(
    family: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    program(tmp_path / "sub/agent", WHERE)
    monkeypatch.chdir(tmp_path)
    one = family(line=AgentType(command=("./agent",), cwd="sub"))
    one.up()
    assert one.said[0] == b"up %b\n" % bytes(tmp_path / "sub")
