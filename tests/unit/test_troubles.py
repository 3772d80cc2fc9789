"""What keeps failing is logged once, when its reason changes, and when it is over."""

import pytest

from scheduler.daemon.troubles import Troubles

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
def troubles(said: Lines, clock: Clock) -> Troubles:
    return Troubles(lambda level, text: said.append((level, text)), lambda: clock.now)


def test_trouble_that_lasts_is_logged_once(troubles: Troubles, said: Lines) -> None:
    troubles.failed("watch connection", "refused", effect="; see drover check")
    troubles.failed("watch connection", "refused", effect="; see drover check")
    assert said == [("warning", "watch connection: refused; see drover check")]


def test_other_reason_is_logged_and_two_that_alternate_are_not_repeated(troubles: Troubles, said: Lines) -> None:
    for reason in ("refused", "too many", "refused", "too many"):
        troubles.failed("watch connection", reason)
    assert [text for _, text in said] == ["watch connection: refused", "watch connection: too many"]


def test_end_is_logged_with_how_long_it_lasted_and_the_next_one_anew(
    troubles: Troubles, said: Lines, clock: Clock
) -> None:
    troubles.failed("watch connection", "refused")
    clock.now = 90.0
    assert troubles.over("watch connection")
    troubles.failed("watch connection", "refused")
    assert said == [
        ("warning", "watch connection: refused"),
        ("info", "watch connection: up again after 90 s"),
        ("warning", "watch connection: refused"),
    ]


def test_what_has_not_failed_is_not_over(troubles: Troubles, said: Lines) -> None:
    assert not troubles.over("watch connection")
    assert said == []


def test_what_fails_now_is_shown_with_its_last_reason(troubles: Troubles, clock: Clock) -> None:
    troubles.failed("watch connection", "refused")
    clock.now = 5.0
    troubles.failed("watch connection", "too many")
    assert troubles.shown() == [{"what": "watch connection", "reason": "too many", "seconds": 5.0}]
