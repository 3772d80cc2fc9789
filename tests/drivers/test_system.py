"""Claims about who we are and who is gone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.daemon.upgrade import COPY, keep_copy
from scheduler.drivers.local_process import restored
from scheduler.drivers.os_calls import Identity, identity, is_gone
from scheduler.errors import BugError
from tests.agent_tools import is_gone as has_ended
from tests.agent_tools import watch


def start_of(pid: int) -> int:
    """Return when a process started, as proc_pid_stat(5) has it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


def identity_of(pid: int) -> Identity:
    return replace(identity(), pid=pid, pid_start=start_of(pid))


@pytest.fixture
def oddly_named(tmp_path: Path) -> Iterator[Identity]:
    """Yield a living process whose name looks like more fields of its own line."""
    program = tmp_path / ") Z 1 (x"
    program.write_text("#!/bin/sh\necho up\nread line\n")
    program.chmod(0o700)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield identity_of(process.pid)
        process.kill()


def test_a_living_process_is_not_gone() -> None:
    assert not is_gone(identity())


def test_a_process_named_like_a_zombie_is_not_gone(oddly_named: Identity) -> None:
    assert not is_gone(oddly_named)


def test_an_identity_is_stable() -> None:
    assert identity() == identity()
    assert identity().pid == os.getpid()


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"pid_start": 1}, True),
        ({"pid_start": 1, "boot_id": "another"}, False),
        ({"pid_start": 1, "pid_space": "another"}, False),
        ({"pid_start": 1, "boot_id": ""}, False),
    ],
)
def test_only_a_process_proved_gone_counts_as_gone(change: dict[str, str | int], gone: bool) -> None:
    assert is_gone(replace(identity(), **change)) is gone  # type: ignore[arg-type]


def test_a_dead_process_is_gone_before_and_after_it_is_reaped() -> None:
    process = subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE)
    them = identity_of(process.pid)
    pidfd = watch(process.pid)
    process.kill()
    assert has_ended(pidfd)
    os.close(pidfd)
    zombie = is_gone(them)
    process.communicate()
    assert (zombie, is_gone(them)) == (True, True)


GIVEN = """
import os
from scheduler.drivers.os_calls import keep_descriptors, open_first_three
given = os.open("/dev/zero", os.O_RDONLY)
os.set_inheritable(given, True)
os.close(0)
open_first_three()
keep_descriptors()
print(os.readlink("/proc/self/fd/0"), os.get_inheritable(0), os.get_inheritable(given))
"""


def test_what_was_given_is_mended_and_no_other_descriptor_goes_to_programs() -> None:
    done = subprocess.run([sys.executable, "-c", GIVEN], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["/dev/null", "True", "False"]


# ---------------------------------------------------------------- pids that others have written


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**31, 10**30])
def test_no_process_with_an_impossible_pid_counts_as_gone(pid: int) -> None:
    assert not is_gone(replace(identity(), pid=pid))


def test_a_directory_with_an_impossible_pid_does_not_prevent_a_start(tmp_path: Path) -> None:
    """Any user may make one in /tmp."""
    digits = "".join(filter(str.isdigit, identity().pid_space))
    (tmp_path / f"{COPY}{digits}-{10**30}-1-x").mkdir()
    copy = keep_copy({"RUNTIME_DIRECTORY": str(tmp_path)})
    assert copy is not None


def test_state_that_names_a_process_and_the_pidfd_of_another_is_refused() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        for pid in (os.getppid(), 1, 0, -1):
            with pytest.raises(BugError, match=f"names process {pid}, and its descriptor is of another"):
                restored({"pid": pid, "pidfd": pidfd})
        assert restored({"pid": os.getpid(), "pidfd": pidfd}).pid == os.getpid()
    finally:
        os.close(pidfd)
