"""Starts of schedules are made in time, or as soon as it can be, whatever is refused, locked or late."""

import json
from typing import Any

import pytest

from scheduler.daemon.schedule_starts import MOST
from tests.core_tools import make_core
from tests.fakes import LOST, Answer, Site, refused

FAILURES = [refused(), refused("55P03"), LOST]
NOW_US = 10**15
MINUTE_US = 60 * 10**6


class Schedules:
    """Schedules that start every minute, as drover.schedule has them; the first start of each is due at instant 10."""

    def __init__(self, site: Site, *names: str) -> None:
        self.site, self.next = site, dict.fromkeys(names, NOW_US + 10 * 10**6)
        self.starts: dict[str, list[int]] = {name: [] for name in names}
        self.locked: set[str] = set()
        self.late_us = 30 * 10**6
        site.answers["due_schedules"] = self._due
        site.answers["start_schedules"] = self._start
        site.answers["read_shared_settings"] = lambda _: [([], [], [], [], [], self._seconds())]

    def _now(self) -> int:
        return NOW_US + round(self.site.now * 10**6)

    def _seconds(self) -> float | None:
        """Return the seconds to the next start, as both statements do."""
        return max(0.0, (min(self.next.values()) - self._now()) / 10**6)

    def _due(self, values: dict[str, Any]) -> Answer:
        due = [name for name, at in self.next.items() if at <= self._now()][: values["most"]]
        later = [(at - self._now()) / 10**6 for at in self.next.values() if at > self._now()]
        rows = [
            {
                "name": name, "cron": None, "zone": "UTC", "catch_up": "one", "at": None, "every": MINUTE_US,
                "jitter": 0, "from": NOW_US + 10 * 10**6, "next": self.next[name],
            }
            for name in due
        ]  # fmt: skip
        return [(self._now(), self._now() - self.late_us, min(later, default=None), rows)]

    def _start(self, values: dict[str, Any]) -> Answer:
        """Move those on that are as they were read and not locked."""
        answers: list[tuple[Any, ...]] = []
        for row in json.loads(values["rows"]):
            is_moved = row["name"] not in self.locked and self.next[row["name"]] == row["was"]
            if is_moved:
                self.next[row["name"]] = row["next"]
                self.starts[row["name"]] += row["starts"]
            answers.append((row["name"], is_moved, len(row["starts"]) if is_moved else 0, None))
        return answers


def minutes(starts: list[int]) -> list[float]:
    """Return the instants of starts, in minutes since the first one."""
    return [(start - NOW_US - 10 * 10**6) / MINUTE_US for start in starts]


def test_each_start_is_made_once_at_its_time() -> None:
    site = Site(make_core())
    each = Schedules(site, "a", "b")
    site.run(100.0)
    assert {name: minutes(starts) for name, starts in each.starts.items()} == {"a": [0, 1], "b": [0, 1]}
    assert [round(asked.at, 3) for asked in site.sent("start_schedules")] == [10.0, 70.0]


@pytest.mark.parametrize("answer", FAILURES)
@pytest.mark.parametrize("query", ["due_schedules", "start_schedules", "read_shared_settings"])
def test_a_start_whose_statement_fails_is_made_once(query: str, answer: Exception) -> None:
    site = Site(make_core())
    each = Schedules(site, "a")
    site.run(9.0)
    site.answer(query, answer)
    site.run(100.0)
    assert minutes(each.starts["a"])[:2] == [0, 1]


def test_a_start_whose_answer_is_lost_is_made_once() -> None:
    site = Site(make_core())
    each = Schedules(site, "a")
    usual = site.answers["start_schedules"]

    def lost(values: dict[str, Any]) -> Answer:
        site.answers["start_schedules"] = usual
        usual(values)
        return LOST

    site.answers["start_schedules"] = lost
    site.run(100.0)
    assert minutes(each.starts["a"]) == [0, 1]


def test_a_schedule_that_is_locked_is_tried_again_each_second_and_holds_up_no_other() -> None:
    site = Site(make_core())
    each = Schedules(site, "a", "b")
    each.locked = {"a"}
    site.run(15.5)
    assert (each.starts["a"], minutes(each.starts["b"])) == ([], [0])
    assert len(site.sent("start_schedules")) == 6
    each.locked.clear()
    site.run(1.0)
    assert minutes(each.starts["a"]) == [0]


def test_a_start_that_another_session_has_made_meanwhile_is_not_made_again() -> None:
    site = Site(make_core())
    each = Schedules(site, "a")
    usual = site.answers["start_schedules"]

    def moved_on(values: dict[str, Any]) -> Answer:
        site.answers["start_schedules"] = usual
        each.next["a"] += MINUTE_US
        return usual(values)  # type: ignore[return-value]

    site.answers["start_schedules"] = moved_on
    site.run(75.0)
    assert minutes(each.starts["a"]) == [1]


def test_more_schedules_than_one_pass_takes_are_all_started_at_once() -> None:
    site = Site(make_core())
    each = Schedules(site, *[f"s{number}" for number in range(MOST + 50)])
    site.run(11.0)
    assert {len(starts) for starts in each.starts.values()} == {1}
    assert len(site.sent("start_schedules")) == 2


def test_as_many_schedules_as_one_pass_takes_that_are_all_locked_are_tried_each_second() -> None:
    site = Site(make_core())
    each = Schedules(site, *[f"s{number}" for number in range(MOST)])
    each.locked = set(each.next)
    site.run(13.5)
    assert len(site.sent("start_schedules")) == 4


def test_a_start_that_was_missed_is_made_up_for_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(make_core())
    each = Schedules(site, "a")
    each.next["a"] -= 600 * 10**6
    with caplog.at_level("INFO"):
        site.run(5.0)
    assert minutes(each.starts["a"]) == [-10]
    assert "schedule a: starts were missed; it makes up for 1 now" in [each.getMessage() for each in caplog.records]


def test_what_is_wrong_with_a_start_is_told_and_the_next_one_is_made(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(make_core())
    each = Schedules(site, "a")
    site.run(9.5)
    usual = site.answers["start_schedules"]

    def wrong(values: dict[str, Any]) -> Answer:
        site.answers["start_schedules"] = usual
        return [(name, is_moved, 0, "no type 'x'") for name, is_moved, *_ in usual(values)]  # type: ignore[union-attr]

    site.answers["start_schedules"] = wrong
    site.run(70.0)
    assert len(each.starts["a"]) == 2
    assert "schedule a: no type 'x'" in [each.getMessage() for each in caplog.records]
