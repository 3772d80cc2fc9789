"""The guard can fail: each kind of planted regression takes its figure over the limit that stands in limits.toml."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.model import queue_requests as r
from scheduler.policy.core import Core
from tests.core_tools import make_core
from tests.counts import figures, limits
from tests.counts.limits import Limit
from tests.counts.place import place
from tests.counts.queues import Real
from tests.needs import need

TODAY = date(2026, 11, 20)
LIMIT = Limit("python", ["P1"], "a thing", 10.0, 0.75, 0.1, 9.0, TODAY, "first figure")


def over(name: str, figure: float) -> bool:
    return figure > limits.read()[name].limit


# ---- planted regressions


class Forgetful(Core):
    """Asks whether there is work, at each line."""

    def agent_output(self, number: int, data: bytes, now: float) -> bytes | None:
        assert self.has_work in (True, False)
        return super().agent_output(number, data, now)


class Thorough(Core):
    """Looks at every slot, at each tick."""

    def tick(self, now: float) -> None:
        assert not any(slot.host.is_over for slot in self.state.slots.all)
        super().tick(now)


def planted(core: type[Core]) -> Callable[..., Core]:
    """Return a factory of cores that serve, of this class."""

    def make(*args: Any, **timers: Any) -> Core:
        made = make_core(*args, **timers)
        made.__class__ = core
        return made

    return make


class Talkative(Real):
    """Asks for the children of nobody before each turn."""

    def send(self, request: r.Request) -> e.Event:
        super().send(r.Settle([]))
        return super().send(request)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["calls_per_job", "calls_per_item"])
def test_one_more_call_per_item_exceeds_the_limit_p1_p2(figure: str) -> None:
    assert over(figure, figures.python(planted(Forgetful))[figure])


@pytest.mark.slow
def test_visiting_every_slot_exceeds_the_limit_p7() -> None:
    found = figures.idle_slots(planted(Thorough))
    assert over("idle_tick_growth_with_slots", found["idle_tick_growth_with_slots"])


@pytest.mark.slow
def test_one_more_statement_per_turn_exceeds_the_limit_t4() -> None:
    need("postgres")
    with place() as where:
        assert over("statements_per_1000_jobs", figures.jobs(where, Talkative)["statements_per_1000_jobs"])


@pytest.mark.slow
def test_one_more_index_exceeds_the_limit_t3_p10() -> None:
    need("postgres")
    with place("create index planted on drover.jobqueue (jq_state)") as where:
        drained, copied = figures.jobs(where), figures.copied(where)
    found = drained | copied
    names = ["wal_bytes_per_job", "indexed_updates_per_job", "wal_bytes_per_copied_job", "index_entries_per_copied_job"]
    assert [name for name in names if not over(name, found[name])] == []


@pytest.mark.slow
def test_a_claim_without_its_index_exceeds_the_limit_c46() -> None:
    need("postgres")
    with place("drop index drover.claimable_order") as where:
        found = figures.claims(where)
    assert over("claim_growth_behind_other_types", found["claim_growth_behind_other_types"])


@pytest.mark.slow
def test_finding_due_rows_without_the_index_exceeds_the_limit_c45() -> None:
    need("postgres")
    with place("drop index drover.jobqueue_due") as where:
        found = figures.due(where)
    names = ["due_growth_behind_new_rows", "due_growth_with_waiting", "due_growth_beside_queued"]
    assert [name for name in names if not over(name, found[name])] == []


# ---- the limits themselves


@pytest.mark.parametrize(("figure", "word"), [(10.1, "costs more"), (7.4, "far below")])
def test_a_figure_beyond_or_far_below_its_limit_is_reported_with_what_to_do(figure: float, word: str) -> None:
    told = limits.verdict("things", LIMIT, figure)
    assert word in told
    assert "python -m tests.counts --write" in told


@pytest.mark.parametrize("figure", [10.0, 7.5])
def test_a_figure_near_its_limit_passes(figure: float) -> None:
    assert limits.verdict("things", LIMIT, figure) == ""


def test_no_limit_is_changed_without_a_reason() -> None:
    new = limits.renewed("things", LIMIT, 12.0, "", date(2027, 1, 1))
    assert (new.limit, new.measured, new.on, new.reason) == (10.0, 12.0, date(2027, 1, 1), "first figure")


@pytest.mark.parametrize(("figure", "limit"), [(12.0, 13.2), (5.0, 5.5)])
def test_a_limit_that_does_not_hold_is_changed_with_a_reason(figure: float, limit: float) -> None:
    new = limits.renewed("things", LIMIT, figure, "the reason", TODAY)
    assert (new.limit, new.reason) == (limit, "the reason")


def test_a_limit_that_holds_is_kept_even_with_a_reason() -> None:
    assert limits.renewed("things", LIMIT, 9.0, "the reason", TODAY) == LIMIT


def test_limits_that_were_written_can_be_read(tmp_path: Path) -> None:
    limits.write(limits.read(), tmp_path / "limits.toml")
    assert limits.read(tmp_path / "limits.toml") == limits.read()
