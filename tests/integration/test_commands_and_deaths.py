"""Commands for every scheduler while one of these dies: each ends, and the last daemon leaves none open."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGTERM

import pytest

from tests.integration.conftest import Ask, Launch
from tests.integration.daemon import Daemon, Row, agent, rec
from tests.integration.test_groups import standby

HOST = "[hosts.alpha]\n"
LONG = "[scheduler]\nlease = 600\nlease_renewal = 0.3\n"  # no test lasts two leases
SHORT = "[scheduler]\nlease = 2\nlease_renewal = 0.3\n"
ELSEWHERE = "update drover.scheduler set scheduler_boot_id = 'of another machine' where scheduler_pid = %s"


@pytest.fixture
def text(record: Path) -> str:
    return HOST + agent("a", rec(record))


def two(launch: Launch, text: str) -> tuple[Daemon, Daemon]:
    """Start two daemons; return the one that serves and its standby."""
    return launch(text), standby(launch, text)


def die_elsewhere(daemon: Daemon, witness: Daemon) -> None:
    """Kill a daemon, of whose machine the other one knows nothing."""
    pid = daemon.pid
    daemon.kill()
    witness.execute(ELSEWHERE, pid)


def give(daemon: Daemon, words: str) -> int:
    return daemon.insert(role="drover_operator", jq_type="command", jq_args=words)


def end_of(daemon: Daemon, command: int) -> Row:
    """Return how a command ended, after its daemon has."""
    assert daemon.wait_exit() == 0
    return daemon.row(command)


@pytest.mark.parametrize("words", ["reload", "verbose 1", "reset", "poll"])
def test_command_is_answered_at_once_after_a_standby_was_killed_f137(launch: Launch, text: str, words: str) -> None:
    first, second = two(launch, LONG + text)
    second.kill()
    assert len(first.wait(give(first, words))["jq_result"]) == 1


def test_command_is_answered_at_once_after_the_active_daemon_was_killed_f137(launch: Launch, text: str) -> None:
    first, second = two(launch, LONG + text)
    first.kill()
    assert len(second.wait(give(second, "reload"))["jq_result"]) == 1


def test_command_that_waits_for_a_daemon_ends_when_that_is_killed_f137(launch: Launch, text: str) -> None:
    first, second = two(launch, LONG + text)
    second.signal(SIGSTOP)  # it lives, and acknowledges nothing
    command = give(first, "reload")
    first.until(lambda: first.value("select count(*) from drover.command_ack where ack_jq_fk = %s", command))
    second.kill()
    assert len(first.wait(command)["jq_result"]) == 1


@pytest.mark.parametrize("words", ["shutdown", "shutdown now"])
@pytest.mark.parametrize("which", [0, 1], ids=["active", "standby"])
def test_shutdown_ends_before_the_last_daemon_after_another_was_killed_f137(
    launch: Launch, text: str, words: str, which: int
) -> None:
    daemons = two(launch, LONG + text)
    dead, survivor = daemons[which], daemons[1 - which]
    dead.kill()
    row = end_of(survivor, give(survivor, words))
    assert (row["jq_state"], list(row["jq_result"].values())) == ("done", ["shutting down"])


@pytest.mark.slow
@pytest.mark.parametrize("words", ["shutdown", "shutdown now"])
@pytest.mark.parametrize("which", [0, 1], ids=["active", "standby"])
def test_shutdown_waits_for_a_daemon_that_died_elsewhere_and_ends_f137(
    launch: Launch, text: str, words: str, which: int
) -> None:
    daemons = two(launch, SHORT + text)
    dead, survivor = daemons[which], daemons[1 - which]
    die_elsewhere(dead, survivor)
    row = end_of(survivor, give(survivor, words))
    assert (row["jq_state"], list(row["jq_result"].values())) == ("done", ["shutting down"])


def test_a_new_daemon_serves_at_once_while_an_old_one_waits_for_an_answer(launch: Launch, text: str) -> None:
    first, second = two(launch, LONG + text)
    die_elsewhere(second, first)
    command = give(first, "shutdown")
    first.until(lambda: "the command to shut down waits for" in first.stderr())
    third = launch(LONG + text)
    third.wait(third.insert(jq_type="a", jq_args="x"))
    assert third.row(command)["jq_state"] == "queued"


def test_signal_ends_a_daemon_that_waits_for_an_answer(launch: Launch, text: str) -> None:
    first, second = two(launch, LONG + text)
    die_elsewhere(second, first)
    give(first, "shutdown")
    first.until(lambda: "the command to shut down waits for" in first.stderr())
    assert first.stop(SIGTERM) == 0


def test_drain_ends_after_another_daemon_was_killed(launch: Launch, text: str, ask: Ask) -> None:
    first, second = two(launch, LONG + text)
    second.kill()
    assert "nothing is in hand any more" in ask("drain --wait=60").out.splitlines()
    assert first.wait_exit() == 0


def test_a_daemon_that_is_stopped_ends_what_only_it_has_not_acknowledged_f137(launch: Launch, text: str) -> None:
    first, second = two(launch, LONG + text)
    second.signal(SIGSTOP)
    command = give(first, "reload")
    first.until(lambda: first.value("select count(*) from drover.command_ack where ack_jq_fk = %s", command))
    first.stop()
    second.signal(SIGCONT)
    assert second.stop() == 0
    assert second.row(command)["jq_state"] == "done"
