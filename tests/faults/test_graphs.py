"""Large graphs of jobs, while daemons are killed: chains, fans, diamonds, cycles; all end, each in its order."""

import time
from signal import SIGKILL

import psycopg
import pytest

from tests.faults.settings import FULL
from tests.faults.site import ENDED, Site, Tally
from tests.patience import LONG_PATIENCE_S

JOBS = 100_000 if FULL else 2000
PATIENCE_S = 1200.0 if FULL else LONG_PATIENCE_S
INSERT_JOBS = """
insert into drover.jobqueue (jq_type, jq_args, jq_max_interruptions)
select 'line', 'g' || i, 1000 from generate_series(1, %s) i
"""
INSERT_EDGES = (
    "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) select child, parent from ({}) e(child, parent)"
)
CHAINS = "select i, i - 1 from generate_series(2, {jobs}) i where i % 100 <> 1"  # of a hundred
FANS = "select i, (i - 1) / 1000 * 1000 + 1 from generate_series(2, {jobs}) i where i % 1000 <> 1"
DIAMONDS = """
select i + k, i from generate_series(1, {jobs}, 100) i, generate_series(1, 98) k
 union all select i + 99, i + k from generate_series(1, {jobs}, 100) i, generate_series(1, 98) k
"""
SHAPES = {"chains": (CHAINS, 100), "fans": (FANS, 2), "diamonds": (DIAMONDS, 100)}  # and a job far below the first
TOO_EARLY = """
select count(*) from drover.jobdepends join drover.jobqueue c on c.jq_pk = jdep_jq_fk
  join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk where c.jq_starttime < p.jq_endtime
"""
HALF = f"select count(*) > {JOBS // 2} from drover.jobqueue where jq_endtime is not null"
CYCLE = "insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk) values (1, %s)"
FAN = "select i, 1 from generate_series(2, 3000) i"
OPEN = "select count(*) from drover.jobdepends where jdep_met_at is null"


@pytest.mark.slow
@pytest.mark.fault("kill -9 between the pieces of a fan")
def test_a_half_settled_fan_is_completed_by_the_next_daemon_c28_c29_r33(site: Site) -> None:
    site.rows(INSERT_JOBS, 3000)
    site.rows(INSERT_EDGES.format(FAN))
    first = site.start("settle:after=kill@2", metered=False)
    assert first.wait_exit() == -SIGKILL
    assert 0 < site.value(OPEN) < 2999
    second = site.serving()
    assert site.settle(PATIENCE_S) == []
    assert (site.value(OPEN), site.value(TOO_EARLY)) == (0, 0)
    second.stop()


@pytest.mark.slow
@pytest.mark.fault("100k jobs with dependencies: chains, fans, cycles")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_graph_ends_in_order_though_its_daemon_is_killed_r31_c28(site: Site, tally: Tally, shape: str) -> None:
    edges, below = SHAPES[shape]
    begin = time.monotonic()
    with psycopg.connect(site.database) as front:
        front.execute(INSERT_JOBS, (JOBS,))
        front.execute(INSERT_EDGES.format(edges.format(jobs=JOBS)).encode())
        with pytest.raises(psycopg.errors.CheckViolation, match="that would be a cycle"), front.transaction():
            front.execute(CYCLE, (below,))
    built = time.monotonic() - begin
    first = site.serving()
    site.until(lambda: site.value(HALF), "half of them do not end", PATIENCE_S)
    first.kill()
    second = site.serving()
    site.until(lambda: site.value(ENDED), "not all of them end", PATIENCE_S)
    took = time.monotonic() - begin
    assert site.settle(PATIENCE_S) == []
    assert site.value(TOO_EARLY) == 0
    second.stop()
    tally.notes.append(f"{shape}: {JOBS} jobs, built in {built:.1f} s, all done after {took:.1f} s")
