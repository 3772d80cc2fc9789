-- What the migrations build. Written by `python -m scheduler.migrate --dump`, not by hand.
SET check_function_bodies = false;

CREATE SCHEMA drover;

CREATE TYPE drover.job_mode AS ENUM (
    'background',
    'manual'
);

CREATE TYPE drover.job_state AS ENUM (
    'held',
    'queued',
    'claimed',
    'running',
    'blocked',
    'done',
    'failed',
    'cancelled',
    'ignored',
    'skipped'
);

CREATE FUNCTION drover.add_edge() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
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

CREATE FUNCTION drover.announce(pks bigint[], states text[]) RETURNS bigint
    LANGUAGE sql
    AS $$
  select count(pg_notify('drover_event', chunk)) from (
    select json_agg(json_build_object('jq_pk', u.pk, 'state', u.state, 'job_pk', j.jq_job_fk))::text as chunk
      from unnest(pks, states) with ordinality as u(pk, state, n)
      left join drover.jobqueue j on j.jq_pk = u.pk
     group by (u.n - 1) / 80) c
$$;

CREATE FUNCTION drover.command(words text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $_$
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
end $_$;

CREATE FUNCTION drover.drop_edge() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  update drover.jobqueue set jq_unmet = jq_unmet - 1 where jq_pk = old.jdep_jq_fk and jq_unmet > 0;
  perform pg_notify('drover_queue', '');
  return null;
end $$;

CREATE FUNCTION drover.gone() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  perform drover.withdraw(old);
  return null;
end $$;

CREATE TABLE drover.jobqueue (
    jq_pk bigint NOT NULL,
    jq_job_fk bigint,
    jq_name text,
    jq_type text NOT NULL,
    jq_args text DEFAULT ''::text NOT NULL,
    jq_msq boolean DEFAULT false NOT NULL,
    jq_runonpfile text,
    jq_host text,
    jq_key text,
    jq_tolerate bigint DEFAULT 0 NOT NULL,
    jq_repeat boolean DEFAULT false NOT NULL,
    jq_queue text DEFAULT 'default'::text,
    jq_urgent boolean DEFAULT false NOT NULL,
    jq_priority text DEFAULT 'n'::text NOT NULL COLLATE pg_catalog."C",
    jq_not_before timestamp with time zone,
    jq_not_after timestamp with time zone,
    jq_wait_until timestamp with time zone,
    jq_expires_at timestamp with time zone,
    jq_live_key text,
    jq_max_interruptions integer DEFAULT 3 NOT NULL,
    jq_retries integer DEFAULT 0 NOT NULL,
    jq_timeout interval,
    jq_unique_key text,
    jq_delete text[],
    jq_mode drover.job_mode DEFAULT 'background'::drover.job_mode NOT NULL,
    jq_state drover.job_state DEFAULT 'queued'::drover.job_state NOT NULL,
    jq_attempt integer DEFAULT 0 NOT NULL,
    jq_owner uuid,
    jq_schedinfo text,
    jq_interruptions integer DEFAULT 0 NOT NULL,
    jq_failures integer DEFAULT 0 NOT NULL,
    jq_rescued integer DEFAULT 0 NOT NULL,
    jq_retry_at timestamp with time zone,
    jq_unmet integer DEFAULT 0 NOT NULL,
    jq_has_children boolean DEFAULT false NOT NULL,
    jq_wanted text,
    jq_queued timestamp with time zone DEFAULT now() NOT NULL,
    jq_starttime timestamp with time zone,
    jq_endtime timestamp with time zone,
    jq_endtext text,
    jq_end_bits integer DEFAULT 0 NOT NULL,
    jq_exitcode integer,
    jq_signal text,
    jq_result jsonb,
    jq_itemsprocessed bigint DEFAULT 0 NOT NULL,
    jq_itemsfailed bigint DEFAULT 0 NOT NULL,
    jq_itemstotal bigint,
    jq_checkpoint jsonb,
    jq_elapsedtime interval,
    jq_processedtime interval,
    jq_done_by uuid,
    jq_done_host text,
    jq_done_pid integer,
    jq_submitter name DEFAULT SESSION_USER NOT NULL,
    CONSTRAINT jobqueue_jq_end_bits_check CHECK (((jq_end_bits >= 0) AND (jq_end_bits <= 7))),
    CONSTRAINT jobqueue_jq_max_interruptions_check CHECK ((jq_max_interruptions >= 0)),
    CONSTRAINT jobqueue_jq_priority_check CHECK (((jq_priority = 'n'::text) OR (jq_priority ~ '^[A-Za-z0-9]{1,16}$'::text))),
    CONSTRAINT jobqueue_jq_retries_check CHECK ((jq_retries >= 0)),
    CONSTRAINT jobqueue_jq_timeout_check CHECK ((jq_timeout > '00:00:00'::interval)),
    CONSTRAINT jobqueue_jq_tolerate_check CHECK ((jq_tolerate >= 0)),
    CONSTRAINT jobqueue_jq_unmet_check CHECK ((jq_unmet >= 0)),
    CONSTRAINT jobqueue_key_needs_sql CHECK (((jq_key IS NULL) OR jq_msq)),
    CONSTRAINT jobqueue_name_is_type_dot_nonce CHECK (((jq_name ~ '^[^.[:space:]]+[.][^.[:space:]]+$'::text) AND (split_part(jq_name, '.'::text, 1) = jq_type))),
    CONSTRAINT jobqueue_repeat_needs_sql CHECK (((NOT jq_repeat) OR jq_msq)),
    CONSTRAINT jobqueue_state_says_who_and_when CHECK (
CASE
    WHEN ((jq_state = 'claimed'::drover.job_state) OR (jq_state = 'running'::drover.job_state)) THEN ((jq_owner IS NOT NULL) AND (jq_starttime IS NOT NULL) AND (jq_endtime IS NULL) AND (jq_end_bits = 0))
    WHEN (jq_state = 'done'::drover.job_state) THEN ((jq_owner IS NULL) AND (jq_starttime IS NOT NULL) AND (jq_endtime IS NOT NULL) AND (jq_end_bits = ANY (ARRAY[1, 5])))
    WHEN (jq_state = ANY (ARRAY['held'::drover.job_state, 'queued'::drover.job_state, 'blocked'::drover.job_state])) THEN ((jq_owner IS NULL) AND (jq_starttime IS NULL) AND (jq_endtime IS NULL) AND (jq_end_bits = 0))
    WHEN (jq_state = 'skipped'::drover.job_state) THEN ((jq_owner IS NULL) AND (jq_starttime IS NOT NULL) AND (jq_endtime IS NOT NULL) AND (jq_end_bits = ANY (ARRAY[1, 2])))
    ELSE ((jq_owner IS NULL) AND (jq_starttime IS NOT NULL) AND (jq_endtime IS NOT NULL) AND ((jq_end_bits & 3) = 2))
END)
)
WITH (fillfactor='40', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

CREATE FUNCTION drover.is_claimable(job drover.jobqueue) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
  select job.jq_state = 'queued' and job.jq_unmet = 0 and job.jq_wait_until is null
$$;

CREATE FUNCTION drover.may_command() RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'drover', 'pg_temp'
    AS $$
  select pg_has_role(session_user, relowner, 'member')
      or coalesce((select pg_has_role(session_user, oid, 'member') from pg_catalog.pg_roles where rolname = 'drover_operator'), false)
    from pg_catalog.pg_class where oid = 'drover.jobqueue'::regclass
$$;

CREATE FUNCTION drover.moved() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
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

CREATE FUNCTION drover.offer(job drover.jobqueue) RETURNS void
    LANGUAGE sql
    AS $$
  insert into drover.claimable
  values (job.jq_pk, job.jq_queued, job.jq_type, coalesce(job.jq_queue, ''), coalesce(job.jq_host, ''), drover.rank(job.jq_urgent, job.jq_priority));
  select pg_notify('drover_queue', '')
$$;

CREATE FUNCTION drover.offer_new() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
begin
  insert into drover.claimable
  select jq_pk, jq_queued, jq_type, coalesce(jq_queue, ''), coalesce(jq_host, ''), drover.rank(jq_urgent, jq_priority) from arrived
   where jq_state = 'queued' and jq_unmet = 0 and jq_wait_until is null;
  perform pg_notify('drover_queue', '');
  return null;
end $$;

CREATE FUNCTION drover.prepare_command() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'drover', 'pg_temp'
    AS $$
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

CREATE FUNCTION drover.prepare_job() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
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

CREATE FUNCTION drover.rank(urgent boolean, priority text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (CASE WHEN urgent THEN '0'::text ELSE '1'::text END || priority);

CREATE FUNCTION drover.refuse() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
  raise exception '%', format(tg_argv[0], old.jq_pk, old.jq_state, new.jq_state) using errcode = 'check_violation';
end $$;

CREATE FUNCTION drover.settle(parents bigint[]) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'drover', 'pg_temp'
    AS $$
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

CREATE FUNCTION drover.wake() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
  perform pg_notify(tg_argv[0], '');
  return null;
end $$;

CREATE FUNCTION drover.withdraw(job drover.jobqueue) RETURNS void
    LANGUAGE sql
    AS $$
  delete from drover.claimable
   where claim_type = job.jq_type and claim_queue = coalesce(job.jq_queue, '') and claim_host = coalesce(job.jq_host, '')
     and claim_rank = drover.rank(job.jq_urgent, job.jq_priority) and claim_queued = job.jq_queued and claim_jq_fk = job.jq_pk
$$;

CREATE FUNCTION drover.word(words text, n integer) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (regexp_split_to_array(btrim(words, ' 	

'::text), '[ 	

]+'::text))[n];

CREATE TABLE drover.agent (
    agent_group text NOT NULL,
    agent_type text NOT NULL,
    agent_enabled boolean DEFAULT true NOT NULL,
    agent_enabled_file boolean,
    agent_kind text DEFAULT 'line'::text NOT NULL,
    agent_submitters text[] DEFAULT '{*}'::text[] NOT NULL,
    agent_revision text,
    agent_present boolean DEFAULT true NOT NULL,
    agent_blocked_until timestamp with time zone,
    agent_reason text,
    agent_registered timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT agent_agent_kind_check CHECK ((agent_kind = ANY (ARRAY['line'::text, 'exec'::text]))),
    CONSTRAINT agent_agent_type_check CHECK ((agent_type <> 'command'::text))
);

CREATE TABLE drover.attempt_kept (
    att_jq_fk bigint NOT NULL,
    att_attempt integer NOT NULL,
    att_scheduler uuid,
    att_host text,
    att_agent text,
    att_pid integer,
    att_start timestamp with time zone NOT NULL,
    att_end timestamp with time zone DEFAULT now() NOT NULL,
    att_outcome text NOT NULL,
    att_exitcode integer,
    att_signal text,
    att_reason text,
    CONSTRAINT attempt_kept_att_outcome_check CHECK ((att_outcome = ANY (ARRAY['done'::text, 'failed'::text, 'slice'::text, 'retry'::text, 'given back'::text, 'blocked'::text, 'interrupted'::text, 'rescued'::text, 'cancelled'::text])))
);

CREATE VIEW drover.attempt AS
 SELECT attempt_kept.att_jq_fk,
    attempt_kept.att_attempt,
    attempt_kept.att_scheduler,
    attempt_kept.att_host,
    attempt_kept.att_agent,
    attempt_kept.att_pid,
    attempt_kept.att_start,
    attempt_kept.att_end,
    attempt_kept.att_outcome,
    attempt_kept.att_exitcode,
    attempt_kept.att_signal,
    attempt_kept.att_reason
   FROM drover.attempt_kept
UNION ALL
 SELECT jobqueue.jq_pk AS att_jq_fk,
    jobqueue.jq_attempt AS att_attempt,
    jobqueue.jq_done_by AS att_scheduler,
    jobqueue.jq_done_host AS att_host,
    jobqueue.jq_type AS att_agent,
    jobqueue.jq_done_pid AS att_pid,
    jobqueue.jq_starttime AS att_start,
    jobqueue.jq_endtime AS att_end,
    'done'::text AS att_outcome,
    jobqueue.jq_exitcode AS att_exitcode,
    NULL::text AS att_signal,
    NULL::text AS att_reason
   FROM drover.jobqueue
  WHERE (jobqueue.jq_done_by IS NOT NULL);

CREATE TABLE drover.claimable (
    claim_jq_fk bigint NOT NULL,
    claim_queued timestamp with time zone NOT NULL,
    claim_type text NOT NULL COLLATE pg_catalog."C",
    claim_queue text NOT NULL COLLATE pg_catalog."C",
    claim_host text NOT NULL COLLATE pg_catalog."C",
    claim_rank text NOT NULL COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

CREATE TABLE drover.command_ack (
    ack_jq_fk bigint NOT NULL,
    ack_scheduler uuid NOT NULL,
    ack_name text NOT NULL,
    ack_ok boolean NOT NULL,
    ack_text text NOT NULL,
    ack_date timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE drover.edge_turn (
);

CREATE TABLE drover.host (
    host_name text NOT NULL,
    host_group text NOT NULL,
    host_max integer DEFAULT '-1'::integer NOT NULL,
    host_max_file integer,
    host_urgent integer DEFAULT 1 NOT NULL,
    host_urgent_file integer,
    host_enabled boolean DEFAULT true NOT NULL,
    host_enabled_file boolean,
    host_transport text DEFAULT 'local'::text NOT NULL,
    host_present boolean DEFAULT true NOT NULL,
    host_down_until timestamp with time zone,
    host_reason text,
    CONSTRAINT host_host_name_check CHECK (((length(host_name) >= 1) AND (length(host_name) <= 64)))
);

CREATE TABLE drover.in_hand (
    hand_owner uuid NOT NULL,
    hand_jobs bigint[] NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY drover.in_hand ALTER COLUMN hand_jobs SET STORAGE EXTERNAL;

CREATE TABLE drover.item_failure (
    item_pk bigint NOT NULL,
    item_jq_fk bigint NOT NULL,
    item_attempt integer NOT NULL,
    item_key text,
    item_line text NOT NULL,
    item_date timestamp with time zone DEFAULT now() NOT NULL,
    item_host text,
    item_agent text,
    item_pid integer,
    item_reason text NOT NULL
);

ALTER TABLE drover.item_failure ALTER COLUMN item_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.item_failure_item_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.job (
    job_pk bigint NOT NULL,
    job_name text,
    job_priority integer DEFAULT 0 NOT NULL,
    job_queued timestamp with time zone DEFAULT now() NOT NULL,
    job_tenant text,
    job_user name DEFAULT SESSION_USER NOT NULL,
    job_data jsonb,
    job_hidden boolean DEFAULT false NOT NULL
);

ALTER TABLE drover.job ALTER COLUMN job_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.job_job_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.jobdepends (
    jdep_jq_fk bigint NOT NULL,
    jdep_jq_depends_fk bigint NOT NULL,
    jdep_depends_bits integer DEFAULT 1 NOT NULL,
    jdep_on_unmet text DEFAULT 'wait'::text NOT NULL,
    jdep_met_at timestamp with time zone,
    CONSTRAINT jobdepends_check CHECK ((jdep_jq_fk <> jdep_jq_depends_fk)),
    CONSTRAINT jobdepends_jdep_depends_bits_check CHECK (((jdep_depends_bits >= 1) AND (jdep_depends_bits <= 7))),
    CONSTRAINT jobdepends_jdep_on_unmet_check CHECK ((jdep_on_unmet = ANY (ARRAY['wait'::text, 'skip'::text])))
);

ALTER TABLE drover.jobqueue ALTER COLUMN jq_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.jobqueue_jq_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE VIEW drover.jobs_masked AS
 SELECT jobqueue.jq_pk,
    jobqueue.jq_job_fk,
    jobqueue.jq_name,
    jobqueue.jq_type,
    length(jobqueue.jq_args) AS jq_args_length,
    jobqueue.jq_msq,
    jobqueue.jq_runonpfile,
    jobqueue.jq_host,
    jobqueue.jq_key,
    jobqueue.jq_tolerate,
    jobqueue.jq_repeat,
    jobqueue.jq_queue,
    jobqueue.jq_urgent,
    jobqueue.jq_priority,
    jobqueue.jq_not_before,
    jobqueue.jq_not_after,
    jobqueue.jq_wait_until,
    jobqueue.jq_max_interruptions,
    jobqueue.jq_retries,
    jobqueue.jq_timeout,
    jobqueue.jq_mode,
    jobqueue.jq_state,
    jobqueue.jq_attempt,
    jobqueue.jq_owner,
    jobqueue.jq_schedinfo,
    jobqueue.jq_interruptions,
    jobqueue.jq_failures,
    jobqueue.jq_rescued,
    jobqueue.jq_retry_at,
    jobqueue.jq_unmet,
    jobqueue.jq_wanted,
    jobqueue.jq_queued,
    jobqueue.jq_starttime,
    jobqueue.jq_endtime,
    jobqueue.jq_endtext,
    jobqueue.jq_end_bits,
    jobqueue.jq_exitcode,
    jobqueue.jq_signal,
    jobqueue.jq_itemsprocessed,
    jobqueue.jq_itemsfailed,
    jobqueue.jq_itemstotal,
    jobqueue.jq_elapsedtime,
    jobqueue.jq_processedtime,
    jobqueue.jq_submitter
   FROM drover.jobqueue;

CREATE TABLE drover.log (
    log_pk bigint NOT NULL,
    log_date timestamp with time zone DEFAULT now() NOT NULL,
    log_jq_fk bigint,
    log_type text NOT NULL,
    log_host text,
    log_agent text,
    log_pid integer,
    log_message text NOT NULL
);

ALTER TABLE drover.log ALTER COLUMN log_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.log_log_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.migration (
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE VIEW drover.my_attempt WITH (security_barrier='true') AS
 SELECT a.att_jq_fk,
    a.att_attempt,
    a.att_scheduler,
    a.att_host,
    a.att_agent,
    a.att_pid,
    a.att_start,
    a.att_end,
    a.att_outcome,
    a.att_exitcode,
    a.att_signal,
    a.att_reason
   FROM (drover.attempt a
     JOIN drover.jobqueue j ON ((j.jq_pk = a.att_jq_fk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_item_failure WITH (security_barrier='true') AS
 SELECT f.item_pk,
    f.item_jq_fk,
    f.item_attempt,
    f.item_key,
    f.item_line,
    f.item_date,
    f.item_host,
    f.item_agent,
    f.item_pid,
    f.item_reason
   FROM (drover.item_failure f
     JOIN drover.jobqueue j ON ((j.jq_pk = f.item_jq_fk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE VIEW drover.my_jobs WITH (security_barrier='true') AS
 SELECT jobqueue.jq_pk,
    jobqueue.jq_job_fk,
    jobqueue.jq_name,
    jobqueue.jq_type,
    jobqueue.jq_args,
    jobqueue.jq_msq,
    jobqueue.jq_runonpfile,
    jobqueue.jq_host,
    jobqueue.jq_key,
    jobqueue.jq_tolerate,
    jobqueue.jq_repeat,
    jobqueue.jq_queue,
    jobqueue.jq_urgent,
    jobqueue.jq_priority,
    jobqueue.jq_not_before,
    jobqueue.jq_not_after,
    jobqueue.jq_wait_until,
    jobqueue.jq_expires_at,
    jobqueue.jq_live_key,
    jobqueue.jq_max_interruptions,
    jobqueue.jq_retries,
    jobqueue.jq_timeout,
    jobqueue.jq_unique_key,
    jobqueue.jq_delete,
    jobqueue.jq_mode,
    jobqueue.jq_state,
    jobqueue.jq_attempt,
    jobqueue.jq_owner,
    jobqueue.jq_schedinfo,
    jobqueue.jq_interruptions,
    jobqueue.jq_failures,
    jobqueue.jq_rescued,
    jobqueue.jq_retry_at,
    jobqueue.jq_unmet,
    jobqueue.jq_has_children,
    jobqueue.jq_wanted,
    jobqueue.jq_queued,
    jobqueue.jq_starttime,
    jobqueue.jq_endtime,
    jobqueue.jq_endtext,
    jobqueue.jq_end_bits,
    jobqueue.jq_exitcode,
    jobqueue.jq_signal,
    jobqueue.jq_result,
    jobqueue.jq_itemsprocessed,
    jobqueue.jq_itemsfailed,
    jobqueue.jq_itemstotal,
    jobqueue.jq_checkpoint,
    jobqueue.jq_elapsedtime,
    jobqueue.jq_processedtime,
    jobqueue.jq_done_by,
    jobqueue.jq_done_host,
    jobqueue.jq_done_pid,
    jobqueue.jq_submitter
   FROM drover.jobqueue
  WHERE (jobqueue.jq_submitter = SESSION_USER)
  ORDER BY jobqueue.jq_pk DESC;

CREATE VIEW drover.my_log WITH (security_barrier='true') AS
 SELECT l.log_pk,
    l.log_date,
    l.log_jq_fk,
    l.log_type,
    l.log_host,
    l.log_agent,
    l.log_pid,
    l.log_message
   FROM (drover.log l
     JOIN drover.jobqueue j ON ((j.jq_pk = l.log_jq_fk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE TABLE drover.output (
    out_pk bigint NOT NULL,
    out_jq_fk bigint NOT NULL,
    out_attempt integer NOT NULL,
    out_date timestamp with time zone DEFAULT now() NOT NULL,
    out_stream text NOT NULL,
    out_data text NOT NULL,
    CONSTRAINT output_out_stream_check CHECK ((out_stream = ANY (ARRAY['out'::text, 'err'::text])))
);

CREATE VIEW drover.my_output WITH (security_barrier='true') AS
 SELECT o.out_pk,
    o.out_jq_fk,
    o.out_attempt,
    o.out_date,
    o.out_stream,
    o.out_data
   FROM (drover.output o
     JOIN drover.jobqueue j ON ((j.jq_pk = o.out_jq_fk)))
  WHERE (j.jq_submitter = SESSION_USER);

CREATE TABLE drover.queue (
    queue_name text NOT NULL,
    queue_group text NOT NULL,
    queue_concurrency integer,
    queue_concurrency_file integer,
    queue_paused boolean DEFAULT false NOT NULL,
    queue_paused_file boolean,
    queue_priority integer DEFAULT 0 NOT NULL,
    queue_filter text,
    queue_present boolean DEFAULT true NOT NULL,
    CONSTRAINT queue_queue_concurrency_check CHECK ((queue_concurrency > 0)),
    CONSTRAINT queue_queue_name_check CHECK (((length(queue_name) >= 1) AND (length(queue_name) <= 64)))
);

CREATE TABLE drover.scheduler_group (
    group_name text NOT NULL,
    group_owner uuid,
    group_lease_until timestamp with time zone,
    group_taken_at timestamp with time zone
);

CREATE VIEW drover.why AS
 SELECT j.jq_pk,
    j.jq_type,
    j.jq_state,
        CASE
            WHEN (j.jq_state = 'held'::drover.job_state) THEN
            CASE j.jq_mode
                WHEN 'manual'::drover.job_mode THEN 'manual: waits for run'::text
                ELSE 'held: waits for release'::text
            END
            WHEN (j.jq_state = 'blocked'::drover.job_state) THEN COALESCE(j.jq_endtext, 'blocked'::text)
            WHEN (j.jq_state = ANY (ARRAY['claimed'::drover.job_state, 'running'::drover.job_state])) THEN
            CASE
                WHEN (j.jq_state = 'running'::drover.job_state) THEN ('running, in hand since '::text || date_trunc('second'::text, j.jq_starttime))
                WHEN (a.agent_reason IS NOT NULL) THEN ('in hand, waits for an agent: '::text || a.agent_reason)
                WHEN (j.jq_msq AND (j.jq_itemstotal IS NULL)) THEN 'in hand: waits for an expansion connection'::text
                ELSE 'in hand: waits for an agent'::text
            END
            WHEN ((j.jq_state = 'queued'::drover.job_state) AND (j.jq_type = 'command'::text)) THEN 'waits for an active scheduler'::text
            WHEN (j.jq_state = 'queued'::drover.job_state) THEN
            CASE
                WHEN (j.jq_unmet > 0) THEN ((('waits for '::text || j.jq_unmet) ||
                CASE j.jq_unmet
                    WHEN 1 THEN ' dependency: job '::text
                    ELSE ' dependencies: jobs '::text
                END) || COALESCE(( SELECT string_agg((d.jdep_jq_depends_fk)::text, ', '::text ORDER BY d.jdep_jq_depends_fk) AS string_agg
                   FROM ( SELECT jobdepends.jdep_jq_depends_fk
                           FROM drover.jobdepends
                          WHERE ((jobdepends.jdep_jq_fk = j.jq_pk) AND (jobdepends.jdep_met_at IS NULL))
                         LIMIT 10) d), '?'::text))
                WHEN (j.jq_wait_until > now()) THEN (('waits until '::text || date_trunc('second'::text, j.jq_wait_until)) ||
                CASE
                    WHEN (j.jq_retry_at IS NOT NULL) THEN (': '::text || COALESCE(j.jq_endtext, 'back-off'::text))
                    ELSE ''::text
                END)
                WHEN (q.queue_name IS NULL) THEN ('no queue '::text || quote_literal(j.jq_queue))
                WHEN q.queue_paused THEN (('queue '::text || q.queue_name) || ' is paused'::text)
                WHEN (a.agent_type IS NULL) THEN ((('no agent type '::text || quote_literal(j.jq_type)) || ' is configured in group '::text) || q.queue_group)
                WHEN (NOT a.agent_present) THEN (('agent type '::text || a.agent_type) || ' is no longer configured'::text)
                WHEN (NOT a.agent_enabled) THEN (('agent type '::text || a.agent_type) || ' is disabled'::text)
                WHEN ((h.host_name IS NULL) AND (j.jq_host IS NOT NULL)) THEN ('no host '::text || quote_literal(j.jq_host))
                WHEN (h.host_group <> q.queue_group) THEN ((((((('host '::text || h.host_name) || ' belongs to group '::text) || h.host_group) || ', queue '::text) || q.queue_name) || ' to '::text) || q.queue_group)
                WHEN (NOT h.host_present) THEN (('host '::text || h.host_name) || ' is no longer configured'::text)
                WHEN (NOT h.host_enabled) THEN (('host '::text || h.host_name) || ' is disabled'::text)
                WHEN (h.host_down_until > now()) THEN ((('host '::text || h.host_name) || ' is down: '::text) || COALESCE(h.host_reason, '?'::text))
                WHEN ((g.group_owner IS NULL) OR (g.group_lease_until < now())) THEN ('no scheduler is active for group '::text || q.queue_group)
                WHEN (a.agent_blocked_until > now()) THEN ((((('agent type '::text || a.agent_type) || ' failed, next try '::text) || date_trunc('second'::text, a.agent_blocked_until)) || ': '::text) || COALESCE(a.agent_reason, '?'::text))
                WHEN (q.queue_concurrency <= ( SELECT count(DISTINCT r.jq_pk) AS count
                   FROM drover.in_hand,
                    (LATERAL unnest(in_hand.hand_jobs) pk(pk)
                     JOIN drover.jobqueue r ON ((r.jq_pk = pk.pk)))
                  WHERE ((r.jq_queue = q.queue_name) AND (r.jq_state = ANY (ARRAY['claimed'::drover.job_state, 'running'::drover.job_state]))))) THEN (('queue '::text || q.queue_name) || ' is full'::text)
                ELSE COALESCE(('waits its turn: '::text || a.agent_reason), 'waits its turn'::text)
            END
            ELSE ((j.jq_state || ': '::text) || COALESCE(j.jq_endtext, ''::text))
        END AS reason
   FROM ((((drover.jobqueue j
     LEFT JOIN drover.queue q ON ((q.queue_name = j.jq_queue)))
     LEFT JOIN drover.scheduler_group g ON ((g.group_name = q.queue_group)))
     LEFT JOIN drover.agent a ON (((a.agent_group = q.queue_group) AND (a.agent_type = j.jq_type))))
     LEFT JOIN drover.host h ON ((h.host_name = j.jq_host)));

CREATE VIEW drover.my_why WITH (security_barrier='true') AS
 SELECT w.jq_pk,
    w.jq_type,
    w.jq_state,
    w.reason
   FROM (drover.why w
     JOIN drover.jobqueue j ON ((j.jq_pk = w.jq_pk)))
  WHERE (j.jq_submitter = SESSION_USER);

ALTER TABLE drover.output ALTER COLUMN out_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.output_out_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.placement (
    placement_pk bigint NOT NULL,
    placement_type text,
    placement_from text NOT NULL,
    placement_to text,
    placement_host text NOT NULL
);

ALTER TABLE drover.placement ALTER COLUMN placement_pk ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME drover.placement_placement_pk_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE drover.scheduler (
    scheduler_uuid uuid NOT NULL,
    scheduler_group text NOT NULL,
    scheduler_host text NOT NULL,
    scheduler_pid integer NOT NULL,
    scheduler_boot_id text NOT NULL,
    scheduler_pid_space text NOT NULL,
    scheduler_pid_start bigint NOT NULL,
    scheduler_version text NOT NULL,
    scheduler_lease double precision DEFAULT 30 NOT NULL,
    scheduler_started timestamp with time zone DEFAULT now() NOT NULL,
    scheduler_seen timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE drover.scheduler_status (
    status_scheduler uuid NOT NULL,
    status_slot integer NOT NULL,
    status_host text,
    status_agent text,
    status_state integer NOT NULL,
    status_state_name text NOT NULL,
    status_since timestamp with time zone NOT NULL,
    status_pid integer,
    status_jq_fk bigint,
    status_parameter text,
    status_spawns integer DEFAULT 0 NOT NULL,
    status_items bigint DEFAULT 0 NOT NULL,
    status_reason text,
    status_updated timestamp with time zone DEFAULT now() NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE ONLY drover.agent
    ADD CONSTRAINT agent_pkey PRIMARY KEY (agent_group, agent_type);

ALTER TABLE ONLY drover.attempt_kept
    ADD CONSTRAINT attempt_kept_pkey PRIMARY KEY (att_jq_fk, att_attempt);

ALTER TABLE ONLY drover.command_ack
    ADD CONSTRAINT command_ack_pkey PRIMARY KEY (ack_jq_fk, ack_scheduler);

ALTER TABLE ONLY drover.host
    ADD CONSTRAINT host_pkey PRIMARY KEY (host_name);

ALTER TABLE ONLY drover.item_failure
    ADD CONSTRAINT item_failure_pkey PRIMARY KEY (item_pk);

ALTER TABLE ONLY drover.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (job_pk);

ALTER TABLE ONLY drover.jobdepends
    ADD CONSTRAINT jobdepends_pkey PRIMARY KEY (jdep_jq_fk, jdep_jq_depends_fk);

ALTER TABLE ONLY drover.jobqueue
    ADD CONSTRAINT jobqueue_jq_name_key UNIQUE (jq_name);

ALTER TABLE ONLY drover.jobqueue
    ADD CONSTRAINT jobqueue_pkey PRIMARY KEY (jq_pk);

ALTER TABLE ONLY drover.log
    ADD CONSTRAINT log_pkey PRIMARY KEY (log_pk);

ALTER TABLE ONLY drover.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (number);

ALTER TABLE ONLY drover.output
    ADD CONSTRAINT output_pkey PRIMARY KEY (out_pk);

ALTER TABLE ONLY drover.placement
    ADD CONSTRAINT placement_pkey PRIMARY KEY (placement_pk);

ALTER TABLE ONLY drover.queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (queue_name);

ALTER TABLE ONLY drover.scheduler_group
    ADD CONSTRAINT scheduler_group_pkey PRIMARY KEY (group_name);

ALTER TABLE ONLY drover.scheduler
    ADD CONSTRAINT scheduler_pkey PRIMARY KEY (scheduler_uuid);

ALTER TABLE ONLY drover.scheduler_status
    ADD CONSTRAINT scheduler_status_pkey PRIMARY KEY (status_scheduler, status_slot);

CREATE INDEX claimable_order ON drover.claimable USING btree (claim_type, claim_queue, claim_host, claim_rank, claim_queued, claim_jq_fk);

CREATE INDEX item_failure_of_job ON drover.item_failure USING btree (item_jq_fk);

CREATE INDEX jobdepends_open ON drover.jobdepends USING btree (jdep_jq_depends_fk) WHERE (jdep_met_at IS NULL);

CREATE INDEX jobqueue_due ON drover.jobqueue USING btree (jq_wait_until) WHERE (jq_wait_until IS NOT NULL);

CREATE INDEX jobqueue_expiring ON drover.jobqueue USING btree (jq_expires_at) WHERE (jq_expires_at IS NOT NULL);

CREATE INDEX jobqueue_of_job ON drover.jobqueue USING btree (jq_job_fk) WHERE (jq_job_fk IS NOT NULL);

CREATE UNIQUE INDEX jobqueue_one_live_row_per_key ON drover.jobqueue USING btree (jq_live_key) WHERE (jq_live_key IS NOT NULL);

CREATE INDEX log_of_job ON drover.log USING btree (log_jq_fk) WHERE (log_jq_fk IS NOT NULL);

CREATE INDEX output_of_job ON drover.output USING btree (out_jq_fk, out_pk);

CREATE TRIGGER jobdepends_add BEFORE INSERT ON drover.jobdepends FOR EACH ROW EXECUTE FUNCTION drover.add_edge();

CREATE TRIGGER jobdepends_drop AFTER DELETE ON drover.jobdepends FOR EACH ROW WHEN ((old.jdep_met_at IS NULL)) EXECUTE FUNCTION drover.drop_edge();

CREATE TRIGGER jobqueue_fixed AFTER UPDATE OF jq_type, jq_args, jq_name, jq_msq, jq_runonpfile, jq_key, jq_submitter ON drover.jobqueue FOR EACH ROW WHEN ((((((((old.jq_type IS DISTINCT FROM new.jq_type) OR (old.jq_args IS DISTINCT FROM new.jq_args)) OR (old.jq_name IS DISTINCT FROM new.jq_name)) OR (old.jq_msq IS DISTINCT FROM new.jq_msq)) OR (old.jq_runonpfile IS DISTINCT FROM new.jq_runonpfile)) OR (old.jq_key IS DISTINCT FROM new.jq_key)) OR (old.jq_submitter IS DISTINCT FROM new.jq_submitter))) EXECUTE FUNCTION drover.refuse('what job %s asks for never changes: insert another job');

CREATE TRIGGER jobqueue_gone AFTER DELETE ON drover.jobqueue FOR EACH ROW WHEN (((old.jq_state = 'queued'::drover.job_state) AND (old.jq_unmet = 0) AND (old.jq_wait_until IS NULL))) EXECUTE FUNCTION drover.gone();

CREATE TRIGGER jobqueue_moved AFTER UPDATE OF jq_state, jq_unmet, jq_wait_until, jq_queue, jq_host, jq_urgent, jq_priority, jq_queued ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_unique_key IS NOT NULL) OR (new.jq_not_after IS NOT NULL) OR (NOT (((old.jq_state = 'queued'::drover.job_state) AND (new.jq_state = 'claimed'::drover.job_state)) OR ((old.jq_state = 'claimed'::drover.job_state) AND ((new.jq_state = 'done'::drover.job_state) OR (new.jq_state = 'running'::drover.job_state) OR (new.jq_state = 'claimed'::drover.job_state))) OR ((old.jq_state = 'running'::drover.job_state) AND ((new.jq_state = 'done'::drover.job_state) OR (new.jq_state = 'running'::drover.job_state))))))) EXECUTE FUNCTION drover.moved();

CREATE TRIGGER jobqueue_offer_new AFTER INSERT ON drover.jobqueue REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT EXECUTE FUNCTION drover.offer_new();

CREATE TRIGGER jobqueue_prepare BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_type <> 'command'::text) AND ((new.jq_state <> 'queued'::drover.job_state) OR (new.jq_mode = 'manual'::drover.job_mode) OR (new.jq_runonpfile IS NOT NULL) OR (new.jq_queue IS NULL) OR (new.jq_host IS NOT NULL) OR (new.jq_job_fk IS NOT NULL) OR (new.jq_not_before IS NOT NULL) OR (new.jq_not_after IS NOT NULL) OR (new.jq_unique_key IS NOT NULL)))) EXECUTE FUNCTION drover.prepare_job();

CREATE TRIGGER jobqueue_prepare_command BEFORE INSERT ON drover.jobqueue FOR EACH ROW WHEN ((new.jq_type = 'command'::text)) EXECUTE FUNCTION drover.prepare_command();

CREATE TRIGGER jobqueue_wake_due AFTER INSERT ON drover.jobqueue FOR EACH ROW WHEN (((new.jq_wait_until IS NOT NULL) OR (new.jq_not_after IS NOT NULL))) EXECUTE FUNCTION drover.wake('drover_due');

CREATE TRIGGER placement_wake AFTER INSERT OR DELETE OR UPDATE ON drover.placement FOR EACH STATEMENT EXECUTE FUNCTION drover.wake('drover_change');

CREATE TRIGGER queue_wake AFTER INSERT OR DELETE OR UPDATE ON drover.queue FOR EACH STATEMENT EXECUTE FUNCTION drover.wake('drover_change');

ALTER TABLE ONLY drover.jobdepends
    ADD CONSTRAINT jobdepends_jdep_jq_depends_fk_fkey FOREIGN KEY (jdep_jq_depends_fk) REFERENCES drover.jobqueue(jq_pk);

ALTER TABLE ONLY drover.jobdepends
    ADD CONSTRAINT jobdepends_jdep_jq_fk_fkey FOREIGN KEY (jdep_jq_fk) REFERENCES drover.jobqueue(jq_pk) ON DELETE CASCADE;

ALTER TABLE ONLY drover.jobqueue
    ADD CONSTRAINT jobqueue_jq_job_fk_fkey FOREIGN KEY (jq_job_fk) REFERENCES drover.job(job_pk);
