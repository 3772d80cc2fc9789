-- How long what has ended is kept, why it ended, what cannot be; and quotas.

-- ---------------------------------------------------------------- removing jobs, by how they ended

-- Remove one piece of what is long over: `most` rows in the order of their numbers, after `place`. `before` has an
-- instant for each state whose jobs go when they ended earlier, for 'command', and for 'log', the lines about no job.
-- What it does not name stays. A group goes that has no jobs and is older than the latest of these instants.
create function drover.prune(before jsonb, most integer, inout stage text, inout place bigint, out removed bigint)
language plpgsql security definer set search_path = drover, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  old      bigint[];
  looked   integer;
  is_young boolean;  -- rows from here on are: one was queued after the instant, and was never put back to the end
  first    bigint := place;
  latest   timestamptz := (select max(value::timestamptz) from jsonb_each_text(before));
begin
  if stage = 'jobs' then
    select count(*), max(jq_pk),
           coalesce(bool_or(jq_queued >= latest and jq_attempt <= (jq_endtime is not null)::integer), false),
           array_agg(jq_pk) filter (where jq_endtime < latest)
      into looked, place, is_young, old
      from (select jq_pk, jq_queued, jq_attempt, jq_endtime from jobqueue
             where jq_pk > first order by jq_pk limit most) w;
    old := array(
      select jq_pk from jobqueue
       where jq_pk = any (old)
         and jq_endtime < (before ->> case jq_type when 'command' then jq_type else jq_state::text end)::timestamptz
       order by jq_pk for update skip locked);
    old := array(  -- by another statement: it sees the edges that came before the lock
      select pk from unnest(old) as pk
       where not exists (
               select from jobdepends join jobqueue on jq_pk = jdep_jq_fk
                where jdep_jq_depends_fk = pk and jdep_met_at is null and (jq_endtime is null or jq_state = 'failed'))
         and not exists (
               select from jobdepends join jobqueue on jq_pk = jdep_jq_depends_fk
                where jdep_jq_fk = pk and jdep_met_at is null and jq_endtime is null));
    removed := drover.remove_jobs(old);
    if is_young or looked < most then
      stage := 'groups';
      place := 0;
    end if;
  elsif stage = 'groups' then
    select count(*), max(job_pk), coalesce(bool_or(job_queued >= latest), false) into looked, place, is_young
      from (select job_pk, job_queued from job where job_pk > first order by job_pk limit most) w;
    delete from job where job_pk = any (array(
      select job_pk from job
       where job_pk > first and job_pk <= place and job_queued < latest
         and not exists (select from jobqueue where jq_job_fk = job_pk) for update skip locked));
    get diagnostics removed = row_count;
    if is_young or looked < most then
      stage := 'log';
      place := 0;
    end if;
  else
    delete from log where log_pk = any (array(
      select log_pk from (select log_pk, log_date from log where log_jq_fk is null order by log_pk limit most) w
       where log_date < (before ->> 'log')::timestamptz));
    get diagnostics removed = row_count;
    if removed < most then
      stage := null;
    end if;
  end if;
end $$;

-- As before: all that ended before an instant; jobs that failed only if asked for.
create or replace function drover.flush(before timestamptz, failed_too boolean, most integer, inout stage text,
                                        inout place bigint, out removed bigint)
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  select p.* into stage, place, removed
    from drover.prune(
           (select jsonb_object_agg(what, before) from unnest('{done,cancelled,ignored,skipped,command,log}'::text[]
              || case when failed_too then '{failed}'::text[] end) as what), most, stage, place) p;
end $$;

-- ---------------------------------------------------------------- how a job ended, as a code

-- The codes that drover.end_code returns. Programs may rely on them: one is never renamed.
create view drover.condition as
select * from (values
  ('normal',              'done',      'all data processed, or there were none'),
  ('nonfatal_errors',     'done',      'done, with items that failed and were tolerated, or ERROR lines'),
  ('cancelled',           'cancelled', 'cancelled by its submitter or an operator'),
  ('on_ice',              'skipped',   'skipped by the command ice, as if it had been done'),
  ('dependency_not_met',  'skipped',   'skipped: a job that it depends on ended otherwise than it asked'),
  ('unserved',            'ignored',   'run by hand, and no scheduler serves its queue'),
  ('killed',              'failed',    'killed by its submitter or an operator'),
  ('expired',             'failed',    'not started before jq_not_after'),
  ('timeout',             'failed',    'it, one of its items, or its query took longer than it may'),
  ('no_heartbeat',        'failed',    'its agent was silent for longer than it may'),
  ('recovery_timeout',    'failed',    'the condition that it was blocked on lasted too long'),
  ('recovery_failure',    'failed',    'the tester of the condition that it was blocked on failed'),
  ('interrupted',         'failed',    'interrupted more often than jq_max_interruptions allows'),
  ('launch_failure',      'failed',    'its command could not be started'),
  ('exit_status',         'failed',    'its agent exited with a status other than 0'),
  ('agent_died',          'failed',    'its agent was ended by a signal, or left the protocol'),
  ('items_failed',        'failed',    'more of its items failed than jq_tolerate allows'),
  ('no_progress',         'failed',    'not one item of a slice was done'),
  ('query_failed',        'failed',    'the database refused its query'),
  ('not_permitted',       'failed',    'its submitter may not queue its agent type'),
  ('invalid_definition',  'failed',    'what it asks for cannot be done; the text says why'),
  ('not_saved',           'failed',    'the database refused to store its outcome'),
  ('command_refused',     'failed',    'a command that was refused; the text says why'),
  ('agent_error',         'failed',    'its agent said FAIL; the text is what it said'))
  as c(condition_code, condition_state, condition_text);

-- Return the code of a job that has ended, and null of another. It is derived, so that a job that is done costs nothing
-- and those that a daemon of the version before ends have one (decision 0039).
create function drover.end_code(state drover.job_state, type text, bits integer, said text, status integer, signal text)
returns text language sql immutable parallel safe as $$
  select case state
    when 'done' then case when bits & 4 = 0 then 'normal' else 'nonfatal_errors' end
    when 'cancelled' then 'cancelled'
    when 'skipped' then case when bits & 1 = 1 then 'on_ice' else 'dependency_not_met' end
    when 'ignored' then 'unserved'
    when 'failed' then case
      when type = 'command' then 'command_refused'
      when said = 'killed' then 'killed'
      when said ~ '^recovery_(timeout|failure): ' then split_part(said, ':', 1)
      when said ~ '^not started by ' then 'expired'
      when said ~ '^(timeout: ran|item took|the query ran) longer than ' then 'timeout'
      when said ~ '^(no heartbeat for |does not read its line$)' then 'no_heartbeat'
      when said ~ '^(interrupted more than \d+ times|its scheduler died \d+ times)' then 'interrupted'
      when said ~ '^\d+ items failed, \d+ tolerated$' then 'items_failed'
      when said ~ '^no progress: ' then 'no_progress'
      when said ~ '^role .+ may not queue agent type ' then 'not_permitted'
      when said ~ '^the database refuses a ' then 'not_saved'
      when said ~ '\(SQLSTATE [0-9A-Z]{5}(, at character \d+)?\)$' then 'query_failed'
      when said ~ '^its (parameter or variables|variables or its SQL) '
           or said ~ '^the (parameter (is|holds|has)|query gives|key column|command names|rows of the query) '
           or said ~ '^(\d+ rows of the query|key ''|column name|jq_key names|jq_runonpfile names)'
      then 'invalid_definition'
      when said ~ '^agent ''.+'': cannot start ''' or status in (126, 127) then 'launch_failure'
      when signal is not null or said ~ '^(killed by |protocol violation: |agent terminated prematurely, by )'
      then 'agent_died'
      when said ~ '^(exit status |agent terminated prematurely)' then 'exit_status'
      else 'agent_error' end
    end
$$;

-- The views of jobs have the code beside the text.
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
       drover.end_code(jq_state, jq_type, jq_end_bits, jq_endtext, jq_exitcode, jq_signal) as jq_end_code
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
       jq_submitter, jq_done_host, jq_done_pid, jq_end_code
  from drover.jobs;

-- Of a job that has ended: ` (CODE)`, unless its state says as much.
create function drover.shown_code(job drover.jobqueue) returns text language sql immutable parallel safe as $$
  select ' (' || nullif(nullif(code, 'normal'), job.jq_state::text) || ')'
    from drover.end_code(job.jq_state, job.jq_type, job.jq_end_bits, job.jq_endtext, job.jq_exitcode,
                         job.jq_signal) as code
$$;

create or replace view drover.why as
select r.jq_pk, r.jq_type, r.jq_state,
       coalesce(a.says, r.says) || coalesce(drover.shown_code(j), '') || coalesce(': ' || r.text, '') as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked';

create or replace view drover.why_masked as
select r.jq_pk, r.jq_type, r.jq_state, coalesce(a.says, r.says) || coalesce(drover.shown_code(j), '') as reason
  from drover.reason r
  join drover.jobqueue j on j.jq_pk = r.jq_pk
  left join drover.awaited a on a.jq_pk = r.jq_pk and r.jq_state = 'blocked';

-- ---------------------------------------------------------------- what cannot be

-- The rows that contradict what the scheduler keeps true: a job of which nothing would ever become, most of all. It is
-- empty, or something is broken; what is only slow is given two minutes of an active scheduler. One read of the queue.
create view drover.impossible as
with active as materialized (
  select group_name, group_owner from drover.scheduler_group
   where group_lease_until > now() and group_taken_at < now() - interval '2 minutes'),
tokens as materialized (
  select distinct pk from drover.claimable cross join lateral unnest(coalesce(claim_jobs, array[claim_first])) as pk),
records as materialized (
  select hand_owner, hand_since, pk from drover.in_hand cross join lateral unnest(hand_jobs) as pk),
seen as (
  select j.jq_pk, coalesce(jq_attempt_start, jq_starttime, jq_queued) as since, jq_state, jq_owner,
         case
           when jq_state in ('claimed', 'running') and q.queue_name is null and jq_type <> 'command' then 'no queue'
           when jq_state in ('claimed', 'running') and jq_owner <> a.group_owner then 'wrong owner'
           when jq_state = 'blocked' and not exists (
             select from drover.blocked where blocked_jq_fk = j.jq_pk) then 'no condition'
           when jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and jq_type <> 'command'
                and t.pk is null and not exists (
             select from records r where r.pk = j.jq_pk) then 'no token'
           when jq_unmet > 0 and not exists (
             select from drover.jobdepends where jdep_jq_fk = j.jq_pk and jdep_met_at is null) then 'no dependency'
           when jq_state = 'queued' and jq_type <> 'command' and jq_unmet = 0 and a.group_name is not null
                and least(jq_wait_until, jq_expires_at) < now() - interval '2 minutes' then 'overdue'
         end as rule
    from drover.jobqueue j
    left join drover.queue q on q.queue_name = j.jq_queue
    left join active a on a.group_name = q.queue_group
    left join tokens t on t.pk = j.jq_pk
   where jq_endtime is null)
select rule, jq_pk, since,
       case rule
         when 'no queue' then 'is ' || jq_state || ' and its queue does not exist: no scheduler owns it'
         when 'wrong owner' then 'is ' || jq_state || ' by a scheduler that is not the active one: ' || jq_owner
         when 'no condition' then 'is blocked, and on no condition: no check lets it go'
         when 'no token' then 'is queued, and no claim can find it'
         when 'no dependency' then 'waits for dependencies, and there is none that is open'
         else 'is due, and nothing was done about it' end as what,
       case rule
         when 'no queue' then 'add the queue again: drover queue add'
         when 'wrong owner' then 'the next rescan gives it back; if not, drover command step-down'
         when 'no condition' then 'drover unblock JOB'
         when 'no token' then 'drover hold JOB, then drover release JOB'
         when 'no dependency' then 'the next rescan counts again; if not, drover cancel JOB'
         else 'look at refused statements and drover log; drover command step-down' end as next
  from seen where rule is not null
union all
select 'token of an ended job', t.pk, j.jq_endtime, 'can be claimed, and is ' || coalesce(j.jq_state::text, 'removed'),
       'no claim takes it; report it with drover log JOB'
  from tokens t left join drover.jobqueue j on j.jq_pk = t.pk
 where j.jq_pk is null or j.jq_state <> 'queued' or jq_unmet > 0 or jq_wait_until is not null
union all
select 'not blocked', b.blocked_jq_fk, b.blocked_since,
       'is in the list of a condition, and is ' || coalesce(j.jq_state::text, 'removed'),
       'drover unblock of the condition clears the list'
  from drover.blocked b left join drover.jobqueue j on j.jq_pk = b.blocked_jq_fk
 where j.jq_pk is null or j.jq_state <> 'blocked'
union all
select 'dead owner', min(r.pk), min(r.hand_since),
       'and ' || count(*) - 1 || ' more are in hand of a scheduler that is gone: ' || r.hand_owner,
       'the next rescan gives them back; if not, drover command step-down'
  from records r
  join drover.jobqueue j on j.jq_pk = r.pk
  join drover.queue q on q.queue_name = j.jq_queue
  join active a on a.group_name = q.queue_group
 where r.hand_owner <> a.group_owner and r.hand_since < now() - interval '2 minutes'
   and jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null
   and not exists (select from tokens t where t.pk = r.pk)
 group by r.hand_owner
union all
select 'unchecked condition', (select min(blocked_jq_fk) from drover.blocked where blocked_recovery = recovery_pk),
       recovery_next, 'is blocked on ' || recovery_condition || ', whose check is overdue',
       'look at refused statements; drover unblock ' || recovery_condition
  from drover.recovery join active on group_name = recovery_group
 where recovery_next < now() - interval '2 minutes'
   and exists (select from drover.blocked where blocked_recovery = recovery_pk)
union all
select 'missed schedule', null, schedule_due, 'schedule ' || schedule_name || ' is due, and was not started',
       'look at refused statements; drover schedule run ' || schedule_name
  from drover.schedule
 where schedule_enabled and isfinite(schedule_due) and schedule_due < now() - interval '2 minutes'
   and exists (select from active);

-- ---------------------------------------------------------------- quotas

-- How many jobs may be in hand at once of those that fit all that a row names; with user '*' each submitter has a count
-- of its own. The scheduler counts (scheduler/policy/quotas.py); jobs over a quota are blocked on condition quota:NAME.
create table drover.quota (
  quota_name   text primary key check (quota_name ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$'),
  quota_group  text not null default 'default',
  quota_most   integer not null check (quota_most >= 0),
  quota_tenant text check (quota_tenant <> ''),  -- a role: the jobs of its members
  quota_user   text check (quota_user <> ''),    -- a role that submits, or '*'
  quota_queue  text check (quota_queue <> ''),
  quota_host   text check (quota_host <> ''),    -- that jobs ask for
  constraint quota_counts_something check (num_nonnulls(quota_tenant, quota_user, quota_queue, quota_host) > 0)
);

create trigger quota_wake after insert or update or delete on drover.quota
  for each statement execute function drover.wake('drover_change');
