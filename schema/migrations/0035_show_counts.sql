-- Counts of jobs as people read them, and the depth of queues by them: what waits is counted, not read.

-- Zones with jobs that have not ended are found without those of many years that have.
create index job_zone_open on drover.job_zone (zone_state, zone_type)
 where zone_state in ('held', 'early', 'unmet', 'queued', 'blocked');

-- What schedulers have in hand: few jobs, whatever waits. Not commands.
create view drover.jobs_in_hand as
select j.jq_pk, j.jq_type, coalesce(j.jq_queue, '') as jq_queue, coalesce(j.jq_host, '') as jq_host,
       j.jq_submitter::text as jq_submitter, j.jq_queued,
       case j.jq_state when 'queued' then 'claimed' else j.jq_state end as jq_state
  from (select distinct unnest(hand_jobs) as pk from drover.in_hand) h
 cross join lateral (  -- one by one, however many a server expects that has not looked at the tables yet
   select * from drover.jobqueue j
    where j.jq_pk = h.pk
      and (j.jq_state in ('claimed', 'running')
           or j.jq_state = 'queued' and j.jq_unmet = 0 and j.jq_wait_until is null and j.jq_type <> 'command'
              and not drover.has_token(j)) offset 0) j;

-- Jobs by their state in drover.jobs: those in hand are not queued any more. `waits_for` says of queued ones `jobs`, or
-- `time`, or is null: they may be claimed.
create view drover.job_states as
select type, queue, host, submitter, state, waits_for, sum(jobs)::bigint as jobs
  from (select type, queue, host, submitter,
               case when state in ('early', 'unmet') then 'queued' else state end::drover.job_state as state,
               case state when 'early' then 'time' when 'unmet' then 'jobs' end as waits_for, jobs
          from drover.job_counts
         union all
        select jq_type, jq_queue, jq_host, jq_submitter, s.*
          from drover.jobs_in_hand
         cross join lateral (values (jq_state, null, 1), ('queued', null, -1)) as s(state, waits_for, jobs)) u
 group by type, queue, host, submitter, state, waits_for having sum(jobs) > 0;

create view drover.my_job_states with (security_barrier) as
select * from drover.job_states where submitter = session_user::text;
create view drover.our_job_states with (security_barrier) as
select * from drover.job_states where submitter = any ((select drover.fellows())::text[]);

-- When the job was queued that has waited longest of those of a type and queue that may be claimed: the first token of
-- each host and rank is its oldest. Of a fair type, which has a rank for each round, the first 1,000 are looked at.
create function drover.oldest_claimable(type text, queue text) returns timestamptz
language sql stable parallel safe security definer set search_path = drover, pg_temp set enable_seqscan = off
set enable_bitmapscan = off as $$
  with recursive first as (
    (select claim_host, claim_rank, claim_queued from claimable
      where claim_type = oldest_claimable.type and claim_queue = oldest_claimable.queue
      order by claim_type, claim_queue, claim_host, claim_rank, claim_queued limit 1)
     union all
    select n.* from first cross join lateral (
      select claim_host, claim_rank, claim_queued from claimable
       where claim_type = oldest_claimable.type and claim_queue = oldest_claimable.queue
         and (claim_host, claim_rank) > (first.claim_host, first.claim_rank)
       order by claim_type, claim_queue, claim_host, claim_rank, claim_queued limit 1) n)
  select min(claim_queued) from (select claim_queued from first limit 1000) f
$$;

-- Jobs that may be claimed, with the time since which the first of them has waited: of 1,000 types and queues, those
-- with most jobs; of others it is null.
create view drover.backlog as
with ready as materialized (
  select type, queue, sum(jobs)::bigint as jobs, row_number() over (order by sum(jobs) desc) as place
    from drover.job_states where state = 'queued' and waits_for is null and type <> 'command' group by type, queue)
select type, queue, jobs, case when place <= 1000 then drover.oldest_claimable(type, queue) end as oldest from ready;

-- The same of one's own jobs; none was queued before `oldest`.
create view drover.my_backlog with (security_barrier) as
select type, queue, j.jobs, oldest
  from (select type, queue, sum(jobs)::bigint as jobs
          from drover.my_job_states where state = 'queued' and waits_for is null and type <> 'command'
         group by type, queue) j
  left join (select type, queue, min(oldest) as oldest from drover.my_job_zones where state = 'queued' group by 1, 2) z
 using (type, queue);

-- Types and queues that no scheduler knows share one label, since whoever may insert jobs could make any number of
-- them. `oldest` is exact of what is in hand or ready, see drover.backlog; of the others no job was queued before it.
create or replace view drover.depth as
with waiting as materialized (
  select type, queue, case state when 'queued' then 'waiting' else 'blocked' end as state, sum(jobs) as jobs
    from drover.job_states
   where type <> 'command' and (state = 'blocked' or state = 'queued' and waits_for = 'time') group by 1, 2, 3),
bound as materialized (
  select type, queue, case state when 'early' then 'waiting' else state end as state, min(oldest) as oldest
    from drover.job_zones where state in ('early', 'blocked') group by 1, 2, 3),
kind as (
  select type, queue, 'ready' as state, jobs, oldest from drover.backlog
   union all
  select type, queue, w.state, w.jobs, b.oldest from waiting w left join bound b using (type, queue, state)
   union all
  select jq_type, jq_queue, 'in hand', count(*), min(jq_queued)
    from drover.jobs_in_hand where jq_type <> 'command' group by 1, 2)
select coalesce(a.agent_type, '(unknown)') as type, coalesce(queue_name, '(unknown)') as queue, k.state,
       sum(k.jobs)::bigint as jobs, min(k.oldest) as oldest
  from kind k
  left join (select distinct agent_type from drover.agent) a on a.agent_type = k.type
  left join drover.queue on queue_name = k.queue
 group by 1, 2, 3;

create view drover.my_jobs_in_hand with (security_barrier) as
select * from drover.jobs_in_hand where jq_submitter = session_user::text;

-- One of the jobs that drover.job_zones counts as one kind, the first that is not in hand, of the first ten zones of it
-- that are given; null if there is none any more.
create function drover.first_of_kind(
  zones bigint[], type text, queue text, host text, submitter text, state text
) returns bigint
language plpgsql stable security definer set search_path = drover, pg_temp set enable_seqscan = off
set enable_bitmapscan = off as $$
declare
  zone  bigint;
  found bigint;
begin
  if submitter <> session_user and not has_table_privilege(session_user, 'drover.job_counts', 'select') then
    return null;  -- whoever does not see the jobs of others may not ask about them either
  end if;
  foreach zone in array zones[1:10] loop
    select jq_pk into found from jobqueue j
     where jq_pk between zone * 4096 and zone * 4096 + 4095 and jq_type = type and coalesce(jq_queue, '') = queue
       and coalesce(jq_host, '') = host and jq_submitter = submitter
       and counted_state(jq_state, jq_unmet, jq_wait_until) = state
       and (state <> 'queued' or jq_state = 'queued' and (jq_type = 'command' or has_token(j)))
     order by jq_pk limit 1;
    exit when found is not null;
  end loop;
  return found;
end $$;
