-- Counts of jobs by what they are, exact at every commit, so that nobody scans the queue to count it; and where in the
-- queue jobs of each kind are, so that a list reads only there.

-- Whoever changes jobs inserts here how many of one kind moved from one state to another, or came, or went. Daemons add
-- these rows up in the two tables below. A kind is a zone of numbers, type, queue, host, submitter and state.
create table drover.job_change (
  change_zone      bigint not null,
  change_type      text not null,
  change_queue     text not null,
  change_host      text not null,
  change_submitter text not null,
  change_was       text,              -- the state that they left; null if they were inserted
  change_state     text,              -- the state that they are in; null if they were deleted
  change_jobs      integer not null,  -- negative only to mend a count
  change_oldest    timestamptz,       -- the bounds of those that came, see drover.job_zones
  change_latest    timestamptz,
  change_waited    real,
  change_ran       real,
  change_rank      text collate "C"
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table drover.job_total (
  total_type      text not null,
  total_queue     text not null,
  total_host      text not null,
  total_submitter text not null,
  total_state     text not null,
  total_jobs      bigint not null,
  primary key (total_type, total_queue, total_host, total_submitter, total_state)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table drover.job_zone (
  zone_number    bigint not null,
  zone_type      text not null,
  zone_queue     text not null,
  zone_host      text not null,
  zone_submitter text not null,
  zone_state     text not null,
  zone_jobs      bigint not null,
  zone_oldest    timestamptz,
  zone_latest    timestamptz,
  zone_waited    real,
  zone_ran       real,
  zone_rank      text collate "C",
  primary key (zone_number, zone_type, zone_queue, zone_host, zone_submitter, zone_state)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Kinds of which no job is left, for who removes them.
create index job_total_empty on drover.job_total (total_jobs) where total_jobs = 0;
create index job_zone_empty on drover.job_zone (zone_jobs) where zone_jobs = 0;

create function drover.zone_of(pk bigint) returns bigint
language sql immutable parallel safe
return pk / 4096;

-- The state under which a job is counted. What is in hand is not told from what may be claimed: a claim writes no row.
create function drover.counted_state(state drover.job_state, unmet integer, wait_until timestamptz) returns text
language sql stable parallel safe
as $$
  select case when state > 'running' or state = 'held' then state::text
              when unmet > 0 then 'unmet' when wait_until is not null then 'early' else 'queued' end
$$;

-- Jobs of each kind. `state` is that of jobqueue, but: `early` and `unmet` are queued, and wait for an instant or for
-- other jobs; `queued` are all other queued, claimed and running ones. No queue and no host are ''.
create view drover.job_counts as
select type, queue, host, submitter, state, sum(jobs)::bigint as jobs
  from (select total_type as type, total_queue as queue, total_host as host, total_submitter as submitter,
               total_state as state, total_jobs as jobs from drover.job_total
         union all
        select change_type, change_queue, change_host, change_submitter, s.state, s.jobs
          from drover.job_change
         cross join lateral (values (change_state, change_jobs), (change_was, -change_jobs)) as s(state, jobs)
         where s.state is not null) c
 group by type, queue, host, submitter, state having sum(jobs) <> 0;

-- The same in each zone, row by row, with bounds: for who adds the rows up by fewer columns. A row may be of jobs that
-- are gone; jobs that left a state count less than nothing.
create view drover.zone_parts as
select zone_number as zone, zone_type as type, zone_queue as queue, zone_host as host, zone_submitter as submitter,
       zone_state as state, zone_jobs as jobs, zone_oldest as oldest, zone_latest as latest, zone_waited as waited,
       zone_ran as ran, zone_rank as rank
  from drover.job_zone
 union all
select change_zone, change_type, change_queue, change_host, change_submitter, s.*
  from drover.job_change
 cross join lateral (
   values (change_state, change_jobs, change_oldest, change_latest, change_waited, change_ran, change_rank),
          (change_was, -change_jobs, null, null, null, null, null)) as s(state, jobs, oldest, latest, waited, ran, rank)
 where s.state is not null;

-- The same added up: the jobs of each kind in each zone, which is 4,096 numbers, those that divided by 4,096 give it.
-- Bounds are never wrong, but may be loose: no job was queued before `oldest`; none was queued or ended after `latest`;
-- none that ended waited or ran longer than the seconds `waited` and `ran`; none has a lower drover.rank than `rank`.
create view drover.job_zones as
select zone, type, queue, host, submitter, state, sum(jobs)::bigint as jobs, min(oldest) as oldest,
       max(latest) as latest, max(waited) as waited, max(ran) as ran, min(rank) as rank
  from drover.zone_parts
 group by zone, type, queue, host, submitter, state having sum(jobs) <> 0;

create view drover.my_job_counts with (security_barrier) as
select * from drover.job_counts where submitter = session_user::text;
create view drover.my_job_zones with (security_barrier) as
select * from drover.job_zones where submitter = session_user::text;
create view drover.our_job_counts with (security_barrier) as
select * from drover.job_counts where submitter = any ((select drover.fellows())::text[]);
create view drover.our_job_zones with (security_barrier) as
select * from drover.job_zones where submitter = any ((select drover.fellows())::text[]);

-- Add the changes up, if nobody else does. `most` bounds the work; return how many rows were added up.
create function drover.add_up_changes(most integer) returns integer
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  taken integer;
begin
  if not drover.try_to_enter('job_change') then
    return 0;  -- bounds need one session at a time, which takes all rows that it sees, or removes no kind
  end if;
  with taken as (
    delete from job_change where ctid = any (array(select ctid from job_change limit most for update skip locked))
    returning *),
  moved as materialized (
    select change_zone, change_type, change_queue, change_host, change_submitter, s.*
      from taken
     cross join lateral (
       values (change_state, change_jobs, change_oldest, change_latest, change_waited, change_ran, change_rank),
              (change_was, -change_jobs, null, null, null, null, null))
           as s(state, jobs, oldest, latest, waited, ran, rank)
     where s.state is not null),
  totals as (
    insert into job_total as t
    select change_type, change_queue, change_host, change_submitter, state, sum(jobs)
      from moved group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5
    on conflict (total_type, total_queue, total_host, total_submitter, total_state)
    do update set total_jobs = t.total_jobs + excluded.total_jobs where excluded.total_jobs <> 0),
  zones as (
    insert into job_zone as z
    select change_zone, change_type, change_queue, change_host, change_submitter, state, sum(jobs), min(oldest),
           max(latest), max(waited), max(ran), min(rank)
      from moved group by 1, 2, 3, 4, 5, 6 order by 1, 2, 3, 4, 5, 6
    on conflict (zone_number, zone_type, zone_queue, zone_host, zone_submitter, zone_state)
    do update set zone_jobs = z.zone_jobs + excluded.zone_jobs,
                  zone_oldest = least(z.zone_oldest, excluded.zone_oldest),
                  zone_latest = greatest(z.zone_latest, excluded.zone_latest),
                  zone_waited = greatest(z.zone_waited, excluded.zone_waited),
                  zone_ran = greatest(z.zone_ran, excluded.zone_ran),
                  zone_rank = least(z.zone_rank, excluded.zone_rank))
  select count(*) into taken from taken;
  if taken < most then
    delete from job_total where total_jobs = 0;
    delete from job_zone where zone_jobs = 0;
  end if;
  return taken;
end $$;

-- Count the jobs of some zones anew, from `first` on, and insert what the counts lack: all is of one moment. For what
-- was changed without the triggers. Return how many kinds were counted wrong.
create function drover.recount(first bigint, zones integer) returns integer
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  mended integer;
begin
  perform drover.enter('recount');
  insert into job_change
  select zone, type, queue, host, submitter, null, state, sum(jobs), min(oldest), max(latest), max(waited), max(ran),
         min(rank)
    from (select zone_of(jq_pk) as zone, jq_type as type, coalesce(jq_queue, '') as queue,
                 coalesce(jq_host, '') as host, jq_submitter::text as submitter,
                 counted_state(jq_state, jq_unmet, jq_wait_until) as state, count(*) as jobs,
                 min(jq_queued) as oldest, max(greatest(jq_queued, jq_endtime)) as latest,
                 max(extract(epoch from jq_starttime - jq_queued)::real) filter (where jq_endtime is not null)
                   as waited,
                 max(extract(epoch from jq_endtime - jq_starttime)::real) as ran,
                 min(rank(jq_urgent, jq_priority)) as rank
            from jobqueue where jq_pk between first * 4096 and (first + zones) * 4096 - 1
           group by 1, 2, 3, 4, 5, 6
           union all
          select zone, type, queue, host, submitter, state, -jobs, null, null, null, null, null
            from job_zones where zone between first and first + zones - 1) c
   group by zone, type, queue, host, submitter, state having sum(jobs) <> 0;
  get diagnostics mended = row_count;
  return mended;
end $$;

-- ---------------------------------------------------------------- who changes jobs

-- New jobs become claimable, and are counted. Of a large statement both is done by groups, to prepare which costs more
-- than a small one saves.
create or replace function drover.offer_new() returns trigger language plpgsql security definer
  set search_path = drover, pg_temp set enable_sort = off set work_mem = '64MB' as $$
declare
  has_fair boolean;
  has_many boolean;
begin
  select exists (select from drover.agent where agent_fair), exists (select from arrived offset 31)
    into has_fair, has_many;
  if has_fair then
    has_fair := exists (select from arrived join drover.fair on fair_type = jq_type and fair_queue = jq_queue);
  end if;
  if has_many and not has_fair and coalesce(current_setting('drover.has_edges', true), '') = '' then
    with alike as materialized (
      select zone_of(min(jq_pk)) as zone, min(jq_pk) as pk, count(*) as jobs,
             case when count(*) > 1 then array_agg(jq_pk) end as pks, jq_queued, jq_type,
             coalesce(jq_queue, '') as queue, coalesce(jq_host, '') as host, rank(jq_urgent, jq_priority) as rank,
             by_record, jq_submitter, state
        from (select *, not jq_msq and jq_rescued = 0 and jq_unique_key is null and jq_not_after is null as by_record,
                     case when jq_state <> 'queued' then jq_state::text when jq_unmet > 0 then 'unmet'
                          when jq_wait_until is not null then 'early' else 'queued' end as state
                from arrived) a
       group by case when by_record and (select drover.may_share()) or state <> 'queued'
                  then drover.block_of(jq_pk) else jq_pk end,
                jq_type, jq_queue, jq_host, jq_urgent, jq_priority, jq_queued, by_record, jq_submitter, state),
    offered as (
      insert into drover.claimable (claim_jq_fk, claim_first, claim_jobs, claim_queued, claim_type, claim_queue,
                                    claim_host, claim_rank, claim_by_record)
      select case when jobs = 1 then pk end, pk, pks, jq_queued, jq_type, queue, host, rank, by_record
        from alike where state = 'queued' and jq_type <> 'command')
    insert into drover.job_change
    select zone, jq_type, queue, host, jq_submitter, null, state, sum(jobs), min(jq_queued), max(jq_queued), null,
           null, min(rank)
      from alike group by zone, jq_type, queue, host, jq_submitter, state;
    perform drover.notify('drover_queue', '');
    return null;
  end if;
  insert into drover.job_change
  select zone_of(jq_pk), jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter, null,
         drover.counted_state(jq_state, jq_unmet, jq_wait_until), 1, jq_queued, jq_queued, null, null,
         rank(jq_urgent, jq_priority)
    from arrived;
  if current_setting('drover.has_edges', true) <> '' then
    perform drover.offer_all(array(
      select j.jq_pk from drover.jobqueue j where j.jq_pk = any (array(select jq_pk from arrived))
        and j.jq_type <> 'command' and drover.is_claimable(j)));
  elsif has_fair then
    perform drover.line_up(array(
      select jq_pk from arrived where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null
        and jq_type <> 'command'));
  else
    insert into drover.claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host,
                                  claim_rank, claim_by_record)
    select jq_pk, jq_pk, jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''),
           drover.rank(jq_urgent, jq_priority),
           not jq_msq and jq_rescued = 0 and jq_unique_key is null and jq_not_after is null
      from arrived
     where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and jq_type <> 'command';
  end if;
  perform drover.notify('drover_queue', '');
  return null;
end $$;

-- Count what became of one job.
create function drover.count_move(old drover.jobqueue, new drover.jobqueue) returns void
language plpgsql set search_path = drover, pg_temp as $$
declare
  was   text := drover.counted_state(old.jq_state, old.jq_unmet, old.jq_wait_until);
  state text := drover.counted_state(new.jq_state, new.jq_unmet, new.jq_wait_until);
  moves boolean := (old.jq_queue, old.jq_host) is distinct from (new.jq_queue, new.jq_host);
begin
  if not moves and was = state and (old.jq_queued, old.jq_urgent, old.jq_priority, old.jq_endtime)
     is not distinct from (new.jq_queued, new.jq_urgent, new.jq_priority, new.jq_endtime) then
    return;
  elsif moves then
    insert into job_change
    values (zone_of(old.jq_pk), old.jq_type, coalesce(old.jq_queue, ''), coalesce(old.jq_host, ''), old.jq_submitter,
            was, null, 1);
  end if;
  insert into job_change
  values (zone_of(new.jq_pk), new.jq_type, coalesce(new.jq_queue, ''), coalesce(new.jq_host, ''), new.jq_submitter,
          case when not moves then was end, state, 1, new.jq_queued, greatest(new.jq_queued, new.jq_endtime),
          case when new.jq_endtime is not null then extract(epoch from new.jq_starttime - new.jq_queued) end,
          extract(epoch from new.jq_endtime - new.jq_starttime), rank(new.jq_urgent, new.jq_priority));
end $$;

create or replace function drover.moved() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  by_record boolean := old.jq_state = 'queued' and new.jq_attempt > old.jq_attempt and new.jq_type <> 'command';
  was       boolean := drover.is_claimable(old) and not by_record;
  is_so     boolean := drover.is_claimable(new);
  is_tester boolean := case when new.jq_unique_key like 'drover.tester.%'
                            then drover.is_of_scheduler(new.jq_submitter) else false end;
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
    elsif new.jq_state = 'blocked' and is_tester then
      update drover.jobqueue  -- its answer is that the condition is still there: it does not wait for one itself
         set jq_state = 'cancelled', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(),
             jq_end_bits = 2, jq_wait_until = null
       where jq_pk = new.jq_pk;
    elsif new.jq_state = 'blocked' then
      perform drover.enter_recovery(new);
    end if;
    perform drover.notify('drover_recovery', '') where is_tester and new.jq_endtime is not null;  -- it has an answer
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
  if new.jq_state <> 'done' or new.jq_done_by is null then  -- others are counted by the statement that ends them
    perform drover.count_move(old, new);
  end if;
  return null;
end $$;

-- As before; but a plain end is known by jq_done_by, which the statement sets that counts it.
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
                or old.jq_state = 'running' and (new.jq_state = 'done' or new.jq_state = 'running')))
  execute function drover.moved();

create function drover.count_removed() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  insert into job_change
  select zone_of(jq_pk), jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter,
         counted_state(jq_state, jq_unmet, jq_wait_until) as state, null, count(*)
    from removed group by 1, 2, 3, 4, 5, 6;
  return null;
end $$;
create trigger jobqueue_count_removed after delete on drover.jobqueue referencing old table as removed
for each statement execute function drover.count_removed();

create function drover.count_truncated() returns trigger
language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  truncate job_change, job_total, job_zone;
  return null;
end $$;
create trigger jobqueue_count_truncated after truncate on drover.jobqueue
for each statement execute function drover.count_truncated();

-- As before; jobs that begin to wait for others, or wait for none any more, are counted.
create or replace function drover.count_unmet(jobs bigint[], more integer) returns integer language plpgsql
  set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  counted integer := 0;
  moved   bigint[];
  step    record;
begin
  for step in
    select n, array_agg(pk) as pks
      from (select pk, count(*)::integer * more as n from unnest(jobs) as pk group by pk) c group by n
  loop
    with changed as (
      update jobqueue j set jq_unmet = drover.unmet(jq_unmet, step.n, j.xmin)
       where jq_pk = any (step.pks) and jq_unmet < 2147483647
         and case when more < 0 then jq_unmet > 0 else jq_state in ('held', 'queued') end
      returning jq_pk, jq_state = 'queued' and jq_unmet = greatest(step.n, 0) as is_counted, jq_wait_until,
                jq_type, jq_queue, jq_host, jq_submitter, jq_queued, jq_urgent, jq_priority),
    recounted as (
      insert into job_change
      select zone_of(jq_pk), jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), jq_submitter,
             case when more < 0 then 'unmet' when is_early then 'early' else 'queued' end,
             case when more > 0 then 'unmet' when is_early then 'early' else 'queued' end,
             count(*), min(jq_queued), max(jq_queued), null, null, min(rank(jq_urgent, jq_priority))
        from changed cross join lateral (select jq_wait_until is not null as is_early) e
       where is_counted group by 1, 2, 3, 4, 5, is_early)
    select counted + count(*), array_agg(jq_pk) filter (where is_counted and jq_wait_until is null)
      into counted, moved from changed;
    if moved is not null and more < 0 then
      perform drover.offer_all(moved);
    elsif moved is not null then
      perform drover.withdraw_all(moved);
    end if;
  end loop;
  return counted;
end $$;

create or replace function drover.count_edges() returns trigger language plpgsql security definer
  set search_path = drover, pg_temp as $$
declare
  counted drover.jobqueue;
begin
  update jobqueue j
     set jq_unmet = (select count(*) from jobdepends where jdep_jq_fk = new.jq_pk and jdep_met_at is null)
   where jq_pk = new.jq_pk and jq_unmet = 2147483647 returning * into counted;
  if found then
    perform drover.count_move(new, counted);
    perform drover.offer_all(array[new.jq_pk]) where drover.is_claimable(counted);
  end if;
  return null;
end $$;

-- ---------------------------------------------------------------- counts that older daemons leave wrong

-- A daemon of the version before counts none of its plain ends. From when one had a group the counts are wrong, until
-- every zone from this place on was counted anew; no row: they are right.
create table drover.recount_place (
  place_zone bigint not null
);
create unique index recount_place_once on drover.recount_place ((true));

alter table drover.scheduler add column scheduler_counts boolean not null default false;

-- Count some zones anew if there are any to be, and no older daemon is active. Return how many are left.
create function drover.recount_next(zones integer) returns bigint
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  first bigint;
  beyond bigint;
begin
  select place_zone into first from recount_place
   where not exists (select from scheduler where not scheduler_counts
                        and scheduler_seen > now() - make_interval(secs => scheduler_lease))
     for update skip locked;
  if not found then
    return 0;
  end if;
  perform drover.recount(first, zones);
  select greatest(zone_of((select max(jq_pk) from jobqueue)), (select max(zone_number) from job_zone)) + 1 into beyond;
  if first + zones < beyond then
    update recount_place set place_zone = first + zones;
  else
    delete from recount_place;
  end if;
  return greatest(beyond - first - zones, 0);
end $$;

create or replace function drover.show_all_in_hand() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if exists (select from scheduler where scheduler_uuid = new.group_owner and not scheduler_counts) then
    insert into recount_place values (0) on conflict ((true)) do update set place_zone = 0;
  end if;
  if exists (select from scheduler where scheduler_uuid = new.group_owner and not scheduler_takes_shared) then
    update jobqueue j
       set jq_state = 'claimed', jq_attempt = j.jq_attempt + 1, jq_owner = r.hand_owner,
           jq_starttime = coalesce(j.jq_starttime, r.hand_since), jq_endtext = 'in progress'
      from recorded r where j.jq_pk = r.jq_pk;
    with shared as (delete from claimable where claim_jobs is not null returning *)
    insert into claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                           claim_by_record)
    select pk, pk, claim_queued, claim_type, claim_queue, claim_host, claim_rank, claim_by_record
      from shared, unnest(claim_jobs) as pk;
  end if;
  return null;
end $$;

-- ---------------------------------------------------------------- the jobs that are there

do $$
begin
  perform drover.recount(zone, 1024)
     from generate_series(0, (select drover.zone_of(max(jq_pk)) from drover.jobqueue), 1024) as zone;
  perform drover.add_up_changes(2147483647);
  insert into drover.recount_place select 0 where exists (select from drover.scheduler);
end $$;
