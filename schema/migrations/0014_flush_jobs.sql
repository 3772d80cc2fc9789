-- Jobs that an operator chooses are removed by number; drover.flush removes by age.

-- Remove those of the jobs that have ended, with all that belongs to them; return how many. What is locked stays, and
-- what other jobs wait for, or that waits itself, as in drover.prune. Commands that wait for an answer stay too.
create function drover.flush_jobs(jobs bigint[]) returns bigint
language plpgsql security definer set search_path = drover, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  old bigint[];
begin
  old := array(
    select jq_pk from jobqueue where jq_pk = any (jobs) and jq_endtime is not null order by jq_pk
       for update skip locked);
  old := array(  -- by another statement: it sees the edges that came before the lock
    select pk from unnest(old) as pk
     where not exists (
             select from jobdepends join jobqueue on jq_pk = jdep_jq_fk
              where jdep_jq_depends_fk = pk and jdep_met_at is null and (jq_endtime is null or jq_state = 'failed'))
       and not exists (
             select from jobdepends join jobqueue on jq_pk = jdep_jq_depends_fk
              where jdep_jq_fk = pk and jdep_met_at is null and jq_endtime is null));
  return drover.remove_jobs(old);
end $$;
