-- What users of older systems look for: their own job groups and edges, and where the jobs of a step went.

-- ---------------------------------------------------------------- jobs that were resubmitted

create index jobqueue_resubmitted on drover.jobqueue (jq_resubmit_of) where jq_resubmit_of is not null;

-- ---------------------------------------------------------------- own groups and edges

create view drover.my_job_groups with (security_barrier) as
select * from drover.job where job_user = session_user;

create view drover.my_jobdepends with (security_barrier) as
select d.* from drover.jobdepends d join drover.jobqueue j on j.jq_pk = d.jdep_jq_fk
 where j.jq_submitter = session_user;

-- ---------------------------------------------------------------- removing jobs

-- Remove jobs with all that is known of them; return how many there were. Edges to jobs that wait for one are removed.
create function drover.remove_jobs(jobs bigint[]) returns bigint
language plpgsql set search_path = drover, pg_temp set enable_seqscan = off set enable_hashjoin = off
  set enable_mergejoin = off as $$
declare
  removed bigint;
begin
  delete from jobdepends where jdep_jq_depends_fk = any (jobs);
  delete from attempt_kept where att_jq_fk = any (jobs);
  delete from log where log_jq_fk = any (jobs);
  delete from output where out_jq_fk = any (jobs);
  delete from item_failure where item_jq_fk = any (jobs);
  delete from command_ack where ack_jq_fk = any (jobs);
  delete from jobqueue where jq_pk = any (jobs);
  get diagnostics removed = row_count;
  return removed;
end $$;

-- Remove one piece of what ended before an instant, with all that belongs to it; failed jobs only if asked. A pass has
-- three stages: jobs, then groups that have none, then log lines about no job. Each goes along a primary key from a
-- place on, `most` rows of it at a time, for no index says what has ended: that would make every end dearer. It stops
-- where rows were queued after the instant; gives the stage and place to go on at, and no stage at its end.
-- A job stays while an edge of its is open, to or from a job that may still move; what somebody keeps locked stays too.
create or replace function drover.flush(before timestamptz, failed_too boolean, most integer, inout stage text,
                                        inout place bigint, out removed bigint)
  language plpgsql security definer set search_path = drover, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  old      bigint[];
  looked   integer;
  is_young boolean;  -- rows from here on are: one was queued after the instant, and was never put back to the end
  first    bigint := place;
begin
  if stage = 'jobs' then
    select count(*), max(jq_pk),
           coalesce(bool_or(jq_queued >= before and jq_attempt <= (jq_endtime is not null)::integer), false),
           array_agg(jq_pk) filter (where jq_endtime < before)
      into looked, place, is_young, old
      from (select jq_pk, jq_queued, jq_attempt, jq_endtime from jobqueue
             where jq_pk > first order by jq_pk limit most) w;
    old := array(
      select jq_pk from jobqueue
       where jq_pk = any (old) and jq_endtime < before and (jq_state <> 'failed' or jq_type = 'command' or failed_too)
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
    select count(*), max(job_pk), coalesce(bool_or(job_queued >= before), false) into looked, place, is_young
      from (select job_pk, job_queued from job where job_pk > first order by job_pk limit most) w;
    delete from job where job_pk = any (array(
      select job_pk from job
       where job_pk > first and job_pk <= place and job_queued < before
         and not exists (select from jobqueue where jq_job_fk = job_pk) for update skip locked));
    get diagnostics removed = row_count;
    if is_young or looked < most then
      stage := 'log';
      place := 0;
    end if;
  else
    delete from log where log_pk = any (array(
      select log_pk from (select log_pk, log_date from log where log_jq_fk is null order by log_pk limit most) w
       where log_date < before));
    get diagnostics removed = row_count;
    if removed < most then
      stage := null;
    end if;
  end if;
end $$;
