"""What a host prints kills no process that is not ours: on a real sshd, in a pid namespace, beside such a process."""

from pathlib import Path
from typing import Any

import pytest

from tests.needs import need
from tests.ssh.strangers import SSHRC, seen

# Passes on what a script prints, changed: the pid that the shim says it has.
CHANGES = r"""
case $SSH_ORIGINAL_COMMAND in *"{of}"*)
exec > >(exec sed -u 's/^\(DROVER [0-9a-f]* \)[0-9][0-9]*$/\1{pid}/') ;; esac
eval "$SSH_ORIGINAL_COMMAND"
"""
OF_SHIM, OF_CONTROL = "drover-agent", "drover-control"
KILLED = "[Ended(id=0, code=None, signal='KILL')]"

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    need("sshd")
    need("pid namespace")
    return tmp_path


def of_login(folder: Path, script: str, **settings: object) -> dict[str, Any]:
    """Return what came of an agent whose login shell runs this before each command."""
    return seen(folder, files={"server/.bashrc": script}, settings=settings)


def forced(folder: Path, script: str, **settings: object) -> dict[str, Any]:
    """Return what came of an agent whose host runs this instead of each command."""
    command = f"bash {folder}/shell"
    return seen(folder, files={"shell": script}, options={"ForceCommand": command}, settings=settings)


@pytest.mark.parametrize(
    "script",
    [
        "echo DROVER 1",
        "echo 'DROVER 1 1'; echo DROVER 2147483648; echo DROVER -1; echo DROVER 0",
        "echo -n 'DROVER 1'",
        "echo DROVER PID",
        "(sleep 0.1; echo; echo DROVER 1; echo 1 added; echo -n 1 gone) &",
    ],
)
def test_no_line_of_a_login_script_is_taken_for_a_reply(folder: Path, script: str) -> None:
    found = of_login(folder, script + "\n")
    assert (found["end"], found["down"], found["lives"]) == (KILLED, [], True)
    assert found["pid"][0] > 2


def test_no_line_of_sshrc_banner_or_motd_is_taken_for_a_reply(folder: Path) -> None:
    (folder / "banner").write_text("DROVER 1\n")
    options = {"Banner": str(folder / "banner"), "PrintMotd": "yes"}
    found = seen(folder, files={SSHRC: "echo DROVER 1; echo DROVER 1 1\n"}, options=options)
    assert (found["end"], found["said"], found["down"], found["lives"]) == (KILLED, "up\n", [], True)


def test_no_line_of_a_forced_command_is_taken_for_a_reply(folder: Path) -> None:
    found = forced(folder, 'echo DROVER 1; echo "$SSH_ORIGINAL_COMMAND"; eval "$SSH_ORIGINAL_COMMAND"\n')
    assert (found["end"], found["said"], found["down"], found["lives"]) == (KILLED, "up\n", [], True)


@pytest.mark.parametrize("pid", ["0", "1", "-1", "2147483648", "text"])
@pytest.mark.parametrize("of", [OF_SHIM, OF_CONTROL], ids=["agent", "control"])
def test_host_that_says_an_impossible_pid_is_down_with_what_was_read(folder: Path, pid: str, of: str) -> None:
    found = forced(folder, CHANGES.format(of=of, pid=pid), connect_s=5)
    why = f"a session was said to be process '{pid}'"
    assert (found["pid"], found["said"], found["lives"]) == ([], "", True)
    assert "is_lost=True" in found["end"]
    assert why in found["down"][0]
    assert "must not change our output" in found["down"][0]


def test_host_that_says_the_pid_of_another_process_is_down_and_that_process_lives(folder: Path) -> None:
    found = forced(folder, CHANGES.format(of=OF_SHIM, pid="PID"), connect_s=5)
    assert (found["pid"], found["said"], found["lives"]) == ([], "", True)
    assert "is another" in found["down"][0]


@pytest.mark.parametrize(
    "script", ["echo DROVER 1; exit", "echo DROVER 1; exec yes DROVER 1", "echo DROVER 1; exec sleep 600"]
)
def test_host_that_prints_other_text_than_our_reply_is_down_with_that_text(folder: Path, script: str) -> None:
    found = of_login(folder, script + "\n", connect_s=1)
    assert (found["pid"], found["lives"]) == ([], True)
    assert "it printed 'DROVER 1\\n" in found["down"][0]
    assert "a login script of root@alpha exits, prints without end, or runs another command" in found["down"][0]


@pytest.mark.parametrize(
    ("script", "why"), [("exit", "ended without a word: a login script"), ("sleep 600", "no answer within")]
)
def test_host_whose_login_script_says_nothing_is_down_with_a_reason(folder: Path, script: str, why: str) -> None:
    found = of_login(folder, script + "\n", connect_s=1)
    assert why in found["down"][0]
