"""Claims about what a service manager is told, and when; the socket is real, time is the test's."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from scheduler.drivers.loop import Loop
from scheduler.drivers.service_manager import Notifier, ReadyFile, ServiceManager, pop_manager
from tests.notify_tools import Ear


class Site:
    """A notifier, its ear, and a loop whose time the test tells."""

    def __init__(self, ear: Ear, watchdog_s: float = 0.0, main_pid: bool = False) -> None:
        self.now = 100.0
        self.line = "idle"
        self.ear = ear
        self.loop = Loop(lambda: self.now)
        self.notifier = Notifier(
            self.loop, ServiceManager(ear.address, watchdog_s), lambda: self.line, main_pid=main_pid
        )

    def after(self, seconds: float) -> list[list[str]]:
        """Let time pass, turn once, and return what was said."""
        self.now += seconds
        self.loop.turn(self.now)
        return self.ear.heard()

    def close(self) -> None:
        """Let go of both."""
        self.notifier.close()
        self.loop.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture
def ear(path: str) -> Iterator[Ear]:
    with Ear(path) as ear:
        yield ear


@pytest.fixture
def site(ear: Ear) -> Iterator[Site]:
    site = Site(ear)
    yield site
    site.close()


# ---- the manager


def test_without_a_socket_there_is_no_manager() -> None:
    assert pop_manager({"PATH": "/bin"}) is None


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234"])
def test_an_invalid_address_means_no_manager(address: str) -> None:
    assert pop_manager({"NOTIFY_SOCKET": address}) is None


def test_variables_of_the_manager_are_removed_from_the_environment() -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_PID": str(os.getpid()), "WATCHDOG_USEC": "30000000", "A": "b"}
    assert (pop_manager(environment), environment) == (ServiceManager("/run/x", 30.0), {"A": "b"})


@pytest.mark.parametrize(
    ("pid", "microseconds", "seconds"),
    [("", "500000", 0.5), ("1", "500000", 0.0), ("own", "x", 0.0), ("own", "", 0.0)],
)
def test_watchdog_of_another_process_is_ignored(pid: str, microseconds: str, seconds: float) -> None:
    named = str(os.getpid()) if pid == "own" else pid
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_PID": named, "WATCHDOG_USEC": microseconds}
    assert pop_manager(environment) == ServiceManager("@x", seconds)


# ---- what is said


def test_ready_is_sent_once_with_the_status_r82(site: Site) -> None:
    site.notifier.ready()
    site.notifier.ready()
    assert site.ear.heard() == [["READY=1", "STATUS=idle"]]


def test_an_abstract_socket_of_the_manager_is_reached() -> None:
    with Ear(f"@drover-test-{uuid4().hex}") as ear:
        site = Site(ear)
        site.notifier.ready()
        site.close()
        assert ear.heard() == [["READY=1", "STATUS=idle"]]


def test_daemon_with_a_guardian_sends_its_own_pid(ear: Ear) -> None:
    site = Site(ear, main_pid=True)
    site.notifier.ready()
    site.close()
    assert ear.heard() == [[f"MAINPID={os.getpid()}", "READY=1", "STATUS=idle"]]


def test_ready_is_sent_until_it_is_received(path: str) -> None:
    with Ear(path) as gone:
        site = Site(gone)
    os.unlink(path)
    site.notifier.ready()
    with Ear(path) as site.ear:
        assert [site.after(0.9), site.after(0.1), site.after(5.0)] == [[], [["READY=1", "STATUS=idle"]], []]
        site.close()


def test_reloads_that_are_not_received_leave_one_retry_of_ready(path: str) -> None:
    with Ear(path) as gone:
        site = Site(gone)
    os.unlink(path)
    for _ in range(3):
        site.notifier.ready()
        site.notifier.reloading()
    site.notifier.ready()
    tries = [timer for _, _, timer in site.loop._timers if timer.call is not None]
    site.close()
    assert len(tries) == 1


def test_status_is_sent_when_it_has_changed_and_once_a_second_f165(site: Site) -> None:
    site.notifier.update_status()
    assert site.after(0.0) == [["STATUS=idle"]]
    site.line = "busy"
    site.notifier.update_status()
    site.notifier.update_status()
    assert [site.after(0.9), site.after(0.1)] == [[], [["STATUS=busy"]]]
    site.notifier.update_status()
    assert site.after(5.0) == []


def test_an_idle_daemon_sets_no_timer_for_its_status(site: Site) -> None:
    site.notifier.update_status()
    site.after(0.0)
    site.notifier.update_status()
    site.after(1.0)
    assert not site.loop._timers


def test_watchdog_signal_is_sent_while_the_loop_turns_f165(ear: Ear) -> None:
    site = Site(ear, watchdog_s=30.0)
    assert [site.after(0.0), site.after(14.9), site.after(0.1), site.after(15.0)] == [
        [["WATCHDOG=1"]], [], [["WATCHDOG=1"]], [["WATCHDOG=1"]],
    ]  # fmt: skip
    site.close()


def test_no_watchdog_signal_is_sent_while_the_loop_hangs_f165(ear: Ear) -> None:
    site = Site(ear, watchdog_s=30.0)
    ear.heard()
    site.now += 300.0
    site.notifier.update_status()
    site.notifier.ready()
    assert [line for line in ear.heard() if "WATCHDOG=1" in line] == []
    site.close()


def test_without_a_watchdog_there_is_no_timer(site: Site) -> None:
    assert not site.loop._timers


def test_a_reload_is_notified_at_its_start_and_end(site: Site) -> None:
    site.notifier.ready()
    site.notifier.reloading()
    site.notifier.ready()
    first, (word, moment), last = site.ear.heard()
    assert (first, word, last) == (["READY=1", "STATUS=idle"], "RELOADING=1", ["READY=1", "STATUS=idle"])
    assert moment.removeprefix("MONOTONIC_USEC=").isdecimal()


def test_nothing_is_sent_after_stopping(site: Site) -> None:
    site.notifier.update_status()
    site.notifier.stopping()
    site.notifier.stopping()
    site.notifier.ready()
    site.line = "another"
    assert site.after(5.0) == [["STOPPING=1", "STATUS=idle"]]


def test_a_manager_that_does_not_read_does_not_block_f165(site: Site) -> None:
    for number in range(5000):  # more than its queue holds
        site.line = str(number)
        site.notifier.update_status()
        site.now += 1.0
        site.loop.turn(site.now)
    assert 0 < len(site.ear.heard()) < 5000


# ---- the ready file


def test_ready_file_holds_our_pid_and_is_removed_at_the_end_r82(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    path.write_text("of one that was killed")
    file = ReadyFile(str(path))
    seen = [path.exists()]
    file.show()
    seen.append(path.read_text() == f"{os.getpid()}\n")
    file.remove()
    assert [*seen, path.exists()] == [False, True, False]


def test_no_ready_file_is_written_by_default(tmp_path: Path) -> None:
    file = ReadyFile("")
    file.show()
    file.remove()
    assert list(tmp_path.iterdir()) == []
