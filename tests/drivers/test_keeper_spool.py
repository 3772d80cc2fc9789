"""Claims about what a spool must be, and about what its files may name: others can neither replace it nor misuse us.

What names a process that is not ours to signal is tried in a pid namespace, or names a process of the test.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.drivers.keeper_scripts import INTERRUPTED, NOT_KEPT, carried, check_words, release_words
from tests.drivers.test_keeper import Attached, Spool, is_alive
from tests.needs import need

STRANGER = 65534
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
IN_NAMESPACE = """
sleep 600 & victim=$!
began() { shift 19; echo "$1"; }
read -r stat </proc/1/stat
ln -s "$(echo "$PID" | sed "s/START/$(began ${stat##*) })/")" "$ENTRY/pid"
"$@"
kill -0 $victim && echo unharmed
"""


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    (tmp_path / "above").mkdir(mode=0o755)
    kept = Spool(tmp_path / "above" / "spool")
    yield kept
    kept.close()


@pytest.fixture
def victim() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def start_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def forged(spool: Path, keeper: str, command: str) -> None:
    """Write an entry as if of an attempt, into a spool of another user."""
    entry = spool / "site" / "7.1"
    entry.mkdir(parents=True)
    spool.chmod(0o700)
    (entry / "state").symlink_to(keeper)
    (entry / "pid").symlink_to(command)
    for name in ("out", "err"):
        (entry / name).touch()


def refused(spool: Spool, tmp_path: Path) -> bytes:
    """Start a command, which must not begin; return why."""
    code, _, err = spool.start(f"touch {tmp_path}/ran").end()
    assert code == NOT_KEPT
    assert not (tmp_path / "ran").exists()
    return err


# ---- the path of a spool


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_spool_below_a_directory_that_others_may_write_is_refused_c41(spool: Spool, tmp_path: Path, mode: int) -> None:
    spool.path.mkdir(mode=0o700)
    spool.path.parent.chmod(mode)
    assert f"{spool.path.parent}/ must belong to root".encode() in refused(spool, tmp_path)


def test_nothing_is_made_below_a_directory_that_others_may_write_c41(spool: Spool, tmp_path: Path) -> None:
    spool.path.parent.chmod(0o777)
    refused(spool, tmp_path)
    assert not spool.path.exists()


def test_spool_below_a_directory_of_another_user_is_refused_c41(spool: Spool, tmp_path: Path) -> None:
    need("root")
    os.chown(spool.path.parent, STRANGER, STRANGER)
    assert b"others may replace the spool" in refused(spool, tmp_path)


def test_symbolic_link_of_another_user_is_refused_c41(spool: Spool, tmp_path: Path) -> None:
    need("root")
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    spool.path.parent.chmod(0o1777)
    spool.path.symlink_to(real)
    os.chown(spool.path, STRANGER, STRANGER, follow_symlinks=False)
    assert f"{spool.path} must belong to root".encode() in refused(spool, tmp_path)


def test_link_is_followed_to_all_directories_above_c41(spool: Spool, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    (open_to_all / "spool").mkdir(mode=0o700, parents=True)
    open_to_all.chmod(0o777)
    spool.path.symlink_to("../open/spool")
    assert f"{open_to_all}/ must belong to root".encode() in refused(spool, tmp_path)


def test_link_in_a_circle_is_refused_c41(spool: Spool, tmp_path: Path) -> None:
    spool.path.symlink_to("spool")
    assert b"too many symbolic links" in refused(spool, tmp_path)
    spool.path.unlink()


def test_spool_of_ours_in_a_sticky_directory_is_used_c41(spool: Spool) -> None:
    spool.path.parent.chmod(0o1777)
    assert spool.start("exit 4").end()[0] == 4


def test_spool_that_another_process_makes_meanwhile_is_used_without_a_word_c41(spool: Spool, tmp_path: Path) -> None:
    (tools := tmp_path / "tools").mkdir()
    mkdir = shutil.which("mkdir")
    (tools / "mkdir").write_text(f'#!/bin/sh\n[ "$2" != {spool.path} ] || {mkdir} "$@"\nexec {mkdir} "$@"\n')
    (tools / "mkdir").chmod(0o755)
    done = subprocess.run(
        spool.words(b"/bin/sh", b"-c", b"exit 3"), stdin=subprocess.DEVNULL, capture_output=True, check=False,
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (done.returncode, b"mkdir" in done.stdout + done.stderr) == (3, False)


def test_link_of_ours_is_used_c41(spool: Spool, tmp_path: Path) -> None:
    spool.path.symlink_to(tmp_path / "made here")
    assert spool.start("exit 4").end()[0] == 4
    assert (tmp_path / "made here").stat().st_mode & 0o777 == 0o700


def test_spool_whose_group_has_the_number_of_our_user_is_not_ours_c41(spool: Spool, tmp_path: Path) -> None:
    need("root")
    spool.path.mkdir(mode=0o700)
    os.chown(spool.path, STRANGER, os.getuid())
    assert b"must be ours" in refused(spool, tmp_path)


def test_link_that_is_pointed_elsewhere_later_does_nothing_c41(
    spool: Spool, tmp_path: Path, victim: "subprocess.Popen[bytes]"
) -> None:
    real, false = tmp_path / "real", tmp_path / "false"
    real.mkdir(mode=0o700)
    spool.path.symlink_to(real)
    attached = spool.start("echo up; exec sleep 600")
    attached.read_line()
    forged(false, os.readlink(spool.entry() / "state"), f"{victim.pid} {start_of(victim.pid)}")
    spool.path.unlink()
    spool.path.symlink_to(false)
    attached.signal(carried(signal.SIGKILL))
    assert attached.end()[0] == 128 + signal.SIGKILL
    assert is_alive(victim.pid)
    spool.path.unlink()
    spool.path.symlink_to(real)


def test_command_begins_in_the_directory_of_its_type_c41(spool: Spool, tmp_path: Path) -> None:
    place = tmp_path / "a place"
    place.mkdir()
    words = spool.words(b"/bin/sh", b"-c", b"pwd; ls /proc/self/fd | wc -l; exit 3")
    done = subprocess.run(words, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stdout.split(b"\n")[1:]) == (3, [bytes(place), b"4", b""])


# ---- what check asks


def checked(path: Path) -> tuple[int | str, bytes]:
    code, out, _ = Attached(check_words(str(path)), b"").end()
    return code, out


def test_check_of_a_spool_says_why_and_makes_nothing_c41(spool: Spool) -> None:
    assert checked(spool.path) == (0, b"")
    assert not spool.path.exists()
    spool.path.parent.chmod(0o777)
    code, out = checked(spool.path)
    assert code == 1
    assert b"others may not write to it (chmod go-w)" in out


def test_check_of_a_spool_that_others_may_read_fails_c41(spool: Spool) -> None:
    spool.path.mkdir(mode=0o755)
    code, out = checked(spool.path)
    assert code == 1
    assert b"its mode 0700" in out


# ---- what its files name


@pytest.mark.parametrize(
    "pid", ["1 START", "-1 START", "0 START", "01 START", "2147483648 START", "self START", "* START"]
)
def test_pid_that_is_none_gets_no_signal_c41(spool: Spool, pid: str) -> None:
    """In a pid namespace of its own, all of which would die."""
    need("root")
    need("mount")
    forged(spool.path, f"999999 1 {BOOT}", "closed")
    (spool.entry() / "pid").unlink()
    words = release_words(str(spool.path), "site", [(7, 1)], grace=1)
    unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", IN_NAMESPACE, "sh")
    environment = {**os.environ, "PID": pid, "ENTRY": str(spool.entry())}
    done = subprocess.run([*unshare, *words], env=environment, capture_output=True, check=False)
    assert done.stdout == b"unharmed\n"
    assert not spool.entry().exists()


def test_process_that_leads_no_session_gets_no_signal_c41(spool: Spool) -> None:
    """Its pid was the command's, and its start the same hundredth of a second."""
    stranger = subprocess.Popen(["sleep", "600"])
    forged(spool.path, f"{os.getpid()} 1 {BOOT}", f"{stranger.pid} {start_of(stranger.pid)}")
    assert spool.adopt().end()[0] == INTERRUPTED
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_process_that_began_at_another_time_gets_no_signal_c41(spool: Spool, victim: "subprocess.Popen[bytes]") -> None:
    forged(spool.path, f"{os.getpid()} 1 {BOOT}", f"{victim.pid} {int(start_of(victim.pid)) - 1}")
    assert spool.release(1)[0] == 0
    assert victim.poll() is None


def test_names_that_are_no_entries_are_not_said_c41(spool: Spool) -> None:
    spool.start("exit 0").end()
    for name in ("7.x", "x.1", "7.1.2", "..1", "a b.3"):
        (spool.path / "site" / name).mkdir()
    assert spool.release()[1] == b"7.1\n"
    assert spool.start("exit 5", attempt=2).end()[0] == 5
