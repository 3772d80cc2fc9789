"""Claims about real processes between real pipes: how they talk, clog and die, and what is told of it."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import PIPE_BUF

import pytest

from scheduler.drivers.pipes import CHUNK
from scheduler.errors import BugError
from scheduler.model.config import AgentType
from scheduler.model.events_and_effects import Clogged, Created, ForceKill, Gone, Kill, Send, Unclogged
from tests.agent_tools import is_gone, watch
from tests.child_tools import Family, Make, command, open_descriptors, python, sh
from tests.loop_tools import turn_until

BIG = b"x" * 300_000 + b"\n"

# They say up when they can be killed, so that no test races with their start.
READS_LATER = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.write(1, b'up\\n')
signal.sigwait([signal.SIGUSR1])
count = 0
while not count or data[-1:] != b'\\n':
    data = os.read(0, 65536)
    count += len(data)
os.write(1, b'read %d\\n' % count)
os.read(0, 1)
"""
NOTES_ITS_END = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
os.write(1, b'up\\n')
end = os.read(0, 1)
number = signal.sigwait([signal.SIGHUP])
open(sys.argv[1], 'w').write(f'{end} {number}')
"""


# ---------------------------------------------------------------- what is said


def test_a_slot_has_one_process_at_a_time(family: Make) -> None:
    one = family(line=sh("read line"))
    one.spawn()
    with pytest.raises(BugError, match="slot 0 has a process"):
        one.spawn()


@pytest.mark.slow
def test_processes_that_ended_leave_nothing_to_the_garbage_collector_p1(family: Make) -> None:
    one = family(line=sh("echo up; echo oops >&2"), exec=command())
    gc.collect()
    gc.disable()
    try:
        for slot in range(0, 20, 2):
            one.spawn(slot)
            one.run(b"echo", b"x", slot=slot + 1)
            one.end(slot)
            one.end(slot + 1)
        found = gc.collect()
    finally:
        gc.enable()
    assert found < 10


def test_output_of_an_agent_is_passed_on_and_answered_f82(family: Make) -> None:
    one = family(line=sh("echo OK; read line; echo got $line; echo oops >&2"))
    one.answer = lambda _slot, data: {b"OK\n": b"one item\n"}.get(data)
    one.spawn()
    one.end()
    assert (one.said[0], one.errors[0]) == (b"OK\ngot one item\n", b"oops\n")


def test_a_thousand_lines_go_and_come_in_order(family: Make) -> None:
    lines = [b"%d\n" % number for number in range(1000)]
    one = family(line=AgentType(command=("cat",)))
    rest = iter(lines[1:])
    one.answer = lambda _slot, _data: next(rest, None)
    one.spawn()
    one.processes.send(Send(0, lines[0]))
    one.until(lambda: one.said[0].endswith(lines[-1]))
    assert one.said[0] == b"".join(lines)


def test_unfinished_last_line_is_passed_on_f106(family: Make) -> None:
    one = family(line=sh("printf 'LOG: x'"))
    one.spawn()
    assert (one.end(), one.said[0]) == (Gone(0, code=0), b"LOG: x")


def test_end_of_output_is_not_reported_as_death(family: Make) -> None:
    one = family(line=sh("exec >&- 2>&-; read line; exit $line"))
    pid = one.spawn()
    one.until(lambda: len(os.listdir(f"/proc/{pid}/fd")) == 1)
    one.loop.turn(one.loop.now)
    alive = list(one.events)
    one.processes.send(Send(0, b"7\n"))
    assert one.end() == Gone(0, code=7)
    assert alive == [Created(0, pid)]


def test_flood_is_read_in_bounded_pieces_and_starves_no_other_agent(family: Make) -> None:
    one = family(line=AgentType(command=("cat",)), flood=AgentType(command=("yes",)))
    one.answer = lambda slot, data: data if slot == 0 else None
    one.spawn(1, "flood")
    one.spawn(0)
    one.processes.send(Send(0, b"x\n"))
    one.until(lambda: len(one.said[0]) >= 200 and one.said[1])
    assert one.largest <= CHUNK


def test_output_and_errors_of_a_command_are_captured_apart(family: Make) -> None:
    one = family(exec=command())
    one.run(b"sh", b"-c", b"echo out; echo err >&2; exit 75")
    assert one.end() == Gone(0, code=75)
    assert one.captured == {(0, "out"): b"out\n", (0, "err"): b"err\n"}


@pytest.mark.parametrize("stdin", [b"short\n", bytes(PIPE_BUF), bytes(PIPE_BUF + 1), BIG])
def test_a_command_reads_its_stdin_to_the_end(family: Make, stdin: bytes) -> None:
    one = family(exec=command())
    one.run(b"cat", stdin=stdin)
    assert one.end() == Gone(0, code=0)
    assert one.captured[0, "out"] == stdin


@pytest.mark.parametrize("stdin", [None, b"", BIG])
def test_a_command_may_ignore_its_stdin(family: Make, stdin: bytes | None) -> None:
    one = family(exec=command())
    one.run(b"true", stdin=stdin)
    assert one.end() == Gone(0, code=0)
    assert not one.all(Clogged)


# ---------------------------------------------------------------- who does not read


def test_agent_that_does_not_read_is_reported_once_and_receives_all_later(family: Make) -> None:
    one = family(line=python(READS_LATER), cat=AgentType(command=("cat",)))
    pid = one.up()
    one.processes.send(Send(0, BIG[:-1]))
    one.processes.send(Send(0, b"\n"))
    one.spawn(1, "cat")
    one.processes.send(Send(1, b"other\n"))
    one.until(lambda: one.said[1])
    deaf = [*one.all(Clogged), *one.all(Unclogged)]
    os.kill(pid, signal.SIGUSR1)
    one.until(lambda: b"read" in one.said[0])
    assert deaf == [Clogged(0)]
    assert one.said[0] == b"up\nread %d\n" % len(BIG)
    assert (one.all(Clogged), one.all(Unclogged)) == ([Clogged(0)], [Unclogged(0)])


def test_agent_that_closed_its_stdin_is_reported_as_clogged_once(family: Make) -> None:
    one = family(line=sh("exec <&-; echo up; exec sleep 600"))
    one.up()
    one.processes.send(Send(0, b"x\n"))
    one.processes.send(Send(0, b"x\n"))
    assert one.all(Clogged) == [Clogged(0)]


def test_writing_to_a_dead_agent_is_harmless(family: Make) -> None:
    one = family(line=sh("echo up; exit 0"))
    pid = one.up()
    pidfd = watch(pid)
    assert is_gone(pidfd)
    os.close(pidfd)
    one.processes.send(Send(0, b"x\n"))
    assert one.end() == Gone(0, code=0)
    one.processes.send(Send(0, b"x\n"))


# ---------------------------------------------------------------- how they end


@pytest.mark.parametrize(
    ("script", "gone"),
    [
        ("exit 0", Gone(0, code=0)),
        ("exit 3", Gone(0, code=3)),
        ("kill -TERM $$", Gone(0, signal="SIGTERM")),
        ("ulimit -c 0; kill -SEGV $$", Gone(0, signal="SIGSEGV")),
        ("kill -40 $$", Gone(0, signal="SIG40")),
    ],
)
def test_death_is_reported_with_code_or_signal_f117(family: Make, script: str, gone: Gone) -> None:
    one = family(line=sh(script))
    one.spawn()
    assert one.end() == gone


def test_five_simultaneous_deaths_are_all_reported_f76(family: Make) -> None:
    one = family(line=sh("echo up; read line"))
    pids = [one.up(slot) for slot in range(5)]
    one.events.clear()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    one.until(lambda: len(one.events) == 5)
    one.loop.turn(one.loop.now)
    assert set(one.events) == {Gone(slot, signal="SIGKILL") for slot in range(5)}
    assert len(one.events) == 5


def test_a_kill_closes_stdin_and_sends_sighup_f109(family: Make, tmp_path: Path) -> None:
    note = tmp_path / "note"
    one = family(line=python(NOTES_ITS_END, str(note)))
    one.up()
    one.processes.kill(Kill(0))
    assert one.end() == Gone(0, code=0)
    assert note.read_text() == f"b'' {signal.SIGHUP}"


def test_output_of_a_killed_agent_is_dropped_f109(family: Make) -> None:
    one = family(line=sh("trap 'echo last words; exit 5' HUP; echo up; read line; kill -STOP $$"))
    one.up()
    one.processes.kill(Kill(0))
    one.processes.force_kill(ForceKill(0))
    one.end()
    assert one.said[0] == b"up\n"


def test_a_process_that_ignores_sighup_gets_sigkill_f113(family: Make) -> None:
    one = family(line=sh("trap '' HUP; echo up; exec sleep 600"))
    one.up()
    assert killed_twice(one) == ([], Gone(0, signal="SIGKILL"))


def test_a_stopped_process_gets_sigkill_f113(family: Make) -> None:
    one = family(line=sh("kill -STOP $$"))
    pid = one.spawn()
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    assert killed_twice(one) == ([], Gone(0, signal="SIGKILL"))


# Whom anybody may trace (PR_SET_PTRACER), and a debugger that does (PTRACE_SEIZE) until its input ends.
TRACEABLE = "import ctypes; ctypes.CDLL(None).prctl(0x59616D61, -1); print('up', flush=True); input()"
DEBUGGER = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
print(libc.ptrace(0x4206, int(sys.argv[1]), 0, 0), flush=True)
sys.stdin.read()
"""


@contextmanager
def debugger(pid: int) -> Iterator[None]:
    """Trace a process, and let it go."""
    words = [sys.executable, "-S", "-E", "-c", DEBUGGER, str(pid)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0\n"
        yield
        process.communicate()


def test_death_of_a_traced_agent_is_reported_when_its_debugger_detaches(family: Make) -> None:
    one = family(line=python(TRACEABLE))
    pid = one.up()
    with debugger(pid):
        os.kill(pid, signal.SIGKILL)
        turn_until(one.loop, lambda: state(pid) == "Z")
        one.loop.turn(one.loop.now)
        one.loop.turn(one.loop.now)
        assert one.all(Gone) == []
    assert one.end() == Gone(0, signal="SIGKILL")


def state(pid: int) -> str:
    """Return the state of a process, as proc(5) has it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def killed_twice(one: Family) -> tuple[list[Gone], Gone]:
    """Return what is told after a kill, and how it ended after one by force."""
    one.processes.kill(Kill(0))
    one.loop.turn(one.loop.now)
    early = one.all(Gone)
    one.processes.force_kill(ForceKill(0))
    return early, one.end()


def test_a_kill_reaches_the_whole_group(family: Make) -> None:
    one = family(line=sh("sleep 600 & echo up $!; wait"))
    one.up()
    grandchild = watch(int(one.said[0].split()[1]))
    one.processes.kill(Kill(0))
    assert one.end() == Gone(0, signal="SIGHUP")
    assert is_gone(grandchild)
    os.close(grandchild)


def test_killing_an_empty_slot_is_harmless(family: Make) -> None:
    one = family(line=sh("true"))
    one.processes.kill(Kill(9))
    one.processes.force_kill(ForceKill(9))
    assert one.events == []


def test_gone_is_reported_after_the_end_of_the_output_f106(family: Make, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    one = family(line=sh(f"(read line < {fifo}; printf late) & echo up"))
    pidfd = watch(one.up())
    assert is_gone(pidfd)
    os.close(pidfd)
    one.loop.turn(one.loop.now)
    early = one.all(Gone)
    fifo.write_text("go\n")
    assert (early, one.end(), one.said[0]) == ([], Gone(0, code=0), b"up\nlate")


def test_a_grandchild_with_the_pipe_delays_a_death_until_a_deadline(family: Make) -> None:
    one = family(line=sh("sleep 600 & echo up $!; read line; printf last"), exit_grace=0.01)
    one.up()
    grandchild = watch(int(one.said[0].split()[1]))
    one.processes.send(Send(0, b"die\n"))
    assert one.end() == Gone(0, code=0)
    assert one.said[0].endswith(b"last")
    assert is_gone(grandchild)
    os.close(grandchild)


def test_a_kill_ends_the_wait_for_output(family: Make) -> None:
    one = family(line=sh("sleep 600 & echo up"))
    pidfd = watch(one.up())
    assert is_gone(pidfd)
    os.close(pidfd)
    one.loop.turn(one.loop.now)
    early = one.all(Gone)
    one.processes.kill(Kill(0))
    assert (early, one.all(Gone)) == ([], [Gone(0, code=0)])


def test_a_slot_is_free_again_and_nothing_leaks(family: Make) -> None:
    one = family(exec=command())
    before = open_descriptors()
    for slot in range(20):
        one.run(b"true", slot=slot % 2)
        one.until(lambda: not one.pids())
    assert (open_descriptors(), len(one.all(Gone)), one.pids()) == (before, 10, {})


@pytest.fixture
def ignored_children() -> Iterator[None]:
    """The kernel reaps for us, as below a parent that ignored SIGCHLD."""
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, old)


@pytest.mark.usefixtures("ignored_children")
def test_death_that_was_reaped_elsewhere_is_lost(family: Make) -> None:
    one = family(line=sh("echo up; read line; exit 3"))
    one.up()
    one.processes.send(Send(0, b"die\n"))
    assert one.end() == Gone(0, lost=True)


def test_no_process_survives_the_end_f115(family: Make) -> None:
    one = family(line=sh("trap '' HUP; sleep 600 & echo up $!; wait"))
    pids = [one.up(slot) for slot in range(3)]
    grandchildren = [int(one.said[slot].split()[1]) for slot in range(3)]
    watched = [watch(pid) for pid in [*pids, *grandchildren]]
    one.processes.close()
    assert [is_gone(pidfd) for pidfd in watched] == [True] * 6
    assert one.pids() == {}
    list(map(os.close, watched))
