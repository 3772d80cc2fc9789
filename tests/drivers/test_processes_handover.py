"""Processes that another program goes on with: what they say, read and how they die, while nobody looked and after."""

import os
import signal

from scheduler.model.events_and_effects import Clogged, Gone, Kill, Send, Unclogged
from tests.agent_tools import is_gone, watch
from tests.child_tools import Make, command, sh
from tests.loop_tools import turn_until

BIG = b"x" * 300_000 + b"\n"


def test_what_an_agent_says_while_frozen_is_read_by_the_next_program(family: Make) -> None:
    one = family(line=sh("echo up; read line; echo got $line; read more"))
    one.up()
    one.processes.freeze()
    one.processes.send(Send(0, b"it\n"))
    heir = one.hand_over()
    heir.processes.thaw()
    heir.until(lambda: heir.said[0] == b"got it\n")
    assert one.said[0] == b"up\n"


def test_agent_that_died_in_the_instant_of_the_exec_is_told_by_the_next_program(family: Make) -> None:
    one = family(line=sh("echo up; read line"))
    fd = watch(one.up())
    one.processes.freeze()
    os.kill(one.pids()[0], signal.SIGKILL)
    assert is_gone(fd)
    heir = one.hand_over()
    assert (one.all(Gone), heir.all(Gone)) == ([], [])
    heir.processes.thaw()
    assert heir.end() == Gone(0, signal="SIGKILL")


def test_status_and_last_words_of_a_command_reach_the_next_program(family: Make) -> None:
    one = family(exec=command())
    one.run(b"sh", b"-c", b"echo up; read line; echo last; exit 7", stdin=b"")
    heir = one.hand_over()
    heir.processes.thaw()
    assert heir.end().code == 7
    assert heir.captured[0, "out"] == b"up\nlast\n"


def test_what_was_not_read_by_an_agent_yet_is_sent_by_the_next_program(family: Make) -> None:
    one = family(line=sh("trap 'wc -c; exit' USR1; echo up; while :; do sleep 0.01; done"))
    pid = one.up()
    one.processes.send(Send(0, BIG))
    assert one.all(Clogged)
    heir = one.hand_over()
    heir.processes.thaw()
    os.kill(pid, signal.SIGUSR1)
    heir.until(lambda: heir.all(Unclogged))
    heir.processes.kill(Kill(0))
    heir.until(lambda: heir.all(Gone))


def test_processes_that_end_after_a_handover_leave_no_descriptors_and_no_zombies(family: Make) -> None:
    one = family(line=sh("echo up; read line"))
    before = set(os.listdir("/proc/self/fd"))
    pid = one.up()
    heir = one.hand_over()
    heir.processes.thaw()
    heir.processes.kill(Kill(0))
    heir.end()
    assert set(os.listdir("/proc/self/fd")) == before
    assert not os.path.exists(f"/proc/{pid}")


def test_descriptors_that_travel_are_closed_in_agents_that_are_started_later(family: Make) -> None:
    one = family(line=sh("echo up; read line"), other=sh("ls /proc/self/fd; read line"))
    one.up()
    heir = one.hand_over()
    heir.processes.thaw()
    assert not any(os.get_inheritable(fd) for fd in heir.processes.fds)
    heir.spawn(1, "other")
    turn_until(heir.loop, lambda: heir.said[1].count(b"\n") >= 4)
    assert heir.said[1].split()[:3] == [b"0", b"1", b"2"]
    assert len(heir.said[1].split()) == 4  # and the folder itself
