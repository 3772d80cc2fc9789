-- Claims that write no row of jobqueue. A row of drover.claimable is the token of jobs that may run: a claim deletes it
-- and inserts a record into drover.in_hand. Such a job stays `queued` in its row until its daemon marks it `claimed` or
-- `running`, or ends it; each of these writes the attempt that the claim gave to the daemon, one more than the row has.
-- A job that is queued, has nothing to wait for and has no token is in hand. Only a job without an allowance that the
-- start of an attempt uses up, and without a key or a date that its row must show, is claimed so: others are marked by
-- the claim itself.
--
-- Such jobs of a statement that inserts many share tokens (man/decisions/0032): one for those of a block of 32 numbers
-- with the same type, queue, host, rank and time. A token is never updated: a statement that had waited for the update
-- would see the new row, but go on with the jobs of the old one. What takes some jobs of a token deletes it and inserts
-- one for the others. A daemon of the version before claims by claim_jq_fk, which shared tokens do not have, and leaves
-- them alone; so none is made while such a daemon is active.

-- The first number of a block. A shared token is found by it: its jobs are of one block.
create function drover.block_of(pk bigint) returns bigint language sql immutable parallel safe return pk - pk % 32;

drop index drover.claimable_order, drover.claimable_lines, drover.claimable_in_line;
alter table drover.claimable
  add column claim_by_record boolean not null default false,
  add column claim_first     bigint,    -- claim_jq_fk or the least of claim_jobs
  add column claim_jobs      bigint[],  -- of a shared token, which has no claim_jq_fk
  alter column claim_jq_fk drop not null;
-- A change of type rewrites the table once, without dead rows.
alter table drover.claimable alter column claim_first type bigint using claim_jq_fk;
alter table drover.claimable alter column claim_first set not null;
create index claimable_order on drover.claimable
  (claim_type, claim_queue, claim_host, claim_rank, claim_queued, claim_first);
create index claimable_lines on drover.claimable (claim_type, claim_queue, claim_host, claim_line, claim_rank)
  where claim_line is not null;  -- after the one before: of two plans that cost the same the later index is taken
-- For tokens that are not found by the row of a job: shared ones, and those that stand in a line.
create index claimable_by_number on drover.claimable (claim_first)
  where claim_jobs is not null or claim_line is not null;
alter table drover.in_hand add column hand_since timestamptz not null default now();
alter table drover.scheduler add column scheduler_takes_shared boolean not null default false;

create function drover.is_claimed_by_record(job drover.jobqueue) returns boolean
  language sql immutable parallel safe
  return not (job).jq_msq and (job).jq_rescued = 0 and (job).jq_unique_key is null and (job).jq_not_after is null;

-- Return whether new tokens may be shared: each active daemon takes such.
create function drover.may_share() returns boolean language sql stable as $$
  select not exists (
    select from drover.scheduler_group join drover.scheduler on scheduler_uuid = group_owner
     where not scheduler_takes_shared)
$$;

-- Return whether a job that may run has its token: no daemon has it in hand.
create function drover.has_token(job drover.jobqueue) returns boolean
  language sql stable security definer set search_path = drover, pg_temp as $$
  select exists (
    select from claimable
     where claim_type = job.jq_type and claim_queue = coalesce(job.jq_queue, '')
       and claim_host = coalesce(job.jq_host, '')
       and claim_rank = rank(job.jq_urgent, job.jq_priority) and claim_queued = job.jq_queued
         and claim_first = job.jq_pk)
    or exists (
      select from claimable
       where claim_first between block_of(job.jq_pk) and job.jq_pk and claim_jobs is not null
         and job.jq_pk = any (claim_jobs))
    or exists (select from claimable where claim_first = job.jq_pk and claim_line is not null)
$$;

-- The jobs that are in hand by a record alone: whose, since when, and the attempt before. The limit keeps a plan from
-- asking all jobs for their tokens.
create view drover.recorded as
select distinct on (pk) pk as jq_pk, hand_owner, hand_since, jq_attempt
  from drover.in_hand cross join unnest(hand_jobs) as pk cross join lateral (
         select jq_attempt from drover.jobqueue j
          where jq_pk = pk and jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and jq_type <> 'command'
            and not drover.has_token(j) limit 1) j
 order by pk, hand_since desc;

-- A daemon of the version before that takes over knows neither what is in hand by a record alone nor shared tokens, and
-- would remove the record: so the rows are marked, and each job gets a token of its own. It waits for locked rows.
create function drover.show_all_in_hand() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
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
create trigger scheduler_group_taken_by_older
  after update of group_owner on drover.scheduler_group for each row
  when (new.group_owner is distinct from old.group_owner)
  execute function drover.show_all_in_hand();

create or replace function drover.next_round(type text, queue text, host text, rank text, line text) returns bigint
  language plpgsql stable set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_sort = off as $$
begin
  return greatest(
    (select right(claim_rank, 15)::bigint + 1 from drover.claimable
      where claim_type = type and claim_queue = queue and claim_host = host and claim_line = line
        and claim_rank > rank || '.' and claim_rank < rank || '/'
      order by claim_rank desc limit 1),
    (select right(claim_rank, 15)::bigint from drover.claimable
      where claim_type = type and claim_queue = queue and claim_host = host and claim_rank > rank || '.'
        and claim_rank < rank || '/'
      order by claim_rank, claim_queued, claim_first limit 1),
    0);
end $$;

create or replace function drover.line_up(jobs bigint[]) returns void language plpgsql
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  insert into drover.claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                                claim_line, claim_by_record)
  with came as materialized (
    select jq_pk as pk, jq_queued as queued, jq_type as type, coalesce(jq_queue, '') as queue, coalesce(jq_host,
      '') as host,
           drover.rank(jq_urgent, jq_priority) as rank, drover.line_of(jq_submitter, jq_attempt > 0) as line,
           drover.is_claimed_by_record(j) as by_record,
           exists (select from drover.fair where fair_type = jq_type and fair_queue = jq_queue) as is_fair
      from drover.jobqueue j where jq_pk = any (jobs)),
  numbered as (
    select *, row_number() over (partition by type, queue, host, rank, line order by queued, pk) as n from came
      where is_fair),
  begun as (
    select *, case n when 1 then drover.next_round(type, queue, host, rank, line) end as first from numbered)
  select pk, pk, queued, type, queue, host, rank, null, by_record from came where not is_fair
  union all
  select pk, pk, queued, type, queue, host,
         drover.rank_in_round(rank, n - 1 + max(first) over (partition by type, queue, host, rank, line)), line,
           by_record
    from begun;
end $$;

create or replace function drover.offer(job drover.jobqueue, is_back boolean) returns void language plpgsql as $$
declare
  rank text := drover.rank(job.jq_urgent, job.jq_priority);
  line text;
begin
  if exists (select from drover.fair where fair_type = job.jq_type and fair_queue = job.jq_queue) then
    line := drover.line_of(job.jq_submitter, is_back);
    rank := drover.rank_in_round(rank, drover.next_round(job.jq_type, job.jq_queue, coalesce(job.jq_host, ''), rank,
      line));
  end if;
  insert into drover.claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                                claim_line, claim_by_record)
  values (job.jq_pk, job.jq_pk, job.jq_queued, job.jq_type, coalesce(job.jq_queue, ''), coalesce(job.jq_host, ''),
          rank, line, drover.is_claimed_by_record(job));
  perform drover.notify('drover_queue', '');
end $$;

create or replace function drover.offer_command() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  host text := coalesce(new.jq_host, '');
  rank text := drover.rank(new.jq_urgent, new.jq_priority);
  line text;
begin
  if not drover.may_command(new.jq_submitter) then
    line := new.jq_submitter;
    rank := '2' || new.jq_priority;
    rank := drover.rank_in_round(rank, drover.next_round('command', '', host, rank, line));
  end if;
  insert into drover.claimable (claim_jq_fk, claim_first, claim_queued, claim_type, claim_queue, claim_host, claim_rank,
                                claim_line)
  values (new.jq_pk, new.jq_pk, new.jq_queued, 'command', '', host, rank, line);
  return null;
end $$;

create or replace function drover.offer_all(jobs bigint[]) returns void language plpgsql as $$
begin
  if exists (select from drover.agent where agent_fair) then
    perform drover.line_up(jobs);
  else
    insert into drover.claimable (claim_jq_fk, claim_first, claim_jobs, claim_queued, claim_type, claim_queue,
                                  claim_host, claim_rank, claim_by_record)
    select case when count(*) = 1 then min(jq_pk) end, min(jq_pk),
           case when count(*) > 1 then array_agg(jq_pk order by jq_pk) end,
           jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), drover.rank(jq_urgent, jq_priority),
           by_record
      from (select *, drover.is_claimed_by_record(j) as by_record from drover.jobqueue j where jq_pk = any (jobs)) j
     group by case when by_record and (select drover.may_share()) then drover.block_of(jq_pk) else jq_pk end,
              jq_type, jq_queue, jq_host, jq_urgent, jq_priority, jq_queued, by_record;
  end if;
  perform drover.notify('drover_queue', '') where cardinality(jobs) > 0;
end $$;

create or replace function drover.offer_new() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  has_fair boolean;
  has_many boolean;
begin
  select exists (select from drover.agent where agent_fair), exists (select from arrived offset 31)
    into has_fair, has_many;
  if has_fair then
    has_fair := exists (select from arrived join drover.fair on fair_type = jq_type and fair_queue = jq_queue);
  end if;
  if current_setting('drover.has_edges', true) <> '' then
    perform drover.offer_all(array(
      select j.jq_pk from drover.jobqueue j where j.jq_pk = any (array(select jq_pk from arrived))
        and j.jq_type <> 'command' and drover.is_claimable(j)));
  elsif has_fair then
    perform drover.line_up(array(
      select jq_pk from arrived where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null
        and jq_type <> 'command'));
  elsif has_many then
    insert into drover.claimable (claim_jq_fk, claim_first, claim_jobs, claim_queued, claim_type, claim_queue,
                                  claim_host, claim_rank, claim_by_record)
    select case when count(*) = 1 then min(jq_pk) end, min(jq_pk), case when count(*) > 1 then array_agg(jq_pk) end,
           jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), drover.rank(jq_urgent, jq_priority),
           by_record
      from (select *, not jq_msq and jq_rescued = 0 and jq_unique_key is null and jq_not_after is null as by_record
              from arrived
             where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and jq_type <> 'command') a
     group by case when by_record and (select drover.may_share()) then drover.block_of(jq_pk) else jq_pk end,
              jq_type, jq_queue, jq_host, jq_urgent, jq_priority, jq_queued, by_record;
  else  -- to prepare a grouping would cost more than it saves
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

-- Take jobs out of the tokens that they share with others; return those that were found. Where a claim has a token
-- locked this waits, and then looks again: the token that the claim has put back may have the job. Jobs before one that
-- leaves and those after it get a token each, so that its own, if it comes back, is between them.
create function drover.leave_shared(jobs bigint[]) returns bigint[]
  language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
  tokens tid[];
  gone   bigint[];
  found  bigint[] := '{}';
begin
  loop
    select array_agg(t.ctid) into tokens
      from unnest(jobs) as pk join drover.claimable t on claim_first between drover.block_of(pk) and pk
     where claim_jobs is not null and pk = any (claim_jobs);
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

-- What would take a job from its agent is refused. A job that was inserted in this transaction may have no token yet.
create or replace function drover.withdraw(job drover.jobqueue) returns void
  language plpgsql set enable_seqscan = off set jit = off as $$
begin
  delete from drover.claimable
   where claim_type = job.jq_type and claim_queue = coalesce(job.jq_queue, '')
     and claim_host = coalesce(job.jq_host, '')
     and claim_rank = drover.rank(job.jq_urgent, job.jq_priority) and claim_queued = job.jq_queued
       and claim_first = job.jq_pk and claim_jq_fk is not null;
  if found then
    return;
  end if;
  delete from drover.claimable where claim_first = job.jq_pk and claim_line is not null;
  if found or drover.leave_shared(array[job.jq_pk]) <> '{}' then
    return;
  end if;
  -- in a statement of its own: the others may have waited
  if exists (select from drover.in_hand where job.jq_pk = any (hand_jobs)) then
    raise exception 'job % has just been claimed: try again', job.jq_pk using errcode = 'lock_not_available';
  end if;
end $$;

create or replace function drover.withdraw_all(jobs bigint[]) returns void
  language plpgsql set enable_seqscan = off set jit = off as $$
declare
  withdrawn bigint[];
  claimed   bigint;
begin
  with plain as (
    delete from drover.claimable using drover.jobqueue j
     where j.jq_pk = any (jobs) and claim_type = j.jq_type and claim_queue = coalesce(j.jq_queue, '')
       and claim_host = coalesce(j.jq_host, '')
       and claim_rank = drover.rank(j.jq_urgent, j.jq_priority) and claim_queued = j.jq_queued and claim_first = j.jq_pk
       and claim_jq_fk is not null
    returning claim_jq_fk),
  in_line as (
    delete from drover.claimable where claim_first = any (jobs) and claim_line is not null returning claim_jq_fk)
  select coalesce(array_agg(claim_jq_fk), '{}') into withdrawn from (table plain union all table in_line) t;
  if cardinality(jobs) > cardinality(withdrawn) then
    withdrawn := withdrawn || drover.leave_shared(jobs);
  end if;
  if cardinality(jobs) > cardinality(withdrawn) then  -- in a statement of its own: the deletes may have waited
    select min(pk) into claimed from unnest(jobs) as pk
     where pk <> all (withdrawn) and pk in (select unnest(hand_jobs) from drover.in_hand);
    if claimed is not null then
      raise exception 'job % is claimed already: it takes no new dependency', claimed using errcode = 'check_violation';
    end if;
  end if;
end $$;

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

drop trigger jobqueue_moved on drover.jobqueue;
create trigger jobqueue_moved
  after update of jq_state, jq_wait_until, jq_queue, jq_host, jq_urgent, jq_priority,
    jq_queued on drover.jobqueue for each row
  when (new.jq_unique_key is not null or new.jq_not_after is not null
        or not (old.jq_state = 'queued' and (new.jq_state = 'done' or new.jq_state = 'claimed'
          or new.jq_state = 'running')
                and new.jq_attempt > old.jq_attempt and new.jq_type <> 'command'
                or old.jq_state = 'claimed' and (new.jq_state = 'done' or new.jq_state = 'running'
                  or new.jq_state = 'claimed')
                or old.jq_state = 'running' and (new.jq_state = 'done' or new.jq_state = 'running')))
  execute function drover.moved();

-- What few jobs have is read by functions: a part of the claim itself would be prepared for each claim.

-- Return variables as texts by name. None if they are longer than 16 MiB.
create function drover.texts(variables jsonb) returns json language sql immutable strict parallel safe as $$
  select case when drover.json_bytes(variables) <= 16777216
              then (select json_object_agg(key, value) from jsonb_each_text(variables)) end
$$;

-- Return the names of all roles that a role is a member of.
create function drover.roles_of(role name) returns json language sql stable strict as $$
  select json_agg(r.rolname) from pg_catalog.pg_roles s
    join pg_catalog.pg_roles r on pg_catalog.pg_has_role(s.oid, r.oid, 'member')
   where s.rolname = role
$$;

-- ---------------------------------------------------------------- views

-- The rows of drover.jobqueue as people are shown them: a job that is in hand by a record alone is claimed, too.
create view drover.jobs as
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
       jq_first_start, jq_attempt_start
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
       jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_elapsedtime, jq_processedtime, jq_expected_end, jq_submitter
  from drover.jobs;

create or replace view drover.graph as
select jq_pk, jq_name, jq_type, jq_state, parents, children, parents = '{}' as is_root, children = '{}' as is_leaf
  from drover.jobs,
       lateral (select array(select jdep_jq_depends_fk from drover.jobdepends where jdep_jq_fk = jq_pk
         order by 1) as parents,
                       array(select jdep_jq_fk from drover.jobdepends where jdep_jq_depends_fk = jq_pk
                         order by 1) as children offset 0) e;

create or replace view drover.jobd as
select jq_pk as id, jq_queue as target,
       extract(epoch from coalesce((select job_queued from drover.job
         where job_pk = jq_job_fk), jq_queued))::bigint as time_created,
       coalesce(extract(epoch from jq_starttime), 0)::bigint as time_started,
       coalesce(extract(epoch from jq_endtime), 0)::bigint as time_finished,
       case when jq_state = 'held' then 'manual' when jq_state in ('queued', 'blocked') then 'waiting'
            when jq_state = 'claimed' then 'accepted' when jq_state = 'running' then 'running'
            when jq_state in ('ignored', 'skipped') then 'ignored' else 'done' end as status,
       case when jq_endtime is not null then case when jq_end_bits & 1 = 1 then 'ok' else 'fail' end end as result,
       case when jq_endtime is not null then coalesce(jq_exitcode, 1 - (jq_end_bits & 1)) end as return_code,
       jq_signal as signal,
       (select string_agg(out_data, '' order by out_pk) from drover.output
         where out_jq_fk = jq_pk and out_attempt = jq_attempt and out_stream = 'out') as stdout,
       (select string_agg(out_data, '' order by out_pk) from drover.output
         where out_jq_fk = jq_pk and out_attempt = jq_attempt and out_stream = 'err') as stderr
  from drover.jobs where jq_type <> 'command';

create or replace view drover.reason as
select j.jq_pk, j.jq_type, s.state as jq_state,
  case
    when s.state = 'blocked' or s.state = 'claimed' and j.jq_msq and j.jq_endtext <> 'in progress' then j.jq_endtext
    when s.state = 'queued' and j.jq_type <> 'command' and j.jq_unmet = 0 and j.jq_wait_until > now()
      and j.jq_retry_at is not null
      then coalesce(j.jq_endtext, 'back-off')
    when j.jq_endtime is not null then coalesce(j.jq_endtext, '')
      || case when j.jq_msq and j.jq_itemsfailed > 0 then '; the reason of each: drover log ' || j.jq_pk else '' end
  end as text,
  case
    when s.state = 'held' then case j.jq_mode when 'manual' then 'manual: waits for run'
      else 'held: waits for release' end
    when s.state = 'blocked' then 'blocked'
    when s.state in ('claimed', 'running') then case
      when s.state = 'running' and j.jq_msq and (not a.agent_enabled or r.room_closed is not null)
        then 'running' || coalesce(': ' || drover.items(j), '') || ', and no more is begun: '
          || case when a.agent_enabled then r.room_closed else 'agent type ' || a.agent_type || ' is disabled' end
      when s.state = 'running' and j.jq_msq and a.agent_blocked_until > now()
        then 'running' || coalesce(': ' || drover.items(j), '') || ', and no more is begun: ' || drover.rests(a)
      when s.state = 'running' and j.jq_expected_end is not null then 'running: ' || drover.items(j) || ', about '
        || drover.about(extract(epoch from j.jq_expected_end - now())::float8) || ' left' || case when j.jq_repeat
          then ' of this slice' else '' end
      when s.state = 'running'
        then 'running, in hand since ' || date_trunc('second', coalesce(j.jq_attempt_start, j.jq_starttime))
        || case when j.jq_msq then coalesce(': ' || drover.items(j), '') else '' end
      when j.jq_msq and j.jq_endtext <> 'in progress' then 'in hand'
      when not h.host_enabled then 'in hand, waits for an agent: host ' || h.host_name || ' is disabled'
      when h.host_down_until > now()
        then 'in hand, waits for an agent: host ' || h.host_name || ' is down: ' || coalesce(h.host_reason, '?')
      else coalesce('in hand, waits for an agent: '
        || coalesce(a.agent_reason, r.room_closed, r.room_full, r.room_busy), 'in hand: waits for an agent') end
    when s.state = 'queued' and j.jq_type = 'command'
      then case when j.jq_wait_until is null then 'waits for an active scheduler'
        else 'waits for the jobs that it runs' end
    when s.state = 'queued' then case
      when j.jq_unmet > 0 then 'waits for ' || j.jq_unmet || case j.jq_unmet when 1 then ' dependency: job '
        else ' dependencies: jobs ' end
        || coalesce((select string_agg(pk || coalesce(' (' || name || ')', ''), ', ' order by pk)
                       from (select p.jq_pk as pk, p.jq_name as name
                               from drover.jobdepends join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk
                              where jdep_jq_fk = j.jq_pk and jdep_met_at is null limit 10) d), '?')
        || coalesce((select '; job ' || p.jq_pk || case p.jq_state when 'failed'
          then ' has failed: retry it, or cancel or ice this one'
                                                       else ' is ' || p.jq_state
                                                         || ' for good: cancel or ice this one' end
                       from drover.jobdepends join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk
                      where jdep_jq_fk = j.jq_pk and jdep_met_at is null and jdep_on_unmet = 'wait'
                        and p.jq_endtime is not null and p.jq_end_bits & jdep_depends_bits = 0
                      order by p.jq_state = 'failed', p.jq_pk limit 1), '')
      when j.jq_wait_until > now() then 'waits until ' || date_trunc('second', j.jq_wait_until)
      when q.queue_name is null then 'no queue ' || quote_literal(j.jq_queue)
      when q.queue_paused then 'queue ' || q.queue_name || ' is paused'
      when a.agent_type is null
        then 'no agent type ' || quote_literal(j.jq_type) || ' is configured in group ' || q.queue_group
      when not a.agent_present then 'agent type ' || a.agent_type || ' is no longer configured'
      when not a.agent_enabled then 'agent type ' || a.agent_type || ' is disabled'
      when h.host_name is null and j.jq_host is not null then 'no host ' || quote_literal(j.jq_host)
      when h.host_group <> q.queue_group
        then 'host ' || h.host_name || ' belongs to group ' || h.host_group || ', queue ' || q.queue_name || ' to '
        || q.queue_group
      when not h.host_present then 'host ' || h.host_name || ' is no longer configured'
      when r.room_agent is null and exists (
             select from drover.scheduler_status
              where status_scheduler = g.group_owner and status_slot = -1 and status_updated > a.agent_registered)
        then 'agent type ' || a.agent_type || ' has no slots on ' || coalesce('host ' || h.host_name, 'any host')
      when not h.host_enabled then 'host ' || h.host_name || ' is disabled'
      when h.host_down_until > now() then 'host ' || h.host_name || ' is down: ' || coalesce(h.host_reason, '?')
      when not exists (
        select from drover.host t
         where t.host_group = q.queue_group and t.host_present and t.host_name = coalesce(j.jq_host, t.host_name)
           and coalesce(j.jq_queue = any (t.host_queues), true)
             and coalesce(strpos(t.host_letters, left(j.jq_priority, 1)) > 0, true))
        then coalesce('host ' || j.jq_host || ' does not take', 'no host takes') || ' jobs of queue ' || q.queue_name
          || ' with priority ' || j.jq_priority
      when g.group_owner is null
        or g.group_lease_until < now() then 'no scheduler is active for group ' || q.queue_group
      when a.agent_blocked_until > now() then drover.rests(a)
      when q.queue_concurrency <= (select count(distinct r.jq_pk)
                                     from drover.in_hand, unnest(hand_jobs) as pk join drover.jobqueue r on r.jq_pk = pk
                                    where r.jq_queue = q.queue_name and (r.jq_state in ('claimed', 'running')
                                      or r.jq_pk in (select jq_pk from drover.recorded)))
        then 'queue ' || q.queue_name || ' is full'
      when a.agent_reason is not null then 'waits its turn: ' || a.agent_reason
      when coalesce(r.room_closed, r.room_full) is not null then coalesce(r.room_closed, r.room_full)
      when j.jq_msq and a.agent_queries_wait then 'waits its turn: others of its type wait for an expansion connection'
      else 'waits its turn' || coalesce(': ' || r.room_busy, (
        select '; agents are reserved for queue ' || string_agg(o.queue_name, ', ' order by o.queue_name)
          from drover.queue o
         where o.queue_group = q.queue_group and o.queue_name <> q.queue_name and o.queue_present
           and o.queue_reserved > 0), '') end
    else s.state::text
  end as says
from drover.jobqueue j left join drover.recorded c on c.jq_pk = j.jq_pk
cross join lateral (select case when c.jq_pk is null then j.jq_state else 'claimed' end as state) s
left join drover.queue q on q.queue_name = j.jq_queue
left join drover.scheduler_group g on g.group_name = q.queue_group
left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.jq_type
left join drover.host h on h.host_name = j.jq_host
left join drover.room r on r.room_scheduler = g.group_owner and r.room_agent = j.jq_type
                       and coalesce(r.room_host, '') = coalesce(j.jq_host, '');

create or replace view drover.cleanup as
select j.jq_pk, c.jq_pk as cleanup_jq_pk,
  case when c.jq_pk is null then 'none'
       when c.jq_state in ('claimed', 'running') then 'removing'
       when c.jq_endtime is null then 'pending'
       when c.jq_state = 'done' then 'removed'
       else 'failed' end as cleanup_state,
  c.jq_host as cleanup_host, case when c.jq_state not in ('claimed', 'running', 'done')
    then c.jq_endtext end as cleanup_text
  from drover.jobqueue j left join drover.jobs c on c.jq_name = 'cleanup.' || j.jq_pk;

-- ---------------------------------------------------------------- inserts

-- Postgres reads and prepares every check of a table again for each statement that inserts or updates, a third of the
-- cost of inserting one row. So the two long ones are shorter here, with the same meaning.
alter table drover.jobqueue
  drop constraint jobqueue_jq_end_bits_check,            -- the next one says it
  drop constraint jobqueue_state_says_who_and_when,
  -- What a state means. The states before `done` are those of a job that has not ended. No start: may run. Start but no
  -- end: being worked. Both: finished.
  add constraint jobqueue_state_says_who_and_when check (
    case
      when jq_state < 'done'
        then jq_endtime is null and jq_end_bits = 0 and (jq_starttime is null) = (jq_owner is null)
             and (jq_owner is not null) = (jq_state = 'claimed' or jq_state = 'running')
      else jq_owner is null and jq_starttime is not null and jq_endtime is not null
           and case jq_state when 'done' then jq_end_bits = any ('{1, 5}')
                             when 'skipped' then jq_end_bits = any ('{1, 2}')
                             else jq_end_bits = any ('{2, 6}') end
    end),
  drop constraint jobqueue_start_window_is_of_dates,
  add constraint jobqueue_start_window_is_of_dates check (
    least(jq_not_before, jq_not_after) at time zone 'UTC' >= '0001-01-02'
    and greatest(jq_not_before, jq_not_after) at time zone 'UTC' <= '9999-12-31 09:59:59');
