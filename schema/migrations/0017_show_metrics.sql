-- What drover metrics shows: counters that outlive the daemons, and views of the queue and of how daemons fare.

-- ---------------------------------------------------------------- counters

-- Sums that only grow, by name and labels. A histogram is a counter for each of its buckets.
create table drover.counter (
  counter_name   text not null,
  counter_labels text[] not null,
  counter_value  double precision not null,
  primary key (counter_name, counter_labels)
) with (fillfactor = 50);

-- What is to be added to them: whoever counts inserts a row and waits for nobody. Daemons add it up (query `count`).
create table drover.counter_new (
  counter_name   text not null,
  counter_labels text[] not null,
  counter_value  double precision not null
);

create view drover.counters as
select counter_name, counter_labels, sum(counter_value) as counter_value
  from (select * from drover.counter union all select * from drover.counter_new) c
 group by counter_name, counter_labels;

-- Count the ends among these moves, but for commands. Any front-end may name any type, so those that no scheduler knows
-- are counted as one.
create function drover.count_ends(pks bigint[], states text[]) returns void
  language sql security definer set search_path = drover, pg_temp as $$
  insert into counter_new (counter_name, counter_labels, counter_value)
  select 'ended', array[type, state, code], count(*)
    from unnest(pks, states) as u(pk, state)
   cross join lateral (
     select case when exists (select from agent where agent_type = jq_type) then jq_type else '(unknown)' end as type,
            drover.end_code(u.state::drover.job_state, jq_type, jq_end_bits, jq_endtext, jq_exitcode, jq_signal) as code
       from jobqueue where jq_pk = u.pk and jq_type <> 'command' offset 0) j
   where state in ('done', 'failed', 'cancelled', 'ignored', 'skipped')
   group by type, state, code
$$;

-- As before, and count the ends. The plain ends, of which announce is not told, are counted by the daemon.
create or replace function drover.announce(pks bigint[], states text[]) returns bigint language plpgsql as $$
declare
  chunks bigint;
begin
  select count(drover.notify('drover_event', chunk)) into chunks from (
    select json_agg(json_build_object('jq_pk', u.pk, 'state', u.state, 'job_pk', j.jq_job_fk))::text as chunk
      from unnest(pks, states) with ordinality as u(pk, state, n)
      left join drover.jobqueue j on j.jq_pk = u.pk
     group by (u.n - 1) / 80) c;
  if drover.has_subscriptions() then
    perform drover.record(pks, states);
  end if;
  if states && '{failed,ignored}' then
    perform drover.bury(pks, states);
  end if;
  if states && '{done,failed,cancelled,ignored,skipped}' then
    perform drover.count_ends(pks, states);
  end if;
  return chunks;
end $$;

-- ---------------------------------------------------------------- the queue

-- How many jobs of each type and queue wait or are worked, and since when the oldest is queued. None of the jobs that
-- have ended is read: `ready` are the tokens, `waiting` those with a time to come, `blocked` those on a list, `in hand`
-- those of the records. Held jobs and those that wait for others are in no index, and are not counted.
create view drover.depth as
with job as (
  select claim_type as type, claim_queue as queue, 'ready' as state, coalesce(cardinality(claim_jobs), 1) as jobs,
         claim_queued as queued
    from drover.claimable
   union all
  select jq_type, coalesce(jq_queue, ''), 'waiting', 1, jq_queued
    from drover.jobqueue where jq_wait_until is not null and jq_state = 'queued' and jq_unmet = 0
   union all
  select jq_type, coalesce(jq_queue, ''), 'blocked', 1, jq_queued
    from drover.blocked join drover.jobqueue on jq_pk = blocked_jq_fk
   where jq_state = 'blocked'
   union all
  select jq_type, coalesce(jq_queue, ''), 'in hand', 1, jq_queued
    from (select distinct unnest(hand_jobs) as pk from drover.in_hand) h join drover.jobqueue j on jq_pk = pk
   where jq_state in ('claimed', 'running')
      or jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and not drover.has_token(j))
select coalesce(agent_type, '(unknown)') as type, coalesce(queue_name, '(unknown)') as queue, state,
       sum(jobs)::bigint as jobs, min(queued) as oldest
  from (select type, queue, state, sum(jobs) as jobs, min(queued) as queued from job where type <> 'command'
         group by type, queue, state) j
  left join (select distinct agent_type from drover.agent) a on agent_type = type
  left join drover.queue on queue_name = queue
 group by 1, 2, 3;

-- ---------------------------------------------------------------- daemons

-- How daemons fare, as each has written it last: what is in hand, its memory and processor time, its loop, and its
-- statements, as {name: {count, total_s, mean_ms, max_ms}}.
create view drover.vitals as
select scheduler_uuid, scheduler_group, scheduler_host, scheduler_pid, scheduler_version, scheduler_started,
       scheduler_seen > now() - make_interval(secs => 2 * scheduler_lease) as is_alive, status_updated,
       (vital ->> 'jobs')::bigint as jobs, (vital ->> 'expansions')::bigint as expansions,
       (vital ->> 'memory_mb')::float8 as memory_mb, (vital ->> 'cpu_s')::float8 as cpu_s,
       (vital ->> 'slow_turns')::bigint as slow_turns, (vital ->> 'longest_turn_ms')::float8 as longest_turn_ms,
       (vital ->> 'recent_turn_ms')::float8 as recent_turn_ms,
       jsonb_array_length(vital -> 'troubles') as troubles, status_reason is not null as is_refused,
       vital -> 'statements' as statements
  from drover.scheduler
  join drover.scheduler_status on status_scheduler = scheduler_uuid and status_slot = -1
 cross join lateral (select status_parameter::jsonb as vital offset 0) v;
