"""Which jobs a quota counts, which do not fit, and what becomes of these."""

from typing import Any

import pytest

from scheduler.model import events_and_effects as e
from scheduler.policy.conditions import Condition, Forget, Policy, Release, Wait
from scheduler.policy.core import Core
from scheduler.policy.quotas import CONDITION, Quotas
from tests.core_tools import TABLES, claim, make_core, ready, turn

ANNA = {"submitter": "anna", "roles": ("anna", "staff")}
BERT = {"submitter": "bert", "roles": ("bert",)}
NOTHING = dict.fromkeys(("tenant", "user", "queue", "host"))


def set_quotas(core: Core, *rows: dict[str, Any], now: float = 0.0) -> None:
    core.handle(
        e.TablesRead(TABLES["queues"], [], [], [], [NOTHING | {"name": "few", "most": 1} | row for row in rows]), now
    )
    core.cleared_conditions()


def in_hand(core: Core) -> list[int]:
    return sorted(core.state.jobs)


def take(core: Core, *whose: dict[str, Any]) -> None:
    """Let jobs of these submitters be claimed, by a claim that tells who they are."""
    claims = [claim(pk, **rules) for pk, rules in enumerate(whose, 1)]
    turn(core, *(each._replace(request=each.request._replace(guarded=True)) for each in claims))


@pytest.mark.parametrize(
    ("quota", "fits"),
    [({"user": "anna"}, True), ({"user": "*"}, True), ({"tenant": "staff"}, True), ({"queue": "default"}, False)],
)
def test_a_job_of_another_user_is_counted_as_the_quota_says_t116(quota: dict[str, str], fits: bool) -> None:
    core = make_core()
    set_quotas(core, quota)
    take(core, BERT, ANNA)
    assert in_hand(core) == ([1, 2] if fits else [1])


def test_a_job_over_a_quota_is_blocked_on_it_t116() -> None:
    core = make_core()
    set_quotas(core, {"user": "*"})
    take(core, ANNA, ANNA)
    assert in_hand(core) == [1]
    assert core.state.outbox.saves[2].text == "blocked: quota:few:anna 1 of 1 jobs are in hand"
    assert core.cleared_conditions() == []


def test_the_end_of_a_counted_job_makes_room_t116() -> None:
    core = make_core()
    set_quotas(core, {"user": "*"})
    take(core, ANNA, ANNA)
    core.cancel(1, "not needed", 1.0)
    assert core.cleared_conditions() == [CONDITION + "few:anna"]


def test_a_job_whose_submitter_is_not_known_goes_back_when_a_quota_comes_t116() -> None:
    core = make_core()
    turn(core, claim(1))
    set_quotas(core, {"user": "*"})
    assert in_hand(core) == []


def test_a_job_whose_roles_are_not_known_is_counted_for_every_tenant_t116() -> None:  # seed 194
    core = make_core()
    ready(core, claim(1, submitter="anna", retries=1))  # details of a job that is no plain one, but not its roles
    set_quotas(core, {"tenant": "staff"})
    assert core.state.quotas.in_hand == {"few": 1}


def test_a_plain_job_that_began_before_there_was_a_quota_is_counted_until_it_ends_t116() -> None:
    core = make_core()
    slot = ready(core, claim(1))
    core.take_effects(0.0)
    set_quotas(core, {"user": "anna"})
    assert core.state.quotas.in_hand == {"few": 1}
    core.agent_output(slot.number, b"OK\n", 1.0)
    assert in_hand(core) == []
    assert not +core.state.quotas.in_hand


def test_all_blocked_jobs_are_looked_at_once_when_quotas_change_t116() -> None:
    core = make_core()
    set_quotas(core, {"user": "*"})
    core.handle(e.TablesRead(TABLES["queues"], [], [], [], []), 1.0)
    assert core.cleared_conditions() == [CONDITION]
    assert core.cleared_conditions() == []


def seen(*, has_jobs: bool = True) -> Condition:
    return Condition(CONDITION + "few:anna", Policy(), 3, 1, 0.0, has_jobs)


def test_as_many_blocked_jobs_go_back_as_there_is_room_t85() -> None:
    quotas = Quotas()
    quotas.set([NOTHING | {"name": "few", "most": 2, "user": "*"}], [])
    assert quotas.step(seen()) == Release(2, 0, 60.0, is_new=True)


def test_a_full_quota_lets_none_go_and_counts_no_try_t116() -> None:
    quotas = Quotas()
    quotas.set([NOTHING | {"name": "few", "most": 0, "user": "*"}], [])
    assert quotas.step(seen()) == Wait(3, 60.0)


def test_a_quota_that_is_gone_lets_all_go_t116() -> None:
    assert Quotas().step(seen()) == Release(None, 0, 60.0, is_new=True)


def test_a_quota_without_blocked_jobs_is_forgotten_t116() -> None:
    assert Quotas().step(seen(has_jobs=False)) == Forget()
