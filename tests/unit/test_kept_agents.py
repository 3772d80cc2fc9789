"""What is left for the next daemon: marks of agents without work, descriptions, and a state under new numbers."""

import math
import os
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from scheduler.daemon import cgroup_warden
from scheduler.daemon.cgroup_warden import KILL_EARLY_S, TAKE, YOURS, Warden, Watch, began_after, belongs_to, own_group
from scheduler.daemon.fd_store_handover import PAGE_BYTES, AgentDescription, SharedPage, read_description, start_digest
from scheduler.daemon.fd_store_recovery import Inheritance
from scheduler.daemon.handover_document import renumbered
from scheduler.drivers.loop import Loop
from scheduler.drivers.pipes import Outputs, Pipes
from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Config, Host, Scheduler
from tests.core_tools import claim, make_core, ready, sent, settle, turn

Lifeline = tuple[socket.socket, socket.socket]
DESCRIPTION = AgentDescription(3, "sha", "alpha", 4711, 99, ["1:2", "1:3", "1:4"], "made", ["/bin/sha", 1, 2, 3])


# ---- the warden


@pytest.fixture
def lifeline() -> Iterator[Lifeline]:
    """Return the ends of the daemon and of the warden."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def dead() -> int:
    """Return the pid of a daemon that has ended."""
    daemon = subprocess.Popen(["true"])
    daemon.wait()
    return daemon.pid


def test_the_warden_knows_from_the_daemon_itself_when_that_has_ended(
    lifeline: Lifeline, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_warden, "_ticks", iter([7, 99]).__next__)  # it sees the end later
    ours, theirs = lifeline
    warden = Warden(ours, 0)
    warden.watch()
    warden.close()
    assert Watch(dead, theirs).outcome() == ("the service has ended", 7)


def test_a_warden_kills_nothing_if_its_daemon_died_before_the_next_one_could_have_its_lifeline(
    lifeline: Lifeline, dead: int
) -> None:
    ours, theirs = lifeline
    ours.close()
    assert Watch(dead, theirs).outcome() is None


def test_a_warden_goes_on_after_a_message_of_a_later_version(lifeline: Lifeline, dead: int) -> None:
    ours, theirs = lifeline
    Warden(ours, 0).watch()
    for message in (b"something new", TAKE):
        ours.send(message)
    ours.shutdown(socket.SHUT_WR)
    assert Watch(dead, theirs).outcome() is None
    assert ours.recv(9) == YOURS


def test_a_warden_answers_a_second_daemon_if_the_first_that_asked_died(lifeline: Lifeline, dead: int) -> None:
    ours, theirs = lifeline
    Warden(ours, 0).watch()
    for _ in range(2):
        ours.send(TAKE)
    ours.shutdown(socket.SHUT_WR)
    assert Watch(dead, theirs).outcome() is None
    assert [ours.recv(9), ours.recv(9)] == [YOURS, YOURS]


def test_a_warden_kills_nothing_if_the_daemon_that_asked_did_not_live_to_read_the_answer(
    lifeline: Lifeline, dead: int
) -> None:
    ours, theirs = lifeline
    Warden(ours, 0).watch()
    ours.send(TAKE)
    ours.close()
    assert Watch(dead, theirs).outcome() is None


def test_a_warden_kills_before_the_lease_of_its_daemon_ends(lifeline: Lifeline, dead: int) -> None:
    ours, theirs = lifeline
    warden = Warden(ours, 0)
    warden.watch()
    warden.set_lease(time.monotonic() + KILL_EARLY_S)
    found = Watch(dead, theirs).outcome()
    assert found is not None
    assert found[0] == "no daemon has come before the lease ends"


def test_a_warden_knows_the_last_lease_that_its_daemon_had(lifeline: Lifeline, dead: int) -> None:
    ours, theirs = lifeline
    warden, now = Warden(ours, 0), time.monotonic()
    warden.watch()
    for until in (now, now + KILL_EARLY_S + 0.1, -math.inf):
        warden.set_lease(until)
    assert Watch(dead, theirs).outcome() is not None
    assert time.monotonic() >= now + 0.099  # it knows milliseconds


def test_a_warden_waits_for_the_next_daemon_if_all_has_ended_that_a_lease_was_for(
    lifeline: Lifeline, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_warden, "PATIENCE_S", 0.1)
    ours, theirs = lifeline
    warden = Warden(ours, 0)
    warden.watch()
    warden.set_lease(0.0)
    warden.forget_lease()
    found = Watch(dead, theirs).outcome()
    assert found is not None
    assert found[0] == "no daemon has come in 0.1 s"


def test_a_warden_reads_all_that_it_was_told_before_it_kills(lifeline: Lifeline, dead: int) -> None:
    ours, theirs = lifeline
    warden = Warden(ours, 0)
    warden.watch()
    warden.set_lease(0.0)
    ours.send(TAKE)
    ours.shutdown(socket.SHUT_WR)
    assert Watch(dead, theirs).outcome() is None


def test_a_warden_kills_nothing_while_its_daemon_lives_when_the_lease_ends(lifeline: Lifeline) -> None:
    ours, theirs = lifeline
    warden = Warden(ours, 0)
    warden.watch()
    warden.set_lease(0.0)
    daemon = subprocess.Popen(["sleep", "0.2"])
    assert Watch(daemon.pid, theirs).outcome() is not None
    assert daemon.poll() == 0


# ---- the page


def pipes_of(slot: int, marks: bytearray) -> tuple[Pipes, int]:
    """Return the pipes of an agent, and the end of its stdin that it reads."""
    reader, writer = os.pipe()
    outputs = Outputs(Loop(), lambda *_: None, lambda *_: None, lambda *_: None, lambda _: None, lambda _: None, marks)
    return Pipes(outputs, slot, True, (writer, -1, -1)), reader


@pytest.mark.parametrize(("slot", "after"), [(1, b"\1\0\1"), (2, b"\1\1\0"), (3, b"\1\1\1"), (70_000, b"\1\1\1")])
def test_a_write_to_an_agent_clears_the_mark_of_its_slot_and_no_other(slot: int, after: bytes) -> None:
    marks = bytearray(b"\1\1\1")
    pipes, reader = pipes_of(slot, marks)
    pipes.write(b"line\n")
    pipes.close_stdin()
    os.close(reader)
    assert marks == after


def test_a_book_that_is_opened_again_says_what_was_written() -> None:
    page = SharedPage()
    page.set_state_valid(True)
    page.marks[7] = 1
    again = SharedPage(os.dup(page.fd))
    assert (again.is_state_valid, again.marks[7], again.marks[8], len(again.marks)) == (True, 1, 0, PAGE_BYTES - 2)


def test_daemons_that_begin_with_a_state_are_counted_until_one_has_come_up() -> None:
    page = SharedPage()
    page.set_state_valid(True)
    tries = [page.count_try(), page.count_try()]
    page.set_state_valid(False)
    assert (tries, page.count_try()) == ([1, 2], 1)


def test_an_agent_is_idle_only_while_it_has_nothing_in_hand() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    sent(core)
    busy = core.idle_slots()
    core.agent_output(slot.number, b"OK\n", 2.0)
    settle(core, 2.0)
    assert (busy, core.idle_slots(), core.slots_that_came_up()) == ([], [slot.number], {slot.number})


def test_an_agent_that_has_not_said_ok_is_not_stored() -> None:
    core = make_core()
    turn(core, claim(1))
    core.handle(e.Created(0, 100), 0.0)
    assert (core.idle_slots(), core.slots_that_came_up()) == ([], set())


def test_what_was_left_is_forgotten_by_a_daemon_that_can_leave_nothing_itself() -> None:
    inheritance = Inheritance({})
    inheritance.page = page = SharedPage()
    page.set_state_valid(True)
    page.marks[7] = 1
    inheritance.names = ["page"]
    config = Config(scheduler=Scheduler(keep_agents=True))
    assert inheritance.kept_agents(config, None, None, reads_stdin=True) is None
    assert (page.is_state_valid, page.marks[7]) == (False, 0)


# ---- descriptions


def test_a_sheet_is_read_as_it_was_written() -> None:
    fd = DESCRIPTION.write()
    text = os.pread(fd, 4096, 0)
    os.close(fd)
    assert read_description(text) == DESCRIPTION


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"null", b"\xff", b'{"slot": 1}'])
def test_what_is_no_sheet_is_none(text: bytes) -> None:
    assert read_description(text) is None


def test_another_command_environment_or_host_is_another_start() -> None:
    kinds = [AgentType(command=("a",)), AgentType(command=("b",)), AgentType(command=("a",), env={"A": "b"})]
    hosts = [Host(), Host(transport="command", command=("srun",))]
    found = {start_digest(Config(hosts={"h": host}, agents={"t": kind}), "t", "h") for kind in kinds for host in hosts}
    assert len(found) == 6
    assert start_digest(Config(hosts={"h": Host(max=3)}, agents={"t": kinds[0]}), "t", "h") in found


# ---- the state


def test_a_state_gets_the_numbers_that_its_descriptors_have_here() -> None:
    link = {"process": [900, 8, 9]}
    document = {
        "fds": [4, 5, 6, 7, 8, 9],
        "processes": {
            "children": [{"ends": [4, 5, 6], "pidfd": 7}, {"ends": [-1, -1, -1], "remote": 3}],
            "ssh": [{"name": "beta", "link": link}], "retired": [{"name": "gamma", "link": {"process": None}}],
        },
    }  # fmt: skip
    found = renumbered(document, {old: old + 100 for old in range(4, 10)})
    assert found["fds"] == [104, 105, 106, 107, 108, 109]
    assert found["processes"] == {
        "children": [
            {"ends": [104, 105, 106], "pidfd": 107, "is_child": False},
            {"ends": [-1, -1, -1], "remote": 3, "is_child": False},
        ],
        "ssh": [{"name": "beta", "link": {"process": [900, 108, 109]}}],
        "retired": [{"name": "gamma", "link": {"process": None}}],
    }


# ---- what is killed


def test_the_family_of_a_process_is_what_is_below_it() -> None:
    ours = belongs_to({os.getppid()})
    assert (ours(os.getpid()), ours(1), ours(0)) == (True, False, False)


def test_a_session_of_the_daemon_that_has_ended_is_no_new_one_though_it_is_not_reaped_yet() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as leader:  # that of our own session may be dead
        assert began_after(0, leader.pid + 1)(leader.pid)
        assert not began_after(0, leader.pid)(leader.pid)
        leader.kill()


def test_a_process_that_systemd_did_not_start_has_no_control_group_of_its_own() -> None:
    assert own_group({}) is None
    assert own_group({"SYSTEMD_EXEC_PID": "1"}) is None
    assert own_group({"SYSTEMD_EXEC_PID": str(os.getpid())}) is None  # others run in that group
