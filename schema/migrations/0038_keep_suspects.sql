-- What cannot be is found by a walk of the daemon in bounded steps, and drover.impossible looks only at what the walk
-- found and at what is in hand, blocked or due. Before, the view read all jobs that had not ended (decision 0080).

-- Where the walk is: jobs, then tokens, then entries of conditions, and begins again. There is one row.
create table drover.suspect_walk (
  walk_only  boolean primary key default true check (walk_only),
  walk_stage text not null default 'jobs' check (walk_stage in ('jobs', 'tokens', 'entries')),
  walk_place bigint not null default -1,  -- the last job or page that was looked at
  walk_at    timestamptz,  -- when the last step was made
  walk_ended timestamptz   -- when the last walk had looked at everything
);
insert into drover.suspect_walk default values;

-- What the walk found: a hint, which every reader verifies. `suspect_token` is the place of a token, which is never
-- updated: after VACUUM FULL it is found again by the next walk.
create table drover.suspect (
  suspect_jq_fk bigint,
  suspect_rule  text,
  suspect_token tid,
  primary key (suspect_jq_fk, suspect_rule)
);

-- Return the jobs that have not ended and cannot be as they are, and which rule each breaks. To be read for one job or
-- for a range of numbers.
create view drover.contradiction as
select rule, jq_pk, since, jq_state, jq_owner
  from (select j.jq_pk, coalesce(j.jq_attempt_start, j.jq_starttime, j.jq_queued) as since, j.jq_state, j.jq_owner,
               case
                 when j.jq_state in ('claimed', 'running') and q.queue_name is null and j.jq_type <> 'command'
                   then 'no queue'
                 when j.jq_state in ('claimed', 'running') and j.jq_owner <> a.group_owner then 'wrong owner'
                 when j.jq_state = 'blocked'
                      and (select blocked_jq_fk from drover.blocked where blocked_jq_fk = j.jq_pk) is null
                   then 'no condition'
                 when j.jq_state = 'queued' and j.jq_unmet = 0 and j.jq_wait_until is null and j.jq_type <> 'command'
                      and not drover.has_token(j)
                      and j.jq_pk not in (select unnest(hand_jobs) from drover.in_hand) then 'no token'
                 when j.jq_unmet > 0
                      and (select jdep_jq_fk from drover.jobdepends
                            where jdep_jq_fk = j.jq_pk and jdep_met_at is null limit 1) is null
                   then 'no dependency'
                 when j.jq_state = 'queued' and j.jq_type <> 'command' and j.jq_unmet = 0 and a.group_name is not null
                      and least(j.jq_wait_until, j.jq_expires_at) < now() - interval '2 minutes' then 'overdue'
               end as rule
          from drover.jobqueue j
          left join drover.queue q on q.queue_name = j.jq_queue
          left join drover.scheduler_group a
            on a.group_name = q.queue_group and a.group_lease_until > now()
               and a.group_taken_at < now() - interval '2 minutes'
         where j.jq_endtime is null) seen
 where rule is not null;

-- Return what the walk found and what is still so. Each is looked up by its number or place, whatever the plan.
create view drover.suspected as
select suspect_rule as rule, suspect_jq_fk as jq_pk, c.since,
       case suspect_rule
         when 'no queue' then 'is ' || c.jq_state || ' and its queue does not exist: no scheduler owns it'
         when 'wrong owner' then 'is ' || c.jq_state || ' by a scheduler that is not the active one: ' || c.jq_owner
         when 'no condition' then 'is blocked, and on no condition: no check lets it go'
         when 'no token' then 'is queued, and no claim can find it'
         when 'no dependency' then 'waits for dependencies, and there is none that is open'
         else 'is due, and nothing was done about it' end as what,
       case suspect_rule
         when 'no queue' then 'add the queue again: drover queue add'
         when 'wrong owner' then 'the next rescan gives it back; if not, drover command step-down'
         when 'no condition' then 'drover unblock JOB'
         when 'no token' then 'drover hold JOB, then drover release JOB'
         when 'no dependency' then 'the next rescan counts again; if not, drover cancel JOB'
         else 'look at refused statements and drover log; drover command step-down' end as next
  from drover.suspect s
  cross join lateral (
    select * from drover.contradiction where jq_pk = s.suspect_jq_fk and rule = s.suspect_rule offset 0) c
union all
select suspect_rule, suspect_jq_fk, j.jq_endtime, 'can be claimed, and is ' || coalesce(j.jq_state::text, 'removed'),
       'no claim takes it; report it with drover log JOB'
  from drover.suspect s
  cross join lateral (
    select coalesce(claim_jobs, array[claim_first]) as jobs from drover.claimable
     where ctid = s.suspect_token offset 0) t
  left join lateral (
    select * from drover.jobqueue where jq_pk = s.suspect_jq_fk offset 0) j on true
 where suspect_rule = 'token of an ended job' and suspect_jq_fk = any (t.jobs)
   and (j.jq_pk is null or j.jq_state <> 'queued' or j.jq_unmet > 0 or j.jq_wait_until is not null)
union all
select suspect_rule, suspect_jq_fk, b.blocked_since,
       'is in the list of a condition, and is ' || coalesce(j.jq_state::text, 'removed'),
       'drover unblock of the condition clears the list'
  from drover.suspect s
  cross join lateral (
    select blocked_since from drover.blocked where blocked_jq_fk = s.suspect_jq_fk offset 0) b
  left join lateral (
    select * from drover.jobqueue where jq_pk = s.suspect_jq_fk offset 0) j on true
 where suspect_rule = 'not blocked' and (j.jq_pk is null or j.jq_state <> 'blocked');

-- As before, but for what the walk finds: what is in hand, overdue conditions and missed schedules are few.
create or replace view drover.impossible as
with active as materialized (
  select group_name, group_owner from drover.scheduler_group
   where group_lease_until > now() and group_taken_at < now() - interval '2 minutes')
select rule, jq_pk, since, what, next from drover.suspected
union all
select 'dead owner', min(r.pk), min(r.hand_since),
       'and ' || count(*) - 1 || ' more are in hand of a scheduler that is gone: ' || r.hand_owner,
       'the next rescan gives them back; if not, drover command step-down'
  from (select hand_owner, hand_since, unnest(hand_jobs) as pk from drover.in_hand
         where hand_since < now() - interval '2 minutes') r
  cross join lateral (
    select j.jq_queue from drover.jobqueue j where j.jq_pk = r.pk
       and j.jq_state = 'queued' and j.jq_unmet = 0 and j.jq_wait_until is null and not drover.has_token(j) offset 0) j
  join drover.queue q on q.queue_name = j.jq_queue
  join active a on a.group_name = q.queue_group
 where r.hand_owner <> a.group_owner
 group by r.hand_owner
union all
select 'unchecked condition', (select blocked_jq_fk from drover.blocked where blocked_recovery = recovery_pk
                                order by blocked_rank, blocked_queued, blocked_jq_fk limit 1),
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

-- The three parts of the walk. Each looks at about `most` rows after a place; it returns how many these were, and the
-- place to go on at, null at the end. Suspects by the rules in `enough` are not stored.

-- The place is a job. Only zones with jobs that have not ended are read, by the counts of drover.job_zone; ten kinds of
-- a zone that is passed over count as one row.
create function drover.suspect_jobs(inout place bigint, most integer, enough text[], out looked integer)
language plpgsql set search_path = drover, pg_temp as $$
declare
  first  bigint := place;
  zone   bigint := zone_of(place + 1);
  kinds  integer;
  opened bigint;
  last   bigint;
begin
  select count(*), max(zone_number),
         min(zone_number) filter (where zone_jobs > 0 and zone_state in ('held', 'early', 'unmet', 'queued', 'blocked'))
    into kinds, last, opened
    from (select * from job_zone where zone_number >= zone order by zone_number limit most) z;
  looked := 1 + kinds / 10;
  opened := coalesce(opened, case when kinds = most and last = zone then zone end);  -- more kinds than are looked at
  if opened is null then
    place := case when kinds = most then last * 4096 - 1 end;
    return;
  end if;
  first := greatest(first, opened * 4096 - 1);
  select looked + count(*), case when count(*) = most then max(jq_pk) else opened * 4096 + 4095 end into looked, place
    from (select jq_pk from jobqueue where jq_pk > first and jq_pk < (opened + 1) * 4096 order by jq_pk limit most) w;
  insert into suspect (suspect_jq_fk, suspect_rule)
  select jq_pk, rule from contradiction where jq_pk > first and jq_pk <= place and rule <> all (enough)
  on conflict do nothing;
end $$;

-- The place is a page of drover.claimable, and one is looked at. An empty one counts as a few rows, so that the step
-- ends.
create function drover.suspect_tokens(inout place bigint, enough text[], out looked integer)
language plpgsql set search_path = drover, pg_temp as $$
declare
  first tid := format('(%s,0)', place + 1)::tid;
  beyond tid := format('(%s,0)', place + 2)::tid;
begin
  with token as materialized (
    select t.ctid as token, unnest(coalesce(claim_jobs, array[claim_first])) as pk from claimable t
     where t.ctid >= first and t.ctid < beyond),
  found as (
    insert into suspect (suspect_jq_fk, suspect_rule, suspect_token)
    select distinct on (pk) pk, 'token of an ended job', token from token left join jobqueue on jq_pk = pk
     where (jq_pk is null or jq_state <> 'queued' or jq_unmet > 0 or jq_wait_until is not null)
       and 'token of an ended job' <> all (enough)
    on conflict (suspect_jq_fk, suspect_rule) do update set suspect_token = excluded.suspect_token)
  select 20 + count(*) into looked from token;
  place := place + 1;
  if place * current_setting('block_size')::bigint >= pg_relation_size('drover.claimable') then
    place := null;
  end if;
end $$;

create function drover.suspect_entries(inout place bigint, most integer, enough text[], out looked integer)
language plpgsql set search_path = drover, pg_temp as $$
declare
  first bigint := place;
begin
  select count(*), max(blocked_jq_fk) into looked, place
    from (select blocked_jq_fk from blocked where blocked_jq_fk > first order by blocked_jq_fk limit most) w;
  insert into suspect (suspect_jq_fk, suspect_rule)
  select blocked_jq_fk, 'not blocked' from blocked left join jobqueue on jq_pk = blocked_jq_fk
   where blocked_jq_fk > first and blocked_jq_fk <= place and (jq_pk is null or jq_state <> 'blocked')
     and 'not blocked' <> all (enough)
  on conflict do nothing;
  if looked < most then
    place := null;
  end if;
end $$;

-- Make a step of the walk: forget the suspects that are right again, look at about `most` rows, and store those that
-- cannot be as they are, about 1,000 by each rule. Return whether the walk has looked at everything; so it does, too,
-- while the daemon of another group makes a step.
create function drover.find_suspects(most integer) returns boolean
language plpgsql security definer set search_path = drover, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  stages constant text[] := '{jobs,tokens,entries}';
  walk   suspect_walk;
  enough text[];
  rows   integer := 0;
  more   integer;
  stage  integer;
begin
  select * into walk from suspect_walk for update skip locked;
  if not found then
    return true;
  end if;
  delete from suspect where (suspect_jq_fk, suspect_rule) not in (select jq_pk, rule from suspected);
  enough := array(select suspect_rule from suspect group by suspect_rule having count(*) >= 1000);
  stage := array_position(stages, walk.walk_stage);
  while stage <= 3 and rows < most loop
    if stage = 1 then
      select place, looked into walk.walk_place, more from suspect_jobs(walk.walk_place, most - rows, enough);
    elsif stage = 2 then
      select place, looked into walk.walk_place, more from suspect_tokens(walk.walk_place, enough);
    else
      select place, looked into walk.walk_place, more from suspect_entries(walk.walk_place, most - rows, enough);
    end if;
    rows := rows + more;
    if walk.walk_place is null then
      stage := stage + 1;
      walk.walk_place := -1;
    end if;
  end loop;
  update suspect_walk
     set walk_stage = coalesce(stages[stage], 'jobs'), walk_place = walk.walk_place, walk_at = now(),
         walk_ended = case when stage > 3 then now() else walk_ended end;
  return stage > 3;
end $$;
