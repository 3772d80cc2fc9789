"""What keeps failing is logged once, when its reason changes, and when it is over."""

import pytest

from scheduler.daemon.connections import ConnectionLog

Lines = list[tuple[str, str]]


class Clock:
    now = 0.0


@pytest.fixture
def said() -> Lines:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(said: Lines, clock: Clock) -> ConnectionLog:
    return ConnectionLog(lambda level, text: said.append((level, text)), lambda: clock.now)


def test_failure_that_lasts_is_logged_once(log: ConnectionLog, said: Lines) -> None:
    log.failed("watch connection", "refused", effect="; see drover check")
    log.failed("watch connection", "refused", effect="; see drover check")
    assert said == [("warning", "watch connection: refused; see drover check")]


def test_new_reason_is_logged_and_two_alternating_ones_are_not_repeated(log: ConnectionLog, said: Lines) -> None:
    for reason in ("refused", "too many", "refused", "too many"):
        log.failed("watch connection", reason)
    assert [text for _, text in said] == ["watch connection: refused", "watch connection: too many"]


def test_end_of_a_failure_is_logged_with_its_length_and_the_next_failure_anew(
    log: ConnectionLog, said: Lines, clock: Clock
) -> None:
    log.failed("watch connection", "refused")
    clock.now = 90.0
    assert log.recovered("watch connection")
    log.failed("watch connection", "refused")
    assert said == [
        ("warning", "watch connection: refused"),
        ("info", "watch connection: up again after 90 s"),
        ("warning", "watch connection: refused"),
    ]


def test_connection_that_has_not_failed_logs_no_recovery(log: ConnectionLog, said: Lines) -> None:
    assert not log.recovered("watch connection")
    assert said == []


def test_of_several_reasons_the_last_is_listed(log: ConnectionLog) -> None:
    for reason in ("refused", "too many", "no route"):
        log.failed("watch connection", reason)
    assert [each["reason"] for each in log.failing()] == ["no route"]


def test_current_failures_are_listed_with_their_last_reason(log: ConnectionLog, clock: Clock) -> None:
    log.failed("watch connection", "refused")
    clock.now = 5.0
    log.failed("watch connection", "too many")
    assert log.failing() == [{"what": "watch connection", "reason": "too many", "seconds": 5.0}]
