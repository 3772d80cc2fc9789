"""Tools for tests of the counts of jobs."""

from typing import Any

WRONG = """
select type, queue, host, submitter, state, sum(jobs), sum(is_in_zone)
  from (select jq_type as type, coalesce(jq_queue, '') as queue, coalesce(jq_host, '') as host,
               jq_submitter::text as submitter, drover.counted_state(jq_state, jq_unmet, jq_wait_until) as state,
               1 as jobs, 1 as is_in_zone
          from drover.jobqueue
         union all
        select type, queue, host, submitter, state, -jobs, 0 from drover.job_counts
         union all
        select type, queue, host, submitter, state, 0, -jobs from drover.job_zones) u
 group by type, queue, host, submitter, state having sum(jobs) <> 0 or sum(is_in_zone) <> 0
"""
OUT_OF_BOUNDS = """
select jq_pk from drover.jobqueue
  left join drover.job_zones z
    on (zone, type, queue, host, submitter, state)
       = (drover.zone_of(jq_pk), jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter::text,
          drover.counted_state(jq_state, jq_unmet, jq_wait_until))
 where zone is null or jobs < 1 or jq_queued < oldest or greatest(jq_queued, jq_endtime) > latest
    or drover.rank(jq_urgent, jq_priority) < rank
    or jq_endtime is not null and (extract(epoch from jq_starttime - jq_queued)::real > waited
                                   or extract(epoch from jq_endtime - jq_starttime)::real > ran)
 order by jq_pk limit 10
"""


def wrong_counts(connection: Any) -> list[tuple[Any, ...]]:
    """Return kinds whose counts are not those of the rows: kind, and by how many jobs in all and in zones."""
    return [*connection.execute(WRONG).fetchall()]


def jobs_out_of_bounds(connection: Any) -> list[int]:
    """Return jobs that are in no zone, or beyond a bound of their zone."""
    return [pk for (pk,) in connection.execute(OUT_OF_BOUNDS)]
