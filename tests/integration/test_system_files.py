"""Claims about a machine, container or namespace that lacks /proc, /dev/null or /tmp: a sentence at the start."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli_tools import DROVER
from tests.integration.conftest import Launch
from tests.integration.daemon import RUN, agent
from tests.integration.puppets import LOCAL, settings
from tests.needs import need

ROOT = Path(__file__).parents[2]

# What is done in a mount namespace of its own before the command.
BREAK = {
    "no proc": "while umount -l /proc 2>&1; do :; done",
    "no null": 'mount -t tmpfs tmpfs "$0" && mknod -m 666 "$0/zero" c 1 5 && mount --move "$0" /dev',
    "null that is a file": (
        'mount -t tmpfs tmpfs "$0" && mknod -m 666 "$0/zero" c 1 5 && touch "$0/null" && mount --move "$0" /dev'
    ),
    "nowhere to write": (
        "for each in /tmp /var/tmp; do mount --bind $each $each && mount -o remount,bind,ro $each; done; cd /proc"
    ),
}
TOLD = {
    "no proc": "/proc, by which processes are told apart, is not mounted; mount it: mount -t proc proc /proc",
    "no null": "/dev/null cannot be opened: No such file or directory; make it: mknod -m 666 /dev/null",
    "null that is a file": "/dev/null is no device, and would grow; remove it and make it: mknod -m 666 /dev/null",
}
COMMANDS = {
    "run --allow-root": "drover run",
    "run -t --allow-root": "drover run",
    "check": "drover check",
    "doctor --allow-root": "drover doctor",
    "agent-check --allow-root": "drover agent-check",
    "agent-check /usr/bin/true": "drover agent-check",
    "agent run true x": "agent true",
    "demo": "drover demo",
    "map true ::: a": "drover map",
}


def broken(how: str, words: str, place: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command where something is missing."""
    need("mount")
    (place / "drover.toml").write_text(LOCAL + agent("true", ["true"], kind="exec"))
    (place / "mount").mkdir()
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{BREAK[how]}; exec "$@"', place / "mount", *DROVER, *words.split()],
        env=os.environ | {"DROVER_CONFIG": str(place / "drover.toml"), "PYTHONPATH": str(ROOT), **more},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("how", TOLD)
def test_a_command_that_starts_processes_says_which_file_of_the_system_is_missing(
    tmp_path: Path, how: str, words: str
) -> None:
    done = broken(how, words, tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"{COMMANDS[words]}: {TOLD[how]}")


@pytest.mark.parametrize("words", ["ls", "submit true x --force", "config"])
def test_a_command_that_starts_nothing_needs_no_proc(tmp_path: Path, database_with_roles: str, words: str) -> None:
    done = broken("no proc", words, tmp_path, DROVER_DATABASE_URL=database_with_roles)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_embedded_database_says_that_proc_is_missing(tmp_path: Path) -> None:
    done = broken("no proc", "init", tmp_path, DROVER_DATABASE_URL=f"embedded:{tmp_path}/pg")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"embedded database: {TOLD['no proc']}")


def test_a_proc_of_another_pid_namespace_is_refused(tmp_path: Path) -> None:
    need("pid namespace")
    (tmp_path / "drover.toml").write_text(LOCAL + agent("true", ["true"], kind="exec"))
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", *RUN, "-c", tmp_path / "drover.toml"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout.startswith("drover run: /proc, by which processes are told apart, is that of another pid names")


@pytest.mark.slow
def test_without_a_place_for_scratch_files_agent_check_says_so(tmp_path: Path) -> None:
    done = broken("nowhere to write", "agent-check /usr/bin/cat", tmp_path)
    text = "drover agent-check: no place for scratch files: No usable temporary directory found in "
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(text)


@pytest.mark.slow
def test_a_daemon_serves_without_a_place_for_scratch_files(launch: Launch) -> None:
    """It keeps no copy of its program then, and says so."""
    need("mount")
    program = ["unshare", "--mount", "sh", "-c", f'{BREAK["nowhere to write"]}; exec "$@"', "sh", *RUN]
    daemon = launch(settings(reexec=True) + LOCAL + agent("true", ["true"], kind="exec"), program=program)
    daemon.wait(daemon.insert(jq_type="true"))
    assert daemon.until(lambda: "no copy of the program can be kept" in daemon.stderr(), what="it does not say so")


@pytest.mark.slow
def test_a_daemon_serves_where_processes_of_others_are_hidden(launch: Launch) -> None:
    need("mount")
    hide = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    caps = "+dac_override,+dac_read_search"
    user = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        f"--inh-caps={caps}",
        f"--ambient-caps={caps}",
    ]
    program = ["unshare", "--mount", "sh", "-c", hide, "sh", *user, *RUN]
    daemon = launch(LOCAL + agent("true", ["/bin/true"], kind="exec"), program=program)
    daemon.wait(daemon.insert(jq_type="true"))
    assert daemon.stop() == 0
