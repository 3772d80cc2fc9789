"""Claims about the keeper of a detached job and the script that attaches to it: real processes, a real spool."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from select import POLLIN, poll
from threading import Event

import pytest

from scheduler.drivers.keeper_scripts import INTERRUPTED, NOT_BEGUN, NOT_KEPT, carried, release_words, words_of
from scheduler.model.events_and_effects import Keeper
from tests.needs import need
from tests.patience import PATIENCE_S
from tests.spool_tools import end_kept

LOOK_S = 0.02  # seconds between two looks at the state of a process, of whose change we get no event


class Attached:
    """An attach script between three pipes, leader of its own group as the daemon makes it."""

    def __init__(self, words: tuple[bytes, ...], stdin: bytes) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0)
        assert self.process.stdin is not None
        self.process.stdin.write(stdin)
        self.process.stdin.close()
        self.process.stdin = None
        self.keeper: int | None = None

    def end(self) -> tuple[int | str, bytes, bytes]:
        """Return its exit status or the signal of which it died, and what it has printed."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        code = self.process.returncode
        if self.keeper is None:  # unless its first line was read
            out = out[out.find(b"\n") + 1 :] if out[: out.find(b"\n")].isdigit() else out
        return (signal.Signals(-code).name if code < 0 else code), out, err

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def read_line(self) -> bytes:
        """Return the next line of the command; what comes first is the pid of the keeper."""
        assert self.process.stdout is not None
        if self.keeper is None:
            self.keeper = int(self.process.stdout.readline())
        return self.process.stdout.readline()


class Spool:
    """A spool, and what is done with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attached: list[Attached] = []

    def words(self, *argv: bytes, attempt: int = 1, limit: int = 1 << 20) -> tuple[bytes, ...]:
        return words_of(Keeper("start", "site", str(self.path), 0, limit, grace=1), 7, attempt, argv)

    def start(self, script: str, attempt: int = 1, *, limit: int = 1 << 20, stdin: bytes = b"") -> Attached:
        """Start a shell script as a detached job."""
        words = self.words(b"/bin/sh", b"-c", script.encode(), attempt=attempt, limit=limit)
        return self._run(words, stdin)

    def adopt(self, attempt: int = 1, turn: int = 1) -> Attached:
        keeper = Keeper("adopt", "site", str(self.path), turn, 1 << 20, grace=1)
        return self._run(words_of(keeper, 7, attempt, ()), b"")

    def release(self, *attempts: int) -> tuple[int | str, bytes, bytes]:
        entries = [(7, attempt) for attempt in attempts]
        return self._run(release_words(str(self.path), "site", entries, grace=1), b"").end()

    def _run(self, words: tuple[bytes, ...], stdin: bytes) -> Attached:
        self.attached.append(Attached(words, stdin))
        return self.attached[-1]

    def entry(self, attempt: int = 1) -> Path:
        return self.path / "site" / f"7.{attempt}"

    def pid(self, name: str, attempt: int = 1) -> int:
        """Return the pid that a link of an entry names: `state` the keeper, `pid` the command, once it has printed."""
        return int(os.readlink(self.entry(attempt) / name).split()[0])

    def close(self) -> None:
        for attached in self.attached:
            attached.process.kill()
            attached.process.communicate()
        end_kept(self.path.glob("site/*/*"))


def kill_if_alive(pid: int) -> None:
    assert pid > 1
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def is_alive(pid: int) -> bool:
    """Say whether a process exists that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_death(pid: int) -> None:
    """Wait until a process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = poll()
    ended.register(fd, POLLIN)
    assert ended.poll(1000 * PATIENCE_S), f"process {pid} lives on"
    os.close(fd)


def await_stop(pid: int, is_stopped: bool) -> None:
    """Wait until a process is stopped, or runs on, by looking again and again: only its parent gets an event."""
    for _ in range(int(PATIENCE_S / LOOK_S)):
        if (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T") == is_stopped:
            return
        Event().wait(LOOK_S)
    raise AssertionError(f"process {pid} is{' not' * is_stopped} stopped")


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    kept = Spool(tmp_path / "spool")
    yield kept
    kept.close()


# ---------------------------------------------------------------- a command and its end


@pytest.mark.parametrize("code", [0, 1, 75, 125])
def test_attach_script_exits_as_its_command_c41(spool: Spool, code: int) -> None:
    script = f"cat; echo oops >&2; exit {code}"
    assert spool.start(script, stdin=b"one line\n").end() == (code, b"one line\n", b"oops\n")


def test_signal_that_kills_the_command_is_an_exit_status_c41(spool: Spool) -> None:
    assert spool.start("kill -SEGV $$").end()[0] == 128 + signal.SIGSEGV


def test_command_that_is_not_found_exits_with_127_c41(spool: Spool) -> None:
    code, _, err = Attached(spool.words(b"/nowhere/at-all"), b"").end()
    assert code == 127
    assert b"not found" in err or b"No such file" in err


def test_words_of_the_command_are_passed_as_they_are_c41(spool: Spool) -> None:
    words = spool.words(b"/usr/bin/printf", b"%s|", b"a b", b"", b"$HOME", b"\xff'\"\n")
    assert Attached(words, b"").end()[1] == b"a b||$HOME|\xff'\"\n|"


def test_command_that_closes_its_outputs_ends_with_its_exit_c41(spool: Spool) -> None:
    attached = spool.start("exec >&- 2>&-; read line; exit 4", stdin=b"x\n")
    assert attached.end() == (4, b"", b"")


@pytest.mark.slow
def test_process_that_moved_to_another_session_does_not_hold_up_the_end_c41(spool: Spool, tmp_path: Path) -> None:
    left = tmp_path / "left"
    script = (
        f"setsid sh -c 'echo $$ >{left}; exec sleep 600' & until [ -s {left} ]; do sleep 0.1; done; echo up; exit 3"
    )
    assert spool.start(script).end()[:2] == (3, b"up\n")
    os.kill(int(left.read_text()), signal.SIGKILL)


def test_process_of_the_group_that_is_left_is_killed_c41(spool: Spool, tmp_path: Path) -> None:
    left = tmp_path / "left"
    assert spool.start(f"sleep 600 & echo $! >{left}; exit 0").end()[0] == 0
    await_death(int(left.read_text()))


@pytest.mark.parametrize("size", [100, 936, 5000, 300_000])
def test_head_and_tail_of_the_output_are_kept_within_the_limit_c41(spool: Spool, size: int) -> None:
    data = b"".join(b"%08d\n" % number for number in range(size // 9 + 1))[:size]
    code, out, _ = spool.start("cat", limit=1000, stdin=data).end()
    assert code == 0
    if size <= 936:
        assert out == data
    else:
        gap = b"\n[... %d bytes left out ...]\n" % (size - 936)
        assert out == data[:500] + gap + data[-436:]
    assert sum(file.stat().st_size for file in spool.entry().glob("out*")) < 1000 + 2 * 65_536


# ---------------------------------------------------------------- what it outlives


def test_command_goes_on_without_its_attach_script_and_is_adopted_c41(spool: Spool, tmp_path: Path) -> None:
    go, count = tmp_path / "go", tmp_path / "count"
    first = spool.start(f"echo x >>{count}; echo one; while [ ! -e {go} ]; do sleep 0.1; done; echo two; exit 5")
    assert first.read_line() == b"one\n"
    first.signal(signal.SIGKILL)
    assert first.end()[0] == "SIGKILL"
    second = spool.adopt()
    assert second.read_line() == b"one\n"
    go.touch()
    assert second.end() == (5, b"two\n", b"")
    assert count.read_text() == "x\n"


def test_end_is_kept_until_it_is_released_c41(spool: Spool) -> None:
    spool.start("echo done; exit 9").end()
    assert spool.adopt(turn=1).end() == (9, b"done\n", b"")
    assert spool.adopt(turn=2).end() == (9, b"done\n", b"")
    assert spool.release(1) == (0, b"", b"")
    assert not spool.entry().exists()


def test_signals_reach_the_command_after_adoption_c41(spool: Spool) -> None:
    script = "trap 'echo hup' HUP; trap 'echo usr1; exit 6' USR1; echo up; while :; do sleep 600 & wait; done"
    first = spool.start(script)
    first.read_line()
    first.signal(signal.SIGKILL)
    second = spool.adopt()
    assert second.read_line() == b"up\n"
    second.signal(carried(signal.SIGHUP))
    assert second.read_line() == b"hup\n"
    second.signal(signal.SIGUSR1)
    assert second.end()[:2] == (6, b"usr1\n")


def test_signal_reaches_a_command_whose_name_holds_a_line_end_c41(spool: Spool) -> None:
    script = r"trap 'exit 6' USR1; printf 'a\n) b' >/proc/$$/comm; echo up; while :; do sleep 600 & wait; done"
    attached = spool.start(script)
    attached.read_line()
    attached.signal(signal.SIGUSR1)
    assert attached.end()[0] == 6


def test_deaf_command_is_killed_by_the_carrier_of_sigkill_c41(spool: Spool) -> None:
    attached = spool.start("trap '' HUP TERM; echo up; while :; do sleep 600; done")
    attached.read_line()
    attached.signal(carried(signal.SIGHUP))
    attached.signal(carried(signal.SIGKILL))
    assert attached.end()[0] == 128 + signal.SIGKILL


def test_hangup_of_a_guardian_ends_the_attach_script_alone_c41(spool: Spool) -> None:
    first = spool.start("echo up; exec sleep 600")
    first.read_line()
    command = spool.pid("pid")
    first.signal(signal.SIGHUP)
    assert first.end()[0] == "SIGHUP"
    assert is_alive(command)


def test_command_is_stopped_and_goes_on_c41(spool: Spool) -> None:
    attached = spool.start("echo up; while :; do sleep 600; done")
    attached.read_line()
    command = spool.pid("pid")
    attached.signal(carried(signal.SIGSTOP))
    await_stop(command, True)
    attached.signal(signal.SIGCONT)
    await_stop(command, False)
    attached.signal(carried(signal.SIGKILL))
    assert attached.end()[0] == 128 + signal.SIGKILL


# ---------------------------------------------------------------- fencing


def test_start_after_an_adoption_starts_nothing_c41(spool: Spool, tmp_path: Path) -> None:
    assert spool.adopt().end()[0] == NOT_BEGUN
    assert spool.start(f"touch {tmp_path}/ran").end()[0] == NOT_BEGUN
    spool.release(1)
    assert spool.start(f"touch {tmp_path}/ran").end()[0] == NOT_BEGUN
    assert not (tmp_path / "ran").exists()


def test_start_after_a_release_starts_nothing_c41(spool: Spool, tmp_path: Path) -> None:
    """Its job was cancelled while it was on its way, so nothing was there to be removed."""
    assert spool.release(1) == (0, b"", b"")
    assert spool.start(f"touch {tmp_path}/ran").end()[0] == NOT_BEGUN
    assert not (tmp_path / "ran").exists()


def test_second_start_of_an_attempt_attaches_to_the_first_c41(spool: Spool, tmp_path: Path) -> None:
    script = f"echo x >>{tmp_path}/count; exit 2"
    assert spool.start(script).end()[0] == 2
    assert spool.start(script).end()[0] == 2
    assert (tmp_path / "count").read_text() == "x\n"


@pytest.mark.slow
def test_start_ends_an_earlier_attempt_first_c41(spool: Spool) -> None:
    first = spool.start("trap '' HUP; echo up; while :; do sleep 600; done")
    first.read_line()
    command = spool.pid("pid")
    code, out, _ = spool.start(f"kill -0 {command} 2>/dev/null && echo both; echo second", attempt=2).end()
    assert (code, out) == (0, b"second\n")
    assert not is_alive(command)


def test_start_of_an_older_attempt_is_refused_c41(spool: Spool, tmp_path: Path) -> None:
    second = spool.start("echo up; while :; do sleep 600; done", attempt=2)
    second.read_line()
    assert spool.start(f"touch {tmp_path}/ran", attempt=1).end()[0] == NOT_BEGUN
    assert not (tmp_path / "ran").exists()
    assert is_alive(spool.pid("pid", 2))


def test_attach_script_of_an_earlier_turn_passes_no_signal_on_c41(spool: Spool) -> None:
    script = "trap 'echo hup' HUP; trap 'echo usr1; exit 3' USR1; echo up; while :; do sleep 600 & wait; done"
    first = spool.start(script)
    first.read_line()
    second = spool.adopt()
    second.read_line()
    first.signal(carried(signal.SIGHUP))
    first.signal(carried(signal.SIGKILL))
    second.signal(signal.SIGUSR1)
    assert second.end()[:2] == (3, b"usr1\n")
    assert first.end()[0] == 3


# ---------------------------------------------------------------- what is lost


def test_reboot_of_the_host_interrupts_the_job_c41(spool: Spool) -> None:
    first = spool.start("echo up; while :; do sleep 600; done")
    first.read_line()
    state = spool.entry() / "state"
    keeper, began, _ = os.readlink(state).split()
    kill_if_alive(spool.pid("pid"))
    kill_if_alive(int(keeper))
    first.end()
    (spool.entry() / "end").unlink(missing_ok=True)
    state.unlink()
    state.symlink_to(f"{os.getpid()} {began} 00000000-0000-0000-0000-000000000000")
    assert spool.adopt().end()[0] == INTERRUPTED


def test_keeper_that_is_killed_takes_its_command_along_c41(spool: Spool) -> None:
    first = spool.start("echo up; exec sleep 600")
    first.read_line()
    command = spool.pid("pid")
    kill_if_alive(spool.pid("state"))
    assert first.end()[0] == INTERRUPTED
    assert not is_alive(command)
    assert spool.adopt().end()[0] == INTERRUPTED


def test_keeper_without_a_job_is_told_to_end_c41(spool: Spool) -> None:
    first = spool.start("trap 'echo bye; exit 0' HUP; echo up; while :; do sleep 600 & wait; done")
    first.read_line()
    command, keeper = spool.pid("pid"), spool.pid("state")
    assert spool.release() == (0, b"7.1\n", b"")
    assert spool.release(1) == (0, b"", b"")
    assert not is_alive(command)
    await_death(keeper)
    assert not spool.entry().exists()


def test_end_of_a_released_job_of_another_site_stays_c41(spool: Spool) -> None:
    spool.start("exit 0").end()
    other = Attached(release_words(str(spool.path), "other", [(7, 1)], grace=1), b"")
    assert other.end() == (0, b"", b"")
    assert spool.entry().exists()


def test_reboot_without_a_keeper_is_an_interruption_though_the_pid_lives_c41(spool: Spool) -> None:
    """The pid of the keeper is that of another process since: here it is ours."""
    spool.entry().mkdir(parents=True)
    os.chmod(spool.path, 0o700)
    began = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    (spool.entry() / "state").symlink_to(f"{os.getpid()} {began} 00000000-0000-0000-0000-000000000000")
    assert spool.adopt().end()[0] == INTERRUPTED


# ---------------------------------------------------------------- bad spools


def test_spool_that_others_may_read_is_refused_c41(spool: Spool) -> None:
    spool.path.mkdir(mode=0o755)
    code, _, err = spool.start("exit 0").end()
    assert code == NOT_KEPT
    assert b"0700" in err


def test_spool_of_another_user_is_refused_c41(spool: Spool, tmp_path: Path) -> None:
    need("root")
    spool.path.mkdir(mode=0o700)
    os.chown(spool.path, 1, 1)
    code, _, err = spool.start(f"touch {tmp_path}/ran").end()
    assert code == NOT_KEPT
    assert b"must be ours" in err
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Spool]:
    """Yield a spool on a disk of its own, of 2 MB."""
    need("root")
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", path], check=True)
    kept = Spool(path)
    yield kept
    kept.close()
    subprocess.run(["umount", "--lazy", path], check=True)


def fill(spool: Spool) -> None:
    """Fill the disk of a spool."""
    with pytest.raises(OSError, match="No space left"):
        (spool.path / "filler").write_bytes(bytes(1 << 22))


def test_full_disk_refuses_a_start_and_leaves_nothing_c41(small: Spool, tmp_path: Path) -> None:
    (small.path / "site").mkdir()
    fill(small)
    code, _, err = small.start(f"touch {tmp_path}/ran", stdin=b"x" * 10_000).end()
    assert code == NOT_KEPT
    assert b"takes no more" in err
    assert not small.entry().exists()
    assert not (tmp_path / "ran").exists()


def test_disk_that_is_full_later_costs_output_and_not_the_exit_status_c41(small: Spool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    attached = small.start(f"echo one; while [ ! -e {go} ]; do sleep 0.1; done; head -c 300000 /dev/zero; exit 7")
    assert attached.read_line() == b"one\n"
    fill(small)
    go.touch()
    code, _, err = attached.end()
    assert code == 7
    assert b"the spool was full" in err


def test_spool_that_is_a_file_is_refused_c41(spool: Spool) -> None:
    spool.path.write_text("")
    assert spool.start("exit 0").end()[0] == NOT_KEPT
    spool.path.unlink()


def test_garbage_in_an_entry_starts_nothing_c41(spool: Spool) -> None:
    spool.entry().mkdir(parents=True)
    os.chmod(spool.path, 0o700)
    (spool.entry() / "state").symlink_to("garbage")
    assert spool.adopt().end()[0] == NOT_KEPT
    (spool.entry() / "state").unlink()


def test_environment_marks_the_keeper_and_all_below_it_c41(spool: Spool) -> None:
    attached = spool.start("echo up; exec sleep 600")
    attached.read_line()
    for name in ("state", "pid"):
        assert b"DROVER_KEEPER=7.1" in Path(f"/proc/{spool.pid(name)}/environ").read_bytes().split(b"\0")
    mine = Path(f"/proc/{attached.process.pid}/environ").read_bytes()
    assert b"DROVER_KEEPER" not in mine


def test_command_that_is_to_end_already_is_told_by_the_arguments_c41(spool: Spool) -> None:
    first = spool.start("trap 'echo told; exit 3' HUP; echo begun; while :; do sleep 0.01; done")
    assert first.read_line() == b"begun\n"
    first.process.kill()
    keeper = Keeper("adopt", "site", str(spool.path), 1, 1 << 20, grace=1, told="HUP")
    assert spool._run(words_of(keeper, 7, 1, ()), b"").end()[:2] == (3, b"begun\ntold\n")
