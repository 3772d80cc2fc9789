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

-- As before, and a job that is blocked has a row in drover.blocked as long as it is.
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
    elsif new.jq_state = 'blocked' then
      perform drover.enter_recovery(new);
    end if;
    perform drover.notify('drover_recovery', '')  -- a tester has an answer
      where new.jq_unique_key like 'recovery.%' and (new.jq_endtime is not null or new.jq_state = 'blocked');
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

-- The conditions with the jobs that wait for them.
create view drover.conditions as
select recovery_pk, recovery_group as condition_group, recovery_condition as condition, recovery_policy as policy,
       recovery_since as since, recovery_tries as tries, recovery_next as next_check, recovery_tester as tester,
       jobs, oldest, recovery_text as text
  from drover.recovery
 cross join lateral (
   select count(*) as jobs, min(blocked_since) as oldest from drover.blocked where blocked_recovery = recovery_pk) b
 where jobs > 0;

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
