"""Claims about keepers and waiters that are killed at each step: no command comes to its end twice, none runs beside.

A script is killed at a step by a line `kill -s KILL $$` that the test puts before that step; the product has none.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from scheduler.drivers.keeper_scripts import INTERRUPTED, NOT_BEGUN
from tests.drivers.test_keeper import LOOK_S, Attached, Spool, await_death, is_alive, kill_if_alive
from tests.patience import PATIENCE_S

KEEPER, WAITER = 4, 5  # among the words of an attach script
BEGINNING = [
    'cd -P "./$entry"', 'ln -s "$$ $began $boot"', "store .\nmkfifo", "mkfifo", "drain out &", "drain err &",
    'setsid /bin/sh -c "$waiter_script"', "while wait $waiter",
]  # fmt: skip
END = [
    "is_noted . ||",
    '{ sleep "$grace"',
    "wait $out",
    "kill $ticker",
    "until {",
    "store .\nkill",
    "kill -s KILL -- -$$\n",
]
OF_WAITER = ["look $$\n", "setsid /bin/sh", "while :; do\nwait"]


class Ledger:
    """A command that writes down when it begins and when it comes to its end, which it does not before `go` exists."""

    def __init__(self, path: Path) -> None:
        self._notes, self.go = path / "notes", path / "go"

    def command(self, attempt: int) -> str:
        begin, end = (f"echo {word}{attempt} >>{self._notes}" for word in ("begin", "end"))
        return f"{begin}; while [ ! -e {self.go} ]; do sleep 0.05; done; {end}; exit 3"

    @property
    def notes(self) -> list[str]:
        return self._notes.read_text().split() if self._notes.exists() else []

    def until(self, word: str) -> None:
        """Wait until the command has written this."""
        for _ in range(int(PATIENCE_S / LOOK_S)):
            if word in self.notes:
                return
            Event().wait(LOOK_S)
        raise AssertionError(f"no {word} in {self.notes}")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    kept = Spool(tmp_path / "spool")
    yield kept
    kept.close()


def killed_at(spool: Spool, ledger: Ledger, which: int, step: str) -> Attached:
    """Start the command under scripts one of which is killed before a step."""
    words = list(spool.words(b"/bin/sh", b"-c", ledger.command(1).encode()))
    before, found, after = words[which].rpartition(step.encode())
    assert found
    words[which] = before + b"kill -s KILL $$\n" + found + after
    return spool._run(tuple(words), b"")


def recovered(spool: Spool, ledger: Ledger, said: int | str) -> int | str:
    """Do as the daemon does with what an attach script says: adopt the attempt, or begin another."""
    ledger.go.touch()
    if said in ("SIGKILL", "SIGHUP"):
        said = spool.adopt().end()[0]
    if said in (INTERRUPTED, NOT_BEGUN):
        said = spool.start(ledger.command(2), attempt=2).end()[0]
    return said


def keeper_is_over(spool: Spool) -> bool:
    """Say whether the keeper was started, and has ended."""
    state = spool.entry() / "state"
    return state.is_symlink() and not is_alive(spool.pid("state"))


def leave_alone(spool: Spool, ledger: Ledger, attached: Attached) -> int | str:
    """Kill the attach script before it can note that the keeper is killed, and let the command come to its end."""
    for _ in range(int(PATIENCE_S / LOOK_S)):
        if (spool.entry() / "state").is_symlink() or attached.process.poll() is not None:
            break
        Event().wait(LOOK_S)
    attached.process.kill()
    ledger.go.touch()
    for _ in range(int(PATIENCE_S / LOOK_S)):
        if attached.process.poll() is not None and (keeper_is_over(spool) or not (spool.entry() / "state").exists()):
            break
        Event().wait(LOOK_S)
    return attached.end()[0]


WHOLE = [["begin1", "end1"], ["begin2", "end2"], ["begin1", "begin2", "end2"]]


@pytest.mark.parametrize("step", BEGINNING)
def test_keeper_killed_at_its_beginning_costs_no_second_end_c41(spool: Spool, ledger: Ledger, step: str) -> None:
    said = killed_at(spool, ledger, KEEPER, step).end()[0]
    assert recovered(spool, ledger, said) == 3
    assert ledger.notes in WHOLE


@pytest.mark.parametrize("step", [*BEGINNING, *END])
def test_keeper_killed_unattended_costs_no_second_end_c41(spool: Spool, ledger: Ledger, step: str) -> None:
    said = leave_alone(spool, ledger, killed_at(spool, ledger, KEEPER, step))
    assert recovered(spool, ledger, said) == 3
    assert ledger.notes in WHOLE


@pytest.mark.parametrize("step", END)
def test_exit_status_is_used_though_the_keeper_was_killed_c41(spool: Spool, ledger: Ledger, step: str) -> None:
    ledger.go.touch()
    assert killed_at(spool, ledger, KEEPER, step).end()[0] == 3
    assert ledger.notes == ["begin1", "end1"]


@pytest.mark.parametrize("step", OF_WAITER)
def test_waiter_killed_costs_no_second_end_c41(spool: Spool, ledger: Ledger, step: str) -> None:
    said = killed_at(spool, ledger, WAITER, step).end()[0]
    assert recovered(spool, ledger, said) == 3
    assert ledger.notes in WHOLE


def test_exit_status_is_used_though_the_waiter_is_killed_behind_its_note_c41(spool: Spool, ledger: Ledger) -> None:
    ledger.go.touch()
    words = list(spool.words(b"/bin/sh", b"-c", ledger.command(1).encode()))
    words[WAITER] += b"kill -s KILL $$\n"
    assert spool._run(tuple(words), b"").end()[0] == 3
    assert ledger.notes == ["begin1", "end1"]


def test_command_that_ends_while_nobody_keeps_it_is_not_begun_again_c41(spool: Spool, ledger: Ledger) -> None:
    first = spool.start(ledger.command(1))
    ledger.until("begin1")
    first.signal(signal.SIGKILL)
    first.end()
    command = spool.pid("pid")
    os.kill(spool.pid("state"), signal.SIGKILL)
    ledger.go.touch()
    await_death(command)
    assert spool.adopt().end()[0] == 3
    assert spool.adopt(turn=2).end()[0] == 3
    assert ledger.notes == ["begin1", "end1"]


def test_status_noted_without_the_end_of_the_output_is_used_and_that_is_said_c41(spool: Spool, tmp_path: Path) -> None:
    """The group of the keeper is killed, and with it the processes that keep the output."""
    first = spool.start(f"echo up; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 0")
    first.read_line()
    first.process.kill()
    command = spool.pid("pid")
    kill_if_alive(spool.pid("state"))
    (tmp_path / "go").touch()
    await_death(command)
    code, out, err = spool.adopt().end()
    assert (code, out) == (0, b"up\n")
    assert b"the end of the output may be lost" in err


def test_command_that_lost_its_output_and_failed_is_interrupted_c41(spool: Spool, tmp_path: Path) -> None:
    first = spool.start(f"echo up; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 1")
    first.read_line()
    first.process.kill()
    command = spool.pid("pid")
    kill_if_alive(spool.pid("state"))
    (tmp_path / "go").touch()
    await_death(command)
    assert spool.adopt().end()[0] == INTERRUPTED


def test_waiter_and_keeper_killed_interrupt_the_job_and_end_its_command_c41(spool: Spool) -> None:
    first = spool.start("echo up; exec sleep 600")
    first.read_line()
    first.process.kill()
    command, _, waiter, _ = os.readlink(spool.entry() / "pid").split()
    os.kill(int(waiter), signal.SIGSTOP)  # so that it notes nothing, whichever dies first
    kill_if_alive(spool.pid("state"))
    kill_if_alive(int(waiter))
    assert spool.adopt().end()[0] == INTERRUPTED
    await_death(int(command))


def test_killed_waiter_takes_its_command_along_c41(spool: Spool) -> None:
    first = spool.start("echo up; exec sleep 600")
    first.read_line()
    command, _, waiter, _ = os.readlink(spool.entry() / "pid").split()
    os.kill(int(waiter), signal.SIGKILL)
    assert first.end()[0] == INTERRUPTED
    await_death(int(command))


def test_process_in_another_group_is_ended_with_an_interrupted_attempt_c41(spool: Spool, tmp_path: Path) -> None:
    left = tmp_path / "left"
    start = f"setsid sh -c 'echo $$ >{left}; echo up; exec sleep 600' & exec sleep 600"
    first = spool.start(start)
    first.read_line()
    first.process.kill()
    os.kill(spool.pid("state"), signal.SIGKILL)
    assert spool.adopt().end()[0] == INTERRUPTED
    assert not is_alive(int(left.read_text()))


def test_command_whose_entry_was_removed_is_ended_before_it_begins_again_c41(spool: Spool) -> None:
    first = spool.start("echo up; exec sleep 600")
    first.read_line()
    first.process.kill()
    command = spool.pid("pid")
    subprocess.run(["rm", "-rf", spool.entry()], check=True)
    assert spool.adopt().end()[0] == INTERRUPTED
    assert not is_alive(command)


def test_command_of_another_job_is_left_alone_by_its_mark_c41(spool: Spool) -> None:
    """Attempt 11 of job 7 is not attempt 1 of it, though its name begins so."""
    other = spool.start("echo up; exec sleep 600", attempt=11)
    other.read_line()
    assert spool.release(1)[0] == 0
    assert is_alive(spool.pid("pid", 11))
