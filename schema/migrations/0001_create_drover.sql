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
  jq_expires_at        timestamptz,                      -- derived: jq_not_after while held or queued
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
  jq_done_by           uuid,                             -- the attempt that was a plain success: which daemon,
  jq_done_host         text,                             -- on which host,
  jq_done_pid          integer,                          -- by which process
  jq_submitter         name not null default session_user,
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
create unique index jobqueue_one_live_row_per_key on drover.jobqueue (jq_live_key) where jq_live_key is not null;

-- What may be claimed now, kept by triggers on jobqueue. A claim is a range scan from the left, for one (type, queue,
-- host) at a time, so that rows it cannot take are never read. Commands wait here too, of type 'command' and queue ''.
create table drover.claimable (
  claim_jq_fk  bigint not null,
  claim_queued timestamptz not null,
  claim_type   text collate "C" not null,
  claim_queue  text collate "C" not null,
  claim_host   text collate "C" not null,                -- '' means any
  claim_rank   text collate "C" not null                 -- 0 if urgent, else 1, then the letter: smaller goes first
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create index claimable_order on drover.claimable
  (claim_type, claim_queue, claim_host, claim_rank, claim_queued, claim_jq_fk);

create function drover.rank(urgent boolean, priority text) returns text language sql immutable parallel safe
  return case when urgent then '0' else '1' end || priority;

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
  check (jdep_jq_fk <> jdep_jq_depends_fk)
);
-- Whoever adds edges locks this, one after the other. An advisory lock would do, if not anybody could take that too.
create table drover.edge_turn ();
create index jobdepends_open on drover.jobdepends (jdep_jq_depends_fk) where jdep_met_at is null;

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

create table drover.output (
  out_pk      bigint generated always as identity primary key,
  out_jq_fk   bigint not null,
  out_attempt integer not null,
  out_date    timestamptz not null default now(),
  out_stream  text not null check (out_stream in ('out', 'err')),
  out_data    text not null
);
create index output_of_job on drover.output (out_jq_fk, out_pk);

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
  queue_priority         integer not null default 0,
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
  agent_revision      text,
  agent_present       boolean not null default true,
  agent_blocked_until timestamptz,                       -- every slot has failed until then
  agent_reason        text,
  agent_registered    timestamptz not null default now(),
  primary key (agent_group, agent_type)
);

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

create function drover.may_command() returns boolean
  language sql stable set search_path = drover, pg_temp as $$
  select pg_has_role(session_user, relowner, 'member')
      or coalesce((select pg_has_role(session_user, oid, 'member') from pg_catalog.pg_roles where rolname = 'drover_operator'), false)
    from pg_catalog.pg_class where oid = 'drover.jobqueue'::regclass
$$;

-- Called only for rows that need it: the plain row, the common case, passes the WHEN clause alone.
create function drover.prepare_job() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  if new.jq_state not in ('held', 'queued') then
    raise exception 'a job is inserted held or queued, not %', new.jq_state using errcode = 'check_violation';
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
        or new.jq_not_after is not null or new.jq_unique_key is not null))
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
  new.jq_live_key := new.jq_unique_key;
  perform pg_notify('drover_command', '');
  return new;
end $$;
create trigger jobqueue_prepare_command before insert on drover.jobqueue for each row
  when (new.jq_type = 'command') execute function drover.prepare_command();

-- One word of a command; blanks are these four, whatever the locale calls a space (scheduler/model/commands.py).
create function drover.word(words text, n integer) returns text language sql immutable parallel safe
  return (regexp_split_to_array(btrim(words, E' \t\n\r'), E'[ \t\n\r]+'))[n];

-- What owners may command: what is about a job of their own.
create function drover.command(words text) returns bigint
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  verb text := drover.word(words, 1);
  job  bigint := case when drover.word(words, 2) ~ '^[0-9]{1,18}$' then drover.word(words, 2)::bigint end;
  pk   bigint;
begin
  if not drover.may_command() then
    if verb is null or verb not in ('killjob', 'cancel', 'signal') then
      raise exception 'only drover_operator may command %', coalesce(verb, 'nothing') using errcode = 'insufficient_privilege';
    end if;
    if not exists (select from drover.jobqueue where jq_pk = job and jq_submitter = session_user) then
      raise exception 'job % is not yours', coalesce(job::text, '?') using errcode = 'insufficient_privilege';
    end if;
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

-- New rows become claimable all at once, and ring once.
create function drover.offer_new() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  insert into drover.claimable
  select jq_pk, jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), drover.rank(jq_urgent, jq_priority) from arrived
   where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null;
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
create trigger jobqueue_fixed after update of jq_type, jq_args, jq_name, jq_msq, jq_runonpfile, jq_key, jq_submitter
  on drover.jobqueue for each row
  when ((old.jq_type, old.jq_args, old.jq_name, old.jq_msq, old.jq_runonpfile, old.jq_key, old.jq_submitter)
        is distinct from (new.jq_type, new.jq_args, new.jq_name, new.jq_msq, new.jq_runonpfile, new.jq_key, new.jq_submitter))
  execute function drover.refuse('what job %s asks for never changes: insert another job');

create function drover.is_claimable(job drover.jobqueue) returns boolean language sql immutable as $$
  select job.jq_state = 'queued' and job.jq_unmet = 0 and job.jq_wait_until is null
$$;

create function drover.withdraw(job drover.jobqueue) returns void language sql as $$
  delete from drover.claimable
   where claim_type = job.jq_type and claim_queue = coalesce(job.jq_queue, '') and claim_host = coalesce(job.jq_host, '')
     and claim_rank = drover.rank(job.jq_urgent, job.jq_priority) and claim_queued = job.jq_queued and claim_jq_fk = job.jq_pk
$$;

create function drover.offer(job drover.jobqueue) returns void language sql as $$
  insert into drover.claimable
  values (job.jq_pk, job.jq_queued, job.jq_type, coalesce(job.jq_queue, ''), coalesce(job.jq_host, ''), drover.rank(job.jq_urgent, job.jq_priority));
  select pg_notify('drover_queue', '')
$$;

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
       set jq_expires_at = case when jq_state in ('held', 'queued') then jq_not_after end,
           jq_live_key = case when jq_state in ('held', 'queued', 'claimed', 'running', 'blocked') then jq_unique_key end
     where jq_pk = new.jq_pk and (jq_not_after is not null or jq_unique_key is not null);
  end if;
  if was and (not is_so or (old.jq_queue, coalesce(old.jq_host, ''), old.jq_urgent, old.jq_priority, old.jq_queued)
                           <> (new.jq_queue, coalesce(new.jq_host, ''), new.jq_urgent, new.jq_priority, new.jq_queued)) then
    perform drover.withdraw(old);
    was := false;
  end if;
  if is_so and not was then
    perform drover.offer(new);
  end if;
  return null;
end $$;

-- The moves of a job that is claimed, worked and done pass the WHEN clause without calling anything.
create trigger jobqueue_moved
  after update of jq_state, jq_unmet, jq_wait_until, jq_queue, jq_host, jq_urgent, jq_priority, jq_queued on drover.jobqueue for each row
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

-- ---------------------------------------------------------------- dependencies

-- Row locks alone accepted a four-cycle built by four sessions; one transaction-level lock orders the edges.
-- An edge that is there already is left to the primary key: `on conflict do nothing` must not count it twice.
-- A child that an edge before this one skipped, in this transaction, takes the rest of its edges in silence.
create function drover.add_edge() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  child  drover.jobqueue;
  parent drover.jobqueue;
begin
  lock table drover.edge_turn in exclusive mode;
  perform from drover.jobqueue where jq_pk in (new.jdep_jq_fk, new.jdep_jq_depends_fk) order by jq_pk for no key update;
  select * into child from drover.jobqueue where jq_pk = new.jdep_jq_fk;
  select * into parent from drover.jobqueue where jq_pk = new.jdep_jq_depends_fk;
  if child.jq_pk is null or parent.jq_pk is null then
    raise exception 'no job %', case when child.jq_pk is null then new.jdep_jq_fk else new.jdep_jq_depends_fk end
      using errcode = 'foreign_key_violation';
  end if;
  if (child.jq_submitter, parent.jq_submitter) is distinct from (session_user, session_user) and not drover.may_command() then
    raise exception 'job % or % is not yours: a dependency needs both', child.jq_pk, parent.jq_pk using errcode = 'insufficient_privilege';
  end if;
  if exists (select from drover.jobdepends where jdep_jq_fk = child.jq_pk and jdep_jq_depends_fk = parent.jq_pk)
     or (child.jq_state = 'skipped' and child.jq_endtime = now()) then
    return new;
  end if;
  if child.jq_type = 'command' then
    raise exception 'job % is a command: it waits for nothing', child.jq_pk using errcode = 'check_violation';
  end if;
  if child.jq_state not in ('held', 'queued') then
    raise exception 'job % is % already: it takes no new dependency', child.jq_pk, child.jq_state using errcode = 'check_violation';
  end if;
  if child.jq_has_children and exists (
    with recursive above(pk) as (
      select parent.jq_pk
      union
      select d.jdep_jq_depends_fk from drover.jobdepends d join above a on d.jdep_jq_fk = a.pk)
    select from above where pk = child.jq_pk)
  then
    raise exception 'job % may not depend on %: that would be a cycle', child.jq_pk, parent.jq_pk using errcode = 'check_violation';
  end if;
  if parent.jq_end_bits & new.jdep_depends_bits <> 0 then
    new.jdep_met_at := now();
  elsif parent.jq_endtime is not null and new.jdep_on_unmet = 'skip' then
    update drover.jobqueue
       set jq_state = 'skipped', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2,
           jq_endtext = format('dependency on job %s not met', parent.jq_pk)
     where jq_pk = child.jq_pk;
    perform drover.announce(array[child.jq_pk], '{skipped}');
    perform drover.settle(array[child.jq_pk]) where child.jq_has_children;
  else
    update drover.jobqueue set jq_unmet = jq_unmet + 1 where jq_pk = child.jq_pk;
    update drover.jobqueue set jq_has_children = true where jq_pk = parent.jq_pk and not jq_has_children;
  end if;
  return new;
end $$;
create trigger jobdepends_add before insert on drover.jobdepends for each row execute function drover.add_edge();

create function drover.drop_edge() returns trigger
  language plpgsql security definer set search_path = drover, pg_temp as $$
begin
  update drover.jobqueue set jq_unmet = jq_unmet - 1 where jq_pk = old.jdep_jq_fk and jq_unmet > 0;
  perform pg_notify('drover_queue', '');
  return null;
end $$;
create trigger jobdepends_drop after delete on drover.jobdepends for each row
  when (old.jdep_met_at is null) execute function drover.drop_edge();

-- Settle the edges below ended parents; a child skipped here is an ended parent too. It must be a statement of its own:
-- in the one that ends the parent, the snapshot misses a new edge and its child waits for ever. A child may be in the
-- queue of another group, so everybody is woken.
create function drover.settle(parents bigint[]) returns integer
  language plpgsql security definer set search_path = drover, pg_temp as $$
declare
  released integer := 0;
  step     integer;
  ended    bigint[];
begin
  while cardinality(parents) > 0 loop
    with met as (
      update drover.jobdepends d set jdep_met_at = now()
        from drover.jobqueue p
       where p.jq_pk = any(parents) and d.jdep_jq_depends_fk = p.jq_pk and d.jdep_met_at is null
         and p.jq_endtime is not null and p.jq_end_bits & d.jdep_depends_bits <> 0
      returning d.jdep_jq_fk),
    counted as (select jdep_jq_fk as pk, count(*)::integer as n from met group by jdep_jq_fk)
    update drover.jobqueue c set jq_unmet = greatest(c.jq_unmet - n, 0) from counted where c.jq_pk = counted.pk;
    get diagnostics step = row_count;
    released := released + step;
    with skipped as (
      update drover.jobqueue c
         set jq_state = 'skipped', jq_starttime = now(), jq_endtime = now(), jq_end_bits = 2,
             jq_endtext = 'dependency on job ' || p.jq_pk || ' not met'
        from drover.jobdepends d, drover.jobqueue p
       where p.jq_pk = any(parents) and d.jdep_jq_depends_fk = p.jq_pk and d.jdep_met_at is null
         and d.jdep_on_unmet = 'skip' and p.jq_endtime is not null and p.jq_end_bits & d.jdep_depends_bits = 0
         and c.jq_pk = d.jdep_jq_fk and c.jq_state in ('held', 'queued')
      returning c.jq_pk, c.jq_has_children)
    select coalesce(array_agg(jq_pk) filter (where jq_has_children), '{}'), array_agg(jq_pk) into parents, ended from skipped;
    if ended is not null then
      perform drover.announce(ended, array_fill('skipped'::text, array[cardinality(ended)]));
    end if;
  end loop;
  perform pg_notify('drover_queue', '') where released > 0;
  return released;
end $$;

-- Tell user interfaces what became of jobs: arrays under 8,000 bytes on channel drover_event.
create function drover.announce(pks bigint[], states text[]) returns bigint language sql as $$
  select count(pg_notify('drover_event', chunk)) from (
    select json_agg(json_build_object('jq_pk', u.pk, 'state', u.state, 'job_pk', j.jq_job_fk))::text as chunk
      from unnest(pks, states) with ordinality as u(pk, state, n)
      left join drover.jobqueue j on j.jq_pk = u.pk
     group by (u.n - 1) / 80) c
$$;

-- ---------------------------------------------------------------- views

-- Every attempt and slice, by whom and how it ended.
create view drover.attempt as
select * from drover.attempt_kept
union all
select jq_pk, jq_attempt, jq_done_by, jq_done_host, jq_type, jq_done_pid, jq_starttime, jq_endtime, 'done', jq_exitcode, null, null
  from drover.jobqueue where jq_done_by is not null;

-- Why a job is not running: the first reason that holds, most lasting first.
create view drover.why as
select j.jq_pk, j.jq_type, j.jq_state,
  case
    when j.jq_state = 'held' then case j.jq_mode when 'manual' then 'manual: waits for run' else 'held: waits for release' end
    when j.jq_state = 'blocked' then coalesce(j.jq_endtext, 'blocked')
    when j.jq_state in ('claimed', 'running') then case
      when j.jq_state = 'running' then 'running, in hand since ' || date_trunc('second', j.jq_starttime)
      when a.agent_reason is not null then 'in hand, waits for an agent: ' || a.agent_reason
      when j.jq_msq and j.jq_itemstotal is null then 'in hand: waits for an expansion connection'
      else 'in hand: waits for an agent' end
    when j.jq_state = 'queued' and j.jq_type = 'command' then 'waits for an active scheduler'
    when j.jq_state = 'queued' then case
      when j.jq_unmet > 0 then 'waits for ' || j.jq_unmet || case j.jq_unmet when 1 then ' dependency: job ' else ' dependencies: jobs ' end
        || coalesce((select string_agg(jdep_jq_depends_fk::text, ', ' order by jdep_jq_depends_fk)
                       from (select jdep_jq_depends_fk from drover.jobdepends
                              where jdep_jq_fk = j.jq_pk and jdep_met_at is null limit 10) d), '?')
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
      when not h.host_enabled then 'host ' || h.host_name || ' is disabled'
      when h.host_down_until > now() then 'host ' || h.host_name || ' is down: ' || coalesce(h.host_reason, '?')
      when g.group_owner is null or g.group_lease_until < now() then 'no scheduler is active for group ' || q.queue_group
      when a.agent_blocked_until > now() then 'agent type ' || a.agent_type || ' failed, next try ' || date_trunc('second', a.agent_blocked_until) || ': ' || coalesce(a.agent_reason, '?')
      when q.queue_concurrency <= (select count(distinct r.jq_pk)
                                     from drover.in_hand, unnest(hand_jobs) as pk join drover.jobqueue r on r.jq_pk = pk
                                    where r.jq_queue = q.queue_name and r.jq_state in ('claimed', 'running'))
        then 'queue ' || q.queue_name || ' is full'
      else coalesce('waits its turn: ' || a.agent_reason, 'waits its turn') end
    else j.jq_state || ': ' || coalesce(j.jq_endtext, '')
  end as reason
from drover.jobqueue j
left join drover.queue q on q.queue_name = j.jq_queue
left join drover.scheduler_group g on g.group_name = q.queue_group
left join drover.agent a on a.agent_group = q.queue_group and a.agent_type = j.jq_type
left join drover.host h on h.host_name = j.jq_host;

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

create view drover.my_item_failure with (security_barrier) as
select f.* from drover.item_failure f join drover.jobqueue j on j.jq_pk = f.item_jq_fk where j.jq_submitter = session_user;

-- Every job without what it works on: for dashboards.
create view drover.jobs_masked as
select jq_pk, jq_job_fk, jq_name, jq_type, length(jq_args) as jq_args_length, jq_msq, jq_runonpfile, jq_host, jq_key, jq_tolerate,
       jq_repeat, jq_queue, jq_urgent, jq_priority, jq_not_before, jq_not_after, jq_wait_until, jq_max_interruptions, jq_retries,
       jq_timeout, jq_mode, jq_state, jq_attempt, jq_owner, jq_schedinfo, jq_interruptions, jq_failures, jq_rescued, jq_retry_at,
       jq_unmet, jq_wanted, jq_queued, jq_starttime, jq_endtime, jq_endtext, jq_end_bits, jq_exitcode, jq_signal,
       jq_itemsprocessed, jq_itemsfailed, jq_itemstotal, jq_elapsedtime, jq_processedtime, jq_submitter
  from drover.jobqueue;
