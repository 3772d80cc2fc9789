"""Commands given to several schedulers, any of which may die or exit at any statement: each command ends."""

import random
from collections.abc import Iterator
from typing import Final

import pytest

from scheduler.model.states import LeaseState
from tests.models.commands import Site

STEPS: Final = 400
FOR_ALL: Final = ("reload", "verbose 1", "reset", "poll", "reexec", "shutdown", "shutdown now")
FOR_ONE: Final = (
    "pause", "continue", "add-queue other 1", "remove-queue other", "set-concurrency default 3", "status", "flush 9",
    "step-down", "hold {}", "release {}", "cancel {}", "retry {}", "priority {} b", "run {}", "move {} other",
    "schedule-run none", "host-disable none", "agent-disable a", "unblock {}",
)  # fmt: skip
FEW, MANY = range(4), range(4, 24)


@pytest.fixture
def site(database: str, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Yield a database with two jobs and one scheduler; what happens next is decided by the seed."""
    site = Site(database, random.Random(request.param))
    site.people.execute("insert into drover.jobqueue (jq_type, jq_state) values ('a', 'queued'), ('a', 'held')")
    site.start()
    yield site
    site.close()


def happen(site: Site) -> None:
    """Let something happen: mostly a step of some scheduler."""
    rng, alive = site.rng, site.alive
    draw = rng.random()
    if draw < 0.80 and alive:
        rng.choice(alive).step()
    elif draw < 0.86:
        site.give(rng.choice(FOR_ALL if rng.random() < 0.6 else FOR_ONE).format(rng.choice((1, 2))))
    elif draw < 0.87:
        site.give("cancel", '{"type": ["a"]}')
    elif draw < 0.89 and alive:
        site.kill(rng.choice(alive), is_seen=rng.random() < 0.7, after_its_statement=rng.random() < 0.5)
    elif draw < 0.90 and alive:
        rng.choice(alive).stop()
    elif draw < 0.92 and len(alive) < 3:
        site.start()
    elif draw < 0.93:
        lock_a_command(site)
    elif draw < 0.96:
        site.work()
    else:
        site.advance(rng.choice((0.3, 1.0, 11.0, 40.0)))


def lock_a_command(site: Site) -> None:
    """Let a session lock the row of a command, and release the last one."""
    site.other.rollback()
    site.other.execute("select from drover.jobqueue where jq_pk = (select max(jq_pk) from drover.jobqueue) for update")


def live_on(site: Site) -> Site:
    for _ in range(STEPS):
        happen(site)
    return site


def seeds(name: str) -> pytest.MarkDecorator:
    values = [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)]
    return pytest.mark.parametrize(name, values, indirect=True)


@seeds("site")
def test_every_command_ends_whoever_dies_f137(site: Site) -> None:
    live_on(site).settle()
    assert site.open() == [], "\n".join(site.story)


@seeds("site")
def test_the_last_daemon_that_obeys_a_shutdown_leaves_none_open_f137(site: Site) -> None:
    live_on(site)
    assert site.left_open == [], "\n".join(site.story)


@seeds("site")
def test_shutdown_ends_every_daemon_that_was_there_f137(site: Site) -> None:
    for _ in range(STEPS // 2):
        happen(site)
    there = [each for each in site.alive if each.is_known]
    site.give("shutdown")
    live_on(site).settle()
    assert [each.pid for each in there if each.is_alive and not each.is_ending] == [], "\n".join(site.story)


@pytest.mark.parametrize("site", [0], indirect=True)
def test_shutdown_reaches_a_daemon_that_has_just_lost_its_group_f137(site: Site) -> None:
    first, second = site.members[0], site.start()
    site.rest()
    site.advance(40.0)
    site.rest(second)
    site.give("shutdown")
    site.settle()
    assert (first.is_ending, second.is_ending) == (True, True)


@pytest.mark.parametrize("site", [0], indirect=True)
def test_daemon_that_lost_its_group_answers_no_command_twice_f137(site: Site) -> None:
    first, second = site.members[0], site.start()
    site.rest()
    command = site.give("reload")
    site.rest(first)
    site.advance(40.0)
    site.rest(second)
    site.settle()
    said = site.people.execute("select jq_endtext from drover.jobqueue where jq_pk = %s", (command,)).fetchone()
    assert len(str(said).split("; ")) == 2


@pytest.mark.parametrize("site", [0], indirect=True)
def test_shutdown_reaches_a_daemon_that_has_just_stepped_down_f137(site: Site) -> None:
    first, second = site.members[0], site.start()
    site.rest()
    site.give("step-down")
    while first.lease.state is not LeaseState.UNREGISTERED:
        first.step()
    site.give("shutdown")
    site.settle()
    assert (first.is_ending, second.is_ending) == (True, True)


@pytest.mark.parametrize("site", [0], indirect=True)
def test_command_ends_at_once_when_the_other_daemon_is_known_to_be_dead_f137(site: Site) -> None:
    first, second = site.members[0], site.start()
    site.rest()
    site.kill(second, is_seen=True, after_its_statement=False)
    site.give("reload")
    site.rest(first)
    assert site.open() == []


@pytest.mark.parametrize("site", [0], indirect=True)
def test_the_last_daemon_exits_when_its_shutdown_has_ended_f137(site: Site) -> None:
    first, second = site.members[0], site.start()
    site.rest()
    site.kill(second, is_seen=False, after_its_statement=False)
    site.give("shutdown")
    while first.is_alive:
        site.rest(first)
        site.advance(1.0)
    assert site.left_open == []
