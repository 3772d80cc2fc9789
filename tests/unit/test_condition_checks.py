"""Checks of the conditions that jobs are blocked on, while statements fail, rows are locked and testers say nothing."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.model.states import NEVER
from tests.core_tools import make_core
from tests.fakes import LOST, After, Site, refused

FAILURES = [refused(), refused("55P03"), LOST]
BLOCKING = AgentType(command=("agent",), on_start_failure="block")


@dataclass
class Blocked:
    """One condition, its jobs and its tester, as drover.recovery and the jobs that are blocked on it."""

    site: Site
    rules: dict[str, Any]
    jobs: int = 3
    locked: int = 0  # of them
    came: int = 0
    tries: int = 0
    since: float = 0.0
    next: float = 0.0
    tester: int | None = None
    said: tuple[str | None, str | None] = (None, None)  # state and end text of the tester
    failed: list[str] = field(default_factory=list)
    checks: list[float] = field(default_factory=list)
    is_there: bool = True

    def __post_init__(self) -> None:
        for name in ("read_recovery", "release_blocked", "fail_blocked", "postpone_recovery", "ask_tester"):
            self.site.answers[name] = getattr(self, name)
        self.site.answers["forget_recovery"] = self.forget

    def read_recovery(self, _: object) -> list[tuple[Any, ...]]:
        if not self.is_there:
            return []
        now, has_answered = self.site.now, self.tester is not None and self.said[0] in ("done", "failed")
        left = max(0.0, self.next - now)
        if left and not has_answered:
            return [(None, None, None, None, None, "{}", False, None, None, None, False, left)]
        counts = self.tries, self.came, now - self.since
        return [(1, "licence", *counts, json.dumps(self.rules), self.jobs > 0, self.tester, *self.said, None, left)]

    def release_blocked(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        moved = min(self.jobs - self.locked, values["most"])
        self.jobs -= moved
        is_over = values["is_limited"] or not self.jobs
        if is_over:
            self._checked(values["after"], values["wait"])
            self.came -= values["came"]
            self.since = self.site.now if values["is_new"] else self.since
        return [(moved, is_over, None)]

    def fail_blocked(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        moved = min(self.jobs - self.locked, values["most"])
        self.jobs -= moved
        self.failed += [values["text"]] * moved
        return [(moved, None, not self.jobs)]

    def postpone_recovery(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        self._checked(values["after"], values["wait"])
        return [(1,)]

    def ask_tester(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        self.tester, self.next = 7, self.site.now + values["wait"]
        return [(7,)]

    def forget(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        self.is_there = self.came != values["came"]
        return []

    def _checked(self, tries: int, wait: float) -> None:
        self.checks.append(self.site.now)
        self.tries, self.next, self.tester, self.said = tries, self.site.now + wait, None, (None, None)

    def block_again(self, jobs: int) -> None:
        """Block jobs on it that were released, or new ones."""
        self.jobs += jobs
        self.came += jobs


def waits(checks: list[float]) -> list[float]:
    return [round(after - before) for before, after in zip([0.0, *checks], checks, strict=False)]


def answered(site: Site, each: Blocked, state: str, said: str | None = None) -> None:
    """Let the tester end, of which a notification tells."""
    each.said = state, said
    site.tasks.bring_forward("recovery")


def test_a_check_that_finds_jobs_locked_is_made_again_until_they_are_released() -> None:
    site = Site(make_core())
    each = Blocked(site, {"steps": [[0, 600]]}, locked=2)
    site.run(5.0)
    assert (each.jobs, each.checks) == (2, [])
    each.locked = 0
    site.run(5.0)
    assert (each.jobs, len(each.checks)) == (0, 1)


@pytest.mark.parametrize("answer", FAILURES)
@pytest.mark.parametrize("query", ["read_recovery", "release_blocked"])
def test_a_check_whose_statement_fails_is_made_within_a_minute(query: str, answer: Exception) -> None:
    site = Site(make_core())
    each = Blocked(site, {"steps": [[0, 600]]})
    site.answer(query, answer)
    site.run(70.0)
    assert (each.jobs, len(each.checks)) == (0, 1)


def test_an_unsuccessful_check_is_made_again_after_the_waits_of_its_policy_until_that_ends() -> None:
    site = Site(make_core())
    each = Blocked(site, {"steps": [[2, 10], [0, 30]], "max_tries": 4})
    for _ in range(1200):
        site.run(0.1)
        if each.checks and not each.jobs and not each.failed:
            each.block_again(3)
    assert waits(each.checks) == [0, 10, 30, 30]
    assert each.failed == ["recovery_timeout: condition licence was still there after 4 checks"] * 3


def test_jobs_that_fail_at_the_end_of_a_policy_and_are_locked_fail_later() -> None:
    site = Site(make_core())
    each = Blocked(site, {"max_tries": 1}, locked=1, tries=1, came=1)
    site.run(5.0)
    assert len(each.failed) == 2
    each.locked = 0
    site.run(5.0)
    assert len(each.failed) == 3


def test_a_tester_that_fails_is_asked_again_until_the_time_of_its_policy_is_over() -> None:
    site = Site(make_core())
    each = Blocked(site, {"steps": [[0, 20]], "tester": "probe", "max_elapsed": 50})
    for _ in range(600):
        site.run(0.1)
        if each.tester is not None and each.said[0] is None:
            answered(site, each, "failed", "no route")
    assert len(site.sent("ask_tester")) == 3
    assert each.failed == ["recovery_timeout: condition licence was still there after 50 s"] * 3
    assert 50.0 <= site.sent("fail_blocked")[0].at < 52.0


def test_a_tester_that_says_nothing_is_asked_again_after_its_time_and_the_wait() -> None:
    site = Site(make_core())
    each = Blocked(site, {"steps": [[0, 20]], "tester": "probe", "tester_timeout": 30})
    site.run(120.0)
    assert [round(asked.at) for asked in site.sent("ask_tester")] == [0, 55, 110]
    assert (each.jobs, each.failed) == (3, [])


def test_jobs_go_on_when_their_tester_says_so_though_the_first_statement_is_refused() -> None:
    site = Site(make_core())
    each = Blocked(site, {"steps": [[0, 600]], "tester": "probe"})
    site.run(1.0)
    site.answer("release_blocked", refused())
    answered(site, each, "done")
    site.run(70.0)
    assert each.jobs == 0


def test_a_job_that_is_blocked_while_the_condition_is_forgotten_keeps_it() -> None:
    site = Site(make_core())
    each = Blocked(site, {"steps": [[0, 600]]}, jobs=0)
    site.answer("forget_recovery", After(2.0, []))  # since a job was blocked meanwhile, it removes nothing
    site.run(1.0)
    each.block_again(1)
    site.run(2.0)
    assert (each.is_there, each.jobs) == (True, 0)


def start_conditions(site: Site) -> Blocked:
    """Let jobs be blocked since their host is down."""
    site.core.handle(e.HostDown("alpha", "no route", 5.0), site.now)
    site.answers["read_start_conditions"] = lambda _: [("host:alpha",)]
    return Blocked(site, {}, next=NEVER)


@pytest.mark.parametrize("answer", FAILURES)
def test_jobs_blocked_since_their_host_was_down_are_looked_at_though_a_statement_fails(answer: Exception) -> None:
    site = Site(make_core({"sha": BLOCKING}, hosts={"alpha": Host()}))
    start_conditions(site)
    site.run(30.0)
    site.answer("check_now", answer)
    site.core.handle(e.HostUp("alpha"), site.now)
    site.run(70.0)
    first, again = site.sent("check_now")[:2]
    assert "host:alpha" in first.values["names"]
    assert "host:alpha" in again.values["names"]


@pytest.mark.parametrize("answer", FAILURES)
def test_jobs_blocked_on_quotas_are_looked_at_after_a_change_of_these_though_a_statement_fails(
    answer: Exception,
) -> None:
    site = Site(make_core())
    site.run(30.0)
    quota = {"name": "few", "most": 3, "tenant": None, "user": "ann", "queue": None, "host": None}
    site.answers["read_shared_settings"] = lambda _: [([], [], [], [], [quota], None)]
    site.answer("check_now", answer)
    site.tasks.bring_forward("tables")
    site.run(70.0)
    assert [each.values["names"] for each in site.sent("check_now")] == [["quota:"], ["quota:"]]


@pytest.mark.parametrize("answer", FAILURES)
def test_jobs_that_cannot_start_are_blocked_though_a_statement_fails(answer: Exception) -> None:
    site = Site(make_core({"sha": BLOCKING}, hosts={"alpha": Host()}))
    site.core.handle(e.HostDown("alpha", "no route", 5.0), site.now)
    site.answer("stop_unstartable", answer, [(2, None)])
    site.run(70.0)
    assert {each.values["state"] for each in site.sent("stop_unstartable")} == {"blocked"}
    assert len(site.sent("stop_unstartable")) > 2
