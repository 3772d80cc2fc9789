"""What hosts keep of detached jobs is removed and forgotten, though a host or a statement fails meanwhile."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from scheduler.model import events_and_effects as e
from scheduler.model.config import AgentType, Host
from scheduler.policy.core import Core
from tests.core_tools import make_core, saved, settle
from tests.fakes import LOST, TROUBLES, After, Site, refused

KIND = AgentType(command=("tool", "{args}"), kind="exec", detached=True)
SPOOL = "/spool"


class Kept:
    """The rows of drover.detached that no job runs for, and those of jobs that run."""

    def __init__(self, site: Site, *entries: tuple[int, int]) -> None:
        self.rows, self.running = set(entries), {(99, 1)}
        site.hosts.keeps["alpha"] |= self.rows | self.running
        site.answers["read_kept"] = lambda _: [("alpha", SPOOL, *entry) for entry in sorted(self.rows)]
        site.answers["forget_kept"] = self._forget

    def _forget(self, values: dict[str, Any]) -> list[tuple[int, int]]:
        """Forget what hosts have removed; return what they keep and no row is of."""
        self.rows -= set(zip(values["pks"], values["attempts"], strict=True))
        left = set(zip(values["left_pks"], values["left_attempts"], strict=True))
        return sorted(left - self.rows - self.running)


def site_of(*entries: tuple[int, int]) -> tuple[Site, Kept]:
    """Return a site whose host keeps these, and nobody needs them."""
    site = Site(make_core({"long": KIND}, hosts={"alpha": Host(spool=SPOOL)}))
    return site, Kept(site, *entries)


def host_is_up(site: Site, is_up: bool) -> None:
    site.core.handle(e.HostUp("alpha") if is_up else e.HostDown("alpha", "no route", 5.0), site.now)


def test_what_no_job_is_for_is_removed_and_forgotten() -> None:
    site, kept = site_of((1, 1), (2, 3))
    site.run(5.0)
    assert (kept.rows, site.hosts.keeps["alpha"]) == (set(), kept.running)


@pytest.mark.parametrize("trouble", [each for each in TROUBLES if each])
def test_a_host_in_trouble_is_asked_again_until_it_has_removed_what_no_job_is_for(trouble: str) -> None:
    site, kept = site_of((1, 1))
    site.hosts.trouble["alpha"] = trouble
    site.run(60.0)
    assert kept.rows >= site.hosts.keeps["alpha"] - kept.running  # nothing is forgotten that is still there
    site.hosts.trouble.clear()
    site.run(60.0)
    assert (kept.rows, site.hosts.keeps["alpha"]) == (set(), kept.running)


@pytest.mark.parametrize("trouble", [each for each in TROUBLES if each])
def test_what_the_database_knows_nothing_of_is_removed_after_the_trouble_of_its_host(trouble: str) -> None:
    """Such as what was begun after the backup was made from which the database comes."""
    site, kept = site_of()
    site.hosts.keeps["alpha"].add((7, 1))
    site.run(0.25)
    site.hosts.trouble["alpha"] = trouble
    site.run(60.0)
    site.hosts.trouble.clear()
    site.run(60.0)
    assert site.hosts.keeps["alpha"] == kept.running


def test_a_host_that_does_not_answer_is_not_asked_twice_at_once() -> None:
    site, _ = site_of((1, 1))
    site.hosts.trouble["alpha"] = "hangs"
    site.run(80.0)
    assert len(site.hosts.asked) == 1
    site.run(40.0)
    assert len(site.hosts.asked) == 2


def test_a_host_that_is_down_is_asked_as_soon_as_it_is_found_up() -> None:
    site, kept = site_of((1, 1))
    host_is_up(site, False)
    site.run(40.0)
    assert site.hosts.asked == []
    host_is_up(site, True)
    site.run(20.0)
    assert kept.rows == set()


@pytest.mark.parametrize("answer", [refused(), refused("55P03"), LOST])
@pytest.mark.parametrize("query", ["read_site", "adopt", "forget_kept", "read_kept"])
@pytest.mark.parametrize("listed", [(), ((1, 1),)])
def test_a_statement_that_fails_holds_up_the_removal_for_a_minute_at_most(
    query: str, answer: Exception, listed: tuple[tuple[int, int], ...]
) -> None:
    site, kept = site_of(*listed)
    site.hosts.keeps["alpha"].add((7, 1))
    site.answer(query, answer)
    site.run(70.0)
    assert (kept.rows, site.hosts.keeps["alpha"]) == (set(), kept.running)


def test_a_host_that_goes_down_before_it_is_asked_to_remove_is_asked_when_it_is_up() -> None:
    site, kept = site_of()
    site.hosts.keeps["alpha"].add((7, 1))
    site.answer("forget_kept", After(1.0, [(7, 1)]))
    site.run(0.5)
    host_is_up(site, False)
    site.run(30.0)
    host_is_up(site, True)
    site.run(60.0)
    assert site.hosts.keeps["alpha"] == kept.running


def adoption(pk: int, host: str = "alpha") -> tuple[Any, ...]:
    """Return a row of query `adopt`."""
    return (pk, 1, "item", "1n", "{}", "long", "default", host, host, SPOOL, 2, None, 5.0)


@pytest.mark.parametrize("answer", [refused(), LOST])
def test_a_running_job_is_adopted_though_the_first_statement_fails(answer: Exception) -> None:
    site, _ = site_of()
    site.answer("adopt", answer, [adoption(5)])
    site.run(70.0)
    assert list(site.core.state.jobs) == [5]


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda core: core.kill(5, "killed", 1.0), "failed"),
        (lambda core: core.cancel(5, "not needed", 1.0), "cancelled"),
    ],
)
def test_an_adopted_job_is_ended_at_once_if_no_slot_of_its_type_is_on_its_host(
    end: Callable[[Core], bool], state: str
) -> None:
    """Such as after a reload that names other hosts for the type; its command is ended by the release of its spool."""
    hosts = {"alpha": Host(spool=SPOOL), "beta": Host(spool=SPOOL)}
    site = Site(make_core({"long": attrs.evolve(KIND, hosts=("alpha",))}, hosts=hosts))
    site.answer("adopt", [adoption(5, host="beta")])
    site.run(1.0)
    assert list(site.core.state.jobs) == [5]
    assert end(site.core)
    assert [row.state for row in saved(settle(site.core, site.now))] == [state]
