-- One command about all jobs that a filter finds is one row, which the daemon carries out batch by batch; and a command
-- that no scheduler takes in time is not carried out later.

-- ---------------------------------------------------------------- verbs

-- The states in which a job takes the verb, if that may be given about all jobs of a filter.
alter table drover.verb add column verb_in_bulk text[] not null default '{}';

-- ---------------------------------------------------------------- tokens of many jobs

-- Most jobs that are changed have neither a latest start nor a key: their rows need no second update.
do $$
declare
  derive text := '    update drover.jobqueue
       set jq_expires_at = case ';
  blocks text := '    if old.jq_state = ''blocked'' then';
  body   text := pg_get_functiondef('drover.moved'::regproc);
begin
  if position(derive in body) = 0 or position(blocks in body) = 0 then
    raise exception 'drover.moved is not as expected';
  end if;
  body := replace(body, derive, '    if new.jq_not_after is not null or new.jq_unique_key is not null then
' || derive);
  execute replace(body, blocks, '    end if;
' || blocks);
end $$;

-- Lock those of the jobs that are in one of these states, not in hand, and whose rows and tokens no session has locked;
-- take their tokens away, and return them. It waits for nothing: a claim has tokens locked, and may need rows.
create function drover.take_jobs(jobs bigint[], states drover.job_state[]) returns bigint[]
language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off
set enable_nestloop = off set enable_mergejoin = off set jit = off as $$  -- where nothing else does, it still nests
declare
  taken bigint[];
begin
  with shared as materialized (
    select t.ctid as at, u.pk
      from (select distinct block_of(pk) as first from unnest(jobs) as pk) b cross join lateral (
        select ctid, claim_jobs from claimable
         where claim_first between b.first and b.first + 31 and claim_jobs is not null offset 0) t
     cross join lateral unnest(t.claim_jobs) as u(pk)
     where u.pk in (select unnest(jobs))),
  own as materialized (
    select t.ctid as at
      from (select pk from unnest(jobs) as pk where pk not in (select pk from shared)) o cross join lateral (
        select * from jobqueue where jq_pk = pk and jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null
        offset 0) j cross join lateral (
        select ctid from claimable
         where claim_type = j.jq_type and claim_queue = coalesce(j.jq_queue, '')
           and claim_host = coalesce(j.jq_host, '') and claim_rank = rank(j.jq_urgent, j.jq_priority)
           and claim_queued = j.jq_queued and claim_first = j.jq_pk and claim_jq_fk is not null
        offset 0) t),
  in_line as materialized (
    select t.ctid as at
      from unnest(jobs) as pk cross join lateral (
        select ctid from claimable where claim_first = pk and claim_line is not null offset 0) t
     where exists (select from claimable where claim_line is not null)),
  token as materialized (
    select ctid as at, * from claimable
     where ctid = any (array(select at from shared union select at from own union select at from in_line))
       for update skip locked),
  held as materialized (
    select t.*, u.pk from token t cross join lateral unnest(coalesce(t.claim_jobs, array[t.claim_first])) as u(pk)),
  claimable_job as materialized (
    select jq_pk from jobqueue
     where jq_pk = any (array(select pk from held where pk in (select unnest(jobs))))
       and jq_state = 'queued' and 'queued' = any (states)
       for no key update skip locked),
  other_job as materialized (
    select jq_pk from jobqueue
     where jq_pk = any (jobs) and jq_state = any (states) and jq_state not in ('claimed', 'running')
       and not (jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null)
       for no key update skip locked),
  job as materialized (select *, pk in (select jq_pk from claimable_job) as leaves from held),
  gone as (delete from claimable where ctid = any (array(select at from job where leaves))),
  run as (  -- a job that comes back is between the others again
    select *, count(*) filter (where leaves) over (partition by at order by pk) as n
      from job where claim_jobs is not null and at in (select at from job where leaves)),
  put_back as (
    insert into claimable (claim_first, claim_jobs, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                           claim_by_record)
    select min(pk), array_agg(pk order by pk), claim_queued, claim_type, claim_queue, claim_host, claim_rank, true
      from run where not leaves
     group by at, n, claim_queued, claim_type, claim_queue, claim_host, claim_rank)
  select array(select jq_pk from claimable_job union all select jq_pk from other_job) into taken;
  perform notify('drover_queue', '') where taken <> '{}';  -- claims skipped the tokens while they were locked
  return taken;
end $$;

-- ---------------------------------------------------------------- filters

-- Return what is wrong with a filter; null if nothing is.
create function drover.filter_mistake(filter jsonb) returns text
language plpgsql stable set search_path = drover, pg_temp as $$
declare
  known text[] := '{type,queue,host,by,group,state,since,queued_since,text,hidden}';
  wrong text;
begin
  if jsonb_typeof(filter) is distinct from 'object' or filter = '{}' then
    return 'a filter is a JSON object with one or more of ' || array_to_string(known, ', ');
  end if;
  select key into wrong from jsonb_object_keys(filter) as key where key <> all (known) order by key limit 1;
  if found then
    return format('a filter has no %s: it has %s', quote_literal(left(wrong, 64)), array_to_string(known, ', '));
  end if;
  select key into wrong from jsonb_each(filter) as e(key, value)
   where case when key in ('since', 'queued_since', 'text') then jsonb_typeof(value) <> 'string'
              when key = 'hidden' then jsonb_typeof(value) <> 'boolean'
              when jsonb_typeof(value) = 'array'
              then value = '[]' or exists (
                select from jsonb_array_elements(value) as each
                 where jsonb_typeof(each) <> case key when 'group' then 'number' else 'string' end)
              else jsonb_typeof(value) <> case key when 'group' then 'number' else 'string' end end
   order by key limit 1;
  if found then
    return format('%s of a filter is %s', wrong, case
      when wrong in ('since', 'queued_since') then 'a time, as a string' when wrong = 'text' then 'a string'
      when wrong = 'hidden' then 'true or false' when wrong = 'group' then 'a number, or a list of numbers'
      else 'a string, or a list of strings' end);
  end if;
  select state into wrong from unnest(names(filter -> 'state')) as state
   where state not in (select unnest(enum_range(null::job_state))::text) limit 1;
  if found then
    return format('there is no state %s', quote_literal(left(wrong, 64)));
  end if;
  perform (filter ->> 'since')::timestamptz, (filter ->> 'queued_since')::timestamptz,
          names(filter -> 'group')::bigint[];
  return null;
exception when data_exception then
  return sqlerrm;
end $$;

-- ---------------------------------------------------------------- commands

-- Return what is wrong with the words of a command about many jobs; null if nothing is. See scheduler/model/verbs.py.
create function drover.bulk_word_mistake(verb text, words text) returns text
language sql immutable set search_path = drover, pg_temp as $$
  select case
           when length(words) > 990 then 'a command for many jobs has at most 990 characters'
           when verb = 'cancel' then null
           when verb = 'priority' then case
             when rest ~ '^[A-Za-z0-9]{1,16}$' then null
             else 'priority needs letters, and nothing more: one to 16 letters or digits' end
           when verb = 'move' then case
             when rest ~ '^[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}$' then null
             else 'move needs the name of one queue, and nothing more' end
           when rest <> '' then verb || ' takes no words: the filter chooses the jobs' end
    from (select coalesce(substring(btrim(words, E' \t\n\r') from '^\S+\s+(.*)$'), '') as rest) w
$$;

-- Give a command, which ends as failed if no scheduler has taken it `within` so long. With a filter it is about all
-- jobs that this finds among those inserted before, and that the role may command; its words do without a job.
create function drover.command(words text, filter jsonb, within interval default null) returns bigint
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  is_free boolean := drover.may_command();
  given   text := drover.word(words, 1);
  entry   verb;
  wrong   text;
  pk      bigint;
begin
  if filter is null then
    pk := drover.command(words);
  else
    select * into entry from verb where verb_name = given;
    if not found or entry.verb_in_bulk = '{}' then
      raise exception 'no command for many jobs: %; there are %', coalesce(quote_literal(left(given, 64)), 'nothing'),
        (select string_agg(verb_name, ', ' order by verb_number) from verb
          where verb_in_bulk <> '{}' and (is_free or verb_for_owners))
        using errcode = 'invalid_parameter_value';
    elsif not is_free and not entry.verb_for_owners then
      raise exception 'only drover_operator may command %', given using errcode = 'insufficient_privilege';
    end if;
    wrong := coalesce(drover.bulk_word_mistake(given, words), drover.filter_mistake(filter));
    if wrong is not null then
      raise exception '%', wrong using errcode = 'invalid_parameter_value';
    end if;
    insert into jobqueue (jq_type, jq_args, jq_variables)
    values ('command', regexp_replace(btrim(words, E' \t\n\r'), '^(\S+)', '\1 all'), filter) returning jq_pk into pk;
  end if;
  update jobqueue set jq_not_after = now() + within where jq_pk = pk and within is not null;
  return pk;
end $$;

-- A command may have a latest start too, if an operator inserts it.
do $$
declare
  before text := '  new.jq_not_after := null;
';
  body   text := pg_get_functiondef('drover.prepare_command'::regproc);
begin
  if position(before in body) = 0 then
    raise exception 'drover.prepare_command is not as expected';
  end if;
  execute replace(body, before, '');
end $$;

-- Withdraw those of the commands that no scheduler has taken, if the role gave them or is an operator; return which.
-- A command is either withdrawn, or was taken: query begin_command takes the same lock.
create function drover.withdraw_commands(commands bigint[], said text) returns bigint[]
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  withdrawn bigint[];
begin
  with free as materialized (
    select jq_pk from jobqueue
     where jq_pk = any (commands) and jq_type = 'command' and jq_state = 'queued' and jq_attempt_start is null
       and jq_endtext is null and jq_wait_until is null and (jq_submitter = session_user or drover.may_command())
       and not exists (select from command_ack where ack_jq_fk = jq_pk)
     order by jq_pk for no key update skip locked),
  ended as (
    update jobqueue j
       set jq_state = 'failed', jq_attempt = jq_attempt + 1, jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2,
           jq_endtext = drover.message(said)
      from free where j.jq_pk = free.jq_pk
    returning j.jq_pk)
  select coalesce(array_agg(jq_pk), '{}') into withdrawn from ended;
  perform drover.announce(withdrawn, array_fill('failed'::text, array[cardinality(withdrawn)]))
    where withdrawn <> '{}';
  return withdrawn;
end $$;

-- Return what commands that have not ended wait for, those of the role or, for an operator, all: the scheduler that has
-- each, and since when; else the group that is to take it, and its active scheduler, if it has one. And the session
-- that has its job locked, what it has done so far, and what the database refuses that scheduler.
create function drover.command_waits(
  commands bigint[], about_jobs text[], about_hosts text[], about_types text[], out command bigint, out taken_by text,
  out since timestamptz, out in_group text, out scheduler text, out job bigint, out locked_by text, out refused text,
  out done bigint)
returns setof record
language sql stable security definer set search_path = drover, pg_temp as $$
  with active as (
    select group_name, scheduler_host || '.' || scheduler_pid as name, status_reason
      from scheduler_group join scheduler on scheduler_uuid = group_owner
      left join scheduler_status on status_scheduler = scheduler_uuid and status_slot = -1
     where group_lease_until > now())
  select c.jq_pk, c.jq_schedinfo, c.jq_attempt_start, g.name, a.name, t.jq_pk,
         (select format('session %s (%s%s%s)', pid, usename, ', ' || nullif(application_name, ''), ', ' || state)
            from pg_locks l join pg_stat_activity using (pid)
           where locktype = 'transactionid' and transactionid in (t.xmax, c.xmax) and granted
           limit 1),
         (select string_agg(status_reason, '; ') from active where name = coalesce(c.jq_schedinfo, a.name)),
         c.jq_itemsprocessed
    from jobqueue c
   cross join lateral (select drover.word(c.jq_args, 1) as verb, drover.word(c.jq_args, 2) as word) v
    left join lateral (
      select jq_pk, jq_queue, xmax from jobqueue
       where v.verb = any (about_jobs)
         and (jq_pk = case when v.word ~ '^[0-9]{1,18}$' then v.word::bigint end
              or jq_name = case when v.word like '%.%' then v.word end) limit 1) t on true
    left join queue q on q.queue_name = t.jq_queue
    left join host h on v.verb = any (about_hosts) and h.host_name = v.word
    left join lateral (
      select agent_group from agent where v.verb = any (about_types) and agent_type = v.word limit 1) k on true
   cross join lateral (
      select coalesce(q.queue_group, h.host_group, k.agent_group,
                      (select group_name from active order by group_name <> 'default', group_name limit 1),
                      'default') as name) g
    left join active a on a.group_name = g.name
   where c.jq_pk = any (commands) and c.jq_type = 'command' and c.jq_state = 'queued'
     and (c.jq_submitter = session_user or drover.may_command())
$$;

-- Put a job that waits into another queue. The daemon may change none that a job asks for by itself.
create function drover.put_in_queue(job bigint, queue text) returns bigint
language sql security definer set search_path = drover, pg_temp as $$
  update jobqueue set jq_queue = queue where jq_pk = job and jq_state in ('held', 'queued', 'blocked') returning jq_pk
$$;

-- ---------------------------------------------------------------- one batch

-- Do what a command says to these jobs, which drover.take_jobs has returned; return those that were changed, those of
-- them that ended and have children, and why others were refused, by number. Words: what follows the verb. The row
-- trigger counts each job and gives it its new token; those that a trigger of the site keeps get theirs back here.
create function drover.change_taken(
  verb text, words text, jobs bigint[], out changed bigint[], out parents bigint[], out refused jsonb)
language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set jit = off as $$
declare
  kept bigint[];
begin
  refused := '{}';
  changed := '{}';
  if jobs = '{}' then
    return;
  end if;
  if verb = 'cancel' then
    with done as (
      update jobqueue
         set jq_state = 'cancelled', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(),
             jq_end_bits = 2, jq_endtext = coalesce(nullif(words, ''), 'cancelled'), jq_wait_until = null
       where jq_pk = any (jobs) returning *)
    select array_agg(jq_pk), array_agg(jq_pk) filter (where jq_has_children) into changed, parents from done;
  elsif verb = 'ice' then
    with done as (
      update jobqueue
         set jq_state = 'skipped', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(),
             jq_end_bits = 1, jq_endtext = 'on ice', jq_wait_until = null
       where jq_pk = any (jobs) returning *)
    select array_agg(jq_pk), array_agg(jq_pk) filter (where jq_has_children) into changed, parents from done;
  elsif verb = 'hold' then
    with done as (update jobqueue set jq_state = 'held' where jq_pk = any (jobs) returning *)
    select array_agg(jq_pk) into changed from done;
  elsif verb = 'release' then
    with done as (update jobqueue set jq_state = 'queued' where jq_pk = any (jobs) returning *)
    select array_agg(jq_pk) into changed from done;
  elsif verb = 'unblock' then
    with done as (
      update jobqueue
         set jq_state = 'queued', jq_retry_at = null,
             jq_wait_until = case when jq_not_before > now() then jq_not_before end
       where jq_pk = any (jobs) returning *)
    select array_agg(jq_pk) into changed from done;
  elsif verb = 'priority' then
    with done as (update jobqueue set jq_priority = words where jq_pk = any (jobs) returning *)
    select array_agg(jq_pk) into changed from done;
  elsif verb = 'move' then
    with done as (update jobqueue set jq_queue = words where jq_pk = any (jobs) returning *)
    select array_agg(jq_pk) into changed from done;
  elsif verb = 'retry' then
    select * into changed, refused from drover.retry_taken(jobs);
  else
    raise exception 'no verb for many jobs: %', verb;
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

-- Queue failed jobs again, with all their allowances; return which, and why others are not queued. See query retry_job,
-- which does so for one.
create function drover.retry_taken(jobs bigint[], out changed bigint[], out refused jsonb)
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
             when plan.is_rest then coalesce(j.jq_checkpoint, '{}') || jsonb_build_object('again', plan.keys) end
      from plan join verdict using (jq_pk)
     where j.jq_pk = plan.jq_pk and verdict.why is null
    returning j.jq_pk)
  select (select array_agg(jq_pk) from done),
         (select coalesce(jsonb_object_agg(jq_pk, why), '{}') from verdict where why is not null)
    into changed, refused;
end $$;

-- Carry out a batch of a command about all jobs that its filter finds: `most` jobs at most, of the next ten zones in
-- which jobs of such a kind are. No row: the command has ended, or another session has it locked. Where it is and what
-- it has done is kept in the row of the command, by the transaction that does it, so that another daemon goes on there.
--
-- A job that is locked stays in `left` for the next batch; of more than a thousand, the others are looked for once
-- more, from `back` on, when there are few in `left`. One that this owner has in hand gets a note in its row and is
-- returned in `ours`, to be ended by the daemon; one of another daemon gets a command of its own, which is counted in
-- `given` by group, and not as done. With `most` = 1 a job that the database refuses to change is passed over, and the
-- reason is kept.
create function drover.change_jobs(
  command bigint, owner uuid, most integer, out is_over boolean, out has_moved boolean, out done bigint,
  out refused bigint, out reasons jsonb, out parents bigint[], out ours bigint[], out given jsonb, out said text)
returns setof record
language plpgsql security definer set search_path = drover, pg_temp set lock_timeout = '200ms'
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = on set enable_hashjoin = on
set enable_bitmapscan = on set jit = off as $$  -- the daemon's session has these off
declare
  c        jobqueue;
  entry    verb;
  filter   jsonb;
  words    text;
  states   job_state[];  -- in which the command takes a job
  stored   job_state[];  -- and those that a row of such a job has: one in hand by a record is queued
  types    text[];
  queues   text[];
  hosts    text[];
  job_groups bigint[];
  submitters text[];
  whose    name[];
  since    timestamptz;
  after    timestamptz;
  sought   text;
  place bigint;  -- null: all were looked at
  waiting  bigint[];
  fresh    bigint[] := '{}';
  tries    bigint[];
  taken    bigint[];
  told     integer := 0;  -- jobs in hand that are ended by the daemon by now
  hand     bigint[] := '{}';  -- jobs in hand, of which zones do not know when they were started
  begun    bigint[] := '{}';  -- those of them that were claimed since
  is_again boolean;  -- it looks where it has looked before
  back     bigint;  -- null: no locked job was left out of `waiting`
  step     record;
  rest     record;
  counted  text[];  -- and those under which it is counted
  zone     bigint;
  zones    integer := 0;  -- that this batch has looked into
begin
  select * into c from jobqueue
   where jq_pk = command and jq_type = 'command' and jq_state = 'queued' for no key update skip locked;
  if not found then
    return;
  end if;
  select * into entry from verb where verb_name = drover.word(c.jq_args, 1);
  filter := c.jq_variables;
  words := substring(btrim(c.jq_args, E' \t\n\r') from '^\S+\s+\S+\s+(.*)$');
  said := drover.filter_mistake(filter);
  if said is null and entry.verb_in_bulk is not distinct from '{}' then
    said := entry.verb_name || ' is not given about many jobs';
  elsif said is null and entry.verb_name = 'move'
        and not exists (select from queue where queue_name = words and queue_present) then
    said := 'no queue ' || words;
  end if;
  if said is not null then
    is_over := true;
    return next;
    return;
  end if;
  states := array(select s::job_state from unnest(entry.verb_in_bulk) as s
                   where not filter ? 'state' or s = any (names(filter -> 'state')));
  stored := states || case when 'claimed' = any (states) then '{queued}' else '{}' end::job_state[];
  counted := stored::text[];
  if stored && '{queued,claimed,running}' then
    counted := counted || '{queued,early,unmet}'::text[];
  end if;
  types := case when filter ? 'type' then names(filter -> 'type') end;
  queues := case when filter ? 'queue' then names(filter -> 'queue') end;
  hosts := case when filter ? 'host' then names(filter -> 'host') end;
  job_groups := case when filter ? 'group' then names(filter -> 'group') end;
  submitters := case when filter ? 'by' then names(filter -> 'by') end;
  whose := case when not may_command(c.jq_submitter) then wards(c.jq_submitter) end;
  since := filter ->> 'since';
  after := filter ->> 'queued_since';
  sought := lower(filter ->> 'text');
  place := case when c.jq_result is null then 0 else (c.jq_result ->> 'place')::bigint end;
  waiting := array(select value::bigint from jsonb_array_elements_text(c.jq_result -> 'left'));
  back := (c.jq_result ->> 'back')::bigint;
  is_again := coalesce((c.jq_result ->> 'again')::boolean, false);
  if place is null and back is not null and cardinality(waiting) < 500 then
    place := least(back, (select min(pk) from unnest(waiting) as pk)) - 1;
    back := null;
    waiting := '{}';
    is_again := true;
  end if;
  if since is not null and counted && '{queued}' then
    select coalesce(array_agg(pk), '{}'), coalesce(array_agg(pk) filter (where hand_since >= since), '{}')
      into hand, begun from in_hand cross join lateral unnest(hand_jobs) as pk;
  end if;
  given := coalesce(c.jq_result -> 'given', '{}');
  reasons := coalesce(c.jq_result -> 'reasons', '{}');
  refused := c.jq_itemsfailed;
  has_moved := false;
  done := c.jq_itemsprocessed;

  while place is not null and cardinality(fresh) < most and zones < 10 loop
    zones := zones + 1;
    has_moved := true;
    zone := least(
      (select zone_number from job_zone
        where zone_number >= zone_of(place + 1) and zone_jobs <> 0 and zone_state = any (counted)
          and (types is null or zone_type = any (types)) and (queues is null or zone_queue = any (queues))
          and (hosts is null or zone_host = any (hosts))
          and (submitters is null or zone_submitter = any (submitters))
          and (whose is null or zone_submitter = any (whose::text[]))
          and (since is null or coalesce(zone_latest >= since, true))
        order by zone_number limit 1),
      (select min(change_zone) from job_change
        where change_zone >= zone_of(place + 1) and change_state = any (counted)
          and (types is null or change_type = any (types)) and (queues is null or change_queue = any (queues))
          and (hosts is null or change_host = any (hosts))
          and (submitters is null or change_submitter = any (submitters))),
      (select min(zone_of(pk)) from unnest(hand) as pk where pk > place));
    place := case when zone <= zone_of(command) then greatest(place, zone * 4096 - 1) end;
    exit when place is null;
    tries := array(
      select jq_pk from jobqueue
       where jq_pk > place and jq_pk < least(command, (zone + 1) * 4096)
         and jq_state = any (stored) and jq_type <> 'command' and (types is null or jq_type = any (types))
         and (queues is null or jq_queue = any (queues)) and (hosts is null or jq_host = any (hosts))
         and (job_groups is null or jq_job_fk = any (job_groups))
         and (submitters is null or jq_submitter = any (submitters))
         and (whose is null or jq_submitter = any (whose))
         and (since is null or greatest(jq_queued, jq_starttime, jq_endtime) >= since or jq_pk = any (begun))
         and (after is null or jq_queued > after)
         and (sought is null or jq_pk::text = sought or position(sought in lower(
                concat_ws(' ', jq_name, left(jq_args, 2000), left(jq_endtext, 2000)))) > 0)
         and (filter ->> 'hidden' is distinct from 'false'
              or not (exists (select from job where job_pk = jq_job_fk and job_hidden)
                      or exists (select from hidden where hidden_jq_fk = jq_pk)))
         and (entry.verb_name <> 'release' or jq_mode = 'background')
         and (entry.verb_name <> 'retry' or jq_endtime <= c.jq_queued)
         and (entry.verb_name <> 'priority' or jq_priority <> words or not is_again)
         and (entry.verb_name <> 'move' or jq_queue is distinct from words or not is_again)
       order by jq_pk limit most - cardinality(fresh));
    fresh := fresh || tries;
    place := case when cardinality(fresh) = most then fresh[most] else (zone + 1) * 4096 - 1 end;
  end loop;
  tries := fresh || waiting[1:most - cardinality(fresh)];
  waiting := waiting[most - cardinality(fresh) + 1:];

  begin
    taken := case when entry.verb_name = 'killjob' then '{}' else take_jobs(tries, states) end;
    select * into step from change_taken(entry.verb_name, words, taken);
  exception when others then
    if most > 1 or sqlstate !~ '^(21|22|23|42|44|54|P0)' then
      raise;
    end if;
    select '{}'::bigint[] as changed, null::bigint[] as parents, jsonb_build_object(tries[1], sqlerrm) as refused
      into step;
    taken := tries;
  end;
  if cardinality(taken) < cardinality(tries) then
    select * into rest
      from look_at_rest(array(select unnest(tries) except select unnest(taken)), states, owner,
                        entry.verb_name in ('cancel', 'killjob'));
    ours := want_jobs(rest.ours, owner,
                      case entry.verb_name when 'killjob' then 'kill' else concat_ws(' ', 'cancel', words) end);
    insert into jobqueue (jq_type, jq_args, jq_submitter, jq_not_after)
    select 'command', concat_ws(' ', entry.verb_name, pk, words), c.jq_submitter,
           now() + (c.jq_not_after - c.jq_queued)
      from unnest(rest.theirs) as pk;
    given := given || coalesce((
      select jsonb_object_agg(name, coalesce((given ->> name)::bigint, 0) + jobs)
        from (select coalesce(queue_group, 'default') as name, count(*) as jobs
                from unnest(rest.theirs) as pk join jobqueue on jq_pk = pk left join queue on queue_name = jq_queue
               group by 1) g), '{}');
    waiting := waiting || rest.locked || array(select unnest(rest.ours) except select unnest(ours));
    told := cardinality(ours);
    has_moved := has_moved or cardinality(rest.theirs) > 0;
    if cardinality(waiting) > 1000 then
      back := least(back, (select min(pk) from unnest(waiting[1001:]) as pk));
      waiting := waiting[:1000];
    end if;
  end if;
  done := done + cardinality(step.changed) + told;
  refused := refused + (select count(*) from jsonb_object_keys(step.refused));
  reasons := coalesce((select jsonb_object_agg(key, value)
                         from (select * from jsonb_each(reasons || step.refused) limit 20) e), '{}');
  has_moved := has_moved or cardinality(taken) + told > 0;
  is_over := place is null and back is null and waiting = '{}';
  parents := step.parents;
  update jobqueue
     set jq_itemsprocessed = done, jq_itemsfailed = refused, jq_endtext = done || ' jobs so far',
         jq_result = jsonb_build_object('place', place, 'left', waiting, 'back', back, 'again', is_again,
                                        'given', given, 'reasons', reasons)
   where jq_pk = command;
  return next;
end $$;

-- Return what became of jobs that could not be taken, those that still are in one of these states: locked by others; in
-- hand of this owner; in hand of others. Jobs in hand are returned if they `may_be_ended` and no command has done that.
create function drover.look_at_rest(
  jobs bigint[], states drover.job_state[], owner uuid, may_be_ended boolean, out locked bigint[], out ours bigint[],
  out theirs bigint[])
language sql stable set search_path = drover, pg_temp as $$
  with rest as materialized (
    select jq_pk, case
             when is_recorded then case when 'claimed' = any (states) and may_be_ended then 'in hand' end
             when not jq_state = any (states) then null
             when jq_state in ('claimed', 'running')
             then case when may_be_ended and jq_wanted is null then 'in hand' end
             else 'locked' end as is_so,
           coalesce(jq_owner, (select hand_owner from in_hand where jq_pk = any (hand_jobs)
                                order by hand_since desc limit 1)) as has
      from unnest(jobs) as pk cross join lateral (
        select j.jq_pk, j.jq_state, j.jq_wanted, j.jq_owner,
               j.jq_state = 'queued' and j.jq_unmet = 0 and j.jq_wait_until is null and not has_token(j) as is_recorded
          from jobqueue j where j.jq_pk = pk offset 0) j)
  select array(select jq_pk from rest where is_so = 'locked' or is_so = 'in hand' and has is null),
         array(select jq_pk from rest where is_so = 'in hand' and has = owner),
         array(select jq_pk from rest where is_so = 'in hand' and has <> owner)
$$;

-- Note in the rows of jobs that this owner has in hand what a command wants of them, as query set_wanted does; return
-- those that no other session has locked.
create function drover.want_jobs(jobs bigint[], owner uuid, wanted text) returns bigint[]
language plpgsql set search_path = drover, pg_temp as $$
declare
  noted bigint[];
begin
  if jobs = '{}' then
    return jobs;
  end if;
  perform from scheduler_group where group_owner = owner for share;  -- no other daemon takes over meanwhile
  if not found then
    return '{}';
  end if;
  with free as materialized (
    select j.jq_pk, (select min(hand_since) from in_hand where j.jq_pk = any (hand_jobs)) as since
      from jobqueue j
     where j.jq_pk = any (jobs)
       and (jq_owner = owner and jq_state in ('claimed', 'running')
            or jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and not has_token(j))
       for no key update skip locked),
  done as (
    update jobqueue j
       set jq_wanted = wanted, jq_state = case jq_state when 'queued' then 'claimed' else jq_state end,
           jq_attempt = jq_attempt + (jq_state = 'queued')::integer, jq_owner = owner,
           jq_starttime = coalesce(jq_starttime, free.since),
           jq_endtext = case jq_state when 'queued' then 'in progress' else jq_endtext end
      from free where j.jq_pk = free.jq_pk
    returning j.jq_pk)
  select coalesce(array_agg(jq_pk), '{}') into noted from done;
  return noted;
end $$;
