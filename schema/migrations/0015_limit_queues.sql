-- Limits: how many jobs may wait in a queue, how long names are; how often a job was blocked; and alerts.

-- ---------------------------------------------------------------- how many jobs may wait in a queue

alter table drover.queue
  add column queue_max_length      integer check (queue_max_length > 0),  -- null: any number
  add column queue_max_length_file integer;

-- Count the jobs of a queue that wait and could be claimed, up to so many.
create function drover.waiting_in(queue_name text, most integer) returns bigint
  language sql stable set search_path = drover, pg_temp as $$
  with recursive place as (  -- each type that has waiting jobs
    (select claim_type as type from claimable order by claim_type limit 1)
     union all
    select n.claim_type from place cross join lateral (
      select claim_type from claimable where claim_type > type order by claim_type limit 1) n)
  select coalesce(sum(size), 0)
    from (select coalesce(cardinality(claim_jobs), 1) as size
            from place join claimable on claim_type = type and claim_queue = queue_name limit most) tokens
$$;

-- Refuse jobs for a queue in which as many wait as may. What the scheduler queues itself is let in.
create function drover.limit_queues() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  one     record;
  waiting bigint;
begin
  for one in
    select distinct queue_name as name, queue_max_length as most
      from queue join arrived on jq_queue = queue_name
     where queue_max_length is not null and jq_type not in ('command', 'cleanup', 'notify')
       and coalesce(jq_unique_key not like 'drover.tester.%', true)
     order by queue_name
  loop
    perform pg_advisory_xact_lock(hashtextextended('drover.limit_queues ' || one.name, 0));
    waiting := drover.waiting_in(one.name, one.most + 1);
    if waiting > one.most then
      raise exception 'queue % is full: at most % jobs may wait in it', one.name, one.most
        using errcode = 'check_violation',
              hint = 'Try again when some have started, or have an operator raise it: drover queue length.';
    end if;
  end loop;
  return null;
end $$;

-- Enabled by drover.install_routes as long as a queue has a limit. Its name comes behind jobqueue_offer_new, which
-- makes what is counted.
-- what is counted.
create trigger jobqueue_queue_limit after insert on drover.jobqueue referencing new table as arrived
  for each statement execute function drover.limit_queues();
alter table drover.jobqueue disable trigger jobqueue_queue_limit;

-- As before, and whether inserts ask for limits is as the queues say.
create or replace function drover.is_route_stale() returns boolean
  language plpgsql stable security definer set search_path = drover, pg_temp as $$
declare
  body text;
begin
  body := drover.routes();
  return (select prosrc is distinct from coalesce(body, 'select null::text') from pg_catalog.pg_proc
           where oid = 'drover.route(drover.jobqueue, drover.job, text)'::regprocedure)
      or (select bool_or((tgenabled = 'D') = case tgname when 'jobqueue_route' then body is not null
                           else exists (select from queue where queue_max_length is not null) end)
            from pg_catalog.pg_trigger
           where tgrelid = 'drover.jobqueue'::regclass and tgname in ('jobqueue_route', 'jobqueue_queue_limit'));
exception when others then
  return true;
end $$;

create or replace function drover.install_routes() returns text
  language plpgsql security definer set search_path = drover, pg_temp set lock_timeout = '1500ms' as $$
declare
  body text;
  one  record;
begin
  perform pg_advisory_xact_lock(hashtextextended('drover.install_routes', 0));
  body := drover.routes();
  execute format('create or replace function drover.route(job drover.jobqueue, above drover.job, home text) '
                 'returns text language sql stable as %L', coalesce(body, 'select null::text'));
  perform drover.route(null, null, null);
  for one in
    select tgname as name, tgenabled <> 'D' as is_on, is_wanted
      from pg_catalog.pg_trigger
      join (values ('jobqueue_route', body is not null),
                   ('jobqueue_queue_limit', exists (select from queue where queue_max_length is not null)))
           as w(name, is_wanted) on w.name = tgname
     where tgrelid = 'drover.jobqueue'::regclass
  loop
    if one.is_wanted <> one.is_on then
      execute format('alter table drover.jobqueue %s trigger %I',
                     case when one.is_wanted then 'enable' else 'disable' end, one.name);
    end if;
  end loop;
  return null;
exception when others then
  return sqlerrm;
end $$;

-- ---------------------------------------------------------------- lengths of names

-- An operator may let in less than the 2,000 bytes of a name: as few as 64.
alter table drover.size_limit drop constraint size_limit_limit_bytes_check;
alter table drover.size_limit add constraint size_limit_limit_bytes_check check (
  case when limit_column in ('jq_args', 'jq_variables', 'job_data') then limit_bytes between 65536 and 16777216
       else limit_bytes between 64 and 2000 end);
insert into drover.size_limit values ('jq_name', 2000), ('job_name', 2000), ('job_tenant', 2000);

create or replace function drover.refuse_long(columns text[], bytes integer[]) returns void
  language plpgsql set search_path = drover, pg_temp as $$
declare
  wrong record;
begin
  select name, size, coalesce(limit_bytes, 2000) as most, coalesce(limit_bytes, 2000) > 2000 as is_data into wrong
    from unnest(columns, bytes) as u(name, size) left join size_limit on limit_column = name
   where size > coalesce(limit_bytes, 2000) limit 1;
  if wrong.is_data then
    raise exception '% has % bytes, and % are let in: %', wrong.name, wrong.size, wrong.most,
      'put them in a file or a table and name that, or ask an operator to raise drover.size_limit'
      using errcode = 'check_violation';
  elsif found then
    raise exception '% has % bytes, and % are let in: choose a shorter one', wrong.name, wrong.size, wrong.most
      using errcode = 'check_violation';
  end if;
end $$;

create or replace trigger jobqueue_limit before insert on drover.jobqueue for each row
  when (octet_length(new.jq_args) > 65536
        or pg_column_size(new.jq_variables) > 65536 or octet_length(new.jq_variables::text) > 65536
        or octet_length(new.jq_name) > 64 or octet_length(new.jq_unique_key) > 2000
        or octet_length(new.jq_runonpfile) > 2000 or octet_length(new.jq_key) > 2000)
  execute function drover.limit_job();
create or replace trigger job_limit before insert on drover.job for each row
  when (octet_length(new.job_name) > 64 or octet_length(new.job_tenant) > 64 or new.job_data is not null)
  execute function drover.limit_group();

-- ---------------------------------------------------------------- how often a job was blocked

alter table drover.jobqueue add column jq_blocked_count integer;  -- null: never; a plain job has no byte of it

create or replace function drover.enter_recovery(job drover.jobqueue) returns void
  language plpgsql set search_path = drover, pg_temp as $$
declare
  named    text := drover.condition_of(job.jq_endtext);
  in_group text := coalesce((select queue_group from queue where queue_name = job.jq_queue), 'default');
  policy   recovery_policy;
  tenant   text := case when not starts_with(named, 'quota:') then drover.tenant_of(job.jq_submitter) end;
  entered  bigint;
begin
  select * into policy from recovery_policy
   where policy_group = in_group and policy_condition in (named, '*')
     and (policy_types = '{}' or job.jq_type = any (policy_types))
   order by policy_condition = '*', policy_types = '{}', policy_name = '', policy_name limit 1;
  insert into recovery as r (recovery_group, recovery_tenant, recovery_condition, recovery_policy, recovery_text,
                             recovery_next)
  values (in_group, tenant, named, coalesce(policy.policy_name, ''), job.jq_endtext,
          now() + make_interval(secs => coalesce((policy.policy_rules #>> '{steps,0,1}')::float8, 60)))
  on conflict (recovery_group, coalesce(recovery_tenant, ''), recovery_condition, recovery_policy) do update
    set recovery_text = excluded.recovery_text, recovery_came = r.recovery_came + 1
  returning recovery_pk into entered;
  insert into blocked (blocked_jq_fk, blocked_recovery, blocked_queue, blocked_rank, blocked_queued)
  values (job.jq_pk, entered, coalesce(job.jq_queue, ''), drover.rank(job.jq_urgent, job.jq_priority), job.jq_queued)
  on conflict (blocked_jq_fk) do update
    set blocked_recovery = excluded.blocked_recovery, blocked_since = now(), blocked_queue = excluded.blocked_queue,
        blocked_rank = excluded.blocked_rank, blocked_queued = excluded.blocked_queued;
  update jobqueue set jq_blocked_count = coalesce(jq_blocked_count, 0) + 1 where jq_pk = job.jq_pk;
  perform drover.notify('drover_recovery', '');
end $$;

create or replace view drover.jobs as
select j.jq_pk, jq_job_fk, jq_name, jq_type, jq_args, jq_variables, jq_msq, jq_runonpfile, jq_host, jq_key, jq_tolerate,
       jq_repeat, jq_queue, jq_urgent, jq_priority, jq_not_before, jq_not_after, jq_wait_until, jq_expires_at,
         jq_live_key,
       jq_max_interruptions, jq_retries, jq_timeout, jq_unique_key, jq_delete, jq_mode,
       case when r.jq_pk is null then jq_state else 'claimed' end as jq_state,
       case when r.jq_pk is null then j.jq_attempt else j.jq_attempt + 1 end as jq_attempt,
       coalesce(jq_owner, hand_owner) as jq_owner,
       jq_schedinfo, jq_interruptions, jq_failures, jq_rescued, jq_retry_at, jq_unmet,
       jq_has_children, jq_wanted, jq_queued, coalesce(jq_starttime, hand_since) as jq_starttime, jq_endtime,
       case when r.jq_pk is null then jq_endtext else 'in progress' end as jq_endtext, jq_end_bits, jq_exitcode,
       jq_signal, jq_result, jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_checkpoint, jq_elapsedtime,
       jq_processedtime, jq_expected_end, jq_done_by, jq_done_host, jq_done_pid, jq_submitter, jq_resubmit_of,
       jq_first_start, jq_attempt_start,
       drover.end_code(jq_state, jq_type, jq_end_bits, jq_endtext, jq_exitcode, jq_signal) as jq_end_code,
       coalesce(jq_blocked_count, 0) as jq_blocked_count
  from drover.jobqueue j left join drover.recorded r on r.jq_pk = j.jq_pk;

create or replace view drover.my_jobs with (security_barrier) as
select * from drover.jobs where jq_submitter = session_user order by jq_pk desc;

create or replace view drover.jobs_masked as
select jq_pk, jq_job_fk, jq_name, jq_type, length(jq_args) as jq_args_length, jq_msq, jq_runonpfile, jq_host, jq_key,
  jq_tolerate,
       jq_repeat, jq_queue, jq_urgent, jq_priority, jq_not_before, jq_not_after, jq_wait_until, jq_max_interruptions,
         jq_retries,
       jq_timeout, jq_mode, jq_state, jq_attempt, jq_owner, jq_schedinfo, jq_interruptions, jq_failures, jq_rescued,
         jq_retry_at,
       jq_unmet, drover.word(jq_wanted, 1) as jq_wanted, jq_queued, jq_starttime, jq_endtime, jq_end_bits, jq_exitcode,
         jq_signal,
       jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_elapsedtime, jq_processedtime, jq_expected_end,
       jq_submitter, jq_done_host, jq_done_pid, jq_end_code, jq_blocked_count
  from drover.jobs;

create or replace view drover.our_jobs with (security_barrier) as
select * from drover.jobs
 where jq_submitter = any ((select drover.fellows())::name[])
    or jq_pk = any ((select drover.shared_jobs())::bigint[])
 order by jq_pk desc;

-- As before, whatever columns the view has behind those of the table.
create or replace function drover.job_resubmit(pk bigint) returns bigint
  language plpgsql set search_path = drover, pg_temp as $$
declare
  old     record;
  columns jsonb;
  again   bigint;
begin
  if drover.may_command() then
    select * into old from drover.jobqueue where jq_pk = pk;
  else
    select * into old from drover.my_jobs where jq_pk = pk;
  end if;
  if old.jq_pk is null then
    raise exception 'no job % of yours', coalesce(pk::text, '?') using errcode = 'no_data_found';
  elsif old.jq_endtime is null then
    raise exception 'job % has not ended: it is %', pk, old.jq_state using errcode = 'check_violation';
  end if;
  select jsonb_object_agg(key, value) || jsonb_build_object('jq_resubmit_of', pk) into columns
    from jsonb_each(to_jsonb(old))
   where value not in ('null', 'false')
     and key = any ('{jq_job_fk,jq_type,jq_args,jq_variables,jq_msq,jq_runonpfile,jq_host,jq_key,jq_tolerate,jq_repeat,
           jq_queue,jq_urgent,jq_priority,jq_max_interruptions,jq_retries,jq_timeout,jq_unique_key,jq_delete,
           jq_mode}'::text[]);
  execute format('insert into drover.jobqueue (%1$s) select %1$s '
                 'from jsonb_populate_record(null::drover.jobqueue, $1) returning jq_pk',
                 (select string_agg(quote_ident(key), ', ') from jsonb_object_keys(columns) as key))
    into again using columns;
  return again;
end $$;

-- ---------------------------------------------------------------- alerts

-- Events of kind alert: what drover.impossible has shown for half a minute; for subscriptions of the site.
alter table drover.event drop constraint event_ev_kind_check;
alter table drover.event add constraint event_ev_kind_check
  check (ev_kind in ('status', 'error', 'subscription', 'share', 'user', 'alternate', 'dead', 'alert'));
alter table drover.subscription drop constraint subscription_sub_kind_check;
alter table drover.subscription add constraint subscription_sub_kind_check
  check (sub_kind in ('all', 'status', 'error', 'subscription', 'share', 'user', 'alternate', 'dead', 'alert'));
alter table drover.subscription add constraint alerts_are_of_the_site check (sub_kind <> 'alert' or sub_scope = 'site');

create or replace function drover.subscribers(kind text, job bigint, owner name, tenant text)
  returns setof drover.subscription language sql stable as $$
  select * from drover.subscription
   where sub_key = any (case when kind in ('alternate', 'dead', 'alert') then array['site:']
                             else array['job:' || job, 'owner:' || owner, 'tenant:' || tenant, 'site:'] end)
     and sub_kind in ('all', kind) and sub_enabled and (sub_expires is null or sub_expires > now())
$$;

-- What drover.impossible showed at the last look.
create table drover.alert (
  alert_rule    text not null,
  alert_jq_fk   bigint not null,  -- 0: no job
  alert_since   timestamptz not null default now(),
  alert_is_told boolean not null default false,
  primary key (alert_rule, alert_jq_fk)
);

-- Tell the site what cannot be, each once as long as it is so; `most` at a time. Return how many were told.
create function drover.find_alerts(most integer) returns integer
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  one  record;
  made integer := 0;
begin
  if not exists (select from drover.subscribers('alert', null, null, null)) then
    delete from alert;
    return 0;
  end if;
  for one in
    with found as materialized (
      select rule, coalesce(jq_pk, 0) as job, min(what) as what, min(next) as next
        from impossible group by 1, 2 order by 1, 2 limit most),
    over as (delete from alert where (alert_rule, alert_jq_fk) not in (select rule, job from found)),
    seen as (
      insert into alert as a (alert_rule, alert_jq_fk) select rule, job from found
      on conflict (alert_rule, alert_jq_fk) do update set alert_is_told = true
        where not a.alert_is_told and a.alert_since <= now() - interval '30 seconds'
      returning *)
    select job, what, next from seen join found on rule = alert_rule and job = alert_jq_fk
     where alert_is_told order by rule, job
  loop
    perform drover.tell_site('alert', coalesce('job ' || nullif(one.job, 0), 'schedules') || ' ' || one.what
                                      || ': ' || replace(one.next, 'JOB', one.job::text));
    made := made + 1;
  end loop;
  return made;
end $$;
