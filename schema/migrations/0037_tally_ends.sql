-- What `drover stats` shows, counted as jobs start and end, in buckets of time: no row of an ended job is read for it.

-- Return the bin of a time: the first whose upper bound is not less. Bounds are 0.0001 s, and each 2 ^ (1/8) times the
-- one before; bin 281 has all longer times. The same bins are in scheduler/model/counters.py.
create function drover.time_bin(seconds double precision) returns integer
  language sql immutable parallel safe
  as $$
  select case when seconds <= 0.0001 then 0 else least(ceil(8 * ln(seconds / 0.0001) / ln(2)), 281)::integer end
$$;

-- Jobs that did the same in the same span of time. Whoever counts inserts a row at its own instant, of no span, and
-- waits for nobody; drover.fold_tally makes rows of minutes, hours and days of them. tally_state is a state of ended
-- jobs, or `started`: those are the first attempts, without host and code. tally_counts says how many jobs are in each
-- of tally_bins: of the seconds that they waited if they started, that they ran if they are done or failed.
create table drover.tally (
  tally_at     timestamptz not null default now(),
  tally_span   interval not null default '0',
  tally_type   text not null,
  tally_host   text not null,
  tally_state  text not null,
  tally_code   text not null,
  tally_jobs   bigint not null,
  tally_items  bigint not null,
  tally_newest bigint,  -- number of the newest job, of those that failed
  tally_bins   integer[] not null,
  tally_counts bigint[] not null
);
create index tally_in_time on drover.tally (tally_span, tally_at);
alter table drover.tally replica identity full;  -- it has no key, and a site may publish all tables

-- As before, and tally the ends. Both are counted in one look at the jobs.
create or replace function drover.count_ends(pks bigint[], states text[]) returns void
  language sql security definer set search_path = drover, pg_temp as $$
  with ended as materialized (
    select type, host, state, code, bin, count(*) as jobs, sum(items) as items, max(pk) as newest
      from unnest(pks, states) as u(pk, state)
     cross join lateral (
       select case when exists (select from agent where agent_type = jq_type) then jq_type else '(unknown)' end as type,
              coalesce(jq_done_host, '-') as host, jq_itemsprocessed as items,
              case when u.state in ('done', 'failed') then
                drover.time_bin(date_part('epoch', jq_endtime) - date_part('epoch', jq_starttime)) end as bin,
              drover.end_code(u.state::drover.job_state, jq_type, jq_end_bits, jq_endtext, jq_exitcode, jq_signal)
                as code
         from jobqueue where jq_pk = u.pk and jq_type <> 'command' offset 0) j
     where state in ('done', 'failed', 'cancelled', 'ignored', 'skipped')
     group by type, host, state, code, bin),
  tallied as (
    insert into tally (tally_type, tally_host, tally_state, tally_code, tally_jobs, tally_items, tally_newest,
                       tally_bins, tally_counts)
    select type, host, state, code, jobs, items, case when state = 'failed' then newest end,
           array_remove(array[bin], null), case when bin is null then '{}' else array[jobs] end
      from ended)
  insert into counter_new (counter_name, counter_labels, counter_value)
  select 'ended', array[type, state, code], sum(jobs) from ended group by type, state, code
$$;

-- Fold rows of minutes that are over into one for each minute; of hours, two hours after them; of days (in UTC), eight
-- days after them: `most` of each. Remove those older than 400 days. Return how many rows were folded. What is locked
-- is left out: another scheduler folds it.
create function drover.fold_tally(most integer) returns bigint
  language plpgsql security definer set search_path = drover, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  origin constant timestamptz := '2000-01-01 00:00:00+00';
  folded bigint := 0;
  taken  bigint;
  step   record;
begin
  for step in
    select * from (values (interval '0', interval '1 minute', interval '0'), ('1 minute', '1 hour', '2 hours'),
                          ('1 hour', '1 day', '8 days')) as t(finer, span, age)
  loop
    with taken as materialized (
      delete from tally where ctid = any (array(
        select ctid from tally
         where tally_span = step.finer and tally_at < date_bin(step.span, now() - step.age, origin)
         order by tally_at limit most for update skip locked))
      returning date_bin(step.span, tally_at, origin) as at, tally.*),
    binned as (  -- what all jobs of a row are, then how many are in each bin
      select at, tally_type, tally_host, tally_state, tally_code, bin, sum(jobs)::bigint as jobs,
             sum(items)::bigint as items, max(newest) as newest
        from taken cross join lateral (
          select null::integer as bin, tally_jobs as jobs, tally_items as items, tally_newest as newest
           union all
          select *, 0, null from unnest(tally_bins, tally_counts)) u
       group by 1, 2, 3, 4, 5, 6),
    written as (
      insert into tally (tally_at, tally_span, tally_type, tally_host, tally_state, tally_code, tally_jobs, tally_items,
                         tally_newest, tally_bins, tally_counts)
      select at, step.span, tally_type, tally_host, tally_state, tally_code, sum(jobs) filter (where bin is null),
             sum(items), max(newest),
             coalesce(array_agg(bin order by bin) filter (where bin is not null), '{}'),
             coalesce(array_agg(jobs order by bin) filter (where bin is not null), '{}')
        from binned group by 1, 3, 4, 5, 6)
    select count(*) into taken from taken;
    folded := folded + taken;
  end loop;
  delete from tally where tally_span = '1 day' and tally_at < now() - interval '400 days';
  return folded;
end $$;

-- Tally anew all that ended, from the rows of jobs that are still there. What was removed, by a flush or by
-- retention, is forgotten, which no call brings back: that is the price. For after an
-- upgrade, since schedulers of the version before tally no plain ends, and after rows were loaded that ended elsewhere.
-- What is going to be folded into hours and days anyway is counted so.
create function drover.recount_ends() returns void
  language plpgsql set search_path = drover, pg_temp as $$
declare
  origin constant timestamptz := '2000-01-01 00:00:00+00';
begin
  delete from tally;
  insert into tally (tally_at, tally_type, tally_host, tally_state, tally_code, tally_jobs, tally_items, tally_newest,
                     tally_bins, tally_counts)
  select date_bin(case when date < now() - interval '9 days' then interval '1 day'
                       when date < now() - interval '3 hours' then '1 hour' else '1 minute' end, date, origin),
         coalesce(agent_type, '(unknown)'), host, state, code, count(*), sum(items),
         case when state = 'failed' then max(pk) end,
         array_remove(array[bin], null), case when bin is null then '{}' else array[count(*)] end
    from (
      select jq_endtime as date, jq_type as type, coalesce(jq_done_host, '-') as host, jq_state::text as state,
             drover.end_code(jq_state, jq_type, jq_end_bits, jq_endtext, jq_exitcode, jq_signal) as code,
             jq_itemsprocessed as items, jq_pk as pk,
             case when jq_state in ('done', 'failed') then
               drover.time_bin(date_part('epoch', jq_endtime) - date_part('epoch', jq_starttime)) end as bin
        from jobqueue where jq_endtime is not null
       union all
      select jq_starttime, jq_type, '-', 'started', '', 0, null,
             drover.time_bin(date_part('epoch', jq_starttime) - date_part('epoch', jq_queued))
        from jobqueue where jq_starttime is not null and jq_attempt > 0) j
    left join (select distinct agent_type from agent) a on agent_type = type
   where date > now() - interval '400 days' and date < 'infinity' and type <> 'command'
   group by 1, 2, 3, 4, 5, bin;
  perform fold_tally(2147483647);
end $$;

-- What ended before this migration.
select drover.recount_ends();

-- For the plots of who sees own jobs, or those of a tenant: the newest 20,000, each as if it had been counted alone.
create view drover.our_tally with (security_barrier) as
select jq_endtime as tally_at, interval '0' as tally_span, jq_type as tally_type, jq_state::text as tally_state,
       1::bigint as tally_jobs,
       case when jq_state in ('done', 'failed')
            then array[drover.time_bin(date_part('epoch', jq_endtime) - date_part('epoch', jq_starttime))]
            else '{}' end as tally_bins,
       case when jq_state in ('done', 'failed') then array[1::bigint] else '{}' end as tally_counts
  from (select * from drover.our_jobs order by jq_pk desc limit 20000) j
 where jq_endtime is not null and jq_type <> 'command'
 union all
select jq_starttime, interval '0', jq_type, 'started', 1,
       array[drover.time_bin(date_part('epoch', jq_starttime) - date_part('epoch', jq_queued))], array[1]
  from (select * from drover.our_jobs order by jq_pk desc limit 20000) j
 where jq_starttime is not null and jq_attempt > 0 and jq_type <> 'command';
