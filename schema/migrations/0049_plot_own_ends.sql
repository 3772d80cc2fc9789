-- The plots of who sees own jobs, or those of a tenant, are of all that ended in the last hour. They were of the newest
-- 20,000 jobs, ended or not, so a backlog in front of those that ended made them wrong.
--
-- As before, each job is tallied as if it had been counted alone. Jobs are read by zones, those that ended last first,
-- at most 100: what ended in others ended before any of these, and the plots begin after that, with a whole minute.
create or replace view drover.our_tally with (security_barrier) as
with ended as materialized (
    select zone, max(latest) as latest, row_number() over (order by max(latest) desc) as place
      from drover.our_zone_parts
     where state not in ('held', 'queued', 'early', 'unmet', 'blocked') and latest > now() - interval '1 hour'
     group by zone),
  beginning as materialized (
    select coalesce(date_trunc('minute', max(latest)) + interval '1 minute', now() - interval '1 hour') as at
      from ended where place > 100),
  jobs as materialized (
    select jq_type, jq_state, jq_queued, jq_attempt, jq_starttime, jq_endtime
      from ended
     cross join lateral (
       select * from drover.jobqueue
        where jq_pk between zone * 4096 and zone * 4096 + 4095 and jq_endtime >= (select at from beginning)
       offset 0) z
     where place <= 100 and jq_type <> 'command' and jq_submitter = any ((select drover.fellows())::name[])
     union all
    select jq_type, jq_state, jq_queued, jq_attempt, jq_starttime, null
      from drover.our_beside_zones b
     cross join lateral (select * from drover.jobqueue j where j.jq_pk = b.jq_pk limit 1) h
     where jq_endtime is null and jq_type <> 'command')
select jq_endtime as tally_at, interval '0' as tally_span, jq_type as tally_type, jq_state::text as tally_state,
       1::bigint as tally_jobs,
       case when jq_state in ('done', 'failed')
            then array[drover.time_bin(date_part('epoch', jq_endtime) - date_part('epoch', jq_starttime))]
            else '{}' end as tally_bins,
       case when jq_state in ('done', 'failed') then array[1::bigint] else '{}' end as tally_counts
  from jobs
 where jq_endtime is not null
 union all
select jq_starttime, interval '0', jq_type, 'started', 1,
       array[drover.time_bin(date_part('epoch', jq_starttime) - date_part('epoch', jq_queued))], array[1]
  from jobs
 where jq_starttime >= (select at from beginning) and jq_attempt > 0;
