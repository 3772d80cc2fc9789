-- What a site has put beside our tables: its publications, foreign keys and triggers stop neither claims nor a flush.

-- A table that a publication sends (`for all tables`, `for tables in schema drover`) lets no row be changed unless it
-- has a replica identity: a primary key, or the whole row. The latter costs nothing while wal_level is below logical.
do $$
declare
  keyless regclass;
begin
  for keyless in
    select oid from pg_catalog.pg_class
     where relnamespace = 'drover'::regnamespace and relkind = 'r' and relreplident = 'd'
       and not exists (select from pg_catalog.pg_index where indrelid = pg_class.oid and indisprimary)
  loop
    execute format('alter table %s replica identity full', keyless);
  end loop;
end $$;

-- Have the constraints of a site that refer to our tables checked by each statement, and not at its commit, where one
-- row would refuse all.
create function drover.check_at_once() returns void language plpgsql set search_path = drover, pg_temp as $$
declare
  late text;
begin
  select string_agg(format('%I.%I', nspname, conname), ', ') into late
    from pg_catalog.pg_constraint join pg_catalog.pg_namespace n on n.oid = connamespace
   where condeferrable and (conrelid in ('jobqueue'::regclass, 'job'::regclass, 'log'::regclass)
                            or confrelid in ('jobqueue'::regclass, 'job'::regclass, 'log'::regclass));
  if late is not null then
    execute 'set constraints ' || late || ' immediate';
  end if;
end $$;

-- Remove rows: jobs with all that belongs to them, job groups, or log lines. Errors: what a foreign key or a trigger of
-- the site says; triggered_action_exception if one of them kept a row in silence. Nothing is removed then.
create function drover.remove(what text, numbers bigint[]) returns void
language plpgsql set search_path = drover, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  removed bigint;
begin
  case what
    when 'jobs' then
      removed := drover.remove_jobs(numbers);
    when 'groups' then
      delete from job where job_pk = any (numbers);
      get diagnostics removed = row_count;
    when 'log' then
      delete from log where log_pk = any (numbers);
      get diagnostics removed = row_count;
  end case;
  if removed < cardinality(numbers) then
    raise exception 'a trigger or rule of the site keeps it' using errcode = 'triggered_action_exception';
  end if;
end $$;

-- Remove those of the rows that can be, and return how many, which cannot, and why the first of these cannot. What is
-- no row's fault (no space, no lock, a cancelled statement) is an error, as it was.
create function drover.try_to_remove(what text, numbers bigint[], out removed bigint, out kept bigint[], out why text)
language plpgsql set search_path = drover, pg_temp as $$
declare
  half integer := cardinality(numbers) / 2;
  rest record;
begin
  removed := cardinality(numbers);
  kept := '{}';
  if removed = 0 then
    return;
  end if;
  begin
    perform drover.remove(what, numbers);
    return;
  exception when others then
    if left(sqlstate, 2) in ('40', '53', '54', '55', '57', '58', 'XX') then
      raise;
    end if;
    why := sqlerrm;
  end;
  if half = 0 then
    removed := 0;
    kept := numbers;
    return;
  end if;
  select * into removed, kept, why from drover.try_to_remove(what, numbers[:half]);
  select * into rest from drover.try_to_remove(what, numbers[half + 1:]);
  removed := removed + rest.removed;
  kept := kept || rest.kept;
  why := coalesce(why, rest.why);
end $$;

-- Remove those of the jobs that have ended, as drover.flush_jobs does; return how many, and of those that could have
-- gone which the database refuses to remove, and why the first of them.
create function drover.flush_chosen(jobs bigint[], out removed bigint, out kept bigint[], out why text)
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
  perform drover.check_at_once();
  select t.* into removed, kept, why from drover.try_to_remove('jobs', old) t;
end $$;

create or replace function drover.flush_jobs(jobs bigint[]) returns bigint
language sql security definer set search_path = drover, pg_temp as $$
  select removed from drover.flush_chosen(jobs)
$$;

-- Look at a piece of the jobs, job groups or log lines and remove what ended before the instant of its state; see
-- drover.prune, which returns the same without what was kept, for a daemon of the version before.
create function drover.prune_piece(
  before jsonb, most integer, inout stage text, inout place bigint,
  out removed bigint, out kept bigint[], out why text)
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
  elsif stage = 'groups' then
    select count(*), max(job_pk), coalesce(bool_or(job_queued >= latest), false) into looked, place, is_young
      from (select job_pk, job_queued from job where job_pk > first order by job_pk limit most) w;
    old := array(
      select job_pk from job
       where job_pk > first and job_pk <= place and job_queued < latest
         and not exists (select from jobqueue where jq_job_fk = job_pk) for update skip locked);
  else
    select count(*), max(log_pk),
           coalesce(array_agg(log_pk) filter (where log_date < (before ->> 'log')::timestamptz), '{}')
      into looked, place, old
      from (select log_pk, log_date from log where log_jq_fk is null and log_pk > first order by log_pk limit most) w;
    is_young := cardinality(old) < looked;
  end if;
  perform drover.check_at_once();
  select t.* into removed, kept, why from drover.try_to_remove(stage, old) t;
  if is_young or looked < most then
    stage := case stage when 'jobs' then 'groups' when 'groups' then 'log' end;
    place := 0;
  end if;
end $$;

create or replace function drover.prune(
  before jsonb, most integer, inout stage text, inout place bigint, out removed bigint)
language sql security definer set search_path = drover, pg_temp as $$
  select p.stage, p.place, p.removed from drover.prune_piece(before, most, stage, place) p
$$;

-- As before, but the job of a delivery that a site's foreign key holds stays, and holds up no other delivery.
create or replace function drover.queue_deliveries(of_group text, most integer, out dead integer, out queued integer,
                                                   out seconds float8)
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  each     record;
  over     bigint[];
  late     bigint[];
  gone     bigint[];
  owner    name := '';
  has_more boolean := false;
begin
  dead := 0;
  queued := 0;
  if not exists (select from subscription) and not exists (select from delivery where del_state = 'sent') then
    return;
  elsif not drover.try_to_enter('queue_deliveries') then
    seconds := 1;
    return;
  end if;
  select jobs, e.over into gone, over from drover.end_tries(of_group, most) e;
  perform drover.bury_deliveries(over, 'not delivered') where over <> '{}';
  dead := cardinality(over);
  with given_up as (
    update delivery set del_state = 'dead', del_ended = now(), del_next = null,
           del_text = 'expired: its subscription has ended'
     where del_pk in (select del_pk from subscription join delivery on del_sub = sub_pk and del_state = 'waiting'
                       where sub_expires <= now() limit most)
    returning del_pk)
  select coalesce(array_agg(del_pk), '{}') into late from given_up;
  perform drover.bury_deliveries(late, 'expired') where late <> '{}';
  dead := dead + cardinality(late);
  if gone <> '{}' then
    perform drover.check_at_once();
    perform drover.try_to_remove('jobs', array_remove(gone, null));
  end if;
  if exists (select from agent where agent_group = of_group and agent_type = 'notify' and agent_enabled
                and agent_present) then
    while queued < most loop
      select del_owner into owner from delivery
       where del_state = 'waiting' and del_next is not null and del_owner > owner order by del_owner limit 1;
      exit when not found;
      select * into each from drover.queue_deliveries_of(of_group, owner, least(50, most - queued));
      queued := queued + each.queued;
      has_more := has_more or each.has_more;
    end loop;
    seconds := (select extract(epoch from del_next - now()) from delivery
                 where del_state = 'waiting' and del_next > now() order by del_next limit 1);
  end if;
  seconds := case when has_more or queued >= most or cardinality(gone) >= most or cardinality(late) >= most then 0
                  else seconds end;
end $$;

-- Give what a role has by its name to another, after `alter role ... rename to`: schedules, subscriptions with their
-- deliveries, and what was shared with it. Its jobs keep their submitter, which never changes. Return how many
-- schedules and subscriptions. Errors: there is no such role now.
create function drover.rename_owner(was name, is_now name) returns bigint
language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  schedules     bigint;
  subscriptions bigint;
begin
  if to_regrole(quote_ident(is_now)) is null then
    raise exception 'there is no role %', quote_ident(is_now) using errcode = 'undefined_object';
  elsif to_regrole(quote_ident(was)) is not null then
    raise exception 'role % is still there, and keeps what it has', quote_ident(was) using errcode = 'duplicate_object';
  end if;
  update schedule set schedule_submitter = is_now where schedule_submitter = was;
  get diagnostics schedules = row_count;
  update subscription set sub_owner = is_now where sub_owner = was;
  get diagnostics subscriptions = row_count;
  update delivery set del_owner = is_now where del_owner = was;
  insert into share (share_jq_fk, share_with) select share_jq_fk, is_now from share where share_with = was
    on conflict do nothing;
  delete from share where share_with = was;
  return schedules + subscriptions;
end $$;

-- As before; and the text of a job whose end the database refuses, as by a trigger of the site, names the job.
create or replace function drover.end_code(
  state drover.job_state, type text, bits integer, said text, status integer, signal text
) returns text
language sql immutable parallel safe
as $$
  select case state
    when 'done' then case when bits & 4 = 0 then 'normal' else 'nonfatal_errors' end
    when 'cancelled' then 'cancelled'
    when 'skipped' then case when bits & 1 = 1 then 'on_ice' else 'dependency_not_met' end
    when 'ignored' then 'unserved'
    when 'failed' then case
      when type = 'command' then 'command_refused'
      when said ~ '^killed(; its (process \d+|command) runs as .+ and could not be ended: it is left)?$' then 'killed'
      when said ~ '^recovery_(timeout|failure): ' then split_part(said, ':', 1)
      when said ~ '^not started by ' then 'expired'
      when said ~ '^(timeout: ran|item took|the query ran) longer than ' then 'timeout'
      when said ~ '^(no heartbeat for |does not read its line($|; its (process|command) ))' then 'no_heartbeat'
      when said ~ '^(interrupted more than \d+ times|its scheduler died \d+ times)' then 'interrupted'
      when said ~ '^\d+ items failed, \d+ tolerated$' then 'items_failed'
      when said ~ '^no progress: ' then 'no_progress'
      when said ~ '^role .+ may not queue agent type ' then 'not_permitted'
      when said ~ '^the database refuses (a |to save )' then 'not_saved'
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
