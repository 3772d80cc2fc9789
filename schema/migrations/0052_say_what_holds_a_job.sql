-- drover.why names the session that has the row of a job locked, and until when an agent type waits for its item_rate.
-- Filters of commands for many jobs find jobs also by the host where they ran, by how they ended, and up to an instant.

alter table drover.agent add column agent_item_next timestamptz;
comment on column drover.agent.agent_item_next is
  'when its item_rate lets the next item begin, if that is more than a second away';

-- Return the transactions that may have rows locked for more than a second, each with the session that they are of.
create function drover.lockers(out locker xid, out says text) returns setof record
language sql stable security definer set search_path = drover, pg_temp rows 10 as $$
  select transactionid,
         'its row is locked by '
           || coalesce('pid ' || pid || ', user ' || usename || coalesce(', application ' || nullif(application_name, ''), '')
                         || coalesce(', for ' || drover.about(date_part('epoch', clock_timestamp() - xact_start)), '')
                         || '; next: end that transaction, as with select pg_terminate_backend(' || pid || ')',
                       'a prepared transaction; next: commit it or roll it back, see pg_prepared_xacts')
    from pg_catalog.pg_locks left join pg_catalog.pg_stat_activity using (pid)
   where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted
     and coalesce(xact_start < clock_timestamp() - interval '1 second', true)
$$;
comment on function drover.lockers is 'sessions that have had a transaction open for more than a second, for drover.why';

create or replace view drover.why as
select r.jq_pk, r.jq_type, r.jq_state,
       coalesce(d.says, a.says, k.says, l.says, r.says || coalesce(n.says, '')) || coalesce(drover.shown_code(j), '')
         || coalesce(': ' || r.text, '') as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked'
  left join lateral (
    select says from drover.rate_limited where jq_pk = r.jq_pk and r.says like 'waits its turn%' offset 0) l on true
  left join lateral (
    select says from drover.runs_detached where jq_pk = r.jq_pk and r.jq_state = 'running' offset 0) d on true
  left join lateral (
    select case when r.jq_state = 'queued' then '' when r.jq_state = 'claimed' then 'in hand; ' else r.says || '; ' end
             || w.says as says
      from drover.lockers() w
     where w.locker = j.xmax and r.jq_state in ('queued', 'claimed', 'running')
       and r.says ~ '^(waits its turn|in hand|running)' limit 1) k on true
  left join lateral (
    select ', the next at ' || date_trunc('second', agent_item_next) as says
      from drover.agent join drover.queue on agent_group = queue_group
     where queue_name = j.jq_queue and agent_type = j.jq_type and agent_item_next > now()
       and r.says like '%item_rate%' offset 0) n on true;

create or replace view drover.why_masked as
select r.jq_pk, r.jq_type, r.jq_state,
       coalesce(d.says, a.says, k.says, l.says, r.says || coalesce(n.says, '')) || coalesce(drover.shown_code(j), '')
         as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked'
  left join lateral (
    select says from drover.rate_limited where jq_pk = r.jq_pk and r.says like 'waits its turn%' offset 0) l on true
  left join lateral (
    select says from drover.runs_detached where jq_pk = r.jq_pk and r.jq_state = 'running' offset 0) d on true
  left join lateral (
    select case when r.jq_state = 'queued' then '' when r.jq_state = 'claimed' then 'in hand; ' else r.says || '; ' end
             || w.says as says
      from drover.lockers() w
     where w.locker = j.xmax and r.jq_state in ('queued', 'claimed', 'running')
       and r.says ~ '^(waits its turn|in hand|running)' limit 1) k on true
  left join lateral (
    select ', the next at ' || date_trunc('second', agent_item_next) as says
      from drover.agent join drover.queue on agent_group = queue_group
     where queue_name = j.jq_queue and agent_type = j.jq_type and agent_item_next > now()
       and r.says like '%item_rate%' offset 0) n on true;

-- ---------------------------------------------------------------- filters of commands for many jobs

do $do$
declare
  changes text[][] := array[
    array['filter_mistake(jsonb)', 'by,group,state,since,queued_since,', 'by,group,state,since,until,queued_since,ran_on,code,'],
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
