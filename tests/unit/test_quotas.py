"""Which jobs a quota counts, which do not fit, and what becomes of these."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model import events_and_effects as e
from scheduler.policy.conditions import Condition, Forget, Policy, Release, Wait
from scheduler.policy.core import Core
from scheduler.policy.job import Job, Verdict
from scheduler.policy.quotas import CONDITION, EVERY, Quotas
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
    [
        ({"user": "anna"}, True),
        ({"user": "*"}, True),
        ({"tenant": "staff"}, True),
        ({"queue": "default"}, False),
        ({"queue": "other"}, True),
        ({"host": "alpha"}, True),
        ({"queue": "other", "host": "alpha"}, True),
        ({"queue": "default", "host": "alpha"}, True),
    ],
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


# ---- the counts, beside a model that counts all jobs anew


WHO = [ANNA, BERT, {"submitter": "anna"}, {"retries": 1}]  # the last two: of unknown roles, of an unknown submitter
POOL = make_core().state.pools["sha"]


def job(pk: int, rules: dict[str, Any], host: str = "") -> Job:
    return Job(claim(pk, host=host, **rules), POOL, 0.0)


def key_of(row: dict[str, Any], job: Job) -> str | None:
    """Return the name under which a quota counts a job, as drover.toml(5) and the module's text say it."""
    who, roles = job.rules.submitter, job.rules.roles
    if row["queue"] not in (None, job.queue) or row["host"] not in (None, job.host):
        return None
    if who and row["tenant"] is not None and roles and row["tenant"] not in roles:
        return None
    if who and row["user"] not in (None, "*", who):
        return None
    return f"{row['name']}:{who}" if row["user"] == "*" else row["name"]


def is_full(rows: list[dict[str, Any]], jobs: list[Job], key: str) -> bool:
    (row,) = [row for row in rows if row["name"] == key.partition(":")[0]]
    return sum(key_of(row, job) in (key, row["name"] + ":") for job in jobs) >= row["most"]


EACH = {"user": "*"}
NARROW = [
    EACH,
    EACH,
    EACH,
    {},
    {"user": "anna"},
    {"tenant": "staff"},
    {"queue": "other"},
    {"host": "alpha"},
    {"host": "b"},
]
ROWS = st.builds(
    lambda most, values: NOTHING | {"most": most} | values, st.sampled_from((1, 2, 3, 0)), st.sampled_from(NARROW)
)
ACTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "alpha"]), st.booleans()), min_size=6, max_size=25)


@given(st.lists(ROWS, min_size=1, max_size=2), ACTS)
def test_a_job_is_admitted_if_no_quota_that_counts_it_is_full_t116(rows: list[dict[str, Any]], acts: Any) -> None:
    rows = [row | {"name": f"q{number}"} for number, row in enumerate(rows)]
    quotas, jobs = Quotas(), list[Job]()
    quotas.set(rows, [])
    quotas.take_with_room()
    blocked = set[str]()
    for pk, (who, host, ends) in enumerate(acts):
        if ends and jobs:
            had_room = {key for key in blocked if not is_full(rows, jobs, key)}
            quotas.ended(jobs.pop(who % len(jobs)))
            has_room = {key for key in blocked if not is_full(rows, jobs, key)}
            assert quotas.has_room <= has_room
            assert quotas.has_room or has_room == had_room  # the daemon looks at blocked jobs as soon as there is one
            assert quotas.take_with_room() == sorted(has_room)
            continue
        new = job(pk, WHO[who], host)
        keys = [key for row in rows if (key := key_of(row, new)) is not None]
        full = [key for key in keys if is_full(rows, jobs, key)]
        over = quotas.admit(new)
        assert (over or "").split(" ")[1:2] == [f"quota:{key}" for key in full[:1]]
        if over is None:
            jobs.append(new)
        else:
            blocked.add(full[0])
            assert quotas.room(full[0]) == 0
        assert quotas.take_with_room() == [key for key in sorted(blocked) if not is_full(rows, jobs, key)]


def test_jobs_are_counted_once_however_often_quotas_are_read_t116() -> None:
    quotas, first = Quotas(), job(1, ANNA)
    first.started = True
    rows = [NOTHING | {"name": "few", "most": 2}]
    assert [quotas.set(rows, [first]) for _ in range(2)] == [[], []]
    assert (quotas.in_hand["few"], first.quotas) == (1, ("few",))


def test_quotas_read_again_unchanged_look_at_no_blocked_job_t116() -> None:
    quotas, rows = Quotas(), [NOTHING | {"name": "few", "most": 2}]
    found = []
    for each in (rows, rows, []):
        quotas.set(each, [])
        found.append(quotas.take_with_room())
    assert found == [[EVERY], [], [EVERY]]


def test_a_quota_that_is_gone_has_no_limit_any_more_t116() -> None:
    quotas = Quotas()
    quotas.set([NOTHING | {"name": "few", "most": 1}], [])
    quotas.admit(job(1, ANNA))
    quotas.set([], [])
    assert quotas.room("few") is None


def test_jobs_that_began_count_first_and_the_youngest_others_are_over_t116() -> None:
    quotas = Quotas()
    old, younger, begun, ending = (job(pk, ANNA) for pk in (1, 2, 3, 4))
    begun.started = True
    ending.verdict = Verdict("cancel", "")
    over = quotas.set([NOTHING | {"name": "few", "most": 3}], [younger, begun, ending, old])
    assert [(each.pk, text) for each, text in over] == []
    over = quotas.set([NOTHING | {"name": "few", "most": 2}], [younger, begun, old])
    assert [(each.pk, text) for each, text in over] == [(2, "blocked: quota:few 2 of 2 jobs are in hand")]
    assert (younger.quotas, begun.quotas, old.quotas) == ((), ("few",), ("few",))


def test_a_quota_that_is_looked_at_is_asked_about_until_no_job_is_blocked_on_it_t116() -> None:
    quotas = Quotas()
    quotas.set([NOTHING | {"name": "few", "most": 2, "user": "*"}], [])
    quotas.take_with_room()
    found = []
    for has_jobs in (True, False):
        quotas.step(seen(has_jobs=has_jobs))
        found.append(quotas.take_with_room())
    assert found == [["few:anna"], []]


def test_a_look_at_one_more_than_full_quota_lets_none_go_t116() -> None:
    quotas = Quotas()
    begun = [job(pk, ANNA) for pk in (1, 2, 3)]
    for each in begun:
        each.started = True
    quotas.set([NOTHING | {"name": "few", "most": 2, "user": "*"}], begun)
    assert (quotas.room("few:anna"), quotas.step(seen())) == (0, Wait(3, 60.0))


def test_a_quota_of_each_user_without_jobs_has_all_its_room_t116() -> None:
    quotas = Quotas()
    quotas.set([NOTHING | {"name": "others", "most": 1}, NOTHING | {"name": "few", "most": 2, "user": "*"}], [])
    assert [quotas.room(key) for key in ("few:anna", "others", "few", "others:anna")] == [2, 1, 2, None]


def test_a_job_of_an_unknown_submitter_counts_for_each_user_until_it_ends_t116() -> None:
    quotas, unknown = Quotas(), job(1, {"retries": 1})
    unknown.started = True
    quotas.set([NOTHING | {"name": "few", "most": 2, "user": "*"}], [unknown])
    quotas.take_with_room()
    assert [quotas.admit(job(pk, ANNA)) is None for pk in (2, 3)] == [True, False]
    quotas.ended(unknown)
    assert (quotas.has_room, quotas.room("few:anna")) == ({"few:anna"}, 1)


def test_the_end_of_a_job_wakes_no_jobs_that_are_blocked_on_another_key_t116() -> None:
    quotas, first, other = Quotas(), job(1, ANNA), job(2, BERT)
    quotas.set([NOTHING | {"name": "few", "most": 1, "user": "*"}], [])
    quotas.take_with_room()
    for each in (first, job(3, ANNA), other):
        quotas.admit(each)
    quotas.ended(first)
    assert quotas.take_with_room() == ["few:anna"]
    quotas.ended(other)
    assert quotas.has_room == set()
