-- What a migration minds. It runs once, in one transaction, while daemons of the version before may be at work: these go on
-- with the new schema until they are replaced. So no name of theirs goes away, and what is added has a default that is
-- right for their rows and for what they insert. A function that changes stands here whole, with its comments: of several
-- files that have it the last one counts. A view that only gains columns is replaced, which keeps its grants. Before a
-- constraint comes, rows that it would refuse are changed; left `not valid`, it would refuse their next update. New columns are
-- the last of their tables: nothing may depend on the order. Grants are in roles.sql.

-- All at once, in the order of most statements: what comes in meanwhile waits here, not halfway through.
lock table drover.scheduler, drover.scheduler_group, drover.job, drover.jobqueue, drover.claimable, drover.agent in access exclusive mode;

-- ---------------------------------------------------------------- jobs

update drover.job
   set job_queued = least(greatest(job_queued, timestamptz '0001-01-02 00:00:00+00'), timestamptz '9999-12-31 09:59:59+00')
 where job_queued < timestamptz '0001-01-02 00:00:00+00' or job_queued > timestamptz '9999-12-31 09:59:59+00';
alter table drover.job
  -- Not all that reads times knows infinity, or a year of five digits; such a row would break a listing of all.
  add constraint job_queued_is_a_date check (job_queued at time zone 'UTC' between '0001-01-02' and '9999-12-31 09:59:59');

-- A start window that is open at an end stays as wide as dates are; what is derived from it follows. (A job that waits for
-- good for something else has an infinite jq_wait_until, which stays.)
update drover.jobqueue
   set jq_not_before = least(greatest(jq_not_before, timestamptz '0001-01-02 00:00:00+00'), timestamptz '9999-12-31 09:59:59+00'),
       jq_wait_until = case when jq_wait_until = jq_not_before then timestamptz '9999-12-31 09:59:59+00' else jq_wait_until end
 where jq_not_before < timestamptz '0001-01-02 00:00:00+00' or jq_not_before > timestamptz '9999-12-31 09:59:59+00';
update drover.jobqueue
   set jq_not_after = least(greatest(jq_not_after, timestamptz '0001-01-02 00:00:00+00'), timestamptz '9999-12-31 09:59:59+00'),
       jq_expires_at = case when jq_expires_at is not null
                            then least(greatest(jq_expires_at, timestamptz '0001-01-02 00:00:00+00'), timestamptz '9999-12-31 09:59:59+00') end
 where jq_not_after < timestamptz '0001-01-02 00:00:00+00' or jq_not_after > timestamptz '9999-12-31 09:59:59+00';
update drover.jobqueue set jq_timeout = interval '100 years' where jq_timeout > interval '100 years';

-- The name of a column that is empty is none: with it these jobs could only fail. They have been SQL jobs, and stay so.
alter table drover.jobqueue disable trigger jobqueue_fixed;
update drover.jobqueue set jq_runonpfile = null where jq_runonpfile = '' and jq_state in ('held', 'queued', 'blocked');
alter table drover.jobqueue enable trigger jobqueue_fixed;

alter table drover.jobqueue
  drop constraint jobqueue_jq_timeout_check,
  add constraint jobqueue_jq_timeout_check check (jq_timeout > interval '0' and jq_timeout <= interval '100 years'),
  add constraint jobqueue_start_window_is_of_dates check (
    jq_not_before at time zone 'UTC' between '0001-01-02' and '9999-12-31 09:59:59'
    and jq_not_after at time zone 'UTC' between '0001-01-02' and '9999-12-31 09:59:59'),
  add column jq_first_start   timestamptz,               -- of an SQL job that was worked before: when it began first
  add column jq_attempt_start timestamptz;               -- of such a job in hand: when this attempt began; null is jq_starttime

-- SQL jobs that were worked, and go on, began with the first of their attempts. Those in hand keep the start they have.
update drover.jobqueue
   set jq_first_start = (select min(att_start) from drover.attempt_kept where att_jq_fk = jq_pk)
 where jq_msq and jq_state in ('held', 'queued', 'blocked') and jq_processedtime > interval '0';

-- pg_notify, unless the session has set drover.notify = off: while the NOTIFY queue of the server is full, every commit
-- with a notification fails.
create function drover.notify(channel text, payload text) returns void language sql as $$
  select case when coalesce(current_setting('drover.notify', true), '') <> 'off' then pg_catalog.pg_notify(channel, payload) end;
$$;

-- ---------------------------------------------------------------- who does it

alter table drover.scheduler_group
  add column group_number bigint;                        -- the highest jq_pk at that time: later commands have higher ones
alter table drover.scheduler
  add column scheduler_number bigint not null default coalesce(pg_sequence_last_value('drover.jobqueue_jq_pk_seq'), 0);  -- see group_number
alter table drover.agent
  add column agent_blocked_since timestamptz;            -- every slot has failed since then; and until agent_blocked_until

-- The commands that are there came before or after, as their times say, which was all that counted until now.
update drover.scheduler_group
   set group_number = (select coalesce(max(jq_pk), 0) from drover.jobqueue where jq_type = 'command' and jq_queued <= group_taken_at)
 where group_taken_at is not null;
update drover.scheduler
   set scheduler_number = (select coalesce(max(jq_pk), 0) from drover.jobqueue where jq_type = 'command' and jq_queued <= scheduler_started);

-- ---------------------------------------------------------------- rules on the way in

-- Called only for rows that need it: the plain row, the common case, passes the WHEN clause alone.
create or replace function drover.prepare_job() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if new.jq_state not in ('held', 'queued') then
    raise exception 'a job is inserted held or queued, not %', new.jq_state using errcode = 'check_violation';
  elsif octet_length(concat(new.jq_type, new.jq_queue, new.jq_host)) > 2000 then  -- the index of claims would refuse it too late
    raise exception 'jq_type, jq_queue and jq_host are too long: 2,000 bytes at most, together' using errcode = 'check_violation';
  end if;
  if new.jq_mode = 'manual' then new.jq_state := 'held'; end if;
  new.jq_runonpfile := nullif(new.jq_runonpfile, '');
  if new.jq_runonpfile is not null then new.jq_msq := true; end if;
  if new.jq_queue is null or (new.jq_queue = 'default' and new.jq_host is not null) then
    new.jq_queue := coalesce(
      (select q.queue_name from drover.host h join drover.queue q on q.queue_name = h.host_group where h.host_name = new.jq_host),
      'default');
  end if;
  if new.jq_job_fk is not null then
    new.jq_urgent := new.jq_urgent or coalesce((select job_priority >= 100 from drover.job where job_pk = new.jq_job_fk), false);
  end if;
  new.jq_wait_until := case when new.jq_not_before > now() then new.jq_not_before end;
  new.jq_expires_at := new.jq_not_after;
  new.jq_live_key := new.jq_unique_key;
  return new;
end $$;

-- How much is let in, in bytes: a claim brings many rows into the memory of a daemon at once. An operator may change it;
-- rows that are there already are worked as they are, unless they have more than 16 MiB. No limit may be below what the
-- triggers let pass unseen.
create table drover.size_limit (
  limit_column text primary key,
  limit_bytes  integer not null check (limit_bytes between 65536 and 16777216)
);
insert into drover.size_limit values ('jq_args', 1048576), ('jq_variables', 1048576), ('job_data', 1048576);

-- Bytes of JSON as text. What has very many in its own form is not made text: there might be no memory for that.
create function drover.json_bytes(value jsonb) returns integer language sql immutable parallel safe as $$
  select case when pg_column_size(value) > 134217728 then pg_column_size(value) else octet_length(value::text) end
$$;

-- Refuse a row with a text that is too long. Names have 2,000 bytes at most: an index takes no more.
create function drover.refuse_long(columns text[], bytes integer[]) returns void
  language plpgsql set search_path = drover, pg_temp as $$
declare
  wrong record;
begin
  select name, size, coalesce(limit_bytes, 2000) as most, limit_bytes is not null as is_set into wrong
    from unnest(columns, bytes) as u(name, size) left join size_limit on limit_column = name
   where size > coalesce(limit_bytes, 2000) limit 1;
  if wrong.is_set then
    raise exception '% has % bytes, and % are let in: put them in a file or a table and name that, or ask an operator to raise drover.size_limit',
      wrong.name, wrong.size, wrong.most using errcode = 'check_violation';
  elsif found then
    raise exception '% has % bytes, and % are let in: choose a shorter one', wrong.name, wrong.size, wrong.most using errcode = 'check_violation';
  end if;
end $$;

-- A clean-up comes with the end of a job, which may not fail; its files had their limit when that was inserted.
create function drover.limit_job() returns trigger language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform drover.refuse_long(
    '{jq_args,jq_variables,jq_name,jq_unique_key,jq_runonpfile,jq_key}',
    array[octet_length(new.jq_args), drover.json_bytes(new.jq_variables), octet_length(new.jq_name), octet_length(new.jq_unique_key),
          octet_length(new.jq_runonpfile), octet_length(new.jq_key)])
    where new.jq_type <> 'cleanup';
  return new;
end $$;
create trigger jobqueue_limit before insert on drover.jobqueue for each row
  when (octet_length(new.jq_args) > 65536
        or pg_column_size(new.jq_variables) > 65536 or octet_length(new.jq_variables::text) > 65536
        or octet_length(new.jq_name) > 2000 or octet_length(new.jq_unique_key) > 2000
        or octet_length(new.jq_runonpfile) > 2000 or octet_length(new.jq_key) > 2000)
  execute function drover.limit_job();

create function drover.limit_group() returns trigger language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform drover.refuse_long('{job_name,job_tenant,job_data}',
                             array[octet_length(new.job_name), octet_length(new.job_tenant), drover.json_bytes(new.job_data)]);
  return new;
end $$;
create trigger job_limit before insert on drover.job for each row
  when (octet_length(new.job_name) > 2000 or octet_length(new.job_tenant) > 2000 or new.job_data is not null)
  execute function drover.limit_group();

-- A command has no queue and waits for nothing. Whoever may not command may through drover.command alone, which runs as
-- the owner: so this function must run as whoever inserts.
create or replace function drover.prepare_command() returns trigger
  language plpgsql set search_path = drover, pg_temp as $$
begin
  if not (drover.may_command()
          or pg_has_role(current_user, (select relowner from pg_catalog.pg_class where oid = tg_relid), 'member')) then
    raise exception 'only drover_operator may insert commands' using errcode = 'insufficient_privilege';
  end if;
  new.jq_queue := null;
  new.jq_state := 'queued';
  new.jq_mode := 'background';
  new.jq_msq := false;
  new.jq_runonpfile := null;
  new.jq_not_before := null;
  new.jq_not_after := null;
  new.jq_delete := null;
  new.jq_live_key := new.jq_unique_key;
  perform drover.notify('drover_command', '');
  return new;
end $$;

-- Insert a command. Whoever is no operator gives commands about jobs of their own alone, by number or name, and no signal
-- that stops an agent without an end: it may have lines of others.
create or replace function drover.command(words text) returns bigint
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  owners  text[] := '{killjob,cancel,signal,release,hold,ice,retry,run}';
  verbs   text[] := owners || '{unblock,shutdown,reload,reopen-log,verbose,reset,poll,pause,continue,add-queue,remove-queue,set-concurrency,'
                              'set-queue-priority,host-enable,host-disable,host-max,host-filter,agent-enable,agent-disable,step-down,flush,status}';
  is_free boolean := drover.may_command();
  verb    text := drover.word(words, 1);
  rest    text[] := (regexp_split_to_array(btrim(words, E' \t\n\r'), E'[ \t\n\r]+'))[2:];
  given   text;
  number  bigint;
  pk      bigint;
begin
  if (verb = any (verbs)) is not true then
    raise exception 'no such command: %; there are %', coalesce(quote_literal(left(nullif(verb, ''), 64)), 'nothing'),
      array_to_string(case when is_free then verbs else owners end, ', ') using errcode = 'invalid_parameter_value';
  elsif not is_free and verb <> all (owners) then
    raise exception 'only drover_operator may command %', verb using errcode = 'insufficient_privilege';
  elsif not is_free then
    foreach given in array coalesce(nullif(case
        when verb = 'run' then rest
        when verb = 'signal' then array(select w from unnest(rest) with ordinality as u(w, n) where n % 2 = 1 order by n)
        else rest[1:1] end, '{}'), '{?}') loop
      if cardinality(rest) = 0 then
        raise exception '% of which job: a number or a jq_name is missing', verb using errcode = 'invalid_parameter_value';
      end if;
      number := case when given ~ '^[0-9]{1,18}$' then given::bigint end;
      if not exists (select from drover.jobqueue where jq_submitter = session_user and (jq_pk = number or jq_name = given)) then
        raise exception 'job % is not yours', given using errcode = 'insufficient_privilege';
      end if;
    end loop;
    select w into given from unnest(rest) with ordinality as u(w, n)
     where verb = 'signal' and n % 2 = 0 and regexp_replace(upper(w), '^SIG', '') <> all ('{INT,TERM,HUP,USR1,USR2,2,15,1,10,12}') limit 1;
    if found then
      raise exception 'only drover_operator may send signal %: owners send INT, TERM, HUP, USR1 or USR2', left(given, 64)
        using errcode = 'insufficient_privilege', hint = 'killjob ends a job with its agents.';
    end if;
  end if;
  insert into drover.jobqueue (jq_type, jq_args) values ('command', words) returning jq_pk into pk;
  return pk;
end $$;

-- Wake schedulers: drover_queue says that there may be work, drover_due that an instant was set, drover_change that the
-- tables they follow are others now.
create or replace function drover.wake() returns trigger language plpgsql as $$
begin
  perform drover.notify(tg_argv[0], '');
  return null;
end $$;

-- New rows become claimable all at once, and ring once; commands were offered one by one. A statement that adds edges too may
-- have added them before this: then the rows are not as they were inserted any more.
create or replace function drover.offer_new() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if coalesce(current_setting('drover.has_edges', true), '') <> '' then
    perform drover.offer_all(array(
      select j.jq_pk from drover.jobqueue j where j.jq_pk = any (array(select jq_pk from arrived)) and j.jq_type <> 'command' and drover.is_claimable(j)));
  elsif exists (select from drover.agent where agent_fair)
     and exists (select from arrived join drover.fair on fair_type = jq_type and fair_queue = jq_queue) then
    perform drover.line_up(array(
      select jq_pk from arrived where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and jq_type <> 'command'));
  else
    insert into drover.claimable
    select jq_pk, jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), drover.rank(jq_urgent, jq_priority) from arrived
     where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null and jq_type <> 'command';
  end if;
  perform drover.notify('drover_queue', '');
  return null;
end $$;

-- Commands of operators come first, then those of others: their submitters take turns, as those of a fair type do.
create function drover.offer_command() returns trigger
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
  insert into drover.claimable values (new.jq_pk, new.jq_queued, 'command', '', host, rank, line);
  return null;
end $$;
create trigger jobqueue_offer_command after insert on drover.jobqueue for each row
  when (new.jq_type = 'command') execute function drover.offer_command();

-- The commands of others that wait already take turns too.
update drover.claimable
   set claim_line = c.jq_submitter, claim_rank = drover.rank_in_round('2' || c.jq_priority, c.n - 1)
  from (select jq_pk, jq_submitter, jq_priority,
               row_number() over (partition by claim_host, jq_priority, jq_submitter order by claim_queued, jq_pk) as n
          from drover.claimable join drover.jobqueue on jq_pk = claim_jq_fk
         where claim_type = 'command' and not drover.may_command(jq_submitter)) c
 where claim_jq_fk = c.jq_pk;

-- ---------------------------------------------------------------- rules on the way on

create or replace function drover.offer(job drover.jobqueue, is_back boolean) returns void language plpgsql as $$
declare
  rank text := drover.rank(job.jq_urgent, job.jq_priority);
  line text;
begin
  if exists (select from drover.fair where fair_type = job.jq_type and fair_queue = job.jq_queue) then
    line := drover.line_of(job.jq_submitter, is_back);
    rank := drover.rank_in_round(rank, drover.next_round(job.jq_type, job.jq_queue, coalesce(job.jq_host, ''), rank, line));
  end if;
  insert into drover.claimable
  values (job.jq_pk, job.jq_queued, job.jq_type, coalesce(job.jq_queue, ''), coalesce(job.jq_host, ''), rank, line);
  perform drover.notify('drover_queue', '');
end $$;

-- Jobs that may be claimed now, or no more, since jq_unmet is another: a fan of jobs moves at once.
create or replace function drover.offer_all(jobs bigint[]) returns void language plpgsql as $$
begin
  if exists (select from drover.agent where agent_fair) then
    perform drover.line_up(jobs);
  else
    insert into drover.claimable
    select jq_pk, jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), drover.rank(jq_urgent, jq_priority)
      from drover.jobqueue where jq_pk = any (jobs);
  end if;
  perform drover.notify('drover_queue', '') where cardinality(jobs) > 0;
end $$;

-- ---------------------------------------------------------------- dependencies

-- Lock jobs in the order of their numbers, against all changes or (shared) against those only; one that stays locked by
-- another transaction for as long as lock_timeout is named. An exception block costs a subtransaction, and many of them
-- slow down every session: so there is one only if another transaction may have a row, as its xmax tells.
create function drover.lock_jobs(jobs bigint[], shared boolean) returns void
  language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  own      text := (pg_current_xact_id()::text::bigint & 4294967295)::text;
  stuck    bigint;
begin
  if not exists (select from jobqueue where jq_pk = any (jobs) and xmax <> '0' and xmax::text <> own) then
    perform drover.lock_in_order(jobs, shared);
    return;
  end if;
  begin
    perform drover.lock_in_order(jobs, shared);
  exception when lock_not_available then
    select min(pk) into stuck from unnest(jobs) as pk
     where pk not in (select jq_pk from jobqueue where jq_pk = any (jobs) for no key update skip locked);
    raise exception 'job % is kept locked by another transaction: end that one, then add the dependency again', coalesce(stuck, jobs[1])
      using errcode = 'lock_not_available';
  end;
end $$;

create function drover.lock_in_order(jobs bigint[], shared boolean) returns void
  language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan as $$
begin
  if shared then
    perform from jobqueue where jq_pk = any (jobs) order by jq_pk for share;
  else
    perform from jobqueue where jq_pk = any (jobs) order by jq_pk for no key update;
  end if;
end $$;

-- A cycle among these jobs and all below them, whoever else adds edges at the same time. What is below is locked and looked
-- at again until it is the same, so that of two transactions whose edges are below each other's one waits: it sees what
-- the other has added, and of all that make a cycle the last to commit sees all of it. Row locks on the jobs of the edges
-- alone accepted a four-cycle built by four sessions. A transaction that sees nothing new cannot look again.
create or replace function drover.cycle_for_sure(tops bigint[]) returns bigint[]
  language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  cycle bigint[];
  jobs  bigint[];
  seen  bigint[];
begin
  if tops <> '{}' and current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'a dependency between jobs that have others wants a transaction that is read committed' using errcode = 'invalid_transaction_state';
  end if;
  loop
    select c.cycle, c.jobs into cycle, jobs from drover.cycle_below(tops) c;
    exit when cycle is not null or jobs is not distinct from seen;
    perform drover.lock_jobs(jobs, shared => true);
    seen := jobs;
  end loop;
  return cycle;
end $$;

-- Skip jobs that would wait in vain for these parents, in the same order: those that are parents themselves.
create or replace function drover.skip(jobs bigint[], tops bigint[]) returns bigint[]
  language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  ended   bigint[];
  parents bigint[];
  skipped bigint[] := '{}';
  step    record;
begin
  for step in select top, array_agg(pk) as pks from unnest(jobs, tops) as u(pk, top) group by top order by top loop
    with gone as (
      update jobqueue
         set jq_state = 'skipped', jq_starttime = coalesce(jq_first_start, now()), jq_endtime = now(), jq_end_bits = 2,
             jq_endtext = 'dependency on job ' || step.top || ' not met', jq_wait_until = null
       where jq_pk = any (step.pks) and jq_state in ('held', 'queued')
      returning jq_pk, jq_has_children)
    select array_agg(jq_pk), array_agg(jq_pk) filter (where jq_has_children) into ended, parents from gone;
    perform drover.announce(ended, array_fill('skipped'::text, array[cardinality(ended)])) where ended is not null;
    skipped := skipped || parents;
  end loop;
  return skipped;
end $$;

-- The edges of a statement are looked at together: one by one, each would cost a walk through the graph. Their jobs stay
-- locked until the end of the transaction, so that a child has been claimed before, or is not meanwhile, and a parent has
-- ended before, or does not. Jobs of others are refused before anything is locked, and again after it; nobody waits for a
-- lock longer than two seconds. Edges below a parent that has ended are settled at once. A child that an edge before
-- these skipped, in this transaction, takes the rest of its edges in silence.
create or replace function drover.add_edges() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  is_free boolean := drover.may_command();
  parents bigint[] := array(select distinct jdep_jq_depends_fk from added);
  limits  text := current_setting('lock_timeout');
  wrong   record;
  cycle   bigint[];
  open    bigint[];
  vain    bigint[];
  tops    bigint[];
  todo    bigint[];
  next    bigint;
begin
  if not is_free then
    select jdep_jq_fk as child, jdep_jq_depends_fk as parent into wrong from added
     where exists (select from jobqueue where jq_pk in (jdep_jq_fk, jdep_jq_depends_fk) and jq_submitter <> session_user offset 0) limit 1;
    if found then
      raise exception 'job % or % is not yours: a dependency needs both', wrong.child, wrong.parent using errcode = 'insufficient_privilege';
    end if;
  end if;
  if limits = '0' or limits::interval > '2 s' then
    perform set_config('lock_timeout', '2s', true);  -- not by the function's own settings: these would lengthen a shorter one
  end if;
  perform drover.lock_jobs(parents || array(select jdep_jq_fk from added), shared => false);
  select c.jq_pk as child, p.jq_pk as parent, c.jq_type, c.jq_state,
         c.jq_submitter = session_user and p.jq_submitter = session_user as is_mine
    into wrong from added
   cross join lateral (select * from jobqueue where jq_pk = jdep_jq_fk offset 0) c
   cross join lateral (select * from jobqueue where jq_pk = jdep_jq_depends_fk offset 0) p
   where not is_free and (c.jq_submitter <> session_user or p.jq_submitter <> session_user) or c.jq_type = 'command'
      or c.jq_state not in ('held', 'queued') and not (c.jq_state = 'skipped' and c.jq_endtime = now())
   limit 1;
  if found and not (is_free or wrong.is_mine) then
    raise exception 'job % or % is not yours: a dependency needs both', wrong.child, wrong.parent using errcode = 'insufficient_privilege';
  elsif wrong.jq_type = 'command' then
    raise exception 'job % is a command: it waits for nothing', wrong.child using errcode = 'check_violation';
  elsif found then
    raise exception 'job % is % already: it takes no new dependency', wrong.child, wrong.jq_state using errcode = 'check_violation';
  end if;
  cycle := drover.cycle_for_sure(array(
    select distinct jdep_jq_fk from added  -- whoever has none below, or whose parent none above, is on no cycle
     where exists (select from jobdepends d where d.jdep_jq_depends_fk = added.jdep_jq_fk and d.jdep_met_at is null offset 0)
       and exists (select from jobdepends d where d.jdep_jq_fk = added.jdep_jq_depends_fk and d.jdep_met_at is null offset 0)));
  if cycle is not null then
    select jdep_jq_fk as child, jdep_jq_depends_fk as parent into wrong
      from unnest(cycle, cycle[2:] || cycle[1]) as u(child, parent) join added on (jdep_jq_fk, jdep_jq_depends_fk) = (child, parent) limit 1;
    raise exception 'job % may not depend on %: that would be a cycle', wrong.child, wrong.parent using errcode = 'check_violation';
  end if;
  perform set_config('drover.has_edges', 'true', true);
  perform drover.notify('drover_queue', ''), drover.notify('drover_command', '')  -- while these are locked claims pass them over
    where exists (select from jobqueue where jq_pk = any (parents || array(select jdep_jq_fk from added)) and jq_state = 'queued');
  update jobqueue set jq_has_children = true where jq_pk = any (parents) and not jq_has_children;
  with looked as materialized (  -- edges whose parents have ended
    select place, jdep_jq_fk as kid, jdep_jq_depends_fk as top, jq_end_bits & jdep_depends_bits <> 0 as is_met, jdep_on_unmet
      from added a
     cross join lateral (select jq_end_bits from jobqueue where jq_pk = a.jdep_jq_depends_fk and jq_endtime is not null offset 0) p
     cross join lateral (
       select ctid as place from jobdepends d
        where (d.jdep_jq_fk, d.jdep_jq_depends_fk) = (a.jdep_jq_fk, a.jdep_jq_depends_fk) offset 0) d),
  met as (update jobdepends set jdep_met_at = now() where ctid = any (array(select place from looked where is_met)))
  select array(select jdep_jq_fk from added where (jdep_jq_fk, jdep_jq_depends_fk) not in (select kid, top from looked where is_met)),
         array(select kid from looked where not is_met and jdep_on_unmet = 'skip' order by kid, top),
         array(select top from looked where not is_met and jdep_on_unmet = 'skip' order by kid, top)
    into open, vain, tops;
  perform drover.count_unmet(open, 1);
  todo := drover.skip(vain, tops);
  while cardinality(todo) > 0 loop
    select s.unsettled, s.place into todo, next from drover.settle(todo, coalesce(next, 0), 10000, waits => true) s;
  end loop;
  perform set_config('lock_timeout', limits, true);
  return null;
end $$;

-- Settle up to so many open edges below ended parents, those of the first parent from a child on: how many children got
-- nearer, and with which parents, and from where on, to go on; a child skipped here is such a parent too. It must be a
-- statement of its own: in the one that ends the parent, the snapshot misses a new edge and its child waits for ever. An
-- edge that comes later is looked at as it comes. It waits for a child that somebody keeps locked, or leaves it and tells
-- which parents have such ones.
create or replace function drover.settle(
  parents bigint[], beyond bigint, most integer, waits boolean,
  out released integer, out unsettled bigint[], out place bigint, out locked bigint[])
  language plpgsql security definer set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan set enable_sort = on
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  looked_at record;
  skipped   bigint[];
begin
  perform drover.notify('drover_command', '')  -- a command may wait for them too
    where exists (select from jobqueue where jq_type = 'command' and jq_wait_until is not null);
  released := 0;
  unsettled := parents;
  place := beyond;
  locked := '{}';
  while most > 0 and cardinality(unsettled) > 0 loop
    with looked as materialized (  -- in the order of the array, as nested loops give them
      select d.*, top, n, row_number() over () as no, jq_end_bits & bits <> 0 as is_met
        from unnest(unsettled) with ordinality as p(top, n)
       cross join lateral (select jq_end_bits from jobqueue where jq_pk = top and jq_endtime is not null offset 0) j
       cross join lateral (
         select ctid, jdep_jq_fk, jdep_depends_bits, jdep_on_unmet = 'skip' from jobdepends
          where jdep_jq_depends_fk = top and jdep_jq_fk > case n when 1 then place else 0 end and jdep_met_at is null
          order by jdep_jq_fk limit most) d(row_at, kid, bits, skips)
       limit most),
    held as materialized (
      select jq_pk from jobqueue where not waits and jq_pk = any (array(select kid from looked)) for no key update skip locked),
    free as materialized (
      select * from looked where waits or kid in (select jq_pk from held)),
    met as (
      update jobdepends set jdep_met_at = now()
       where ctid = any (array(select row_at from free where is_met)) and jdep_met_at is null
      returning jdep_jq_fk)
    select array(select jdep_jq_fk from met) as met, array(select kid from free where skips and not is_met) as vain,
           array(select top from free where skips and not is_met) as tops, (select count(*) from looked) as count,
           array(select distinct top from looked where no not in (select no from free)) as locked, (select kid from looked order by no desc limit 1) as last_kid, (select max(n) from looked) as last
      into looked_at;
    released := released + drover.count_unmet(looked_at.met, -1);
    skipped := drover.skip(looked_at.vain, looked_at.tops);
    locked := array(select unnest(locked) union select unnest(looked_at.locked));
    if looked_at.count = most then
      unsettled := unsettled[looked_at.last:] || skipped;
      place := looked_at.last_kid;
    else
      unsettled := skipped;
      place := 0;
    end if;
    most := most - looked_at.count - 10;  -- a step costs as much as some edges
  end loop;
end $$;

-- ---------------------------------------------------------------- set-up

-- A value as it stands between the quotes of an agent's line (scheduler/model/expand.py).
create or replace function drover.escape(value text) returns text language sql immutable as $$
  select coalesce(string_agg(
           case when c in ('"', E'\\', '''', '$', '`') then E'\\' || c  -- so, whatever standard_conforming_strings says
                when c = E'\n' then E'\\n' when c = E'\r' then E'\\r' when c = E'\t' then E'\\t'
                when ascii(c) < 32 or ascii(c) = 127 then E'\\x' || lpad(to_hex(ascii(c)), 2, '0')
                else c end, '' order by n), '')
    from string_to_table(value, null) with ordinality as t(c, n)
$$;

-- Tell user interfaces what became of jobs: arrays under 8,000 bytes on channel drover_event.
create or replace function drover.announce(pks bigint[], states text[]) returns bigint language sql as $$
  select count(drover.notify('drover_event', chunk)) from (
    select json_agg(json_build_object('jq_pk', u.pk, 'state', u.state, 'job_pk', j.jq_job_fk))::text as chunk
      from unnest(pks, states) with ordinality as u(pk, state, n)
      left join drover.jobqueue j on j.jq_pk = u.pk
     group by (u.n - 1) / 80) c
$$;

-- ---------------------------------------------------------------- views

-- That every slot of an agent type rests in ST_FAIL, or that it lacks a connection: until when, since when and why; null if not.
create function drover.rests(agent drover.agent) returns text language sql stable parallel safe
  return case when agent.agent_blocked_until > now()
              then 'agent type ' || agent.agent_type || case when starts_with(agent.agent_reason, 'no connection') then ' waits' else ' failed' end || ', next try ' || date_trunc('second', agent.agent_blocked_until)
                   || coalesce(', resting since ' || date_trunc('second', agent.agent_blocked_since), '') || ': ' || coalesce(agent.agent_reason, '?') end;

-- Why a job is not running: the first reason that holds, most lasting first; and what was said of it, by an agent maybe, or by
-- the database, which is not for those who see no parameters.
create view drover.reason as
select j.jq_pk, j.jq_type, j.jq_state,
  case
    when j.jq_state = 'blocked' or j.jq_state = 'claimed' and j.jq_msq and j.jq_endtext <> 'in progress' then j.jq_endtext
    when j.jq_state = 'queued' and j.jq_type <> 'command' and j.jq_unmet = 0 and j.jq_wait_until > now() and j.jq_retry_at is not null
      then coalesce(j.jq_endtext, 'back-off')
    when j.jq_endtime is not null then coalesce(j.jq_endtext, '')
      || case when j.jq_msq and j.jq_itemsfailed > 0 then '; the reason of each: drover log ' || j.jq_pk else '' end
  end as text,
  case
    when j.jq_state = 'held' then case j.jq_mode when 'manual' then 'manual: waits for run' else 'held: waits for release' end
    when j.jq_state = 'blocked' then 'blocked'
    when j.jq_state in ('claimed', 'running') then case
      when j.jq_state = 'running' and j.jq_msq and (not a.agent_enabled or r.room_closed is not null)
        then 'running' || coalesce(': ' || drover.items(j), '') || ', and no more is begun: '
          || case when a.agent_enabled then r.room_closed else 'agent type ' || a.agent_type || ' is disabled' end
      when j.jq_state = 'running' and j.jq_msq and a.agent_blocked_until > now()
        then 'running' || coalesce(': ' || drover.items(j), '') || ', and no more is begun: ' || drover.rests(a)
      when j.jq_state = 'running' and j.jq_expected_end is not null then 'running: ' || drover.items(j) || ', about '
        || drover.about(extract(epoch from j.jq_expected_end - now())::float8) || ' left' || case when j.jq_repeat then ' of this slice' else '' end
      when j.jq_state = 'running' then 'running, in hand since ' || date_trunc('second', coalesce(j.jq_attempt_start, j.jq_starttime))
        || case when j.jq_msq then coalesce(': ' || drover.items(j), '') else '' end
      when j.jq_msq and j.jq_endtext <> 'in progress' then 'in hand'
      when not h.host_enabled then 'in hand, waits for an agent: host ' || h.host_name || ' is disabled'
      when h.host_down_until > now() then 'in hand, waits for an agent: host ' || h.host_name || ' is down: ' || coalesce(h.host_reason, '?')
      else coalesce('in hand, waits for an agent: ' || coalesce(a.agent_reason, r.room_closed, r.room_full, r.room_busy), 'in hand: waits for an agent') end
    when j.jq_state = 'queued' and j.jq_type = 'command'
      then case when j.jq_wait_until is null then 'waits for an active scheduler' else 'waits for the jobs that it runs' end
    when j.jq_state = 'queued' then case
      when j.jq_unmet > 0 then 'waits for ' || j.jq_unmet || case j.jq_unmet when 1 then ' dependency: job ' else ' dependencies: jobs ' end
        || coalesce((select string_agg(jdep_jq_depends_fk::text, ', ' order by jdep_jq_depends_fk)
                       from (select jdep_jq_depends_fk from drover.jobdepends
                              where jdep_jq_fk = j.jq_pk and jdep_met_at is null limit 10) d), '?')
        || coalesce((select '; job ' || p.jq_pk || case p.jq_state when 'failed' then ' has failed: retry it, or cancel or ice this one'
                                                       else ' is ' || p.jq_state || ' for good: cancel or ice this one' end
                       from drover.jobdepends join drover.jobqueue p on p.jq_pk = jdep_jq_depends_fk
                      where jdep_jq_fk = j.jq_pk and jdep_met_at is null and jdep_on_unmet = 'wait'
                        and p.jq_endtime is not null and p.jq_end_bits & jdep_depends_bits = 0
                      order by p.jq_state = 'failed', p.jq_pk limit 1), '')
      when j.jq_wait_until > now() then 'waits until ' || date_trunc('second', j.jq_wait_until)
      when q.queue_name is null then 'no queue ' || quote_literal(j.jq_queue)
      when q.queue_paused then 'queue ' || q.queue_name || ' is paused'
      when a.agent_type is null then 'no agent type ' || quote_literal(j.jq_type) || ' is configured in group ' || q.queue_group
      when not a.agent_present then 'agent type ' || a.agent_type || ' is no longer configured'
      when not a.agent_enabled then 'agent type ' || a.agent_type || ' is disabled'
      when h.host_name is null and j.jq_host is not null then 'no host ' || quote_literal(j.jq_host)
      when h.host_group <> q.queue_group then 'host ' || h.host_name || ' belongs to group ' || h.host_group || ', queue ' || q.queue_name || ' to ' || q.queue_group
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
           and coalesce(j.jq_queue = any (t.host_queues), true) and coalesce(strpos(t.host_letters, left(j.jq_priority, 1)) > 0, true))
        then coalesce('host ' || j.jq_host || ' does not take', 'no host takes') || ' jobs of queue ' || q.queue_name || ' with priority ' || j.jq_priority
      when g.group_owner is null or g.group_lease_until < now() then 'no scheduler is active for group ' || q.queue_group
      when a.agent_blocked_until > now() then drover.rests(a)
      when q.queue_concurrency <= (select count(distinct r.jq_pk)
                                     from drover.in_hand, unnest(hand_jobs) as pk join drover.jobqueue r on r.jq_pk = pk
                                    where r.jq_queue = q.queue_name and r.jq_state in ('claimed', 'running'))
        then 'queue ' || q.queue_name || ' is full'
      when a.agent_reason is not null then 'waits its turn: ' || a.agent_reason
      when coalesce(r.room_closed, r.room_full) is not null then coalesce(r.room_closed, r.room_full)
      when j.jq_msq and a.agent_queries_wait then 'waits its turn: others of its type wait for an expansion connection'
      else 'waits its turn' || coalesce(': ' || r.room_busy, (
        select '; agents are reserved for queue ' || string_agg(o.queue_name, ', ' order by o.queue_name)
          from drover.queue o
         where o.queue_group = q.queue_group and o.queue_name <> q.queue_name and o.queue_present and o.queue_reserved > 0), '') end
    else j.jq_state::text
  end as says
from drover.jobqueue j
left join drover.queue q on q.queue_name = j.jq_queue
left join drover.scheduler_group g on g.group_name = q.queue_group
left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.jq_type
left join drover.host h on h.host_name = j.jq_host
left join drover.room r on r.room_scheduler = g.group_owner and r.room_agent = j.jq_type
                       and coalesce(r.room_host, '') = coalesce(j.jq_host, '');

create or replace view drover.why as
select jq_pk, jq_type, jq_state, says || coalesce(': ' || text, '') as reason from drover.reason;

create view drover.why_masked as
select jq_pk, jq_type, jq_state, says as reason from drover.reason;

-- A front-end sees its own rows, by the role it logged in as; a function in its WHERE clause sees no others either.
-- The barrier keeps an outer order and limit out: with an order of its own, the newest rows are read without the rest.
create or replace view drover.my_jobs with (security_barrier) as
select * from drover.jobqueue where jq_submitter = session_user order by jq_pk desc;

-- It loses a column, so it is made anew.
drop view drover.jobs_masked;

-- Every job without what it works on, and without what an agent or a person said of it: for dashboards.
create view drover.jobs_masked as
select jq_pk, jq_job_fk, jq_name, jq_type, length(jq_args) as jq_args_length, jq_msq, jq_runonpfile, jq_host, jq_key, jq_tolerate,
       jq_repeat, jq_queue, jq_urgent, jq_priority, jq_not_before, jq_not_after, jq_wait_until, jq_max_interruptions, jq_retries,
       jq_timeout, jq_mode, jq_state, jq_attempt, jq_owner, jq_schedinfo, jq_interruptions, jq_failures, jq_rescued, jq_retry_at,
       jq_unmet, drover.word(jq_wanted, 1) as jq_wanted, jq_queued, jq_starttime, jq_endtime, jq_end_bits, jq_exitcode, jq_signal,
       jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_elapsedtime, jq_processedtime, jq_expected_end, jq_submitter
  from drover.jobqueue;
