-- What work waits for: times and conditions; and inserts that cost less.

-- ---------------------------------------------------------------- the group of a job, without a foreign key

-- A foreign key costs every inserted row an event, also where the column is null; these triggers are asked only for
-- rows of a group. They hold what the key held (decision 0036).
alter table drover.jobqueue drop constraint jobqueue_jq_job_fk_fkey;

-- Refuse a job of a group that is not there. The lock makes a deletion of the group wait for this transaction.
create function drover.need_group() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform from job where job_pk = new.jq_job_fk for key share;
  if not found then
    raise exception 'no job group has job_pk %', new.jq_job_fk
      using errcode = 'foreign_key_violation', constraint = 'jobqueue_jq_job_fk_fkey';
  end if;
  return null;
end $$;

create trigger jobqueue_need_group after insert or update of jq_job_fk on drover.jobqueue for each row
  when (new.jq_job_fk is not null) execute function drover.need_group();

-- Refuse the deletion of a group that has jobs. A transaction with one snapshot would not see those committed since.
create function drover.keep_group() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    raise exception 'a job group is deleted in a transaction that is read committed'
      using errcode = 'feature_not_supported';
  elsif exists (select from jobqueue where jq_job_fk = old.job_pk) then
    raise exception 'job group % has jobs: remove them first', old.job_pk
      using errcode = 'foreign_key_violation', constraint = 'jobqueue_jq_job_fk_fkey';
  end if;
  return null;
end $$;

create trigger job_keep_group after delete on drover.job for each row execute function drover.keep_group();

-- ---------------------------------------------------------------- retries, also of a type

-- 0 is what the configuration of the agent type says, -1 is none.
alter table drover.jobqueue drop constraint jobqueue_jq_retries_check;
alter table drover.jobqueue add constraint jobqueue_jq_retries_check check (jq_retries >= -1);

-- ---------------------------------------------------------------- recovery: jobs that are blocked on a condition

-- What to do about a condition, as the configuration of a group says. A job whose agent reports a condition follows the
-- first policy that names it: condition and type, condition, type, the one for all others, whose name is empty.
create table drover.recovery_policy (
  policy_group     text not null,
  policy_name      text not null,
  policy_condition text not null,             -- '*': any
  policy_types     text[] not null,           -- agent types; none: all
  policy_rules     jsonb not null,            -- see scheduler/policy/recovery.py
  primary key (policy_group, policy_name)
);

-- The conditions that jobs of a group are blocked on: one row, whatever the number of jobs.
create table drover.recovery (
  recovery_pk        bigint generated always as identity primary key,
  recovery_group     text not null,
  recovery_tenant    text,
  recovery_condition text not null,
  recovery_policy    text not null,
  recovery_text      text,                    -- what was reported last
  recovery_since     timestamptz not null default now(),
  recovery_tries     integer not null default 0,  -- checks after which the condition was still there
  recovery_came      integer not null default 1,  -- jobs that were blocked since the last check
  recovery_next      timestamptz not null,    -- check
  recovery_tester    bigint                   -- the job that finds out whether the condition is cleared
);
create unique index recovery_of_condition
  on drover.recovery (recovery_group, coalesce(recovery_tenant, ''), recovery_condition, recovery_policy);
create index recovery_order on drover.recovery (recovery_group, recovery_next, recovery_pk);
create index recovery_tested on drover.recovery (recovery_group) where recovery_tester is not null;

-- The blocked jobs, each with the place in the queue that it had. A row of drover.jobqueue is blocked if and only if it
-- has a row here: the trigger of its moves sees to that, whoever moves it. No foreign key to drover.jobqueue, which
-- would make the removal of every job dearer.
create table drover.blocked (
  blocked_jq_fk    bigint primary key,
  blocked_recovery bigint not null references drover.recovery,
  blocked_since    timestamptz not null default now(),
  blocked_queue    text not null,
  blocked_rank     text collate "C" not null,
  blocked_queued   timestamptz not null
);
create index blocked_order on drover.blocked (blocked_recovery, blocked_rank, blocked_queued, blocked_jq_fk);

-- Return the condition that a job is blocked on, by its jq_endtext: `blocked: CONDITION TEXT`.
create function drover.condition_of(said text) returns text language sql immutable parallel safe as $$
  select case when said is null or said in ('', 'blocked: the agent said BLOCKED') then 'unnamed'
              else left(
                drover.word(case when starts_with(said, 'blocked: ') then substr(said, 10) else said end, 1), 100)
         end
$$;

-- Enter a job that is blocked now under its condition. A condition that is new is checked after the first wait of its
-- policy, one that is known when its next check is due: a job that tried again in vain waits as long as the others.
create function drover.enter_recovery(job drover.jobqueue) returns void
  language plpgsql set search_path = drover, pg_temp as $$
declare
  named    text := drover.condition_of(job.jq_endtext);
  in_group text := coalesce((select queue_group from queue where queue_name = job.jq_queue), 'default');
  policy   recovery_policy;
  entered  bigint;
begin
  select * into policy from recovery_policy
   where policy_group = in_group and policy_condition in (named, '*')
     and (policy_types = '{}' or job.jq_type = any (policy_types))
   order by policy_condition = '*', policy_types = '{}', policy_name = '', policy_name limit 1;
  insert into recovery as r (recovery_group, recovery_condition, recovery_policy, recovery_text, recovery_next)
  values (in_group, named, coalesce(policy.policy_name, ''), job.jq_endtext,
          now() + make_interval(secs => coalesce((policy.policy_rules #>> '{steps,0,1}')::float8, 60)))
  on conflict (recovery_group, coalesce(recovery_tenant, ''), recovery_condition, recovery_policy) do update
    set recovery_text = excluded.recovery_text, recovery_came = r.recovery_came + 1
  returning recovery_pk into entered;
  insert into blocked (blocked_jq_fk, blocked_recovery, blocked_queue, blocked_rank, blocked_queued)
  values (job.jq_pk, entered, coalesce(job.jq_queue, ''), drover.rank(job.jq_urgent, job.jq_priority), job.jq_queued)
  on conflict (blocked_jq_fk) do update
    set blocked_recovery = excluded.blocked_recovery, blocked_since = now(), blocked_queue = excluded.blocked_queue,
        blocked_rank = excluded.blocked_rank, blocked_queued = excluded.blocked_queued;
  perform drover.notify('drover_recovery', '');
end $$;

-- As before, and a job that is blocked has a row in drover.blocked as long as it is. A tester that is blocked ends.
create or replace function drover.moved() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  by_record boolean := old.jq_state = 'queued' and new.jq_attempt > old.jq_attempt and new.jq_type <> 'command';
  was       boolean := drover.is_claimable(old) and not by_record;
  is_so     boolean := drover.is_claimable(new);
begin
  if old.jq_state <> new.jq_state then
    if not (case old.jq_state
      when 'held'    then new.jq_state in ('queued', 'skipped', 'cancelled', 'ignored')
      when 'queued'  then new.jq_state in ('claimed', 'held', 'blocked', 'cancelled', 'skipped', 'failed')
                          or (new.jq_state = 'done' and new.jq_type = 'command')
                          or (new.jq_state in ('running', 'done') and by_record)
      when 'claimed' then new.jq_state in ('running', 'queued', 'done', 'failed', 'blocked', 'cancelled')
      when 'running' then new.jq_state in ('done', 'queued', 'failed', 'blocked', 'cancelled')
      when 'blocked' then new.jq_state in ('queued', 'held', 'failed', 'cancelled')
      when 'failed'  then new.jq_state = 'queued'
      else false end) then
      raise exception 'job % may not move from % to %', old.jq_pk, old.jq_state,
        new.jq_state using errcode = 'check_violation';
    end if;
    update drover.jobqueue
       set jq_expires_at = case when jq_state in ('held', 'queued') and jq_attempt = 0 then jq_not_after end,
           jq_live_key = case when jq_state in ('held', 'queued', 'claimed', 'running', 'blocked')
             then jq_unique_key end
     where jq_pk = new.jq_pk and (jq_not_after is not null or jq_unique_key is not null);
    if old.jq_state = 'blocked' then
      delete from drover.blocked where blocked_jq_fk = old.jq_pk;
    elsif new.jq_state = 'blocked' and new.jq_unique_key like 'drover.tester.%' then
      update drover.jobqueue  -- its answer is that the condition is still there: it does not wait for one itself
         set jq_state = 'cancelled', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(),
             jq_end_bits = 2, jq_wait_until = null
       where jq_pk = new.jq_pk;
    elsif new.jq_state = 'blocked' then
      perform drover.enter_recovery(new);
    end if;
    perform drover.notify('drover_recovery', '')  -- a tester has an answer
      where new.jq_unique_key like 'drover.tester.%' and new.jq_endtime is not null;
  end if;
  if was and (not is_so or (old.jq_queue, coalesce(old.jq_host, ''), old.jq_urgent, old.jq_priority, old.jq_queued)
                           <> (new.jq_queue, coalesce(new.jq_host, ''), new.jq_urgent, new.jq_priority,
                             new.jq_queued)) then
    perform drover.withdraw(old);
    was := false;
  end if;
  if is_so and not was then
    perform drover.offer(new, new.jq_attempt > 0 and new.jq_queued = old.jq_queued);
  end if;
  return null;
end $$;

-- Say whether that is over what a policy without a tester waits for: `host NAME`, `agent TYPE` or `queue NAME` that can
-- do no work at present.
create function drover.is_over(what text) returns boolean language sql stable as $$
  select case drover.word(what, 1)
    when 'host' then exists (
      select from drover.host where host_name = drover.word(what, 2) and host_present and host_enabled
         and coalesce(host_down_until <= now(), true))
    when 'agent' then exists (
      select from drover.agent where agent_type = drover.word(what, 2) and agent_present and agent_enabled
         and coalesce(agent_blocked_until <= now(), true))
    when 'queue' then exists (
      select from drover.queue where queue_name = drover.word(what, 2) and queue_present and not queue_paused
         and coalesce(queue_concurrency > (
           select count(distinct jq_pk) from drover.in_hand cross join lateral unnest(hand_jobs) as u(pk)
             join drover.jobqueue j on j.jq_pk = u.pk
            where jq_queue = queue_name and (jq_state in ('claimed', 'running')
                  or jq_pk in (select r.jq_pk from drover.recorded r))), true))
    else false end
$$;

-- The conditions with the jobs that wait for them.
create view drover.conditions as
select recovery_pk, recovery_group as condition_group, recovery_condition as condition, recovery_policy as policy,
       recovery_since as since, recovery_tries as tries, recovery_next as next_check, recovery_tester as tester,
       jobs, oldest, recovery_text as text
  from drover.recovery
 cross join lateral (
   select count(*) as jobs, min(blocked_since) as oldest from drover.blocked where blocked_recovery = recovery_pk) b
 where jobs > 0;

-- The blocked jobs, each with its condition; and those of the own login.
create view drover.blocked_jobs as
select blocked_jq_fk as jq_pk, recovery_condition as condition, recovery_policy as policy, blocked_since,
       recovery_since as condition_since, recovery_tries as tries, recovery_next as next_check,
       recovery_tester as tester, blocked_queue, blocked_rank, blocked_queued
  from drover.blocked join drover.recovery on recovery_pk = blocked_recovery;

create view drover.my_blocked with (security_barrier) as
select b.* from drover.blocked_jobs b join drover.jobqueue j on j.jq_pk = b.jq_pk where j.jq_submitter = session_user;

-- Of a blocked job: since when, and when the next check is.
create view drover.awaited as
select blocked_jq_fk as jq_pk,
       'waits for the end of a condition since ' || date_trunc('second', blocked_since) || ', next check '
       || date_trunc('second', recovery_next)
       || case recovery_tries when 0 then '' else ', checks in vain: ' || recovery_tries end as says
  from drover.blocked join drover.recovery on recovery_pk = blocked_recovery;

create or replace view drover.why as
select r.jq_pk, r.jq_type, r.jq_state, coalesce(a.says, r.says) || coalesce(': ' || r.text, '') as reason
  from drover.reason r left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked';

create or replace view drover.why_masked as
select r.jq_pk, r.jq_type, r.jq_state, coalesce(a.says, r.says) as reason
  from drover.reason r left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked';

-- ---------------------------------------------------------------- schedules

-- What is queued at which times. Exactly one of at, every and cron is given. The times are computed by the scheduler
-- (scheduler/model/schedule_times.py), which reads the rows whose schedule_due has come, along an index.
create table drover.schedule (
  schedule_name      text primary key check (schedule_name ~ '^[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}$'),
  schedule_at        timestamptz check (isfinite(schedule_at) and schedule_at < '9000-01-01 00:00:00Z'),
  schedule_every     interval check (schedule_every >= '1 second' and schedule_every <= '100 years'),
  schedule_cron      text check (schedule_cron ~ '^(@[a-z]+|[0-9A-Za-z*,/#-]+( +[0-9A-Za-z*,/#-]+){4})$'
                                 and length(schedule_cron) <= 200),
  schedule_zone      text not null default 'UTC',
  schedule_catch_up  text not null default 'one' check (schedule_catch_up in ('one', 'all', 'none')),
  schedule_jitter    interval not null default '0' check (schedule_jitter >= '0' and schedule_jitter <= '1 day'),
  schedule_overlap   text not null default 'queue' check (schedule_overlap in ('queue', 'skip')),
  schedule_enabled   boolean not null default true,
  schedule_job       jsonb not null,  -- columns of a job; or {"group": columns, "jobs": [columns, name, after]}
  schedule_type      text generated always as (coalesce(schedule_job ->> 'jq_type', 'job group')) stored,
  schedule_submitter name not null default session_user,
  schedule_group     text,  -- whose configuration names it; null: it was added by hand
  schedule_file      jsonb,  -- what that says: if it changes, it wins
  schedule_from      timestamptz not null default now(),  -- `every` counts from here
  schedule_next      timestamptz,  -- the next start; null: there is none, or it is not computed yet
  schedule_due       timestamptz default '-infinity',  -- when that is looked at, later by the jitter; null: never
  schedule_computed  timestamptz,  -- when these two were, by the clock of that time
  schedule_last      timestamptz,  -- the last start
  schedule_jobs      bigint[] not null default '{}',  -- that it queued
  schedule_reason    text,  -- why there is no next start, or why the last one queued nothing
  constraint schedule_is_at_every_or_cron check (num_nonnulls(schedule_at, schedule_every, schedule_cron) = 1),
  constraint schedule_jitter_is_less_than_every
    check (schedule_jitter = '0' or schedule_jitter < schedule_every is not false)
);
create index schedule_due on drover.schedule (schedule_due) where schedule_enabled;
create index schedule_computed on drover.schedule (schedule_computed)
  where schedule_enabled and schedule_due is not null;

-- Every start, once: of those that are tried again, after a crash or by two schedulers, the second inserts nothing.
create table drover.schedule_start (
  start_schedule text not null references drover.schedule on delete cascade,
  start_due_at   timestamptz not null,
  start_at       timestamptz not null default now(),
  start_jobs     bigint[] not null default '{}',
  start_text     text,  -- why it queued nothing
  primary key (start_schedule, start_due_at)
);

-- Whether the session is that of a scheduler.
create function drover.is_scheduler() returns boolean language sql stable set search_path = drover, pg_temp as $$
  select coalesce(bool_or(pg_has_role(session_user, oid, 'member')), false)
    from pg_catalog.pg_roles where rolname = 'drover_scheduler'
$$;

-- A schedule of several jobs has edges between jobs of the submitter of the schedule, which a scheduler inserts: it
-- has no right to insert any but by the functions below.
do $$
declare
  before text := 'is_free boolean := drover.may_command();';
  body   text := pg_get_functiondef('drover.add_edges'::regproc);
begin
  if position(before in body) = 0 then
    raise exception 'drover.add_edges is not as expected';
  end if;
  execute replace(body, before, 'is_free boolean := drover.may_command() or drover.is_scheduler();');
end $$;

-- Queue one job by its columns, and return its number.
create function drover.queue_columns(columns jsonb, submitter name, job_group bigint) returns bigint
language plpgsql set search_path = drover, pg_temp as $$
declare
  known text[] := '{jq_type,jq_args,jq_variables,jq_msq,jq_runonpfile,jq_host,jq_key,jq_tolerate,jq_repeat,jq_queue,
    jq_urgent,jq_priority,jq_max_interruptions,jq_retries,jq_timeout,jq_unique_key,jq_delete}';
  wrong text;
  pk    bigint;
begin
  select key into wrong from jsonb_object_keys(columns) as key where key <> all (known) limit 1;
  if found then
    raise exception 'the job of a schedule has no %: there are %', quote_literal(left(wrong, 64)),
      array_to_string(known, ', ') using errcode = 'undefined_parameter';
  elsif coalesce(columns ->> 'jq_type', '') = '' then
    raise exception 'the job of a schedule needs a jq_type' using errcode = 'not_null_violation';
  elsif columns ->> 'jq_type' = 'cleanup' then
    raise exception 'a clean-up comes from the jq_delete of a job that was done: it is not scheduled'
      using errcode = 'check_violation';
  elsif columns ->> 'jq_type' = 'command'
        and not exists (select from verb where verb_name = drover.word(columns ->> 'jq_args', 1)) then
    raise exception 'no such command: %', quote_nullable(left(drover.word(columns ->> 'jq_args', 1), 64))
      using errcode = 'invalid_parameter_value';
  elsif columns ->> 'jq_type' = 'command' and job_group is not null then
    raise exception 'a command waits for nothing: give it a schedule of its own' using errcode = 'check_violation';
  end if;
  columns := columns || jsonb_build_object('jq_submitter', submitter);
  if job_group is not null then
    columns := columns || jsonb_build_object('jq_job_fk', job_group);
  end if;
  execute format('insert into drover.jobqueue (%1$s) select %1$s from jsonb_populate_record(null::drover.jobqueue, $1)
                  returning jq_pk',
                 (select string_agg(quote_ident(key), ', ') from jsonb_object_keys(columns) as key))
    into pk using columns;
  return pk;
end $$;

-- Queue what a schedule asks for: a job, a command, or a group of jobs with edges between them. Jobs without an edge
-- to one of the group wait until these others (`behind`) have ended. Return the numbers of the jobs.
create function drover.queue_scheduled(job jsonb, submitter name, behind bigint[]) returns bigint[]
language plpgsql set search_path = drover, pg_temp as $$
declare
  jobs  bigint[] := '{}';
  tops  bigint[] := '{}';
  named jsonb := '{}';
  own   bigint;
  pk    bigint;
  one   jsonb;
  wrong text;
begin
  if jsonb_typeof(job) is distinct from 'object' then
    raise exception 'the job of a schedule is one JSON object' using errcode = 'invalid_parameter_value';
  elsif not job ? 'jobs' then
    jobs := array[drover.queue_columns(job, submitter, null)];
    tops := case when job ->> 'jq_type' = 'command' then '{}'::bigint[] else jobs end;
  elsif jsonb_typeof(job -> 'jobs') <> 'array' or jsonb_array_length(job -> 'jobs') not between 1 and 1000 then
    raise exception '"jobs" is a list of 1 to 1,000 jobs' using errcode = 'invalid_parameter_value';
  elsif job - '{jobs,group}'::text[] <> '{}' or jsonb_typeof(coalesce(job -> 'group', '{}')) <> 'object'
        or (job -> 'group') - '{job_name,job_priority,job_data,job_tenant}'::text[] <> '{}' then
    raise exception 'a group of jobs has "jobs", and "group" with job_name, job_priority, job_data and job_tenant'
      using errcode = 'undefined_parameter';
  else
    insert into job (job_name, job_priority, job_data, job_tenant, job_user)
    select g.job_name, coalesce(g.job_priority, 0), g.job_data, g.job_tenant, submitter
      from jsonb_populate_record(null::drover.job, coalesce(job -> 'group', '{}')) g
    returning job_pk into own;
    for one in select value from jsonb_array_elements(job -> 'jobs') loop
      if jsonb_typeof(one) <> 'object' or jsonb_typeof(coalesce(one -> 'after', '[]')) <> 'array' then
        raise exception 'a job of a group is an object, and its "after" a list of names'
          using errcode = 'invalid_parameter_value';
      elsif named ? (one ->> 'name') then
        raise exception 'two jobs of the group are called %', quote_literal(left(one ->> 'name', 64))
          using errcode = 'unique_violation';
      end if;
      pk := drover.queue_columns(one - '{name,after}'::text[], submitter, own);
      jobs := jobs || pk;
      tops := tops || case when coalesce(one -> 'after', '[]') = '[]' then pk end;
      named := named || case when one ? 'name' then jsonb_build_object(one ->> 'name', pk) else '{}' end;
    end loop;
    select name into wrong from jsonb_array_elements(job -> 'jobs') as j(one),
           jsonb_array_elements_text(coalesce(j.one -> 'after', '[]')) as name where not named ? name limit 1;
    if found then
      raise exception 'no job of the group is called %', quote_literal(left(wrong, 64))
          using errcode = 'invalid_parameter_value';
    end if;
    insert into jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
    select distinct jobs[n], (named ->> name)::bigint
      from jsonb_array_elements(job -> 'jobs') with ordinality as j(one, n),
           jsonb_array_elements_text(coalesce(j.one -> 'after', '[]')) as name;
  end if;
  insert into jobdepends (jdep_jq_fk, jdep_jq_depends_fk, jdep_depends_bits)
  select child, parent, 3 from unnest(tops) as child, unnest(behind) as parent where child is not null;
  return jobs;
end $$;

-- Return why the queue would refuse what a schedule asks for; null if it would not. Nothing stays queued.
create function drover.schedule_mistake(job jsonb) returns text
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if job - 'jq_args' = '{"jq_type": "command"}'
     and exists (select from verb where verb_name = drover.word(job ->> 'jq_args', 1)) then
    return null;  -- it takes no number of a job to know that
  end if;
  perform drover.queue_scheduled(job, session_user, '{}');
  raise exception using errcode = 'DR000';
exception
  when sqlstate 'DR000' then return null;
  when others then
    if sqlstate ~ '^(22|23|42|P0)' then
      return sqlerrm;
    end if;
    raise;
end $$;

-- Refuse what could never start, and have the next start computed anew where the times change.
create function drover.prepare_schedule() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  mistake text;
  is_new  boolean := tg_op = 'INSERT';
begin
  if new.schedule_zone !~ '^[A-Za-z]+[A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$' then
    raise exception 'no time zone %: write a name like Europe/Berlin', quote_literal(left(new.schedule_zone, 64))
      using errcode = 'invalid_parameter_value';
  end if;
  perform now() at time zone new.schedule_zone;  -- an unknown one is refused
  if is_new or new.schedule_job is distinct from old.schedule_job then
    mistake := drover.schedule_mistake(new.schedule_job);
    if mistake is not null then
      raise exception 'schedule %: %', new.schedule_name, mistake using errcode = 'check_violation';
    end if;
  end if;
  if is_new and new.schedule_next is not null then
    new.schedule_due := new.schedule_next;
    new.schedule_computed := now();
    new.schedule_from := coalesce(new.schedule_next - new.schedule_every, now());
  elsif is_new or (new.schedule_at, new.schedule_every, new.schedule_cron, new.schedule_zone, new.schedule_jitter,
                   new.schedule_enabled)
       is distinct from (old.schedule_at, old.schedule_every, old.schedule_cron, old.schedule_zone, old.schedule_jitter,
                         old.schedule_enabled) then
    new.schedule_next := null;
    new.schedule_due := '-infinity';
    new.schedule_computed := null;
    new.schedule_reason := null;
    if not is_new and new.schedule_every is distinct from old.schedule_every then
      new.schedule_from := now();
    end if;
  end if;
  return new;
end $$;

create trigger schedule_prepare before insert or update of schedule_at, schedule_every, schedule_cron, schedule_zone,
  schedule_jitter, schedule_enabled, schedule_job on drover.schedule
  for each row execute function drover.prepare_schedule();
-- Not where a scheduler only moves a schedule on.
create trigger schedule_wake after insert or update of schedule_at, schedule_every, schedule_cron, schedule_zone,
  schedule_jitter, schedule_enabled on drover.schedule
  for each statement execute function drover.wake('drover_change');

-- Start a schedule at these times, queue what it asks for, and move it on: `next` is its next start, which is looked at
-- at `due`. Compare and swap: only if the next start is still the one that was read (`was`). Return whether it was; how
-- many starts queued something; and why others did not, or why all is to be tried again later (then nothing happened).
-- A start before whose time another has queued jobs that have not ended is skipped, or its jobs wait until these end.
create function drover.start_schedule(name text, was timestamptz, next timestamptz, due timestamptz, reason text,
                                      starts timestamptz[], out is_moved boolean, out started integer, out said text)
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  s     drover.schedule;
  busy  bigint[];
  made  bigint[];
  at    timestamptz;
  wrong text;
begin
  is_moved := false;
  started := 0;
  select * into s from schedule
   where schedule_name = name and schedule_enabled and schedule_next is not distinct from was
     for no key update skip locked;
  if not found then
    return;
  end if;
  foreach at in array starts loop
    insert into schedule_start (start_schedule, start_due_at) values (name, at) on conflict do nothing;
    continue when not found;
    wrong := null;
    made := '{}';
    busy := array(select jq_pk from jobqueue where jq_pk = any (s.schedule_jobs) and jq_endtime is null);
    if busy <> '{}' and s.schedule_overlap = 'skip' then
      wrong := 'skipped: job ' || busy[1] || ' of the start before has not ended';
    else
      begin
        made := drover.queue_scheduled(s.schedule_job, s.schedule_submitter, busy);
        s.schedule_jobs := made;
        started := started + 1;
      exception when others then
        if sqlstate !~ '^(22|23|42|P0)' then
          raise;  -- no fault of the job: a lock, a full disk
        end if;
        wrong := 'not queued: ' || sqlerrm;
      end;
    end if;
    update schedule_start set start_jobs = made, start_text = wrong where start_schedule = name and start_due_at = at;
    said := coalesce(wrong, said);
    s.schedule_last := at;
  end loop;
  delete from schedule_start
   where start_schedule = name and start_due_at < s.schedule_last and start_due_at < now() - interval '1 day'
     and start_at < now() - interval '1 day';
  update schedule
     set schedule_next = next, schedule_due = due, schedule_computed = now(), schedule_last = s.schedule_last,
         schedule_jobs = s.schedule_jobs, schedule_reason = coalesce(said, start_schedule.reason)
   where schedule_name = name;
  is_moved := true;
exception when others then
  is_moved := false;
  started := 0;
  said := 'tried again later: ' || sqlerrm;
end $$;

-- Start a schedule now, enabled or not. Return whether it queued something, and the answer; null if it is locked.
create function drover.run_schedule(name text, out started boolean, out said text)
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  s    drover.schedule;
  busy bigint[];
  made bigint[];
begin
  select * into s from schedule where schedule_name = name for no key update skip locked;
  started := false;
  if not found then
    said := (select 'no schedule ' || name where not exists (select from schedule where schedule_name = name));
    return;
  end if;
  busy := array(select jq_pk from jobqueue where jq_pk = any (s.schedule_jobs) and jq_endtime is null);
  if busy <> '{}' and s.schedule_overlap = 'skip' then
    said := 'schedule ' || name || ': skipped: job ' || busy[1] || ' of the start before has not ended';
    return;
  end if;
  made := drover.queue_scheduled(s.schedule_job, s.schedule_submitter, busy);
  insert into schedule_start (start_schedule, start_due_at, start_jobs) values (name, now(), made);
  update schedule set schedule_jobs = made, schedule_reason = null where schedule_name = name;
  started := true;
  said := 'schedule ' || name || ': queued ' || array_to_string(made, ', ');
exception when others then
  if sqlstate !~ '^(22|23|42|P0)' then
    raise;
  end if;
  started := false;
  said := 'schedule ' || name || ': not queued: ' || sqlerrm;
end $$;

-- ---------------------------------------------------------------- jobs that leave a shared token

-- As before, but from each job to its tokens, whatever the statistics say: those of an empty queue had all tokens read
-- for each job that was cancelled or held.
create or replace function drover.leave_shared(jobs bigint[]) returns bigint[]
  language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  tokens tid[];
  gone   bigint[];
  found  bigint[] := '{}';
begin
  loop
    select array_agg(t.ctid) into tokens
      from unnest(jobs) as pk cross join lateral (
        select ctid, claim_jobs from drover.claimable
         where claim_first between drover.block_of(pk) and pk and claim_jobs is not null
        offset 0) as t  -- not to be reordered
     where pk = any (claim_jobs);
    exit when tokens is null;
    with deleted as (delete from drover.claimable where ctid = any (tokens) returning *),
    job as (
      select claim_first, pk, pk in (select unnest(jobs)) as leaves from deleted, unnest(claim_jobs) as pk),
    run as (
      select *, count(*) filter (where leaves) over (partition by claim_first order by pk) as n from job),
    put_back as (
      insert into drover.claimable (claim_first, claim_jobs, claim_queued, claim_type, claim_queue, claim_host,
                                    claim_rank, claim_by_record)
      select min(pk), array_agg(pk order by pk), claim_queued, claim_type, claim_queue, claim_host, claim_rank, true
        from run join deleted using (claim_first) where not leaves
       group by n, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank)
    select array_agg(pk) into gone from job where leaves;
    found := found || gone;
  end loop;
  perform drover.notify('drover_queue', '') where found <> '{}';  -- claims skip tokens that are locked
  return found;
end $$;
