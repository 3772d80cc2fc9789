"""Daemons fail at each point, and no job is lost, done twice or taken from who has it."""

import pytest

from scheduler.daemon.periodic_tasks import SUSPECTS_PAUSE_S
from tests.faults.failpoints import WRITES
from tests.faults.settings import FULL
from tests.faults.site import RETRIED, Site
from tests.faults.walk import FAR, POINTS, STDIN_JOBS, Step, has_come, steps, walk

SHARE = 8  # steps of one test: each takes a second or three
ROUNDS = 6  # of work
PERIODIC_S = 2 * SUSPECTS_PAUSE_S  # a walk of find_suspects that failed begins anew after the pause
SHORT = (
    "end_and_claim",
    "save",
    "mark",
    "rescue",
    "take_lease",
    "renew_lease",
    "write",
    "spawn",
    "end_backend",
)


def _shares(path: list[Step]) -> list[list[Step]]:
    return [path[start : start + SHARE] for start in range(0, len(path), SHARE)]


def _id(path: list[Step]) -> str:
    return f"{path[0].name}-{path[-1].name}"


@pytest.mark.slow
@pytest.mark.fault("failpoints: kill")
@pytest.mark.parametrize("path", _shares(steps("kill")), ids=_id)
def test_a_daemon_killed_at_a_fault_point_loses_no_job(site: Site, path: list[Step]) -> None:
    walk(site, path)
    assert site.settle() == []


@pytest.mark.slow
@pytest.mark.fault("failpoints: stop")
@pytest.mark.parametrize("path", _shares(steps("stop", POINTS if FULL else SHORT)), ids=_id)
def test_a_daemon_stopped_at_a_fault_point_and_resumed_loses_and_repeats_no_job(site: Site, path: list[Step]) -> None:
    walk(site, path)
    assert site.settle() == []


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.timeout(1200)
@pytest.mark.fault("failpoints: error")
def test_a_daemon_survives_an_error_at_every_statement_and_starts_nothing_twice(site: Site) -> None:
    live_through(site, [step for step in steps("error") if step.name not in (*WRITES, *STDIN_JOBS, "unregister")])
    assert site.repeated() == []


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.fault("failpoints: error")
def test_a_daemon_survives_an_error_at_every_pipe(site: Site) -> None:
    site.lasting = RETRIED  # an agent whose pipe is broken has died, which fails a job
    path = [step for step in steps("error") if step.name in WRITES]
    live_through(site, path)
    assert site.failures() <= len(path)


def live_through(site: Site, path: list[Step]) -> None:
    """Work in rounds until every point was come to; one that only time brings is waited for after the last round."""
    site.has_detached = True
    daemon = site.serving(points=",".join(step.armed for step in path), config=FAR + site.types("d1"))
    locked = {step for step in path if step.name == "find_locked"}
    for _ in range(ROUNDS):
        site.submit(plain=3)
        site.order()
        site.limit_jobs()
        site.lose_job()
        site.step_down()
        with site.locks() as lock_more:
            site.until(
                lambda: lock_more() or locked <= {step for step in path if has_come(daemon, step)}, "no lock is met"
            )
        assert site.settle() == []

    def left() -> list[str]:
        return [step.said for step in path if not has_come(daemon, step)]

    site.until(lambda: not left(), lambda: f"not come to: {left()}", PERIODIC_S)
    assert site.settle() == []
    daemon.stop()
