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
