-- The queue, its rules and its views. What users may rely on is in drover-jobqueue(7).

create type drover.job_state as enum
  ('held', 'queued', 'claimed', 'running', 'blocked', 'done', 'failed', 'cancelled', 'ignored', 'skipped');
create type drover.job_mode as enum ('background', 'manual');

-- ---------------------------------------------------------------- jobs

create table drover.job (
  job_pk       bigint generated always as identity primary key,
  job_name     text,
  job_priority integer not null default 0,               -- >= 100 is urgent
  job_queued   timestamptz not null default now(),
  job_tenant   text,
  job_user     name not null default session_user,
  job_data     jsonb,
  job_hidden   boolean not null default false
);

create table drover.jobqueue (
  jq_pk                bigint generated always as identity primary key,
  jq_job_fk            bigint references drover.job,
  jq_name              text unique,
  jq_type              text not null,
  jq_args              text not null default '',
  jq_variables         jsonb check (jsonb_typeof(jq_variables) = 'object'),   -- for exec agents, beside jq_args
  jq_msq               boolean not null default false,
  jq_runonpfile        text,
  jq_host              text,
  jq_key               text,
  jq_tolerate          bigint not null default 0 check (jq_tolerate >= 0),
  jq_repeat            boolean not null default false,
  jq_queue             text default 'default',
  jq_urgent            boolean not null default false,
  jq_priority          text collate "C" not null default 'n' check (jq_priority = 'n' or jq_priority ~ '^[A-Za-z0-9]{1,16}$'),
  jq_not_before        timestamptz,
  jq_not_after         timestamptz,
  jq_wait_until        timestamptz,                      -- derived: greatest(jq_not_before, jq_retry_at), null once due
  jq_expires_at        timestamptz,                      -- derived: jq_not_after until the first claim
  jq_live_key          text,                             -- derived: jq_unique_key until the end
  jq_max_interruptions integer not null default 3 check (jq_max_interruptions >= 0),
  jq_retries           integer not null default 0 check (jq_retries >= 0),
  jq_timeout           interval check (jq_timeout > interval '0'),
  jq_unique_key        text,
  jq_delete            text[],
  jq_mode              drover.job_mode not null default 'background',
  jq_state             drover.job_state not null default 'queued',
  jq_attempt           integer not null default 0,
  jq_owner             uuid,
  jq_schedinfo         text,
  jq_interruptions     integer not null default 0,
  jq_failures          integer not null default 0,
  jq_rescued           integer not null default 0,
  jq_retry_at          timestamptz,
  jq_unmet             integer not null default 0 check (jq_unmet >= 0),
  jq_has_children      boolean not null default false,   -- some edge waits for this row: its end settles them
  jq_wanted            text,
  jq_queued            timestamptz not null default now(),
  jq_starttime         timestamptz,
  jq_endtime           timestamptz,
  jq_endtext           text,
  jq_end_bits          integer not null default 0 check (jq_end_bits between 0 and 7),
  jq_exitcode          integer,
  jq_signal            text,
  jq_result            jsonb,
  jq_itemsprocessed    bigint not null default 0,
  jq_itemsfailed       bigint not null default 0,
  jq_itemstotal        bigint,
  jq_checkpoint        jsonb,                            -- keyed jobs: {"watermark": text, "beyond": [[first, last], ...]}
  jq_elapsedtime       interval,
  jq_processedtime     interval,
  jq_expected_end      timestamptz,                      -- of a multi-SQL-query that is worked, at the rate of its items
  jq_done_by           uuid,                             -- the attempt that was a plain success: which daemon,
  jq_done_host         text,                             -- on which host,
  jq_done_pid          integer,                          -- by which process
  jq_submitter         name not null default session_user,
  jq_resubmit_of       bigint,                           -- the job that this one does anew; no foreign key: that one may go
  constraint jobqueue_name_is_type_dot_nonce check (jq_name ~ '^[^.[:space:]]+[.][^.[:space:]]+$' and split_part(jq_name, '.', 1) = jq_type),
  constraint jobqueue_key_needs_sql check (jq_key is null or jq_msq),
  constraint jobqueue_repeat_needs_sql check (not jq_repeat or jq_msq),
  -- What a state means. No start: may run. Start without end: being worked. Both: finished.
  constraint jobqueue_state_says_who_and_when check (
    case
      when jq_state = 'claimed' or jq_state = 'running'
        then jq_owner is not null and jq_starttime is not null and jq_endtime is null and jq_end_bits = 0
      when jq_state = 'done' then jq_owner is null and jq_starttime is not null and jq_endtime is not null and jq_end_bits in (1, 5)
      when jq_state in ('held', 'queued', 'blocked')
        then jq_owner is null and jq_starttime is null and jq_endtime is null and jq_end_bits = 0
      when jq_state = 'skipped' then jq_owner is null and jq_starttime is not null and jq_endtime is not null and jq_end_bits in (1, 2)
      else jq_owner is null and jq_starttime is not null and jq_endtime is not null and jq_end_bits & 3 = 2
    end)
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- No index here has a column, or a condition, that changes when a plain job is claimed and ends: with room in the page
-- both updates stay heap-only and touch no index at all. What depends on the state stands in the two tables below.
create index jobqueue_due on drover.jobqueue (jq_wait_until) where jq_wait_until is not null;
create index jobqueue_expiring on drover.jobqueue (jq_expires_at) where jq_expires_at is not null;
create index jobqueue_of_job on drover.jobqueue (jq_job_fk) where jq_job_fk is not null;
create index jobqueue_runs on drover.jobqueue (jq_pk) where jq_type = 'command' and jq_wait_until is not null;  -- commands that wait for jobs
create unique index jobqueue_one_live_row_per_key on drover.jobqueue (jq_live_key) where jq_live_key is not null;

-- What may be claimed now, kept by triggers on jobqueue. A claim is a range scan from the left, for one (type, queue,
-- host) at a time, so that rows it cannot take are never read. Commands wait here too, of type 'command' and queue ''.
create table drover.claimable (
  claim_jq_fk  bigint not null,
  claim_queued timestamptz not null,
  claim_type   text collate "C" not null,
  claim_queue  text collate "C" not null,
  claim_host   text collate "C" not null,                -- '' means any
  claim_rank   text collate "C" not null,                -- 0 if urgent, else 1, then the letter: smaller goes first
  claim_line   text collate "C"                          -- of a fair type: whose line it stands in; its rank has a round
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create index claimable_order on drover.claimable
  (claim_type, claim_queue, claim_host, claim_rank, claim_queued, claim_jq_fk);
create index claimable_lines on drover.claimable (claim_type, claim_queue, claim_host, claim_line, claim_rank) where claim_line is not null;
create index claimable_in_line on drover.claimable (claim_jq_fk) where claim_line is not null;

create function drover.rank(urgent boolean, priority text) returns text language sql immutable parallel safe
  return case when urgent then '0' else '1' end || priority;

-- The dot sorts before all that a longer priority could have there; digits for a few hundred years (scheduler/model/jobs.py).
create function drover.rank_in_round(rank text, round bigint) returns text language sql immutable parallel safe
  return rank || '.' || lpad(round::text, 15, '0');

-- What a daemon has in hand: a hint where to look. A claim adds a row; now and then the daemon writes one anew for all
-- that it still has. So a job named here may be in hand, and one that is in hand is named here.
create table drover.in_hand (
  hand_owner uuid not null,
  hand_jobs  bigint[] not null                           -- not compressed: that would cost more than it saves
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table drover.in_hand alter hand_jobs set storage external;

create table drover.jobdepends (
  jdep_jq_fk         bigint not null references drover.jobqueue on delete cascade,   -- the child
  jdep_jq_depends_fk bigint not null references drover.jobqueue,                     -- the parent
  jdep_depends_bits  integer not null default 1 check (jdep_depends_bits between 1 and 7),
  jdep_on_unmet      text not null default 'wait' check (jdep_on_unmet in ('wait', 'skip')),
  jdep_met_at        timestamptz,                        -- an edge is met once, so a retry never counts twice
  primary key (jdep_jq_fk, jdep_jq_depends_fk),
  constraint jobdepends_not_on_itself check (jdep_jq_fk <> jdep_jq_depends_fk)
) with (fillfactor = 50);                                -- met without touching an index
create index jobdepends_of_parent on drover.jobdepends (jdep_jq_depends_fk, jdep_jq_fk);   -- the order in which they are settled

-- ---------------------------------------------------------------- what was done (no foreign keys: one bad row must not poison a batch)

-- Attempts, but for plain successes: their jobs tell of these themselves, which spares each job a row. See drover.attempt.
create table drover.attempt_kept (
  att_jq_fk     bigint not null,
  att_attempt   integer not null,
  att_scheduler uuid,
  att_host      text,
  att_agent     text,
  att_pid       integer,
  att_start     timestamptz not null,
  att_end       timestamptz not null default now(),
  att_outcome   text not null check (att_outcome in
    ('done', 'failed', 'slice', 'retry', 'given back', 'blocked', 'interrupted', 'rescued', 'cancelled')),
  att_exitcode  integer,
  att_signal    text,
  att_reason    text,
  primary key (att_jq_fk, att_attempt)
);

create table drover.log (
  log_pk      bigint generated always as identity primary key,
  log_date    timestamptz not null default now(),
  log_jq_fk   bigint,
  log_type    text not null,
  log_host    text,
  log_agent   text,
  log_pid     integer,
  log_message text not null
);
create index log_of_job on drover.log (log_jq_fk) where log_jq_fk is not null;
create index log_of_no_job on drover.log (log_pk) where log_jq_fk is null;

create table drover.output (
  out_pk      bigint generated always as identity primary key,
  out_jq_fk   bigint not null,
  out_attempt integer not null,
  out_part    integer not null,
  out_date    timestamptz not null default now(),
  out_stream  text not null check (out_stream in ('out', 'err')),
  out_data    text not null
);
create unique index output_of_job on drover.output (out_jq_fk, out_attempt, out_part);

create table drover.item_failure (
  item_pk      bigint generated always as identity primary key,
  item_jq_fk   bigint not null,
  item_attempt integer not null,
  item_key     text,
  item_line    text not null,
  item_date    timestamptz not null default now(),
  item_host    text,
  item_agent   text,
  item_pid     integer,
  item_reason  text not null
);
create index item_failure_of_job on drover.item_failure (item_jq_fk);

-- ---------------------------------------------------------------- who does it

create table drover.scheduler_group (
  group_name        text primary key,
  group_owner       uuid,
  group_lease_until timestamptz,
  group_taken_at    timestamptz
);

create table drover.scheduler (
  scheduler_uuid      uuid primary key,
  scheduler_group     text not null,
  scheduler_host      text not null,
  scheduler_pid       integer not null,
  scheduler_boot_id   text not null,
  scheduler_pid_space text not null,
  scheduler_pid_start bigint not null,
  scheduler_version   text not null,
  scheduler_lease     float8 not null default 30,        -- seconds; who is not seen for two of its own is dead
  scheduler_started   timestamptz not null default now(),
  scheduler_seen      timestamptz not null default now()
);

-- A value that can change at run time stands beside the file's: if the file changed it wins, else the current one stays.
create table drover.host (
  host_name         text primary key check (length(host_name) between 1 and 64),
  host_group        text not null,
  host_max          integer not null default -1,
  host_max_file     integer,
  host_urgent       integer not null default 1,
  host_urgent_file  integer,
  host_enabled      boolean not null default true,
  host_enabled_file boolean,
  host_transport    text not null default 'local',
  host_types        text not null default '',            -- a regular expression: the agent types that it takes
  host_types_file   text,
  host_queues       text[],                              -- whose jobs it takes; null: of every queue
  host_queues_file  text[],
  host_priorities   text not null default '',            -- a regular expression, about the first character of a priority
  host_priorities_file text,
  host_letters      text,                                -- the characters that it matches; null: any
  host_present      boolean not null default true,       -- named by the configuration that was read last
  host_down_until   timestamptz,
  host_reason       text
);

create table drover.queue (
  queue_name             text primary key check (length(queue_name) between 1 and 64),
  queue_group            text not null,
  queue_concurrency      integer check (queue_concurrency > 0),
  queue_concurrency_file integer,
  queue_paused           boolean not null default false,
  queue_paused_file      boolean,
  queue_reserved         integer not null default 0 check (queue_reserved >= 0),   -- agents that others leave to it
  queue_reserved_file    integer,
  queue_priority         integer not null default 0,
  queue_priority_file    integer,
  queue_filter           text,
  queue_present          boolean not null default true
);
insert into drover.queue (queue_name, queue_group) values ('default', 'default');

create table drover.agent (
  agent_group         text not null,
  agent_type          text not null check (agent_type <> 'command'),
  agent_enabled       boolean not null default true,
  agent_enabled_file  boolean,
  agent_kind          text not null default 'line' check (agent_kind in ('line', 'exec')),
  agent_submitters    text[] not null default '{*}',
  agent_cwd           text not null default '',          -- where it works, if the configuration says so
  agent_fair          boolean not null default false,    -- its submitters take turns: while it is configured so, or some wait so
  agent_fair_file     boolean not null default false,
  agent_revision      text,
  agent_present       boolean not null default true,
  agent_blocked_until timestamptz,                       -- every slot has failed until then
  agent_reason        text,
  agent_queries_wait  boolean not null default false,    -- for an expansion connection
  agent_registered    timestamptz not null default now(),
  primary key (agent_group, agent_type)
);

create view drover.fair as
select agent_type as fair_type, queue_name as fair_queue from drover.agent join drover.queue on queue_group = agent_group where agent_fair;

create table drover.placement (
  placement_pk   bigint generated always as identity primary key,
  placement_type text,                                   -- null: any type
  placement_from text not null,
  placement_to   text,                                   -- null: exactly placement_from
  placement_host text not null
);

create table drover.scheduler_status (
  status_scheduler  uuid not null,
  status_slot       integer not null,                    -- -1: the scheduler itself
  status_host       text,
  status_agent      text,
  status_state      integer not null,
  status_state_name text not null,
  status_since      timestamptz not null,
  status_pid        integer,
  status_jq_fk      bigint,
  status_parameter  text,
  status_spawns     integer not null default 0,
  status_items      bigint not null default 0,
  status_reason     text,
  status_updated    timestamptz not null default now(),
  primary key (status_scheduler, status_slot)
) with (fillfactor = 50);

create table drover.command_ack (
  ack_jq_fk     bigint not null,
  ack_scheduler uuid not null,
  ack_name      text not null,                           -- host.pid, which outlives the row of the scheduler
  ack_ok        boolean not null,
  ack_text      text not null,
  ack_date      timestamptz not null default now(),
  primary key (ack_jq_fk, ack_scheduler)
);

-- ---------------------------------------------------------------- rules on the way in

create function drover.may_command(who name default session_user) returns boolean
  language sql stable set search_path = drover, pg_temp as $$
  select coalesce(bool_or(pg_has_role(w.oid, r.oid, 'member')), false)
    from pg_catalog.pg_roles w, pg_catalog.pg_roles r
   where w.rolname = who
     and (r.rolname = 'drover_operator' or r.oid = (select relowner from pg_catalog.pg_class where oid = 'drover.jobqueue'::regclass))
$$;

-- Called only for rows that need it: the plain row, the common case, passes the WHEN clause alone.
create function drover.prepare_job() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if new.jq_state not in ('held', 'queued') then
    raise exception 'a job is inserted held or queued, not %', new.jq_state using errcode = 'check_violation';
  elsif octet_length(concat(new.jq_type, new.jq_queue, new.jq_host)) > 2000 then  -- the index of claims would refuse it too late
    raise exception 'jq_type, jq_queue and jq_host are too long: 2,000 bytes at most, together' using errcode = 'check_violation';
  end if;
  if new.jq_mode = 'manual' then new.jq_state := 'held'; end if;
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

create trigger jobqueue_prepare before insert on drover.jobqueue for each row
  when (new.jq_type <> 'command' and (
        new.jq_state <> 'queued' or new.jq_mode = 'manual' or new.jq_runonpfile is not null
        or new.jq_queue is null or new.jq_host is not null or new.jq_job_fk is not null or new.jq_not_before is not null
        or new.jq_not_after is not null or new.jq_unique_key is not null
        or octet_length(new.jq_type) + octet_length(new.jq_queue) > 2000))
  execute function drover.prepare_job();

-- A command has no queue and waits for nothing. Whoever may not command may through drover.command alone, which runs as
-- the owner: so this function must run as whoever inserts.
create function drover.prepare_command() returns trigger
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
  perform pg_notify('drover_command', '');
  return new;
end $$;
create trigger jobqueue_prepare_command before insert on drover.jobqueue for each row
  when (new.jq_type = 'command') execute function drover.prepare_command();

-- Files to be removed after a success; what cannot be a list of them is refused here, for the end of a job may not fail.
-- drover.clean_up alone inserts clean-ups, as the owner: so this function must run as whoever inserts. Else a job that
-- was never done, or on any host, could have files removed.
create function drover.prepare_cleanup() returns trigger
  language plpgsql set search_path = drover, pg_temp as $$
begin
  if new.jq_type = 'cleanup'
     and not pg_has_role(current_user, (select relowner from pg_catalog.pg_class where oid = tg_relid), 'member') then
    raise exception 'a clean-up comes from the jq_delete of a job that was done: it is not inserted' using errcode = 'insufficient_privilege';
  end if;
  if array_ndims(new.jq_delete) > 1 or exists (select from unnest(new.jq_delete) as name where name is null or name = '') then
    raise exception 'jq_delete is a list of names: none of them NULL or empty' using errcode = 'check_violation';
  elsif octet_length(to_json(new.jq_delete)::text) > 500000 then
    raise exception 'jq_delete is too long: 500,000 bytes at most' using errcode = 'check_violation';
  elsif new.jq_delete <> '{}' and new.jq_msq and new.jq_host is null then
    raise exception 'jq_delete of an SQL job needs jq_host: else its rows may be worked on several hosts' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger jobqueue_prepare_cleanup before insert on drover.jobqueue for each row
  when (new.jq_delete is not null or new.jq_type = 'cleanup') execute function drover.prepare_cleanup();

-- One word of a command; blanks are these four, whatever the locale calls a space (scheduler/model/commands.py).
create function drover.word(words text, n integer) returns text language sql immutable parallel safe
  return (regexp_split_to_array(btrim(words, E' \t\n\r'), E'[ \t\n\r]+'))[n];

-- What owners may command: what is about jobs of their own, by number or name.
create function drover.command(words text) returns bigint
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  verb   text := drover.word(words, 1);
  rest   text[] := (regexp_split_to_array(btrim(words, E' \t\n\r'), E'[ \t\n\r]+'))[2:];
  job    text;
  number bigint;
  pk     bigint;
begin
  if not drover.may_command() then
    if verb is null or verb not in ('killjob', 'cancel', 'signal', 'release', 'hold', 'ice', 'retry', 'run') then
      raise exception 'only drover_operator may command %', coalesce(verb, 'nothing') using errcode = 'insufficient_privilege';
    end if;
    foreach job in array coalesce(nullif(case
        when verb = 'run' then rest
        when verb = 'signal' then array(select w from unnest(rest) with ordinality as u(w, n) where n % 2 = 1 order by n)
        else rest[1:1] end, '{}'), '{?}') loop
      number := case when job ~ '^[0-9]{1,18}$' then job::bigint end;
      if not exists (select from drover.jobqueue where jq_submitter = session_user and (jq_pk = number or jq_name = job)) then
        raise exception 'job % is not yours', job using errcode = 'insufficient_privilege';
      end if;
    end loop;
  end if;
  insert into drover.jobqueue (jq_type, jq_args) values ('command', words) returning jq_pk into pk;
  return pk;
end $$;

-- Wake schedulers: drover_queue says that there may be work, drover_due that an instant was set, drover_change that the
-- tables they follow are others now.
create function drover.wake() returns trigger language plpgsql as $$
begin
  perform pg_notify(tg_argv[0], '');
  return null;
end $$;

-- The submitters of a fair type stand in lines, one for each where a claim looks and for each rank. Who is n-th in a line
-- has a round, and round by round they go (man/decisions/0021). What comes back to its place stands in a line beside that
-- of its submitter: it neither waits for all that was queued since, nor do others wait for all that comes back. The next
-- round of a line: behind its last, and not before whoever goes next.
create function drover.next_round(type text, queue text, host text, rank text, line text) returns bigint
  language plpgsql stable set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  return greatest(
    (select right(claim_rank, 15)::bigint + 1 from drover.claimable
      where claim_type = type and claim_queue = queue and claim_host = host and claim_line = line
        and claim_rank > rank || '.' and claim_rank < rank || '/'
      order by claim_rank desc limit 1),
    (select right(claim_rank, 15)::bigint from drover.claimable
      where claim_type = type and claim_queue = queue and claim_host = host and claim_rank > rank || '.' and claim_rank < rank || '/'
      order by claim_rank, claim_queued, claim_jq_fk limit 1),
    0);
end $$;

create function drover.line_of(submitter name, is_back boolean) returns text language sql immutable parallel safe
  return submitter || case when is_back then '/back' else '' end;

-- Let jobs be claimed some of which are of fair types.
create function drover.line_up(jobs bigint[]) returns void
  language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
  insert into drover.claimable
  with came as materialized (
    select jq_pk as pk, jq_queued as queued, jq_type as type, coalesce(jq_queue, '') as queue, coalesce(jq_host, '') as host,
           drover.rank(jq_urgent, jq_priority) as rank, drover.line_of(jq_submitter, jq_attempt > 0) as line,
           exists (select from drover.fair where fair_type = jq_type and fair_queue = jq_queue) as is_fair
      from drover.jobqueue where jq_pk = any (jobs)),
  numbered as (
    select *, row_number() over (partition by type, queue, host, rank, line order by queued, pk) as n from came where is_fair),
  begun as (
    select *, case n when 1 then drover.next_round(type, queue, host, rank, line) end as first from numbered)
  select pk, queued, type, queue, host, rank, null from came where not is_fair
  union all
  select pk, queued, type, queue, host,
         drover.rank_in_round(rank, n - 1 + max(first) over (partition by type, queue, host, rank, line)), line from begun;
end $$;

-- New rows become claimable all at once, and ring once. A statement that adds edges too may have added them before this:
-- then the rows are not as they were inserted any more.
create function drover.offer_new() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if coalesce(current_setting('drover.has_edges', true), '') <> '' then
    perform drover.offer_all(array(
      select j.jq_pk from drover.jobqueue j where j.jq_pk = any (array(select jq_pk from arrived)) and drover.is_claimable(j)));
  elsif exists (select from drover.agent where agent_fair)
     and exists (select from arrived join drover.fair on fair_type = jq_type and fair_queue = jq_queue) then
    perform drover.line_up(array(select jq_pk from arrived where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null));
  else
    insert into drover.claimable
    select jq_pk, jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), drover.rank(jq_urgent, jq_priority) from arrived
     where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null;
  end if;
  perform pg_notify('drover_queue', '');
  return null;
end $$;
create trigger jobqueue_offer_new after insert on drover.jobqueue referencing new table as arrived
  for each statement execute function drover.offer_new();

create trigger jobqueue_wake_due after insert on drover.jobqueue for each row
  when (new.jq_wait_until is not null or new.jq_not_after is not null) execute function drover.wake('drover_due');
create trigger queue_wake after insert or update or delete on drover.queue for each statement execute function drover.wake('drover_change');
create trigger placement_wake after insert or update or delete on drover.placement for each statement execute function drover.wake('drover_change');

-- ---------------------------------------------------------------- rules on the way on

create function drover.refuse() returns trigger language plpgsql as $$
begin
  raise exception '%', format(tg_argv[0], old.jq_pk, old.jq_state, new.jq_state) using errcode = 'check_violation';
end $$;

-- No trigger fires before an update of a job: with one, Postgres locks each row first, and logs that.
create trigger jobqueue_fixed after update of jq_type, jq_args, jq_variables, jq_name, jq_msq, jq_runonpfile, jq_key, jq_delete, jq_submitter
  on drover.jobqueue for each row
  when ((old.jq_type, old.jq_args, old.jq_variables, old.jq_name, old.jq_msq, old.jq_runonpfile, old.jq_key, old.jq_delete, old.jq_submitter)
        is distinct from (new.jq_type, new.jq_args, new.jq_variables, new.jq_name, new.jq_msq, new.jq_runonpfile, new.jq_key, new.jq_delete, new.jq_submitter))
  execute function drover.refuse('what job %s asks for never changes: insert another job');

create function drover.is_claimable(job drover.jobqueue) returns boolean language sql immutable as $$
  select job.jq_state = 'queued' and job.jq_unmet = 0 and job.jq_wait_until is null
$$;

-- In plpgsql, which keeps plans: a fan of jobs moves at once. What stands in a line has a round, which the job does not know.
create function drover.withdraw(job drover.jobqueue) returns void language plpgsql as $$
begin
  delete from drover.claimable
   where claim_type = job.jq_type and claim_queue = coalesce(job.jq_queue, '') and claim_host = coalesce(job.jq_host, '')
     and claim_rank = drover.rank(job.jq_urgent, job.jq_priority) and claim_queued = job.jq_queued and claim_jq_fk = job.jq_pk;
  if not found then
    delete from drover.claimable where claim_jq_fk = job.jq_pk and claim_line is not null;
  end if;
end $$;

create function drover.offer(job drover.jobqueue, is_back boolean) returns void language plpgsql as $$
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
  perform pg_notify('drover_queue', '');
end $$;

-- Jobs that may be claimed now, or no more, since jq_unmet is another: a fan of jobs moves at once.
create function drover.offer_all(jobs bigint[]) returns void language plpgsql as $$
begin
  if exists (select from drover.agent where agent_fair) then
    perform drover.line_up(jobs);
  else
    insert into drover.claimable
    select jq_pk, jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), drover.rank(jq_urgent, jq_priority)
      from drover.jobqueue where jq_pk = any (jobs);
  end if;
  perform pg_notify('drover_queue', '') where cardinality(jobs) > 0;
end $$;

create function drover.withdraw_all(jobs bigint[]) returns void language plpgsql as $$
declare
  withdrawn integer;
begin
  delete from drover.claimable using drover.jobqueue j
   where j.jq_pk = any (jobs) and claim_type = j.jq_type and claim_queue = coalesce(j.jq_queue, '') and claim_host = coalesce(j.jq_host, '')
     and claim_rank = drover.rank(j.jq_urgent, j.jq_priority) and claim_queued = j.jq_queued and claim_jq_fk = j.jq_pk;
  get diagnostics withdrawn = row_count;
  if withdrawn < cardinality(jobs) then
    delete from drover.claimable where claim_jq_fk = any (jobs) and claim_line is not null;
  end if;
end $$;

-- What a move means: whether it is legal; what of the row depends on its state; whether it may be claimed now, or no
-- more, or in another order. A claim takes its own row out of drover.claimable itself.
create function drover.moved() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  was   boolean := drover.is_claimable(old) and new.jq_state <> 'claimed';
  is_so boolean := drover.is_claimable(new);
begin
  if old.jq_state <> new.jq_state then
    if not (case old.jq_state
      when 'held'    then new.jq_state in ('queued', 'skipped', 'cancelled', 'ignored')
      when 'queued'  then new.jq_state in ('claimed', 'held', 'blocked', 'cancelled', 'skipped', 'failed')
                          or (new.jq_state = 'done' and new.jq_type = 'command')
      when 'claimed' then new.jq_state in ('running', 'queued', 'done', 'failed', 'blocked', 'cancelled')
      when 'running' then new.jq_state in ('done', 'queued', 'failed', 'blocked', 'cancelled')
      when 'blocked' then new.jq_state in ('queued', 'held', 'failed', 'cancelled')
      when 'failed'  then new.jq_state = 'queued'
      else false end) then
      raise exception 'job % may not move from % to %', old.jq_pk, old.jq_state, new.jq_state using errcode = 'check_violation';
    end if;
    update drover.jobqueue
       set jq_expires_at = case when jq_state in ('held', 'queued') and jq_attempt = 0 then jq_not_after end,
           jq_live_key = case when jq_state in ('held', 'queued', 'claimed', 'running', 'blocked') then jq_unique_key end
     where jq_pk = new.jq_pk and (jq_not_after is not null or jq_unique_key is not null);
  end if;
  if was and (not is_so or (old.jq_queue, coalesce(old.jq_host, ''), old.jq_urgent, old.jq_priority, old.jq_queued)
                           <> (new.jq_queue, coalesce(new.jq_host, ''), new.jq_urgent, new.jq_priority, new.jq_queued)) then
    perform drover.withdraw(old);
    was := false;
  end if;
  if is_so and not was then
    perform drover.offer(new, new.jq_attempt > 0 and new.jq_queued = old.jq_queued);
  end if;
  return null;
end $$;

-- The moves of a job that is claimed, worked and done pass the WHEN clause without calling anything. Those who change
-- jq_unmet, and that alone, say themselves what that means, of all their jobs at once: drover.offer_all, withdraw_all.
create trigger jobqueue_moved
  after update of jq_state, jq_wait_until, jq_queue, jq_host, jq_urgent, jq_priority, jq_queued on drover.jobqueue for each row
  when (new.jq_unique_key is not null or new.jq_not_after is not null
        or not (old.jq_state = 'queued' and new.jq_state = 'claimed'
                or old.jq_state = 'claimed' and (new.jq_state = 'done' or new.jq_state = 'running' or new.jq_state = 'claimed')
                or old.jq_state = 'running' and (new.jq_state = 'done' or new.jq_state = 'running')))
  execute function drover.moved();

create function drover.gone() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform drover.withdraw(old);
  return null;
end $$;
create trigger jobqueue_gone after delete on drover.jobqueue for each row
  when (old.jq_state = 'queued' and old.jq_unmet = 0 and old.jq_wait_until is null)
  execute function drover.gone();

-- ---------------------------------------------------------------- clean-ups

-- A job that was done and has files to remove is followed by a clean-up, in the same transaction: a job of its own, for
-- the host where it ran, tried again and lost by no crash, since what is gone already is no error. Names that do not
-- begin with / are below the working directory of the job; it is given once, so that the list stays as long as it was
-- when it was inserted. A clean-up is known by its name.
create function drover.clean_up() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  insert into drover.jobqueue (jq_type, jq_name, jq_args, jq_host, jq_retries, jq_max_interruptions, jq_submitter)
  select 'cleanup', 'cleanup.' || new.jq_pk,
         json_build_object(
           'folder', coalesce((select agent_cwd from drover.agent join drover.queue on queue_group = agent_group
                                where queue_name = new.jq_queue and agent_type = new.jq_type), ''),
           'names', new.jq_delete)::text,
         coalesce(new.jq_done_host, (select att_host from drover.attempt_kept where att_jq_fk = new.jq_pk and att_attempt = new.jq_attempt),
                  new.jq_host),
         3, 2147483647, new.jq_submitter
   where new.jq_delete <> '{}'
  on conflict (jq_name) do nothing;
  return null;
end $$;
create trigger jobqueue_clean_up after update of jq_state on drover.jobqueue for each row
  when (new.jq_delete is not null and new.jq_state = 'done' and old.jq_state <> 'done')
  execute function drover.clean_up();

-- ---------------------------------------------------------------- dependencies

-- All below these jobs, and a cycle of open edges among them, each waiting for the next; null if there is none. Jobs that
-- wait for no other are taken away, one after the other, until none is left but those on a cycle, or below one. It is
-- done in arrays, since a query for each job took a minute for a chain of 10,000.
create function drover.cycle_below(tops bigint[], out jobs bigint[], out cycle bigint[])
  language plpgsql stable set search_path = drover, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare                -- by their numbers here, which count from 1, as in `jobs`
  parents integer[];  -- of the edges, in this order
  kids    integer[];
  first   integer[];  -- edge of a parent
  above   integer[];  -- how many parents of a job are left
  ready   integer[];  -- jobs that have none
  job     integer;
  edge    integer;
begin
  with recursive below(pk) as (
    select unnest(tops)
    union
    select d.pk from below b cross join lateral (
      select jdep_jq_fk from jobdepends where jdep_jq_depends_fk = b.pk and jdep_met_at is null offset 0) d(pk)),
  edges as materialized (
    select b.pk as parent, d.pk as kid, row_number() over () as no from below b cross join lateral (
      select jdep_jq_fk from jobdepends where jdep_jq_depends_fk = b.pk and jdep_met_at is null offset 0) d(pk)),
  ends as (
    select no, v.pk, is_kid, dense_rank() over (order by v.pk) as n from edges, lateral (values (parent, false), (kid, true)) v(pk, is_kid)),
  numbered as (
    select max(n) filter (where not is_kid) as parent, max(n) filter (where is_kid) as kid from ends group by no)
  select (select array_agg(pk order by pk) from (select distinct pk from ends) e),
         array_agg(parent order by parent), array_agg(kid order by parent)
    into jobs, parents, kids from numbered;
  if jobs is null then
    return;
  end if;
  above := array_fill(0, array[cardinality(jobs)]);
  first := above;
  for edge in reverse cardinality(kids) .. 1 loop
    above[kids[edge]] := above[kids[edge]] + 1;
    first[parents[edge]] := edge;
  end loop;
  for job in 1 .. cardinality(jobs) loop
    if above[job] = 0 then
      ready := ready || job;
    end if;
  end loop;
  for n in 1 .. cardinality(jobs) loop
    exit when n > coalesce(cardinality(ready), 0);
    edge := first[ready[n]];
    while edge > 0 and parents[edge] = ready[n] loop
      above[kids[edge]] := above[kids[edge]] - 1;
      if above[kids[edge]] = 0 then
        ready := ready || kids[edge];
      end if;
      edge := edge + 1;
    end loop;
  end loop;
  if cardinality(ready) = cardinality(jobs) then
    return;
  end if;
  for edge in 1 .. cardinality(kids) loop  -- now: one of its parents that are left
    if above[parents[edge]] > 0 then
      first[kids[edge]] := parents[edge];
      job := kids[edge];
    end if;
  end loop;
  for n in 1 .. cardinality(jobs) loop  -- upwards, into the cycle for sure
    job := first[job];
  end loop;
  edge := job;
  loop
    cycle := cycle || jobs[job];
    job := first[job];
    exit when job = edge;
  end loop;
end $$;

-- A cycle among these jobs and all below them, whoever else adds edges at the same time. What is below is locked and looked
-- at again until it is the same, so that of two transactions whose edges are below each other's one waits: it sees what
-- the other has added, and of all that make a cycle the last to commit sees all of it. Row locks on the jobs of the edges
-- alone accepted a four-cycle built by four sessions. A transaction that sees nothing new cannot look again.
create function drover.cycle_for_sure(tops bigint[]) returns bigint[]
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
    perform from jobqueue where jq_pk = any (jobs) order by jq_pk for share;
    seen := jobs;
  end loop;
  return cycle;
end $$;

-- How many edges a job waits for when there are more, or fewer. A transaction that adds or removes many, one by one, would
-- leave a row version for each, through all of which every later look goes: from a hundred on they are counted at its end.
create function drover.unmet(was integer, more integer, writer xid) returns integer language sql as $$
  select case when was >= 100 and age(writer) <= 0 then 2147483647 else greatest(was + more, 0) end
$$;

-- So many more edges, or fewer, wait below each of these jobs, once for every time it is named: how many jobs that are.
-- They are found by arrays, group by group, for a join could go through all jobs: plans outlive the time when these are few.
create function drover.count_unmet(jobs bigint[], more integer) returns integer
  language plpgsql set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  counted integer := 0;
  moved   bigint[];
  step    record;
begin
  for step in select n, array_agg(pk) as pks from (select pk, count(*)::integer * more as n from unnest(jobs) as pk group by pk) c group by n loop
    with changed as (
      update jobqueue j set jq_unmet = drover.unmet(jq_unmet, step.n, j.xmin)
       where jq_pk = any (step.pks) and jq_unmet < 2147483647 and case when more < 0 then jq_unmet > 0 else jq_state in ('held', 'queued') end
      returning jq_pk, jq_state = 'queued' and jq_wait_until is null and jq_unmet = greatest(step.n, 0) as is_moved)
    select counted + count(*), array_agg(jq_pk) filter (where is_moved) into counted, moved from changed;
    if moved is not null and more < 0 then
      perform drover.offer_all(moved);
    elsif moved is not null then
      perform drover.withdraw_all(moved);
    end if;
  end loop;
  return counted;
end $$;

-- Skip jobs that would wait in vain for these parents, in the same order: those that are parents themselves.
create function drover.skip(jobs bigint[], tops bigint[]) returns bigint[]
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
         set jq_state = 'skipped', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2,
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
-- ended before, or does not. Edges below a parent that has ended are settled at once. A child that an edge before these
-- skipped, in this transaction, takes the rest of its edges in silence.
create function drover.add_edges() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  is_free boolean := drover.may_command();
  parents bigint[] := array(select distinct jdep_jq_depends_fk from added);
  wrong   record;
  cycle   bigint[];
  open    bigint[];
  vain    bigint[];
  tops    bigint[];
  todo    bigint[];
  next    bigint;
begin
  perform from jobqueue where jq_pk = any (parents || array(select jdep_jq_fk from added)) order by jq_pk for no key update;
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
  perform pg_notify('drover_queue', ''), pg_notify('drover_command', '')  -- while these are locked claims pass them over
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
  return null;
end $$;
create trigger jobdepends_add after insert on drover.jobdepends referencing new table as added
  for each statement execute function drover.add_edges();

-- A child that is over for good is left as it is: somebody may keep it locked.
create function drover.drop_edge() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  perform drover.count_unmet(array[old.jdep_jq_fk], -1)
    where exists (select from jobqueue where jq_pk = old.jdep_jq_fk and (jq_endtime is null or jq_state = 'failed'));
  return null;
end $$;
create trigger jobdepends_drop after delete on drover.jobdepends for each row
  when (old.jdep_met_at is null) execute function drover.drop_edge();

-- Whose edges were not counted one by one, for its transaction had many.
create function drover.count_edges() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  is_free boolean;
begin
  update jobqueue j set jq_unmet = (select count(*) from jobdepends where jdep_jq_fk = new.jq_pk and jdep_met_at is null)
   where jq_pk = new.jq_pk and jq_unmet = 2147483647
  returning jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null into is_free;
  perform drover.offer_all(array[new.jq_pk]) where is_free;
  return null;
end $$;
create constraint trigger jobqueue_count_edges after update of jq_unmet on drover.jobqueue deferrable initially deferred for each row
  when (new.jq_unmet = 2147483647) execute function drover.count_edges();

-- Settle up to so many open edges below ended parents, those of the first parent from a child on: how many children got
-- nearer, and with which parents, and from where on, to go on; a child skipped here is such a parent too. It must be a
-- statement of its own: in the one that ends the parent, the snapshot misses a new edge and its child waits for ever. An
-- edge that comes later is looked at as it comes. It waits for a child that somebody keeps locked, or leaves it and tells
-- which parents have such ones.
create function drover.settle(
  parents bigint[], beyond bigint, most integer, waits boolean,
  out released integer, out unsettled bigint[], out place bigint, out locked bigint[])
  language plpgsql security definer set search_path = drover, pg_temp set plan_cache_mode = force_generic_plan set enable_sort = on
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  looked_at record;
  skipped   bigint[];
begin
  perform pg_notify('drover_command', '')  -- a command may wait for them too
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
create function drover.escape(value text) returns text language sql immutable as $$
  select coalesce(string_agg(
           case when c in ('"', '\', '''', '$', '`') then '\' || c
                when c = E'\n' then '\n' when c = E'\r' then '\r' when c = E'\t' then '\t'
                when ascii(c) < 32 or ascii(c) = 127 then '\x' || lpad(to_hex(ascii(c)), 2, '0')
                else c end, '' order by n), '')
    from string_to_table(value, null) with ordinality as t(c, n)
$$;

-- Variables as one line; null is left out, a list or an object is its JSON.
create function drover.line(variables jsonb) returns text language sql immutable set search_path = drover, pg_temp as $$
  select coalesce(string_agg(key || '="' || escape(value) || '"', ' ' order by n), '')
    from jsonb_each_text(variables) with ordinality as v(key, value, n) where value is not null
$$;

-- The names in a list, or the one name.
create function drover.names(list jsonb) returns text[] language sql immutable as $$
  select case jsonb_typeof(list) when 'array' then array(select jsonb_array_elements_text(list)) else array_remove(array[list #>> '{}'], null) end
$$;

-- The number of the job of this name or, if it is digits alone, of this number.
create function drover.job_named(name text) returns bigint
  language plpgsql stable set search_path = drover, pg_temp as $$
declare
  pk bigint;
begin
  if name ~ '^[0-9]{1,18}$' then
    select jq_pk into pk from drover.jobqueue where jq_pk = name::bigint;
  else
    select jq_pk into pk from drover.jobqueue where jq_name = name;
  end if;
  if pk is null then
    raise exception 'no job %', quote_literal(name) using errcode = 'foreign_key_violation';
  end if;
  return pk;
end $$;

-- Set a job up, held, unless there is one of this name. What begins with jq_ is a column of the job, rjm_delete is
-- jq_delete, rjm_blocks names its children, depends its parents; all else are variables, kept for its command. It runs
-- with the rights of whoever calls it: what they may not insert is refused.
create function drover.job_setup(name text, settings jsonb default '{}', out jq_pk bigint, out existed boolean)
  language plpgsql set search_path = drover, pg_temp as $$
#variable_conflict use_column
declare
  columns   jsonb;
  variables jsonb;
  wrong     text;
begin
  if (name ~ '^[^.[:space:]]+[.][^.[:space:]]+$') is not true then
    raise exception 'job name %: it is the type, a dot, and something without a dot or a blank', quote_nullable(name) using errcode = 'check_violation';
  elsif split_part(name, '.', 1) = 'command' then
    raise exception 'a command is not set up: insert it' using errcode = 'check_violation';
  elsif jsonb_typeof(settings) is distinct from 'object' then
    raise exception 'the settings of a job are one JSON object' using errcode = 'invalid_parameter_value';
  end if;
  select key into wrong from jsonb_object_keys(settings) as key
   where key ~ '^(jq|rjm)_' and key <> all ('{jq_job_fk,jq_args,jq_msq,jq_runonpfile,jq_host,jq_key,jq_tolerate,jq_repeat,jq_queue,
           jq_urgent,jq_priority,jq_not_before,jq_not_after,jq_max_interruptions,jq_retries,jq_timeout,jq_unique_key,jq_delete,jq_mode,
           rjm_delete,rjm_blocks}'::text[])
      or key !~ '^[A-Za-z_][A-Za-z0-9_]*$' limit 1;
  if wrong ~ '^(jq|rjm)_' then
    raise exception '% is no setting: names that begin with jq_ or rjm_ are reserved', wrong using errcode = 'undefined_parameter';
  elsif wrong is not null then
    raise exception 'variable %: a name is of letters, digits and _, and begins with no digit', quote_literal(wrong) using errcode = 'invalid_name';
  end if;
  select coalesce(jsonb_object_agg(key, value) filter (where key ~ '^jq_'), '{}'),
         coalesce(jsonb_object_agg(key, value) filter (where key !~ '^(jq|rjm)_' and key <> 'depends'), '{}')
    into columns, variables from jsonb_each(settings);
  columns := jsonb_build_object('jq_args', drover.line(variables)) || columns
             || jsonb_build_object('jq_name', name, 'jq_type', split_part(name, '.', 1), 'jq_state', 'held');
  if variables <> '{}' then
    columns := columns || jsonb_build_object('jq_variables', variables);
  end if;
  if settings ? 'rjm_delete' then
    columns := columns || jsonb_build_object('jq_delete', drover.names(settings -> 'rjm_delete'));
  end if;
  execute format('insert into drover.jobqueue (%1$s) select %1$s from jsonb_populate_record(null::drover.jobqueue, $1)
                  on conflict (jq_name) do nothing returning jq_pk',
                 (select string_agg(quote_ident(key), ', ') from jsonb_object_keys(columns) as key))
    into jq_pk using columns;
  existed := jq_pk is null;
  if existed then
    select j.jq_pk into jq_pk from drover.jobqueue j where j.jq_name = name;
    return;
  end if;
  insert into drover.jobdepends (jdep_jq_fk, jdep_jq_depends_fk)
  select jq_pk, drover.job_named(parent) from unnest(drover.names(settings -> 'depends')) as parent
   union
  select drover.job_named(child), jq_pk from unnest(drover.names(settings -> 'rjm_blocks')) as child;
end $$;

-- Tell user interfaces what became of jobs: arrays under 8,000 bytes on channel drover_event.
create function drover.announce(pks bigint[], states text[]) returns bigint language sql as $$
  select count(pg_notify('drover_event', chunk)) from (
    select json_agg(json_build_object('jq_pk', u.pk, 'state', u.state, 'job_pk', j.jq_job_fk))::text as chunk
      from unnest(pks, states) with ordinality as u(pk, state, n)
      left join drover.jobqueue j on j.jq_pk = u.pk
     group by (u.n - 1) / 80) c
$$;

-- Queue what an ended job asked for once more, as a job of its own: gives its number. Its name, its start window and its
-- dependencies are the old one's alone. It runs with the rights of whoever calls it, who is the submitter.
create function drover.job_resubmit(pk bigint) returns bigint
  language plpgsql set search_path = drover, pg_temp as $$
declare
  old     drover.jobqueue;
  columns jsonb;
  again   bigint;
begin
  if drover.may_command() then
    select * into old from drover.jobqueue where jq_pk = pk;
  else
    select * into old from drover.my_jobs where jq_pk = pk;
  end if;
  if old.jq_pk is null then
    raise exception 'no job % of yours', coalesce(pk::text, '?') using errcode = 'no_data_found';
  elsif old.jq_endtime is null then
    raise exception 'job % has not ended: it is %', pk, old.jq_state using errcode = 'check_violation';
  end if;
  select jsonb_object_agg(key, value) || jsonb_build_object('jq_resubmit_of', pk) into columns from jsonb_each(to_jsonb(old))
   where value not in ('null', 'false')
     and key = any ('{jq_job_fk,jq_type,jq_args,jq_variables,jq_msq,jq_runonpfile,jq_host,jq_key,jq_tolerate,jq_repeat,jq_queue,
           jq_urgent,jq_priority,jq_max_interruptions,jq_retries,jq_timeout,jq_unique_key,jq_delete,jq_mode}'::text[]);
  execute format('insert into drover.jobqueue (%1$s) select %1$s from jsonb_populate_record(null::drover.jobqueue, $1) returning jq_pk',
                 (select string_agg(quote_ident(key), ', ') from jsonb_object_keys(columns) as key))
    into again using columns;
  return again;
end $$;

-- Hide a job group of one's own from listings, or show it again; its jobs run as ever.
create function drover.job_hide(pk bigint, hidden boolean default true) returns void
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  update drover.job set job_hidden = hidden where job_pk = pk and (job_user = session_user or drover.may_command());
  if not found then
    raise exception 'no job group % of yours', coalesce(pk::text, '?') using errcode = 'no_data_found';
  end if;
end $$;

-- ---------------------------------------------------------------- what is long over

-- Remove one piece of what ended before an instant, with all that belongs to it; failed jobs only if asked. A pass has
-- three stages: jobs, then groups that have none, then log lines about no job. Each goes along a primary key from a
-- place on, `most` rows of it at a time, for no index says what has ended: that would make every end dearer. It stops
-- where rows were queued after the instant; gives the stage and place to go on at, and no stage at its end.
-- A job stays while an edge of its is open, to or from a job that may still move; what somebody keeps locked stays too.
create function drover.flush(before timestamptz, failed_too boolean, most integer, inout stage text, inout place bigint, out removed bigint)
  language plpgsql security definer set search_path = drover, pg_temp
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  old      bigint[];
  looked   integer;
  is_young boolean;  -- rows from here on are: one was queued after the instant, and was never put back to the end
  first    bigint := place;
begin
  if stage = 'jobs' then
    select count(*), max(jq_pk), coalesce(bool_or(jq_queued >= before and jq_attempt <= (jq_endtime is not null)::integer), false),
           array_agg(jq_pk) filter (where jq_endtime < before)
      into looked, place, is_young, old
      from (select jq_pk, jq_queued, jq_attempt, jq_endtime from jobqueue where jq_pk > first order by jq_pk limit most) w;
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
    delete from jobdepends where jdep_jq_depends_fk = any (old);
    delete from attempt_kept where att_jq_fk = any (old);
    delete from log where log_jq_fk = any (old);
    delete from output where out_jq_fk = any (old);
    delete from item_failure where item_jq_fk = any (old);
    delete from command_ack where ack_jq_fk = any (old);
    delete from jobqueue where jq_pk = any (old);
    get diagnostics removed = row_count;
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
      select log_pk from (select log_pk, log_date from log where log_jq_fk is null order by log_pk limit most) w where log_date < before));
    get diagnostics removed = row_count;
    if removed < most then
      stage := null;
    end if;
  end if;
end $$;

-- ---------------------------------------------------------------- views

-- Every attempt and slice, by whom and how it ended.
create view drover.attempt as
select * from drover.attempt_kept
union all
select jq_pk, jq_attempt, jq_done_by, jq_done_host, jq_type, jq_done_pid, jq_endtime - jq_processedtime, jq_endtime, 'done', jq_exitcode, null, null
  from drover.jobqueue where jq_done_by is not null;

-- Why work that waits for agents of a type finds none, on each host and (null) on any; from the slots as they were shown.
-- Either no host is open, or there is no room on those that have slots to spare, or all slots are in use; or none of it.
create view drover.room as
with used as (
  select status_scheduler, status_host, count(*) as used from drover.scheduler_status
   where status_slot >= 0 and status_state > 1 group by status_scheduler, status_host),
place as (
  select s.status_scheduler, s.status_agent, s.status_host, count(*) filter (where status_state = 1) as free,
         count(*) filter (where status_state = 5) as ready, count(*) filter (where status_state in (3, 4)) as starting,
         count(*) filter (where status_state = 0) = count(*) as is_failed, max(status_reason) filter (where status_state = 0) as failure
    from drover.scheduler_status s where status_slot >= 0 group by s.status_scheduler, s.status_agent, s.status_host),
host as (
  select p.*, h.host_max, h.host_enabled, h.host_reason, coalesce(u.used, 0) as used, h.host_max >= 0 and coalesce(u.used, 0) >= h.host_max as is_full,
         h.host_enabled and coalesce(h.host_down_until <= now(), true) as is_open
    from place p
    join drover.host h on h.host_name = p.status_host
    left join used u on u.status_scheduler = p.status_scheduler and u.status_host = p.status_host)
select status_scheduler as room_scheduler, status_agent as room_agent, status_host as room_host,
       case when bool_or(is_open) then null
            when count(*) > 3 then 'all ' || count(*) || ' hosts with slots are disabled or down'
            else string_agg('host ' || status_host || case when host_enabled then ' is down: ' || coalesce(host_reason, '?') else ' is disabled' end,
                            '; ' order by status_host) end as room_closed,
       case when bool_or(is_open and (ready > 0 or free > 0 and not is_full)) or not bool_or(is_open and free > 0) then null
            when count(*) filter (where is_open and free > 0) > 3 then 'all ' || count(*) filter (where is_open and free > 0) || ' hosts with slots to spare are full'
            else string_agg('host ' || status_host || ' is full: ' || used || ' of ' || host_max || ' agents', '; ' order by status_host)
                   filter (where is_open and free > 0) end as room_full,
       case when bool_or(is_open and (ready > 0 or free > 0)) then null
            when bool_and(is_failed) then coalesce(max(failure), 'its agents failed')
            when bool_or(starting > 0) then 'its agents are starting'
            else 'every agent of the type is busy' end || coalesce(' on host ' || status_host, '') as room_busy
  from host group by grouping sets ((status_scheduler, status_agent, status_host), (status_scheduler, status_agent));

-- About so many seconds, for people.
create function drover.about(seconds float8) returns text language sql immutable parallel safe
  return case when seconds < 100 then greatest(round(seconds), 1) || ' s' when seconds < 6000 then round(seconds / 60) || ' min'
              when seconds < 172800 then round(seconds / 3600) || ' h' else round(seconds / 86400) || ' days' end;

create function drover.items(job drover.jobqueue) returns text language sql immutable parallel safe
  return to_char(job.jq_itemsprocessed + job.jq_itemsfailed, 'FM999,999,999,999,990') || ' of '
         || to_char(job.jq_itemstotal, 'FM999,999,999,999,990') || ' items';

-- Why a job is not running: the first reason that holds, most lasting first.
create view drover.why as
select j.jq_pk, j.jq_type, j.jq_state,
  case
    when j.jq_state = 'held' then case j.jq_mode when 'manual' then 'manual: waits for run' else 'held: waits for release' end
    when j.jq_state = 'blocked' then coalesce(j.jq_endtext, 'blocked')
    when j.jq_state in ('claimed', 'running') then case
      when j.jq_state = 'running' and j.jq_msq and (not a.agent_enabled or r.room_closed is not null)
        then 'running' || coalesce(': ' || drover.items(j), '') || ', and no more is begun: '
          || case when a.agent_enabled then r.room_closed else 'agent type ' || a.agent_type || ' is disabled' end
      when j.jq_state = 'running' and j.jq_expected_end is not null then 'running: ' || drover.items(j) || ', about '
        || drover.about(extract(epoch from j.jq_expected_end - now())::float8) || ' left' || case when j.jq_repeat then ' of this slice' else '' end
      when j.jq_state = 'running' then 'running, in hand since ' || date_trunc('second', j.jq_starttime)
        || case when j.jq_msq then coalesce(': ' || drover.items(j), '') else '' end
      when j.jq_msq and j.jq_endtext <> 'in progress' then 'in hand: ' || j.jq_endtext
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
        || case when j.jq_retry_at is not null then ': ' || coalesce(j.jq_endtext, 'back-off') else '' end
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
      when a.agent_blocked_until > now() then 'agent type ' || a.agent_type || ' failed, next try ' || date_trunc('second', a.agent_blocked_until) || ': ' || coalesce(a.agent_reason, '?')
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
    else j.jq_state || ': ' || coalesce(j.jq_endtext, '')
  end as reason
from drover.jobqueue j
left join drover.queue q on q.queue_name = j.jq_queue
left join drover.scheduler_group g on g.group_name = q.queue_group
left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.jq_type
left join drover.host h on h.host_name = j.jq_host
left join drover.room r on r.room_scheduler = g.group_owner and r.room_agent = j.jq_type
                       and coalesce(r.room_host, '') = coalesce(j.jq_host, '');

-- What becomes of the files that jobs name in jq_delete: none (no clean-up, or not yet), pending, removing, removed, failed.
create view drover.cleanup as
select j.jq_pk, c.jq_pk as cleanup_jq_pk,
  case when c.jq_pk is null then 'none'
       when c.jq_state in ('claimed', 'running') then 'removing'
       when c.jq_endtime is null then 'pending'
       when c.jq_state = 'done' then 'removed'
       else 'failed' end as cleanup_state,
  c.jq_host as cleanup_host, case when c.jq_state not in ('claimed', 'running', 'done') then c.jq_endtext end as cleanup_text
  from drover.jobqueue j left join drover.jobqueue c on c.jq_name = 'cleanup.' || j.jq_pk;

-- A front-end sees its own rows, by the role it logged in as; a function in its WHERE clause sees no others either.
-- The barrier keeps an outer order and limit out: with an order of its own, the newest rows are read without the rest.
create view drover.my_jobs with (security_barrier) as
select * from drover.jobqueue where jq_submitter = session_user order by jq_pk desc;

create view drover.my_why with (security_barrier) as
select w.* from drover.why w join drover.jobqueue j on j.jq_pk = w.jq_pk where j.jq_submitter = session_user;

create view drover.my_log with (security_barrier) as
select l.* from drover.log l join drover.jobqueue j on j.jq_pk = l.log_jq_fk where j.jq_submitter = session_user;

create view drover.my_output with (security_barrier) as
select o.* from drover.output o join drover.jobqueue j on j.jq_pk = o.out_jq_fk where j.jq_submitter = session_user;

create view drover.my_attempt with (security_barrier) as
select a.* from drover.attempt a join drover.jobqueue j on j.jq_pk = a.att_jq_fk where j.jq_submitter = session_user;

create view drover.my_cleanup with (security_barrier) as
select c.* from drover.cleanup c join drover.jobqueue j on j.jq_pk = c.jq_pk where j.jq_submitter = session_user;

create view drover.my_item_failure with (security_barrier) as
select f.* from drover.item_failure f join drover.jobqueue j on j.jq_pk = f.item_jq_fk where j.jq_submitter = session_user;

-- Who waits for whom: the jobs right above and right below each job. A root waits for none, none waits for a leaf.
create view drover.graph as
select jq_pk, jq_name, jq_type, jq_state, parents, children, parents = '{}' as is_root, children = '{}' as is_leaf
  from drover.jobqueue,
       lateral (select array(select jdep_jq_depends_fk from drover.jobdepends where jdep_jq_fk = jq_pk order by 1) as parents,
                       array(select jdep_jq_fk from drover.jobdepends where jdep_jq_depends_fk = jq_pk order by 1) as children offset 0) e;

create view drover.my_graph with (security_barrier) as
select g.* from drover.graph g join drover.jobqueue j on j.jq_pk = g.jq_pk where j.jq_submitter = session_user;

-- The words of jobd: times in whole seconds, 0 for not yet; what is printed is that of the last attempt.
create view drover.jobd as
select jq_pk as id, jq_queue as target,
       extract(epoch from coalesce((select job_queued from drover.job where job_pk = jq_job_fk), jq_queued))::bigint as time_created,
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
  from drover.jobqueue where jq_type <> 'command';

create view drover.my_jobd with (security_barrier) as
select d.* from drover.jobd d join drover.jobqueue j on j.jq_pk = d.id where j.jq_submitter = session_user;

-- Every job without what it works on: for dashboards.
create view drover.jobs_masked as
select jq_pk, jq_job_fk, jq_name, jq_type, length(jq_args) as jq_args_length, jq_msq, jq_runonpfile, jq_host, jq_key, jq_tolerate,
       jq_repeat, jq_queue, jq_urgent, jq_priority, jq_not_before, jq_not_after, jq_wait_until, jq_max_interruptions, jq_retries,
       jq_timeout, jq_mode, jq_state, jq_attempt, jq_owner, jq_schedinfo, jq_interruptions, jq_failures, jq_rescued, jq_retry_at,
       jq_unmet, jq_wanted, jq_queued, jq_starttime, jq_endtime, jq_endtext, jq_end_bits, jq_exitcode, jq_signal,
       jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_elapsedtime, jq_processedtime, jq_expected_end, jq_submitter
  from drover.jobqueue;
