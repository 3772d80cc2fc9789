-- A batch of a command about many jobs counts them and makes their tokens itself, all at once; the row trigger did it
-- job by job, which took nine tenths of a batch. A row says in jq_batch that it was changed so: a setting of the
-- session could be set by anybody, and would hold for what a trigger of the site changes meanwhile.

-- The transaction of the batch that changed the job last. No login may write it: drover.change_taken does.
alter table drover.jobqueue add jq_batch xid8;

-- A job that a batch changed: where its row was then, and its state as it is counted and its queue, before and after.
create type drover.batch_move as (pk bigint, at tid, was text, state text, was_queue text, queue text);

-- Return what a batch writes into jq_batch: as it was for the few jobs about which the row trigger has more to do.
create function drover.batch_of(job drover.jobqueue) returns xid8
language sql stable parallel safe as $$
  select case when job.jq_unique_key is null and job.jq_not_after is null and job.jq_state <> 'blocked'
              then pg_catalog.pg_current_xact_id() else job.jq_batch end
$$;

-- Return whether the row trigger left this change to the batch: its condition says the same.
create function drover.is_of_batch(was xid8, job drover.jobqueue) returns boolean
language sql immutable parallel safe as $$
  select was is distinct from job.jq_batch and job.jq_unique_key is null and job.jq_not_after is null
$$;

-- As before, but for what a batch changes.
drop trigger jobqueue_moved on drover.jobqueue;
create trigger jobqueue_moved
  after update of jq_state, jq_wait_until, jq_queue, jq_host, jq_urgent, jq_priority,
    jq_queued on drover.jobqueue for each row
  when (new.jq_unique_key is not null or new.jq_not_after is not null
        or new.jq_state = 'done' and new.jq_done_by is null
        or not (old.jq_state = 'queued' and (new.jq_state = 'done' or new.jq_state = 'claimed'
          or new.jq_state = 'running')
                and new.jq_attempt > old.jq_attempt and new.jq_type <> 'command'
                or old.jq_state = 'claimed' and (new.jq_state = 'done' or new.jq_state = 'running'
                  or new.jq_state = 'claimed')
                or old.jq_state = 'running' and (new.jq_state = 'done' or new.jq_state = 'running')
                or old.jq_batch is distinct from new.jq_batch))
  execute function drover.moved();

-- Count the moves of a batch: what jobs left, and what they became, with the bounds of their zones.
create function drover.count_moves(moves drover.batch_move[]) returns void
language sql set search_path = drover, pg_temp as $$
  insert into job_change
  select zone_of(jq_pk), jq_type, coalesce(was_queue, ''), coalesce(jq_host, ''), jq_submitter, was, null, count(*),
         null, null, null, null, null
    from unnest(moves) join jobqueue on jq_pk = pk group by 1, 2, 3, 4, 5, 6
  union all
  select zone_of(jq_pk), jq_type, coalesce(queue, ''), coalesce(jq_host, ''), jq_submitter, null, state, count(*),
         min(jq_queued), max(greatest(jq_queued, jq_endtime)),
         max(case when jq_endtime is not null then extract(epoch from jq_starttime - jq_queued) end),
         max(extract(epoch from jq_endtime - jq_starttime)), min(rank(jq_urgent, jq_priority))
    from unnest(moves) join jobqueue on jq_pk = pk group by 1, 2, 3, 4, 5, 7
$$;

-- Do for these moves what the row trigger does for others: refuse what a trigger of the site made of them, count them,
-- and offer those that may be claimed. Their tokens were taken before. One whose row was changed once more since, by a
-- trigger of the site, may have a token already.
create function drover.settle_batch(moves drover.batch_move[], target drover.job_state) returns void
language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off
set jit = off as $$
declare
  odd   batch_move;
  ready bigint[];
begin
  select * into odd from unnest(moves) as m
   where m.state <> all (case when target is null then array[m.was] when target = 'queued' then '{queued,early,unmet}'
                              else array[target::text] end) limit 1;
  if found then
    raise exception 'job % may not move from % to %', odd.pk, odd.was, odd.state using errcode = 'check_violation';
  end if;
  perform count_moves(moves);
  ready := array(
    select jq_pk from unnest(moves) as m join jobqueue j on jq_pk = m.pk
     where is_claimable(j) and (j.ctid = m.at or not has_token(j)));
  if ready <> '{}' then
    perform offer_all(ready);
  end if;
end $$;

-- Do what a command says to these jobs, which drover.take_jobs has returned; return those that were changed, those of
-- them that ended and have children, and why others were refused, by number. Words: what follows the verb. Those that a
-- trigger of the site keeps as they are get their tokens back.
create or replace function drover.change_taken(
  verb text, words text, jobs bigint[], out changed bigint[], out parents bigint[], out refused jsonb)
language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set jit = off as $$
declare
  target job_state := case when verb = 'cancel' then 'cancelled' when verb = 'ice' then 'skipped'
                           when verb = 'hold' then 'held'
                           when verb in ('release', 'unblock', 'retry') then 'queued' end;
  ends   boolean := coalesce(target in ('cancelled', 'skipped'), false);
  moves  batch_move[];
  kept   bigint[];
begin
  refused := '{}';
  changed := '{}';
  if jobs = '{}' then
    return;
  elsif verb = 'retry' then
    select * into changed, refused, moves from drover.retry_taken(jobs);
  elsif target is null and verb not in ('priority', 'move') then
    raise exception 'no verb for many jobs: %', verb;
  else
    with was as materialized (
      select jq_pk as pk, jq_queue as queue, jq_batch as batch,
             counted_state(jq_state, jq_unmet, jq_wait_until) as state
        from jobqueue where jq_pk = any (jobs)),
    done as (
      update jobqueue j
         set jq_state = coalesce(target, jq_state), jq_batch = batch_of(j),
             jq_starttime = case when ends then coalesce(jq_first_start, now()) else jq_starttime end,
             jq_endtime = case when ends then now() else jq_endtime end,
             jq_end_bits = case when verb = 'ice' then 1 when ends then 2 else jq_end_bits end,
             jq_endtext = case when verb = 'ice' then 'on ice'
                               when ends then coalesce(nullif(words, ''), 'cancelled') else jq_endtext end,
             jq_wait_until = case when ends then null
                                  when verb <> 'unblock' then jq_wait_until
                                  when jq_not_before > now() then jq_not_before end,
             jq_retry_at = case when verb <> 'unblock' then jq_retry_at end,
             jq_priority = case when verb = 'priority' then words else jq_priority end,
             jq_queue = case when verb = 'move' then words else jq_queue end
        from was where jq_pk = was.pk
      returning jq_pk, ends and jq_has_children as is_parent, is_of_batch(was.batch, j) as is_ours,
                row(jq_pk, j.ctid, was.state, counted_state(jq_state, jq_unmet, jq_wait_until), was.queue,
                    jq_queue)::batch_move as move)
    select array_agg(jq_pk), array_agg(jq_pk) filter (where is_parent), array_agg(move) filter (where is_ours)
      into changed, parents, moves from done;
  end if;
  if moves <> '{}' then
    perform settle_batch(moves, target);
  end if;
  changed := coalesce(changed, '{}');
  kept := array(select unnest(jobs) except select unnest(changed));
  if kept <> '{}' then
    refused := (select jsonb_object_agg(pk, 'a trigger of the database keeps it as it is') from unnest(kept) as pk)
      || refused;
    perform drover.offer_all(lost) from (select array(
      select jq_pk from jobqueue j where jq_pk = any (kept) and is_claimable(j) and not has_token(j)) as lost) l
      where lost <> '{}';
  end if;
  perform drover.announce(changed, array(select jq_state::text from unnest(changed) with ordinality as u(pk, n)
                                           join jobqueue on jq_pk = pk order by n))
    where changed <> '{}' and verb not in ('priority', 'move');
  perform drover.notify('drover_due', '') where changed <> '{}' and verb in ('release', 'retry', 'unblock');
end $$;

-- Queue failed jobs again, with all their allowances; return which, why others are not queued, and the moves that are
-- left to the batch. See query retry_job, which does so for one.
drop function drover.retry_taken(bigint[]);
create function drover.retry_taken(
  jobs bigint[], out changed bigint[], out refused jsonb, out moves drover.batch_move[])
language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off
set jit = off as $$
begin
  with asked as materialized (
    select *, row_number() over (partition by jq_unique_key order by jq_pk) as n
      from jobqueue where jq_pk = any (jobs)),
  verdict as materialized (
    select a.jq_pk, case
             when a.jq_attempt = 0 and a.jq_not_after <= now() then 'it was to be started by ' || a.jq_not_after
                  || '; drover resubmit ' || a.jq_pk || ' queues it once more, without that'
             when a.jq_unique_key is not null
                  and (n > 1 or exists (select from jobqueue o where o.jq_live_key = a.jq_unique_key))
             then 'another job with its jq_unique_key has not ended' end as why
      from asked a),
  plan as materialized (
    select a.jq_pk, a.jq_key is not null and not a.jq_repeat and a.jq_itemsfailed <= 10000 as is_rest,
           f.keys || coalesce(a.jq_checkpoint -> 'again', '[]') as keys
      from asked a cross join lateral (
        select coalesce(jsonb_agg(distinct l.item_key), '[]') as keys
          from (select item_key from item_failure
                 where a.jq_key is not null and not a.jq_repeat and item_jq_fk = a.jq_pk
                 order by item_pk desc limit a.jq_itemsfailed) l) f),
  done as (
    update jobqueue j
       set jq_state = 'queued', jq_starttime = null, jq_endtime = null, jq_end_bits = 0,
           jq_endtext = 'to be tried again',
           jq_first_start = case when j.jq_msq and j.jq_processedtime > interval '0' then j.jq_starttime end,
           jq_failures = 0, jq_interruptions = 0, jq_rescued = 0, jq_retry_at = null,
           jq_wait_until = case when j.jq_not_before > now() then j.jq_not_before end,
           jq_exitcode = null, jq_signal = null, jq_result = null, jq_itemsfailed = 0, jq_itemstotal = null,
           jq_expected_end = null, jq_done_host = null, jq_done_pid = null,
           jq_itemsprocessed = case
             when j.jq_msq and j.jq_key is null then coalesce((j.jq_checkpoint ->> 'itemsprocessed')::bigint, 0)
             when plan.is_rest or j.jq_repeat
             then coalesce((j.jq_checkpoint ->> 'itemsprocessed')::bigint, j.jq_itemsprocessed)
             else 0 end,
           jq_checkpoint = case
             when j.jq_msq and j.jq_key is null then j.jq_checkpoint || '{"itemsfailed": 0}'
             when plan.is_rest then coalesce(j.jq_checkpoint, '{}') || jsonb_build_object('again', plan.keys) end,
           jq_batch = drover.batch_of(j)
      from plan join verdict using (jq_pk) join asked using (jq_pk)
     where j.jq_pk = plan.jq_pk and verdict.why is null
    returning j.jq_pk, drover.is_of_batch(asked.jq_batch, j) as is_ours,
              row(j.jq_pk, j.ctid, drover.counted_state(asked.jq_state, asked.jq_unmet, asked.jq_wait_until),
                  drover.counted_state(j.jq_state, j.jq_unmet, j.jq_wait_until), asked.jq_queue,
                  j.jq_queue)::drover.batch_move as move)
  select (select array_agg(jq_pk) from done), (select array_agg(move) filter (where is_ours) from done),
         (select coalesce(jsonb_object_agg(jq_pk, why), '{}') from verdict where why is not null)
    into changed, moves, refused;
end $$;
