-- drover.why names the session that has the row of a job locked, and until when an agent type waits for its item_rate.
-- Filters of commands for many jobs find jobs also by the host where they ran, by how they ended, and up to an instant.

alter table drover.agent add column agent_item_next timestamptz;
comment on column drover.agent.agent_item_next is
  'when its item_rate lets the next item begin, if that is more than a second away';

-- Return the transactions that may have rows locked for more than a second, each with the session that they are of. Who
-- asks without pg_read_all_stats does not see since when, nor what the scheduler locks for a moment.
create function drover.lockers(out locker xid, out says text) returns setof record
language sql stable set search_path = drover, pg_temp rows 10 as $$
  select transactionid,
         'its row is locked by '
           || coalesce('pid ' || pid || ', user ' || usename
                         || coalesce(', application ' || nullif(application_name, ''), '')
                         || coalesce(', for ' || drover.about(date_part('epoch', clock_timestamp() - xact_start)), '')
                         || '; next: end that transaction, as with select pg_terminate_backend(' || pid || ')',
                       'a prepared transaction; next: commit it or roll it back, see pg_prepared_xacts')
    from pg_catalog.pg_locks left join pg_catalog.pg_stat_activity using (pid)
   where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted
     and coalesce(xact_start < clock_timestamp() - interval '1 second',
                  application_name not like 'drover%', true)
$$;
comment on function drover.lockers is
  'sessions that have had a transaction open for more than a second, for drover.why';

-- Return how many seconds a job ran: one of one parameter as long as an agent had it, without the wait for that agent.
create function drover.time_run(is_query boolean, worked interval, started timestamptz, ended timestamptz)
returns float8 language sql stable parallel safe as $$
  select case when not is_query and ended is not null and worked > interval '0' then date_part('epoch', worked)
              else date_part('epoch', coalesce(ended, now())) - date_part('epoch', started) end
$$;

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
    select jq_type, jq_state, jq_queued, jq_attempt, jq_starttime, jq_endtime, jq_msq, jq_processedtime
      from ended
     cross join lateral (
       select * from drover.jobqueue
        where jq_pk between zone * 4096 and zone * 4096 + 4095 and jq_endtime >= (select at from beginning)
       offset 0) z
     where place <= 100 and jq_type <> 'command' and jq_submitter = any ((select drover.fellows())::name[])
     union all
    select jq_type, jq_state, jq_queued, jq_attempt, jq_starttime, null, jq_msq, jq_processedtime
      from drover.our_beside_zones b
     cross join lateral (select * from drover.jobqueue j where j.jq_pk = b.jq_pk limit 1) h
     where jq_endtime is null and jq_type <> 'command')
select jq_endtime as tally_at, interval '0' as tally_span, jq_type as tally_type, jq_state::text as tally_state,
       1::bigint as tally_jobs,
       case when jq_state in ('done', 'failed')
            then array[drover.time_bin(drover.time_run(jq_msq, jq_processedtime, jq_starttime, jq_endtime))]
            else '{}' end as tally_bins,
       case when jq_state in ('done', 'failed') then array[1::bigint] else '{}' end as tally_counts
  from jobs
 where jq_endtime is not null
 union all
select jq_starttime, interval '0', jq_type, 'started', 1,
       array[drover.time_bin(date_part('epoch', jq_starttime) - date_part('epoch', jq_queued))], array[1]
  from jobs
 where jq_starttime >= (select at from beginning) and jq_attempt > 0;

-- ---------------------------------------------------------------- functions that use these

do $do$
declare
  changes text[][] := array[
    array['count_ends(bigint[], text[])',
          'date_part(''epoch'', jq_endtime) - date_part(''epoch'', jq_starttime)',
          'drover.time_run(jq_msq, jq_processedtime, jq_starttime, jq_endtime)'],
    array['recount_ends()', 'date_part(''epoch'', jq_endtime) - date_part(''epoch'', jq_starttime)',
          'drover.time_run(jq_msq, jq_processedtime, jq_starttime, jq_endtime)'],
    array['filter_mistake(jsonb)', 'by,group,state,since,queued_since,',
          'by,group,state,since,until,queued_since,ran_on,code,'],
    array['filter_mistake(jsonb)', 'when key in (''since'', ''queued_since'', ''text'')',
          'when key in (''since'', ''until'', ''queued_since'', ''text'')'],
    array['filter_mistake(jsonb)', 'when wrong in (''since'', ''queued_since'')',
          'when wrong in (''since'', ''until'', ''queued_since'')'],
    array['filter_mistake(jsonb)', 'perform (filter ->> ''since'')::timestamptz,',
          'perform (filter ->> ''since'')::timestamptz, (filter ->> ''until'')::timestamptz,'],
    array['change_jobs(bigint, uuid, integer)', '  after    timestamptz;
', '  after    timestamptz;
  till     timestamptz;
  late     bigint[];  -- jobs in hand that were claimed after that
  codes    text[];
  ran_on   text[];
'],
    array['change_jobs(bigint, uuid, integer)', '  sought := lower(',
          '  till := filter ->> ''until'';
  late := case when till is not null
               then array(select pk from in_hand cross join lateral unnest(hand_jobs) as pk where hand_since >= till)
          end;
  codes := case when filter ? ''code'' then names(filter -> ''code'') end;
  ran_on := case when filter ? ''ran_on'' then names(filter -> ''ran_on'') end;
  sought := lower('],
    array['change_jobs(bigint, uuid, integer)', '         and (after is null or jq_queued > after)
', '         and (after is null or jq_queued > after)
         and (till is null or greatest(jq_queued, jq_starttime, jq_endtime) < till and jq_pk <> all (late))
         and (ran_on is null or jq_done_host = any (ran_on))
         and (codes is null or jq_exitcode::text = any (codes)
              or end_code(jq_state, jq_type, jq_end_bits, jq_endtext, jq_exitcode, jq_signal) = any (codes))
']];
  body    text;
begin
  for n in 1..array_length(changes, 1) loop
    body := pg_get_functiondef(('drover.' || changes[n][1])::regprocedure);
    if position(changes[n][2] in body) = 0 then
      raise exception 'drover.% has another body than was thought', changes[n][1];
    end if;
    execute replace(body, changes[n][2], changes[n][3]);
  end loop;
end $do$;
