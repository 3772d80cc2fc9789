"""Descriptors that a service manager keeps: which are ours, which is which, and whether anything is kept at all."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.drivers.fd_store import FdStore, Stored, inode_of, pop_stored
from tests.integration.unit_tools import Manager
from tests.notify_tools import Ear


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def listening(pid: int, count: str = "0") -> dict[str, str]:
    return {"LISTEN_PID": str(pid), "LISTEN_FDS": count, "LISTEN_FDNAMES": "", "A": "b"}


# ---- what was kept


def test_descriptors_for_another_process_are_not_ours_and_are_not_passed_on() -> None:
    environment = listening(1, "3")
    assert (pop_stored(environment), environment) == ([], {"A": "b"})


@pytest.mark.parametrize("count", ["", "x", "-1", "0"])
def test_a_number_of_descriptors_that_is_none_means_none(count: str) -> None:
    assert pop_stored(listening(os.getpid(), count)) == []


def test_descriptors_have_the_names_that_they_were_given_in_order(pipe: tuple[int, int]) -> None:
    script = (
        "import os; from scheduler.drivers.fd_store import pop_stored; "
        "os.environ['LISTEN_PID'] = str(os.getpid()); print(pop_stored(os.environ), os.get_inheritable(3))"
    )
    assert run(script, pipe, LISTEN_FDS="2", LISTEN_FDNAMES="one:two") == (
        f"{[Stored('one', 3), Stored('two', 4)]} False"
    )


def run(script: str, fds: tuple[int, int], **variables: str) -> str:
    """Return what a Python script prints that has two descriptors as 3 and 4."""
    shell = f'exec "$0" -c "$1" 3<&{fds[0]} 4>&{fds[1]}'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, script], env=os.environ | variables, pass_fds=fds, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


# ---- which is which


def test_a_copy_of_a_descriptor_has_its_inode_and_no_other_has(pipe: tuple[int, int]) -> None:
    other = os.pipe()
    copy = os.dup(pipe[0])
    inodes = [inode_of(fd, "") for fd in (pipe[0], copy, other[0])]
    for fd in (copy, *other):
        os.close(fd)
    assert (inodes[0] == inodes[1], inodes[0] == inodes[2]) == (True, False)


def test_memory_files_of_one_name_are_told_apart() -> None:
    fds = [os.memfd_create("one"), os.memfd_create("one")]
    inodes = {inode_of(fd, "") for fd in fds}
    for fd in fds:
        os.close(fd)
    assert len(inodes) == 2


def test_a_pidfd_is_known_by_its_name_even_when_its_process_has_ended() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    fd = os.pidfd_open(pid)
    os.waitpid(pid, 0)
    known = inode_of(fd, f"p{pid}")
    os.close(fd)
    assert known == f"pidfd p{pid}"


# ---- the store


def test_a_manager_that_keeps_descriptors_is_told_from_one_that_closes_them(tmp_path: Path) -> None:
    found = []
    for most in (10, 0):
        with Manager(str(tmp_path / f"notify{most}"), most) as manager:
            store = FdStore(manager.address)
            found.append(store.is_enabled())
            store.settle()
            store.close()
            assert manager.names() == []
    assert found == [True, False]


def test_what_is_kept_is_removed_by_its_name(tmp_path: Path, pipe: tuple[int, int]) -> None:
    with Manager(str(tmp_path / "notify"), 10) as manager:
        store = FdStore(manager.address)
        assert store.keep("p1", pipe)
        assert store.settle()
        kept = manager.names(), len(manager.store)
        store.remove("p1")
        store.settle()
        store.close()
        assert (kept, manager.names()) == ((["p1"], 2), [])


def test_a_manager_that_is_not_there_keeps_nothing_and_nobody_waits(tmp_path: Path, pipe: tuple[int, int]) -> None:
    with Ear(str(tmp_path / "notify")) as gone:
        store = FdStore(gone.address)
    kept = store.keep("p1", pipe), store.settle(), store.is_enabled()
    store.close()
    assert kept == (False, False, False)
