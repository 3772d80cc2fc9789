"""Claims about warnings: how bad each is, what comes first, and what is said of it."""

from datetime import datetime, timedelta

import pytest

from scheduler.cli.health import (
    CRITICAL,
    HIDDEN,
    NOT_LOOKED_FOR,
    UNKNOWN,
    WARNING,
    Row,
    by_urgency,
    headline,
    level_of,
    next_of,
    reasons,
    sentence,
)


def warning(kind: str, who: str = "", age: timedelta | None = None, what: str = "", next: str = "") -> Row:
    return kind, who, age, what, next


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        *[(kind, CRITICAL) for kind in ("no scheduler", "agents failed", "refused", "connection", "impossible")],
        *[(kind, CRITICAL) for kind in ("notifications", "database", "stopped by site")],
        *[(kind, WARNING) for kind in ("host down", "lock", "dead rows", "new program", "site object")],
        *[(kind, UNKNOWN) for kind in (HIDDEN, NOT_LOOKED_FOR)],
    ],
)
def test_work_that_stops_is_critical_and_work_that_slows_down_a_warning(kind: str, level: str) -> None:
    assert level_of(warning(kind)) == level


def test_the_worst_comes_first_and_the_order_of_equals_stays() -> None:
    given = [warning(kind) for kind in (NOT_LOOKED_FOR, "lock", "refused", "scans", "connection")]
    assert [row[0] for row in by_urgency(given)] == ["refused", "connection", "lock", "scans", NOT_LOOKED_FOR]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (warning("lock", "pid 7", timedelta(minutes=2), "blocks 3", "end it"),
         ("lock", "pid 7, for 0:02:00: blocks 3; next: end it")),
        (warning("lock", "pid 7", None, "blocks 3"), ("lock", "pid 7: blocks 3")),
        (warning("lock", "", None, "and 3 more", "show all"), ("lock", "and 3 more; next: show all")),
        (warning("lock", "", timedelta(seconds=3), ""), ("lock", "for 0:00:03")),
    ],
)  # fmt: skip
def test_a_sentence_says_who_for_how_long_what_and_what_next(row: Row, said: tuple[str, str]) -> None:
    assert sentence(row) == said


def test_what_to_do_about_agents_names_their_type() -> None:
    assert next_of("agents failed", "type md5").endswith("drover agent enable md5")
    assert next_of("no scheduler", "group night") == "start one with drover run"


def test_a_group_without_a_scheduler_is_a_reason_though_no_job_waits() -> None:
    found = [*reasons({"active": False, "name": "night"}, [])]
    assert found == [("no scheduler", "group night", None, "no scheduler is active", "start one with drover run")]


def test_no_scheduler_is_said_once() -> None:
    waiting = warning("no scheduler", "type md5")
    assert [*reasons({"active": False, "name": "night"}, [waiting])] == [waiting]


def test_what_a_role_never_sees_is_no_reason() -> None:
    locked = warning("lock", "pid 7")
    assert [*reasons({"active": True, "name": "night"}, [warning(HIDDEN), locked])] == [locked]


@pytest.mark.parametrize(
    ("group", "line"),
    [
        ({"host": "alpha", "pid": 7}, "scheduler alpha.7 is active since 2026-11-29 12:00:00"),
        ({"host": None, "owner": "a\x1b"}, "scheduler a\\x1b is active since 2026-11-29 12:00:00"),
        ({"active": False}, "no scheduler is active; start one with drover run"),
    ],
)
def test_the_headline_says_who_owns_the_group(group: dict[str, object], line: str) -> None:
    since = datetime(2026, 11, 29, 12).astimezone()
    assert headline({"name": "ni\x1bght", "active": True, "since": since} | group) == f"group ni\\x1bght: {line}"
