"""Claims about login shells, each on a real sshd whose root has it: none reads an argument, and one that runs no
commands is named.
"""

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.drivers.ssh_protocol import Ended, LinkDown, Note
from tests.needs import need
from tests.ssh.accounts import SHELLS, program_of, with_login_shell
from tests.ssh.conftest import Join, Serve
from tests.ssh.host import Host

COUNT = 2000
ECHO = "import os, sys; os.write(1, b'\\0'.join([os.getcwdb(), os.environb[b'X'], *map(os.fsencode, sys.argv[1:])]))"
SPECIAL = "' \" \\ \n ! $ ` * ? [a] {a,b} ( ) < > | & ; ~ # = - -- \t \r ^ @ \\' \\\" \\\\ !! $$ $0 $HOME ${X} \\n é 漢"
PIECES = [*(bytes([number]) for number in range(1, 256)), *(each.encode() for each in SPECIAL.split(" "))]


def awkward(chance: random.Random, forbidden: Path) -> bytes:
    """Return an argument, empty at times, that a shell would take for something else, or run: `touch forbidden`."""
    touch = b"touch " + os.fsencode(forbidden)
    runs = [each.replace(b"RUN", touch) for each in (b"$(RUN)", b"`RUN`", b"\\'\"(RUN) #", b"';RUN;'", b"\nRUN\n")]
    return b"".join(chance.choice(runs if chance.random() < 0.02 else PIECES) for _ in range(chance.randrange(12)))


Reach = Callable[..., Host]


@pytest.fixture
def reach(serve: Serve, join: Join, tmp_path: Path) -> Reach:
    """Return a host whose login shell is this program."""

    def start(program: str, sh: str = "", **settings: object) -> Host:
        return join(serve(inside=with_login_shell(tmp_path, program, sh)).settings(**settings))

    return start


def arrive(host: Host, tmp_path: Path, seed: str) -> None:
    """See 2,000 arguments, a variable and a directory arrive as they are, and nothing else happen."""
    chance, forbidden = random.Random(seed), tmp_path / "forbidden"
    words = [awkward(chance, forbidden) for _ in range(COUNT)]
    variable, directory = b"'\xff\n!\\ ", os.fsencode(tmp_path / "it's\n!\\ $(id)")
    os.mkdir(directory)
    host.start(sys.executable, "-S", "-c", ECHO, *words, environment={b"X": variable}, directory=directory)
    assert (host.end(), host.errors[0]) == (Ended(0, code=0), b"")
    assert host.said[0].split(b"\0") == [directory, variable, *words]
    assert not forbidden.exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_awkward_arguments_arrive_unchanged_through_each_login_shell(reach: Reach, tmp_path: Path, shell: str) -> None:
    arrive(reach(program_of(shell, tmp_path)), tmp_path, shell)


@pytest.mark.parametrize("sh", ["bash", "mksh", "ash"])
def test_awkward_arguments_arrive_unchanged_though_sh_is_another(reach: Reach, tmp_path: Path, sh: str) -> None:
    arrive(reach(program_of("fish", tmp_path), sh=os.path.realpath(program_of(sh, tmp_path))), tmp_path, sh)


@pytest.mark.parametrize("shell", ["csh", "fish"])
def test_long_arguments_arrive_through_a_shell_that_takes_no_long_words(
    reach: Reach, tmp_path: Path, shell: str
) -> None:
    host = reach(program_of(shell, tmp_path))
    words = [b"'" * 65_536, b"\n" * 65_536, b"\xff" * 30_000]
    host.start(sys.executable, "-S", "-c", ECHO, *words, environment={b"X": b""}, directory=b"/")
    assert host.end() == Ended(0, code=0)
    assert host.said[0].split(b"\0") == [b"/", b"", *words]


@pytest.mark.parametrize(
    ("name", "script"),
    [
        (".bashrc", "echo Welcome\r\nexport A=1\r\nalias ls='ls -l'\r\n"),
        (".bashrc", "set -m; trap 'echo bye' EXIT\n"),
        (".bashrc", "ulimit -n 256; ulimit -c 0; umask 077\n"),
        (".bashrc", 'read -t 0.5 answer; echo "you said $answer"\n'),
        (".bashrc", "export LC_ALL=C IFS=x\n"),
        (".cshrc", "echo Welcome; set backslash_quote\n"),
        (".zshenv", "setopt sh_word_split; echo -n Welcome\n"),
        (".config/fish/config.fish", "echo Welcome; set -x drover 1\n"),
    ],
    ids=["crlf", "job-control", "limits", "reads-input", "ifs", "cshrc", "zshenv", "fish"],
)
def test_agents_start_behind_login_scripts_that_do_this(reach: Reach, tmp_path: Path, name: str, script: str) -> None:
    shells = {".bashrc": "bash", ".cshrc": "tcsh", ".zshenv": "zsh"}
    path = tmp_path / "server0" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, newline="")
    host = reach(program_of(shells.get(name, "fish"), tmp_path))
    host.start("sh", "-c", 'read -r line; echo "$line"', directory=b"/")
    host.write(0, b"one item\n")
    assert (host.end(), host.said[0]) == (Ended(0, code=0), b"one item\n")


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("/usr/sbin/nologin", 1, "This account is currently not available"),
        ("/bin/false", 1, ""),
        ("/usr/bin/git-shell", 128, "fatal: "),
        (sys.executable, 1, "exec /bin/sh"),
    ],
)
def test_login_shell_that_runs_no_commands_is_told_with_what_to_do(
    reach: Reach, program: str, status: int, said: str
) -> None:
    if not os.path.exists(program):
        need("git-shell")
    why = reach(program).await_report(LinkDown).why
    assert said in why
    assert f"the login shell of root@alpha ended with status {status}" in why
    assert "usermod -s /bin/sh root" in why


NO_PROC = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")


def test_host_without_proc_and_ps_is_told_so(serve: Serve, join: Join) -> None:
    need("mount")
    host = join(serve(inside=NO_PROC, SetEnv="PATH=/none").settings())
    assert "neither /proc nor ps -o lstart says when a process began" in host.await_report(LinkDown).why


def test_agents_run_and_end_on_a_host_without_grep(serve: Serve, join: Join, tmp_path: Path) -> None:
    for name in ("sh", "sleep", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    host = join(serve(SetEnv=f"PATH={tmp_path}").settings())
    for id in range(3):
        host.sh("exit 7", id=id)
        assert host.end(id) == Ended(id, code=7)
    assert (host.all(LinkDown), host.all(Note)) == ([], [])
